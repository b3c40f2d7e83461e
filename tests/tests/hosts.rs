//! SSH fleets on real hosts: OpenSSH, systemd, a container engine, jump hosts; and what goes wrong with them.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // tests

use std::time::Duration;

use dstack_tests::hosts::{Has, Host, IMAGE, Lab, USUAL};
use dstack_tests::runs::{Run, TEST_TIMEOUT, attach, submit};
use dstack_tests::server::{Server, Setup, eventually};
use dstack_tests::{need, parts};
use serde_json::{Value, json};

fn start() -> Result<(Server, Lab), String> {
    let lab = Lab::new()?;
    // What the image says of itself is asked of this machine's engine, as there is no registry.
    parts::image()?;
    let setup = Setup::local()?;
    Ok((setup.start().unwrap(), lab))
}

fn apply(server: &Server, spec: &Value) {
    let body = json!({"plan": {"spec": spec}, "force": true});
    server.get("/api/project/main/fleets/apply", &body).unwrap();
}

fn fleet(server: &Server, name: &str) -> Value {
    server
        .get("/api/project/main/fleets/get", &json!({"name": name}))
        .unwrap()
}

fn statuses(fleet: &Value) -> Vec<&str> {
    let instances = fleet["instances"].as_array().unwrap();
    instances
        .iter()
        .map(|instance| instance["status"].as_str().unwrap())
        .collect()
}

/// Waits until so many instances are idle, and none is anything else.
fn until_idle(server: &Server, name: &str, count: usize) -> Value {
    let idle = eventually("the hosts are idle", TEST_TIMEOUT, || {
        let fleet = fleet(server, name);
        Ok((statuses(&fleet) == vec!["idle"; count]).then_some(fleet))
    });
    idle.unwrap_or_else(|error| panic!("{error}\n{:#}\n{}", fleet(server, name), server.output()))
}

fn delete(server: &Server, name: &str) {
    server
        .get("/api/project/main/fleets/delete", &json!({"names": [name]}))
        .unwrap();
    eventually("the fleet is gone", TEST_TIMEOUT, || {
        let fleets = server.get("/api/project/main/fleets/list", &json!({}))?;
        let names = fleets
            .as_array()
            .unwrap()
            .iter()
            .map(|fleet| fleet["name"].as_str().unwrap());
        Ok((!names.into_iter().any(|found| found == name)).then_some(()))
    })
    .unwrap();
}

fn events(server: &Server) -> Vec<String> {
    let events = server.get("/api/events/list", &json!({})).unwrap();
    let events = events.as_array().unwrap().iter();
    events
        .map(|event| event["message"].as_str().unwrap().to_owned())
        .collect()
}

/// A task in a container of the host's.
fn task<'a>(server: &'a Server, name: &str, commands: &[&str], more: &Value) -> Run<'a> {
    let mut fields = json!({"image": IMAGE, "user": "root", "fleets": ["lab"]});
    fields
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    submit(server, name, commands, &fields).unwrap()
}

fn runs_a_task(server: &Server, name: &str) {
    let run = task(server, name, &["echo hello from $(hostname)"], &json!({}));
    let ended = run.wait_until_finished().unwrap();
    assert_eq!(ended, "done", "{:#}\n{}", run.get().unwrap(), server.output());
    let log = run.logs().unwrap();
    assert!(log.contains("hello from "), "{log}");
}

/// Everything of ours on a host: files, units, processes, keys.
fn traces(host: &Host<'_>) -> String {
    let look = "ls -d /usr/local/lib/dstack /etc/systemd/system/dstack-shim.service /root/.dstack 2>/dev/null; \
                pgrep -a dstack-agent; grep -h dstack /root/.ssh/authorized_keys /home/me/.ssh/authorized_keys; true";
    host.run(look).unwrap()
}

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
    let told = |words: &str| {
        eventually(words, TEST_TIMEOUT, || {
            Ok(events(&server).into_iter().find(|event| event.contains(words)))
        })
        .unwrap_or_else(|error| panic!("{error}\n{:#?}\n{}", events(&server), server.output()))
    };
    told("Docker is not installed");
    told("sudo");
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
    let told = eventually("the second is refused", TEST_TIMEOUT, || {
        let mut events = events(&server).into_iter();
        Ok(events.find(|event| event.contains("is the machine of lab-0")))
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
