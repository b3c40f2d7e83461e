//! The measures. Each measures one subject and gives `(name, unit, target, value)` figures.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::clouds::clouds;
use super::first_plans::first_plans;
use super::hosts::{connected, hosts};
use super::live::live;
use super::overload::overload;
use super::plans::plans;
use super::report::Unit;
use super::scale::scale;
use super::services::{
    bodies, gateway, latency, many, models, services, sockets, streams, through_gateway, through_server,
};
use super::subject::Subject;
use crate::hostile::Hostile;
use crate::load::{Latency, Load};
use crate::runs::{Run, TEST_TIMEOUT, submit};
use crate::server::{Server, TOKEN, eventually};

/// One figure of one subject.
#[derive(Debug, Clone)]
pub struct Figure {
    pub measure: String,
    pub unit: Unit,
    pub target: &'static str,
    pub value: f64,
}

/// A measure and how many stored runs it may use.
pub type Measure = fn(&Subject, usize) -> Result<Vec<Figure>>;

/// All measures, in the order of the table. Those the reference cannot take part in come last, and after all of them that of
/// PostgreSQL, which goes on to clean up behind it for minutes.
pub const ALL: [(&str, Measure); 29] = [
    ("cli", cli),
    ("start", start),
    ("small", small_answers),
    ("submit", submissions),
    ("list", list),
    ("overload", overload),
    ("hostile", hostile),
    ("plan", plans),
    ("restart", restart),
    ("memory", memory),
    ("process", process_runtime),
    ("docker", docker_runtime),
    ("services", services),
    ("services-bodies", bodies),
    ("services-models", models),
    ("services-streams", streams),
    ("services-sockets", sockets),
    ("services-latency", latency),
    ("services-ssh: server", through_server),
    ("services-ssh: gateway", through_gateway),
    ("services-many", many),
    ("services-gateway", gateway),
    ("live", live),
    ("hosts", hosts),
    ("hosts: connected", connected),
    ("scale", scale),
    ("clouds", clouds),
    ("clouds: first plans", first_plans),
    ("postgres", submissions_on_postgres),
];

pub(super) fn figure(measure: impl Into<String>, unit: Unit, target: &'static str, value: f64) -> Figure {
    Figure {
        measure: measure.into(),
        unit,
        target,
        value,
    }
}

/// The middle one of the values, or the upper one of two.
///
/// # Errors
/// There are no values.
pub(super) fn median(mut values: Vec<f64>) -> Result<f64> {
    values.sort_by(f64::total_cmp);
    values
        .get(values.len() / 2)
        .copied()
        .context("nothing was measured")
}

fn cli(subject: &Subject, _: usize) -> Result<Vec<Figure>> {
    let home = TempDir::with_prefix("dstack-bench-")?;
    // The reference asks the network for newer versions once a day otherwise.
    fs_err::create_dir_all(home.path().join(".cache/.dstack/cli"))?;
    fs_err::write(home.path().join(".cache/.dstack/cli/last_check"), "")?;
    let mut figures = Vec::new();
    for argument in ["--version", "--help"] {
        let times: Result<Vec<f64>> = (0..22).map(|_| subject.time(&[argument], home.path())).collect();
        // The first two fill caches.
        let latency = Latency::of(times?.split_off(2));
        figures.push(figure(
            format!("`dstack {argument}`, p50"),
            Unit::Seconds,
            "≤ 10 ms",
            latency.p50,
        ));
    }
    Ok(figures)
}

fn start(subject: &Subject, _: usize) -> Result<Vec<Figure>> {
    let begin = Instant::now();
    let mut server = subject.server().start()?;
    let first = begin.elapsed().as_secs_f64();
    thread::sleep(Duration::from_secs(3));
    let resident = server.resident_bytes()?;
    let mut again = Vec::new();
    for _ in 0..3 {
        server.kill()?;
        let begin = Instant::now();
        server.start()?;
        again.push(begin.elapsed().as_secs_f64());
    }
    Ok(vec![
        figure("server ready, first start", Unit::Seconds, "≤ 100 ms", first),
        figure(
            "server ready, later starts, p50",
            Unit::Seconds,
            "≤ 100 ms",
            Latency::of(again).p50,
        ),
        figure("server resident, idle", Unit::Bytes, "≤ 30 MB", resident),
    ])
}

