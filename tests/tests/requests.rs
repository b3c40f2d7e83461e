//! Requests that the server passes on to services: to processes and containers of this machine, through updates, kills and restarts.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)] // tests

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use dstack_tests::cli::Cli;
use dstack_tests::fleets::events;
use dstack_tests::http::{Answer, BROKEN_OFF, Client};
use dstack_tests::ports::own_port;
use dstack_tests::runs::{Run, SMALL_YAML, TEST_TIMEOUT, attach};
use dstack_tests::server::{Server, Setup, eventually};
use dstack_tests::{need, parts};
use serde_json::Value;

mod python {
    use dstack_tests::{cli::Cli, need};
    #[test]
    fn a_service_answers_at_its_url() {
        super::a_service_answers_at_its_url(&need!(Cli::python()));
    }
    #[test]
    fn a_service_starts_when_it_is_asked() {
        super::a_service_starts_when_it_is_asked(&need!(Cli::python()));
    }
}

mod ours {
    use dstack_tests::{cli::Cli, need};
    #[test]
    fn a_service_answers_at_its_url() {
        super::a_service_answers_at_its_url(&need!(Cli::ours()));
    }
    #[test]
    fn a_service_starts_when_it_is_asked() {
        super::a_service_starts_when_it_is_asked(&need!(Cli::ours()));
    }
}

fn apply(cli: &Cli, service: &str) {
    cli.write("service.yml", service).unwrap();
    cli.succeeds(&["apply", "-f", "service.yml", "-y", "-d"]);
}

fn get(url: &str, token: Option<&str>) -> Answer {
    send("GET", url, token)
}

/// A request as a browser or curl sends it.
fn send(method: &str, url: &str, token: Option<&str>) -> Answer {
    try_send(method, url, token).unwrap_or_else(|error| panic!("{method} {url}: {error:#}"))
}

fn try_send(method: &str, url: &str, token: Option<&str>) -> anyhow::Result<Answer> {
    let token = token.map(|token| ("authorization".to_owned(), format!("Bearer {token}")));
    let headers: Vec<_> = token.into_iter().collect();
    let body = (method == "POST").then(|| b"x".to_vec());
    Client::default().send(method, url, &headers, body)
}

fn url(server: &Server, path: &str) -> String {
    format!("{}/proxy/services/main/web/{path}", server.url())
}

/// Waits until the service answers a request with 200.
fn until_answered(server: &Server, run: &Run<'_>, path: &str) -> Answer {
    let answered = eventually("the service answers", TEST_TIMEOUT, || {
        let answer = get(&url(server, path), Some(server.token()));
        Ok((answer.status == 200).then_some(answer))
    });
    answered.unwrap_or_else(|error| panic!("{error:#}\n{:#}\n{}", run.get().unwrap(), server.output()))
}

