//! Many machines of a cloud that answers at once: how soon all of them are asked for, and asked to end.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use dstack_backend_kit::{Emulator as _, serve};
use dstack_emulator_cloudrift::{CloudRift, Times};
use serde_json::json;

use super::measures::{Figure, figure, ours_only};
use super::report::Unit;
use super::subject::Subject;
use crate::server::Server;

const MACHINES: usize = 200;
/// Far beyond any target.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often the books of the cloud are looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

const KEY: &str = "key";
/// A size of the catalogue, and a data center that has it.
const SIZE: (&str, &str) = ("rtx49-10c.1", "us-east-nc-nr-1");

pub(super) fn clouds(subject: &Subject, _: usize) -> Result<Vec<Figure>> {
    ours_only(subject)?;
    many_machines(subject).map(Vec::from)
}

/// A cloud that has one size of machines, and the setting by which a server takes it for CloudRift.
fn cloud() -> (CloudRift, String) {
    let times = Times {
        starts: Duration::ZERO,
        ends: Duration::ZERO,
    };
    let sizes = vec![(SIZE.0.to_owned(), SIZE.1.to_owned())];
    // Nothing listens there: what is measured is over before the machines would be set up.
    let nowhere = |_: &[String]| Some(("127.0.0.1".to_owned(), 9));
    let cloud = CloudRift::with_machines(KEY, sizes, times, Box::new(nowhere));
    let endpoint = format!("cloudrift=http://{}/api/v1", serve(cloud.router()));
    (cloud, endpoint)
}

fn many_machines(subject: &Subject) -> Result<[Figure; 2]> {
    let (cloud, endpoint) = cloud();
    let server = subject
        .server()
        .variable("DSTACK_SERVER_BACKEND_ENDPOINTS", endpoint)
        .start()?;
    add_fast(&server)?;
    // Offers are known before: how long a cloud takes to tell them is its own affair.
    apply(&server, "first", 1)?;
    until("the first machine is made", || cloud.ledger().count() == 1)?;
    let begun = Instant::now();
    apply(&server, "many", MACHINES)?;
    until("all machines are made", || cloud.ledger().count() == MACHINES + 1)?;
    let made = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    // Refused while its last machines are noted.
    let delete = json!({"names": ["many"]});
    until("the fleet may be deleted", || {
        server.get("/api/project/main/fleets/delete", &delete).is_ok()
    })?;
    until("all machines are ended", || cloud.ledger().alive().len() == 1)?;
    let ended = begun.elapsed().as_secs_f64();
    let name = "a cloud that answers at once";
    Ok([
        figure(
            format!("fleet of {MACHINES} applied → all machines asked for, {name}"),
            Unit::Seconds,
            "≤ 1 s",
            made,
        ),
        figure(
            format!("fleet of {MACHINES} deleted → all machines ended, {name}"),
            Unit::Seconds,
            "≤ 1 s",
            ended,
        ),
    ])
}

fn add_fast(server: &Server) -> Result<()> {
    let config = json!({"type": "cloudrift", "creds": {"type": "api_key", "api_key": KEY}});
    server.get("/api/project/main/backends/create", &config).map(drop)
}

fn apply(server: &Server, name: &str, nodes: usize) -> Result<()> {
    let configuration = json!({"type": "fleet", "name": name, "nodes": nodes, "backends": ["cloudrift"]});
    let spec = json!({"configuration": configuration, "profile": {"name": "default"}});
    let body = json!({"plan": {"spec": spec}, "force": true});
    let answer = server.get("/api/project/main/fleets/apply", &body)?;
    answer["id"].as_str().context("no fleet was made").map(drop)
}

fn until(what: &str, is_so: impl Fn() -> bool) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        if Instant::now() > end {
            bail!("not in time: {what}");
        }
        thread::sleep(LOOK_INTERVAL);
    }
    Ok(())
}
