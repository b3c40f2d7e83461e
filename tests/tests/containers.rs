//! Tasks in containers, with a real container engine.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::process::Command;

use dstack_tests::http::Client;
use dstack_tests::runs::{Run, TEST_TIMEOUT, submit};
use dstack_tests::server::{Server, Setup, eventually};
use dstack_tests::{need, parts};
use serde_json::json;

fn start() -> Result<(Server, String), String> {
    let image = parts::image()?;
    let setup = Setup::local()?.variable("DSTACK_LOCAL_RUNTIME", "docker");
    Ok((setup.start().unwrap(), image))
}

/// Jobs run in an interactive shell, and busybox's greets: what follows is the commands' own.
fn commands_output(log: &str) -> &str {
    log.split_once("built-in commands.\n\n")
        .map_or(log, |(_, own)| own)
}

/// Ids of the containers of a run, running or not. Others may use the container engine as well.
fn containers(run: &Run<'_>) -> String {
    let task = run.submission().unwrap()["id"].as_str().unwrap().to_owned();
    let label = format!("label=ai.dstack.shim.task-id={task}");
    let mut list = Command::new("docker");
    let listed = list
        .args(["ps", "-a", "-q", "--filter", &label])
        .output()
        .unwrap();
    assert!(listed.status.success(), "{listed:?}");
    String::from_utf8_lossy(&listed.stdout).into_owned()
}

/// Nothing of a run is left in the container engine. A job is over as soon as nothing of it runs any more; its container is
/// deleted after that.
fn until_no_container(run: &Run<'_>) {
    eventually("no container is left", TEST_TIMEOUT, || {
        Ok(containers(run).is_empty().then_some(()))
    })
    .unwrap();
}

#[test]
fn a_task_runs_in_its_image_and_leaves_no_container() {
    let (server, image) = need!(start());
    let more = json!({"image": image, "env": {"GREETING": "hello"}});
    let run = submit(
        &server,
        "boxed",
        &["echo $GREETING", "ls /bin/busybox", "test ! -e /usr/bin/env"],
        &more,
    )
    .unwrap();
    assert_eq!(
        run.wait_until_finished().unwrap(),
        "done",
        "{:#}",
        run.get().unwrap()
    );
    assert_eq!(commands_output(&run.logs().unwrap()), "hello\n/bin/busybox\n");
    until_no_container(&run);
}

#[test]
fn the_exit_code_of_a_container_is_the_jobs() {
    let (server, image) = need!(start());
    let run = submit(&server, "seven", &["exit 7"], &json!({"image": image})).unwrap();
    assert_eq!(run.wait_until_finished().unwrap(), "failed");
    assert_eq!(run.submission().unwrap()["exit_status"], 7);
}

#[test]
fn an_image_that_does_not_exist_is_refused_with_a_reason() {
    let (server, _) = need!(start());
    let image = "127.0.0.1:1/no/such/image:1";
    let refused = submit(&server, "imageless", &["true"], &json!({"image": image}));
    let message = refused.err().unwrap().to_string();
    for words in [
        "400",
        "Error pulling configuration for image '127.0.0.1:1/no/such/image:1' from the docker registry",
        "127.0.0.1 is on the server's own machine",
        "DSTACK_SERVER_OUTBOUND_ALLOW=127.0.0.1",
    ] {
        assert!(message.contains(words), "{words:?} is missing: {message}");
    }
    let runs = server.get("/api/runs/list", &json!({})).unwrap();
    assert_eq!(runs, json!([]), "nothing is left behind");
}

/// An image that no registry has, with an entrypoint and a command of its own; removed when dropped.
struct OwnImage(String);

impl OwnImage {
    fn of(base: &str, changes: &[&str]) -> OwnImage {
        let name = format!("dstack-test-own-{}:1", std::process::id());
        let container = docker(&["create", base, "true"]);
        let mut commit = vec!["commit"];
        for change in changes {
            commit.extend(["--change", change]);
        }
        commit.extend([container.as_str(), name.as_str()]);
        docker(&commit);
        docker(&["rm", &container]);
        OwnImage(name)
    }
}

