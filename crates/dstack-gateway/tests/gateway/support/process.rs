//! A gateway in a process of its own: this test program, started once more.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use clap::Parser as _;
use dstack_gateway::Settings;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};

/// Tells the run of a test that is to be a gateway from others.
const MARK: &str = "--test-threads=17";
/// What a gateway says once it serves.
const SERVES: &str = "the gateway serves";

/// A gateway.
pub(crate) struct Process {
    pub(crate) child: Child,
    log: Lines<BufReader<ChildStderr>>,
}

/// Ports and a directory for a gateway.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) http: SocketAddr,
    pub(crate) api: SocketAddr,
    arguments: Vec<String>,
}

impl Place {
    /// In this directory, at ports that nobody listens on.
    pub(crate) fn in_dir(dir: &Path) -> Self {
        let [http, https, api] = [free_address(), free_address(), free_address()];
        let arguments = [
            ("--dir", dir.display().to_string()),
            ("--http", http.to_string()),
            ("--https", https.to_string()),
            ("--api", api.to_string()),
        ];
        let arguments = arguments
            .into_iter()
            .flat_map(|(name, value)| [name.to_owned(), value]);
        Self {
            http,
            api,
            arguments: arguments.collect(),
        }
    }

    /// The one that takes over from who is there.
    pub(crate) fn taking_over(&self) -> Self {
        let mut next = self.clone();
        next.arguments.push("--take-over".to_owned());
        next
    }

    /// Starts a gateway, and waits until it serves.
    pub(crate) async fn start(&self) -> Process {
        let test = [
            "support::process::is_a_gateway",
            "--exact",
            "--nocapture",
            MARK,
            "--",
        ];
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(test)
            .args(&self.arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut process = Process { child, log };
        process.says(SERVES).await;
        process
    }
}

impl Process {
    /// Waits for a line of its log.
    pub(crate) async fn says(&mut self, text: &str) {
        loop {
            let line = super::soon(self.log.next_line()).await.unwrap();
            if line.expect("it ended").contains(text) {
                return;
            }
        }
    }
}

/// An address that nobody listens on.
fn free_address() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

#[test]
#[allow(clippy::exit)] // what tests print at their end would come last
fn is_a_gateway() {
    if !std::env::args().any(|argument| argument == MARK) {
        return;
    }
    let arguments = std::env::args().skip_while(|argument| argument != "--");
    let settings = Settings::try_parse_from(arguments).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ended = runtime.block_on(dstack_gateway::run(settings));
    std::process::exit(i32::from(ended.is_err()));
}
