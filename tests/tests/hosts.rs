//! SSH fleets on real hosts: OpenSSH, systemd, a container engine, jump hosts; and what goes wrong with them.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // tests

use std::time::Duration;

use dstack_agent_api::proof::{self, Challenge, Signed};
use dstack_tests::fleets::{
    apply, delete, events, fleet, runs_a_task, start, start_with, statuses, task, traces, until_idle,
    until_told,
};
use dstack_tests::hosts::{Has, Host, IMAGE, Lab, USUAL};
use dstack_tests::runs::{TEST_TIMEOUT, attach};
use dstack_tests::server::{Setup, eventually};
use dstack_tests::{need, parts};
use http::Method;
use serde_json::{Value, json};

#[test]
fn a_host_with_systemd_is_set_up_runs_a_task_and_is_left_as_it_was() {
    let (server, lab) = need!(start());
    let host = need!(lab.host("one", 2, USUAL));
    apply(&server, &lab.fleet("lab", &[host.entry()], &json!({})).unwrap());
    let fleet = until_idle(&server, "lab", 1);
    let instance = &fleet["instances"][0];
    assert_eq!(instance["hostname"], host.address.as_str());
    assert!(instance["instance_type"]["resources"]["cpus"].as_i64().unwrap() >= 1);
    runs_a_task(&server, "first");
    delete(&server, "lab");
    assert_eq!(traces(&host), "");
    let events = events(&server);
    assert!(
        events.iter().any(|event| event.contains("PENDING -> IDLE")),
        "{events:#?}"
    );
}

#[test]
fn a_host_without_systemd_is_set_up_as_root_and_its_agent_comes_back() {
    let (server, lab) = need!(start());
    let host = need!(lab.host("plain", 2, &[Has::Docker]));
    let entry = json!({"hostname": host.address, "user": "root"});
    apply(&server, &lab.fleet("lab", &[entry], &json!({})).unwrap());
    until_idle(&server, "lab", 1);
    runs_a_task(&server, "first");
    host.run("pkill -9 -f '[d]stack-agent.* shim'").unwrap();
    for unreachable in [true, false] {
        eventually("the agent is gone, and comes back", TEST_TIMEOUT, || {
            let instance = &fleet(&server, "lab")["instances"][0];
            Ok((instance["unreachable"] == unreachable).then_some(()))
        })
        .unwrap();
    }
    runs_a_task(&server, "second");
    delete(&server, "lab");
    assert_eq!(traces(&host), "");
}

#[test]
fn what_is_missing_on_a_host_is_said_and_what_is_mended_is_seen() {
    let (server, lab) = need!(start());
    let without_docker = need!(lab.host("bare", 2, &[Has::Systemd, Has::Sudo]));
    let without_sudo = need!(lab.host("locked", 3, &[Has::Systemd, Has::Docker]));
    let good = need!(lab.host("good", 4, USUAL));
    let hosts = [without_docker.entry(), without_sudo.entry(), good.entry()];
    apply(&server, &lab.fleet("lab", &hosts, &json!({})).unwrap());
    until_told(&server, "Docker is not installed");
    until_told(&server, "sudo");
    // A good host waits for nobody.
    eventually("the good host is idle", TEST_TIMEOUT, || {
        Ok((statuses(&fleet(&server, "lab"))[2] == "idle").then_some(()))
    })
    .unwrap();
    without_sudo
        .run("echo 'me ALL=(ALL) NOPASSWD:ALL' >/etc/sudoers.d/me && chmod 440 /etc/sudoers.d/me")
        .unwrap();
    eventually("the mended host is idle", TEST_TIMEOUT, || {
        Ok((statuses(&fleet(&server, "lab"))[1] == "idle").then_some(()))
    })
    .unwrap();
}

#[test]
fn a_host_behind_a_jump_host_is_reached_through_it() {
    let (server, lab) = need!(start());
    let jump = need!(lab.host("jump", 2, &[Has::Systemd]));
    let host = need!(lab.host("inner", 3, USUAL));
    // Only the jump host reaches its sshd.
    let only = format!(
        "iptables -A INPUT -p tcp --dport 22 ! -s {} -j DROP",
        jump.address
    );
    host.run(&only).unwrap();
    let key = json!({"public": "", "private": lab.private_key().unwrap()});
    let proxy =
        json!({"proxy_jump": {"hostname": jump.address, "user": "me", "identity_file": "x", "ssh_key": key}});
    apply(&server, &lab.fleet("lab", &[host.entry()], &proxy).unwrap());
    until_idle(&server, "lab", 1);
    runs_a_task(&server, "first");
    delete(&server, "lab");
    assert_eq!(traces(&host), "");
}

