#![allow(clippy::needless_pass_by_value)] // `json!` values

use std::collections::HashMap;

use dstack_units::CpuArchitecture;
use serde_json::{Value, json};

use super::*;
use crate::ServerDefaults;

fn jobs_with(configuration: Value, image: Option<&ImageConfig>) -> Result<Vec<JobSpec>, PlanError> {
    let run: RunSpec =
        serde_json::from_value(json!({"run_name": "a-run", "configuration": configuration})).unwrap();
    let server = ServerDefaults::default();
    let images = image
        .into_iter()
        .map(|image| ("x".to_owned(), image.clone()))
        .collect();
    let context = JobContext {
        server: &server,
        images: &images,
        target: Target::Container,
    };
    job_specs(&run, 0, None, &context)
}

fn job(configuration: Value) -> JobSpec {
    jobs_with(configuration, None).unwrap().remove(0)
}

#[test]
fn commands_become_one_line_of_a_shell() {
    let script = job(json!({"type": "task", "image": "x", "commands": ["a", " b & "]}));
    assert_eq!(script.commands, ["/bin/sh", "-i", "-c", "a && { b & }"]);
    let entrypoint = json!({"type": "task", "image": "x", "entrypoint": "run 'it all'", "commands": ["a"]});
    assert_eq!(job(entrypoint).commands, ["run", "it all", "a"]);
    let docker = job(json!({"type": "task", "docker": true, "commands": ["a"]}));
    assert_eq!(docker.commands.last().unwrap(), "start-dockerd && a");
    assert!(docker.privileged);
}

#[test]
fn a_process_of_a_host_has_a_shell_that_is_there_and_no_preparations() {
    let run = |configuration: Value| -> RunSpec {
        serde_json::from_value(json!({"run_name": "a-run", "configuration": configuration})).unwrap()
    };
    let groups = json!({"type": "task", "groups": [{"commands": ["a"]}, {"commands": ["b"], "nodes": 2}]});
    for (job, command) in jobs_with(groups.clone(), None)
        .unwrap()
        .iter()
        .zip(["a", "b", "b"])
    {
        assert!(
            job.commands.last().unwrap().contains("uv venv"),
            "{:?}",
            job.commands
        );
        let on_host = host_commands(&run(groups.clone()), job).unwrap();
        assert_eq!(on_host, ["/bin/sh", "-i", "-c", command]);
    }
    let service = json!({"type": "service", "port": 80, "groups": [
        {"name": "first", "replicas": 1, "commands": ["a"]}, {"name": "second", "replicas": 1, "commands": ["b"]}]});
    let second = JobSpec {
        replica_group: "second".to_owned(),
        ..job(service.clone())
    };
    assert_eq!(
        host_commands(&run(service), &second).unwrap().last().unwrap(),
        "b"
    );
    // What an image would run is not there.
    let image = ImageConfig {
        cmd: vec!["serve".to_owned()],
        ..ImageConfig::default()
    };
    let task = json!({"type": "task", "image": "x"});
    let of_image = jobs_with(task.clone(), Some(&image)).unwrap().remove(0);
    let error = host_commands(&run(task), &of_image).unwrap_err();
    assert!(error.0.contains("without a container engine"), "{error}");
}

#[test]
fn images_say_what_the_configuration_does_not() {
    let image = ImageConfig {
        user: Some("app".to_owned()),
        entrypoint: vec!["serve".to_owned()],
        cmd: vec!["--all".to_owned()],
        architectures: vec![CpuArchitecture::Arm],
    };
    let task = json!({"type": "task", "image": "x"});
    let job = jobs_with(task, Some(&image)).unwrap().remove(0);
    assert_eq!(job.commands, ["serve", "--all"]);
    assert_eq!(job.user.unwrap().username.as_deref(), Some("app"));
    assert_eq!(job.requirements.resources.cpu.arch, Some(CpuArchitecture::Arm));
    let none = ImageConfig::default();
    let error = jobs_with(json!({"type": "task", "image": "x"}), Some(&none)).unwrap_err();
    assert!(error.0.starts_with("Could not determine what command to run"));
}

#[test]
fn registries_are_asked_only_when_it_matters() {
    let wanted = |configuration: Value| -> Vec<String> {
        let run: RunSpec = serde_json::from_value(json!({"configuration": configuration})).unwrap();
        images(&run, &ServerDefaults::default()).into_iter().collect()
    };
    for (configuration, expected) in [
        (json!({"type": "task", "commands": ["a"]}), vec![]),
        (
            json!({"type": "task", "image": "x", "commands": ["a"]}),
            vec!["x"],
        ),
        (
            json!({"type": "task", "image": "scratch", "commands": [":"]}),
            vec![],
        ),
        (
            json!({"type": "task", "image": "x", "user": "u", "commands": ["a"]}),
            vec!["x"],
        ),
        (
            json!({"type": "task", "image": "x", "user": "u", "commands": ["a"], "resources": {"cpu": "x86:2.."}}),
            vec![],
        ),
        (
            json!({"type": "task", "image": "x", "user": "u", "resources": {"cpu": "x86:2.."}}),
            vec!["x"],
        ),
        (json!({"type": "task", "docker": true, "commands": ["a"]}), vec![]),
        (
            json!({"type": "service", "port": 80, "groups": [{"name": "a", "count": 1, "commands": ["a"]},
                   {"name": "b", "count": 1, "image": "y", "commands": ["b"]}]}),
            vec!["y"],
        ),
    ] {
        assert_eq!(wanted(configuration.clone()), expected, "{configuration}");
    }
}

