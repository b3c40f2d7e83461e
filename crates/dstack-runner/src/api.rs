//! The runner's HTTP API.
//!
//! Conventions of dstack 0.22.5's agents: plain-text errors, a single newline for success without a body, JSON bodies
//! that end with a newline.

mod reply;
mod stream;
mod upload;
mod watch;

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{DefaultBodyLimit, Extension, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};
use http_body_util::LengthLimitError;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use dstack_agent_api::proof::{self, checked};
use dstack_agent_api::runner::{Ack, Healthcheck, JobStatus, LogEvent, PullResponse, RunnerState, SERVICE};
use dstack_agent_api::stream::StreamLine;
use dstack_sshd::ByteStream;
use dstack_system::task;

use crate::job;
use crate::shared::{Conflict, Core, JobSsh, chain};
use crate::spool::{Batch, Cursor};

use reply::{Error, empty, json};

/// Largest body of `POST /api/submit`. dstack 0.22.5's runner takes 1 MiB, which long commands exceed.
const MAX_JSON_BYTES: usize = 16 * 1024 * 1024;
/// A pull returns about so many bytes of log, and the rest next time.
const PULL_BYTES: usize = 16 * 1024 * 1024;

/// What the handlers need.
#[derive(Clone)]
pub struct Api {
    core: Arc<Core>,
    ssh: Arc<dyn JobSsh>,
}

/// The connection came through the runner's own SSH server: its client has a key of the job.
#[derive(Debug, Clone, Copy)]
struct ThroughSsh;

/// All routes. With a token ([`crate::TOKEN_VARIABLE`]) each of them wants it, also those that do not exist: other jobs of
/// the host reach this port as well.
pub fn router(core: Arc<Core>, ssh: Arc<dyn JobSsh>) -> Router {
    let api = Api { core, ssh };
    Router::new()
        .route("/api/healthcheck", get(healthcheck))
        .route("/api/metrics", get(metrics))
        .route("/api/submit", post(submit))
        .route("/api/upload_archive", post(upload::archive))
        .route("/api/upload_code", post(upload::code))
        .route("/api/run", post(run))
        .route("/api/pull", get(pull))
        .route("/api/stop", post(stop))
        .route("/api/stream", get(stream::stream))
        .route("/api/ack", post(ack))
        .route("/api/job", get(job_status))
        .route("/logs_ws", get(watch::logs_ws))
        .fallback(async || Error::new(StatusCode::NOT_FOUND, "404 page not found"))
        .method_not_allowed_fallback(async || {
            Error::new(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed")
        })
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(api.clone(), authorize))
        .with_state(api)
}

/// Serves one connection that came through the runner's SSH server.
pub async fn serve_through_ssh(router: Router, stream: Box<dyn ByteStream>) {
    let service = TowerToHyperService::new(router.layer(Extension(ThroughSsh)));
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    // A client that goes away is no event.
    let _ = connection.with_upgrades().await;
}

async fn authorize(State(api): State<Api>, request: Request, next: Next) -> Result<Response, Error> {
    let Some(gate) = &api.core.gate else {
        return Ok(next.run(request).await);
    };
    if let Some(challenge) = gate.challenge(request.method(), request.uri(), request.headers()) {
        return json(&challenge);
    }
    let watches = request.extensions().get::<ThroughSsh>().is_some() && request.uri().path() == "/logs_ws";
    if watches {
        return Ok(next.run(request).await);
    }
    let (parts, body) = request.into_parts();
    if !gate.admits(&parts) {
        return Err(Error::status(StatusCode::UNAUTHORIZED));
    }
    let nonce = proof::nonce(&parts.headers);
    let body = Body::new(checked(&parts.headers, body));
    let mut response = next.run(Request::from_parts(parts, body)).await;
    // Made last: the call may have taken long, and a challenge is good for a while only.
    if let Some(nonce) = nonce {
        gate.next_challenge(&nonce).into_answer(response.headers_mut());
    }
    Ok(response)
}

impl From<Conflict> for Error {
    fn from(_: Conflict) -> Self {
        Self::status(StatusCode::CONFLICT)
    }
}

async fn healthcheck() -> Result<Response, Error> {
    json(&Healthcheck {
        service: SERVICE.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    })
}

async fn metrics(State(api): State<Api>) -> Result<Response, Error> {
    let Some(collector) = &api.core.metrics else {
        return Err(Error::new(
            StatusCode::NOT_FOUND,
            "Metrics collector is not available",
        ));
    };
    match collector.collect(api.core.clock.now()).await {
        Ok(metrics) => json(&metrics),
        Err(error) => {
            api.core
                .log
                .error(format_args!("cannot collect metrics: {}", chain(&error)));
            Err(Error::internal())
        }
    }
}

async fn submit(State(api): State<Api>, headers: HeaderMap, body: Body) -> Result<Response, Error> {
    // A job that runs cannot be replaced: no need to read the body for that.
    if !matches!(api.core.state(), RunnerState::WaitSubmit | RunnerState::WaitRun) {
        return Err(Conflict.into());
    }
    api.core.submit(decode(&headers, body).await?)?;
    Ok(empty())
}

