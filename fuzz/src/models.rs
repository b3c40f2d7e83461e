//! The API of models in front of one that answers what it is told to.

use std::io;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use dstack_agent_api::http::{Connector, Wire};
use dstack_proxy::models::{Accounting, Call, Endpoint, ModelApi, Renderer, TokenUsage};
use dstack_proxy::{BoxError, ChatFormat, Forward, Model, ProxyBody, Routes, Service};
use dstack_system::{Random, VirtualClock};
use dstack_units::Time;
use futures_util::stream;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;

/// What every prompt becomes: that templates hold what they promise is another matter, and another process.
pub const PROMPT: &str = "prompt";

/// Which API the model has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// OpenAI's.
    OpenAi,
    /// That of Text Generation Inference.
    Tgi,
}

impl Format {
    /// The name of its model.
    pub const fn model(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Tgi => "tgi",
        }
    }

    fn service(self) -> Service {
        let format = match self {
            Self::OpenAi => ChatFormat::OpenAi {
                prefix: "/v1".to_owned(),
            },
            Self::Tgi => ChatFormat::Tgi {
                chat_template: String::new(),
                eos_token: "</s>".to_owned(),
            },
        };
        let model = Model {
            name: self.model().to_owned(),
            format,
        };
        Service {
            model: Some(model),
            ..crate::service(self as u128 + 1, Arc::new(Nowhere))
        }
    }
}

/// What a model answers.
#[derive(Debug, Clone)]
pub struct Answer<'a> {
    /// Of its body.
    pub content_type: &'static str,
    /// The whole body, before it is cut into pieces.
    pub bytes: &'a [u8],
    /// Bytes of each piece that it comes in; at least 1.
    pub piece_bytes: usize,
    /// It breaks off after that.
    pub breaks: bool,
}

/// What became of a call.
#[derive(Debug)]
pub struct Outcome {
    /// The bodies that models were asked with.
    pub asked: Vec<Bytes>,
    /// Of the answer.
    pub status: u16,
    /// What there was of it.
    pub body: Vec<u8>,
    /// It broke off.
    pub is_broken: bool,
    /// How often tokens were counted.
    pub counted: usize,
}

/// Calls the API.
pub fn call(endpoint: Endpoint, body: &[u8], answer: &Answer<'_>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let told = Arc::new(Told {
        content_type: answer.content_type,
        pieces: answer
            .bytes
            .chunks(answer.piece_bytes)
            .map(Bytes::copy_from_slice)
            .collect(),
        breaks: answer.breaks,
        asked: Mutex::default(),
    });
    let counter = Arc::new(Counter::default());
    let services = [Format::OpenAi, Format::Tgi].map(Format::service);
    let routes = Arc::new(services.into_iter().fold(Routes::default(), Routes::with));
    let api = ModelApi::new(
        Arc::clone(&told) as _,
        Arc::clone(&counter) as _,
        renderer(),
        Arc::new(VirtualClock::starting_at(Time::from_millis(1_700_000_000_000))),
        Random::seeded(1),
    );
    let (mut received, mut is_broken) = (Vec::new(), false);
    let status = runtime.block_on(async {
        let call = Call {
            project: "main",
            endpoint,
            headers: &HeaderMap::new(),
            body: Bytes::copy_from_slice(body),
        };
        let response = api.answer(&|| Arc::clone(&routes), call).await;
        let status = response.status().as_u16();
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            match frame {
                Ok(frame) => received.extend(frame.into_data().unwrap_or_default()),
                Err(_) => is_broken = true,
            }
        }
        status
    });
    let asked = told.asked.lock().unwrap().clone();
    let counted = *counter.0.lock().unwrap();
    Outcome {
        asked,
        status,
        body: received,
        is_broken,
        counted,
    }
}

/// Reads what it is given, as the real one does, and makes the same prompt of it.
fn renderer() -> Renderer {
    let make = format!("$ s/.*/{{\"Ok\":\"{PROMPT}\"}}/p");
    Renderer::new("/bin/sed", ["-n".into(), make.into()])
}

#[derive(Debug)]
struct Told {
    content_type: &'static str,
    pieces: Vec<Bytes>,
    breaks: bool,
    asked: Mutex<Vec<Bytes>>,
}

#[async_trait]
impl Forward for Told {
    async fn forward(&self, _: &Service, request: Request<ProxyBody>) -> Response<ProxyBody> {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        self.asked.lock().unwrap().push(body);
        let pieces = self.pieces.clone().into_iter().map(|piece| Ok(Frame::data(piece)));
        let end = self.breaks.then(|| Err(BoxError::from("the connection broke")));
        let body = StreamBody::new(stream::iter(pieces.chain(end))).boxed_unsync();
        let mut response = Response::new(body);
        let content_type = HeaderValue::from_static(self.content_type);
        response.headers_mut().insert(CONTENT_TYPE, content_type);
        response
    }
}

#[derive(Debug, Default)]
struct Counter(Mutex<usize>);

impl Accounting for Counter {
    fn used(&self, _: &Service, _: TokenUsage) {
        *self.0.lock().unwrap() += 1;
    }
}

#[derive(Debug)]
struct Nowhere;

#[async_trait]
impl Connector for Nowhere {
    async fn connect(&self) -> io::Result<Box<dyn Wire>> {
        Err(io::ErrorKind::ConnectionRefused.into())
    }
}
