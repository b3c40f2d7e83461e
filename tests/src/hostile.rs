//! Clients without a token that send the worst they may, as often as they can.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures_util::future::{join, join_all};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::load::Latency;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// A route that anyone may send JSON to.
const OPEN: &str = "/api/auth/get_next_redirect";

/// How long a client keeps a connection on which nothing happens.
const TEST_TIMEOUT: Duration = Duration::from_secs(1);

/// How many of them there are, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Hostile {
    pub clients: usize,
    pub duration: Duration,
}

/// What became of it.
#[derive(Debug)]
pub struct Endured {
    /// Of health checks meanwhile, in seconds.
    pub health: Latency,
    /// Answers to the clients by status; 0 stands for none.
    pub answers: BTreeMap<u16, usize>,
}

impl Hostile {
    /// Lets them loose on a server on a loopback port.
    ///
    /// # Errors
    /// A health check was not answered with 200.
    pub fn run(self, port: u16) -> Result<Endured> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let end = Instant::now() + self.duration;
        let answers = RefCell::new(BTreeMap::new());
        let clients = (0..self.clients).map(|number| client(port, number, end, &answers));
        let (health, _) = runtime.block_on(join(health(port, end), join_all(clients)));
        Ok(Endured {
            health: Latency::of(health?),
            answers: answers.into_inner(),
        })
    }
}

async fn client(port: u16, number: usize, end: Instant, answers: &RefCell<BTreeMap<u16, usize>>) {
    let mut round = number;
    while Instant::now() < end {
        let attack = attack(round);
        round += 1;
        // A connection that the server resets is what it may do.
        let status = timeout(TEST_TIMEOUT, send(port, &attack))
            .await
            .ok()
            .and_then(Result::ok);
        *answers.borrow_mut().entry(status.unwrap_or(0)).or_default() += 1;
    }
}

/// What is sent: a head, perhaps with the beginning of a body, and a piece of a body so many times.
struct Attack {
    head: String,
    piece: Vec<u8>,
    pieces: usize,
}

fn attack(number: usize) -> Attack {
    let head = |path: &str, more: &str, length: usize| {
        format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{more}content-length: {length}\r\n\r\n"
        )
    };
    let whole = |path: &str, more: &str, body: String| Attack {
        head: head(path, more, body.len()),
        piece: body.into_bytes(),
        pieces: 1,
    };
    // A list of millions of zeros: seventy bytes of memory for each two.
    let huge = |path: &str, more: &str| Attack {
        head: head(path, more, 40 * MIB + 1) + "[",
        piece: b"0,".repeat(MIB / 2),
        pieces: 40,
    };
    let filled = |piece: &str| format!("[{}0]", piece.repeat((16 * KIB - 3) / piece.len()));
    match number % 12 {
        0 => whole(OPEN, "", filled("0,")),
        1 => whole(OPEN, "", filled("[0],")),
        2 => whole(OPEN, "", filled("{\"\":0},")),
        3 => whole(OPEN, "", "{\"a\":".repeat(3 * KIB)),
        4 => whole("/api/auth/okta/callback", "", many_keys()),
        5 => huge(OPEN, ""),
        6 => huge("/api/project/main/runs/apply", ""),
        7 => huge(
            "/api/project/main/runs/apply",
            "authorization: Bearer nobody's\r\n",
        ),
        8 => huge("/api/project/main/repos/upload_code?repo_id=x", ""),
        9 => Attack {
            head: format!(
                "POST {OPEN} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
                 transfer-encoding: chunked\r\n\r\n1\r\n[\r\n"
            ),
            piece: [b"10000\r\n".as_slice(), &b"0,".repeat(32 * KIB), b"\r\n"].concat(),
            pieces: 600,
        },
        10 => Attack {
            head: "GET /healthcheck HTTP/1.1\r\n".to_owned(),
            piece: format!("x-{}: {}\r\n", "a".repeat(100), "b".repeat(KIB)).into_bytes(),
            pieces: 10_000,
        },
        // Begins, and never goes on.
        _ => Attack {
            head: head(OPEN, "", 16 * KIB),
            piece: vec![b' '; 15 * KIB],
            pieces: 1,
        },
    }
}

/// An object that has nothing that is asked for.
fn many_keys() -> String {
    let keys: Vec<String> = (0..900).map(|number| format!("\"{number}\":[]")).collect();
    format!("{{{}}}", keys.join(","))
}

/// The status of the answer.
async fn send(port: u16, attack: &Attack) -> Result<u16> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let (mut from, mut to) = stream.split();
    let sent = async {
        to.write_all(attack.head.as_bytes()).await?;
        for _ in 0..attack.pieces {
            to.write_all(&attack.piece).await?;
        }
        // The answer comes now, or never.
        std::future::pending::<std::io::Result<()>>().await
    };
    let answered = async {
        let mut start = [0; 12];
        from.read_exact(&mut start).await?;
        let status = std::str::from_utf8(&start)?.split(' ').nth(1);
        Ok(status.unwrap_or_default().parse()?)
    };
    tokio::select! {
        // The server may answer and close before everything is sent.
        biased;
        status = answered => status,
        sent = sent => Ok(sent.map(|()| 0)?),
    }
}

/// Asks whether the server runs, twenty times a second: how long each answer took.
async fn health(port: u16, end: Instant) -> Result<Vec<f64>> {
    const REQUEST: &[u8] = b"GET /healthcheck HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let mut samples = Vec::new();
    while samples.is_empty() || Instant::now() < end {
        let sent = Instant::now();
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(REQUEST).await?;
        let mut answer = Vec::new();
        timeout(Duration::from_secs(30), stream.read_to_end(&mut answer)).await??;
        let answer = String::from_utf8_lossy(&answer);
        ensure!(
            answer.starts_with("HTTP/1.1 200 "),
            "a health check was answered {answer}"
        );
        samples.push(sent.elapsed().as_secs_f64());
        sleep(Duration::from_millis(50)).await;
    }
    Ok(samples)
}
