//! SSH fleets on real hosts: OpenSSH, systemd, a container engine, jump hosts; and what goes wrong with them.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // tests

use std::time::Duration;

use dstack_tests::fleets::{
    apply, delete, events, fleet, runs_a_task, start, statuses, task, traces, until_idle, until_told,
};
use dstack_tests::hosts::{Has, USUAL};
use dstack_tests::need;
use dstack_tests::runs::TEST_TIMEOUT;
use dstack_tests::server::eventually;
use serde_json::json;

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

#[test]
fn new_keys_of_a_host_are_accepted_by_their_fingerprint() {
    let (server, lab) = need!(start());
    let host = need!(lab.host("one", 2, USUAL));
    apply(&server, &lab.fleet("lab", &[host.entry()], &json!({})).unwrap());
    until_idle(&server, "lab", 1);
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
