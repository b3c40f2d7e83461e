//! Asks a replica what a router must know of it before it is added (dstack 0.22.5: pipelines §14).

use std::collections::BTreeMap;
use std::time::Duration;

use dstack_agent_api::http::Connector;
use dstack_plan::services::workers::{Unfit, Worker, runtime_over_http, sglang_over_http};
use futures_util::future::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use http::{Response, StatusCode};
use hyper::body::Bytes;

use super::calls::Question;
use super::grpc;

/// Time for each question.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Most bytes of an answer.
pub(super) const MAX_ANSWER_BYTES: usize = 256 * 1024;

/// Why a replica is no worker in one of the ways in which it can be one.
#[derive(Debug, Clone)]
pub(super) struct NotYet {
    pub(super) why: String,
    /// It answers in this way. Else it may be still starting, or one in another way.
    answers: bool,
    /// It is something else, and stays so.
    pub(super) is_final: bool,
}

impl NotYet {
    pub(super) const fn known(why: String) -> Self {
        Self {
            why,
            answers: true,
            is_final: false,
        }
    }

    pub(super) const fn expected(why: String) -> Self {
        Self {
            why,
            answers: false,
            is_final: false,
        }
    }
}

/// The worker at this address, as a router is told of it: in the first way in which it answers.
///
/// # Errors
/// It does not answer yet, or is no worker that a router can use: why, for people.
pub(super) async fn inspect(replica: &dyn Connector, address: &str) -> Result<Worker, NotYet> {
    let ways = [
        over_http(replica, address).boxed(),
        grpc::sglang(replica, address).boxed(),
        grpc::vllm(replica, address).boxed(),
    ];
    let numbered = (0_u8..)
        .zip(ways)
        .map(|(way, asked)| asked.map(move |answer| (way, answer)));
    let mut under_way: FuturesUnordered<_> = numbered.collect();
    let mut failures: BTreeMap<u8, NotYet> = BTreeMap::new();
    while let Some((way, answer)) = under_way.next().await {
        match answer {
            Ok(worker) => return Ok(worker),
            Err(failure) => drop(failures.insert(way, failure)),
        }
    }
    let mut told = failures.values();
    let known = told.clone().find(|failure| failure.answers);
    let failure = known.or_else(|| told.next()).cloned();
    Err(failure.unwrap_or_else(|| NotYet::expected(String::new())))
}

async fn over_http(replica: &dyn Connector, address: &str) -> Result<Worker, NotYet> {
    let answer = ask(replica, "/v1/models").await.map_err(NotYet::expected)?;
    let models = match answer.status() {
        // Whatever this is, it may be a worker over gRPC.
        StatusCode::NOT_FOUND => return Err(NotYet::expected("GET /v1/models is answered 404".to_owned())),
        _ => body("/v1/models", answer)?,
    };
    runtime_over_http(&models).map_err(|unfit| match unfit {
        Unfit::Unreadable { .. } => NotYet::expected(unfit.to_string()),
        Unfit::VllmOverHttp | Unfit::UnknownRuntime(_) => NotYet {
            is_final: true,
            ..NotYet::known(unfit.to_string())
        },
        _ => NotYet::known(unfit.to_string()),
    })?;
    let mut path = "/server_info";
    let mut info = ask(replica, path).await.map_err(NotYet::known)?;
    if info.status() == StatusCode::NOT_FOUND {
        // SGLang before 0.5.6.
        path = "/get_server_info";
        info = ask(replica, path).await.map_err(NotYet::known)?;
    }
    let info = body(path, info)?;
    sglang_over_http(&info, address).map_err(|unfit| NotYet::known(unfit.to_string()))
}

async fn ask(replica: &dyn Connector, path: &str) -> Result<Response<Bytes>, String> {
    Question::get(path, MAX_ANSWER_BYTES, CALL_TIMEOUT)
        .ask(replica)
        .await
}

fn body(path: &str, answer: Response<Bytes>) -> Result<Bytes, NotYet> {
    match answer.status() {
        StatusCode::OK => Ok(answer.into_body()),
        status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => Err(NotYet::known(format!(
            "it answers GET {path} with {status}: it must not ask for an API key"
        ))),
        status => Err(NotYet::known(format!("it answers GET {path} with {status}"))),
    }
}
