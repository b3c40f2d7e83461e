//! Clients that follow changes: what ten thousand of them cost a server that has nothing to tell, and how soon they hear.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures_util::future::try_join_all;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::measures::{Figure, figure, ours_only};
use super::report::Unit;
use super::subject::Subject;
use crate::load::{Latency, Load};
use crate::server::{Server, TOKEN};

/// Clients that follow, each on a connection of its own.
const FOLLOWERS: usize = 10_000;
/// One user has a quarter of the places at most.
const USERS: usize = 5;
/// Connections that the server is to take: half of them may be those of followers.
const CONNECTIONS: usize = 2 * FOLLOWERS;
/// So many connections are made at a time.
const AT_ONCE: usize = 200;
/// What the server goes on doing for a moment.
const SETTLES: Duration = Duration::from_secs(5);
/// Changes whose way is measured.
const CHANGES: usize = 200;

const READS: Load = Load {
    clients: 16,
    duration: Duration::from_secs(5),
    requests: usize::MAX,
};

pub(super) fn live(subject: &Subject, _: usize) -> Result<Vec<Figure>> {
    ours_only(subject)?;
    let server = subject
        .server()
        .variable("DSTACK_SERVER_MAX_CONNECTIONS", CONNECTIONS.to_string())
        .start()?;
    let tokens = users(&server)?;
    let mut figures = heard(&server)?;
    let (before, alone) = (server.resident_bytes()?, reads(&server)?);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let followers = runtime.block_on(follow(server.port(), &tokens))?;
    thread::sleep(SETTLES);
    let (after, beside) = (server.resident_bytes()?, reads(&server)?);
    ensure!(followers.len() == FOLLOWERS, "not all clients follow");
    drop(followers);
    let name = format!("{FOLLOWERS} clients that follow changes");
    figures.extend([
        figure(
            format!("server resident, {name} more than without"),
            Unit::Bytes,
            "≤ 200 MB",
            after - before,
        ),
        figure(
            "`users/get_my_user`, 16 clients, p99, nobody follows",
            Unit::Seconds,
            "–",
            alone,
        ),
        figure(
            format!("`users/get_my_user`, 16 clients, p99, beside {name}"),
            Unit::Seconds,
            "no more",
            beside,
        ),
    ]);
    Ok(figures)
}

/// Users with tokens, in no project.
fn users(server: &Server) -> Result<Vec<String>> {
    let mut tokens = Vec::new();
    for number in 0..USERS {
        let name = format!("follower-{number}");
        let user = json!({"username": name, "global_role": "user"});
        server.get("/api/users/create", &user)?;
        let user = server.get("/api/users/get_user", &json!({"username": name}))?;
        let token = user["creds"]["token"].as_str().context("no token")?;
        tokens.push(token.to_owned());
    }
    Ok(tokens)
}

fn reads(server: &Server) -> Result<f64> {
    let path = "/api/users/get_my_user";
    let measured = READS.run(server.port(), path, Some(TOKEN), |_| "{}".into())?;
    Ok(measured.latency.p99)
}

fn request(token: &str) -> String {
    format!("GET /api/changes/follow HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n")
}

async fn begin(port: u16, token: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(request(token).as_bytes()).await?;
    until(&mut stream, "event: hello").await?;
    Ok(stream)
}

/// Reads until this text has come.
async fn until(stream: &mut TcpStream, text: &str) -> Result<String> {
    let mut read = String::new();
    let mut chunk = [0; 4096];
    while !read.contains(text) {
        let size = stream.read(&mut chunk).await?;
        if size == 0 {
            bail!("the stream ended after {read}");
        }
        read.push_str(std::str::from_utf8(chunk.get(..size).unwrap_or_default())?);
    }
    Ok(read)
}

async fn follow(port: u16, tokens: &[String]) -> Result<Vec<TcpStream>> {
    let mut followers = Vec::with_capacity(FOLLOWERS);
    while followers.len() < FOLLOWERS {
        let next =
            (followers.len()..followers.len() + AT_ONCE).filter_map(|number| tokens.get(number % USERS));
        followers.extend(try_join_all(next.map(|token| begin(port, token))).await?);
    }
    Ok(followers)
}

/// From the answer to a change until a client that follows has heard of it.
fn heard(server: &Server) -> Result<Vec<Figure>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let mut follower = runtime.block_on(begin(server.port(), TOKEN))?;
    let mut times = Vec::with_capacity(CHANGES);
    for number in 0..CHANGES {
        // Whatever was told before has come by then: the next is a batch of its own.
        thread::sleep(Duration::from_millis(150));
        let secret = json!({"name": format!("secret_{number}"), "value": "x"});
        let begun = Instant::now();
        server.get("/api/project/main/secrets/create_or_update", &secret)?;
        runtime.block_on(until(&mut follower, "\"project\""))?;
        times.push(begun.elapsed().as_secs_f64());
    }
    let times = Latency::of(times);
    let name = "a secret is written → told to a client that follows";
    Ok(vec![
        figure(
            format!("{name}, p50"),
            Unit::Seconds,
            "≤ 0.25 s on the page",
            times.p50,
        ),
        figure(
            format!("{name}, p99"),
            Unit::Seconds,
            "≤ 0.25 s on the page",
            times.p99,
        ),
    ])
}
