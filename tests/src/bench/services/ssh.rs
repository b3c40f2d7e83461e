//! Requests to a service on another host, which only SSH reaches: from the server and from a gateway, beside nginx whose connections
//! go through `ssh -L` to the same host.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::bodies::{self, BODY, STREAMING, Way};
use super::nginx::Nginx;
use super::upstream::{Connection, HELLO, serve_within, whole};
use super::{LOAD, PATH, ROUNDS, Targets, once, shown};
use crate::bench::hosts::{apply, until_idle_in};
use crate::bench::measures::{Figure, ours_only};
use crate::bench::subject::Subject;
use crate::hosts::{Host, IMAGE, Lab, USUAL};
use crate::load::{Destination, Load, Measured};
use crate::runs::{TEST_TIMEOUT, submit};
use crate::server::{Server, TOKEN, eventually, free_port};

/// Of the service, on its host.
const PORT: u16 = 8000;
/// What is a mebibyte of the service's.
const LARGE: &str = "large";
/// The service at the gateway.
const NAME: &str = "web.example.test";

pub(in crate::bench) fn through_server(subject: &Subject, _: usize) -> Result<Vec<Figure>> {
    ours_only(subject)?;
    let lab = Lab::new().map_err(anyhow::Error::msg)?;
    let (server, host) = with_host(subject, &lab)?;
    run(&server, &json!({}))?;
    let large = format!("{PATH}{LARGE}");
    let at = |path| Destination::here(server.port(), path, Some(TOKEN));
    until_answered(&at(PATH))?;
    compared("the server", &lab, &host, &at(PATH), &at(&large))
}

pub(in crate::bench) fn through_gateway(subject: &Subject, _: usize) -> Result<Vec<Figure>> {
    ours_only(subject)?;
    let lab = Lab::new().map_err(anyhow::Error::msg)?;
    let (server, host) = with_host(subject, &lab)?;
    let gate = lab.host("gate", 3, USUAL).map_err(anyhow::Error::msg)?;
    apply(&server, &lab.fleet("gate", &[gate.entry()], &json!({}))?)?;
    until_idle_in(&server, "gate")?;
    start_gateway(&server)?;
    run(&server, &json!({"https": false}))?;
    let large = format!("/{LARGE}");
    let address = format!("{}:80", gate.address).parse()?;
    let at = |path| Destination {
        address,
        host: NAME,
        path,
        token: Some(TOKEN),
    };
    until_answered(&at("/"))?;
    compared("a gateway", &lab, &host, &at("/"), &at(&large))
}

/// A server, and a host for the service, on which what answers listens already.
fn with_host<'a>(subject: &Subject, lab: &'a Lab) -> Result<(Server, Host<'a>)> {
    let host = lab.host("one", 2, USUAL).map_err(anyhow::Error::msg)?;
    serve_within(&host, PORT, answer)?;
    // One with a machine of its own asks that machine's engine what the image is: there is no registry.
    let server = subject.local_server("process")?.start()?;
    apply(&server, &lab.fleet("lab", &[host.entry()], &json!({}))?)?;
    until_idle_in(&server, "lab")?;
    Ok((server, host))
}

/// Has the whole host, so that the port is the host's.
fn run(server: &Server, more: &Value) -> Result<()> {
    let mut service =
        json!({"type": "service", "port": PORT, "image": IMAGE, "user": "root", "fleets": ["lab"]});
    if let (Value::Object(all), Value::Object(more)) = (&mut service, more) {
        all.extend(more.clone());
    }
    submit(server, "web", &["sleep 1000000"], &service).map(drop)
}

fn start_gateway(server: &Server) -> Result<()> {
    let configuration = json!({
        "type": "gateway", "name": "gate", "backend": "remote", "region": "gate", "instance_type": "gate-0",
        "domain": "*.example.test", "certificate": Value::Null, "default": true,
    });
    let create = json!({"configuration": configuration});
    server.get("/api/project/main/gateways/create", &create)?;
    eventually("the gateway runs", TEST_TIMEOUT, || {
        let gateway = server.get("/api/project/main/gateways/get", &json!({"name": "gate"}))?;
        Ok((gateway["status"] == "running").then_some(()))
    })
}

