//! A server that knows whose tokens are good, behind a socket.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path as UrlPath, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A server.
pub(crate) struct Server {
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

struct Shared {
    /// Status by project and token.
    answers: HashMap<(&'static str, &'static str), u16>,
    asked: watch::Sender<usize>,
    silent: watch::Sender<bool>,
}

impl Server {
    /// Says this to project and token, and 403 to others.
    pub(crate) fn start(dir: &Path, name: &str, answers: &[(&'static str, &'static str, u16)]) -> Self {
        let listener = UnixListener::bind(dir.join(format!("{name}.sock"))).unwrap();
        let answers = answers
            .iter()
            .map(|(project, token, status)| ((*project, *token), *status));
        let shared = Arc::new(Shared {
            answers: answers.collect(),
            asked: watch::Sender::new(0),
            silent: watch::Sender::new(false),
        });
        let router = Router::new()
            .route("/api/projects/{project}/get", post(get))
            .with_state(Arc::clone(&shared));
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { shared, serving }
    }

    /// Whether it takes questions and says nothing.
    pub(crate) fn is_silent(&self, silent: bool) {
        self.shared.silent.send_replace(silent);
    }

    /// How often it was asked.
    pub(crate) fn asked(&self) -> usize {
        *self.shared.asked.borrow()
    }

    /// Waits until it was asked so often.
    pub(crate) async fn is_asked(&self, count: usize) {
        let mut asked = self.shared.asked.subscribe();
        super::soon(asked.wait_for(|asked| *asked >= count))
            .await
            .unwrap();
    }

    /// Nobody answers at its socket any more, which is left behind.
    pub(crate) async fn gone(self) {
        self.serving.abort();
        let _ = self.serving.await;
    }
}

async fn get(
    State(shared): State<Arc<Shared>>,
    UrlPath(project): UrlPath<String>,
    headers: HeaderMap,
) -> StatusCode {
    shared.asked.send_modify(|asked| *asked += 1);
    let mut silent = shared.silent.subscribe();
    silent.wait_for(|silent| !silent).await.unwrap();
    let token = headers["authorization"].to_str().unwrap();
    let token = token.strip_prefix("Bearer ").unwrap();
    let mut answers = shared.answers.iter();
    let status = answers.find(|((one, of), _)| *one == project && *of == token);
    StatusCode::from_u16(status.map_or(403, |(_, status)| *status)).unwrap()
}
