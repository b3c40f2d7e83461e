//! Servers, which are reached over sockets that they open on this machine.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use dstack_system::{Locked, Random, task};
use http::header::{AUTHORIZATION, HOST};
use http::{HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout};

/// Time for one server to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// A socket that nobody has been behind for so long, and so often in a row, is deleted: its server is gone.
const DEAD_AFTER: Duration = Duration::from_secs(120);
const DEAD_AFTER_TIMES: u32 = 3;
/// What many find at the same time counts once.
const SAME_TIME: Duration = Duration::from_secs(20);

/// No server has answered; why, for people.
#[derive(Debug)]
pub(super) struct AskError(pub(super) String);

/// Servers by their sockets.
#[derive(Debug)]
pub(super) struct Servers {
    dir: PathBuf,
    random: Random,
    troubled: Locked<HashMap<PathBuf, Trouble>>,
}

/// What is wrong with a socket.
#[derive(Debug, Clone, Copy)]
enum Trouble {
    /// Nobody is behind it.
    Deserted(Deserted),
    /// The last question was not answered in time.
    Silent,
}

/// Since when nobody is behind a socket, and how often that was seen.
#[derive(Debug, Clone, Copy)]
struct Deserted {
    since: Instant,
    times: u32,
    counted: Instant,
}

impl Deserted {
    const fn first(now: Instant) -> Self {
        Self {
            since: now,
            times: 1,
            counted: now,
        }
    }

    /// It is seen once more.
    fn again(self, now: Instant) -> Self {
        if now < self.counted + SAME_TIME {
            return self;
        }
        Self {
            times: self.times.saturating_add(1),
            counted: now,
            ..self
        }
    }

    fn is_dead(self, now: Instant) -> bool {
        now >= self.since + DEAD_AFTER && self.times >= DEAD_AFTER_TIMES
    }
}

impl Servers {
    pub(super) fn new(dir: PathBuf, random: Random) -> Self {
        Self {
            dir,
            random,
            troubled: Locked::default(),
        }
    }

    /// What a server says to the question for a project by whoever has this token: one chosen at random, and if it cannot be
    /// reached, another. Those that did not answer the last time come last.
    pub(super) async fn ask(&self, project: &str, token: &HeaderValue) -> Result<StatusCode, AskError> {
        let sockets = self.in_order(self.sockets());
        if sockets.is_empty() {
            return Err(AskError(format!(
                "no server is connected in {}",
                self.dir.display()
            )));
        }
        let mut problem = String::new();
        for socket in sockets {
            match self.ask_one(&socket, project, token).await {
                Ok(status) => return Ok(status),
                Err(error) => problem = format!("{}: {error}", socket.display()),
            }
        }
        Err(AskError(problem))
    }

    fn sockets(&self) -> Vec<PathBuf> {
        let entries = fs_err::read_dir(&self.dir).into_iter().flatten();
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        paths
            .filter(|path| path.extension().is_some_and(|end| end == "sock"))
            .collect()
    }

    /// In a random order, in which those that did not answer the last time come last.
    fn in_order(&self, mut sockets: Vec<PathBuf>) -> Vec<PathBuf> {
        let mut troubled = self.troubled.lock();
        troubled.retain(|socket, _| sockets.contains(socket));
        sockets.sort_by_cached_key(|socket| {
            let is_silent = matches!(troubled.get(socket), Some(Trouble::Silent));
            (is_silent, self.random.below(u64::MAX))
        });
        sockets
    }

    async fn ask_one(&self, socket: &Path, project: &str, token: &HeaderValue) -> io::Result<StatusCode> {
        let stream = UnixStream::connect(socket).await.inspect_err(|error| {
            if is_nobody(error.kind()) {
                self.note_nobody(socket);
            }
        })?;
        let answered = timeout(ANSWER_LIMIT, exchange(stream, project, token)).await;
        let mut troubled = self.troubled.lock();
        match answered {
            Ok(answered) => {
                troubled.remove(socket);
                answered
            }
            Err(_) => {
                troubled.insert(socket.to_owned(), Trouble::Silent);
                Err(io::ErrorKind::TimedOut.into())
            }
        }
    }

    /// Notes that nobody is behind a socket, and deletes it when that is so for long.
    fn note_nobody(&self, socket: &Path) {
        let now = Instant::now();
        let mut troubled = self.troubled.lock();
        let deserted = match troubled.get(socket) {
            Some(Trouble::Deserted(known)) => known.again(now),
            _ => Deserted::first(now),
        };
        if !deserted.is_dead(now) {
            troubled.insert(socket.to_owned(), Trouble::Deserted(deserted));
            return;
        }
        troubled.remove(socket);
        match fs_err::remove_file(socket) {
            Ok(()) => {
                tracing::info!(socket = %socket.display(), "the socket of a server that is gone is deleted");
            }
            Err(error) => tracing::debug!(%error, "the socket of a server is not deleted"),
        }
    }
}

/// Whether a connection fails so where nobody listens. A server that has no room for one more fails otherwise, and lives.
fn is_nobody(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
}

async fn exchange(stream: UnixStream, project: &str, token: &HeaderValue) -> io::Result<StatusCode> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    let driving = task::spawn("question to a server", async move {
        // Its failure is that of the request.
        let _ = connection.await;
    });
    let request = Request::post(format!("/api/projects/{project}/get"))
        .header(HOST, HeaderValue::from_static("localhost"))
        .header(AUTHORIZATION, token)
        .body(Empty::<Bytes>::new())
        .map_err(io::Error::other)?;
    let answered = sender.send_request(request).await.map_err(io::Error::other);
    driving.abort();
    Ok(answered?.map(|body| drop(body.boxed())).status())
}
