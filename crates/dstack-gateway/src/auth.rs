//! Who may use a project: servers know, and are asked over the sockets that they open here. Their answers hold for a minute; while no
//! server can be asked, or none answers quickly, who was let in during the last ten minutes still is.

mod cache;
mod servers;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dstack_system::{Locked, Random, task};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, StatusCode};
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use cache::{Cache, Known, Slot, Turn};
use servers::{AskError, Servers};

/// What those are told who may not.
const DENIED: &str = "Unauthenticated or unauthorized";
/// What those are told of whom nothing is known.
const UNKNOWN: &str = "The token cannot be checked now";

/// An answer of a server holds for so long.
const FRESH: Duration = Duration::from_secs(60);
/// While no server can be asked, those who were let in still are for so long.
const STALE: Duration = Duration::from_secs(600);
/// After no server could be asked, nobody asks again about the same token for so long.
const PAUSE: Duration = Duration::from_secs(1);
/// As long as somebody who was let in before waits for an answer.
const QUICK: Duration = Duration::from_secs(1);
/// Questions at a time.
const MOST_QUESTIONS: usize = 64;
/// Questions that wait until it is their turn. Of those that come then nothing is known.
const MOST_WAITING: usize = 1024;

/// Whether somebody may use a project.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// A server has said that he may, lately enough.
    Allowed,
    /// A server has said that he may not, or he has no token.
    Denied,
    /// No server can be asked, and nothing that it said before still holds.
    Unknown,
}

impl Verdict {
    /// # Errors
    /// With what those are answered who are not let in.
    pub const fn admit(self) -> Result<(), (StatusCode, &'static str)> {
        match self {
            Self::Allowed => Ok(()),
            Self::Denied => Err((StatusCode::FORBIDDEN, DENIED)),
            Self::Unknown => Err((StatusCode::INTERNAL_SERVER_ERROR, UNKNOWN)),
        }
    }
}

/// Asks servers who may use a project.
#[derive(Debug)]
pub struct Auth {
    servers: Servers,
    cache: Locked<Cache>,
    questions: Semaphore,
    /// For questions, and those that wait.
    places: Semaphore,
}

impl Auth {
    /// Asks the servers whose sockets are in this directory.
    pub fn new(sockets: PathBuf, random: Random) -> Self {
        Self {
            servers: Servers::new(sockets, random),
            cache: Locked::default(),
            questions: Semaphore::new(MOST_QUESTIONS),
            places: Semaphore::new(MOST_QUESTIONS + MOST_WAITING),
        }
    }

    /// Whether whoever sent these headers may use a project.
    pub async fn check(self: &Arc<Self>, project: &str, headers: &HeaderMap) -> Verdict {
        let Some(authorization) = headers.get(AUTHORIZATION).filter(|value| is_bearer(value)) else {
            return Verdict::Denied;
        };
        let slot = self
            .cache
            .lock()
            .slot(project, digest(authorization), Instant::now());
        // The time after what is known: others note answers meanwhile.
        let (known, now) = (slot.known(), Instant::now());
        if let Some(verdict) = known.fresh(now) {
            return verdict;
        }
        match known.stale(now) {
            Verdict::Allowed => self.ask_quickly(slot, project, authorization).await,
            _ => {
                let turn = slot.asking().await;
                self.ask(&slot, turn, project, authorization).await
            }
        }
    }

    /// What a server says to the question for somebody who was let in before, unless that takes long, or is being asked already: then he is
    /// let in once more, and the answer holds for the next time.
    async fn ask_quickly(
        self: &Arc<Self>,
        slot: Arc<Slot>,
        project: &str,
        authorization: &HeaderValue,
    ) -> Verdict {
        let Some(turn) = slot.asking_alone() else {
            return Verdict::Allowed;
        };
        let (this, project, authorization) = (Arc::clone(self), project.to_owned(), authorization.clone());
        let asking = task::uncancelled("question who may use a project", async move {
            this.ask(&slot, turn, &project, &authorization).await
        });
        match timeout(QUICK, asking).await {
            Ok(Ok(verdict)) => verdict,
            Ok(Err(_)) | Err(_) => Verdict::Allowed,
        }
    }

    /// One of those who need the same answer asks, the others wait for it.
    async fn ask(&self, slot: &Slot, _turn: Turn, project: &str, authorization: &HeaderValue) -> Verdict {
        let known = slot.known();
        if let Some(verdict) = known.fresh(Instant::now()) {
            return verdict;
        }
        if known.has_just_failed(Instant::now()) {
            return known.stale(Instant::now());
        }
        let Ok(_place) = self.places.try_acquire() else {
            return known.stale(Instant::now());
        };
        let Ok(_question) = self.questions.acquire().await else {
            return Verdict::Unknown;
        };
        let answered = self.servers.ask(project, authorization).await;
        let now = Instant::now();
        match answered {
            Ok(StatusCode::OK) => slot.note(Known::answered(true, now)),
            Ok(StatusCode::FORBIDDEN) => slot.note(Known::answered(false, now)),
            Ok(status) if !status.is_server_error() => {
                tracing::warn!(%status, project, "a server answered something else to the question who may use a project");
                Verdict::Unknown
            }
            Ok(status) => slot.failed(known, &format!("a server answered {status}"), now),
            Err(AskError(problem)) => slot.failed(known, &problem, now),
        }
    }
}

/// Whether it is a token as users of dstack have one: other schemes no server has to be asked about.
fn is_bearer(value: &HeaderValue) -> bool {
    let scheme = value.as_bytes().get(..7);
    scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"bearer "))
}

fn digest(authorization: &HeaderValue) -> [u8; 32] {
    Sha256::digest(authorization.as_bytes()).into()
}
