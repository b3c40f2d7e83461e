//! `dstack login` to a provider and back: the unmodified Python command line of 0.22.5, and ours.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};

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

/// A command that waits for the browser, and where the browser is to go.
fn begin(cli: &Cli, server: &Server) -> (Child, String, BufReader<std::process::ChildStdout>) {
    let mut command = cli.command(&["login", "--url", &server.url(), "-y"]);
    let mut child = command
        // Takes every address.
        .env("BROWSER", "true")
        .env("PYTHONUNBUFFERED", "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    loop {
        let mut line = String::new();
        assert!(
            lines.read_line(&mut line).unwrap() > 0,
            "no address: {}",
            rest(&mut child, lines)
        );
        if line.starts_with("http") {
            return (child, line.trim().to_owned(), lines);
        }
    }
}

fn rest(child: &mut Child, mut lines: impl Read) -> String {
    let mut text = String::new();
    lines.read_to_string(&mut text).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    text
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
    let (mut child, url, lines) = begin(cli, &server);
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
    let ended = child.wait().unwrap();
    let text = rest(&mut child, lines);
    assert_eq!(ended.code(), Some(0), "{text}");
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
    let (mut child, url, lines) = begin(cli, &server);
    double.idp.fault(Some(Fault::Denied));
    assert_eq!(browse(&url).status, 400);
    let ended = child.wait().unwrap();
    let text = rest(&mut child, lines);
    assert_eq!(ended.code(), Some(1), "{text}");
    assert!(!text.contains("Logged in"), "{text}");
}
