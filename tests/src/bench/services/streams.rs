//! Streamed answers of a model, five hundred at once. Every piece says when it was sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures_util::future::try_join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep_until, timeout};

use super::added::{Round, figures};
use super::models::{CHAT, DIRECT, call, message, model};
use super::upstream::{Connection, serve};
use super::{ROUNDS, serving};
use crate::bench::measures::{Figure, ours_only};
use crate::bench::subject::Subject;
use crate::load::{Chunked, Latency, answer_head, head, request};
use crate::server::TOKEN;

const STREAMS: usize = 500;
/// Between two pieces of a stream, as of a model that says twenty tokens a second.
const INTERVAL: Duration = Duration::from_millis(50);
const PIECES: usize = 120;
/// Those at the beginning of each stream: others are still being opened then.
const SKIPPED: usize = 20;
/// Until all streams have ended.
const PATIENCE: Duration = Duration::from_secs(60);

pub(in crate::bench) fn streams(subject: &Subject, _: usize) -> Result<Vec<Figure>> {
    ours_only(subject)?;
    let epoch = Instant::now();
    let next = AtomicUsize::new(0);
    let source = Arc::new(Model { epoch, next });
    let port = serve(move |stream| Arc::clone(&source).answer(stream))?;
    let server = serving(subject, port, &model())?;
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push(Round {
            direct: follow_all(port, DIRECT, None, epoch)?,
            through: follow_all(server.port(), CHAT, Some(TOKEN), epoch)?,
        });
    }
    let rate = 1.0 / INTERVAL.as_secs_f64();
    figures(
        &format!("a piece of {STREAMS} streamed answers of a model, {rate}/s of each"),
        &rounds,
    )
}

/// A model that streams where it is asked to.
struct Model {
    /// From when times are counted.
    epoch: Instant,
    /// Number of the next stream.
    next: AtomicUsize,
}

const HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

impl Model {
    async fn answer(self: Arc<Self>, stream: TcpStream) -> Result<()> {
        let mut connection = Connection::new(stream)?;
        while let Some(request) = connection.request().await? {
            match request.windows(STREAMED.len()).any(|bytes| bytes == STREAMED) {
                true => self.stream(&mut connection).await?,
                false => connection.send(&message()).await?,
            }
        }
        Ok(())
    }

    async fn stream(&self, connection: &mut Connection) -> Result<()> {
        connection.send(HEAD).await?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut due = self.epoch + first(self.epoch.elapsed(), number);
        for _ in 0..PIECES {
            sleep_until(due.into()).await;
            due += INTERVAL;
            let piece = chunk(&event(self.epoch.elapsed()));
            connection.send(piece.as_bytes()).await?;
        }
        let end = chunk("data: [DONE]\n\n") + "0\r\n\r\n";
        connection.send(end.as_bytes()).await
    }
}

/// What says in a call that the answer is to be streamed.
const STREAMED: &[u8] = b"\"stream\":true";

/// When a stream has its first piece: within the next interval, at a moment of its own, so that not all speak at once.
fn first(now: Duration, number: usize) -> Duration {
    let moment = INTERVAL / STREAMS as u32 * (number % STREAMS) as u32;
    let passed = Duration::from_nanos((now.as_nanos() % INTERVAL.as_nanos()) as u64);
    match moment.checked_sub(passed) {
        Some(wait) => now + wait,
        None => now + INTERVAL + moment - passed,
    }
}

/// A piece of an answer, which was sent at this time.
fn event(sent: Duration) -> String {
    let sent = sent.as_nanos();
    format!(
        "data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"bench\",\
         \"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{sent}\"}},\"finish_reason\":null}}]}}\n\n"
    )
}

/// When an event was sent, if it says so.
fn sent(event: &[u8]) -> Option<Duration> {
    let event = std::str::from_utf8(event).ok()?;
    let (_, content) = event.split_once("\"content\":\"")?;
    let (sent, _) = content.split_once('"')?;
    Some(Duration::from_nanos(sent.parse().ok()?))
}

