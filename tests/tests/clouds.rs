//! From a configuration of a cloud to the lines of a job, with machines that are real as far as SSH and containers go.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // tests

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dstack_backend_kit::{Emulator, serve};
use dstack_emulator_aws::{Aws, Size, Times as AwsTimes};
use dstack_emulator_cloudrift::{CloudRift, Times};
use dstack_tests::cli::{Cli, Ended};
use dstack_tests::fleets::events;
use dstack_tests::hosts::{IMAGE, Lab, USUAL};
use dstack_tests::need;
use dstack_tests::parts::{self, Part};
use dstack_tests::runs::{TEST_TIMEOUT, submit};
use dstack_tests::server::{Server, Setup, eventually};
use serde_json::{Value, json};

const KEY: &str = "canary-cloudrift-key";

/// A size of the catalogue, and a data center that has it.
const SIZE: (&str, &str) = ("rtx49-10c.1", "us-east-nc-nr-1");

const AWS_KEY: (&str, &str) = ("AKIAIOSFODNN7EXAMPLE", "canary-aws-secret-key");

/// A cloud with one machine, as a test knows it.
struct Cloud {
    /// As users name the backend.
    name: &'static str,
    config: Value,
    /// What must not be shown.
    secret: &'static str,
    /// Where its API is.
    endpoint: String,
    emulator: Arc<dyn Emulator>,
    /// Words of `dstack offer`, and the type that it shows.
    offer: (&'static [&'static str], &'static str),
}

/// One machine of the lab for the first that asks, and none for others: its user is `user`. By the keys that may log in; its address.
fn one_machine(user: &'static str) -> Part<impl Fn(&[String]) -> Option<String> + Send + Sync + 'static> {
    let lab: &'static Lab = Box::leak(Box::new(Lab::new()?));
    let host = lab.host("machine", 2, USUAL)?;
    // The user that the vendor's images have.
    let make_user = format!(
        "set -e
        grep -q '^{user}:' /etc/passwd || useradd --create-home --shell /bin/sh --password '*' {user}
        echo '{user} ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/{user}
        mkdir -p /home/{user}/.ssh"
    );
    host.run(&make_user).unwrap();
    let taken = AtomicBool::new(false);
    Ok(move |keys: &[String]| {
        if taken.swap(true, Ordering::Relaxed) {
            return None;
        }
        let lines = keys.join("\n");
        let add = format!(
            "printf '%s\\n' '{lines}' >/home/{user}/.ssh/authorized_keys && chown -R {user}: /home/{user}"
        );
        host.run(&add).unwrap();
        Some(host.address.clone())
    })
}

fn cloudrift() -> Part<Cloud> {
    let times = Times {
        starts: Duration::from_secs(1),
        ends: Duration::from_secs(1),
    };
    let sizes = vec![(SIZE.0.to_owned(), SIZE.1.to_owned())];
    let machine = one_machine("riftuser")?;
    let give = move |keys: &[String]| machine(keys).map(|address| (address, 22));
    let emulator = CloudRift::with_machines(KEY, sizes, times, Box::new(give));
    Ok(Cloud {
        name: "cloudrift",
        config: cloudrift_config(KEY),
        secret: KEY,
        endpoint: format!("cloudrift=http://{}/api/v1", serve(emulator.router())),
        emulator: Arc::new(emulator),
        offer: (&["--gpu", "RTX4090"], SIZE.0),
    })
}

fn cloudrift_config(key: &str) -> Value {
    json!({"type": "cloudrift", "creds": {"type": "api_key", "api_key": key}})
}

fn aws() -> Part<Cloud> {
    let times = AwsTimes {
        starts: Duration::from_secs(1),
        ends: Duration::from_secs(1),
        volumes: Duration::from_secs(1),
    };
    let size = Size {
        name: "t3.medium".to_owned(),
        vcpus: 2,
        max_efa: 0,
    };
    let machine = one_machine("ubuntu")?;
    let give = move |user_data: &str| {
        // The first line says what it is.
        let config: Value = serde_json::from_str(user_data.split_once('\n')?.1).ok()?;
        let keys = config["ssh_authorized_keys"].as_array()?.iter();
        let keys: Vec<String> = keys.filter_map(|key| Some(key.as_str()?.to_owned())).collect();
        machine(&keys)
    };
    let (id, secret) = AWS_KEY;
    let emulator = Aws::with_machines(id, secret, &["us-east-1"], vec![size], times, Box::new(give));
    Ok(Cloud {
        name: "aws",
        config: json!({"type": "aws", "regions": ["us-east-1"],
            "creds": {"type": "access_key", "access_key": id, "secret_key": secret}}),
        secret,
        endpoint: format!("aws=http://{}", serve(emulator.router())),
        emulator: Arc::new(emulator),
        offer: (&["--cpu", "2", "--memory", "4GB"], "t3.medium"),
    })
}

fn start(cloud: &Cloud) -> Part<Server> {
    parts::image()?;
    let endpoints = ("DSTACK_SERVER_BACKEND_ENDPOINTS", cloud.endpoint.as_str());
    Ok(Setup::local()?
        .variable(endpoints.0, endpoints.1)
        .start()
        .unwrap())
}

/// The cloud's own books are empty.
fn nothing_is_left(cloud: &Cloud) {
    eventually("the machine is gone", TEST_TIMEOUT, || {
        Ok(cloud.emulator.ledger().alive().is_empty().then_some(()))
    })
    .unwrap();
}

/// By the command line: the machine's address is where the job is attached to.
fn a_task_of_the_command_line_runs_in_a_cloud(cli: &Cli, cloud: &Cloud) {
    let server = need!(start(cloud));
    server
        .get("/api/project/main/backends/create", &cloud.config)
        .unwrap();
    let added = cli.add_project(&server).unwrap();
    assert_eq!(added.code, Some(0), "{}", added.text);
    let fleet = format!(
        "type: fleet\nname: cloud\nnodes: 0..1\nidle_duration: 3s\nbackends: [{}]\n",
        cloud.name
    );
    cli.write("fleet.yml", &fleet).unwrap();
    let Ended { code, text } = cli.run(&["apply", "-y", "-f", "fleet.yml"]).unwrap();
    assert_eq!(code, Some(0), "{text}\n{}", server.output());
    let (words, instance_type) = cloud.offer;
    let Ended { code, text } = cli.run(&[&["offer"], words].concat()).unwrap();
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains(cloud.name) && text.contains(instance_type),
        "{text}"
    );
    let task = format!(
        "type: task\nname: train\nimage: {IMAGE}\nuser: root\nfleets: [cloud]\n\
         commands:\n  - echo hello from a cloud\n\
         resources:\n  gpu: 0..\n  cpu: 1..\n  memory: 0.1GB..\n  disk: 1GB..\n"
    );
    cli.write("task.yml", &task).unwrap();
    let Ended { code, text } = cli.run(&["apply", "-y", "-f", "task.yml"]).unwrap();
    assert_eq!(code, Some(0), "{text}\n{}", server.output());
    assert!(text.contains("hello from a cloud"), "{text}");
    nothing_is_left(cloud);
    assert_eq!(cloud.emulator.ledger().count(), 1);
    let output = server.output();
    assert!(!output.contains(cloud.secret), "the secret is shown in {output}");
}

