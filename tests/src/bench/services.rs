//! Requests that the server passes on to a service of this machine, beside nginx in its place.

use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use tempfile::{NamedTempFile, TempDir};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::measures::{Figure, figure, ours_only};
use super::report::Unit;
use super::subject::Subject;
use crate::load::{Load, Measured};
use crate::parts;
use crate::runs::{TEST_TIMEOUT, submit};
use crate::server::{TOKEN, eventually, free_port};

const LOAD: Load = Load {
    clients: 16,
    duration: Duration::from_secs(5),
    requests: usize::MAX,
};

const PATH: &str = "/proxy/services/main/web/";

pub(super) fn services(subject: &Subject, _: usize) -> Result<Vec<Figure>> {
    ours_only(subject)?;
    // As processes jobs have the ports of this machine: what listens here is the service.
    let port = serve()?;
    let nginx = match parts::program("nginx") {
        Ok(program) => Some(Nginx::start(&program, port)?),
        Err(missing) => {
            println!("    without nginx: {missing}");
            None
        }
    };
    let server = subject.local_server("process")?.start()?;
    let service = json!({"type": "service", "port": port});
    submit(&server, "web", &["sleep 1000"], &service)?;
    eventually("the service answers", TEST_TIMEOUT, || {
        Ok(once(server.port(), PATH, Some(TOKEN)).ok())
    })?;
    // Each for a moment first, and in turns: what is measured shares its processors with others.
    let mut ours = Vec::new();
    let mut theirs = Vec::new();
    for _ in 0..3 {
        ours.push(LOAD.get(server.port(), PATH, Some(TOKEN))?);
        if let Some(nginx) = &nginx {
            theirs.push(LOAD.get(nginx.port, "/", None)?);
        }
    }
    let mut figures = shown(
        "a request to a service of this machine, with a token, 16 clients",
        "≥ 0.8 of nginx",
        ours,
    );
    if !theirs.is_empty() {
        figures.extend(shown(
            "the same service behind nginx with keep-alive, without tokens",
            "–",
            theirs,
        ));
    }
    Ok(figures)
}

/// The median of the rounds.
fn shown(name: &str, target: &'static str, mut rounds: Vec<Measured>) -> Vec<Figure> {
    rounds.sort_by(|one, other| one.rate.total_cmp(&other.rate));
    let Some(median) = rounds.get(rounds.len() / 2) else {
        return Vec::new();
    };
    vec![
        figure(name, Unit::PerSecond, target, median.rate),
        figure(
            format!("{name}, p99"),
            Unit::Seconds,
            "≤ 2 ms",
            median.latency.p99,
        ),
    ]
}

fn once(port: u16, path: &str, token: Option<&str>) -> Result<Measured> {
    let load = Load {
        clients: 1,
        requests: 1,
        ..LOAD
    };
    load.get(port, path, token)
}

/// A service that answers everything with the same few bytes, until this process ends.
fn serve() -> Result<u16> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    thread::spawn(move || {
        runtime.block_on(async move {
            let Ok(listener) = TcpListener::from_std(listener) else {
                return;
            };
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream));
            }
        });
    });
    Ok(port)
}

async fn answer(mut stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut heads = Vec::with_capacity(4096);
    while stream.read_buf(&mut heads).await? > 0 {
        // One request at a time on a connection.
        if heads.ends_with(b"\r\n\r\n") {
            heads.clear();
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n")
                .await?;
        }
    }
    Ok(())
}

/// nginx in front of a port of this machine. Ends when it is dropped.
struct Nginx {
    child: Child,
    port: u16,
    _folder: TempDir,
    _configuration: NamedTempFile,
}

impl Nginx {
    fn start(program: &std::path::Path, upstream: u16) -> Result<Nginx> {
        let folder = TempDir::with_prefix("dstack-bench-nginx-")?;
        let port = free_port()?;
        let at = folder.path().display();
        let mut configuration = NamedTempFile::new()?;
        write!(
            configuration,
            "daemon off; worker_processes auto; pid {at}/pid; error_log {at}/errors;\n\
             events {{ worker_connections 1024; }}\n\
             http {{ access_log off; client_body_temp_path {at}; proxy_temp_path {at}; fastcgi_temp_path {at};\n\
             uwsgi_temp_path {at}; scgi_temp_path {at};\n\
             upstream service {{ server 127.0.0.1:{upstream}; keepalive 64; }}\n\
             server {{ listen 127.0.0.1:{port}; keepalive_requests 1000000;\n\
             location / {{ proxy_pass http://service; proxy_http_version 1.1; proxy_set_header Connection \"\"; }} }} }}\n"
        )?;
        let child = Command::new(program)
            .arg("-c")
            .arg(configuration.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("nginx does not start")?;
        let nginx = Nginx {
            child,
            port,
            _folder: folder,
            _configuration: configuration,
        };
        eventually("nginx answers", TEST_TIMEOUT, || Ok(once(port, "/", None).ok()))?;
        Ok(nginx)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // It ends its workers.
        crate::server::signal(self.child.id(), "TERM");
        self.child.wait().ok();
    }
}