async fn run(State(api): State<Api>) -> Result<Response, Error> {
    let submitted = api.core.begin()?;
    // In a task of its own: a client that goes away must not leave a job half started.
    let started = task::spawn("start job", job::start(api.core, submitted, api.ssh)).await;
    match started.ok().flatten().flatten() {
        Some(info) => json(&info),
        None => Ok(empty()),
    }
}

#[derive(Deserialize)]
struct After {
    #[serde(default)]
    timestamp: Option<String>,
}

impl After {
    fn cursor(&self) -> Result<Cursor, Error> {
        let text = self
            .timestamp
            .as_deref()
            .filter(|text| !text.is_empty())
            .unwrap_or("0");
        match text.parse::<i64>() {
            Ok(timestamp) => Ok(Cursor::after(timestamp)),
            Err(_) => Err(Error::new(
                StatusCode::BAD_REQUEST,
                format!("timestamp {text:?} is not an integer"),
            )),
        }
    }
}

async fn pull(State(api): State<Api>, Query(from): Query<After>) -> Result<Response, Error> {
    let core = api.core;
    let mut cursor = from.cursor()?;
    // A server of dstack 0.22.5 acknowledges by asking for what follows. Whoever asks for what was never sent is answered
    // as there, but nothing is dropped for it.
    let acknowledged = core.ack(cursor.timestamp).is_ok();
    let spool = core.spool.clone();
    let (batch, cursor) = task::blocking("pull", move || {
        let batch = spool.read(&mut cursor, PULL_BYTES);
        (batch, cursor)
    })
    .await
    .map_err(|_| Error::internal())?;
    let has_more = !(batch.finished && batch.complete);
    let answer = pull_response(batch, cursor, core.inactivity.seconds(), has_more);
    if !has_more && acknowledged {
        core.served_server();
    }
    json(&answer)
}

fn pull_response(batch: Batch, cursor: Cursor, no_connections_secs: i64, has_more: bool) -> PullResponse {
    let mut answer = PullResponse {
        last_updated: if batch.complete {
            batch.last
        } else {
            cursor.timestamp
        },
        no_connections_secs: Some(no_connections_secs),
        has_more: Some(has_more),
        ..PullResponse::default()
    };
    for event in batch.events {
        match event {
            StreamLine::State(state) => answer.job_states.push(state),
            StreamLine::Log(log) => answer.job_logs.push(log),
            StreamLine::RunnerLog(log) => answer.runner_logs.push(log),
            // Pulls know no gaps: the mark stands in the job's log.
            StreamLine::Gap(gap) => answer.job_logs.push(LogEvent {
                message: format!("{gap}\n").into_bytes(),
                timestamp: gap.timestamp,
            }),
            StreamLine::Tick(_) | StreamLine::End(_) | StreamLine::Unknown => {}
        }
    }
    answer
}

async fn stop(State(api): State<Api>) -> Response {
    api.core.stop();
    empty()
}

async fn ack(State(api): State<Api>, headers: HeaderMap, body: Body) -> Result<Response, Error> {
    let ack: Ack = decode(&headers, body).await?;
    match api.core.ack(ack.timestamp) {
        Ok(()) => Ok(empty()),
        Err(error) => Err(Error::new(StatusCode::BAD_REQUEST, error.to_string())),
    }
}

async fn job_status(State(api): State<Api>) -> Result<Response, Error> {
    let status: JobStatus = api.core.status();
    json(&status)
}

/// A JSON body by the reference's rules.
async fn decode<T: DeserializeOwned>(headers: &HeaderMap, body: Body) -> Result<T, Error> {
    if let Some(content_type) = headers.get(header::CONTENT_TYPE) {
        let media_type = content_type
            .to_str()
            .unwrap_or_default()
            .split(';')
            .next()
            .unwrap_or_default()
            .trim();
        if !media_type.eq_ignore_ascii_case("application/json") {
            let message = "Content-Type header is not application/json";
            return Err(Error::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
    }
    let announced = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|length| length > MAX_JSON_BYTES) {
        return Err(too_large());
    }
    let bytes = to_bytes(body, MAX_JSON_BYTES)
        .await
        .map_err(|error| unreadable(&error))?;
    if bytes.is_empty() {
        return Err(Error::new(
            StatusCode::BAD_REQUEST,
            "Request body must not be empty",
        ));
    }
    serde_json::from_slice(&bytes).map_err(|error| {
        Error::new(
            StatusCode::BAD_REQUEST,
            format!("Request body is not the expected JSON: {error}"),
        )
    })
}

fn unreadable(error: &axum::Error) -> Error {
    if std::error::Error::source(error).is_some_and(<dyn std::error::Error>::is::<LengthLimitError>) {
        too_large()
    } else {
        Error::new(StatusCode::BAD_REQUEST, "Request body cannot be read")
    }
}

fn too_large() -> Error {
    Error::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "Request body must not be larger than 16MB",
    )
}

#[cfg(test)]
mod tests;
