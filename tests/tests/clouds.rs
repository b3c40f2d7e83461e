//! From a configuration of a cloud to the lines of a job, with machines that are real as far as SSH and containers go.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // tests

use std::time::Duration;

use dstack_backend_kit::{Emulator as _, serve};
use dstack_emulator_cloudrift::{CloudRift, GiveMachine, Times};
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

/// The user that the vendor's images have.
const MAKE_USER: &str = "set -e
    grep -q '^riftuser:' /etc/passwd || useradd --create-home --shell /bin/sh --password '*' riftuser
    echo 'riftuser ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/riftuser
    mkdir -p /home/riftuser/.ssh";

/// One machine of the lab for the first that asks, and none for others.
fn one_machine(lab: &'static Lab) -> Part<GiveMachine> {
    let host = lab.host("machine", 2, USUAL)?;
    host.run(MAKE_USER).unwrap();
    let taken = std::sync::atomic::AtomicBool::new(false);
    Ok(Box::new(move |keys| {
        if taken.swap(true, std::sync::atomic::Ordering::Relaxed) {
            return None;
        }
        let lines = keys.join("\n");
        let add = format!(
            "printf '%s\\n' '{lines}' >/home/riftuser/.ssh/authorized_keys && chown -R riftuser: /home/riftuser"
        );
        host.run(&add).unwrap();
        Some((host.address.clone(), 22))
    }))
}

fn start(cloud: &CloudRift) -> Part<Server> {
    parts::image()?;
    let address = serve(cloud.router());
    let setup = Setup::local()?.variable(
        "DSTACK_SERVER_BACKEND_ENDPOINTS",
        format!("cloudrift=http://{address}/api/v1"),
    );
    Ok(setup.start().unwrap())
}

fn config(key: &str) -> Value {
    json!({"type": "cloudrift", "creds": {"type": "api_key", "api_key": key}})
}

/// A cloud with one machine.
fn cloud() -> Part<CloudRift> {
    let lab: &'static Lab = Box::leak(Box::new(Lab::new()?));
    let times = Times {
        starts: Duration::from_secs(1),
        ends: Duration::from_secs(1),
    };
    let sizes = vec![(SIZE.0.to_owned(), SIZE.1.to_owned())];
    Ok(CloudRift::with_machines(KEY, sizes, times, one_machine(lab)?))
}

/// The cloud's own books are empty.
fn nothing_is_left(cloud: &CloudRift) {
    eventually("the machine is gone", TEST_TIMEOUT, || {
        Ok(cloud.ledger().alive().is_empty().then_some(()))
    })
    .unwrap();
}

/// By the command line: the machine's address is where the job is attached to.
fn a_task_of_the_command_line_runs_in_a_cloud(cli: &Cli) {
    let cloud = need!(cloud());
    let server = need!(start(&cloud));
    server
        .get("/api/project/main/backends/create", &config(KEY))
        .unwrap();
    let added = cli.add_project(&server).unwrap();
    assert_eq!(added.code, Some(0), "{}", added.text);
    let fleet = "type: fleet\nname: cloud\nnodes: 0..1\nidle_duration: 3s\nbackends: [cloudrift]\n";
    cli.write("fleet.yml", fleet).unwrap();
    let Ended { code, text } = cli.run(&["apply", "-y", "-f", "fleet.yml"]).unwrap();
    assert_eq!(code, Some(0), "{text}\n{}", server.output());
    let Ended { code, text } = cli.run(&["offer", "--gpu", "RTX4090"]).unwrap();
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("cloudrift") && text.contains(SIZE.0), "{text}");
    let task = format!(
        "type: task\nname: train\nimage: {IMAGE}\nuser: root\nfleets: [cloud]\n\
         commands:\n  - echo hello from a cloud\n\
         resources:\n  gpu: 0..\n  cpu: 1..\n  memory: 0.1GB..\n  disk: 1GB..\n"
    );
    cli.write("task.yml", &task).unwrap();
    let Ended { code, text } = cli.run(&["apply", "-y", "-f", "task.yml"]).unwrap();
    assert_eq!(code, Some(0), "{text}\n{}", server.output());
    assert!(text.contains("hello from a cloud"), "{text}");
    nothing_is_left(&cloud);
    assert_eq!(cloud.ledger().count(), 1);
}

mod python {
    use dstack_tests::{cli::Cli, need};

    #[test]
    fn a_task_runs_in_a_cloud() {
        super::a_task_of_the_command_line_runs_in_a_cloud(&need!(Cli::python()));
    }
}

mod ours {
    use dstack_tests::{cli::Cli, need};

    #[test]
    fn a_task_runs_in_a_cloud() {
        super::a_task_of_the_command_line_runs_in_a_cloud(&need!(Cli::ours()));
    }
}

#[test]
fn a_machine_of_cloudrift_runs_a_job_and_is_gone_when_idle() {
    let cloud = need!(cloud());
    let server = need!(start(&cloud));
    let create = "/api/project/main/backends/create";
    let refused = server.call(create, &config("wrong")).unwrap();
    assert_eq!(refused.status, 400, "{}", refused.text());
    let body = refused.json().unwrap().to_string();
    assert!(
        body.contains("invalid_credentials") && body.contains("api_key"),
        "{body}"
    );
    server.get(create, &config(KEY)).unwrap();

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
    let machines = cloud.ledger().alive();
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
    assert_eq!(cloud.ledger().count(), 1);
    assert!(
        !server.output().contains(KEY),
        "the key is shown in {}",
        server.output()
    );
}
