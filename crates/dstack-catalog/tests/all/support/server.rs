//! A server on this machine that answers as a test tells it to.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use dstack_system::task;
use futures_util::{StreamExt, stream};

/// A request as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) method: String,
    /// Path and query.
    pub(crate) target: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }
}

/// How to answer.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    Status(u16),
    Body(Vec<u8>),
    /// With status and headers.
    Full(u16, Vec<(&'static str, String)>, Vec<u8>),
    /// Claims the whole and breaks off after so many bytes.
    Partial(Vec<u8>, usize),
    /// Never says anything.
    Silence,
}

impl From<&str> for Reply {
    fn from(text: &str) -> Self {
        Self::Body(text.as_bytes().to_vec())
    }
}

type Answer = Arc<dyn Fn(&Asked) -> Reply + Send + Sync>;

/// Serves until it is dropped with the test's runtime.
pub(crate) struct Server {
    pub(crate) url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    pub(crate) async fn start(answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let state: (Answer, _) = (Arc::new(answer), asked.clone());
        let app = Router::new().fallback(handle).with_state(state);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        drop(task::spawn("test.server", async move {
            axum::serve(listener, app).await.unwrap();
        }));
        Self { url, asked }
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

async fn handle(
    State((answer, seen)): State<(Answer, Arc<Mutex<Vec<Asked>>>)>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let headers = parts
        .headers
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()));
    let asked = Asked {
        method: parts.method.to_string(),
        target: parts.uri.to_string(),
        headers: headers.collect(),
        body: String::from_utf8(body.to_vec()).unwrap(),
    };
    seen.lock().unwrap().push(asked.clone());
    let builder = Response::builder();
    match answer(&asked) {
        Reply::Status(code) => builder
            .status(code)
            .body(Body::from("<html>sorry</html>"))
            .unwrap(),
        Reply::Body(bytes) => builder.body(Body::from(bytes)).unwrap(),
        Reply::Full(code, headers, bytes) => {
            let builder = headers
                .into_iter()
                .fold(builder.status(code), |builder, (name, value)| {
                    builder.header(name, value)
                });
            builder.body(Body::from(bytes)).unwrap()
        }
        Reply::Partial(bytes, sent) => {
            let length = bytes.len();
            let first = stream::iter([Ok::<_, std::io::Error>(Bytes::from(bytes[..sent].to_vec()))]);
            // Give the first bytes time to leave before the connection breaks.
            let then = stream::once(async {
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                Err(std::io::Error::other("broken off"))
            });
            builder
                .header("content-length", length)
                .body(Body::from_stream(first.chain(then)))
                .unwrap()
        }
        Reply::Silence => {
            let never = stream::pending::<Result<Bytes, Infallible>>();
            builder
                .status(StatusCode::OK)
                .body(Body::from_stream(never))
                .unwrap()
        }
    }
}
