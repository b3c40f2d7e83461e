//! The calls to an SMG router, with the limits of dstack 0.22.5 (pipelines §14; API of SMG: `GET`, `POST` and `DELETE /workers`).

use std::collections::HashMap;
use std::time::Duration;

use dstack_agent_api::http::Connector;
use dstack_plan::services::routers::{JOB_LABEL, Listed};
use dstack_plan::services::workers::Worker;
use dstack_proxy::exchange::{self, ExchangeError};
use http::header::{CONTENT_TYPE, HOST, USER_AGENT};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Time for a call to a router, connecting included.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of a router's list of workers.
const MAX_LIST_BYTES: usize = 2 * 1024 * 1024;
/// Most workers in it.
const MAX_WORKERS: usize = 8192;
/// Most bytes of other answers of a router.
const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// As much of an answer's text as is shown, in characters.
const MAX_SHOWN: usize = 200;

/// What of an id does not stand for itself in a path.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');

/// What a repetition of adding a worker is answered with: it is there, or is being added.
const ADDED_ALREADY: [&str; 2] = ["WORKER_ALREADY_EXISTS", "WORKER_CREATE_IN_PROGRESS"];

/// A request to a router or a replica whose answer is read as a whole, with the limits of that.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) body: Option<Vec<u8>>,
    pub(super) max_bytes: usize,
    pub(super) timeout: Duration,
}

impl Question {
    pub(super) fn get(path: &str, max_bytes: usize, timeout: Duration) -> Self {
        Self {
            method: Method::GET,
            path: path.to_owned(),
            body: None,
            max_bytes,
            timeout,
        }
    }

    /// Method and path.
    fn name(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    /// The answer, whatever its status.
    ///
    /// # Errors
    /// There is none, or not in time, or one that is too long: what came instead, for people.
    pub(super) async fn ask(self, connector: &dyn Connector) -> Result<Response<Bytes>, String> {
        let (name, timeout, max_bytes) = (self.name(), self.timeout, self.max_bytes);
        let request = self.request().map_err(|error| format!("{name}: {error}"))?;
        let answer = exchange::ask(connector, request, max_bytes);
        match tokio::time::timeout(timeout, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error @ ExchangeError::TooLarge(_))) => Err(format!("{name}: {error}")),
            Ok(Err(ExchangeError::NoAnswer(error))) => Err(format!("{name} is not answered: {error}")),
            Err(_) => Err(format!("{name} is not answered within {}s", timeout.as_secs())),
        }
    }

    fn request(self) -> Result<Request<Full<Bytes>>, http::Error> {
        let mut request = Request::builder()
            .method(self.method)
            .uri(self.path)
            .header(HOST, "localhost")
            .header(USER_AGENT, "dstack-server");
        if self.body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        request.body(Full::new(Bytes::from(self.body.unwrap_or_default())))
    }
}

/// The workers that a router has.
///
/// # Errors
/// It does not say, or not in the words of SMG.
pub(super) async fn list(router: &dyn Connector) -> Result<Vec<Listed>, String> {
    #[derive(Deserialize)]
    struct Workers {
        workers: Vec<Entry>,
    }
    #[derive(Deserialize)]
    struct Entry {
        id: String,
        url: String,
        labels: Option<HashMap<String, Value>>,
    }
    let question = Question::get("/workers", MAX_LIST_BYTES, CALL_TIMEOUT);
    let answer = question.ask(router).await?;
    if answer.status() != StatusCode::OK {
        return Err(unexpected("GET /workers", &answer));
    }
    let told: Workers = read("GET /workers", answer.body())?;
    if told.workers.len() > MAX_WORKERS {
        return Err(format!(
            "GET /workers is answered with more than {MAX_WORKERS} workers"
        ));
    }
    let listed = |entry: Entry| Listed {
        job: entry
            .labels
            .as_ref()
            .and_then(|labels| labels.get(JOB_LABEL)?.as_str()?.parse().ok()),
        id: entry.id,
        url: entry.url,
    };
    Ok(told.workers.into_iter().map(listed).collect())
}

/// Has the router add a worker; that it is there shows in its list.
///
/// # Errors
/// The router does not take it, or does not answer.
pub(super) async fn add(router: &dyn Connector, worker: &Worker) -> Result<(), String> {
    #[derive(Deserialize)]
    struct Conflict {
        code: String,
    }
    let body = serde_json::to_vec(worker).map_err(|error| error.to_string())?;
    let question = Question {
        method: Method::POST,
        path: "/workers".to_owned(),
        body: Some(body),
        max_bytes: MAX_ANSWER_BYTES,
        timeout: CALL_TIMEOUT,
    };
    let answer = question.ask(router).await?;
    if answer.status() == StatusCode::CONFLICT
        && let Ok(conflict) = read::<Conflict>("POST /workers", answer.body())
        && ADDED_ALREADY.contains(&conflict.code.as_str())
    {
        return Ok(());
    }
    accepted("POST /workers", &answer)
}

/// Has the router remove a worker; that it is gone shows in its list.
///
/// # Errors
/// The router does not do it, or does not answer.
pub(super) async fn remove(router: &dyn Connector, id: &str) -> Result<(), String> {
    let question = Question {
        method: Method::DELETE,
        // Whatever an id consists of, it is one part of the path.
        path: format!("/workers/{}", utf8_percent_encode(id, ESCAPED)),
        body: None,
        max_bytes: MAX_ANSWER_BYTES,
        timeout: CALL_TIMEOUT,
    };
    let answer = question.ask(router).await?;
    match answer.status() {
        // Another server was first.
        StatusCode::NOT_FOUND => Ok(()),
        _ => accepted("DELETE /workers", &answer),
    }
}

fn accepted(call: &str, answer: &Response<Bytes>) -> Result<(), String> {
    #[derive(Deserialize)]
    struct Accepted {
        status: String,
    }
    if answer.status() != StatusCode::ACCEPTED {
        return Err(unexpected(call, answer));
    }
    match read::<Accepted>(call, answer.body())?.status.as_str() {
        "accepted" => Ok(()),
        other => Err(format!("{call} is answered with status {:?}", shown(other))),
    }
}

fn read<T: DeserializeOwned>(call: &str, body: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body)
        .map_err(|error| format!("{call} is not answered as an SMG router does: {error}"))
}

fn unexpected(call: &str, answer: &Response<Bytes>) -> String {
    let text = String::from_utf8_lossy(answer.body());
    match text.trim() {
        "" => format!("{call} is answered {}", answer.status()),
        text => format!("{call} is answered {}: {}", answer.status(), shown(text)),
    }
}

/// In one line of bounded length.
fn shown(text: &str) -> String {
    let line = text
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter });
    line.take(MAX_SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use std::io;

    use async_trait::async_trait;
    use dstack_agent_api::http::Wire;
    use dstack_system::task;
    use tokio::time::Instant;

    use super::*;

    /// Takes what it is told, and says nothing.
    #[derive(Debug)]
    struct Silent;

    #[async_trait]
    impl Connector for Silent {
        async fn connect(&self) -> io::Result<Box<dyn Wire>> {
            let (ours, theirs) = tokio::io::duplex(4096);
            task::spawn("silent router", async move {
                let _theirs = theirs;
                std::future::pending::<()>().await;
            });
            Ok(Box::new(ours))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_router_is_given_up_after_a_while() {
        let began = Instant::now();
        let answer = list(&Silent).await.unwrap_err();
        assert_eq!(
            (answer.as_str(), began.elapsed()),
            ("GET /workers is not answered within 10s", CALL_TIMEOUT)
        );
        assert!(remove(&Silent, "a").await.is_err());
    }
}
