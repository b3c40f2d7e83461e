//! Many machines of a cloud that answers at once: how soon all of them are asked for, and asked to end; and how soon there is a
//! plan for it while another cloud takes half a minute for each answer.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use dstack_backend_kit::{Emulator as _, serve};
use dstack_emulator_cloudrift::{CloudRift, Times};
use serde_json::json;

use super::measures::{Figure, figure, ours_only};
use super::report::Unit;
use super::subject::Subject;
use crate::load::Latency;
use crate::server::Server;

const MACHINES: usize = 200;
/// Far beyond any target.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often the books of the cloud are looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

const KEY: &str = "key";
/// A size of the catalogue, and a data center that has it.
const SIZE: (&str, &str) = ("rtx49-10c.1", "us-east-nc-nr-1");

/// Of each answer of the slow cloud.
const SLOW: Duration = Duration::from_secs(30);
/// Plans that are asked for one after another.
const PLANS: usize = 20;

pub(super) fn clouds(subject: &Subject, _: usize) -> Result<Vec<Figure>> {
    ours_only(subject)?;
    let mut figures = Vec::from(many_machines(subject)?);
    figures.extend(beside_a_slow_one(subject)?);
    Ok(figures)
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

fn beside_a_slow_one(subject: &Subject) -> Result<[Figure; 3]> {
    let alone = {
        let (_cloud, endpoint) = cloud();
        let server = subject
            .server()
            .variable("DSTACK_SERVER_BACKEND_ENDPOINTS", endpoint)
            .start()?;
        add_fast(&server)?;
        plan_times(&server)?
    };
    let (_cloud, endpoint) = cloud();
    let slow = axum::Router::new().fallback(async || {
        tokio::time::sleep(SLOW).await;
        axum::http::StatusCode::SERVICE_UNAVAILABLE
    });
    let endpoints = format!("{endpoint},lambda=http://{}/api/v1", serve(slow));
    // It is in the file, so that it is there without having been asked whether the key is right.
    let server = subject
        .server()
        .variable("DSTACK_SERVER_BACKEND_ENDPOINTS", endpoints)
        .config(
            "projects:\n- name: main\n  backends:\n\
             \x20 - {type: cloudrift, creds: {type: api_key, api_key: key}}\n\
             \x20 - {type: lambda, creds: {type: api_key, api_key: key}}\n",
        )
        .start()?;
    let beside = plan_times(&server)?;
    let name = "one cloud";
    Ok([
        figure(
            format!("a plan of {name}, p50"),
            Unit::Seconds,
            "–",
            alone.rest.p50,
        ),
        figure(
            format!(
                "a plan of {name} beside another that takes {} s an answer, p50",
                SLOW.as_secs()
            ),
            Unit::Seconds,
            "no more",
            beside.rest.p50,
        ),
        figure(
            format!(
                "the first plan beside a cloud that takes {} s an answer",
                SLOW.as_secs()
            ),
            Unit::Seconds,
            "≤ 3 s",
            beside.first,
        ),
    ])
}

fn add_fast(server: &Server) -> Result<()> {
    let config = json!({"type": "cloudrift", "creds": {"type": "api_key", "api_key": KEY}});
    server.get("/api/project/main/backends/create", &config).map(drop)
}

/// In seconds.
struct PlanTimes {
    first: f64,
    rest: Latency,
}

/// Of plans for the fast cloud's machine.
fn plan_times(server: &Server) -> Result<PlanTimes> {
    let configuration = json!({"type": "task", "commands": ["true"], "resources": {"gpu": {"count": 1}}});
    let spec = json!({"run_name": "plan", "configuration": configuration});
    let request = json!({"run_spec": spec, "for_offers_only": true});
    let mut times = Vec::new();
    for _ in 0..=PLANS {
        let begun = Instant::now();
        let plan = server.get("/api/project/main/runs/get_plan", &request)?;
        times.push(begun.elapsed().as_secs_f64());
        let offers = plan["job_plans"][0]["offers"].as_array().context("no offers")?;
        ensure!(
            offers.iter().any(|offer| offer["backend"] == "cloudrift"),
            "the fast cloud is missing in the plan"
        );
    }
    let first = times.remove(0);
    Ok(PlanTimes {
        first,
        rest: Latency::of(times),
    })
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
