//! A server that knows whose tokens are good, behind a socket.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path as UrlPath, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

/// A server.
pub(crate) struct Server {
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

struct Shared {
    /// Status by project and token.
    answers: HashMap<(&'static str, &'static str), u16>,
    asked: AtomicUsize,
    takes: Duration,
}

impl Server {
    /// Says this to project and token, and 403 to others.
    pub(crate) fn start(dir: &Path, name: &str, answers: &[(&'static str, &'static str, u16)]) -> Self {
        Self::start_slow(dir, name, answers, Duration::ZERO)
    }

    /// Same, and takes so long for each answer.
    pub(crate) fn start_slow(
        dir: &Path,
        name: &str,
        answers: &[(&'static str, &'static str, u16)],
        takes: Duration,
    ) -> Self {
        let listener = UnixListener::bind(dir.join(format!("{name}.sock"))).unwrap();
        let answers = answers
            .iter()
            .map(|(project, token, status)| ((*project, *token), *status));
        let shared = Arc::new(Shared {
            answers: answers.collect(),
            asked: AtomicUsize::new(0),
            takes,
        });
        let router = Router::new()
            .route("/api/projects/{project}/get", post(get))
            .with_state(Arc::clone(&shared));
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { shared, serving }
    }

    /// How often it was asked.
    pub(crate) fn asked(&self) -> usize {
        self.shared.asked.load(Ordering::Relaxed)
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
    shared.asked.fetch_add(1, Ordering::Relaxed);
    tokio::time::sleep(shared.takes).await;
    let token = headers["authorization"].to_str().unwrap();
    let token = token.strip_prefix("Bearer ").unwrap();
    let mut answers = shared.answers.iter();
    let status = answers.find(|((one, of), _)| *one == project && *of == token);
    StatusCode::from_u16(status.map_or(403, |(_, status)| *status)).unwrap()
}
