//! Models behind Text Generation Inference: a chat becomes a prompt, and what the model generates the next message.

mod chunks;
mod completion;
mod payload;
mod stop;

use std::collections::VecDeque;

use bytes::Bytes;
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use serde::Deserialize;
use serde_json::Value;

use self::chunks::{Chunks, StreamError};
use self::payload::Payload;
use super::events::EventReader;
use super::failure::Failure;
use super::headers::X_ACCEL_BUFFERING;
use super::json::{data_of, json_response, read_text, read_whole};
use super::openai::post;
use super::render::{self, Renderer};
use super::template::TemplateError;
use super::usage::Meter;
use crate::body::{BoxError, ProxyBody};

/// What the answers to a chat have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Head {
    /// Id of the answer.
    pub(super) id: String,
    /// Now, in seconds since 1970.
    pub(super) created: i64,
    /// Name of the model.
    pub(super) model: String,
}

/// A chat, ready to be sent.
#[derive(Debug)]
pub(super) struct Chat {
    head: Head,
    payload: Payload,
    body: Bytes,
}

/// Bytes of a whole answer at most.
const MAX_ANSWER_BYTES: usize = 16 * 1024 * 1024;

impl Chat {
    /// Reads the body of a call.
    ///
    /// # Errors
    /// A member is wrong, or the template does not take the chat.
    pub(super) async fn read(
        renderer: &Renderer,
        head: Head,
        chat_template: &str,
        eos_token: &str,
        body: &[u8],
    ) -> Result<Self, Failure> {
        let (payload, messages) = Payload::read(body, eos_token)?;
        let chat = render::Chat {
            template: chat_template.to_owned(),
            eos_token: eos_token.to_owned(),
            messages,
        };
        let prompt = renderer.prompt(&chat).await.map_err(|error| match error {
            TemplateError::Program(_) => Failure::upstream(error.to_string()),
            refused => Failure::bad_request(refused.to_string()),
        })?;
        let body = Bytes::from(payload.to_json(&prompt).to_string());
        Ok(Self { head, payload, body })
    }

    /// What the service is asked.
    pub(super) fn request(&self, client: &HeaderMap) -> Request<ProxyBody> {
        let path = match self.payload.stream {
            true => "/generate_stream",
            false => "/generate",
        };
        post(Uri::from_static(path), client, self.body.clone())
    }

    /// What the client gets.
    ///
    /// # Errors
    /// The model refuses, or its answer is none of Text Generation Inference.
    pub(super) async fn answer(
        self,
        response: Response<ProxyBody>,
        meter: Meter,
    ) -> Result<Response<ProxyBody>, Failure> {
        let (head, body) = response.into_parts();
        if head.status != StatusCode::OK {
            return Err(refused(head.status, &read_text(body).await));
        }
        match self.payload.stream {
            true => self.streamed(body, meter).await,
            false => self.whole(body, &meter).await,
        }
    }

    async fn whole(self, body: ProxyBody, meter: &Meter) -> Result<Response<ProxyBody>, Failure> {
        let read = read_whole(body, MAX_ANSWER_BYTES).await;
        let bytes = read.map_err(|error| broke_off(&error))?;
        let (value, usage) = completion::completion(&self.head, &self.payload.stop, &bytes)?;
        meter.used(usage);
        Ok(json_response(StatusCode::OK, &value))
    }

    /// The first event is awaited: until then there is a status to tell errors with.
    async fn streamed(self, body: ProxyBody, meter: Meter) -> Result<Response<ProxyBody>, Failure> {
        let chunks = Chunks::new(self.head, self.payload.stop, self.payload.include_usage);
        let mut events = Events {
            body,
            reader: EventReader::default(),
            chunks,
            meter,
            waiting: VecDeque::new(),
            is_over: false,
        };
        if let Some(first) = events.next().await.transpose()? {
            events.waiting.push_front(first);
        }
        let frames = stream::unfold(events, |mut events| async {
            let next = events.next().await?;
            let bytes = next.unwrap_or_else(Failure::into_event);
            Some((Ok::<_, BoxError>(Frame::data(bytes)), events))
        });
        let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert(X_ACCEL_BUFFERING, HeaderValue::from_static("no"));
        Ok(response)
    }
}

/// What the model generates, as the client gets it.
struct Events {
    body: ProxyBody,
    reader: EventReader,
    chunks: Chunks,
    meter: Meter,
    /// Ready to be sent.
    waiting: VecDeque<Bytes>,
    is_over: bool,
}

impl Events {
    /// The next events for the client, as they come; after a failure there are none.
    async fn next(&mut self) -> Option<Result<Bytes, Failure>> {
        loop {
            if let Some(bytes) = self.waiting.pop_front() {
                return Some(Ok(bytes));
            }
            if self.is_over {
                return None;
            }
            if let Err(failure) = self.advance().await {
                self.is_over = true;
                // What came before it comes first: there is a status no more.
                if self.waiting.is_empty() {
                    return Some(Err(failure));
                }
                self.waiting.push_back(failure.into_event());
            }
        }
    }

    /// Reads one more piece of the model's answer.
    async fn advance(&mut self) -> Result<(), Failure> {
        let events = match self.body.frame().await {
            Some(Ok(frame)) => self
                .reader
                .push(data_of(&frame))
                .map_err(|error| Failure::upstream(error.to_string()))?,
            Some(Err(error)) => return Err(broke_off(&error)),
            None => {
                self.is_over = true;
                self.reader.finish().into_iter().collect()
            }
        };
        for event in events {
            if self.chunks.is_finished() {
                break;
            }
            self.take(&event)?;
        }
        match self.is_over && !self.chunks.is_finished() {
            true => Err(Failure::upstream("The model ended its answer too early")),
            false => Ok(()),
        }
    }

    fn take(&mut self, event: &str) -> Result<(), Failure> {
        let taken = self.chunks.take(event);
        let chunk = taken.map_err(|error| match error {
            StreamError::Refused { kind, message } => {
                Failure::of_model(status_of(&kind), Some(&kind), &message)
            }
            StreamError::Invalid(failure) => failure,
        })?;
        self.waiting.extend(chunk.text);
        if let Some(usage) = chunk.usage {
            self.meter.used(usage);
        }
        self.is_over |= self.chunks.is_finished();
        Ok(())
    }
}

fn broke_off(error: &dyn std::fmt::Display) -> Failure {
    Failure::upstream(format!("The model's answer broke off: {error}"))
}

/// Its errors: `{"error": TEXT, "error_type": KIND}`.
#[derive(Debug, Deserialize)]
struct Refusal {
    error: String,
    error_type: Option<String>,
}

fn refused(status: StatusCode, text: &str) -> Failure {
    if let Ok(Refusal { error, error_type }) = serde_json::from_str(text) {
        return Failure::of_model(status, error_type.as_deref(), &error);
    }
    let message = match serde_json::from_str::<Value>(text) {
        // What stands between the server and the model says it so.
        Ok(Value::Object(map)) if map.get("detail").is_some_and(Value::is_string) => map
            .get("detail")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned(),
        _ if text.trim().is_empty() => format!("The model answered {status}"),
        _ => text.to_owned(),
    };
    Failure::of_model(status, None, &message)
}

/// The status that goes with a kind of error which came in a stream.
fn status_of(kind: &str) -> StatusCode {
    match kind {
        "validation" => StatusCode::UNPROCESSABLE_ENTITY,
        "overloaded" => StatusCode::TOO_MANY_REQUESTS,
        "generation" => StatusCode::FAILED_DEPENDENCY,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
