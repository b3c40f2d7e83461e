//! The API of models: lists them, and answers chats and the like in the form of OpenAI's API.
//!
//! * `request` — what of a call is looked at; `choice` — which of the services of a model are asked, and in which order;
//!   `headers` — what of a call's headers a model gets, and of an answer's the client.
//! * `openai` — models whose API is that of OpenAI: all is passed on as it is.
//! * `tgi` — models of Text Generation Inference: chats become prompts, answers become OpenAI's. `template` makes the prompt, in a
//!   process of its own (`render`).
//! * `watched` — an answer on its way through: its tokens are counted (`usage`), and a stream that breaks says so.
//! * `events` — reads server-sent events; `failure` — what is answered instead.

mod choice;
mod events;
mod failure;
mod headers;
mod json;
mod list;
mod openai;
mod render;
mod request;
mod template;
mod tgi;
mod usage;
mod watched;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::Bytes;
use dstack_system::Random;
use dstack_system::clock::SharedClock;
use http::{HeaderMap, Response, StatusCode};

use self::failure::Failure;
use self::request::Asked;
use self::usage::Meter;
use crate::body::ProxyBody;
use crate::forward::Forward;
use crate::routes::{ChatFormat, Routes, Service};

pub use self::list::list;
pub use self::render::{Renderer, render_from_stdin};
pub use self::request::Endpoint;
pub use self::usage::{Accounting, NoAccounting, TokenUsage};

/// At most so many services of one name are asked for one call.
const MAX_SERVICES_ASKED: usize = 3;

/// Answers calls to models.
#[derive(Debug, Clone)]
pub struct ModelApi {
    forward: Arc<dyn Forward>,
    accounting: Arc<dyn Accounting>,
    renderer: Renderer,
    clock: SharedClock,
    random: Random,
}

/// A call of a client that may use the project.
#[derive(Debug)]
pub struct Call<'c> {
    /// Name of the project.
    pub project: &'c str,
    /// What a model is asked for.
    pub endpoint: Endpoint,
    /// As they came; the token among them goes no further.
    pub headers: &'c HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

impl ModelApi {
    /// Asks models through `forward`, and tells `accounting` what their answers took. Templates are rendered by `renderer`.
    pub fn new(
        forward: Arc<dyn Forward>,
        accounting: Arc<dyn Accounting>,
        renderer: Renderer,
        clock: SharedClock,
        random: Random,
    ) -> Self {
        Self {
            forward,
            accounting,
            renderer,
            clock,
            random,
        }
    }

    /// The answer of one of the services of the model that the call names.
    pub async fn answer(&self, routes: &Routes, call: Call<'_>) -> Response<ProxyBody> {
        let answered = self.of_a_service(routes, &call).await;
        answered.unwrap_or_else(Failure::into_response)
    }

    async fn of_a_service(&self, routes: &Routes, call: &Call<'_>) -> Result<Response<ProxyBody>, Failure> {
        let asked = Asked::read(call.endpoint, &call.body)?;
        let services = choice::services(routes, call.project, &asked.model, call.endpoint)?;
        let services = choice::in_order(services, &self.random).into_iter();
        let mut services = services.take(MAX_SERVICES_ASKED).peekable();
        while let Some(service) = services.next() {
            let chat = self.tgi_chat(&service, &asked, call).await?;
            let request = match &chat {
                Some(chat) => Ok(chat.request(call.headers)),
                None => openai::request(&service, call),
            }?;
            let response = self.forward.forward(&service, request).await;
            if is_away(response.status()) && services.peek().is_some() {
                continue;
            }
            let meter = Meter::new(service, Arc::clone(&self.accounting));
            return match chat {
                Some(chat) => chat.answer(response, meter).await,
                None => Ok(openai::answer(response, meter).await),
            };
        }
        Err(Failure::no_replica(call.project, &asked.model))
    }

    /// The chat as a model behind Text Generation Inference is asked for it; none where the model's API is OpenAI's.
    async fn tgi_chat(
        &self,
        service: &Service,
        asked: &Asked,
        call: &Call<'_>,
    ) -> Result<Option<tgi::Chat>, Failure> {
        let format = service.model.as_ref().map(|model| &model.format);
        let Some(ChatFormat::Tgi {
            chat_template,
            eos_token,
        }) = format
        else {
            return Ok(None);
        };
        let head = tgi::Head {
            id: format!("chatcmpl-{}", self.random.uuid().simple()),
            created: self.clock.now().to_jiff().as_second(),
            model: asked.model.clone(),
        };
        let chat = tgi::Chat::read(&self.renderer, head, chat_template, eos_token, &call.body).await;
        chat.map(Some)
    }
}

/// Whether another service may answer in the place of the one that said so.
fn is_away(status: StatusCode) -> bool {
    matches!(status, StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE)
}
