//! HTTP/1.1 to an agent over any byte stream: TCP, a Unix socket, an SSH channel.
//!
//! Opening a connection costs a round trip on an SSH channel, and having the agent show that it has the token another. So the
//! calls of one client that follow each other closely go over one connection ([`spares`]).

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use dstack_system::{Random, Secret, task};

use crate::proof::{self, Challenge, Signed};

mod spares;

use spares::{Spare, Spares};

/// Time for an ordinary call, connecting included (dstack 0.22.5's).
pub const CALL_TIMEOUT: Duration = Duration::from_secs(9);
/// Time for an upload (dstack 0.22.5's).
pub const UPLOAD_TIMEOUT: Duration = Duration::from_secs(60);
/// A stream that says nothing for so long is dead: ticks come every 5 s.
pub const STREAM_IDLE_TIMEOUT: Duration = Duration::from_secs(20);

/// The largest answer read into memory, where the call has no limit of its own.
const MAX_ANSWER_BYTES: usize = 256 * 1024 * 1024;
/// As much of an error's text as is shown.
const MAX_ERROR_BYTES: usize = 512;
/// The longest answer to a nonce.
const MAX_CHALLENGE_BYTES: usize = 4 * 1024;
/// The longest line of a stream: a 32 KiB log event is 44 KiB as JSON.
const MAX_LINE_BYTES: usize = 4 * 1024 * 1024;

/// A byte stream in both directions.
pub trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// Opens connections to one agent.
#[async_trait]
pub trait Connector: Send + Sync + fmt::Debug {
    /// A new connection; an error means that the peer cannot be reached now.
    async fn connect(&self) -> io::Result<Box<dyn Wire>>;
}

/// Connects over TCP.
#[derive(Debug, Clone, Copy)]
pub struct TcpConnector {
    /// Where the agent listens.
    pub address: SocketAddr,
}

#[async_trait]
impl Connector for TcpConnector {
    async fn connect(&self) -> io::Result<Box<dyn Wire>> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    }
}

/// Why a call brought no result. `call` is method and path, e.g. `GET /api/pull`.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No connection, or it broke before the answer was complete: may heal.
    #[error("{call}: the agent cannot be reached")]
    Unreachable {
        /// Method and path.
        call: String,
        /// What the connection said.
        #[source]
        source: io::Error,
    },
    /// No answer in time: may heal.
    #[error("{call}: no answer within {} s", after.as_secs())]
    Timeout {
        /// Method and path.
        call: String,
        /// Longest time that the call was given.
        after: Duration,
        /// There was a connection by then.
        connected: bool,
    },
    /// The agent answered with an error.
    #[error("{call}: the agent answered {status}: {message}")]
    Refused {
        /// Method and path.
        call: String,
        /// 400 or above.
        status: StatusCode,
        /// First 512 bytes of the answer.
        message: String,
    },
    /// Who listens has not shown that it has the token of the agent, and was told nothing.
    #[error(
        "{call}: what listens on the agent's port does not have its token. If it had before, another server or another fleet has set \
         this host up since, or another program has taken the port: take the host out of one of the two, or end that program"
    )]
    Unproven {
        /// Method and path.
        call: String,
        /// Error status that the question for the proof was answered with. Anybody may have said so: it says nothing of the call.
        status: Option<StatusCode>,
    },
    /// The answer is not what the route promises.
    #[error("{call}: unreadable answer")]
    Unreadable {
        /// Method and path.
        call: String,
        /// What was wrong with the body.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl CallError {
    /// The peer was not reached or did not answer: nothing is known about it, and a retry may work.
    pub const fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Timeout { .. })
    }

    /// What who listens answered instead of showing that it has the token; agents of other builds say 401 or 404.
    pub const fn unproven_status(&self) -> Option<StatusCode> {
        match self {
            Self::Unproven { status, .. } => *status,
            _ => None,
        }
    }

    /// The error status of the answer, if there was one.
    pub const fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }
}

/// A request to an agent.
#[derive(Debug, Clone)]
pub struct Call {
    method: Method,
    path: String,
    content_type: Option<String>,
    body: Bytes,
    timeout: Duration,
    max_answer_bytes: usize,
}

