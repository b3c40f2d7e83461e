//! Roll-outs of a service behind a gateway, with clients that ask all the time.

use std::sync::Mutex;

use dstack_tests::fleets::until_told;
use dstack_tests::runs::small;

use super::*;

/// Requests of which a share can be told from another one.
const REQUESTS: usize = 400;

/// A service whose page is asked for by its probe, and what it says, with this status, by its clients.
fn saying(page: &str, status: u16, rollout: &Value) -> String {
    let says = format!(
        r#"printf '#!/bin/sh\nprintf "Status: {status} -\\r\\nContent-Type: text/plain\\r\\n\\r\\n{page}"\n' > /www/cgi-bin/say"#
    );
    let commands = [
        format!("mkdir -p /www/cgi-bin && echo {page} > /www/index.html"),
        says,
        "chmod +x /www/cgi-bin/say".to_owned(),
        "exec httpd -f -p 127.0.0.1:8000 -h /www".to_owned(),
    ];
    let service = json!({
        "type": "service", "name": "web", "port": 8000, "image": IMAGE, "https": false, "fleets": ["lab"], "stop_duration": "5s",
        "commands": commands, "probes": [{"type": "http", "url": "/index.html", "interval": "1s"}], "resources": small(),
        "rollout": rollout,
    });
    service.to_string()
}

/// What a client is told: a status and what the service says, or why there is no answer.
fn told(host: &Host<'_>, server: &Server, header: Option<&str>) -> String {
    let mut headers = vec![
        ("host".to_owned(), "web.example.test".to_owned()),
        ("authorization".to_owned(), format!("Bearer {}", server.token())),
    ];
    headers.extend(header.map(|name| (name.to_owned(), "1".to_owned())));
    let url = format!("http://{}/cgi-bin/say", host.address);
    match Client::default().send("GET", &url, &headers, None) {
        Ok(answer) => format!("{} {}", answer.status, answer.text()),
        Err(error) => format!("none: {error:#}"),
    }
}

/// What clients are told while something goes on.
#[derive(Default)]
struct Told {
    answers: Mutex<Vec<String>>,
    is_over: AtomicBool,
}

impl Told {
    fn count(&self) -> usize {
        self.answers.lock().unwrap().len()
    }

    /// In the order in which they came.
    fn since(&self, place: usize) -> Vec<String> {
        self.answers.lock().unwrap()[place..].to_vec()
    }

    /// Waits for so many answers, and gives them.
    fn next(&self, count: usize) -> Vec<String> {
        let place = self.count();
        let came = eventually("answers come", TEST_TIMEOUT, || {
            Ok((self.count() >= place + count).then_some(()))
        });
        came.unwrap();
        self.since(place)
    }

    /// Waits until somebody is told this from now on.
    fn until(&self, answer: &str) {
        let place = self.count();
        let came = eventually(answer, TEST_TIMEOUT, || {
            Ok(self.since(place).iter().any(|told| told == answer).then_some(()))
        });
        came.unwrap_or_else(|error| panic!("{error:#}\n{:?}", counts(&self.since(place))));
    }
}

/// Clients stop asking when it is dropped, also by a test that fails.
struct UntilDropped<'a>(&'a Told);

impl Drop for UntilDropped<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Release);
    }
}

/// Does something while so many clients ask, and gives what they were told.
fn under_load(host: &Host<'_>, server: &Server, clients: usize, work: impl FnOnce(&Told)) -> Vec<String> {
    let all = Told::default();
    // Clients of their own, which nobody supervises.
    #[allow(clippy::disallowed_methods)]
    thread::scope(|scope| {
        let _asking = UntilDropped(&all);
        for _ in 0..clients {
            scope.spawn(|| {
                while !all.is_over.load(Ordering::Acquire) {
                    let answer = told(host, server, None);
                    all.answers.lock().unwrap().push(answer);
                }
            });
        }
        work(&all);
    });
    all.since(0)
}

fn counts(answers: &[String]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for answer in answers {
        *counts.entry(answer.as_str()).or_default() += 1;
    }
    counts
}

fn rollout(server: &Server) -> Value {
    server
        .get("/api/project/main/runs/get_rollout", &json!({"name": "web"}))
        .unwrap()
}

/// Waits until the roll-out is so far; `null`: it is over.
fn until_phase(server: &Server, phase: &Value) -> Value {
    let came = eventually("the roll-out comes so far", TEST_TIMEOUT, || {
        Ok(Some(rollout(server)).filter(|found| found["phase"] == *phase))
    });
    came.unwrap_or_else(|error| {
        panic!(
            "{error:#}\n{:#}\n{:#}\n{:#?}\n{}",
            rollout(server),
            attach(server, "web").get().unwrap(),
            events(server),
            server.output()
        )
    })
}

/// Numbers of the deployments that have replicas.
fn deployments(found: &Value) -> Vec<i64> {
    let all = found["deployments"].as_array().unwrap();
    all.iter()
        .map(|one| one["deployment_num"].as_i64().unwrap())
        .collect()
}

/// Waits until the replicas of all other deployments have ended.
fn until_alone(server: &Server, deployment: i64) {
    let alone = eventually("the others are gone", TEST_TIMEOUT, || {
        Ok((deployments(&rollout(server)) == [deployment]).then_some(()))
    });
    alone.unwrap_or_else(|error| panic!("{error:#}\n{:#}\n{:#?}", rollout(server), events(server)));
}