fn until_answered(destination: &Destination<'_>) -> Result<()> {
    let once = Load {
        clients: 1,
        requests: 1,
        ..LOAD
    };
    eventually("the service answers", TEST_TIMEOUT, || {
        Ok(once.get_at(destination).ok().map(drop))
    })
}

/// Small answers, and bodies both ways, in turns with nginx.
fn compared(
    what: &str,
    lab: &Lab,
    host: &Host<'_>,
    small: &Destination<'_>,
    large: &Destination<'_>,
) -> Result<Vec<Figure>> {
    let tunnel = Tunnel::to(lab, host)?;
    let nginx = Nginx::start(tunnel.port, STREAMING)?;
    let port = nginx.as_ref().map(|nginx| nginx.port);
    let theirs = |path| port.map(|port| Destination::here(port, path, None));
    let clients = LOAD.clients;
    let beside = "behind nginx with keep-alive over the same SSH, without tokens";

    let (mine, others) = in_turns(small, theirs("/"), |destination| LOAD.get_at(destination))?;
    let p99 = "≤ 2 ms";
    let rate = "≥ nginx";
    let name = format!("a request to a service over SSH through {what}, with a token, {clients} clients");
    let mut figures = shown(&name, &Targets { rate, p99 }, mine);
    let name = format!("the same service {beside}");
    figures.extend(shown(&name, &Targets::NONE, others));

    let body = vec![b'x'; BODY];
    let large_path = format!("/{LARGE}");
    for (way, name) in [
        (Way::Answers, "answers of 1 MiB of a service over SSH"),
        (Way::Requests, "requests of 1 MiB to a service over SSH"),
    ] {
        let (mine, others) = in_turns(large, theirs(&large_path), |destination| {
            way.load(destination, &body)
        })?;
        let through = format!("{name} through {what}, with a token, {clients} clients");
        figures.extend(bodies::shown(&through, "≥ nginx", mine));
        figures.extend(bodies::shown(&format!("{name} {beside}"), "–", others));
    }
    Ok(figures)
}

/// Rounds of ours and of nginx's, if it is there: what is measured shares its processors with others.
fn in_turns(
    ours: &Destination<'_>,
    theirs: Option<Destination<'_>>,
    load: impl Fn(&Destination<'_>) -> Result<Measured>,
) -> Result<(Vec<Measured>, Vec<Measured>)> {
    let (mut mine, mut others) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        mine.push(load(ours)?);
        if let Some(theirs) = &theirs {
            others.push(load(theirs)?);
        }
    }
    Ok((mine, others))
}

/// Requests with a body and those for the root get a few bytes, others a mebibyte.
async fn answer(stream: TcpStream) -> Result<()> {
    let large = whole("application/octet-stream", &vec![b'x'; BODY]);
    let mut connection = Connection::new(stream)?;
    while let Some(request) = connection.request().await? {
        let is_large = request.starts_with(b"GET /large ");
        connection.send(if is_large { &large } else { HELLO }).await?;
    }
    Ok(())
}

/// `ssh -L` to the service's port of a host. Ends when it is dropped.
struct Tunnel {
    child: Child,
    port: u16,
}

impl Tunnel {
    fn to(lab: &Lab, host: &Host<'_>) -> Result<Tunnel> {
        let port = free_port()?;
        let child = Command::new("ssh")
            .args(["-N", "-F", "none", "-o", "StrictHostKeyChecking=no"])
            .args([
                "-o",
                "UserKnownHostsFile=/dev/null",
                "-o",
                "ExitOnForwardFailure=yes",
            ])
            .arg("-i")
            .arg(lab.identity_file())
            .arg("-L")
            .arg(format!("127.0.0.1:{port}:127.0.0.1:{PORT}"))
            .arg(format!("me@{}", host.address))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("ssh does not start")?;
        let tunnel = Tunnel { child, port };
        eventually("the tunnel answers", TEST_TIMEOUT, || {
            Ok(once(port, "/", None).ok())
        })?;
        Ok(tunnel)
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