impl Call {
    /// `GET` of a path with its query.
    pub fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path)
    }

    /// `POST` to a path, without a body.
    pub fn post(path: impl Into<String>) -> Self {
        Self::new(Method::POST, path)
    }

    fn new(method: Method, path: impl Into<String>) -> Self {
        Self {
            method,
            path: path.into(),
            content_type: None,
            body: Bytes::new(),
            timeout: CALL_TIMEOUT,
            max_answer_bytes: MAX_ANSWER_BYTES,
        }
    }

    /// With a JSON body.
    pub fn json<T: serde::Serialize>(self, body: &T) -> Result<Self, CallError> {
        match serde_json::to_vec(body) {
            Ok(bytes) => Ok(self.body("application/json", bytes)),
            Err(source) => Err(CallError::Unreadable {
                call: self.name(),
                source: source.into(),
            }),
        }
    }

    /// With a body of some type.
    pub fn body(mut self, content_type: impl Into<String>, bytes: impl Into<Bytes>) -> Self {
        self.content_type = Some(content_type.into());
        self.body = bytes.into();
        self
    }

    /// With a body and no `Content-Type`, as the server uploads code.
    pub fn raw_body(mut self, bytes: impl Into<Bytes>) -> Self {
        self.body = bytes.into();
        self
    }

    /// With another time limit than [`CALL_TIMEOUT`].
    pub fn within(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// With a longest answer of so many bytes: a longer one is [`CallError::Unreadable`].
    pub const fn at_most(mut self, bytes: usize) -> Self {
        self.max_answer_bytes = bytes;
        self
    }

    /// HTTP method that the call is signed with and sent by.
    pub const fn method(&self) -> &Method {
        &self.method
    }

    /// Its path without the query.
    pub fn path(&self) -> &str {
        self.path.split('?').next().unwrap_or_default()
    }

    /// Method and path without the query, for messages.
    pub fn name(&self) -> String {
        format!("{} {}", self.method, self.path())
    }
}

/// A whole answer.
#[derive(Debug, Clone)]
pub struct Answer {
    call: String,
    /// Its `Content-Type` without parameters.
    pub content_type: String,
    /// The whole body of the answer.
    pub body: Bytes,
}

impl Answer {
    /// The body as JSON.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, CallError> {
        serde_json::from_slice(&self.body).map_err(|source| CallError::Unreadable {
            call: self.call.clone(),
            source: source.into(),
        })
    }

    /// Whether the body says it is JSON.
    pub fn is_json(&self) -> bool {
        self.content_type == "application/json"
    }
}

/// Calls one agent.
#[derive(Debug, Clone)]
pub struct AgentHttp {
    connector: Arc<dyn Connector>,
    token: Option<Secret>,
    max_line_bytes: usize,
    spares: Spares,
}

impl AgentHttp {
    /// Calls through this connector.
    pub fn new(connector: Arc<dyn Connector>) -> Self {
        Self {
            connector,
            token: None,
            max_line_bytes: MAX_LINE_BYTES,
            spares: Spares::default(),
        }
    }

    /// With lines of streams of at most so many bytes.
    pub const fn with_max_line(mut self, bytes: usize) -> Self {
        self.max_line_bytes = bytes;
        self
    }

    /// Of an agent that was started with this token: it must show that it has it before anything is sent, and each call is signed
    /// ([`proof`]).
    pub fn with_token(self, token: Secret) -> Self {
        Self {
            token: Some(token),
            // What was said to somebody without it shows nothing.
            spares: Spares::default(),
            ..self
        }
    }

    /// Sends a request and reads the whole answer.
    pub async fn send(&self, call: Call) -> Result<Answer, CallError> {
        let (name, limit) = (call.name(), call.timeout);
        let max_bytes = call.max_answer_bytes;
        let deadline = Instant::now() + limit;
        let connected = AtomicBool::new(false);
        let whole = async {
            let (answer, spare) = self.exchange(call, After::Keep, &connected).await?;
            let whole = read_whole(&name, answer, max_bytes).await;
            if let (Ok(_) | Err(CallError::Refused { .. }), Some(spare)) = (&whole, spare) {
                self.spares.put(spare);
            }
            whole
        };
        timeout_at(deadline, whole).await.unwrap_or_else(|_| {
            Err(CallError::Timeout {
                call: name.clone(),
                after: limit,
                connected: connected.load(Ordering::Relaxed),
            })
        })
    }

