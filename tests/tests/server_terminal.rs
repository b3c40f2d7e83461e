//! `dstack server` on a terminal, beside a command line that uses another server; and a command that waits there.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::indexing_slicing)]

use std::time::Duration;

use dstack_tests::http::Client;
use dstack_tests::server::free_port;
use dstack_tests::terminal::Terminal;
use dstack_tests::{need, parts};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);
const OTHER: &str =
    "projects:\n- default: true\n  name: main\n  token: other\n  url: http://127.0.0.1:3000\n";

#[test]
fn it_answers_while_it_asks_and_says_what_a_yes_changes() {
    let program = need!(parts::dstack());
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join(".dstack/config.yml");
    fs_err::create_dir_all(home.path().join(".dstack")).unwrap();
    fs_err::write(&config, OTHER).unwrap();
    let port = free_port().unwrap().to_string();
    let variables = [
        ("HOME", home.path().display().to_string()),
        ("DSTACK_SERVER_BACKGROUND_PROCESSING_DISABLED", "1".to_owned()),
    ];
    let args = ["server", "--port", &port];
    let mut terminal = Terminal::start(&program, &args, home.path(), &variables).unwrap();
    let question = format!(
        "the default is project main at http://127.0.0.1:3000. Make it project main of this server, http://127.0.0.1:{port}?"
    );
    terminal.wait_for("[y/n] (n): ", TEST_TIMEOUT).unwrap();
    let shown = terminal.text().replace("\r\n", "\n");
    assert!(shown.contains(&question), "{shown}");
    assert!(
        shown.find(" is running at").unwrap() < shown.find(&question).unwrap(),
        "{shown}"
    );
    let answer = Client::default()
        .send("GET", &format!("http://127.0.0.1:{port}/healthcheck"), &[], None)
        .unwrap();
    assert_eq!(answer.status, 200, "it answers before it is answered");

    terminal.type_text("y\r").unwrap();
    terminal
        .wait_for("Configured the main project", TEST_TIMEOUT)
        .unwrap();
    let written = fs_err::read_to_string(&config).unwrap();
    assert!(
        written.contains(&format!("url: http://127.0.0.1:{port}")),
        "{written}"
    );
    terminal.type_text("\x03").unwrap();
    assert_eq!(terminal.wait().unwrap(), 0);
    let shown = terminal.text();
    assert!(shown.contains("The dstack server is stopping"), "{shown}");
}

/// A server that takes the call and never answers: the command waits, with the cursor hidden.
#[test]
fn ctrl_c_ends_a_command_that_waits_and_shows_the_cursor_again() {
    let program = need!(parts::dstack());
    let home = tempfile::tempdir().unwrap();
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let variables = [
        ("HOME", home.path().display().to_string()),
        (
            "DSTACK_SERVER_URL",
            format!("http://{}", server.local_addr().unwrap()),
        ),
        ("DSTACK_TOKEN", "token".to_owned()),
        ("DSTACK_PROJECT", "main".to_owned()),
    ];
    let mut terminal = Terminal::start(&program, &["offer"], home.path(), &variables).unwrap();
    terminal.wait_for("\x1b[?25l", TEST_TIMEOUT).unwrap();
    terminal.wait_for("offers", TEST_TIMEOUT).unwrap();
    terminal.type_text("\x03").unwrap();
    // What is shown last is shown after the cursor.
    terminal
        .wait_for("Operation interrupted by user", TEST_TIMEOUT)
        .unwrap();
    assert_eq!(terminal.wait().unwrap(), 130);
    let shown = terminal.text();
    let cursor = shown.rfind("\x1b[?25l").max(shown.rfind("\x1b[?25h")).unwrap();
    assert!(shown[cursor..].starts_with("\x1b[?25h"), "{shown:?}");
}
