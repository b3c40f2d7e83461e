//! WebSockets through the server on which nothing is said any more: what they add to its memory.

use std::io::ErrorKind;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use futures_util::future::try_join_all;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::upstream::{HELLO, serve};
use super::{PATH, serving};
use crate::bench::measures::{Figure, figure, ours_only};
use crate::bench::report::Unit;
use crate::bench::subject::Subject;
use crate::load::{Head, answer_head};
use crate::server::TOKEN;

const SOCKETS: usize = 10_000;
/// The server lets so many files be open for each WebSocket that it passes on.
const FILES_EACH: usize = 8;
/// So many are opened at a time.
const AT_ONCE: usize = 200;
/// What the server goes on doing for a moment.
const SETTLES: Duration = Duration::from_secs(15);

pub(in crate::bench) fn sockets(subject: &Subject, _: usize) -> Result<Vec<Figure>> {
    ours_only(subject)?;
    // Before the server starts, which inherits them.
    let files = OpenFiles::raise(SOCKETS * FILES_EACH)?;
    let count = allowed(files.count);
    if count < SOCKETS {
        println!(
            "    {count} instead of {SOCKETS}: {} files may be open here (`ulimit -Hn`)",
            files.count
        );
    }
    let server = serving(subject, serve(accept)?, &json!({}))?;
    thread::sleep(SETTLES);
    let before = server.resident_bytes()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let sockets = runtime.block_on(open_all(server.port(), count))?;
    thread::sleep(SETTLES);
    let added = server.resident_bytes()? - before;
    let open = sockets.iter().filter(|socket| is_open(socket)).count();
    ensure!(open == count, "only {open} of {count} WebSockets stay open");
    Ok(vec![
        figure(
            format!("server resident, {count} idle WebSockets to a service more than without"),
            Unit::Bytes,
            "≤ 200 MB with 10,000",
            added,
        ),
        figure(
            format!("server resident, for each of {count} idle WebSockets to a service"),
            Unit::Bytes,
            "≤ 20 KB",
            added / count as f64,
        ),
    ])
}

/// How many WebSockets a server passes on that may have so many files open.
fn allowed(files: usize) -> usize {
    SOCKETS.min(files / FILES_EACH)
}

/// How many files this process, and what it starts, may have open: more than before, until this is dropped.
struct OpenFiles {
    count: usize,
    before: Rlimit,
}

impl OpenFiles {
    /// As many as wanted if that is allowed, else as many as it is.
    fn raise(wanted: usize) -> Result<Self> {
        let before = getrlimit(Resource::Nofile);
        let hard = before.maximum.unwrap_or(u64::MAX);
        let all = |count: u64| {
            let limit = Rlimit {
                current: Some(count),
                maximum: before.maximum.map(|maximum| maximum.max(count)),
            };
            setrlimit(Resource::Nofile, limit).map(|()| count)
        };
        let wanted = (wanted as u64).max(before.current.unwrap_or(u64::MAX));
        // Only a privileged process may have more than the hard limit.
        let count = all(wanted).or_else(|_| all(hard.min(wanted)))?;
        Ok(Self {
            count: usize::try_from(count)?,
            before,
        })
    }
}

impl Drop for OpenFiles {
    fn drop(&mut self) {
        // What was allowed before is allowed again.
        setrlimit(Resource::Nofile, self.before).ok();
    }
}

/// The example of RFC 6455, section 1.3.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// A text as a client sends it, and as a service answers it. Rooms that nothing went through yet are not in memory.
const ASKED: &[u8] = b"\x81\x85\0\0\0\0hello";
const ANSWERED: &[u8] = b"\x81\x05hello";

/// A WebSocket if that is what is asked for, else a few bytes; one request on a connection.
async fn accept(mut stream: TcpStream) -> Result<()> {
    let mut read = Vec::with_capacity(1024);
    let head = loop {
        if stream.read_buf(&mut read).await? == 0 {
            return Ok(());
        }
        if let Some(head) = Head::of(&read) {
            break head;
        }
    };
    if head.header("upgrade") != Some("websocket") {
        return Ok(stream.write_all(HELLO).await?);
    }
    drop((head, read));
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
         sec-websocket-accept: {ACCEPT}\r\n\r\n"
    );
    stream.write_all(answer.as_bytes()).await?;
    let mut asked = [0; ASKED.len()];
    while stream.read_exact(&mut asked).await.is_ok() {
        stream.write_all(ANSWERED).await?;
    }
    Ok(())
}

async fn open(port: u16) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let request = format!(
        "GET {PATH} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {TOKEN}\r\nconnection: upgrade\r\n\
         upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: {KEY}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut read = Vec::with_capacity(1024);
    let head = answer_head(&mut stream, &mut read).await?;
    if head.status()? != 101 {
        bail!("no WebSocket: {}", String::from_utf8_lossy(&read));
    }
    stream.write_all(ASKED).await?;
    let mut answered = [0; ANSWERED.len()];
    stream.read_exact(&mut answered).await?;
    ensure!(answered == ANSWERED, "a WebSocket says {answered:?}");
    Ok(stream)
}

async fn open_all(port: u16, count: usize) -> Result<Vec<TcpStream>> {
    let mut sockets = Vec::with_capacity(count);
    while sockets.len() < count {
        let next = AT_ONCE.min(count - sockets.len());
        sockets.extend(try_join_all((0..next).map(|_| open(port))).await?);
    }
    Ok(sockets)
}

/// Neither closed nor with anything to read.
fn is_open(socket: &TcpStream) -> bool {
    let read = socket.try_read(&mut [0]);
    read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_as_a_server_passes_on() {
        assert_eq!(allowed(SOCKETS * FILES_EACH), SOCKETS);
        assert_eq!(allowed(1 << 20), SOCKETS);
        assert_eq!(allowed(20_000), 2_500);
    }

    #[test]
    fn a_service_makes_websockets_of_those_that_ask_and_closed_ones_are_seen() {
        let port = serve(accept).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut sockets = open_all(port, AT_ONCE + 1).await.unwrap();
            assert_eq!(sockets.len(), AT_ONCE + 1);
            assert!(sockets.iter().all(is_open));
            let mut one = sockets.pop().unwrap();
            // The service ends its side as well.
            one.shutdown().await.unwrap();
            one.readable().await.unwrap();
            assert!(!is_open(&one));
        });
        assert!(super::super::once(port, "/", None).is_ok());
    }
}
