//! Load of large bodies: clients that each send the next request when the last answer has ended.
//!
//! Requests are made once, and what comes is counted and thrown away, so that the load takes little of the processors and of
//! their caches that it shares with what is measured.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures_util::future::try_join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Client, Destination, Measured, answer_head};

/// Most bytes that are read at once.
const PIECE: usize = 64 * 1024;

/// How much load.
#[derive(Debug, Clone, Copy)]
pub struct Bulk {
    pub clients: usize,
    pub duration: Duration,
}

impl Bulk {
    /// Gets what is there.
    ///
    /// # Errors
    /// When an answer is not 200, or nothing was answered.
    pub fn get(self, destination: &Destination<'_>) -> Result<Measured> {
        let head = destination.head("GET");
        self.send(destination.address, format!("{head}\r\n").as_bytes())
    }

    /// Posts a body to it.
    ///
    /// # Errors
    /// As [`Bulk::get`].
    pub fn post(self, destination: &Destination<'_>, body: &[u8]) -> Result<Measured> {
        let head = destination.head("POST");
        let mut request = format!("{head}content-length: {}\r\n\r\n", body.len()).into_bytes();
        request.extend_from_slice(body);
        self.send(destination.address, &request)
    }

    fn send(self, address: SocketAddr, request: &[u8]) -> Result<Measured> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let start = Instant::now();
        let clients = (0..self.clients).map(|_| client(address, request, start + self.duration));
        let ended = runtime.block_on(try_join_all(clients))?;
        Measured::of(ended, start.elapsed())
    }
}

async fn client(address: SocketAddr, request: &[u8], end: Instant) -> Result<Client> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let mut seen = Client::default();
    let mut buffer = Vec::with_capacity(PIECE);
    while Instant::now() < end {
        let sent = Instant::now();
        stream.write_all(request).await?;
        seen.body_bytes = answer(&mut stream, &mut buffer).await?;
        seen.samples.push(sent.elapsed().as_secs_f64());
    }
    Ok(seen)
}

/// Reads an answer; returns how many bytes its body has.
async fn answer(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<usize> {
    buffer.clear();
    let head = answer_head(stream, buffer).await?;
    if head.status()? != 200 {
        bail!("{}", String::from_utf8_lossy(buffer));
    }
    let body_bytes = head.body_bytes().context("an answer without content-length")?;
    let mut left = (head.bytes + body_bytes)
        .checked_sub(buffer.len())
        .context(LONGER)?;
    while left > 0 {
        buffer.clear();
        let size = stream.read_buf(buffer).await?;
        if size == 0 {
            bail!("the server closed the connection within an answer");
        }
        left = left.checked_sub(size).context(LONGER)?;
    }
    Ok(body_bytes)
}

const LONGER: &str = "an answer is longer than it says";

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    const LONG: usize = 3 * PIECE + 1;

    /// Answers two requests of one connection.
    fn serve(answers: [String; 2], request_bytes: usize) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for answer in answers {
                stream.read_exact(&mut vec![0; request_bytes]).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        port
    }

    fn exchange(answers: [String; 2]) -> Result<[usize; 2]> {
        let request = b"request";
        let port = serve(answers, request.len());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
            let mut buffer = Vec::with_capacity(PIECE);
            let mut bodies = [0; 2];
            for body in &mut bodies {
                stream.write_all(request).await?;
                *body = answer(&mut stream, &mut buffer).await?;
            }
            Ok(bodies)
        })
    }

    fn ok(said: usize, body: &str) -> String {
        format!("HTTP/1.1 200 OK\r\ncontent-length: {said}\r\n\r\n{body}")
    }

    #[test]
    fn bodies_are_read_to_their_ends_and_no_further() {
        let long = ok(LONG, &"x".repeat(LONG));
        assert_eq!(exchange([long, ok(2, "hi")]).unwrap(), [LONG, 2]);
    }

    #[test]
    fn what_is_wrong_with_an_answer_ends_the_load() {
        for (first, expected) in [
            (
                "HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n".to_owned(),
                "HTTP/1.1 503 No",
            ),
            ("HTTP/1.1 200 OK\r\n\r\n".to_owned(), "without content-length"),
            (ok(1, "hi"), "longer than it says"),
        ] {
            let error = exchange([first, ok(0, "")]).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let short = exchange([ok(2, "hi"), ok(3, "hi")]).unwrap_err().to_string();
        assert!(short.contains("within an answer"), "{short}");
    }
}
