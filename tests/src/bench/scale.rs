//! Ten thousand hosts with twenty thousand jobs on one server: its memory, and how readers fare. The hosts are simulated in the
//! server's process, and their memory counts as the server's.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use russh::keys::ssh_key::LineEnding;
use serde_json::json;

use super::machines::new_key;
use super::measures::{Figure, figure, ours_only};
use super::report::Unit;
use super::subject::Subject;
use crate::load::{Load, Pace};
use crate::server::{Server, Setup, TOKEN, eventually};

const FLEETS: usize = 10;
const HOSTS_OF_FLEET: usize = 1_000;
const HOSTS: usize = FLEETS * HOSTS_OF_FLEET;
/// Jobs that a host has room for.
const BLOCKS: usize = 2;
const JOBS: usize = BLOCKS * HOSTS;
/// Until all are set up, or run: this machine does the work of ten thousand.
const PATIENCE: Duration = Duration::from_secs(900);
/// Readers who do not wait for each other.
const READS: Pace = Pace {
    rate: 50.0,
    duration: Duration::from_secs(20),
    connections: 16,
};
const LIST: &str = "/api/runs/list";

pub(super) fn scale(subject: &Subject, _: usize) -> Result<Vec<Figure>> {
    ours_only(subject)?;
    let program = crate::parts::scale_server().map_err(anyhow::Error::msg)?;
    let server = Setup::new(program).argument("--no-local").start()?;
    let idle = read(&server)?;
    let begun = Instant::now();
    for number in 0..FLEETS {
        let hosts = hosts(number, HOSTS_OF_FLEET);
        apply(&server, &format!("lab-{number}"), &hosts, BLOCKS)?;
    }
    until_ready(&server)?;
    let ready = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let submit = Load {
        clients: 8,
        duration: PATIENCE,
        requests: JOBS,
    };
    let (submitted, meanwhile) = thread::scope(|scope| {
        let submitted =
            scope.spawn(|| submit.run(server.port(), "/api/project/main/runs/apply", Some(TOKEN), task));
        let meanwhile = read(&server);
        (submitted.join(), meanwhile)
    });
    submitted.map_err(|_| anyhow::anyhow!("the load panicked"))??;
    let meanwhile = meanwhile?;
    until_running(&server)?;
    let running = begun.elapsed().as_secs_f64();
    let resting = read(&server)?;
    let name = format!("{HOSTS} hosts with {JOBS} jobs");
    Ok(vec![
        figure(
            format!("{HOSTS} hosts named → all usable"),
            Unit::Seconds,
            "–",
            ready,
        ),
        figure(
            format!("{JOBS} jobs submitted → all run on {HOSTS} hosts"),
            Unit::Seconds,
            "–",
            running,
        ),
        figure(
            format!("server resident, {name}, the simulated hosts included"),
            Unit::Bytes,
            "≤ 1 GB",
            server.resident_bytes()?,
        ),
        figure(
            format!("server resident at most, {name}"),
            Unit::Bytes,
            "–",
            server.resident_bytes_at_most()?,
        ),
        figure(
            "`runs/list` of 20, 50/s, p99, nothing else there",
            Unit::Seconds,
            "–",
            idle,
        ),
        figure(
            format!("`runs/list` of 20, 50/s, p99, {name} running"),
            Unit::Seconds,
            "≤ 2× nothing else there",
            resting,
        ),
        figure(
            format!("`runs/list` of 20, 50/s, p99, {name} being submitted and started"),
            Unit::Seconds,
            "–",
            meanwhile,
        ),
    ])
}

/// The p99 of readers, in seconds.
fn read(server: &Server) -> Result<f64> {
    let body = json!({"project_name": "main", "limit": 20}).to_string();
    let read = READS.run(&Barrier::new(1), server.port(), LIST, TOKEN, |_| body.clone())?;
    let latency = read.latency.context("no reader was answered")?;
    ensure!(
        read.answers.len() == 1,
        "some readers were refused: {:?}",
        read.answers
    );
    Ok(latency.p99)
}

/// Applies a fleet of simulated hosts, each with so many places for jobs.
pub(super) fn apply(server: &Server, name: &str, hosts: &[String], blocks: usize) -> Result<()> {
    // It opens nothing: there is no SSH.
    let key = new_key()?;
    let key = json!({"public": key.public_key().to_openssh()?, "private": key.to_openssh(LineEnding::LF)?.as_str()});
    let ssh = json!({"user": "me", "ssh_key": key, "hosts": hosts});
    let configuration = json!({"type": "fleet", "name": name, "ssh_config": ssh, "blocks": blocks});
    let spec = json!({"configuration": configuration, "profile": {"name": "default"}});
    let body = json!({"plan": {"spec": spec}, "force": true});
    server.get("/api/project/main/fleets/apply", &body).map(drop)
}

/// The names of the first hosts of a fleet, which are different from those of fleets with other numbers.
pub(super) fn hosts(fleet: usize, count: usize) -> Vec<String> {
    (0..count)
        .map(|host| format!("10.{fleet}.{}.{}", host / 250, host % 250 + 1))
        .collect()
}

fn task(number: usize) -> String {
    let resources = json!({"cpu": "1..", "memory": "1GB..", "disk": "1GB.."});
    let configuration = json!({"type": "task", "commands": ["sleep 1000000"], "resources": resources});
    let spec = json!({"run_name": format!("job-{number}"), "configuration": configuration});
    json!({"plan": {"run_spec": spec}, "force": false}).to_string()
}

fn until_ready(server: &Server) -> Result<()> {
    eventually("all hosts are usable", PATIENCE, || {
        thread::sleep(Duration::from_millis(500));
        let mut idle = 0;
        for number in 0..FLEETS {
            let name = json!({"name": format!("lab-{number}")});
            let fleet = server.get("/api/project/main/fleets/get", &name)?;
            let instances = fleet["instances"].as_array().context("no instances")?;
            idle += instances
                .iter()
                .filter(|instance| instance["status"] == "idle")
                .count();
        }
        Ok((idle == HOSTS).then_some(()))
    })
}

/// The youngest job gets its place last.
fn until_running(server: &Server) -> Result<()> {
    eventually("all jobs run", PATIENCE, || {
        thread::sleep(Duration::from_millis(500));
        let metrics = server.get(LIST, &json!({"project_name": "main", "limit": 100}))?;
        let runs = metrics.as_array().context("no runs")?;
        let youngest = runs.iter().all(|run| run["status"] == "running");
        Ok(youngest.then_some(()))
    })
}
