//! Services and their answers, for tests.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use dstack_system::Locked;
use futures_util::stream;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::usage::{Accounting, TokenUsage};
use crate::body::{BoxError, ProxyBody, full, refusal};
use crate::forward::{Forward, NotReceived};
use crate::nowhere::Nowhere;
use crate::replica::Replica;
use crate::routes::{Balancing, ChatFormat, Model, Paths, Service};

/// A service of project `main` without a model and with a replica.
pub(super) fn plain_service(run: &str) -> Service {
    let id = run.bytes().fold(0, |id: u128, byte| (id << 8) | u128::from(byte));
    Service {
        run_id: Uuid::from_u128(id).into(),
        project: "main".to_owned(),
        run: run.to_owned(),
        created: 1,
        auth: true,
        strip_prefix: true,
        shares_origin: false,
        starts_on_request: false,
        split: None,
        paths: Paths::All,
        read_timeout: Duration::from_secs(60),
        model: None,
        balancing: Balancing::default(),
        replicas: replicas(1),
    }
}

fn replicas(count: u128) -> Vec<Arc<Replica>> {
    let replica = |id| Arc::new(Replica::new(Uuid::from_u128(id).into(), Arc::new(Nowhere)));
    (0..count).map(replica).collect()
}

/// A service with a model of format `openai`.
pub(super) fn openai_service(run: &str, model: &str, count: u128) -> Service {
    with_model(
        run,
        model,
        count,
        ChatFormat::OpenAi {
            prefix: "/v1".to_owned(),
        },
    )
}

/// A service with a model of format `tgi`.
pub(super) fn tgi_service(run: &str, model: &str) -> Service {
    let format = ChatFormat::Tgi {
        chat_template: "{% for message in messages %}<{{ message.role }}>{{ message.content }}{{ eos_token }}{% endfor %}".to_owned(),
        eos_token: "</s>".to_owned(),
    };
    with_model(run, model, 1, format)
}

pub(super) fn with_model(run: &str, model: &str, count: u128, format: ChatFormat) -> Service {
    Service {
        model: Some(Model {
            name: model.to_owned(),
            format,
        }),
        replicas: replicas(count),
        ..plain_service(run)
    }
}

/// What a service was asked.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) run: String,
    pub(super) replicas: usize,
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// Answers what it was told to, by run; otherwise that nobody has received the request.
#[derive(Debug, Default)]
pub(super) struct FakeForward {
    answers: Locked<HashMap<String, VecDeque<Response<ProxyBody>>>>,
    pub(super) received: Locked<Vec<Received>>,
}

impl FakeForward {
    pub(super) fn answers(&self, run: &str, response: Response<ProxyBody>) {
        self.answers
            .lock()
            .entry(run.to_owned())
            .or_default()
            .push_back(response);
    }
}

#[async_trait]
impl Forward for FakeForward {
    async fn forward(&self, service: &Service, request: Request<ProxyBody>) -> Response<ProxyBody> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        self.received.lock().push(Received {
            run: service.run.clone(),
            replicas: service.replicas.len(),
            method: head.method,
            path: head.uri.to_string(),
            headers: head.headers,
            body,
        });
        let next = self
            .answers
            .lock()
            .get_mut(&service.run)
            .and_then(VecDeque::pop_front);
        next.unwrap_or_else(not_received)
    }
}

fn not_received() -> Response<ProxyBody> {
    let mut response = refusal(StatusCode::SERVICE_UNAVAILABLE, "no replica");
    response.extensions_mut().insert(NotReceived);
    response
}

/// Remembers what was used.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) entries: Locked<Vec<(String, u64, u64)>>,
}

impl Accounting for Ledger {
    fn used(&self, service: &Service, usage: TokenUsage) {
        self.entries
            .lock()
            .push((service.run.clone(), usage.prompt, usage.completion));
    }
}

/// An answer that is there as a whole.
pub(super) fn answer(status: u16, kind: &'static str, body: impl Into<Bytes>) -> Response<ProxyBody> {
    let mut response = Response::new(full(body));
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Sends the pieces of an answer, or breaks it off.
pub(super) type Pieces = mpsc::Sender<Piece>;
type Piece = Result<&'static str, &'static str>;

/// An answer of events whose pieces come when they are sent.
pub(super) fn streamed() -> (Pieces, Response<ProxyBody>) {
    let (sender, receiver) = mpsc::channel(16);
    let frames = stream::unfold(receiver, |mut receiver: mpsc::Receiver<Piece>| async {
        let piece = receiver.recv().await?;
        let frame = piece
            .map(|text| Frame::data(Bytes::from(text)))
            .map_err(BoxError::from);
        Some((frame, receiver))
    });
    let mut response = answer(200, "text/event-stream; charset=utf-8", "");
    *response.body_mut() = StreamBody::new(frames).boxed_unsync();
    (sender, response)
}

/// The same answer with a body that never ends.
pub(super) fn endless(mut response: Response<ProxyBody>) -> Response<ProxyBody> {
    let frames = stream::repeat_with(|| Ok(Frame::data(Bytes::from_static(b"again and again "))));
    *response.body_mut() = StreamBody::new(frames).boxed_unsync();
    response
}
