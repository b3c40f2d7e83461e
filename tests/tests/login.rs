//! `dstack login` to a provider and back: the unmodified Python command line of 0.22.5, and ours.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Stdio};

use dstack_login_doubles::{CLIENT_ID, CLIENT_SECRET, Fault, Idp};
use dstack_tests::cli::Cli;
use dstack_tests::http::{Answer, Client};
use dstack_tests::need;
use dstack_tests::server::{Server, Setup};
use serde_json::json;

mod python {
    use dstack_tests::cli::Cli;
    use dstack_tests::need;

    #[test]
    fn login_stores_the_token() {
        super::login_stores_the_token(&need!(Cli::python()));
    }

    #[test]
    fn login_ends_when_the_provider_refuses() {
        super::login_ends_when_the_provider_refuses(&need!(Cli::python()));
    }
}

mod ours {
    use dstack_tests::cli::Cli;
    use dstack_tests::need;

    #[test]
    fn login_stores_the_token() {
        super::login_stores_the_token(&need!(Cli::ours()));
    }

    #[test]
    fn login_ends_when_the_provider_refuses() {
        super::login_ends_when_the_provider_refuses(&need!(Cli::ours()));
    }
}

/// A provider in this process, as long as this lives.
struct Double {
    idp: Idp,
    _runtime: tokio::runtime::Runtime,
}

fn double() -> Double {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let idp = runtime.block_on(Idp::start());
    idp.visitor(json!({
        "sub": "00u1", "preferred_username": "grace@acme.com", "email": "grace@acme.com", "email_verified": true,
    }));
    Double {
        idp,
        _runtime: runtime,
    }
}

fn server(setup: Setup, double: &Double) -> Server {
    let config = format!(
        "login:\n  providers:\n  - type: okta\n    issuer: {}\n    client_id: {CLIENT_ID}\n    client_secret: '{CLIENT_SECRET}'\n    \
         projects: [main]\n",
        double.idp.url
    );
    setup.config(&config).start().unwrap()
}

/// A command that waits for the browser.
struct Waiting {
    child: Child,
    /// Where the browser is to go.
    url: String,
    out: BufReader<ChildStdout>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Waiting {
    fn start(cli: &Cli, server: &Server) -> Waiting {
        let mut command = cli.command(&["login", "--url", &server.url(), "-y"]);
        command
            // Takes every address.
            .env("BROWSER", "true")
            .env("PYTHONUNBUFFERED", "1")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut waiting = Waiting {
            child,
            url: String::new(),
            out,
        };
        while !waiting.url.starts_with("http") {
            waiting.url.clear();
            let read = waiting.out.read_line(&mut waiting.url).unwrap();
            assert!(read > 0, "no address: {}", waiting.end().1);
        }
        waiting.url = waiting.url.trim().to_owned();
        waiting
    }

    /// How it ended, and what it said besides the address.
    fn end(&mut self) -> (Option<i32>, String) {
        let ended = self.child.wait().unwrap();
        let mut text = String::new();
        self.out.read_to_string(&mut text).unwrap();
        let mut errors = self.child.stderr.take().unwrap();
        errors.read_to_string(&mut text).unwrap();
        (ended.code(), text)
    }
}

/// Follows redirects to the end.
fn browse(url: &str) -> Answer {
    let client = Client::default();
    let mut url = url.to_owned();
    loop {
        let answer = client.send("GET", &url, &[], None).unwrap();
        match answer.header("location") {
            Some(next) if (300..400).contains(&answer.status) => url = next.to_owned(),
            _ => return answer,
        }
    }
}

fn login_stores_the_token(cli: &Cli) {
    let setup = need!(Setup::without_engine());
    let double = double();
    let server = server(setup, &double);
    let mut waiting = Waiting::start(cli, &server);
    let url = waiting.url.clone();
    assert!(
        url.starts_with(&format!("{}/authorize?", double.idp.url)),
        "{url}"
    );
    let page = browse(&url);
    assert_eq!(page.status, 200, "{}", page.text());
    assert!(
        page.text().contains("dstack CLI authenticated"),
        "{}",
        page.text()
    );
    let (code, text) = waiting.end();
    assert_eq!(code, Some(0), "{text}");
    for line in [
        "Logged in as grace",
        "Added main project at",
        "Set main project as default at",
    ] {
        assert!(text.contains(line), "{text}");
    }
    let listed = cli.run(&["project", "list", "-v"]).unwrap();
    assert!(
        listed.text.contains("main") && listed.text.contains("grace"),
        "{}",
        listed.text
    );
}

fn login_ends_when_the_provider_refuses(cli: &Cli) {
    let setup = need!(Setup::without_engine());
    let double = double();
    let server = server(setup, &double);
    let mut waiting = Waiting::start(cli, &server);
    let url = waiting.url.clone();
    double.idp.fault(Some(Fault::Denied));
    assert_eq!(browse(&url).status, 400);
    let (code, text) = waiting.end();
    assert_eq!(code, Some(1), "{text}");
    assert!(!text.contains("Logged in"), "{text}");
}