#[test]
fn a_host_that_is_cut_off_is_shown_as_unreachable_and_comes_back() {
    let (server, lab) = need!(start());
    let host = need!(lab.host("one", 2, USUAL));
    apply(&server, &lab.fleet("lab", &[host.entry()], &json!({})).unwrap());
    until_idle(&server, "lab", 1);
    let run = task(
        &server,
        "long",
        &["for i in $(seq 60); do echo line $i; sleep 1; done"],
        &json!({}),
    );
    run.wait_for(&["running"]).unwrap();
    host.cut().unwrap();
    let unreachable = |wanted: bool| {
        // A loss is noticed within half a minute.
        eventually("reach", Duration::from_secs(30), || {
            Ok((fleet(&server, "lab")["instances"][0]["unreachable"] == wanted).then_some(()))
        })
        .unwrap();
    };
    unreachable(true);
    host.heal().unwrap();
    unreachable(false);
    assert_eq!(run.status().unwrap(), "running", "{}", run.logs().unwrap());
    assert_eq!(run.wait_until_finished().unwrap(), "done");
    // The output of the time without a network is there, once.
    let log = run.logs().unwrap();
    let lines: Vec<&str> = log.lines().filter(|line| line.starts_with("line ")).collect();
    let wanted: Vec<String> = (1..=60).map(|number| format!("line {number}")).collect();
    assert_eq!(lines, wanted);
}

#[test]
fn another_machine_at_the_same_address_is_not_the_host() {
    let (server, lab) = need!(start());
    let host = need!(lab.host("one", 2, USUAL));
    apply(&server, &lab.fleet("lab", &[host.entry()], &json!({})).unwrap());
    until_idle(&server, "lab", 1);
    host.stop().unwrap();
    let other = need!(lab.host("other", 2, USUAL));
    // Both fingerprints, and what to do if it is the same host after all.
    let why = eventually(
        "the other machine is not taken for the host",
        TEST_TIMEOUT,
        || {
            let instance = fleet(&server, "lab")["instances"][0].clone();
            let why = instance["waiting_for"].as_str().unwrap_or_default().to_owned();
            Ok((instance["unreachable"] == true && why.contains("dstack fleet trust")).then_some(why))
        },
    )
    .unwrap();
    assert_eq!(why.matches("SHA256:").count(), 3, "{why}");
    assert_eq!(traces(&other), "", "nothing of ours comes to the other machine");
}

/// What a host loses that is installed anew, or cleaned by somebody; keys of the tests are left.
const WITHOUT_AGENT: &str = "systemctl disable --now dstack-shim; rm -rf /usr/local/lib/dstack \
    /etc/systemd/system/dstack-shim.service; systemctl daemon-reload; \
    sed -i '/added by dstack/d' /home/me/.ssh/authorized_keys";