mod python {
    use dstack_tests::{cli::Cli, need};

    #[test]
    fn a_task_runs_in_cloudrift() {
        super::a_task_of_the_command_line_runs_in_a_cloud(&need!(Cli::python()), &need!(super::cloudrift()));
    }

    #[test]
    fn a_task_runs_in_aws() {
        super::a_task_of_the_command_line_runs_in_a_cloud(&need!(Cli::python()), &need!(super::aws()));
    }
}

mod ours {
    use dstack_tests::{cli::Cli, need};

    #[test]
    fn a_task_runs_in_cloudrift() {
        super::a_task_of_the_command_line_runs_in_a_cloud(&need!(Cli::ours()), &need!(super::cloudrift()));
    }

    #[test]
    fn a_task_runs_in_aws() {
        super::a_task_of_the_command_line_runs_in_a_cloud(&need!(Cli::ours()), &need!(super::aws()));
    }
}

#[test]
fn a_machine_of_cloudrift_runs_a_job_and_is_gone_when_idle() {
    let cloud = need!(cloudrift());
    let server = need!(start(&cloud));
    let create = "/api/project/main/backends/create";
    let refused = server.call(create, &cloudrift_config("wrong")).unwrap();
    assert_eq!(refused.status, 400, "{}", refused.text());
    let body = refused.json().unwrap().to_string();
    assert!(
        body.contains("invalid_credentials") && body.contains("api_key"),
        "{body}"
    );
    server.get(create, &cloud.config).unwrap();

    let fleet = json!({"type": "fleet", "name": "cloud", "nodes": "0..1", "idle_duration": "3s", "backends": ["cloudrift"]});
    let plan =
        json!({"plan": {"spec": {"configuration": fleet, "profile": {"name": "default"}}}, "force": true});
    server.get("/api/project/main/fleets/apply", &plan).unwrap();
    let wanted = json!({"image": IMAGE, "user": "root", "fleets": ["cloud"],
        "resources": {"cpu": "1..", "memory": "0.1GB..", "disk": "1GB..", "gpu": "0.."}});
    let run = submit(&server, "train", &["echo hello from a cloud"], &wanted).unwrap();
    assert_eq!(
        run.wait_until_finished().unwrap(),
        "done",
        "{:#}\n{:#?}\n{}",
        run.get().unwrap(),
        events(&server),
        server.output()
    );
    assert!(run.logs().unwrap().contains("hello from a cloud"));
    let machines = cloud.emulator.ledger().alive();
    assert_eq!(machines.len(), 1);
    assert!(machines[0].name.starts_with("dstack-cloud-0-"), "{machines:?}");

    // A backend that has machines stays.
    let delete = |server: &Server| {
        server
            .call(
                "/api/project/main/backends/delete",
                &json!({"backends_names": ["cloudrift"]}),
            )
            .unwrap()
    };
    let refused = delete(&server);
    assert_eq!(refused.status, 400, "{}", refused.text());
    nothing_is_left(&cloud);
    eventually("the backend can be deleted", TEST_TIMEOUT, || {
        Ok((delete(&server).status == 200).then_some(()))
    })
    .unwrap();
    assert_eq!(cloud.emulator.ledger().count(), 1);
    assert!(
        !server.output().contains(KEY),
        "the key is shown in {}",
        server.output()
    );
}
