//! A program that answers on a port.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::ws::{Message, WebSocket};
use axum::extract::{Request, State, WebSocketUpgrade};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{any, get, post};
use bytes::Bytes;
use futures_util::stream;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// A program that tells what it was asked.
pub(crate) struct App {
    pub(crate) port: u16,
    /// The pieces that `/stream` may still send.
    pub(crate) pieces: Arc<Semaphore>,
    serving: JoinHandle<()>,
}

#[derive(Clone)]
struct Shared {
    name: &'static str,
    pieces: Arc<Semaphore>,
}

impl App {
    pub(crate) async fn start(name: &'static str) -> Self {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let pieces = Arc::new(Semaphore::new(0));
        let shared = Shared {
            name,
            pieces: Arc::clone(&pieces),
        };
        let router = Router::new()
            .route("/stream", get(stream_pieces))
            .route("/ws", any(websocket))
            .route("/v1/chat/completions", post(chat))
            .fallback(echo)
            .with_state(shared);
        let serving = tokio::spawn(async move {
            axum::serve(listener, router).await.unwrap();
        });
        Self {
            port,
            pieces,
            serving,
        }
    }

    /// Ends it with all its connections.
    pub(crate) fn stop(&self) {
        self.serving.abort();
    }
}

impl Drop for App {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn echo(State(shared): State<Shared>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = body
        .collect()
        .await
        .map(|body| body.to_bytes().len())
        .unwrap_or(0);
    let headers: serde_json::Map<String, Value> = head
        .headers
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().into()))
        .collect();
    let said = json!({
        "app": shared.name, "method": head.method.as_str(), "path": head.uri.to_string(), "headers": headers, "body": body
    });
    (
        [("access-control-allow-origin", "https://own.example.com")],
        Json(said),
    )
        .into_response()
}

async fn chat(State(shared): State<Shared>) -> Response {
    let choice = json!({"index": 0, "message": {"role": "assistant", "content": shared.name}, "finish_reason": "stop"});
    Json(json!({"id": "c", "object": "chat.completion", "choices": [choice]})).into_response()
}

async fn stream_pieces(State(shared): State<Shared>) -> Response {
    let pieces = stream::unfold(shared.pieces, |pieces| async {
        pieces.acquire().await.ok()?.forget();
        Some((Ok::<_, std::io::Error>(Bytes::from_static(b"piece")), pieces))
    });
    Body::from_stream(pieces).into_response()
}

async fn websocket(upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(|mut socket: WebSocket| async move {
        while let Some(Ok(Message::Text(text))) = socket.recv().await {
            let _ = socket.send(Message::Text(format!("echo {text}").into())).await;
        }
    })
}
