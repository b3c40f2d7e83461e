//! Models behind Text Generation Inference: a chat becomes a prompt, and what the model generates the next message.

mod chunks;
mod completion;
mod payload;
mod stop;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use dstack_system::task;
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use self::chunks::{Chunks, StreamError};
use self::payload::Payload;
use super::events::EventReader;
use super::failure::Failure;
use super::headers::{self, X_ACCEL_BUFFERING};
use super::json::{data_of, json_response, read_text, read_whole};
use super::openai::post;
use super::render::{self, Renderer};
use super::request::wrong;
use super::template::PromptError;
use super::usage::Meter;
use crate::body::{BoxError, ProxyBody, empty};

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

/// Bytes of a call at most: there are no pictures in it.
const MAX_CALL_BYTES: usize = 2 * 1024 * 1024;
/// Bytes of a whole answer at most.
const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;
/// What may come of a stream after its last event: so many bytes, for so long.
const MAX_REST_BYTES: usize = 64 * 1024;
const MAX_REST_TIME: Duration = Duration::from_secs(1);

impl Chat {
    /// Reads the body of a call.
    ///
    /// # Errors
    /// A member is wrong, or the template does not take the chat.
    pub(super) async fn read(
        renderer: &Renderer,
        project: &str,
        head: Head,
        chat_template: &str,
        eos_token: &str,
        body: &[u8],
    ) -> Result<Self, Failure> {
        if body.len() > MAX_CALL_BYTES {
            return Err(Failure::too_large(format!(
                "Models of format tgi take calls of at most {MAX_CALL_BYTES} bytes"
            )));
        }
        let (payload, messages) = Payload::read(body, eos_token)?;
        let chat = render::Chat {
            template: chat_template.into(),
            eos_token: eos_token.into(),
            messages,
        };
        let prompt = renderer.prompt(project, &chat).await;
        let prompt = prompt.map_err(|error| no_prompt(&error, messages))?;
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
            let refused = refused(head.status, &read_text(body).await);
            return Err(refused.with_headers(headers::of_error(head.headers)));
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
                self.body = empty();
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
        let chunk = match self.chunks.take(event) {
            Ok(chunk) => chunk,
            Err(StreamError::Refused { kind, message }) => {
                self.end();
                return Err(Failure::of_model(status_of(&kind), Some(&kind), &message));
            }
            Err(StreamError::Invalid(failure)) => return Err(failure),
        };
        self.waiting.extend(chunk.text);
        if let Some(usage) = chunk.usage {
            self.meter.used(usage);
        }
        if self.chunks.is_finished() {
            self.end();
        }
        Ok(())
    }

    /// This was the model's last event. That its answer ends is not for the client to wait for: some go at the last event.
    fn end(&mut self) {
        self.is_over = true;
        let rest = std::mem::replace(&mut self.body, empty());
        task::spawn("end of a model's answer", read_to_end(rest));
    }
}

/// A connection whose answer was not read to its end is not used again.
async fn read_to_end(body: ProxyBody) {
    let end = read_whole(body, MAX_REST_BYTES);
    // Not every answer ends.
    let _ = tokio::time::timeout(MAX_REST_TIME, end).await;
}

fn no_prompt(error: &PromptError, messages: &RawValue) -> Failure {
    let text = error.to_string();
    match error {
        PromptError::NoMessages => wrong("messages", "list_type", &text, messages),
        PromptError::Busy => Failure::busy(text),
        PromptError::Program(_) => Failure::upstream(text),
        PromptError::NotOnlyText
        | PromptError::Compile(_)
        | PromptError::Render(_)
        | PromptError::TooMuch => Failure::bad_request(text),
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