impl Drop for OwnImage {
    fn drop(&mut self) {
        docker(&["rmi", "--force", &self.0]);
    }
}

fn docker(arguments: &[&str]) -> String {
    let output = Command::new("docker").args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "docker {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn an_image_runs_its_own_entrypoint_and_command() {
    let (server, base) = need!(start());
    let changes = [
        "ENTRYPOINT [\"/bin/busybox\", \"echo\"]",
        "CMD [\"said\", \"by the image\"]",
    ];
    let image = OwnImage::of(&base, &changes);
    let run = submit(&server, "own-command", &[], &json!({"image": image.0})).unwrap();
    assert_eq!(
        run.wait_until_finished().unwrap(),
        "done",
        "{:#}",
        run.get().unwrap()
    );
    assert_eq!(run.logs().unwrap(), "said by the image\n");
    let spec = &run.get().unwrap()["jobs"][0]["job_spec"];
    let expected = json!(["/bin/busybox", "echo", "said", "by the image"]);
    assert_eq!(spec["commands"], expected);
    until_no_container(&run);
}

#[test]
fn a_stopped_task_leaves_no_container() {
    let (server, image) = need!(start());
    let run = submit(
        &server,
        "stopped",
        &["echo started", "sleep 1000"],
        &json!({"image": image}),
    )
    .unwrap();
    run.wait_for_log("started").unwrap();
    assert_eq!(containers(&run).lines().count(), 1);
    run.stop(false).unwrap();
    assert_eq!(run.wait_until_finished().unwrap(), "terminated");
    until_no_container(&run);
}

/// Process id of the host agent that the server has started.
fn shim(server: &Server) -> u32 {
    let is_shim = |pid: &u32| {
        let line = fs_err::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == b"shim")
    };
    server.descendants().into_iter().find(is_shim).unwrap()
}

#[test]
fn a_container_outlives_server_and_shim() {
    let (mut server, image) = need!(start());
    let count = "i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo line $i; sleep 0.1; done";
    submit(&server, "lasting", &[count], &json!({"image": image}))
        .unwrap()
        .wait_for_log("line 5\n")
        .unwrap();
    let agent = shim(&server);
    server.kill().unwrap();
    dstack_tests::server::signal(agent, "KILL");
    server.start().unwrap();
    let run = dstack_tests::runs::attach(&server, "lasting");
    assert_eq!(
        run.wait_until_finished().unwrap(),
        "done",
        "{:#}",
        run.get().unwrap()
    );
    let lines: String = (1..=40).map(|i| format!("line {i}\n")).collect();
    assert_eq!(commands_output(&run.logs().unwrap()), lines);
}

#[test]
fn what_a_container_uses_is_measured() {
    let (server, image) = need!(start());
    let run = submit(
        &server,
        "busy",
        &["while true; do true; done"],
        &json!({"image": image}),
    )
    .unwrap();
    run.wait_for(&["running"]).unwrap();
    let url = format!("{}/api/project/main/metrics/job/busy?limit=10", server.url());
    let authorization = [("authorization".to_owned(), format!("Bearer {}", server.token()))];
    let measured = eventually("the job is measured", TEST_TIMEOUT, || {
        let answer = Client::default().send("GET", &url, &authorization, None)?;
        let all = answer
            .json()
            .and_then(|metrics| metrics["metrics"].as_array().cloned());
        Ok(all.filter(|all| !all.is_empty()))
    })
    .unwrap();
    let value = |name: &str| {
        let metric = measured.iter().find(|metric| metric["name"] == name).unwrap();
        metric["values"][0].as_i64().unwrap()
    };
    assert!(value("cpu_usage_percent") > 10, "{measured:#?}");
    assert!(value("memory_usage_bytes") > 0, "{measured:#?}");
    // A network of its own, through which the server asks.
    assert!(value("network_receive_bytes_per_second") > 0, "{measured:#?}");
    assert!(value("network_transmit_bytes_per_second") > 0, "{measured:#?}");
    run.stop(true).unwrap();
    run.wait_until_finished().unwrap();
}

