//! Load: many clients that each send the next request when the last one is answered.
//!
//! Requests are written ready-made onto kept connections, so that the load takes little of the processor the
//! server under test shares with it.

mod bulk;
mod chunked;
mod head;
mod paced;
mod punctual;

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures_util::future::try_join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub use bulk::Bulk;
pub(crate) use chunked::Chunked;
pub(crate) use head::Head;
pub use paced::{Pace, Paced};

/// What a load brought.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// Answers per second.
    pub rate: f64,
    /// Number of answers that were measured.
    pub answers: usize,
    pub latency: Latency,
    /// Bytes of the longest answer's body.
    pub body_bytes: usize,
}

/// Percentiles, in seconds.
#[derive(Debug, Clone, Copy)]
pub struct Latency {
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
}

impl Latency {
    /// Of samples in seconds; there must be one at least.
    pub fn of(mut samples: Vec<f64>) -> Latency {
        samples.sort_by(f64::total_cmp);
        let at = |percent: usize| samples[(samples.len() * percent / 100).min(samples.len() - 1)];
        Latency {
            p50: at(50),
            p95: at(95),
            p99: at(99),
        }
    }
}

/// How much load: it ends with the duration, or after so many requests.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    pub clients: usize,
    pub duration: Duration,
    pub requests: usize,
}

impl Load {
    /// Posts to a server on a loopback port; `body` makes the body of the n-th request.
    ///
    /// # Errors
    /// When an answer is not 200, or nothing was answered.
    pub fn run(
        self,
        port: u16,
        path: &str,
        token: Option<&str>,
        body: impl Fn(usize) -> String,
    ) -> Result<Measured> {
        self.send(&Destination::here(port, path, token), "POST", &body)
    }

    /// Gets a path of a server on a loopback port.
    ///
    /// # Errors
    /// As [`Load::run`].
    pub fn get(self, port: u16, path: &str, token: Option<&str>) -> Result<Measured> {
        self.get_at(&Destination::here(port, path, token))
    }

    /// Gets it there.
    ///
    /// # Errors
    /// As [`Load::run`].
    pub fn get_at(self, destination: &Destination<'_>) -> Result<Measured> {
        self.send(destination, "GET", &|_| String::new())
    }

    fn send(
        self,
        destination: &Destination<'_>,
        method: &str,
        body: &dyn Fn(usize) -> String,
    ) -> Result<Measured> {
        let requests = Requests {
            address: destination.address,
            head: destination.head(method),
            body,
            next: Cell::new(0),
            limit: self.requests,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let start = Instant::now();
        let clients = (0..self.clients).map(|_| requests.client(start + self.duration));
        let ended = runtime.block_on(try_join_all(clients))?;
        Measured::of(ended, start.elapsed())
    }
}

impl Measured {
    /// Of what clients saw while the load took so long.
    ///
    /// # Errors
    /// Nothing was answered.
    fn of(clients: Vec<Client>, took: Duration) -> Result<Measured> {
        let body_bytes = clients.iter().map(|client| client.body_bytes).max().unwrap_or(0);
        let samples: Vec<f64> = clients.into_iter().flat_map(|client| client.samples).collect();
        if samples.is_empty() {
            bail!("no request was answered");
        }
        Ok(Measured {
            rate: samples.len() as f64 / took.as_secs_f64(),
            answers: samples.len(),
            latency: Latency::of(samples),
            body_bytes,
        })
    }
}

/// What is asked for, and where.
#[derive(Debug, Clone, Copy)]
pub struct Destination<'a> {
    pub address: SocketAddr,
    /// The name that requests say.
    pub host: &'a str,
    pub path: &'a str,
    pub token: Option<&'a str>,
}

impl<'a> Destination<'a> {
    /// A path of a server on a loopback port.
    pub fn here(port: u16, path: &'a str, token: Option<&'a str>) -> Self {
        Self {
            address: (Ipv4Addr::LOCALHOST, port).into(),
            host: "127.0.0.1",
            path,
            token,
        }
    }

    /// The head of a request, without the empty line.
    pub(crate) fn head(&self, method: &str) -> String {
        let Self {
            host, path, token, ..
        } = self;
        let authorization = token
            .map(|token| format!("authorization: Bearer {token}\r\n"))
            .unwrap_or_default();
        format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\n{authorization}content-type: application/json\r\n"
        )
    }
}

/// The head of a request to a server on a loopback port, without the empty line.
pub(crate) fn head(method: &str, path: &str, token: Option<&str>) -> String {
    Destination::here(0, path, token).head(method)
}

/// The requests of one load, shared by its clients.
struct Requests<'a> {
    address: SocketAddr,
    head: String,
    body: &'a dyn Fn(usize) -> String,
    next: Cell<usize>,
    limit: usize,
}

/// What one client saw.
#[derive(Default)]
struct Client {
    samples: Vec<f64>,
    body_bytes: usize,
}

impl Requests<'_> {
    async fn client(&self, end: Instant) -> Result<Client> {
        let mut stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let mut seen = Client::default();
        let mut buffer = Vec::with_capacity(1 << 20);
        while let Some(request) = self.take(end) {
            let sent = Instant::now();
            let answer = response(&mut stream, &request, &mut buffer).await?;
            seen.samples.push(sent.elapsed().as_secs_f64());
            if answer.head.status()? != 200 {
                bail!("{}", String::from_utf8_lossy(&buffer));
            }
            seen.body_bytes = seen.body_bytes.max(answer.body_bytes);
        }
        Ok(seen)
    }

    /// The next request, unless the load has ended.
    fn take(&self, end: Instant) -> Option<String> {
        let number = self.next.get();
        if number >= self.limit || Instant::now() >= end {
            return None;
        }
        self.next.set(number + 1);
        Some(request(&self.head, &(self.body)(number)))
    }
}

/// A request with a head of [`head`].
pub(crate) fn request(head: &str, body: &str) -> String {
    match head.starts_with("GET ") {
        true => format!("{head}\r\n"),
        false => format!("{head}content-length: {}\r\n\r\n{body}", body.len()),
    }
}

/// An answer; its text is in the buffer.
struct Response {
    head: Head,
    body_bytes: usize,
}

/// Sends a request and reads the answer.
async fn response(stream: &mut TcpStream, request: &str, buffer: &mut Vec<u8>) -> Result<Response> {
    stream.write_all(request.as_bytes()).await?;
    buffer.clear();
    let head = answer_head(stream, buffer).await?;
    let body_bytes = head.body_bytes().context("an answer without content-length")?;
    while buffer.len() < head.bytes + body_bytes {
        if stream.read_buf(buffer).await? == 0 {
            bail!("the server closed the connection within an answer");
        }
    }
    Ok(Response { head, body_bytes })
}

/// Reads until the head of an answer is in the buffer.
pub(crate) async fn answer_head(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<Head> {
    loop {
        if stream.read_buf(buffer).await? == 0 {
            bail!("the server closed the connection");
        }
        if let Some(head) = Head::of(buffer) {
            return Ok(head);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles() {
        let latency = Latency::of((0..1000).rev().map(f64::from).collect());
        assert_eq!((latency.p50, latency.p95, latency.p99), (500.0, 950.0, 990.0));
        let one = Latency::of(vec![3.0]);
        assert_eq!((one.p50, one.p99), (3.0, 3.0));
    }
}