#[test]
fn an_agent_that_was_removed_is_brought_again_and_jobs_go_on() {
    let (server, lab) = need!(start());
    let host = need!(lab.host("one", 2, USUAL));
    apply(&server, &lab.fleet("lab", &[host.entry()], &json!({})).unwrap());
    until_idle(&server, "lab", 1);
    let run = task(
        &server,
        "long",
        &["for i in $(seq 100); do echo line $i; sleep 1; done"],
        &json!({}),
    );
    run.wait_for(&["running"]).unwrap();
    host.run(WITHOUT_AGENT).unwrap();
    eventually("the host is being set up again", TEST_TIMEOUT, || {
        let instance = fleet(&server, "lab")["instances"][0].clone();
        assert_eq!(instance["status"], "busy");
        let why = instance["waiting_for"].as_str().unwrap_or_default().to_owned();
        Ok(why.contains("to be set up again").then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}\n{:#?}\n{}", events(&server), server.output()));
    eventually("the agent is there again", TEST_TIMEOUT, || {
        Ok((fleet(&server, "lab")["instances"][0]["unreachable"] == false).then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}\n{:#?}\n{}", events(&server), server.output()));
    assert_eq!(run.wait_until_finished().unwrap(), "done", "{}", server.output());
    let log = run.logs().unwrap();
    let lines = log.lines().filter(|line| line.starts_with("line ")).count();
    assert_eq!(lines, 100, "{log}");
    delete(&server, "lab");
    assert_eq!(traces(&host), "");
}

#[test]
fn a_server_that_was_updated_brings_its_agent_and_jobs_go_on() {
    let lab = need!(Lab::new());
    need!(parts::image());
    let built = need!(parts::agent());
    let folder = tempfile::tempdir().unwrap();
    let agent = folder.path().join("dstack-agent");
    fs_err::copy(&built, &agent).unwrap();
    let setup = need!(Setup::local());
    let setup = setup.variable("DSTACK_AGENT_PATH", agent.display().to_string());
    let mut server = setup.start().unwrap();
    let host = need!(lab.host("one", 2, USUAL));
    apply(&server, &lab.fleet("lab", &[host.entry()], &json!({})).unwrap());
    until_idle(&server, "lab", 1);
    let before = host.run("ls /usr/local/lib/dstack").unwrap();
    task(
        &server,
        "long",
        &["for i in $(seq 60); do echo line $i; sleep 1; done"],
        &json!({}),
    )
    .wait_for(&["running"])
    .unwrap();

    server.kill().unwrap();
    let mut other_build = fs_err::read(&agent).unwrap();
    other_build.push(b'\n');
    // Not in place: the one of this machine may still run from it.
    fs_err::remove_file(&agent).unwrap();
    fs_err::copy(built, &agent).unwrap();
    fs_err::write(&agent, other_build).unwrap();
    server.start().unwrap();
    let after = eventually("the new agent is there alone", TEST_TIMEOUT, || {
        let now = host.run("ls /usr/local/lib/dstack")?;
        Ok((now != before && now.lines().count() == 1).then_some(now))
    })
    .unwrap_or_else(|error| panic!("{error}\n{:#?}\n{}", events(&server), server.output()));
    let runs = host.run("pgrep -a dstack-agent").unwrap();
    assert!(runs.contains(after.trim()), "{runs}");
    let run = attach(&server, "long");
    assert_eq!(run.wait_until_finished().unwrap(), "done", "{}", server.output());
    let log = run.logs().unwrap();
    assert_eq!(
        log.lines().filter(|line| line.starts_with("line ")).count(),
        60,
        "{log}"
    );
    delete(&server, "lab");
    assert_eq!(traces(&host), "");
}

#[test]
fn one_machine_under_two_names_is_one_host() {
    let (server, lab) = need!(start());
    let host = need!(lab.host("one", 2, USUAL));
    host.run("/usr/sbin/sshd -f /etc/ssh/test_sshd_config -p 2222 -o PidFile=/run/second.pid")
        .unwrap();
    let second = json!({"hostname": host.address, "port": 2222});
    apply(
        &server,
        &lab.fleet("lab", &[host.entry(), second], &json!({})).unwrap(),
    );
    // The first that is set up has it.
    let told = eventually("the other is refused", TEST_TIMEOUT, || {
        let mut events = events(&server).into_iter();
        Ok(events.find(|event| event.contains("is the machine of lab-")))
    });
    let told = told.unwrap_or_else(|error| panic!("{error}\n{:#?}\n{}", events(&server), server.output()));
    assert!(told.contains(":2222"), "{told}");
    until_idle(&server, "lab", 1);
    runs_a_task(&server, "first");
    delete(&server, "lab");
    assert_eq!(traces(&host), "");
}

#[test]
fn new_keys_of_a_host_that_was_installed_anew_are_accepted_by_their_fingerprint() {
    let (server, lab) = need!(start());
    let host = need!(lab.host("one", 2, USUAL));
    apply(&server, &lab.fleet("lab", &[host.entry()], &json!({})).unwrap());
    until_idle(&server, "lab", 1);
    host.run(WITHOUT_AGENT).unwrap();
    host.run("rm -rf /root/.dstack").unwrap();
    let anew = "rm /etc/ssh/test_host_key*; ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/test_host_key; \
                systemctl restart ssh-test; pkill -f '[s]shd: me'; true";
    host.run(anew).unwrap();
    let remedy = eventually("the new key is refused", TEST_TIMEOUT, || {
        let instance = fleet(&server, "lab")["instances"][0].clone();
        let why = instance["waiting_for"].as_str().unwrap_or_default().to_owned();
        Ok(why
            .split_once("-i INSTANCE_NUM ")
            .map(|(_, rest)| rest.to_owned()))
    })
    .unwrap();
    let key: String = remedy.chars().take_while(|c| *c != '`').collect();
    let body = json!({"name": "lab", "instance_num": 0, "host_key": key});
    server.get("/api/project/main/fleets/trust_host", &body).unwrap();
    eventually("the host is reached again", TEST_TIMEOUT, || {
        let instance = &fleet(&server, "lab")["instances"][0];
        Ok((instance["unreachable"] == false).then_some(()))
    })
    .unwrap();
    runs_a_task(&server, "after");
    delete(&server, "lab");
    assert_eq!(traces(&host), "");
}

/// Asks the agent of the host it runs on for its tasks, as somebody without its token.
const ASK: &str = "busybox wget -q -O - http://127.0.0.1:10998/api/tasks 2>&1; true";

/// Calls the agent as the server does.
fn call_agent(host: &Host<'_>, path: &str, body: Option<&Value>) -> Value {
    let token = host.run("cat /root/.dstack/shim.token").unwrap().into();
    let get = |path: &str, options: &str| {
        let call = format!("busybox wget -q -O - {options} http://127.0.0.1:10998{path}");
        host.run(&call).unwrap()
    };
    let nonce = "0123456789";
    let told = get(proof::PATH, &format!("--header '{}: {nonce}'", proof::NONCE));
    let told: Challenge = serde_json::from_str(&told).unwrap();
    assert!(told.is_proven(&token, nonce));
    let text = body.map(ToString::to_string).unwrap_or_default();
    let method = if body.is_some() { Method::POST } else { Method::GET };
    let signed = Signed::new(&token, &told.challenge, &method, path, text.as_bytes());
    let headers = signed
        .headers()
        .map(|(name, value)| format!("--header '{name}: {value}' "));
    let post = body.map(|_| format!("--header 'Content-Type: application/json' --post-data '{text}'"));
    let told = get(path, &format!("{}{}", headers.concat(), post.unwrap_or_default()));
    serde_json::from_str(&told).unwrap()
}

#[test]
fn nobody_on_a_host_but_the_server_uses_its_agent() {
    let (server, lab) = need!(start());
    let host = need!(lab.host("one", 2, USUAL));
    apply(&server, &lab.fleet("lab", &[host.entry()], &json!({})).unwrap());
    until_idle(&server, "lab", 1);
    let token = host.run("cat /root/.dstack/shim.token").unwrap();
    assert_eq!(token.len(), 64, "256 bits");
    assert!(
        call_agent(&host, "/api/tasks", None)["tasks"].is_array(),
        "who has it is answered"
    );
    // Another user of the host.
    let answer = host.run(&format!("runuser -u me -- sh -c '{ASK}'")).unwrap();
    assert!(answer.contains("401"), "{answer}");
    for file in [
        "/root/.dstack/shim.token",
        "/proc/$(pgrep -o dstack-agent)/environ",
    ] {
        let read = host.run(&format!("runuser -u me -- cat {file}"));
        assert!(read.is_err(), "{file}: {read:?}");
    }
    let told = host
        .run("cat /proc/*/cmdline /proc/$(pgrep -o dstack-agent)/environ; systemctl cat dstack-shim; cat /root/.dstack/shim.env")
        .unwrap();
    assert!(told.contains("dstack-agent") && !told.contains(&token), "{told}");
    // A job, which is root in its container and in the host's network. `find` fails where a process of `/proc` ends meanwhile.
    let looks =
        "env; tr '\\0' '\\n' < /proc/1/environ; cat /root/.dstack/shim.token; find / -name 'shim.*'; true";
    let run = task(&server, "curious", &[looks, ASK, "echo ended"], &json!({}));
    assert_eq!(
        run.wait_until_finished().unwrap(),
        "done",
        "{}",
        run.logs().unwrap()
    );
    let log = run.logs().unwrap();
    assert!(log.contains("401") && log.contains("ended"), "{log}");
    assert!(!log.contains(&token) && !log.contains("\"tasks\""), "{log}");
    // An agent that has another token since is not the server's any more, which says so.
    let keep = "cp -p /root/.dstack/shim.token /root/kept; printf other >/root/.dstack/shim.token; systemctl restart dstack-shim";
    host.run(keep).unwrap();
    eventually("what is wrong is told", TEST_TIMEOUT, || {
        let instance = &fleet(&server, "lab")["instances"][0];
        let why = instance["waiting_for"].as_str().unwrap_or_default();
        let is_told = why.contains("does not have its token");
        Ok((instance["unreachable"] == true && is_told).then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}\n{:#}", fleet(&server, "lab")));
    host.run("cp -p /root/kept /root/.dstack/shim.token; systemctl restart dstack-shim")
        .unwrap();
    eventually("the agent is the server's again", TEST_TIMEOUT, || {
        Ok((fleet(&server, "lab")["instances"][0]["unreachable"] == false).then_some(()))
    })
    .unwrap();
    delete(&server, "lab");
    assert_eq!(traces(&host), "");
}

/// Makes a host what a server of dstack 0.22.5 leaves: its unit and files, a task that runs on the second of two accelerators, and
/// one that has ended. A file server stands in for its agent, which is not to be had.
const REFERENCE_HOST: &str = r#"set -e
mkdir -p /dev/accel /root/.dstack/runners /srv/shim/api
printf '#!/bin/sh\nprintf "HL-225, 98304, 0\\nHL-225, 98304, 1\\n"\n' >/usr/local/bin/hl-smi
printf '{"service":"dstack-shim","version":"0.22.5"}\n' >/srv/shim/api/healthcheck
printf '#!/bin/sh\nexec busybox httpd -f -p 127.0.0.1:10998 -h /srv/shim\n' >/usr/local/bin/dstack-shim
printf '#!/bin/sh\nexec sleep 100000\n' >/usr/local/bin/dstack-runner
chmod 755 /usr/local/bin/hl-smi /usr/local/bin/dstack-shim /usr/local/bin/dstack-runner
cat >/root/.dstack/shim.env <<'ENV'
DSTACK_SHIM_HOME="/root/.dstack"
DSTACK_SHIM_HTTP_PORT="10998"
DSTACK_SHIM_LOG_LEVEL="5"
DSTACK_RUNNER_DOWNLOAD_URL="https://downloads.invalid/0.22.5/binaries/dstack-runner-linux-amd64"
DSTACK_RUNNER_BINARY_PATH="/usr/local/bin/dstack-runner"
DSTACK_RUNNER_HTTP_PORT="10999"
DSTACK_RUNNER_SSH_PORT="10022"
DSTACK_RUNNER_LOG_LEVEL="5"
DSTACK_SERVICE_MODE="1"
ENV
cat >/etc/systemd/system/dstack-shim.service <<'UNIT'
[Unit]
Description=dstack-shim
After=network-online.target
StartLimitIntervalSec=3600
StartLimitBurst=1080

[Service]
Type=simple
User=root
Restart=always
RestartSec=3
WorkingDirectory=/root/.dstack
EnvironmentFile=/root/.dstack/shim.env
ExecStart=/usr/local/bin/dstack-shim

[Install]
WantedBy=multi-user.target
UNIT
printf '{"gpu_vendor":"intel","gpu_name":"HL-225","gpu_memory":98304,"gpu_count":2,"addresses":["192.0.2.2/24"],"disk_size":71202996224,"cpus":64,"memory":25276502016}' \
  >/root/.dstack/host_info.json
task() { # name id accelerator reason cleaned_up command
  container=$1-$(printf %s "$1/$2" | sha256sum | cut -c1-8)
  dir=/root/.dstack/runners/$container
  mkdir -m 700 "$dir"
  mkdir "$dir/runner"
  cat >"$dir/task.json" <<TASK
{"version":1,"id":"$2","config":{"id":"$2","name":"$1","image_name":"dstack-test/busybox:1","container_user":"root","privileged":false,"gpu":1,"cpu":0,"memory":0,"shm_size":0,"network_mode":"host","volumes":[],"volume_mounts":[],"instance_mounts":[],"gpu_devices":null,"host_ssh_user":"","host_ssh_keys":[],"container_ssh_keys":[]},"termination_reason":"$4","termination_message":"","cleaned_up":$5}
TASK
  chmod 600 "$dir/task.json"
  docker run -d --name "$container" --label ai.dstack.shim.is-task=true --label "ai.dstack.shim.task-id=$2" --network host \
    --user root -e "HABANA_VISIBLE_DEVICES=$3" --mount "type=bind,source=$dir/runner,target=/tmp/runner" \
    --mount type=bind,source=/usr/local/bin/dstack-runner,target=/usr/local/bin/dstack-runner \
    --entrypoint /bin/sh dstack-test/busybox:1 -c "$6"
}
task train-0-0 0f3c1b7e-2a51-4a0e-9c58-3f5f3b1c9d10 1 '' false 'exec sleep 100000'
task over-0-0 0f3c1b7e-2a51-4a0e-9c58-3f5f3b1c9d11 0 done_by_runner true true
systemctl daemon-reload
systemctl --quiet enable dstack-shim.service
systemctl restart dstack-shim.service
"#;

/// Id, start and state of the container that runs.
const CONTAINER: &str = "docker inspect -f '{{.Id}} {{.State.StartedAt}} {{.State.Running}}' $(docker ps -aq --filter name=train-0-0-)";

#[test]
fn a_host_of_dstack_0_22_5_is_taken_over_with_its_containers() {
    // The new server does not know the job of the task that runs, and will end it: it dies when it is about to.
    let dies = "DSTACK_FAILPOINT";
    let (mut server, lab) = need!(start_with(|setup| setup.variable(dies, "dangling.remove.before")));
    let host = need!(lab.host("old", 2, USUAL));
    host.run(REFERENCE_HOST).unwrap();
    let before = host.run(CONTAINER).unwrap();
    assert!(before.ends_with(" true\n"), "{before}");
    // CPUs have to divide by it.
    let blocks = [2, 1][std::thread::available_parallelism().unwrap().get() % 2];
    let entry = json!({"hostname": host.address, "blocks": blocks});
    apply(&server, &lab.fleet("lab", &[entry], &json!({})).unwrap());
    eventually("the server has seen the task", TEST_TIMEOUT, || {
        Ok(server
            .call("/api/project/main/fleets/get", &json!({"name": "lab"}))
            .is_err()
            .then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", server.output()));

    assert_eq!(host.run(CONTAINER).unwrap(), before, "the container went on");
    let unit = host.run("systemctl cat dstack-shim.service").unwrap();
    assert!(
        unit.contains("/usr/local/lib/dstack/dstack-agent-") && !unit.contains("/usr/local/bin/dstack-shim"),
        "{unit}"
    );
    let processes = host.run("pgrep -af '[d]stack-agent|[h]ttpd' || true").unwrap();
    assert!(
        processes.contains(" shim") && !processes.contains("httpd"),
        "{processes}"
    );
    let tasks = call_agent(&host, "/api/tasks", None);
    let mut tasks: Vec<String> = tasks["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|task| {
            format!(
                "{} {}",
                task["id"].as_str().unwrap(),
                task["status"].as_str().unwrap()
            )
        })
        .collect();
    tasks.sort();
    assert_eq!(
        tasks,
        [
            "0f3c1b7e-2a51-4a0e-9c58-3f5f3b1c9d10 running",
            "0f3c1b7e-2a51-4a0e-9c58-3f5f3b1c9d11 terminated"
        ]
    );
    let task = call_agent(&host, "/api/tasks/0f3c1b7e-2a51-4a0e-9c58-3f5f3b1c9d10", None);
    assert_eq!(task["gpus_ids"], json!(["1"]), "{task:#}");
    assert!(
        before.starts_with(task["container_id"].as_str().unwrap()),
        "{task:#}"
    );
    // The accelerator of the task that ended is free, that of the other is not.
    let both = json!({"id": "both", "name": "both", "image_name": IMAGE, "gpu": 2});
    call_agent(&host, "/api/tasks", Some(&both));
    let refused = eventually("there is one only", TEST_TIMEOUT, || {
        let task = call_agent(&host, "/api/tasks/both", None);
        Ok((task["status"] == "terminated").then_some(task))
    })
    .unwrap();
    assert_eq!(
        refused["termination_message"],
        "no capacity: 2 GPUs requested, 1 available"
    );

    // What nobody here has asked for is ended as dstack 0.22.5 does it, and the host is free.
    server.kill().unwrap();
    server.without_variable(dies);
    server.start().unwrap();
    let fleet = until_idle(&server, "lab", 1);
    let instance = &fleet["instances"][0];
    assert_eq!(instance["total_blocks"], blocks, "{instance:#}");
    let gpus = &instance["instance_type"]["resources"]["gpus"];
    assert_eq!(gpus.as_array().unwrap().len(), 2, "{gpus:#}");
    eventually("the tasks of others are gone", TEST_TIMEOUT, || {
        let left = host.run("docker ps -aq --filter name=train-0-0- --filter name=over-0-0-")?;
        Ok(left.trim().is_empty().then_some(()))
    })
    .unwrap();
    // No job is run: one of a block wants limits of the CPU, which engines of such hosts do not have.
    delete(&server, "lab");
    assert_eq!(traces(&host), "");
}
