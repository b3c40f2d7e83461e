//! The program of a gateway's container on Kubernetes, on a host that has nothing else.

use std::process::{Command, Output};
use std::sync::Arc;

use dstack_backend_kit::{Cloud, Driver, gateway};
use dstack_emulator_kubernetes::Kubernetes;
use dstack_system::{Clock as _, SystemClock};
use dstack_tests::containers::END_SSHD;
use dstack_tests::hosts::{Host, Lab};
use dstack_tests::need;
use dstack_tests::runs::TEST_TIMEOUT;
use dstack_tests::server::eventually;
use serde_json::{Value, json};

use crate::pods::kubeconfig;

/// What the engine leaves there, in short: a loop that says when it begins, and a program that ends a second after it is told to.
const LOOP: &str = "cd /var/lib/dstack-gateway\necho begun >> begun\n\
    sh -c 'trap \"sleep 1; echo ended >> ended; exit 0\" TERM; echo $$ > gateway-x.pid; while :; do sleep 0.1; done'\n";

/// The pod of a gateway that this key opens, as a cluster is asked for it.
fn pod(public_key: &str) -> Value {
    let node = json!({"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "2", "memory": "4Gi"},
        "conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"architecture": "amd64"}}});
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build();
    runtime.unwrap().block_on(async {
        let emulator = Arc::new(Kubernetes::new("token", vec![node], SystemClock.now()));
        let cloud = Cloud::new(
            emulator.clone(),
            dstack_backend_kubernetes::kind,
            kubeconfig("token"),
            Vec::new(),
        );
        let mut subject = gateway(&cloud, "lab");
        subject.want.authorized_keys = vec![public_key.to_owned()];
        let place = Driver::new(&cloud).make(&subject).await.unwrap();
        emulator.object("pods", &place.instance_id).unwrap()
    })
}

/// Starts the container's program, in a session of its own.
fn start(host: &Host<'_>, program: &str) {
    let program = program.replace('\'', r"'\''");
    host.run(&format!(
        "setsid sh -c 'echo $$ >/run/program; {program}' >>/var/log/container.log 2>&1 </dev/null &"
    ))
    .unwrap();
}

fn end(host: &Host<'_>) {
    host.run("id=$(cat /run/program); kill $id; while kill -0 $id 2>/dev/null; do sleep 0.05; done")
        .unwrap();
}

fn log_in(lab: &Lab, host: &Host<'_>, user: &str, command: &str) -> Output {
    let known = lab.identity_file().with_extension("known");
    Command::new("ssh")
        .args(["-F", "none", "-o", "BatchMode=yes", "-o", "ConnectTimeout=2"])
        .args(["-o", "StrictHostKeyChecking=accept-new", "-i"])
        .arg(lab.identity_file())
        .arg("-o")
        .arg(format!("UserKnownHostsFile={}", known.display()))
        .arg(format!("{user}@{}", host.address))
        .arg(command)
        .output()
        .unwrap()
}

/// What a command says that succeeds.
fn until_said(lab: &Lab, host: &Host<'_>, command: &str) -> String {
    let said = eventually("the SSH server lets the user in", TEST_TIMEOUT, || {
        let output = log_in(lab, host, "ubuntu", command);
        Ok(output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).into_owned()))
    });
    said.unwrap_or_else(|error| panic!("{error:#}: {}", host.run("cat /var/log/container.log").unwrap()))
}

#[test]
fn a_container_that_is_started_again_is_the_gateway_that_it_was() {
    let lab = need!(Lab::new());
    let host = need!(lab.host("gate", 2, &[]));
    let public = fs_err::read_to_string(lab.identity_file().with_extension("pub")).unwrap();
    let pod = pod(public.trim());
    let program = pod["spec"]["containers"][0]["args"][1].as_str().unwrap();
    host.run(END_SSHD).unwrap();
    start(&host, program);
    assert_eq!(
        until_said(&lab, &host, "id -un && sudo -n id -un"),
        "ubuntu\nroot\n"
    );
    let refused = log_in(&lab, &host, "root", "true");
    assert!(!refused.status.success(), "root is let in");

    let home = "/var/lib/dstack-gateway";
    host.run(&format!(
        "mkdir -p {home} && cat >{home}/loop-x.sh <<'LOOP'\n{LOOP}LOOP"
    ))
    .unwrap();
    for times in 1..=2 {
        // With the host key that was seen first: another one is refused.
        end(&host);
        start(&host, program);
        assert_eq!(until_said(&lab, &host, "echo in"), "in\n");
        let count = |name: &str| {
            host.run(&format!("cat {home}/{name} 2>/dev/null | wc -l"))
                .unwrap()
        };
        assert_eq!(count("begun").trim(), times.to_string(), "the gateway comes back");
        assert_eq!(
            count("ended").trim(),
            (times - 1).to_string(),
            "it ends in its time"
        );
    }
}
