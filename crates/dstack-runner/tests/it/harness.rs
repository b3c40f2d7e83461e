//! A runner in this process, on ports of its own, leaving the system alone.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use clap::Parser;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use dstack_agent_api::http::TcpConnector;
use dstack_agent_api::runner::{JobState, JobStateEvent, SubmitBody};
use dstack_agent_api::runner_client::RunnerClient;
use dstack_agent_api::stream::StreamLine;
use dstack_runner::RunnerArgs;
use dstack_runner::args::RunnerCommand;
use dstack_runner::log::Level;
use dstack_runner::runner::{Runner, RunnerError};
use dstack_system::task;

pub(crate) struct TestRunner {
    pub(crate) client: RunnerClient,
    pub(crate) port: u16,
    pub(crate) signals: mpsc::Sender<()>,
    pub(crate) finished: JoinHandle<Option<Result<(), RunnerError>>>,
    pub(crate) dir: tempfile::TempDir,
}

/// A runner that was not told to live its life yet.
pub(crate) async fn started(flags: &[&str], token: Option<&str>) -> (Runner, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (temp, state, ports) = (path("temp"), path("state"), path("ports.json"));
    let own = [
        "dstack-runner",
        "start",
        "--http-address",
        "127.0.0.1",
        "--http-port",
        "0",
        "--ssh-port",
        "0",
        "--no-profile",
        "--temp-dir",
        &temp,
        "--state-dir",
        &state,
        "--port-file",
        &ports,
    ];
    let args = RunnerArgs::try_parse_from([&own, flags].concat()).unwrap();
    let RunnerCommand::Start(start) = args.command else {
        panic!("not start")
    };
    let runner = Runner::start(Level::Info, &start, token.map(Into::into), false)
        .await
        .unwrap();
    (runner, dir)
}

impl TestRunner {
    pub(crate) async fn start() -> Self {
        Self::with(&[], None).await
    }

    pub(crate) async fn with(flags: &[&str], token: Option<&str>) -> Self {
        let (runner, dir) = started(flags, token).await;
        let port = runner.http_port();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut client = RunnerClient::new(Arc::new(TcpConnector { address }));
        if let Some(token) = token {
            client = client.with_token(token.into());
        }
        let (signals, received) = mpsc::channel(1);
        let finished = task::spawn("runner", runner.finish(received));
        Self {
            client,
            port,
            signals,
            finished,
            dir,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Submits and starts `sh -c <script>`.
    pub(crate) async fn run_script(&self, script: &str) {
        self.run(self.spec(script)).await;
    }

    /// The job's specification for a script, in a directory of its own.
    pub(crate) fn spec(&self, script: &str) -> Value {
        let work = self.path("work");
        json!({"commands": ["/bin/sh", "-c", script], "working_dir": work, "repo_dir": work, "jobs_per_replica": 1})
    }

    pub(crate) async fn run(&self, spec: Value) {
        self.run_body(body(&spec)).await;
    }

    pub(crate) async fn run_body(&self, body: SubmitBody) {
        self.client.submit(&body).await.unwrap();
        self.client.run().await.unwrap();
    }

    /// Everything until the end.
    pub(crate) async fn events(&self) -> Vec<StreamLine> {
        self.events_after(0).await
    }

    pub(crate) async fn events_after(&self, cursor: i64) -> Vec<StreamLine> {
        let mut stream = self.client.stream(cursor).await.unwrap();
        let mut events = Vec::new();
        while let Some(line) = stream.next().await.unwrap() {
            if !matches!(line, StreamLine::Tick(_)) {
                events.push(line);
            }
        }
        assert!(
            matches!(events.pop(), Some(StreamLine::End(_))),
            "the stream must end with its end"
        );
        events
    }

    /// Waits until the job's log holds the text.
    pub(crate) async fn wait_for_log(&self, text: &str) {
        let mut stream = self.client.stream(0).await.unwrap();
        let mut log = String::new();
        while !log.contains(text) {
            match stream.next().await.unwrap() {
                Some(StreamLine::Log(event)) => log.push_str(&String::from_utf8_lossy(&event.message)),
                Some(_) => {}
                None => panic!("the job ended without {text:?}: {log}"),
            }
        }
    }

    /// Runs a script to its end: log and last state.
    pub(crate) async fn outcome(&self, script: &str) -> (String, JobStateEvent) {
        self.run_script(script).await;
        let events = self.events().await;
        (log_of(&events), last_state(&events))
    }

    /// Sends raw bytes and reads the answer until the connection closes: head and body.
    pub(crate) async fn raw(&self, request: &str) -> (String, String) {
        raw(
            TcpStream::connect(("127.0.0.1", self.port)).await.unwrap(),
            request,
        )
        .await
    }

    /// A request with some header lines and a body.
    pub(crate) async fn call(&self, method_path: &str, headers: &str, body: &str) -> (String, String) {
        let length = body.len();
        let request = format!(
            "{method_path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
        );
        self.raw(&request).await
    }
}

pub(crate) async fn raw<S: AsyncReadExt + AsyncWriteExt + Unpin>(
    mut stream: S,
    request: &str,
) -> (String, String) {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_lowercase(), body.to_owned())
}

/// The body of a submit with this job specification, `null` wherever the server sends it.
pub(crate) fn body(spec: &Value) -> SubmitBody {
    serde_json::from_value(json!({
        "run": {"id": "run-id", "run_spec": {"run_name": "test-run", "repo_id": "repo-id", "repo_data": null,
            "configuration": {"type": "task"}, "configuration_path": null}},
        "job_spec": spec, "job_submission": {"id": "job-id"}, "cluster_info": null, "secrets": {},
        "repo_credentials": null, "log_quota_hour": null
    }))
    .unwrap()
}

pub(crate) fn log_of(events: &[StreamLine]) -> String {
    let bytes: Vec<u8> = events
        .iter()
        .filter_map(|event| {
            if let StreamLine::Log(log) = event {
                Some(log.message.as_slice())
            } else {
                None
            }
        })
        .collect::<Vec<_>>()
        .concat();
    String::from_utf8(bytes).unwrap()
}

pub(crate) fn states(events: &[StreamLine]) -> Vec<JobStateEvent> {
    let state = |event: &StreamLine| {
        if let StreamLine::State(state) = event {
            Some(state.clone())
        } else {
            None
        }
    };
    events.iter().filter_map(state).collect()
}

pub(crate) fn last_state(events: &[StreamLine]) -> JobStateEvent {
    let mut state = states(events).pop().expect("a state");
    state.timestamp = 0;
    state
}

pub(crate) fn state(state: JobState, exit_status: Option<i32>) -> JobStateEvent {
    JobStateEvent {
        state,
        exit_status,
        ..JobStateEvent::default()
    }
}

pub(crate) fn ended(reason: &str, message: &str, state: JobState) -> JobStateEvent {
    JobStateEvent {
        state,
        termination_reason: reason.to_owned(),
        termination_message: message.to_owned(),
        ..JobStateEvent::default()
    }
}

pub(crate) fn is_root() -> bool {
    rustix::process::getuid().is_root()
}