fn small_answers(subject: &Subject, _: usize) -> Result<Vec<Figure>> {
    let server = subject.server().start()?;
    let load = Load {
        clients: 16,
        duration: Duration::from_secs(5),
        requests: usize::MAX,
    };
    let mut figures = Vec::new();
    for (path, target) in [
        ("/api/server/get_info", "≥ 50,000/s"),
        ("/api/users/get_my_user", "≥ 30,000/s"),
    ] {
        let measured = load.run(server.port(), path, Some(TOKEN), |_| "{}".into())?;
        let name = path.trim_start_matches("/api/");
        figures.push(figure(
            format!("`{name}`, 16 clients"),
            Unit::PerSecond,
            target,
            measured.rate,
        ));
        figures.push(figure(
            format!("`{name}`, p99"),
            Unit::Seconds,
            "≤ 2 ms",
            measured.latency.p99,
        ));
    }
    Ok(figures)
}

/// The plan of a task that fits nowhere, by number: it ends at once.
pub(super) fn plan(number: usize) -> String {
    task(&format!("fill-{number}"), &json!({}))
}

/// As [`plan`], for a task that tries again and again.
fn patient(number: usize) -> String {
    task(&format!("wait-{number}"), &json!({"retry": true}))
}

fn task(name: &str, more: &Value) -> String {
    let mut configuration = json!({"type": "task", "commands": ["echo hello"], "name": name});
    if let (Value::Object(all), Value::Object(more)) = (&mut configuration, more) {
        all.extend(more.clone());
    }
    let spec = json!({"run_name": name, "configuration": configuration});
    json!({"plan": {"run_spec": spec}, "force": false}).to_string()
}

fn submissions(subject: &Subject, _: usize) -> Result<Vec<Figure>> {
    let server = subject.server().start()?;
    let load = Load {
        clients: 8,
        duration: Duration::from_secs(10),
        requests: 5_000,
    };
    let measured = load.run(server.port(), "/api/project/main/runs/apply", Some(TOKEN), plan)?;
    Ok(vec![
        figure(
            "submissions accepted durably (SQLite), 8 clients",
            Unit::PerSecond,
            "≥ 500/s",
            measured.rate,
        ),
        figure("a submission, p99", Unit::Seconds, "–", measured.latency.p99),
    ])
}

/// On a PostgreSQL that writes to disk as an installation's does.
fn submissions_on_postgres(subject: &Subject, _: usize) -> Result<Vec<Figure>> {
    ours_only(subject)?;
    let setup = subject.server().on_postgres().map_err(anyhow::Error::msg)?;
    let server = setup.start()?;
    let load = Load {
        clients: 64,
        duration: Duration::from_secs(10),
        requests: 40_000,
    };
    let measured = load.run(server.port(), "/api/project/main/runs/apply", Some(TOKEN), plan)?;
    Ok(vec![
        figure(
            "submissions accepted durably (PostgreSQL), 64 clients",
            Unit::PerSecond,
            "≥ 2,000/s",
            measured.rate,
        ),
        figure(
            "a submission (PostgreSQL), p99",
            Unit::Seconds,
            "–",
            measured.latency.p99,
        ),
    ])
}

/// Killed with runs under way, until it answers again. Half of the rows are runs, half are their jobs.
/// Rows that are active when the server is killed: half of them runs, half their jobs.
const ACTIVE_ROWS: usize = 10_000;