    /// Sends a request whose answer is a stream of lines; the time limit covers the head of the answer.
    pub async fn stream(&self, call: Call) -> Result<Lines, CallError> {
        let (name, limit, max_bytes) = (call.name(), call.timeout, call.max_answer_bytes);
        let deadline = Instant::now() + limit;
        let connected = AtomicBool::new(false);
        let opened = async {
            let (answer, _) = self.exchange(call, After::Close, &connected).await?;
            if answer.status().is_client_error() || answer.status().is_server_error() {
                return Err(read_whole(&name, answer, max_bytes)
                    .await
                    .err()
                    .unwrap_or_else(|| unexpected_end(&name)));
            }
            Ok(answer.into_body())
        };
        let body = timeout_at(deadline, opened).await.unwrap_or_else(|_| {
            Err(CallError::Timeout {
                call: name.clone(),
                after: limit,
                connected: connected.load(Ordering::Relaxed),
            })
        })?;
        Ok(Lines {
            call: name,
            body,
            buffer: BytesMut::new(),
            scanned: 0,
            ended: false,
            max_line_bytes: self.max_line_bytes,
        })
    }

    /// The head of the answer, and the connection for another call, once the body is read.
    async fn exchange(
        &self,
        call: Call,
        after: After,
        connected: &AtomicBool,
    ) -> Result<(http::Response<Incoming>, Option<Spare>), CallError> {
        let name = call.name();
        let unreachable = |source| CallError::Unreachable {
            call: name.clone(),
            source,
        };
        if let Some(spare) = self.spares.take() {
            connected.store(true, Ordering::Relaxed);
            match self.say(&call, after, spare).await? {
                Some(answered) => return Ok(answered),
                None => connected.store(false, Ordering::Relaxed),
            }
        }
        let wire = self.connector.connect().await.map_err(unreachable)?;
        connected.store(true, Ordering::Relaxed);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(wire))
            .await
            .map_err(|e| unreachable(to_io(e)))?;
        // Ends with the answer's body, or when nobody keeps the sender.
        task::spawn("agent connection", async move {
            let _ = connection.await;
        });
        let challenge = match &self.token {
            Some(token) => Some(ask_for_proof(&mut sender, token, &name).await?),
            None => None,
        };
        let said = self.say(&call, after, Spare::new(sender, challenge)).await?;
        said.ok_or_else(|| unreachable(io::ErrorKind::ConnectionAborted.into()))
    }

    /// Sends a call over a connection whose other end has shown who it is. `None`: it was closed before anything was sent.
    async fn say(
        &self,
        call: &Call,
        after: After,
        spare: Spare,
    ) -> Result<Option<(http::Response<Incoming>, Option<Spare>)>, CallError> {
        let name = call.name();
        let Spare {
            mut sender,
            challenge,
            ..
        } = spare;
        let signed = match (&self.token, &challenge) {
            (Some(token), Some(challenge)) => Some(Signed::new(
                token,
                challenge,
                &call.method,
                &call.path,
                &call.body,
            )),
            _ => None,
        };
        let nonce = matches!((after, &signed), (After::Keep, Some(_))).then(new_nonce);
        let request = request(call, signed.as_ref(), after, nonce.as_deref())?;
        if sender.ready().await.is_err() {
            return Ok(None);
        }
        let answer = match sender.try_send_request(request).await {
            Ok(answer) => answer,
            Err(error) if error.message().is_some() => return Ok(None),
            // It may have been heard.
            Err(error) => {
                return Err(CallError::Unreachable {
                    call: name,
                    source: to_io(error.into_error()),
                });
            }
        };
        let next = match (&self.token, nonce) {
            (None, _) => Some(None),
            (Some(token), Some(nonce)) => Challenge::of_answer(answer.headers())
                .filter(|next| next.is_proven(token, &nonce))
                .map(|next| Some(next.challenge)),
            (Some(_), None) => None,
        };
        let is_kept = matches!(after, After::Keep) && answer.version() == http::Version::HTTP_11;
        let spare = next.filter(|_| is_kept);
        let spare = spare.map(|challenge| Spare::new(sender, challenge));
        Ok(Some((answer, spare)))
    }
}

/// What becomes of a connection after a call.
#[derive(Debug, Clone, Copy)]
enum After {
    /// Another call may follow.
    Keep,
    /// It ends with the answer.
    Close,
}

fn new_nonce() -> String {
    hex::encode(Random::system().bytes::<16>())
}