fn a_service_answers_at_its_url(cli: &Cli) {
    let setup = need!(Setup::local()).variable("DSTACK_SERVER_SERVICES_ACCESS_LOG", "1");
    let mut server = setup.start().unwrap();
    cli.knows(&server);
    let port = own_port(0);
    let service = format!(
        "type: service\nname: web\nport: {port}\ncommands:\n  - echo of-the-service > page.txt\n  \
         - exec python3 -m http.server {port} --bind 127.0.0.1\n{SMALL_YAML}"
    );
    apply(cli, &service);
    let run = attach(&server, "web");
    let page = until_answered(&server, &run, "page.txt");
    assert_eq!(page.text(), "of-the-service\n");
    assert_eq!(
        get(&url(&server, "none.txt?of=secrets"), Some(server.token())).status,
        404
    );
    let line = eventually("the request is in the log", TEST_TIMEOUT, || {
        let log = server.output();
        let mut lines = log.lines();
        Ok(lines.find(|line| line.contains("/none.txt")).map(str::to_owned))
    })
    .unwrap();
    for part in [
        "request to a service",
        "project.name=\"main\"",
        "run.name=\"web\"",
        "job.id=",
        "http.method=GET",
        "http.status=404",
        "client.address=127.0.0.1",
        "duration_ms=",
    ] {
        assert!(line.contains(part), "no {part} in {line}");
    }
    assert!(!line.contains("secrets"), "{line}");
    // Nobody else gets in, and nobody learns why.
    assert_eq!(get(&url(&server, "page.txt"), None).status, 403);
    assert_eq!(get(&url(&server, "page.txt"), Some("stale")).status, 403);

    // A server that starts again knows where everything is.
    server.kill().unwrap();
    server.start().unwrap();
    let again = get(&url(&server, "page.txt"), Some(server.token()));
    assert_eq!((again.status, again.text().as_str()), (200, "of-the-service\n"));

    // Without authorization, changed in place.
    apply(cli, &format!("{service}auth: false\n"));
    eventually("everybody gets in", TEST_TIMEOUT, || {
        Ok((get(&url(&server, "page.txt"), None).status == 200).then_some(()))
    })
    .unwrap();

    cli.succeeds(&["stop", "web", "-y"]);
    let run = attach(&server, "web");
    assert_eq!(run.wait_until_finished().unwrap(), "terminated");
    let gone = get(&url(&server, "page.txt"), None);
    assert_eq!(gone.status, 404, "{}", gone.text());
}

/// It has no replicas before the first request, which waits for one.
fn a_service_starts_when_it_is_asked(cli: &Cli) {
    let server = need!(Setup::local()).start().unwrap();
    cli.knows(&server);
    let port = own_port(0);
    apply(
        cli,
        &format!(
            "type: service\nname: web\nport: {port}\nreplicas: 0..1\nscaling: {{metric: rps, target: 1}}\n\
             probes: [{{type: http, url: /page.txt, interval: 1s}}]\ncommands:\n  - echo started-for-it > page.txt\n  \
             - exec python3 -m http.server {port} --bind 127.0.0.1\n{SMALL_YAML}"
        ),
    );
    let run = attach(&server, "web");
    eventually("it rests", TEST_TIMEOUT, || {
        Ok((run.get()?["status"] == "pending").then_some(()))
    })
    .unwrap();
    assert_eq!(replicas(&run), Vec::<Value>::new());
    let page = get(&url(&server, "page.txt"), Some(server.token()));
    assert_eq!(
        (page.status, page.text().as_str()),
        (200, "started-for-it\n"),
        "{}",
        server.output()
    );
    assert_eq!(live(&run, 0), 1);
    cli.succeeds(&["stop", "web", "-y"]);
    assert_eq!(run.wait_until_finished().unwrap(), "terminated");
    assert_eq!(get(&url(&server, "page.txt"), Some(server.token())).status, 404);
}

/// Requests without a pause until they are to end: how often each answer came.
struct Load {
    ends: &'static AtomicBool,
    threads: Vec<JoinHandle<BTreeMap<String, usize>>>,
}

impl Load {
    /// Short ones, which are repeated if they fail.
    fn on(server: &Server) -> Load {
        Self::of(server, &[("GET", ""); 4])
    }

    /// Besides those that take a second, are not repeated, and end with their connection.
    fn with_slow_ones(server: &Server) -> Load {
        let slow = ("POST", "cgi-bin/slow");
        Self::of(server, &[("GET", ""), ("GET", ""), ("GET", ""), slow, slow])
    }

