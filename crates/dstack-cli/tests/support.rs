//! A server that answers from a list, and a command run in a home folder of its own against it.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::new_without_default,
    reason = "tests"
)]

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use dstack_cli::settings::Environment;
use dstack_cli::ui::{Captured, Ui};
use dstack_cli::{Context, execute};
use serde_json::{Value, json};
use tempfile::TempDir;

/// One expected request and its answer.
#[derive(Debug, Clone)]
pub struct Exchange {
    pub method: String,
    pub path: String,
    pub request: Option<Value>,
    pub status: u16,
    pub answer: Value,
}

impl Exchange {
    pub fn new(path: &str, answer: Value) -> Self {
        Self {
            method: "POST".to_owned(),
            path: path.to_owned(),
            request: None,
            status: 200,
            answer,
        }
    }

    pub fn refused(path: &str, status: u16, answer: Value) -> Self {
        Self {
            status,
            ..Self::new(path, answer)
        }
    }

    pub fn missing(path: &str) -> Self {
        Self::refused(
            path,
            400,
            json!({"detail": [{"msg": "Resource not found", "code": "resource_not_exists"}]}),
        )
    }
}

/// What was asked for.
#[derive(Debug, Clone)]
pub struct Asked {
    pub path: String,
    pub token: Option<String>,
    pub body: Value,
}

#[derive(Clone)]
struct Script {
    expected: Arc<Mutex<VecDeque<Exchange>>>,
    asked: Arc<Mutex<Vec<Asked>>>,
    problems: Arc<Mutex<Vec<String>>>,
}

pub struct FakeServer {
    pub url: String,
    script: Script,
}

impl FakeServer {
    pub async fn start(exchanges: Vec<Exchange>) -> Self {
        let script = Script {
            expected: Arc::new(Mutex::new(exchanges.into())),
            asked: Arc::default(),
            problems: Arc::default(),
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = Router::new().fallback(answer).with_state(script.clone());
        dstack_system::task::spawn(
            "fake-server",
            async move { axum::serve(listener, app).await.unwrap() },
        );
        Self { url, script }
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.script.asked.lock().unwrap().clone()
    }

    /// Fails when a request was unexpected or an expected one did not come.
    #[track_caller]
    pub fn assert_done(&self) {
        let problems = self.script.problems.lock().unwrap();
        assert!(problems.is_empty(), "{}", problems.join("\n"));
        let left = self.script.expected.lock().unwrap();
        assert!(
            left.is_empty(),
            "not asked for: {:?}",
            left.iter().map(|exchange| &exchange.path).collect::<Vec<_>>()
        );
    }
}

async fn answer(State(script): State<Script>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body: Bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let path = parts.uri.path().to_owned();
    let token = parts
        .headers
        .get(header::AUTHORIZATION)
        .map(|value| value.to_str().unwrap().to_owned());
    script.asked.lock().unwrap().push(Asked {
        path: path.clone(),
        token,
        body: body.clone(),
    });
    let mut problems = script.problems.lock().unwrap();
    let Some(expected) = script.expected.lock().unwrap().pop_front() else {
        problems.push(format!("unexpected request {path}"));
        return (StatusCode::NOT_FOUND, "unexpected").into_response();
    };
    if (parts.method.as_str(), path.as_str()) != (expected.method.as_str(), expected.path.as_str()) {
        problems.push(format!(
            "expected {} {}, got {} {path}",
            expected.method, expected.path, parts.method
        ));
    }
    if let Some(request) = &expected.request
        && let Some(difference) = difference("", request, &body)
    {
        problems.push(format!("{path}: {difference}"));
    }
    let json = [(header::CONTENT_TYPE, "application/json")];
    (
        StatusCode::from_u16(expected.status).unwrap(),
        json,
        expected.answer.to_string(),
    )
        .into_response()
}

/// Where two requests mean something else: unset and null are the same, so are false and unset.
fn difference(place: &str, expected: &Value, found: &Value) -> Option<String> {
    let unset = |value: &Value| matches!(value, Value::Null | Value::Bool(false));
    match (expected, found) {
        (Value::Object(expected), Value::Object(found)) => {
            // What the server sent comes back with the fields that the reference leaves out for older servers.
            let added = found
                .keys()
                .filter(|_| !place.starts_with("/plan/current_resource"));
            let keys = expected.keys().chain(added);
            keys.into_iter().find_map(|key| {
                let of = |map: &serde_json::Map<String, Value>| map.get(key).cloned().unwrap_or(Value::Null);
                difference(&format!("{place}/{key}"), &of(expected), &of(found))
            })
        }
        (Value::Array(expected), Value::Array(found)) if expected.len() == found.len() => {
            let pairs = expected.iter().zip(found).enumerate();
            pairs
                .into_iter()
                .find_map(|(index, (a, b))| difference(&format!("{place}/{index}"), a, b))
        }
        (Value::Number(a), Value::Number(b)) if a.as_f64() == b.as_f64() => None,
        (a, b) if a == b || (unset(a) && unset(b)) => None,
        (a, b) => Some(format!("{place}: expected {a}, got {b}")),
    }
}

/// A command line in a home folder of its own.
pub struct Cli {
    pub home: TempDir,
    pub env: Environment,
    pub columns: usize,
    pub input: String,
}

/// How a command ended.
#[derive(Debug)]
pub struct Ended {
    pub code: ExitCode,
    pub out: String,
    pub err: String,
}

impl Ended {
    #[track_caller]
    pub fn assert_code(&self, code: u8) {
        assert_eq!(self.code, ExitCode::from(code), "{self:?}");
    }
}

impl Cli {
    pub fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        Self {
            home,
            env: Environment::fixed([]),
            columns: 200,
            input: String::new(),
        }
    }