fn restart(subject: &Subject, _: usize) -> Result<Vec<Figure>> {
    ours_only(subject)?;
    let mut server = subject.server().start()?;
    let load = Load {
        clients: 8,
        duration: Duration::from_secs(1800),
        requests: ACTIVE_ROWS / 2,
    };
    load.run(
        server.port(),
        "/api/project/main/runs/apply",
        Some(TOKEN),
        patient,
    )?;
    let mut times = Vec::new();
    for _ in 0..3 {
        server.kill()?;
        let begin = Instant::now();
        server.start()?;
        server.get("/api/runs/list", &json!({"project_name": "main", "limit": 1}))?;
        times.push(begin.elapsed().as_secs_f64());
    }
    Ok(vec![figure(
        format!("killed and started again with {ACTIVE_ROWS} active rows, until it answers, p50"),
        Unit::Seconds,
        "≤ 1 s",
        Latency::of(times).p50,
    )])
}

/// Ten times as many finished runs as asked for, and a tenth as many active ones.
/// Runs that the server has when its memory is looked at: finished, active.
const REMEMBERED: (usize, usize) = (100_000, 1_000);

fn memory(subject: &Subject, _: usize) -> Result<Vec<Figure>> {
    ours_only(subject)?;
    let server = subject.server().start()?;
    let (finished, active) = REMEMBERED;
    let fill = |requests: usize, plan: fn(usize) -> String| {
        let load = Load {
            clients: 8,
            duration: Duration::from_secs(1800),
            requests,
        };
        load.run(server.port(), "/api/project/main/runs/apply", Some(TOKEN), plan)
    };
    fill(finished, plan)?;
    fill(active, patient)?;
    server.get("/api/runs/list", &json!({"project_name": "main", "limit": 100}))?;
    Ok(vec![figure(
        format!("server resident, {finished} finished and {active} active runs"),
        Unit::Bytes,
        "≤ 150 MB",
        server.resident_bytes()?,
    )])
}

/// As many clients without a token as may trouble a small server, for ten seconds.
fn hostile(subject: &Subject, _: usize) -> Result<Vec<Figure>> {
    const CLIENTS: usize = 64;
    ours_only(subject)?;
    let server = subject.server().start()?;
    let hostile = Hostile {
        clients: CLIENTS,
        duration: Duration::from_secs(10),
    };
    let endured = hostile.run(server.port())?;
    println!("    answers by status: {:?}", endured.answers);
    Ok(vec![
        figure(
            format!(
                "server resident at most, {CLIENTS} clients without a token that send the worst they may"
            ),
            Unit::Bytes,
            "≤ 150 MB",
            server.resident_bytes_at_most()?,
        ),
        figure(
            "`healthcheck` meanwhile, p99",
            Unit::Seconds,
            "≤ 1 s",
            endured.health.p99,
        ),
    ])
}

/// The reference would take hours.
pub(super) fn ours_only(subject: &Subject) -> Result<()> {
    if !subject.is_ours() {
        bail!("only ours is measured");
    }
    Ok(())
}

fn list(subject: &Subject, stored: usize) -> Result<Vec<Figure>> {
    let mut server = subject
        .server()
        .variable("DSTACK_SERVER_BACKGROUND_PROCESSING_DISABLED", "1")
        .start()?;
    let load = Load {
        clients: 16,
        duration: Duration::from_secs(5),
        requests: usize::MAX,
    };
    let request = json!({"project_name": "main", "limit": 100}).to_string();
    let empty = load.run(server.port(), "/api/runs/list", Some(TOKEN), |_| request.clone())?;
    fill(subject, &mut server, stored)?;
    let full = load.run(server.port(), "/api/runs/list", Some(TOKEN), |_| request.clone())?;
    let answer = server.get("/api/runs/list", &json!({"project_name": "main", "limit": 100}))?;
    let count = answer.as_array().map_or(0, Vec::len);
    if count != 100 {
        bail!("runs/list gave {count} runs instead of 100");
    }
    let name = format!("`runs/list`, 100 of {stored} runs, 16 clients");
    println!("    an answer has {} KB", full.body_bytes / 1000);
    Ok(vec![
        figure(
            "`runs/list`, no runs, 16 clients",
            Unit::PerSecond,
            "≥ 20,000/s",
            empty.rate,
        ),
        figure(name, Unit::PerSecond, "≥ 50× the reference", full.rate),
        figure(
            format!("`runs/list`, 100 of {stored} runs, p99"),
            Unit::Seconds,
            "≤ 20 ms",
            full.latency.p99,
        ),
    ])
}

