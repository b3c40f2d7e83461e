//! Load at a fixed rate whose requests leave within a tenth of a millisecond of when they are due: by threads that sleep. Timers
//! of tokio are up to a millisecond late, by as much for all requests of a load at a thousand per second, which is as much as there
//! may be to measure.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use super::paced::{Seen, total};
use super::{Head, Pace, Paced, head, request};

/// Until all threads are there.
const LEAD: Duration = Duration::from_millis(50);

/// An answer that takes longer is not waited for.
const PATIENCE: Duration = Duration::from_secs(30);

impl Pace {
    /// Gets a path of a server on a loopback port. How long an answer took counts from when its request was due.
    ///
    /// # Errors
    /// A connection broke, or an answer is neither 200 nor 429.
    pub fn get(self, port: u16, path: &str, token: Option<&str>) -> Result<Paced> {
        let request = request(&head("GET", path, token), "");
        let streams = (0..self.connections)
            .map(|_| connect(port))
            .collect::<Result<Vec<_>>>()?;
        let load = Gets {
            pace: self,
            request: &request,
            next: AtomicUsize::new(0),
            start: Instant::now() + LEAD,
        };
        let seen = thread::scope(|scope| {
            let load = &load;
            let client = |stream| scope.spawn(move || load.client(stream));
            let clients: Vec<_> = streams.into_iter().map(client).collect();
            let seen = clients.into_iter().map(thread::ScopedJoinHandle::join);
            seen.map(|seen| seen.map_err(|_| anyhow!("a client panicked"))?)
                .collect::<Result<Vec<Seen>>>()
        })?;
        Ok(total(seen, load.start.elapsed()))
    }
}

fn connect(port: u16) -> Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// The requests of one load, shared by its clients.
struct Gets<'a> {
    pace: Pace,
    request: &'a str,
    next: AtomicUsize,
    start: Instant,
}

impl Gets<'_> {
    fn client(&self, mut stream: TcpStream) -> Result<Seen> {
        let mut seen = Seen::default();
        let mut buffer = Vec::with_capacity(16 * 1024);
        while let Some(due) = self.pace.due(self.next.fetch_add(1, Ordering::Relaxed)) {
            let due = self.start + due;
            thread::sleep(due.saturating_duration_since(Instant::now()));
            stream.write_all(self.request.as_bytes())?;
            let head = answer(&mut stream, &mut buffer)?;
            seen.note(&head, &buffer, due)?;
        }
        Ok(seen)
    }
}

/// Reads an answer into the buffer.
fn answer(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<Head> {
    buffer.clear();
    let mut piece = [0; 4096];
    loop {
        let size = stream.read(&mut piece)?;
        if size == 0 {
            bail!("the server closed the connection");
        }
        buffer.extend_from_slice(&piece[..size]);
        let Some(head) = Head::of(buffer) else {
            continue;
        };
        let body_bytes = head.body_bytes().context("an answer without content-length")?;
        if buffer.len() >= head.bytes + body_bytes {
            return Ok(head);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const STALL: Duration = Duration::from_millis(200);

    /// Stands still before the first answer, and is quick after it.
    fn stalls_once() -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut piece = [0; 4096];
            let mut pause = STALL;
            while stream.read(&mut piece).is_ok_and(|size| size > 0) {
                thread::sleep(std::mem::take(&mut pause));
                stream
                    .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")
                    .unwrap();
            }
        });
        port
    }

    #[test]
    fn requests_that_had_to_wait_for_their_turn_count_from_when_they_were_due() {
        let pace = Pace {
            rate: 50.0,
            duration: STALL,
            connections: 1,
        };
        let paced = pace.get(stalls_once(), "/", None).unwrap();
        assert_eq!(paced.count(200), 10);
        // Those in the middle were due a tenth of a second before the first was answered.
        let latency = paced.latency.unwrap();
        assert!(latency.p50 > 0.08, "{latency:?}");
        assert!(latency.p99 >= STALL.as_secs_f64(), "{latency:?}");
    }
}
