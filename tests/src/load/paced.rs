//! Load at a fixed rate, whatever the answers take: what users who do not wait for each other send.
//!
//! Every request has a time at which it is due. How long it took counts from then, so that a server that makes clients
//! wait before they can send does not look quicker for it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use futures_util::future::try_join_all;
use tokio::net::TcpStream;

use super::{Head, Latency, head, request, response};

/// How much load. Each connection sends one request at a time, so there must be as many of them as may be unanswered.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Requests per second.
    pub rate: f64,
    pub duration: Duration,
    pub connections: usize,
}

/// What the load brought.
#[derive(Debug, Clone)]
pub struct Paced {
    /// Answers by status.
    pub answers: BTreeMap<u16, usize>,
    /// Of answers with status 200, from when they were due.
    pub latency: Option<Latency>,
    /// Refusals (429) that do not say when to come back.
    pub silent_refusals: usize,
    /// What was sent in all, per second: less than wanted when the connections did not suffice.
    pub offered: f64,
    /// Duration of the load in seconds.
    pub took: f64,
}

impl Paced {
    /// How many answers have this status.
    pub fn count(&self, status: u16) -> usize {
        self.answers.get(&status).copied().unwrap_or(0)
    }

    /// Answers with status 200, per second.
    pub fn accepted(&self) -> f64 {
        self.count(200) as f64 / self.took
    }
}

impl Pace {
    /// When the n-th request is due, counted from the start; `None`: the load has ended by then.
    pub(super) fn due(self, number: usize) -> Option<Duration> {
        let due = Duration::from_secs_f64(number as f64 / self.rate);
        (due < self.duration).then_some(due)
    }

    /// Posts to a server on a loopback port; `body` makes the body of the n-th request. The first is sent when all
    /// loads that share the `start` have their connections.
    ///
    /// # Errors
    /// A connection broke.
    pub fn run(
        self,
        start: &Barrier,
        port: u16,
        path: &str,
        token: &str,
        body: impl Fn(usize) -> String,
    ) -> Result<Paced> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let pacer = Pacer {
            pace: self,
            head: head("POST", path, Some(token)),
            body: &body,
            next: Cell::new(0),
        };
        let streams = runtime.block_on(connect(port, self.connections));
        start.wait();
        let start = Instant::now();
        let clients = streams?.into_iter().map(|stream| pacer.client(stream, start));
        let seen = runtime.block_on(try_join_all(clients))?;
        Ok(total(seen, start.elapsed()))
    }
}

async fn connect(port: u16, count: usize) -> Result<Vec<TcpStream>> {
    let mut streams = Vec::new();
    for _ in 0..count {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        streams.push(stream);
    }
    Ok(streams)
}

struct Pacer<'a> {
    pace: Pace,
    head: String,
    body: &'a dyn Fn(usize) -> String,
    next: Cell<usize>,
}

/// What one client saw.
#[derive(Default)]
pub(super) struct Seen {
    answers: BTreeMap<u16, usize>,
    samples: Vec<f64>,
    silent_refusals: usize,
}

impl Pacer<'_> {
    async fn client(&self, mut stream: TcpStream, start: Instant) -> Result<Seen> {
        let mut seen = Seen::default();
        let mut buffer = Vec::with_capacity(16 * 1024);
        loop {
            let number = self.next.get();
            let Some(due) = self.pace.due(number) else {
                return Ok(seen);
            };
            self.next.set(number + 1);
            let due = start + due;
            tokio::time::sleep_until(due.into()).await;
            let request = request(&self.head, &(self.body)(number));
            let answer = response(&mut stream, &request, &mut buffer).await?;
            seen.note(&answer.head, &buffer, due)?;
        }
    }
}

impl Seen {
    /// # Errors
    /// The answer is neither 200 nor 429.
    pub(super) fn note(&mut self, head: &Head, answer: &[u8], due: Instant) -> Result<()> {
        let status = head.status()?;
        *self.answers.entry(status).or_default() += 1;
        match status {
            200 => self.samples.push(due.elapsed().as_secs_f64()),
            429 if head.header("retry-after").is_none() => self.silent_refusals += 1,
            429 => {}
            other => bail!("{other}: {}", String::from_utf8_lossy(answer)),
        }
        Ok(())
    }
}

pub(super) fn total(seen: Vec<Seen>, took: Duration) -> Paced {
    let mut answers = BTreeMap::new();
    let (mut samples, mut silent_refusals) = (Vec::new(), 0);
    for one in seen {
        for (status, count) in one.answers {
            *answers.entry(status).or_default() += count;
        }
        samples.extend(one.samples);
        silent_refusals += one.silent_refusals;
    }
    let took = took.as_secs_f64();
    Paced {
        offered: answers.values().sum::<usize>() as f64 / took,
        took,
        answers,
        latency: (!samples.is_empty()).then(|| Latency::of(samples)),
        silent_refusals,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_due_at_the_rate_until_the_end() {
        let pace = Pace {
            rate: 4.0,
            duration: Duration::from_secs(1),
            connections: 1,
        };
        let due: Vec<Option<u128>> = (0..5).map(|number| Some(pace.due(number)?.as_millis())).collect();
        assert_eq!(due, [Some(0), Some(250), Some(500), Some(750), None]);
    }

    #[test]
    fn refusals_are_counted_and_errors_end_the_load() {
        let mut seen = Seen::default();
        let mut note = |answer: &str| {
            let head = Head::of(answer.as_bytes()).unwrap();
            seen.note(&head, answer.as_bytes(), Instant::now())
        };
        note("HTTP/1.1 200 OK\r\n\r\n").unwrap();
        note("HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\n\r\n").unwrap();
        note("HTTP/1.1 429 Too Many Requests\r\n\r\n").unwrap();
        note("HTTP/1.1 429 Too Many Requests\r\n\r\n").unwrap();
        assert!(note("HTTP/1.1 500 Oh\r\n\r\n").is_err());
        let all = total(vec![seen], Duration::from_secs(2));
        assert_eq!((all.count(200), all.count(429), all.silent_refusals), (1, 3, 2));
        assert!((all.accepted() - 0.5).abs() < 1e-9);
    }
}
