mod choosing;
mod passing;
mod tgi;

use std::sync::Arc;

use bytes::Bytes;
use dstack_system::{Random, VirtualClock};
use dstack_units::Time;
use http::{HeaderMap, Response};
use http_body_util::BodyExt;
use serde_json::Value;

use super::fake::{FakeForward, Ledger};
use super::render::tests::renderer;
use super::{Call, Endpoint, ModelApi};
use crate::body::ProxyBody;
use crate::routes::{Routes, Service};

/// An API in front of services that answer as they are told.
struct Setup {
    forward: Arc<FakeForward>,
    ledger: Arc<Ledger>,
    routes: Routes,
    api: ModelApi,
}

impl Setup {
    fn new(services: impl IntoIterator<Item = Service>) -> Self {
        let (forward, ledger) = (Arc::<FakeForward>::default(), Arc::<Ledger>::default());
        let clock = VirtualClock::starting_at(Time::from_millis(1_700_000_000_000));
        let api = ModelApi::new(
            Arc::clone(&forward) as _,
            Arc::clone(&ledger) as _,
            renderer(),
            Arc::new(clock),
            Random::seeded(1),
        );
        Self {
            forward,
            ledger,
            routes: services.into_iter().fold(Routes::default(), Routes::with),
            api,
        }
    }

    async fn ask(&self, endpoint: Endpoint, headers: &HeaderMap, body: &'static str) -> Response<ProxyBody> {
        let call = Call {
            project: "main",
            endpoint,
            headers,
            body: Bytes::from_static(body.as_bytes()),
        };
        self.api.answer(&self.routes, call).await
    }

    async fn chat(&self, body: &'static str) -> Response<ProxyBody> {
        self.ask(Endpoint::ChatCompletions, &HeaderMap::new(), body).await
    }
}

const CHAT: &str = r#"{"model": "m", "messages": [{"role": "user", "content": "hi"}]}"#;
const STREAMED_CHAT: &str =
    r#"{"model": "m", "stream": true, "messages": [{"role": "user", "content": "hi"}]}"#;

/// The status and the whole body.
async fn whole(response: Response<ProxyBody>) -> (u16, String) {
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(bytes.to_vec()).unwrap())
}

async fn json(response: Response<ProxyBody>) -> (u16, Value) {
    let (status, text) = whole(response).await;
    (status, serde_json::from_str(&text).unwrap())
}

/// The next piece of a body.
async fn piece(body: &mut ProxyBody) -> String {
    let frame = body.frame().await.unwrap().unwrap();
    String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
}

/// Calls are answered in tasks of the server: their futures are sent between threads, and outlive nothing borrowed.
#[tokio::test]
async fn calls_are_answered_in_tasks_of_their_own() {
    let setup = Setup::new([]);
    let answered = dstack_system::task::spawn("call", async move { setup.chat(CHAT).await.status() });
    assert_eq!(answered.await.unwrap().unwrap(), 404);
}