    fn of(server: &Server, asked: &[(&'static str, &str)]) -> Load {
        let ends: &'static AtomicBool = Box::leak(Box::default());
        let start = |(method, path): &(&'static str, &str)| {
            let (method, url, token) = (*method, url(server, path), server.token().to_owned());
            // A client of its own, which nobody supervises.
            #[allow(clippy::disallowed_methods)]
            thread::spawn(move || {
                let mut answers = BTreeMap::new();
                while !ends.load(Ordering::Acquire) {
                    let text = match try_send(method, &url, Some(&token)) {
                        Ok(answer) => format!("{} {}", answer.status, answer.text().trim()),
                        Err(error) => format!("{method} {error}"),
                    };
                    *answers.entry(text).or_default() += 1;
                }
                answers
            })
        };
        let threads = asked.iter().map(start).collect();
        Load { ends, threads }
    }

    fn end(self) -> BTreeMap<String, usize> {
        self.ends.store(true, Ordering::Release);
        let mut all = BTreeMap::new();
        for thread in self.threads {
            for (answer, times) in thread.join().unwrap() {
                *all.entry(answer).or_default() += times;
            }
        }
        all
    }
}

fn in_containers(image: &str, replicas: u8, page: &str) -> String {
    let slow = r##"printf '#!/bin/sh\nsleep 1\nprintf "Content-Type: text/plain\\r\\n\\r\\nslow\\n"\n' > /www/cgi-bin/slow"##;
    format!(
        "type: service\nname: web\nport: 8000\nimage: {image}\nreplicas: {replicas}\nstop_duration: 5s\ncommands:\n  \
         - mkdir -p /www/cgi-bin && echo {page} > /www/index.html\n  - |\n    {slow}\n  - chmod +x /www/cgi-bin/slow\n  \
         - exec httpd -f -p 127.0.0.1:8000 -h /www\n\
         probes: [{{type: http, url: /index.html, interval: 1s}}]\n{SMALL_YAML}"
    )
}

/// The latest submissions of all replicas.
fn replicas(run: &Run<'_>) -> Vec<Value> {
    let run = run.get().unwrap();
    let jobs = run["jobs"].as_array().unwrap().iter();
    jobs.map(|job| job["job_submissions"].as_array().unwrap().last().unwrap().clone())
        .collect()
}

fn live(run: &Run<'_>, deployment: u64) -> usize {
    let all = replicas(run);
    all.iter()
        .filter(|one| one["status"] == "running" && one["deployment_num"] == deployment)
        .count()
}

fn all_well(answers: &BTreeMap<String, usize>) {
    assert!(
        answers.keys().all(|answer| answer.starts_with("200 ")),
        "{answers:?}"
    );
}

/// Their containers share nothing with the machine: each is reached through its own SSH server.
#[test]
fn no_request_fails_while_replicas_are_replaced_and_killed() {
    let image = need!(parts::image());
    let setup = need!(Setup::local()).variable("DSTACK_LOCAL_RUNTIME", "docker");
    let (server, cli) = (setup.start().unwrap(), need!(Cli::ours()));
    cli.knows(&server);
    // A machine may have room for two only: the old replica and the new one.
    apply(&cli, &in_containers(&image, 1, "first"));
    let run = attach(&server, "web");
    assert_eq!(until_answered(&server, &run, "").text(), "first\n");

    let load = Load::with_slow_ones(&server);
    apply(&cli, &in_containers(&image, 1, "second"));
    let updated = eventually("the replica is replaced", TEST_TIMEOUT, || {
        let all = replicas(&run);
        let old = all
            .iter()
            .filter(|one| one["deployment_num"] == 0 && one["status"] != "terminated");
        Ok((old.count() == 0 && live(&run, 1) == 1).then_some(()))
    });
    let answers = load.end();
    updated.unwrap_or_else(|error| panic!("{error:#}\n{answers:?}\n{:#}", run.get().unwrap()));
    all_well(&answers);
    assert!(answers.contains_key("200 slow"), "{answers:?}");
    assert!(
        answers.contains_key("200 first") && answers.contains_key("200 second"),
        "{answers:?}"
    );

    apply(&cli, &in_containers(&image, 2, "second"));
    eventually("two replicas get requests", TEST_TIMEOUT, || {
        let told = events(&server)
            .into_iter()
            .filter(|event| event.contains("ready to receive requests"));
        Ok((told.count() == 3 && live(&run, 2) == 2).then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error:#}\n{:#?}\n{:#}", events(&server), run.get().unwrap()));
    // One of two replicas is killed with everything in it.
    let victim = replicas(&run)
        .into_iter()
        .find(|one| one["status"] == "running")
        .unwrap();
    let task = format!("label=ai.dstack.shim.task-id={}", victim["id"].as_str().unwrap());
    let load = Load::on(&server);
    let listed = Command::new("docker")
        .args(["ps", "-q", "--filter", &task])
        .output()
        .unwrap();
    let container = String::from_utf8(listed.stdout).unwrap();
    assert!(!container.trim().is_empty());
    let killed = Command::new("docker")
        .args(["kill", container.trim()])
        .output()
        .unwrap();
    assert!(killed.status.success(), "{killed:?}");
    let ended = eventually("the killed replica is over", TEST_TIMEOUT, || {
        let all = replicas(&run);
        let it = all.iter().find(|one| one["id"] == victim["id"]);
        Ok(it.is_none_or(|one| one["status"] != "running").then_some(()))
    });
    let mut answers = load.end();
    ended.unwrap();
    // What has begun when the replica dies cannot be asked for again: of each client one answer at most.
    let broken_off = answers.remove(&format!("GET {BROKEN_OFF}")).unwrap_or_default();
    assert!(
        broken_off <= 4,
        "{broken_off} answers have broken off: {answers:?}"
    );
    all_well(&answers);
}

/// A service whose command is one of the Python programs of these tests.
fn python_service(server: &Server, program: &str, more: &str) -> Cli {
    let cli = Cli::ours().unwrap();
    cli.knows(server);
    apply(
        &cli,
        &format!("type: service\nname: web\ncommands:\n  - exec {program}\n{more}{SMALL_YAML}"),
    );
    cli
}

fn script(name: &str) -> String {
    parts::repository()
        .join("tests/python")
        .join(name)
        .display()
        .to_string()
}

/// Runs a Python program of these tests until it says `ok`.
fn says_ok(python: &str, args: &[&str], server: &Server) {
    let said = Command::new(python).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned();
    assert!(
        said.status.success() && text.trim() == "ok",
        "{text}\n{}",
        server.output()
    );
}

#[test]
fn the_client_of_openai_talks_to_a_model() {
    let python = need!(parts::openai_env())
        .join("bin/python")
        .display()
        .to_string();
    let server = need!(Setup::local()).start().unwrap();
    let port = own_port(0);
    let program = format!("{python} {} {port} org/echo", script("openai_model.py"));
    // Its probe is the one that services with a model have.
    python_service(&server, &program, &format!("port: {port}\nmodel: org/echo\n"));
    let models = format!("{}/proxy/models/main", server.url());
    eventually("the model is listed", TEST_TIMEOUT, || {
        let listed = get(&format!("{models}/models"), Some(server.token()));
        Ok(listed.text().contains("org/echo").then_some(()))
    })
    .unwrap();
    says_ok(
        &python,
        &[&script("openai_client.py"), &models, server.token(), "org/echo"],
        &server,
    );
}

#[test]
fn a_websocket_is_passed_on() {
    let python = need!(parts::openai_env())
        .join("bin/python")
        .display()
        .to_string();
    let server = need!(Setup::local()).start().unwrap();
    let port = own_port(0);
    let program = format!("{python} {} serve {port}", script("websocket_echo.py"));
    python_service(&server, &program, &format!("port: {port}\n"));
    eventually("the service answers", TEST_TIMEOUT, || {
        // It speaks nothing else: 426.
        Ok((get(&url(&server, ""), Some(server.token())).status == 426).then_some(()))
    })
    .unwrap();
    let url = url(&server, "").replace("http://", "ws://");
    says_ok(
        &python,
        &[&script("websocket_echo.py"), "ask", &url, server.token()],
        &server,
    );
}
