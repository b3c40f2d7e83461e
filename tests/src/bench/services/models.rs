//! Calls of a model through the server, not streamed.

use anyhow::Result;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::upstream::{Connection, serve, whole};
use super::{LOAD, ROUNDS, Targets, serving, shown};
use crate::bench::measures::{Figure, ours_only};
use crate::bench::subject::Subject;
use crate::server::TOKEN;

/// Where the server is called.
pub(super) const CHAT: &str = "/proxy/models/main/chat/completions";

/// Where the service is.
pub(super) const DIRECT: &str = "/v1/chat/completions";

const ANSWER: &str = r#"{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"bench","choices":[{"index":0,"message":{"role":"assistant","content":"Hello! How can I help you today?"},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":19,"completion_tokens":9,"total_tokens":28}}"#;

pub(in crate::bench) fn models(subject: &Subject, _: usize) -> Result<Vec<Figure>> {
    ours_only(subject)?;
    let port = serve(answer)?;
    let server = serving(subject, port, &model())?;
    let call = call(false);
    let (mut through, mut direct) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        through.push(LOAD.run(server.port(), CHAT, Some(TOKEN), |_| call.clone())?);
        direct.push(LOAD.run(port, DIRECT, None, |_| call.clone())?);
    }
    let targets = Targets {
        rate: "≥ 10,000/s",
        p99: "–",
    };
    let clients = LOAD.clients;
    let name = format!("calls of a model (`chat/completions`), not streamed, {clients} clients");
    let mut figures = shown(&name, &targets, through);
    let without = format!("{name}, straight to the service");
    figures.extend(shown(&without, &Targets::NONE, direct));
    Ok(figures)
}

/// What makes a service one with a model.
pub(super) fn model() -> Value {
    json!({"model": "bench"})
}

/// The body of a call.
pub(super) fn call(stream: bool) -> String {
    let messages = json!([
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "Hello!"},
    ]);
    json!({"model": "bench", "messages": messages, "stream": stream, "max_tokens": 16}).to_string()
}

/// What the model says where it does not stream.
pub(super) fn message() -> Vec<u8> {
    whole("application/json", ANSWER.as_bytes())
}

async fn answer(stream: TcpStream) -> Result<()> {
    let mut connection = Connection::new(stream)?;
    let message = message();
    while connection.request().await?.is_some() {
        connection.send(&message).await?;
    }
    Ok(())
}
