//! Gateways on hosts of SSH fleets: made and told of services by the server, serving through updates, kills and its absence.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)] // tests

mod rollouts;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use dstack_tests::cli::Cli;
use dstack_tests::fleets::{self, events, traces, until_idle};
use dstack_tests::hosts::{Host, IMAGE, Lab, USUAL};
use dstack_tests::http::{Answer, Client};
use dstack_tests::need;
use dstack_tests::runs::{Run, SMALL_YAML, TEST_TIMEOUT, attach};
use dstack_tests::server::{Server, eventually};
use serde_json::{Value, json};

const GATEWAY: &str = "type: gateway\nname: gate\nbackend: remote\nregion: lab\ninstance_type: lab-0\ndomain: '*.example.test'\ncertificate: null\n";

mod python {
    use dstack_tests::{cli::Cli, need};
    #[test]
    fn a_service_is_reached_at_a_gateway() {
        super::a_service_is_reached_at_a_gateway(&need!(Cli::python()));
    }
}

mod ours {
    use dstack_tests::{cli::Cli, need};
    #[test]
    fn a_service_is_reached_at_a_gateway() {
        super::a_service_is_reached_at_a_gateway(&need!(Cli::ours()));
    }
}

fn service(page: &str) -> String {
    format!(
        "type: service\nname: web\nport: 8000\nimage: {IMAGE}\nhttps: false\nfleets: [lab]\nstop_duration: 5s\ncommands:\n  \
         - mkdir -p /www && echo {page} > /www/index.html\n  - exec httpd -f -p 127.0.0.1:8000 -h /www\n\
         probes: [{{type: http, url: /index.html, interval: 1s}}]\n{SMALL_YAML}"
    )
}

fn apply(cli: &Cli, configuration: &str) {
    cli.write("some.dstack.yml", configuration).unwrap();
    cli.succeeds(&["apply", "-f", "some.dstack.yml", "-y", "-d"]);
}

/// A request at the gateway, as clients send it whose name server knows the domain.
fn ask(host: &Host<'_>, name: &str, token: Option<&str>) -> Answer {
    let mut headers = vec![("host".to_owned(), name.to_owned())];
    headers.extend(token.map(|token| ("authorization".to_owned(), format!("Bearer {token}"))));
    Client::default()
        .send("GET", &format!("http://{}/", host.address), &headers, None)
        .unwrap()
}

fn until_answered(server: &Server, run: &Run<'_>, host: &Host<'_>, page: &str) {
    let answered = eventually("the service answers at the gateway", TEST_TIMEOUT, || {
        let answer = ask(host, "web.example.test", Some(server.token()));
        Ok((answer.status == 200 && answer.text().trim() == page).then_some(()))
    });
    answered.unwrap_or_else(|error| {
        panic!(
            "{error:#}\n{:#}\n{:#?}\n{}",
            run.get().unwrap(),
            events(server),
            server.output()
        )
    });
}

fn gateway(server: &Server) -> Option<Value> {
    let all = server.get("/api/project/main/gateways/list", &json!({})).unwrap();
    all.as_array().unwrap().first().cloned()
}

fn until_running(server: &Server) {
    let running = eventually("the gateway runs", TEST_TIMEOUT, || {
        let found = gateway(server).unwrap();
        assert_ne!(found["status"], "failed", "{found:#}\n{}", server.output());
        Ok((found["status"] == "running").then_some(()))
    });
    running.unwrap_or_else(|error| panic!("{error:#}\n{:#?}\n{}", gateway(server), server.output()));
}