/// Has who listens show that it has the token; gives the challenge that the call on this connection answers.
async fn ask_for_proof(
    sender: &mut SendRequest<Full<Bytes>>,
    token: &Secret,
    name: &str,
) -> Result<String, CallError> {
    let nonce = new_nonce();
    let question = Request::get(proof::PATH)
        .header(header::HOST, "localhost")
        .header(proof::NONCE, &nonce)
        .body(Full::default())
        .map_err(|source| unreadable(name, source))?;
    let answer = sender
        .send_request(question)
        .await
        .map_err(|source| CallError::Unreachable {
            call: name.to_owned(),
            source: to_io(source),
        })?;
    let unproven = |status| CallError::Unproven {
        call: name.to_owned(),
        status,
    };
    let told = match read_whole(name, answer, MAX_CHALLENGE_BYTES).await {
        Err(CallError::Refused { status, .. }) => return Err(unproven(Some(status))),
        told => told?,
    };
    let told: Challenge = told.json().map_err(|_| unproven(None))?;
    match told.is_proven(token, &nonce) {
        true => Ok(told.challenge),
        false => Err(unproven(None)),
    }
}

fn unreadable(call: &str, source: http::Error) -> CallError {
    CallError::Unreadable {
        call: call.to_owned(),
        source: source.into(),
    }
}

fn request(
    call: &Call,
    signed: Option<&Signed>,
    after: After,
    nonce: Option<&str>,
) -> Result<Request<Full<Bytes>>, CallError> {
    let mut request = Request::builder()
        .method(call.method.clone())
        .uri(&call.path)
        .header(header::HOST, "localhost");
    if matches!(after, After::Close) {
        request = request.header(header::CONNECTION, "close");
    }
    if let Some(nonce) = nonce {
        request = request.header(proof::NONCE, nonce);
    }
    if let Some(content_type) = &call.content_type {
        request = request.header(header::CONTENT_TYPE, content_type);
    }
    if let Some(signed) = signed {
        for (name, value) in signed.headers() {
            request = request.header(name, value);
        }
    }
    request
        .body(Full::new(call.body.clone()))
        .map_err(|source| unreadable(&call.name(), source))
}

async fn read_whole(
    call: &str,
    answer: http::Response<Incoming>,
    max_bytes: usize,
) -> Result<Answer, CallError> {
    let status = answer.status();
    let content_type = answer
        .headers()
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    let body = Limited::new(answer.into_body(), max_bytes)
        .collect()
        .await
        .map_err(|source| {
            if source.is::<LengthLimitError>() {
                CallError::Unreadable {
                    call: call.to_owned(),
                    source,
                }
            } else {
                CallError::Unreachable {
                    call: call.to_owned(),
                    source: io::Error::other(source),
                }
            }
        })?;
    let body = body.to_bytes();
    if status.is_client_error() || status.is_server_error() {
        let shown = body.get(..MAX_ERROR_BYTES).unwrap_or(&body);
        let message = String::from_utf8_lossy(shown).trim().to_owned();
        return Err(CallError::Refused {
            call: call.to_owned(),
            status,
            message,
        });
    }
    Ok(Answer {
        call: call.to_owned(),
        content_type,
        body,
    })
}

/// Lines of a streamed answer. Dropping it closes the connection.
#[derive(Debug)]
pub struct Lines {
    call: String,
    body: Incoming,
    buffer: BytesMut,
    // How much of `buffer` is known to hold no line end.
    scanned: usize,
    ended: bool,
    max_line_bytes: usize,
}

impl Lines {
    /// The next line without its end; `None` after the last. Safe to cancel: nothing read is lost.
    ///
    /// An error is final. An answer cut off within a line is an error, never a short line.
    pub async fn next(&mut self) -> Result<Option<Bytes>, CallError> {
        loop {
            if let Some(line) = self.take_line() {
                return match line.len() <= self.max_line_bytes {
                    true => Ok(Some(line)),
                    false => Err(self.too_long()),
                };
            }
            if self.ended {
                return if self.buffer.is_empty() {
                    Ok(None)
                } else {
                    Err(unexpected_end(&self.call))
                };
            }
            if self.buffer.len() > self.max_line_bytes {
                return Err(self.too_long());
            }
            self.read_more().await?;
        }
    }

    fn too_long(&self) -> CallError {
        CallError::Unreadable {
            call: self.call.clone(),
            source: format!("a line is longer than {} bytes", self.max_line_bytes).into(),
        }
    }