/// Waits until there is a host for another replica.
fn until_free(server: &Server) {
    let free = eventually("a host is idle", TEST_TIMEOUT, || {
        Ok(fleets::statuses(&fleets::fleet(server, "lab"))
            .contains(&"idle")
            .then_some(()))
    });
    free.unwrap_or_else(|error| panic!("{error:#}\n{:#}", fleets::fleet(server, "lab")));
}

#[test]
fn a_canary_gets_its_share_and_goes_on_by_hand_and_a_bad_one_goes_back_by_itself() {
    let (server, lab) = need!(fleets::start());
    let host = need!(lab.host("one", 2, USUAL));
    let other = need!(lab.host("two", 3, USUAL));
    let cli = need!(Cli::ours());
    begin_with(
        &server,
        &lab,
        &[&host, &other],
        &cli,
        &saying("first", 200, &Value::Null),
    );

    let rules = json!({"strategy": "canary", "share": "30%", "duration": "1h", "max_error_rate": "10%", "min_requests": 20});
    let answers = under_load(&host, &server, 2, |told| {
        apply(&cli, &saying("second", 200, &rules));
        until_phase(&server, &json!("watching"));
        told.until("200 second");
        let shared = told.next(REQUESTS);
        let found = counts(&shared[..REQUESTS]);
        // Four standard deviations around 30%.
        assert!((83..=157).contains(&found["200 second"]), "{found:?}");
        let shown = cli.succeeds(&["rollout", "web"]);
        assert!(
            shown.contains("web (canary)") && shown.contains("30%") && shown.contains("70%"),
            "{shown}"
        );
        cli.succeeds(&["rollout", "web", "--promote"]);
        until_phase(&server, &Value::Null);
        until_alone(&server, 1);
        until_free(&server);
        assert_eq!(
            counts(&told.next(50)).keys().copied().collect::<Vec<_>>(),
            ["200 second"]
        );
    });
    let found = counts(&answers);
    assert_eq!(
        found.keys().copied().collect::<Vec<_>>(),
        ["200 first", "200 second"],
        "{found:?}"
    );

    let answers = under_load(&host, &server, 2, |told| {
        apply(&cli, &saying("third", 500, &rules));
        told.until("500 third");
        let event = until_told(&server, ". Deployment: 3");
        let figures = regex::Regex::new(
            r"^Deployment 2 is rolled back: (\d+) of (\d+) answers failed \(100\.0%\), and `max_error_rate` is 10%\. Deployment: 3$",
        );
        let figures = figures
            .unwrap()
            .captures(&event)
            .unwrap_or_else(|| panic!("{event}"));
        assert!(
            figures[1] == figures[2] && figures[1].parse::<u64>().unwrap() >= 20,
            "{event}"
        );
        let shown = cli.succeeds(&["rollout", "web"]);
        assert!(
            shown.contains("rolled back") && shown.contains("answers failed (100.0%)"),
            "{shown}"
        );
        until_alone(&server, 3);
        // The gateway hears of it a moment later.
        let is_gone = || {
            Ok(told
                .next(20)
                .iter()
                .all(|answer| answer == "200 second")
                .then_some(()))
        };
        let gone = eventually("all are answered by the second one", TEST_TIMEOUT / 3, is_gone);
        gone.unwrap_or_else(|error| {
            let run = attach(&server, "web").get().unwrap();
            panic!(
                "{error:#}\n{:?}\n{run:#}\n{:#?}\n{}",
                counts(&told.next(20)),
                events(&server),
                server.output()
            )
        });
        assert_eq!(
            counts(&told.next(100)).keys().copied().collect::<Vec<_>>(),
            ["200 second"]
        );
    });
    let found = counts(&answers);
    assert_eq!(
        found.keys().copied().collect::<Vec<_>>(),
        ["200 second", "500 third"],
        "{found:?}"
    );
}

#[test]
fn green_gets_no_request_before_the_switch_by_hand_and_all_of_them_from_then_on() {
    let (server, lab) = need!(fleets::start());
    let host = need!(lab.host("one", 2, USUAL));
    let other = need!(lab.host("two", 3, USUAL));
    let cli = need!(Cli::ours());
    begin_with(
        &server,
        &lab,
        &[&host, &other],
        &cli,
        &saying("first", 200, &Value::Null),
    );
    let header = json!({"name": "x-green", "value": "1"});
    let rules = json!({"strategy": "blue_green", "switch": "manual", "keep": "2s", "header": header});
    let answers = under_load(&host, &server, 1, |asked| {
        apply(&cli, &saying("second", 200, &rules));
        until_phase(&server, &json!("ready"));
        let green = || Ok((told(&host, &server, Some("x-green")) == "200 second").then_some(()));
        eventually("those with the header are answered by green", TEST_TIMEOUT, green).unwrap();
        assert_eq!(
            counts(&asked.next(50)).keys().copied().collect::<Vec<_>>(),
            ["200 first"]
        );
        let shown = cli.succeeds(&["rollout", "web"]);
        assert!(shown.contains("wait for --promote or --abort"), "{shown}");
        cli.succeeds(&["rollout", "web", "--promote"]);
        until_phase(&server, &Value::Null);
        until_alone(&server, 1);
        asked.next(20);
    });
    let (first, last) = answers.split_at(answers.iter().position(|answer| answer == "200 second").unwrap());
    let same = |answers: &[String], wanted: &str| answers.iter().all(|answer| answer == wanted);
    assert!(
        same(first, "200 first") && same(last, "200 second"),
        "{:?}",
        counts(&answers)
    );
}
