//! Two servers that share a PostgreSQL database; and one whose connections to it are cut, delayed and half-closed.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::panic
)]

use std::collections::BTreeMap;
use std::net::ToSocketAddrs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result};
use dstack_tests::http::Client;
use dstack_tests::proxy::{Proxy, plan};
use dstack_tests::runs::{TEST_TIMEOUT, attach, small, submit};
use dstack_tests::server::{Server, Setup, TOKEN, eventually};
use dstack_tests::{need, parts, postgres};
use serde_json::{Value, json};

fn database() -> parts::Part<String> {
    postgres::create(&parts::postgres_url()?).map_err(|error| format!("{error:#}"))
}

/// Every run came to one end, and no job was started twice.
fn assert_ended_once(server: &Server, name: &str) -> Result<String> {
    let status = attach(server, name).wait_until_finished()?;
    let run = attach(server, name).get()?;
    let id = run["id"].as_str().context("no id")?;
    let body = json!({"within_runs": [id], "limit": 100, "ascending": true});
    let events = server.get("/api/events/list", &body)?;
    let messages: Vec<&str> = events
        .as_array()
        .context("no events")?
        .iter()
        .filter_map(|event| event["message"].as_str())
        .collect();
    for once in ["Run status changed TERMINATING -> ", "Run submitted"] {
        let count = messages
            .iter()
            .filter(|message| message.starts_with(once))
            .count();
        assert_eq!(count, 1, "{name}: {once}: {messages:#?}");
    }
    let placed = messages
        .iter()
        .filter(|message| message.starts_with("Job assigned to instance"))
        .count();
    let submissions = run
        .pointer("/jobs/0/job_submissions")
        .and_then(|all| all.as_array().map(Vec::len))
        .context("no submissions")?;
    assert!(
        placed <= submissions,
        "{name}: placed {placed} times: {messages:#?}"
    );
    Ok(status)
}

#[test]
fn two_servers_share_the_work() {
    let database = need!(database());
    let a = need!(Setup::local()).sharing(&database).start().unwrap();
    let b = need!(Setup::local()).sharing(&database).start().unwrap();
    let instances = a
        .get("/api/project/main/fleets/get", &json!({"name": "local"}))
        .unwrap();
    assert_eq!(
        instances["instances"].as_array().unwrap().len(),
        2,
        "each has its machine: {instances:#}"
    );
    let mut names = Vec::new();
    for n in 0..8 {
        let server = if n % 2 == 0 { &a } else { &b };
        names.push(
            submit(server, &format!("run-{n}"), &["echo hello"], &json!({}))
                .unwrap()
                .name,
        );
    }
    let mut done = 0;
    for (n, name) in names.iter().enumerate() {
        // Asked of the one that did not take it.
        let server = if n % 2 == 0 { &b } else { &a };
        done += usize::from(assert_ended_once(server, name).unwrap() == "done");
    }
    assert!(done > 0, "no machine took anything");
    // What one server does is seen by the other at once: it is told, and does not wait for its next sweep.
    let long = submit(&a, "long", &["sleep 600"], &json!({})).unwrap();
    long.wait_for(&["running"]).unwrap();
    attach(&b, "long").stop(false).unwrap();
    assert_eq!(long.wait_until_finished().unwrap(), "terminated");
}

#[test]
fn a_token_that_is_deleted_at_one_server_is_refused_by_the_other() {
    let database = need!(database());
    let start = || Ok::<_, String>(Setup::local()?.sharing(&database).argument("--no-local"));
    let a = need!(start()).start().unwrap();
    let b = need!(start()).start().unwrap();
    let made = a
        .get("/api/users/tokens/create", &json!({"name": "laptop"}))
        .unwrap();
    let token = made["token"].as_str().unwrap();
    let (client, url) = (Client::default(), format!("{}/api/users/get_my_user", b.url()));
    let status = || client.post(&url, token, &json!({})).map(|answer| answer.status);
    // Often enough for it to be remembered.
    for _ in 0..100 {
        assert_eq!(status().unwrap(), 200);
    }
    a.get("/api/users/tokens/delete", &json!({"names": ["laptop"]}))
        .unwrap();
    eventually("the token is refused", TEST_TIMEOUT, || {
        Ok((status()? == 403).then_some(()))
    })
    .unwrap();
}

#[test]
fn the_work_of_a_killed_server_goes_on_at_the_other() {
    let database = need!(database());
    let b = need!(Setup::local()).sharing(&database).start().unwrap();
    // Without a machine of its own: its jobs run on the other's.
    let mut a = need!(Setup::local())
        .sharing(&database)
        .argument("--no-local")
        .start()
        .unwrap();
    let (accepted, stop) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let (url, next) = (a.url(), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let client = Client::default();
                while !stop.load(Ordering::Relaxed) {
                    let name = format!("run-{}", next.fetch_add(1, Ordering::Relaxed));
                    let answer =
                        client.post(&format!("{url}/api/project/main/runs/apply"), TOKEN, &task(&name));
                    match answer {
                        Ok(answer) if answer.status == 200 => accepted.lock().unwrap().push(name),
                        // The server is dead.
                        _ => return,
                    }
                }
            });
        }
        eventually("enough runs are accepted", TEST_TIMEOUT, || {
            Ok((accepted.lock().unwrap().len() >= 20).then_some(()))
        })
        .unwrap();
        a.kill().unwrap();
        stop.store(true, Ordering::Relaxed);
    });
    let accepted = accepted.into_inner().unwrap();
    assert!(accepted.len() >= 20);
    for name in &accepted {
        assert_ended_once(&b, name).unwrap();
    }
}

