//! A hundred services with ten replicas each: what they add to the server's memory. Their hosts are simulated in the server's
//! process, and so are their jobs, whose memory counts as the server's: as many jobs that are tasks are beside them. The routes are the
//! real ones; there is no SSH, so that connections to replicas are not in it.

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::bench::hosts::idle;
use crate::bench::measures::{Figure, figure, ours_only};
use crate::bench::report::Unit;
use crate::bench::scale::{apply, hosts};
use crate::bench::subject::Subject;
use crate::http::Client;
use crate::parts;
use crate::runs::submit;
use crate::server::{Server, Setup, TOKEN, eventually};

const SERVICES: usize = 100;
const REPLICAS: usize = 10;
const JOBS: usize = SERVICES * REPLICAS;
/// Jobs that a host has room for.
const BLOCKS: usize = 16;
const HOSTS: usize = JOBS.div_ceil(BLOCKS);
/// Until all hosts are usable, or all jobs run.
const PATIENCE: Duration = Duration::from_secs(300);
/// What the server goes on doing for a moment: a replica without probes counts as serving after ten seconds.
const SETTLES: Duration = Duration::from_secs(15);

pub(in crate::bench) fn many(subject: &Subject, _: usize) -> Result<Vec<Figure>> {
    ours_only(subject)?;
    let program = parts::scale_server().map_err(anyhow::Error::msg)?;
    let services = added(&program, services)?;
    let tasks = added(&program, tasks)?;
    let simulated = "on simulated hosts, the simulated jobs included";
    Ok(vec![
        figure(
            format!(
                "server resident, {SERVICES} services with {REPLICAS} replicas each more than without, {simulated}"
            ),
            Unit::Bytes,
            "≤ 60 MB",
            services,
        ),
        figure(
            format!("server resident, {JOBS} tasks more than without, {simulated}"),
            Unit::Bytes,
            "–",
            tasks,
        ),
    ])
}

/// What jobs add to the memory of a server whose hosts are all usable, in bytes.
fn added(program: &Path, submit: impl Fn(&Server) -> Result<()>) -> Result<f64> {
    let server = Setup::new(program).argument("--no-local").start()?;
    apply(&server, "lab", &hosts(0, HOSTS), BLOCKS)?;
    eventually("all hosts are usable", PATIENCE, || {
        thread::sleep(LOOKS);
        Ok((idle(&server)? == HOSTS).then_some(()))
    })?;
    thread::sleep(SETTLES);
    let before = server.resident_bytes()?;
    submit(&server)?;
    thread::sleep(SETTLES);
    Ok(server.resident_bytes()? - before)
}

/// Between two looks, which take memory and time of the server's.
const LOOKS: Duration = Duration::from_millis(500);

/// Services, until all replicas get requests.
fn services(server: &Server) -> Result<()> {
    let service = json!({"type": "service", "port": 8000, "replicas": REPLICAS});
    for number in 0..SERVICES {
        submit(server, &format!("web-{number}"), &["sleep 1000000"], &service)?;
    }
    until_running(server)?;
    let client = Client::default();
    let token = [("authorization".to_owned(), format!("Bearer {TOKEN}"))];
    for number in 0..SERVICES {
        let url = format!("{}/proxy/services/main/web-{number}/", server.url());
        // There is a way to its replicas, at which nothing listens.
        eventually("requests go to all services", PATIENCE, || {
            let status = client.send("GET", &url, &token, None)?.status;
            Ok((status == 502).then_some(()))
        })?;
    }
    Ok(())
}

fn tasks(server: &Server) -> Result<()> {
    for number in 0..JOBS {
        submit(server, &format!("job-{number}"), &["sleep 1000000"], &json!({}))?;
    }
    until_running(server)
}

/// The youngest jobs get their places last: all run once those do of the hundred youngest runs.
fn until_running(server: &Server) -> Result<()> {
    eventually("all jobs run", PATIENCE, || {
        thread::sleep(LOOKS);
        let youngest = json!({"project_name": "main", "limit": 100});
        let runs = server.get("/api/runs/list", &youngest)?;
        let runs = runs.as_array().context("no runs")?;
        Ok(runs.iter().all(all_run).then_some(()))
    })
}

/// Whether the latest submission of each job of a run is running.
fn all_run(run: &Value) -> bool {
    let latest = |job: &Value| {
        let submissions = job["job_submissions"].as_array();
        submissions.and_then(|all| all.last()).cloned()
    };
    let jobs = run["jobs"].as_array().filter(|jobs| !jobs.is_empty());
    jobs.is_some_and(|jobs| {
        jobs.iter()
            .all(|job| latest(job).is_some_and(|latest| latest["status"] == "running"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_runs_once_all_of_its_jobs_do() {
        let run = |jobs: &[&[&str]]| {
            let job = |statuses: &&[&str]| {
                let submissions: Vec<Value> =
                    statuses.iter().map(|status| json!({"status": status})).collect();
                json!({"job_submissions": submissions})
            };
            json!({"jobs": jobs.iter().map(job).collect::<Vec<_>>()})
        };
        assert!(all_run(&run(&[&["running"], &["failed", "running"]])));
        assert!(!all_run(&run(&[&["running"], &["provisioning"]])));
        assert!(!all_run(&run(&[&["running", "failed"]])));
        assert!(!all_run(&run(&[&[]])));
        assert!(!all_run(&run(&[])));
    }
}
