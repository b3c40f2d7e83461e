//! The program of a gateway's container on Kubernetes, on a host that has nothing else.

use std::path::Path;
use std::process::{Command, Output};

use dstack_emulator_kubernetes::Kubernetes;
use dstack_tests::containers::END_SSHD;
use dstack_tests::hosts::{Host, Lab};
use dstack_tests::need;
use dstack_tests::runs::TEST_TIMEOUT;
use dstack_tests::server::{Server, eventually};
use serde_json::json;

use crate::{CREATE, pods, start};

/// What the engine leaves there, in short: a loop that says when it begins, and a program that ends a second after it is told to.
const LOOP: &str = "cd /var/lib/dstack-gateway\necho begun >> begun\ncp \"$(readlink -f /bin/sh)\" gateway-x\n\
    ./gateway-x -c 'trap \"sleep 1; echo ended >> ended; exit 0\" TERM; echo $$ > gateway-x.pid; while :; do sleep 0.1; done'\n";

/// The program of a gateway's container, as a server asks a cluster for it; with this key instead of that of the project.
fn program(server: &Server, emulator: &Kubernetes, public_key: &str) -> String {
    let gateway = json!({"type": "gateway", "name": "gate", "backend": "kubernetes", "region": "lab"});
    let asked = json!({"configuration": gateway});
    server.get("/api/project/main/gateways/create", &asked).unwrap();
    let pod = eventually("there is a pod", TEST_TIMEOUT, || {
        let objects = emulator.objects();
        let name = objects.iter().find_map(|name| name.strip_prefix("pods/"));
        Ok(name.and_then(|name| emulator.object("pods", name)))
    });
    let pod = pod.unwrap_or_else(|error| panic!("{error:#}\n{}", server.output()));
    let whole = pod["spec"]["containers"][0]["args"][1].as_str().unwrap();
    let (before, keys) = whole.split_once("\nkeys='").unwrap();
    let (_, after) = keys.split_once('\'').unwrap();
    format!("{before}\nkeys='{public_key}'{after}")
}

/// Starts the container's program, in a session of its own.
fn run(host: &Host<'_>, program: &str) {
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

fn log_in(lab: &Lab, host: &Host<'_>, known: &Path, user: &str, command: &str) -> Output {
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
fn until_said(host: &Host<'_>, log_in: impl Fn(&str, &str) -> Output, command: &str) -> String {
    let said = eventually("the SSH server lets the user in", TEST_TIMEOUT, || {
        let output = log_in("ubuntu", command);
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
    let (cloud, emulator) = pods::kubernetes_on_paper();
    let server = need!(start(&cloud));
    server.get(CREATE, &cloud.config).unwrap();
    let public = fs_err::read_to_string(lab.identity_file().with_extension("pub")).unwrap();
    let program = &program(&server, &emulator, public.trim());
    let known = tempfile::NamedTempFile::new().unwrap();
    let log_in = |user: &str, command: &str| log_in(&lab, &host, known.path(), user, command);
    host.run(END_SSHD).unwrap();
    run(&host, program);
    assert_eq!(
        until_said(&host, log_in, "id -un && sudo -n id -un"),
        "ubuntu\nroot\n"
    );
    let refused = log_in("root", "true");
    assert!(!refused.status.success(), "root is let in");

    let home = "/var/lib/dstack-gateway";
    host.run(&format!(
        "mkdir -p {home} && cat >{home}/loop-x.sh <<'LOOP'\n{LOOP}LOOP"
    ))
    .unwrap();
    for times in 1..=2 {
        // With the host key that was seen first: another one is refused.
        end(&host);
        run(&host, program);
        assert_eq!(until_said(&host, log_in, "echo in"), "in\n");
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
