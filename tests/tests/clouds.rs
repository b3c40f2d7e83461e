//! From a configuration of a cloud to the lines of a job, with machines that are real as far as SSH and containers go.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // tests

use std::sync::Arc;
use std::time::Duration;

use dstack_backend_kit::{Emulator as _, serve};
use dstack_emulator_cloudrift::{CloudRift, GiveMachine, Times};
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

#[test]
fn a_machine_of_cloudrift_runs_a_job_and_is_gone_when_idle() {
    let lab: &'static Lab = Box::leak(Box::new(need!(Lab::new())));
    let times = Times {
        starts: Duration::from_secs(1),
        ends: Duration::from_secs(1),
    };
    let sizes = vec![(SIZE.0.to_owned(), SIZE.1.to_owned())];
    let cloud = Arc::new(CloudRift::with_machines(
        KEY,
        sizes,
        times,
        need!(one_machine(lab)),
    ));
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
    eventually("the machine is gone", TEST_TIMEOUT, || {
        Ok(cloud.ledger().alive().is_empty().then_some(()))
    })
    .unwrap();
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
