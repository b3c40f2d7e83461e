//! Requests that the server passes on to a service of this machine: what listens in this process, since as processes jobs have the
//! ports of this machine.

mod added;
mod bodies;
mod gateway;
mod latency;
mod many;
mod models;
mod nginx;
mod sockets;
mod ssh;
mod streams;
mod upstream;

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use self::nginx::Nginx;
use self::upstream::{hello_at_once, serve};
use super::measures::{Figure, figure, ours_only};
use super::report::Unit;
use super::subject::Subject;
use crate::load::{Load, Measured};
use crate::runs::{TEST_TIMEOUT, submit};
use crate::server::{Server, TOKEN, eventually};

pub(super) use self::bodies::bodies;
pub(super) use self::gateway::gateway;
pub(super) use self::latency::latency;
pub(super) use self::many::many;
pub(super) use self::models::models;
pub(super) use self::sockets::sockets;
pub(super) use self::ssh::{through_gateway, through_server};
pub(super) use self::streams::streams;
pub(super) use self::upstream::hello;

const LOAD: Load = Load {
    clients: 16,
    duration: Duration::from_secs(5),
    requests: usize::MAX,
};

const PATH: &str = "/proxy/services/main/web/";

/// How often each load is repeated, in turns with what it is beside: what is measured shares its processors with others.
const ROUNDS: usize = 3;

pub(super) fn services(subject: &Subject, _: usize) -> Result<Vec<Figure>> {
    ours_only(subject)?;
    let port = serve(hello_at_once)?;
    let nginx = Nginx::start(port, "")?;
    let server = serving(subject, port, &json!({}))?;
    let mut ours = Vec::new();
    let mut theirs = Vec::new();
    for _ in 0..ROUNDS {
        ours.push(LOAD.get(server.port(), PATH, Some(TOKEN))?);
        if let Some(nginx) = &nginx {
            theirs.push(LOAD.get(nginx.port, "/", None)?);
        }
    }
    let p99 = "≤ 2 ms";
    let rate = "≥ 0.8 of nginx";
    let mut figures = shown(
        "a request to a service of this machine, with a token, 16 clients",
        &Targets { rate, p99 },
        ours,
    );
    figures.extend(shown(
        "the same service behind nginx with keep-alive, without tokens",
        &Targets { rate: "–", p99 },
        theirs,
    ));
    Ok(figures)
}

/// A server with the service `web`, which answers at a port of this machine; `more` has further fields of its configuration.
fn serving(subject: &Subject, port: u16, more: &Value) -> Result<Server> {
    let server = subject.local_server("process")?.start()?;
    let mut service = json!({"type": "service", "port": port});
    if let (Value::Object(all), Value::Object(more)) = (&mut service, more) {
        all.extend(more.clone());
    }
    submit(&server, "web", &["sleep 1000000"], &service)?;
    eventually("the service answers", TEST_TIMEOUT, || {
        Ok(once(server.port(), PATH, Some(TOKEN)).ok())
    })?;
    Ok(server)
}

fn once(port: u16, path: &str, token: Option<&str>) -> Result<Measured> {
    let load = Load {
        clients: 1,
        requests: 1,
        ..LOAD
    };
    load.get(port, path, token)
}

/// Of answers per second, and of the p99 of how long they took.
struct Targets {
    rate: &'static str,
    p99: &'static str,
}

impl Targets {
    /// For comparison only.
    const NONE: Targets = Targets {
        rate: "–", p99: "–"
    };
}

/// The median of the rounds; nothing if there were none.
fn shown(name: &str, targets: &Targets, rounds: Vec<Measured>) -> Vec<Figure> {
    let Some(median) = median_round(rounds) else {
        return Vec::new();
    };
    vec![
        figure(name, Unit::PerSecond, targets.rate, median.rate),
        figure(
            format!("{name}, p99"),
            Unit::Seconds,
            targets.p99,
            median.latency.p99,
        ),
    ]
}

/// The one in the middle by its rate.
fn median_round(mut rounds: Vec<Measured>) -> Option<Measured> {
    rounds.sort_by(|one, other| one.rate.total_cmp(&other.rate));
    rounds.get(rounds.len() / 2).copied()
}