/// Brings the server to `count` stored runs: by submitting them, or, where that would take hours, by
/// multiplying one run in the stopped server's database.
fn fill(subject: &Subject, server: &mut Server, count: usize) -> Result<()> {
    let requests = if subject.is_ours() { count } else { 1 };
    let load = Load {
        clients: 8,
        duration: Duration::from_secs(1800),
        requests,
    };
    load.run(server.port(), "/api/project/main/runs/apply", Some(TOKEN), plan)?;
    if let Some(python) = &subject.python {
        server.kill()?;
        let script = crate::parts::repository().join("tests/python/multiply_runs.py");
        let database = server.home().join(".dstack/server/data/sqlite.db");
        let status = Command::new(python)
            .arg(script)
            .arg(database)
            .arg(count.to_string())
            .status()?;
        if !status.success() {
            bail!("multiply_runs.py failed");
        }
        server.start()?;
    }
    Ok(())
}

fn process_runtime(subject: &Subject, _: usize) -> Result<Vec<Figure>> {
    let server = subject.local_server("process")?.start()?;
    let mut figures = lifecycle(&server, "process runtime", "≤ 0.15 s", &json!({}), || Ok(()))?;
    figures.push(log_latency(&server)?);
    Ok(figures)
}

/// Each task is followed by a bare `docker run`, so that both meet the same machine. Each starts once nothing is left of
/// the one before: the engine does one thing at a time.
fn docker_runtime(subject: &Subject, _: usize) -> Result<Vec<Figure>> {
    let image = crate::parts::image().map_err(anyhow::Error::msg)?;
    let server = subject.local_server("docker")?.start()?;
    let (others, mut bare) = (containers()?, Vec::new());
    let mut figures = lifecycle(
        &server,
        "Docker, image present",
        "≤ 0.5 s",
        &json!({"image": image}),
        || {
            eventually("the container is gone", TEST_TIMEOUT, || {
                Ok((containers()? == others).then_some(()))
            })?;
            bare.push(docker_run(&image)?);
            Ok(())
        },
    )?;
    figures.push(figure(
        "`docker run` of the same image, p50 (for comparison)",
        Unit::Seconds,
        "–",
        Latency::of(bare).p50,
    ));
    Ok(figures)
}