    fn take_line(&mut self) -> Option<Bytes> {
        let rest = self.buffer.get(self.scanned..).unwrap_or_default();
        match rest.iter().position(|&byte| byte == b'\n') {
            Some(at) => {
                let mut line = self.buffer.split_to(self.scanned + at + 1);
                line.truncate(line.len() - 1);
                self.scanned = 0;
                Some(line.freeze())
            }
            None => {
                self.scanned = self.buffer.len();
                None
            }
        }
    }

    async fn read_more(&mut self) -> Result<(), CallError> {
        let frame = tokio::time::timeout(STREAM_IDLE_TIMEOUT, self.body.frame())
            .await
            .map_err(|_| CallError::Timeout {
                call: self.call.clone(),
                after: STREAM_IDLE_TIMEOUT,
                connected: true,
            })?;
        match frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    self.buffer.extend_from_slice(data);
                }
            }
            Some(Err(source)) => {
                return Err(CallError::Unreachable {
                    call: self.call.clone(),
                    source: to_io(source),
                });
            }
            None => self.ended = true,
        }
        Ok(())
    }
}

fn unexpected_end(call: &str) -> CallError {
    CallError::Unreachable {
        call: call.to_owned(),
        source: io::ErrorKind::UnexpectedEof.into(),
    }
}

