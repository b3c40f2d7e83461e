//! What goes wrong on the way to hosts of SSH fleets, and on their disks: it is said, it hurts nobody else, and what is mended is seen.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // tests

use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;

use dstack_tests::fleets::{
    apply, events, fleet, runs_a_task, start, statuses, task, until_idle, until_told,
};
use dstack_tests::hosts::{Has, Host, USUAL};
use dstack_tests::need;
use dstack_tests::proxy::Proxy;
use dstack_tests::runs::TEST_TIMEOUT;
use dstack_tests::server::{Server, eventually};
use serde_json::{Value, json};

/// A loss is noticed within that.
const NOTICED: Duration = Duration::from_secs(30);

/// The way to a host through a proxy, and the host as a fleet names it then.
fn behind_a_proxy(host: &Host<'_>) -> (Proxy, Value) {
    let target: Ipv4Addr = host.address.parse().unwrap();
    let proxy = Proxy::to((target, 22).into()).unwrap();
    let entry = json!({"hostname": proxy.address(), "port": proxy.port()});
    (proxy, entry)
}

/// Waits until the only host of fleet `lab` is shown as unreachable, or not any more.
fn until_unreachable(server: &Server, wanted: bool) {
    eventually("reach", NOTICED, || {
        let instance = &fleet(server, "lab")["instances"][0];
        Ok((instance["unreachable"] == wanted).then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}\n{:#}\n{}", fleet(server, "lab"), server.output()));
}

#[test]
fn what_has_arrived_of_the_agent_before_a_cut_is_not_sent_again() {
    let (server, lab) = need!(start());
    let host = need!(lab.host("one", 2, USUAL));
    let (proxy, entry) = behind_a_proxy(&host);
    // Far behind the look at the host, and long before the end of the file.
    proxy.cut_after(4_000_000);
    apply(&server, &lab.fleet("lab", &[entry], &json!({})).unwrap());
    until_idle(&server, "lab", 1);
    assert!(!proxy.will_cut() && proxy.accepted() > 1);
    until_told(&server, "the rest of the agent's file was sent");
    let anew = |event: &String| event.starts_with("the agent's file was sent");
    assert!(!events(&server).iter().any(anew), "{:#?}", events(&server));
    runs_a_task(&server, "first");
}

#[test]
fn output_arrives_whole_and_once_however_often_the_way_is_cut() {
    let (server, lab) = need!(start());
    let host = need!(lab.host("one", 2, USUAL));
    let (proxy, entry) = behind_a_proxy(&host);
    apply(&server, &lab.fleet("lab", &[entry], &json!({})).unwrap());
    until_idle(&server, "lab", 1);
    let count = "i=0; while [ $i -lt 200 ]; do i=$((i+1)); echo line $i; sleep 0.05; done";
    let run = task(&server, "long", &[count], &json!({}));
    for seen in [1, 30, 70, 110, 150] {
        run.wait_for_log(&format!("line {seen}\n")).unwrap();
        if seen == 70 {
            proxy.half_close();
        } else {
            proxy.cut_all();
        }
    }
    assert_eq!(
        run.wait_until_finished().unwrap(),
        "done",
        "{:#}",
        run.get().unwrap()
    );
    let log = run.logs().unwrap();
    let lines: Vec<&str> = log.lines().filter(|line| line.starts_with("line ")).collect();
    let wanted: Vec<String> = (1..=200).map(|number| format!("line {number}")).collect();
    assert_eq!(lines, wanted);
    assert!(proxy.accepted() >= 6, "{}", proxy.accepted());
}

#[test]
fn a_way_that_goes_silent_or_refuses_is_noticed_and_taken_again() {
    let (server, lab) = need!(start());
    let host = need!(lab.host("one", 2, USUAL));
    let (proxy, entry) = behind_a_proxy(&host);
    // Refused from the start: it is said, and tried again.
    proxy.refuse(true);
    apply(&server, &lab.fleet("lab", &[entry], &json!({})).unwrap());
    until_told(&server, "Host is not set up yet");
    proxy.refuse(false);
    until_idle(&server, "lab", 1);
    // Nothing moves, and nobody is told: TCP alone would wait for a quarter of an hour.
    proxy.stall(true);
    until_unreachable(&server, true);
    proxy.stall(false);
    until_unreachable(&server, false);
    // The host's side is closed, ours is not.
    let before = proxy.accepted();
    proxy.half_close();
    eventually("another connection is made", NOTICED, || {
        Ok((proxy.accepted() > before).then_some(()))
    })
    .unwrap();
    // While the host is out of reach nothing is placed there: that is tried again.
    let run = task(&server, "after", &["true"], &json!({"retry": true}));
    assert_eq!(run.wait_until_finished().unwrap(), "done");
}

/// A small disk instead of a folder of the host.
fn small_disk(host: &Host<'_>, folder: &str, size: &str) {
    let mount = format!("mkdir -p {folder} && mount -t tmpfs -o size={size},mode=755 tmpfs {folder}");
    host.run(&mount).unwrap();
}

#[test]
fn a_host_without_room_for_the_agent_says_so_and_comes_up_once_there_is() {
    let (server, lab) = need!(start());
    let host = need!(lab.host("one", 2, USUAL));
    small_disk(&host, "/usr/local/lib/dstack", "1m");
    // Of the agent's state not even a small file.
    small_disk(&host, "/root/.dstack", "8k");
    host.run("head -c 8192 /dev/zero >/root/.dstack/ballast || true")
        .unwrap();
    apply(&server, &lab.fleet("lab", &[host.entry()], &json!({})).unwrap());
    let said = until_told(&server, "make room");
    assert!(
        said.contains("are free where the agent goes (/usr/local/lib/dstack), and it needs"),
        "{said}"
    );
    host.run("mount -o remount,size=2g /usr/local/lib/dstack")
        .unwrap();
    until_told(
        &server,
        "/root/.dstack/shim.token cannot be written, as no space is left on its disk: make room",
    );
    let shown = fleet(&server, "lab")["instances"][0]["waiting_for"].to_string();
    assert!(shown.contains("make room"), "{shown}");
    host.run("mount -o remount,size=100m /root/.dstack && rm /root/.dstack/ballast")
        .unwrap();
    until_idle(&server, "lab", 1);
    runs_a_task(&server, "first");
}

#[test]
fn a_task_that_the_disk_of_containers_has_no_room_for_says_so_and_the_next_one_runs() {
    let (server, lab) = need!(start());
    let host = need!(lab.host("one", 2, USUAL));
    // The engine with its images moves to a small disk.
    let moved = "systemctl stop docker-test && cp -a /var/lib/docker /tmp/docker && \
                 mount -t tmpfs -o size=200m tmpfs /var/lib/docker && cp -a /tmp/docker/. /var/lib/docker && \
                 systemctl start docker-test && until docker version >/dev/null 2>&1; do sleep 0.1; done";
    host.run(moved).unwrap();
    apply(&server, &lab.fleet("lab", &[host.entry()], &json!({})).unwrap());
    until_idle(&server, "lab", 1);
    let small = json!({"resources": {"cpu": "1..", "memory": "0.1GB..", "disk": "0.1GB.."}});
    host.run("cat /dev/zero >/var/lib/docker/ballast 2>/dev/null || true")
        .unwrap();
    let run = task(&server, "late", &["true"], &small);
    assert_eq!(run.wait_until_finished().unwrap(), "failed");
    let submission = run.submission().unwrap();
    let message = submission["termination_reason_message"].to_string();
    assert!(
        message.contains("no space left on device") && message.contains("make room"),
        "{submission:#}"
    );
    host.run("rm /var/lib/docker/ballast").unwrap();
    let run = task(&server, "after", &["true"], &small);
    assert_eq!(run.wait_until_finished().unwrap(), "done");
}

/// Hosts that all have to wait at once, before any of them may go on.
const HOSTS: u8 = 10;

#[test]
fn ten_hosts_are_set_up_side_by_side_and_a_bad_one_keeps_nobody_waiting() {
    let (server, lab) = need!(start());
    let start = |number: u8| {
        // Without sudo the first one is of no use.
        let has: &[Has] = if number == 0 {
            &[Has::Docker]
        } else {
            &[Has::Docker, Has::Sudo]
        };
        lab.host(&format!("host{number}"), 2 + number, has)
    };
    let hosts: Result<Vec<Host<'_>>, String> = thread::scope(|scope| {
        let started: Vec<_> = (0..HOSTS)
            .map(|number| scope.spawn(move || start(number)))
            .collect();
        started.into_iter().map(|host| host.join().unwrap()).collect()
    });
    let hosts = need!(hosts);
    let (bad, good) = hosts.split_first().unwrap();
    // Whoever looks at a good host is held there, for half a minute at most: one after the other they would never all be held.
    let gate = "printf '#!/bin/sh\\nmkdir -p /tmp/held/$$\\nuntil [ -e /tmp/open ]; do sleep 0.1; done\\nrmdir /tmp/held/$$\\n\
                exec /usr/bin/sudo \"$@\"\\n' >/usr/local/bin/sudo && chmod 755 /usr/local/bin/sudo";
    for host in good {
        host.run(gate).unwrap();
    }
    let entries: Vec<Value> = hosts.iter().map(Host::entry).collect();
    apply(&server, &lab.fleet("lab", &entries, &json!({})).unwrap());
    eventually("all good hosts are held", Duration::from_secs(30), || {
        let held = |host: &Host<'_>| host.run("ls /tmp/held 2>/dev/null | grep -q .").is_ok();
        Ok(good.iter().all(held).then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}\n{:#?}\n{}", events(&server), server.output()));
    until_told(&server, "commands cannot be run as root");
    for host in good {
        host.run("touch /tmp/open").unwrap();
    }
    eventually("nine hosts are idle", TEST_TIMEOUT, || {
        let fleet = fleet(&server, "lab");
        let idle = statuses(&fleet).into_iter().filter(|status| *status == "idle");
        Ok((idle.count() == good.len()).then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}\n{:#?}\n{}", events(&server), server.output()));
    let shown = fleet(&server, "lab");
    assert_eq!(
        shown["instances"][0]["status"], "pending",
        "{}: {shown:#}",
        bad.address
    );
    runs_a_task(&server, "first");
}