/// The ids of jobs' containers, a line each.
fn containers() -> Result<String> {
    let output = Command::new("docker")
        .args([
            "ps",
            "--all",
            "--quiet",
            "--filter",
            "label=ai.dstack.shim.is-task",
        ])
        .output()?;
    if !output.status.success() {
        bail!("docker ps failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn docker_run(image: &str) -> Result<f64> {
    let begin = Instant::now();
    let status = Command::new("docker")
        .args(["run", "--rm", image, "true"])
        .status()?;
    if !status.success() {
        bail!("docker run {image} failed");
    }
    Ok(begin.elapsed().as_secs_f64())
}

/// Short tasks one after the other, with `between` after each: how long until each runs, and how long from its end until
/// that is known. `more` has further fields of their configuration.
pub(super) fn lifecycle(
    server: &Server,
    what: &str,
    target: &'static str,
    more: &Value,
    mut between: impl FnMut() -> Result<()>,
) -> Result<Vec<Figure>> {
    const ROUNDS: usize = 20;
    let (mut to_running, mut to_done) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let begin = Instant::now();
        let run = submit(
            server,
            &format!("bench-{round}"),
            &["sleep 0.3", "echo ended $(cut -d ' ' -f 1 /proc/uptime)"],
            more,
        )?;
        watch(&run, "running")?;
        let running = begin.elapsed().as_secs_f64();
        watch(&run, "done")?;
        let done = uptime()?;
        let ended = ended_at(&run.logs()?)?;
        // The first one warms up.
        if round > 0 {
            to_running.push(running);
            to_done.push((done - ended).max(0.0));
        }
        between()?;
    }
    let (to_running, to_done) = (Latency::of(to_running), Latency::of(to_done));
    Ok(vec![
        figure(
            format!("submitted → running, {what}, p50"),
            Unit::Seconds,
            target,
            to_running.p50,
        ),
        figure(
            format!("submitted → running, {what}, p95"),
            Unit::Seconds,
            target,
            to_running.p95,
        ),
        figure(
            format!("process exit → run `done`, {what}, p50"),
            Unit::Seconds,
            "≤ 0.2 s",
            to_done.p50,
        ),
        figure(
            format!("process exit → run `done`, {what}, p95"),
            Unit::Seconds,
            "≤ 0.2 s",
            to_done.p95,
        ),
    ])
}

/// When a job said that it ended. Shells and containers may say other things before.
fn ended_at(logs: &str) -> Result<f64> {
    let line = logs.lines().rev().find_map(|line| line.strip_prefix("ended "));
    let time = line.with_context(|| format!("no line with the end: {logs:?}"))?;
    time.trim().parse().with_context(|| format!("no time: {logs:?}"))
}

/// Seconds since the machine started: a clock that jobs in any container share with us, to a hundredth.
fn uptime() -> Result<f64> {
    let text = fs_err::read_to_string("/proc/uptime")?;
    Ok(text.split(' ').next().unwrap_or_default().parse()?)
}

/// Looks at a run every few milliseconds until it has a status, or is past it.
fn watch(run: &Run<'_>, status: &str) -> Result<()> {
    let end = Instant::now() + TEST_TIMEOUT;
    loop {
        let seen = run.status()?;
        if seen == status || seen == "done" {
            return Ok(());
        }
        if seen == "failed" || seen == "terminated" || Instant::now() > end {
            bail!("{} is {seen} and not {status}", run.name);
        }
        // More often would take the processor from what is measured.
        thread::sleep(Duration::from_millis(10));
    }
}

/// A job prints the time; how old is it when the log route first gives the line?
fn log_latency(server: &Server) -> Result<Figure> {
    const LINES: usize = 100;
    let print = format!("i=0; while [ $i -lt {LINES} ]; do i=$((i+1)); date +%s%N; sleep 0.05; done");
    let run = submit(server, "clock", &[&print], &json!({}))?;
    run.wait_for(&["running", "done"])?;
    let mut ages = Vec::new();
    let end = Instant::now() + TEST_TIMEOUT;
    while ages.len() < LINES && Instant::now() < end {
        let logs = run.logs()?;
        let seen = now();
        let complete = logs.rfind('\n').map_or("", |end| &logs[..end]);
        for line in complete.lines().skip(ages.len()) {
            ages.push(seen - line.trim().parse::<f64>()? / 1e9);
        }
        thread::sleep(Duration::from_millis(2));
    }
    if ages.len() < LINES {
        bail!("only {} of {LINES} lines arrived", ages.len());
    }
    let p99 = Latency::of(ages).p99;
    Ok(figure(
        "log line printed → readable through the API, p99",
        Unit::Seconds,
        "≤ 0.25 s",
        p99,
    ))
}

/// Seconds since 1970.
fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_the_last_line_that_says_so() {
        let logs = "BusyBox v1.35\n\nended is a word\nended 1234.56\n";
        assert!((ended_at(logs).unwrap() - 1234.56).abs() < 1e-9);
        assert!(ended_at("BusyBox v1.35\n").is_err());
    }
}