fn chunk(event: &str) -> String {
    format!("{:x}\r\n{event}\r\n", event.len())
}

/// How long pieces were under way, of streams that are all open at once.
fn follow_all(port: u16, path: &str, token: Option<&str>, epoch: Instant) -> Result<Latency> {
    let call = request(&head("POST", path, token), &call(true));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let streams = (0..STREAMS).map(|_| follow(port, &call, epoch));
    let times = runtime.block_on(async { timeout(PATIENCE, try_join_all(streams)).await });
    let times = times.context("the streams do not end")??;
    let times = times
        .into_iter()
        .flat_map(|times| times.into_iter().skip(SKIPPED));
    Ok(Latency::of(times.collect()))
}

/// How long each piece of a stream was under way, in seconds.
async fn follow(port: u16, call: &str, epoch: Instant) -> Result<Vec<f64>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.set_nodelay(true)?;
    stream.write_all(call.as_bytes()).await?;
    let mut read = Vec::with_capacity(4096);
    let head = answer_head(&mut stream, &mut read).await?;
    if head.status()? != 200 {
        bail!("{}", String::from_utf8_lossy(&read));
    }
    ensure!(
        head.header("transfer-encoding") == Some("chunked"),
        "a stream that is not chunked"
    );
    read.drain(..head.bytes);
    let mut events = Events::default();
    loop {
        events.push(&read, epoch.elapsed())?;
        if events.chunked.has_ended() {
            break;
        }
        read.clear();
        if stream.read_buf(&mut read).await? == 0 {
            bail!("a stream broke off");
        }
    }
    let count = events.times.len();
    ensure!(count == PIECES, "{count} of {PIECES} pieces came");
    Ok(events.times)
}

/// Events of a stream, as its bytes come.
#[derive(Debug, Default)]
struct Events {
    chunked: Chunked,
    /// What has come of the present event.
    text: Vec<u8>,
    /// How long each was under way, in seconds.
    times: Vec<f64>,
}

impl Events {
    /// What has come at this time.
    fn push(&mut self, bytes: &[u8], now: Duration) -> Result<()> {
        self.chunked.push(bytes, &mut self.text)?;
        while let Some(end) = self.text.windows(2).position(|bytes| bytes == b"\n\n") {
            if let Some(sent) = sent(&self.text[..end]) {
                self.times.push((now.saturating_sub(sent)).as_secs_f64());
            }
            self.text.drain(..end + 2);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_say_when_they_were_sent_however_they_come() {
        let second = Duration::from_secs(1);
        let bytes =
            chunk(&event(second)) + &chunk(&event(2 * second)) + &chunk("data: [DONE]\n\n") + "0\r\n\r\n";
        for cut in 0..bytes.len() {
            let mut events = Events::default();
            let (before, after) = bytes.split_at(cut);
            events.push(before.as_bytes(), 3 * second).unwrap();
            assert!(!events.chunked.has_ended());
            events.push(after.as_bytes(), 3 * second).unwrap();
            assert_eq!(events.times, [2.0, 1.0], "{cut}");
            assert!(events.chunked.has_ended());
        }
    }

    #[test]
    fn streams_begin_within_an_interval_each_at_a_moment_of_its_own() {
        let now = INTERVAL * 7 + INTERVAL / 2;
        let moments: Vec<Duration> = (0..STREAMS).map(|number| first(now, number)).collect();
        assert!(moments.iter().all(|at| (now..now + INTERVAL).contains(at)));
        assert_eq!(moments[0], INTERVAL * 8);
        assert_eq!(moments[STREAMS / 2], now);
        let mut different = moments.clone();
        different.sort();
        different.dedup();
        assert_eq!(different.len(), STREAMS);
        assert_eq!(first(now, STREAMS + 3), first(now, 3));
    }

    #[test]
    fn a_call_says_whether_it_is_to_be_streamed() {
        let says = |call: &str| {
            call.as_bytes()
                .windows(STREAMED.len())
                .any(|bytes| bytes == STREAMED)
        };
        assert!(says(&call(true)) && !says(&call(false)));
    }
}