/// A fleet of these hosts, a gateway on the first one, and a service on one of them.
fn begin(server: &Server, lab: &Lab, hosts: &[&Host<'_>], cli: &Cli) {
    begin_with(server, lab, hosts, cli, &service("first"));
}

/// As [`begin`], with this service, whose page is `first`.
fn begin_with(server: &Server, lab: &Lab, hosts: &[&Host<'_>], cli: &Cli, service: &str) {
    cli.knows(server);
    let entries: Vec<Value> = hosts.iter().map(|host| host.entry()).collect();
    fleets::apply(server, &lab.fleet("lab", &entries, &json!({})).unwrap());
    until_idle(server, "lab", hosts.len());
    apply(cli, GATEWAY);
    until_running(server);
    apply(cli, service);
    until_answered(server, &attach(server, "web"), hosts[0], "first");
}

fn a_service_is_reached_at_a_gateway(cli: &Cli) {
    let (mut server, lab) = need!(fleets::start());
    let host = need!(lab.host("one", 2, USUAL));
    begin(&server, &lab, &[&host], cli);
    let listed = cli.succeeds(&["gateway", "list"]);
    assert!(
        listed.contains("gate") && listed.contains(&host.address),
        "{listed}"
    );
    let run = attach(&server, "web").get().unwrap();
    assert_eq!(run["service"]["url"], "http://web.example.test");
    assert_eq!(ask(&host, "web.example.test", None).status, 403);
    assert_eq!(ask(&host, "web.example.test", Some("stale")).status, 403);
    assert_eq!(ask(&host, "other.example.test", Some(server.token())).status, 404);

    // The gateway goes on without the server, and the server finds all as it was.
    server.kill().unwrap();
    let token = server.token().to_owned();
    let alone = ask(&host, "web.example.test", Some(&token));
    assert_eq!((alone.status, alone.text().trim()), (200, "first"));
    server.start().unwrap();
    until_answered(&server, &attach(&server, "web"), &host, "first");

    // A gateway that is killed comes back with all that it knew.
    host.run("pkill -9 -f '[g]ateway-dstack-agent'").unwrap();
    let again = eventually("the gateway answers again", TEST_TIMEOUT, || {
        let url = format!("http://{}/", host.address);
        let headers = [
            ("host".to_owned(), "web.example.test".to_owned()),
            ("authorization".to_owned(), format!("Bearer {token}")),
        ];
        let answer = Client::default().send("GET", &url, &headers, None);
        Ok(answer.ok().filter(|answer| answer.status == 200))
    });
    assert_eq!(again.unwrap().text().trim(), "first");

    cli.succeeds(&["stop", "web", "-y"]);
    assert_eq!(
        attach(&server, "web").wait_until_finished().unwrap(),
        "terminated"
    );
    eventually("the service is gone", TEST_TIMEOUT, || {
        Ok((ask(&host, "web.example.test", Some(&token)).status == 404).then_some(()))
    })
    .unwrap();
    cli.succeeds(&["gateway", "delete", "gate", "-y"]);
    eventually("the gateway is gone", TEST_TIMEOUT, || {
        Ok(gateway(&server).is_none().then_some(()))
    })
    .unwrap();
    assert_eq!(
        host.run("ls -d /var/lib/dstack-gateway 2>/dev/null; pgrep -a gateway; true")
            .unwrap(),
        ""
    );
    fleets::delete(&server, "lab");
    assert_eq!(traces(&host), "");
}

#[test]
fn no_request_fails_at_a_gateway_while_replicas_are_replaced() {
    let (server, lab) = need!(fleets::start());
    let host = need!(lab.host("one", 2, USUAL));
    let other = need!(lab.host("two", 3, USUAL));
    let cli = need!(Cli::ours());
    begin(&server, &lab, &[&host, &other], &cli);
    let ends = AtomicBool::new(false);
    // Clients of their own, which nobody supervises.
    #[allow(clippy::disallowed_methods)]
    let answers = thread::scope(|scope| {
        let ask_again = || {
            let mut answers: BTreeMap<String, usize> = BTreeMap::new();
            while !ends.load(Ordering::Acquire) {
                let answer = ask(&host, "web.example.test", Some(server.token()));
                *answers
                    .entry(format!("{} {}", answer.status, answer.text().trim()))
                    .or_default() += 1;
            }
            answers
        };
        let clients = [scope.spawn(ask_again), scope.spawn(ask_again)];
        apply(&cli, &service("second"));
        let replaced = eventually("the replica is replaced", TEST_TIMEOUT, || {
            let run = attach(&server, "web").get()?;
            let jobs = run["jobs"].as_array().unwrap().clone();
            let live = jobs
                .iter()
                .map(|job| job["job_submissions"].as_array().unwrap().last().unwrap());
            let live: Vec<_> = live.filter(|one| one["status"] != "terminated").collect();
            let is_new = live.len() == 1 && live[0]["deployment_num"] == 1 && live[0]["status"] == "running";
            Ok(is_new.then_some(()))
        });
        ends.store(true, Ordering::Release);
        let mut all: BTreeMap<String, usize> = BTreeMap::new();
        for client in clients {
            for (answer, count) in client.join().unwrap() {
                *all.entry(answer).or_default() += count;
            }
        }
        replaced.unwrap_or_else(|error| panic!("{error:#}\n{all:?}\n{:#?}", events(&server)));
        all
    });
    assert!(
        answers.keys().all(|answer| answer.starts_with("200 ")),
        "{answers:?}"
    );
    let came = |page: &str| answers.contains_key(&format!("200 {page}"));
    assert!(came("first") && came("second"), "{answers:?}");
}

/// What is in the way on the host is said where users look, and a service that nobody can publish is not left hanging.
#[test]
fn what_keeps_a_gateway_from_serving_is_said() {
    let (server, lab) = need!(fleets::start());
    let host = need!(lab.host("one", 2, USUAL));
    let cli = need!(Cli::ours());
    cli.knows(&server);
    fleets::apply(&server, &lab.fleet("lab", &[host.entry()], &json!({})).unwrap());
    until_idle(&server, "lab", 1);
    apply(
        &cli,
        "type: gateway\nname: gate\nbackend: remote\nregion: nowhere\n",
    );
    let failed = eventually("the gateway fails", TEST_TIMEOUT, || {
        Ok(gateway(&server).filter(|found| found["status"] == "failed"))
    });
    let message = failed.unwrap()["status_message"].as_str().unwrap().to_owned();
    assert!(message.contains("There is no SSH fleet nowhere"), "{message}");
    cli.write("service.dstack.yml", &service("first")).unwrap();
    let refused = cli
        .run(&["apply", "-f", "service.dstack.yml", "-y", "-d"])
        .unwrap();
    assert!(
        refused.text.contains("is not running: its status is FAILED"),
        "{}",
        refused.text
    );
}