fn to_io(source: hyper::Error) -> io::Error {
    io::Error::other(source)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    /// Hands out one prepared connection, then refuses.
    #[derive(Debug)]
    struct Once(Mutex<Option<DuplexStream>>);

    #[async_trait]
    impl Connector for Once {
        async fn connect(&self) -> io::Result<Box<dyn Wire>> {
            let stream = self
                .0
                .lock()
                .unwrap()
                .take()
                .ok_or(io::ErrorKind::ConnectionRefused)?;
            Ok(Box::new(stream))
        }
    }

    /// An agent that reads one request head and answers with these pieces, then closes.
    fn agent(pieces: &'static [&'static str]) -> (AgentHttp, tokio::task::JoinHandle<Option<String>>) {
        let (ours, mut theirs) = duplex(64);
        let served = task::spawn("agent", async move {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(theirs.read_u8().await.unwrap());
            }
            for piece in pieces {
                theirs.write_all(piece.as_bytes()).await.unwrap();
                theirs.flush().await.unwrap();
                tokio::task::yield_now().await;
            }
            String::from_utf8(head).unwrap()
        });
        (AgentHttp::new(Arc::new(Once(Mutex::new(Some(ours))))), served)
    }

    #[tokio::test]
    async fn sends_what_the_agent_expects() {
        let (http, served) = agent(&[
            "HTTP/1.1 200 OK\r\nContent-Type: application/json; x=y\r\nContent-Length: 3\r\n\r\n[1]",
        ]);
        let answer = http.send(Call::get("/api/x?y=1")).await.unwrap();
        assert!(answer.is_json());
        assert_eq!(answer.json::<Vec<i32>>().unwrap(), [1]);
        let head = served.await.unwrap().unwrap().to_lowercase();
        assert!(head.starts_with("get /api/x?y=1 http/1.1\r\n"), "{head}");
        assert!(!head.contains("connection:"), "{head}");
    }

    /// An agent with a token that counts its connections and the questions for proof.
    #[derive(Debug, Default)]
    struct Counted {
        connections: AtomicUsize,
        questions: AtomicUsize,
        /// Answers come without the challenge for the next call, as of an older agent.
        is_old: bool,
    }

    #[derive(Debug, Clone, Default)]
    struct ToCounted(Arc<Counted>);

    const TOKEN: &str = "tok3n";

    #[async_trait]
    impl Connector for ToCounted {
        async fn connect(&self) -> io::Result<Box<dyn Wire>> {
            self.0.connections.fetch_add(1, Ordering::SeqCst);
            let (ours, theirs) = duplex(1024);
            let gate = Arc::new(proof::Gate::new(TOKEN.into(), Random::system()));
            let agent = Arc::clone(&self.0);
            let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                let answer = agent.answer(&gate, &request.into_parts().0);
                async move { Ok::<_, std::convert::Infallible>(answer) }
            });
            task::spawn("agent", async move {
                let server = hyper::server::conn::http1::Builder::new();
                let _ = server.serve_connection(TokioIo::new(theirs), service).await;
            });
            Ok(Box::new(ours))
        }
    }

    impl Counted {
        fn answer(&self, gate: &proof::Gate, call: &http::request::Parts) -> http::Response<Full<Bytes>> {
            if let Some(challenge) = gate.challenge(&call.method, &call.uri, &call.headers) {
                self.questions.fetch_add(1, Ordering::SeqCst);
                return http::Response::new(Full::from(serde_json::to_vec(&challenge).unwrap()));
            }
            let mut answer = http::Response::new(Full::from("yes"));
            if !gate.admits(call) {
                *answer.status_mut() = StatusCode::UNAUTHORIZED;
            }
            if let Some(nonce) = proof::nonce(&call.headers).filter(|_| !self.is_old) {
                gate.next_challenge(&nonce).into_answer(answer.headers_mut());
            }
            answer
        }

        fn counts(&self) -> (usize, usize) {
            let count = |counter: &AtomicUsize| counter.load(Ordering::SeqCst);
            (count(&self.connections), count(&self.questions))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_follow_each_other_share_a_connection_and_its_proof() {
        let agent = ToCounted::default();
        let http = AgentHttp::new(Arc::new(agent.clone())).with_token(TOKEN.into());
        for _ in 0..3 {
            let answer = http.send(Call::post("/api/run")).await.unwrap();
            assert_eq!(answer.body, "yes");
        }
        assert_eq!(agent.0.counts(), (1, 1));
        // A stream ends its connection.
        let mut lines = http.stream(Call::get("/api/x")).await.unwrap();
        assert!(lines.next().await.unwrap_err().is_unreachable(), "no end of line");
        assert_eq!(agent.0.counts(), (1, 1));
        http.send(Call::post("/api/run")).await.unwrap();
        assert_eq!(agent.0.counts(), (2, 2));
        // Nobody knows what has become of an old one.
        tokio::time::sleep(Duration::from_secs(6)).await;
        http.send(Call::post("/api/run")).await.unwrap();
        assert_eq!(agent.0.counts(), (3, 3));
    }

    #[tokio::test]
    async fn an_older_agent_is_asked_each_time() {
        let agent = ToCounted(Arc::new(Counted {
            is_old: true,
            ..Counted::default()
        }));
        let http = AgentHttp::new(Arc::new(agent.clone())).with_token(TOKEN.into());
        for _ in 0..2 {
            http.send(Call::post("/api/run")).await.unwrap();
        }
        assert_eq!(agent.0.counts(), (2, 2));
    }

    #[tokio::test]
    async fn two_calls_at_a_time_have_a_connection_each() {
        let agent = ToCounted::default();
        let http = AgentHttp::new(Arc::new(agent.clone())).with_token(TOKEN.into());
        let (one, other) = tokio::join!(http.send(Call::post("/a")), http.send(Call::post("/b")));
        assert!(one.is_ok() && other.is_ok());
        assert_eq!(agent.0.counts(), (2, 2));
    }

    /// The connection that was kept is gone: the call goes over another.
    #[tokio::test]
    async fn a_connection_that_ended_meanwhile_is_not_used() {
        let (http, _served) = agent(&["HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"]);
        http.send(Call::get("/")).await.unwrap();
        let error = http.send(Call::post("/api/run")).await.unwrap_err();
        let CallError::Unreachable { source, .. } = error else {
            panic!("{error:?}");
        };
        assert_eq!(
            source.kind(),
            io::ErrorKind::ConnectionRefused,
            "another was asked for"
        );
    }

    /// What listens in place of the agent, and says whatever it likes.
    #[tokio::test]
    async fn who_does_not_show_that_it_has_the_token_is_sent_nothing_of_a_call() {
        let proof =
            r#"{"challenge":"c","proof":"0000000000000000000000000000000000000000000000000000000000000000"}"#;
        let proof = &*format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{proof}",
            proof.len()
        )
        .leak();
        for (answer, status) in [
            (proof, None),
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", None),
            (
                "HTTP/1.1 401 Unauthorized\r\nContent-Length: 11\r\n\r\ndstack-shim",
                Some(401),
            ),
            ("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", Some(404)),
        ] {
            let (http, served) = agent(Box::leak(Box::new([answer])));
            let call = Call::post("/api/tasks").json(&["a secret of a job"]).unwrap();
            let error = http.with_token("tok3n".into()).send(call).await.unwrap_err();
            // It is no answer to the call, whatever it says.
            assert_eq!(error.status(), None, "{error}");
            assert!(matches!(error, CallError::Unproven { .. }), "{error}");
            assert_eq!(error.unproven_status().map(|status| status.as_u16()), status);
            let heard = served.await.unwrap().unwrap();
            assert!(heard.starts_with("GET /api/proof HTTP/1.1\r\n"), "{heard}");
            assert!(
                !heard.contains("tok3n") && !heard.contains("/api/tasks"),
                "{heard}"
            );
        }
    }

    #[tokio::test]
    async fn errors_tell_unreachable_from_refused() {
        let (http, _served) = agent(&["HTTP/1.1 409 Conflict\r\nContent-Length: 9\r\n\r\nConflict\n"]);
        let refused = http.send(Call::post("/api/run")).await.unwrap_err();
        assert_eq!(
            refused.to_string(),
            "POST /api/run: the agent answered 409 Conflict: Conflict"
        );
        assert!(!refused.is_unreachable());
        let unreachable = http.send(Call::post("/api/run")).await.unwrap_err();
        assert!(unreachable.is_unreachable(), "{unreachable}");
        let (http, _served) = agent(&["HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"]);
        assert!(http.send(Call::get("/")).await.unwrap_err().is_unreachable());
    }

    #[tokio::test]
    async fn an_answer_longer_than_the_call_allows_is_not_read() {
        let answer = &["HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nnine byte"];
        let (http, _served) = agent(answer);
        let whole = http.send(Call::get("/").at_most(9)).await.unwrap();
        assert_eq!(whole.body.len(), 9);
        let (http, _served) = agent(answer);
        let error = http.send(Call::get("/").at_most(8)).await.unwrap_err();
        assert!(matches!(error, CallError::Unreadable { .. }), "{error}");
    }

    #[tokio::test]
    async fn a_line_beyond_the_limit_of_an_agent_is_not_taken() {
        for lines in ["nine byte", "nine byte\n", "nine byte, and no end"] {
            let answer = format!("HTTP/1.1 200 OK\r\n\r\neight by\n{lines}").leak();
            let (http, _served) = agent(Box::leak(Box::new([&*answer])));
            let mut lines = http.with_max_line(8).stream(Call::get("/")).await.unwrap();
            assert_eq!(lines.next().await.unwrap().as_deref(), Some(&b"eight by"[..]));
            let error = lines.next().await.unwrap_err();
            assert!(error.to_string().contains("unreadable"), "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_agent_times_out() {
        let (ours, _theirs) = duplex(64);
        let http = AgentHttp::new(Arc::new(Once(Mutex::new(Some(ours)))));
        let error = http.send(Call::get("/api/healthcheck")).await.unwrap_err();
        assert_eq!(error.to_string(), "GET /api/healthcheck: no answer within 9 s");
    }

    #[tokio::test]
    async fn lines_survive_any_split() {
        let (http, _served) = agent(&[
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "3\r\na\nb\r\n",
            "2\r\nc\n\r\n",
            "4\r\n\nd\nx\r\n",
            "1\r\n\n\r\n0\r\n\r\n",
        ]);
        let mut lines = http.stream(Call::get("/api/stream")).await.unwrap();
        let mut got = Vec::new();
        while let Some(line) = lines.next().await.unwrap() {
            got.push(String::from_utf8(line.to_vec()).unwrap());
        }
        assert_eq!(got, ["a", "bc", "", "d", "x"]);
    }

    #[tokio::test]
    async fn a_cut_line_is_an_error() {
        for body in [
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\na\nb\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\na\nb\r\n",
        ] {
            let (http, _served) = agent(Box::leak(Box::new([body])));
            let mut lines = http.stream(Call::get("/api/stream")).await.unwrap();
            assert_eq!(lines.next().await.unwrap().as_deref(), Some(&b"a"[..]));
            assert!(lines.next().await.unwrap_err().is_unreachable());
        }
    }

    #[tokio::test]
    async fn a_refused_stream_says_why() {
        let (http, _served) =
            agent(&["HTTP/1.1 404 Not Found\r\nContent-Length: 19\r\n\r\n404 page not found\n"]);
        let error = http.stream(Call::get("/api/stream")).await.unwrap_err();
        assert_eq!(error.status(), Some(StatusCode::NOT_FOUND));
    }
}