/// The container engine of the tests, under a path that can be taken away.
struct Switch {
    engine: std::path::PathBuf,
    dir: tempfile::TempDir,
}

impl Switch {
    fn new() -> parts::Part<Switch> {
        Ok(Switch {
            engine: parts::docker_socket()?,
            dir: tempfile::tempdir().unwrap(),
        })
    }

    fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("engine.sock")
    }

    fn on(&self) {
        std::os::unix::fs::symlink(&self.engine, self.path()).unwrap();
    }

    fn off(&self) {
        fs_err::remove_file(self.path()).unwrap();
    }
}

#[test]
fn a_task_waits_for_a_container_engine_that_is_away_and_says_so() {
    let image = need!(parts::image());
    let switch = need!(Switch::new());
    switch.on();
    let setup = need!(Setup::local())
        .variable("DSTACK_LOCAL_RUNTIME", "auto")
        .variable("DOCKER_HOST", format!("unix://{}", switch.path().display()));
    let server = setup.start().unwrap();
    // The plan asks the engine for the image; the agent, which stands still, gets the task only when the engine is away.
    let agent = shim(&server);
    dstack_tests::server::signal(agent, "STOP");
    let commands = ["test ! -e /usr/bin/env", "echo in the image"];
    let run = submit(&server, "patient", &commands, &json!({"image": image})).unwrap();
    switch.off();
    dstack_tests::server::signal(agent, "KILL");
    let reason = eventually("it says what it waits for", TEST_TIMEOUT, || {
        let waits = run.submission()?["waiting_for"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        Ok(waits.contains("container engine").then_some(waits))
    })
    .unwrap();
    assert!(
        reason.contains("503") && reason.contains("engine.sock"),
        "{reason}"
    );
    switch.on();
    assert_eq!(
        run.wait_until_finished().unwrap(),
        "done",
        "{:#}",
        run.get().unwrap()
    );
    assert_eq!(commands_output(&run.logs().unwrap()), "in the image\n");
}

#[test]
fn containers_do_not_get_the_servers_files_not_even_by_a_link() {
    let (server, image) = need!(start());
    let own = server.home().join(".dstack/server");
    let plan = json!({"run_spec": {"run_name": "reader", "configuration": {
        "type": "task", "commands": ["x"], "image": image, "volumes": [format!("{}:/mounted", own.display())]}}, "explain": true});
    let planned = server.get("/api/project/main/runs/get_plan", &plan).unwrap();
    let said = planned["explanations"].to_string();
    assert!(
        said.contains("does not mount") && said.contains("container engine"),
        "{said}"
    );

    // The planner sees paths only; the agent sees where they lead.
    let open = tempfile::tempdir().unwrap();
    let link = open.path().join("link");
    std::os::unix::fs::symlink(&own, &link).unwrap();
    let read = |name: &str, path: &std::path::Path| {
        let more = json!({"image": image, "volumes": [format!("{}:/mounted", path.display())]});
        let run = submit(&server, name, &["ls /mounted"], &more).unwrap();
        (run.wait_until_finished().unwrap(), run.get().unwrap().to_string())
    };
    let (status, run) = read("linked", &link);
    assert_eq!(status, "failed", "{run}");
    assert!(run.contains("link is not mounted: the server's files"), "{run}");
    let (status, run) = read("allowed", open.path());
    assert_eq!(status, "done", "{run}");

    let privileged = json!({"image": image, "privileged": true});
    let run = submit(&server, "mighty", &["id"], &privileged).unwrap();
    assert_eq!(run.wait_until_finished().unwrap(), "failed");
    let said = run.get().unwrap().to_string();
    assert!(said.contains("runs nothing that is `privileged`"), "{said}");
}
