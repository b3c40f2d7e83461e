//! Hosts over SSH: how long until they are usable, how long tasks take to start there, and what a connected host costs the server.

use std::net::Ipv4Addr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::machines::Machines;
use super::measures::{Figure, figure, lifecycle, ours_only};
use super::report::Unit;
use super::subject::Subject;
use crate::hosts::{IMAGE, Lab, USUAL};
use crate::load::Latency;
use crate::proxy::Proxy;
use crate::server::{Server, eventually};

/// How often a host is set up and released.
const ROUNDS: usize = 10;
/// Until what is measured has happened: far beyond any target.
const PATIENCE: Duration = Duration::from_secs(60);

/// Connected hosts whose cost is measured.
const CONNECTED: usize = 1_000;
/// Until all of them are set up, this machine doing the work of a thousand.
const CONNECTED_PATIENCE: Duration = Duration::from_secs(540);
/// What the server goes on doing for a moment when the last one is.
const SETTLES: Duration = Duration::from_secs(15);

pub(super) fn hosts(subject: &Subject, _: usize) -> Result<Vec<Figure>> {
    ours_only(subject)?;
    let mut figures = usable(subject)?;
    for (trip, target) in [(1, "≤ 0.5 s"), (50, "≤ 1 s")] {
        figures.extend(running(subject, Duration::from_millis(trip), target)?);
    }
    Ok(figures)
}

fn lab() -> Result<Lab> {
    Lab::new().map_err(anyhow::Error::msg)
}

pub(super) fn apply(server: &Server, spec: &Value) -> Result<()> {
    let body = json!({"plan": {"spec": spec}, "force": true});
    server.get("/api/project/main/fleets/apply", &body).map(drop)
}

/// How many of fleet `lab` are idle.
pub(super) fn idle(server: &Server) -> Result<usize> {
    idle_in(server, "lab")
}

fn idle_in(server: &Server, fleet: &str) -> Result<usize> {
    let fleet = server.get("/api/project/main/fleets/get", &json!({"name": fleet}))?;
    let instances = fleet["instances"].as_array().context("no instances")?;
    Ok(instances
        .iter()
        .filter(|instance| instance["status"] == "idle")
        .count())
}

fn until_idle(server: &Server) -> Result<()> {
    until_idle_in(server, "lab")
}

/// Until the only host of a fleet takes jobs.
pub(super) fn until_idle_in(server: &Server, fleet: &str) -> Result<()> {
    eventually("the host is idle", PATIENCE, || {
        Ok((idle_in(server, fleet)? == 1).then_some(()))
    })
}

fn delete(server: &Server) -> Result<()> {
    server.get("/api/project/main/fleets/delete", &json!({"names": ["lab"]}))?;
    eventually("the fleet is gone", PATIENCE, || {
        let fleets = server.get("/api/project/main/fleets/list", &json!({}))?;
        Ok((fleets == json!([])).then_some(()))
    })
}

/// From `apply` until the host takes jobs, each time from nothing: no agent, no key of ours.
fn usable(subject: &Subject) -> Result<Vec<Figure>> {
    let lab = lab()?;
    let host = lab.host("one", 2, USUAL).map_err(anyhow::Error::msg)?;
    let server = subject.server().start()?;
    let spec = lab.fleet("lab", &[host.entry()], &json!({}))?;
    let mut times = Vec::new();
    for _ in 0..=ROUNDS {
        let begin = Instant::now();
        apply(&server, &spec)?;
        until_idle(&server)?;
        times.push(begin.elapsed().as_secs_f64());
        delete(&server)?;
    }
    // For the first one the agent's file is packed.
    let first = times.remove(0);
    let times = Latency::of(times);
    let name = "applied → host usable, Docker is there";
    Ok(vec![
        figure(
            format!("{name}, the server's first"),
            Unit::Seconds,
            "≤ 5 s",
            first,
        ),
        figure(format!("{name}, p50"), Unit::Seconds, "≤ 5 s", times.p50),
        figure(format!("{name}, p95"), Unit::Seconds, "≤ 5 s", times.p95),
    ])
}

/// Short tasks on a host with a network of its own, which is so far away.
fn running(subject: &Subject, round_trip: Duration, target: &'static str) -> Result<Vec<Figure>> {
    let lab = lab()?;
    let host = lab.host("one", 2, USUAL).map_err(anyhow::Error::msg)?;
    let address: Ipv4Addr = host.address.parse()?;
    let proxy = Proxy::to((address, 22).into())?;
    proxy.delay(round_trip / 2);
    // One with a machine of its own asks that machine's engine what the image is: there is no registry.
    let server = subject.local_server("process")?.start()?;
    let entry = json!({"hostname": proxy.address(), "port": proxy.port()});
    apply(&server, &lab.fleet("lab", &[entry], &json!({}))?)?;
    until_idle(&server)?;
    let more = json!({"image": IMAGE, "user": "root", "fleets": ["lab"]});
    let what = format!("host over SSH, round trip {} ms", round_trip.as_millis());
    // Until then the host still takes the task before apart, which is no part of the start of the next one.
    lifecycle(&server, &what, target, &more, || until_idle(&server))
}

/// The server's memory for each of many idle hosts to which it is connected. Needs no host: doubles stand for all of them.
pub(super) fn connected(subject: &Subject, _: usize) -> Result<Vec<Figure>> {
    ours_only(subject)?;
    let machines = Machines::start(CONNECTED)?;
    let server = subject.server().start()?;
    apply(&server, &machines.fleet(1)?)?;
    until_idle(&server)?;
    thread::sleep(SETTLES);
    let before = server.resident_bytes()?;
    apply(&server, &machines.fleet(CONNECTED)?)?;
    let end = Instant::now() + CONNECTED_PATIENCE;
    loop {
        let count = idle(&server)?;
        if count == CONNECTED {
            break;
        }
        if Instant::now() > end {
            bail!("only {count} of {CONNECTED} hosts are set up");
        }
        thread::sleep(Duration::from_secs(1));
    }
    thread::sleep(SETTLES);
    let after = server.resident_bytes()?;
    Ok(vec![figure(
        format!("server resident, for each of {CONNECTED} connected hosts"),
        Unit::Bytes,
        "≤ 64 KB",
        (after - before) / (CONNECTED - 1) as f64,
    )])
}
