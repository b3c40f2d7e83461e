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
/// A socket that nobody has answered for so long is deleted: its server is gone.
const DEAD_AFTER: Duration = Duration::from_secs(120);

/// No server has answered; why, for people.
#[derive(Debug)]
pub(super) struct AskError(pub(super) String);

/// Servers by their sockets.
#[derive(Debug)]
pub(super) struct Servers {
    dir: PathBuf,
    random: Random,
    /// Since when nobody answers at a socket.
    silent: Locked<HashMap<PathBuf, Instant>>,
}

impl Servers {
    pub(super) fn new(dir: PathBuf, random: Random) -> Self {
        Self {
            dir,
            random,
            silent: Locked::default(),
        }
    }

    /// What a server says to the question for a project by whoever has this token: one chosen at random, and if it cannot be
    /// reached, another.
    pub(super) async fn ask(&self, project: &str, token: &HeaderValue) -> Result<StatusCode, AskError> {
        let mut sockets = self.sockets();
        if sockets.is_empty() {
            return Err(AskError(format!(
                "no server is connected in {}",
                self.dir.display()
            )));
        }
        let mut problem = String::new();
        while !sockets.is_empty() {
            let place = self.random.below(sockets.len() as u64);
            let socket = sockets.swap_remove(usize::try_from(place).unwrap_or(0));
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

    async fn ask_one(&self, socket: &Path, project: &str, token: &HeaderValue) -> io::Result<StatusCode> {
        let stream = match UnixStream::connect(socket).await {
            Ok(stream) => stream,
            Err(error) => {
                self.note_silence(socket);
                return Err(error);
            }
        };
        match timeout(ANSWER_LIMIT, exchange(stream, project, token)).await {
            Ok(Ok(status)) => {
                self.silent.lock().remove(socket);
                Ok(status)
            }
            // The far end of the socket is the tunnel of a server: it accepts, and closes when the server is gone.
            Ok(Err(error)) => {
                self.note_silence(socket);
                Err(error)
            }
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Notes that nobody answers at a socket, and deletes it when that is so for long.
    fn note_silence(&self, socket: &Path) {
        let now = Instant::now();
        let mut silent = self.silent.lock();
        let since = *silent.entry(socket.to_owned()).or_insert(now);
        if now < since + DEAD_AFTER {
            return;
        }
        silent.remove(socket);
        match fs_err::remove_file(socket) {
            Ok(()) => {
                tracing::info!(socket = %socket.display(), "the socket of a server that is gone is deleted");
            }
            Err(error) => tracing::debug!(%error, "the socket of a server is not deleted"),
        }
    }
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