#[test]
fn a_server_comes_back_to_the_jobs_on_its_machine() {
    let database = need!(database());
    let mut a = need!(Setup::local()).sharing(&database).start().unwrap();
    let b = need!(Setup::local())
        .sharing(&database)
        .argument("--no-local")
        .start()
        .unwrap();
    let counting = "i=0; while [ $i -lt 150 ]; do i=$((i+1)); echo line $i; sleep 0.1; done";
    submit(&a, "counting", &[counting], &json!({}))
        .unwrap()
        .wait_for_log("line 10\n")
        .unwrap();
    a.kill().unwrap();
    // The other drives the job now, and says what it cannot do.
    let run = attach(&b, "counting");
    eventually("the other server misses the machine", TEST_TIMEOUT, || {
        let fleet = b.get("/api/project/main/fleets/get", &json!({"name": "local"}))?;
        Ok((fleet["instances"][0]["unreachable"] == true).then_some(()))
    })
    .unwrap();
    a.start().unwrap();
    assert_eq!(
        run.wait_until_finished().unwrap(),
        "done",
        "{:#}",
        run.get().unwrap()
    );
    let expected: String = (1..=150).map(|i| format!("line {i}\n")).collect();
    assert_eq!(attach(&a, "counting").logs().unwrap(), expected);
}

fn task(name: &str) -> Value {
    let configuration =
        json!({"type": "task", "name": name, "commands": ["echo hello"], "resources": small()});
    let spec = json!({"run_name": name, "configuration": configuration, "profile": {"name": "default"}});
    json!({"plan": {"run_spec": spec}, "force": false})
}

/// What became of submissions, by name.
type Answers = Mutex<BTreeMap<String, (u16, String)>>;

fn accepted(answers: &Answers) -> usize {
    let answers = answers.lock().unwrap();
    answers.values().filter(|(status, _)| *status == 200).count()
}

fn keep_submitting(url: &str, next: &AtomicUsize, stop: &AtomicBool, answers: &Answers) {
    let client = Client::default();
    while !stop.load(Ordering::Relaxed) {
        let name = format!("run-{}", next.fetch_add(1, Ordering::Relaxed));
        let answer = client.post(&format!("{url}/api/project/main/runs/apply"), TOKEN, &task(&name));
        // The server itself is reached directly: it always answers.
        let answer = answer.unwrap();
        answers
            .lock()
            .unwrap()
            .insert(name, (answer.status, answer.text()));
    }
}

#[test]
fn a_bad_connection_to_the_database_is_survived_and_never_lied_about() {
    const FAULTS: usize = 30;
    let seed = std::env::var("DSTACK_TEST_SEED").map_or(1, |seed| seed.parse().unwrap());
    println!("DSTACK_TEST_SEED={seed}");
    let database = need!(database());
    let address = database
        .split_once('@')
        .unwrap()
        .1
        .split_once('/')
        .unwrap()
        .0
        .to_owned();
    let proxy = Proxy::to(address.to_socket_addrs().unwrap().next().unwrap()).unwrap();
    let through = proxy.through(&database).unwrap();
    let server = need!(Setup::local()).sharing(&through).start().unwrap();
    let (next, stop, answers) = (AtomicUsize::new(0), AtomicBool::new(false), Answers::default());
    let url = server.url();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| keep_submitting(&url, &next, &stop, &answers));
        }
        for fault in plan(seed, FAULTS) {
            proxy.cause(fault);
            let before = accepted(&answers);
            eventually("a submission succeeds after the fault", TEST_TIMEOUT, || {
                Ok((accepted(&answers) > before).then_some(()))
            })
            .unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    eventually("the database is used again", TEST_TIMEOUT, || {
        Ok((server.call("/api/runs/list", &json!({}))?.status == 200).then_some(()))
    })
    .unwrap();
    for _ in 0..50 {
        server.get("/api/runs/list", &json!({"limit": 1})).unwrap();
    }
    let answers = answers.into_inner().unwrap();
    let count = |wanted: u16| answers.values().filter(|(status, _)| *status == wanted).count();
    println!(
        "{} submissions: {} accepted, {} refused",
        answers.len(),
        count(200),
        count(503)
    );
    assert!(count(200) > 0 && count(503) > 0, "the faults had no effect");
    for (name, (status, text)) in &answers {
        let run = server
            .call("/api/project/main/runs/get", &json!({"run_name": name}))
            .unwrap();
        match (status, run.status) {
            (200, 200) => {}
            // Whether it was stored was not known: then it is there whole, or not at all.
            (503, 200 | 400) => assert!(text.contains("database") || text.contains("in time"), "{text}"),
            other => panic!("{name}: {other:?} {text}"),
        }
        if run.status == 200 {
            assert_ended_once(&server, name).unwrap();
        }
    }
    // The engine goes on without a restart.
    let after = submit(&server, "after", &["echo still here"], &json!({})).unwrap();
    assert_eq!(after.wait_until_finished().unwrap(), "done");
}
