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

use super::{Latency, head, request, response};

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

#[derive(Default)]
struct Seen {
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
            let due = Duration::from_secs_f64(number as f64 / self.pace.rate);
            if due >= self.pace.duration {
                return Ok(seen);
            }
            self.next.set(number + 1);
            let due = start + due;
            tokio::time::sleep_until(due.into()).await;
            let request = request(&self.head, &(self.body)(number));
            let answer = response(&mut stream, &request, &mut buffer).await?;
            *seen.answers.entry(answer.status).or_default() += 1;
            match answer.status {
                200 => seen.samples.push(due.elapsed().as_secs_f64()),
                429 if !answer.head.contains("retry-after:") => seen.silent_refusals += 1,
                429 => {}
                other => bail!("{other}: {}", String::from_utf8_lossy(&buffer)),
            }
        }
    }
}

fn total(seen: Vec<Seen>, took: Duration) -> Paced {
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