    /// With project `main` of a server as the default one.
    pub fn with_project(server: &FakeServer) -> Self {
        let cli = Self::new();
        let config = format!(
            "projects:\n- default: true\n  name: main\n  token: golden-admin-token\n  url: {}\n",
            server.url
        );
        cli.write(".dstack/config.yml", &config);
        cli
    }

    pub fn write(&self, name: &str, text: &str) {
        let path = self.home.path().join(name);
        fs_err::create_dir_all(path.parent().unwrap()).unwrap();
        fs_err::write(path, text).unwrap();
    }

    pub fn context(&self) -> (Context, Captured) {
        let (ui, captured) = Ui::captured(self.columns, &self.input);
        let home = self.home.path().to_owned();
        (
            Context {
                ui,
                env: self.env.clone(),
                folder: home.clone(),
                home,
            },
            captured,
        )
    }

    pub async fn run(&self, arguments: &[&str]) -> Ended {
        let (context, captured) = self.context();
        let arguments = std::iter::once("dstack")
            .chain(arguments.iter().copied())
            .map(OsString::from);
        let code = execute(&context, arguments).await;
        Ended {
            code,
            out: captured.out(),
            err: captured.err(),
        }
    }
}

/// The answer that was recorded in an exchange of `apply` of a task.
pub fn recorded_apply(file: &str) -> Value {
    recorded("apply-task", file)
}

/// What dstack 0.22.5 answered when a command was recorded.
pub fn recorded(flow: &str, file: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden/cli")
        .join(flow)
        .join(file);
    let mut exchange: Value = serde_json::from_str(&fs_err::read_to_string(path).unwrap()).unwrap();
    exchange["response"]["json"].take()
}

/// The recorded run in another state; `change` is made to its submission.
pub fn recorded_run(status: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut run = recorded_apply("03-project-runs-apply.json");
    run["status"] = status.into();
    run["status_message"] = status.into();
    let submission = &mut run["jobs"][0]["job_submissions"][0];
    submission["status"] = status.into();
    submission["status_message"] = status.into();
    change(submission);
    run["latest_job_submission"] = run["jobs"][0]["job_submissions"][0].clone();
    run
}