#[test]
fn dev_environments_show_how_to_open_them() {
    let line = |more: Value| {
        let mut dev = json!({"type": "dev-environment"});
        dev.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        job(dev).commands.pop().unwrap()
    };
    assert!(!line(json!({})).contains("To open in"));
    let code = line(json!({"ide": "vscode"}));
    assert!(code.contains("echo \"  vscode://vscode-remote/ssh-remote+a-run$DSTACK_WORKING_DIR\""));
    assert!(!code.contains("wget"));
    assert!(line(json!({"ide": "zed"})).contains("zed://ssh/a-run$DSTACK_WORKING_DIR"));
    let installed = line(json!({"ide": "cursor", "version": "abc"}));
    assert!(installed.contains("mkdir -vp ~/.cursor-server/cli/servers/\"Stable-abc\"/server"));
}

#[test]
fn jobs_that_use_dstack_know_where_the_server_is() {
    let url = |env: Value| {
        let task = json!({"type": "task", "commands": ["a"], "dstack": true, "env": env});
        job(task).env.get("DSTACK_SERVER_URL").cloned()
    };
    assert_eq!(
        url(json!({})).unwrap(),
        "http+unix://%2Frun%2Fdstack%2Fserver.sock"
    );
    assert_eq!(url(json!({"DSTACK_SERVER_URL": "mine"})).unwrap(), "mine");
}

#[test]
fn volumes_are_named_by_node() {
    let task = json!({"type": "task", "commands": ["a"], "nodes": 2,
                      "volumes": [{"name": "data-${{ dstack.node_rank }}", "path": "/d"}]});
    let names: Vec<Value> = jobs_with(task.clone(), None)
        .unwrap()
        .iter()
        .map(|job| serde_json::to_value(job.volumes.as_ref().unwrap()).unwrap()[0]["name"].clone())
        .collect();
    assert_eq!(names, [json!(["data-0"]), json!(["data-1"])]);
    let run: RunSpec = serde_json::from_value(json!({"configuration": task})).unwrap();
    let mounts = &run.configuration.base().volumes;
    assert_eq!(volume_names(mounts, 3).unwrap(), [vec!["data-3".to_owned()]]);
}

#[test]
fn secrets_are_put_in() {
    let secrets = HashMap::from([("TOKEN".to_owned(), "t0k".to_owned())]);
    assert_eq!(
        with_secrets("a ${{ secrets.TOKEN }} $HOME", &secrets).unwrap(),
        "a t0k $HOME"
    );
    let missing = with_secrets("${{ secrets.X }}", &secrets).unwrap_err();
    assert_eq!(
        missing.0,
        "Failed to interpolate due to missing vars: ['secrets.X']"
    );
}

#[test]
fn runs_of_too_many_nodes_make_no_jobs() {
    let refused = |configuration: Value| jobs_with(configuration, None).unwrap_err().0;
    assert_eq!(
        refused(json!({"type": "task", "commands": ["a"], "nodes": 1_000_000_000})),
        "A task can have at most 2000 nodes, not 1000000000"
    );
    let groups = json!([{"nodes": i64::MAX, "commands": ["a"]}, {"nodes": i64::MAX, "commands": ["b"]}]);
    let text = refused(json!({"type": "task", "groups": groups}));
    assert!(
        text.starts_with("A task can have at most 2000 nodes, not "),
        "{text}"
    );
    let most = json!({"type": "task", "commands": ["a"], "nodes": 2000});
    assert_eq!(jobs_with(most, None).unwrap().len(), 2000);
}

/// Deciding whether an image is asked does not depend on the number of nodes: it comes before the run is refused.
#[test]
fn images_of_runs_of_too_many_nodes_are_found_at_once() {
    let configuration = json!({"type": "task", "image": "x", "nodes": i64::MAX});
    let run: RunSpec =
        serde_json::from_value(json!({"run_name": "a-run", "configuration": configuration})).unwrap();
    let images = images(&run, &ServerDefaults::default());
    assert_eq!(images.into_iter().collect::<Vec<_>>(), ["x"]);
}

#[test]
fn images_with_efa_stand_in_for_default_ones_only() {
    let server = ServerDefaults::default();
    let with_efa = Some("dstackai/base:0.16-devel-efa-ubuntu24.04".to_owned());
    for nvcc in [false, true] {
        assert_eq!(server.efa_image(&server.default_image(nvcc)), with_efa);
    }
    assert_eq!(
        server
            .efa_image("dstackai/base:0.15rc1-base-ubuntu24.04")
            .unwrap(),
        "dstackai/base:0.15rc1-devel-efa-ubuntu24.04",
        "of a job that was made before the server was updated"
    );
    for other in [
        &server.dind_image,
        "dstackai/base:0.16-devel-efa-ubuntu24.04",
        "dstackai/base:0.16-base-ubuntu22.04",
        "dstackai/base-other:0.16-base-ubuntu24.04",
        "mine/dstackai/base:0.16-base-ubuntu24.04",
        "dstackai/base",
    ] {
        assert_eq!(server.efa_image(other), None, "{other}");
    }
    let registry = ServerDefaults {
        base_image: "registry.example:5000/base".to_owned(),
        ..ServerDefaults::default()
    };
    assert_eq!(
        registry.efa_image(&registry.default_image(true)).unwrap(),
        "registry.example:5000/base:0.16-devel-efa-ubuntu24.04"
    );
}
