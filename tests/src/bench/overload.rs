//! Ten times the submissions that can be served are offered, while others read.

use std::sync::Barrier;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::measures::{Figure, figure, ours_only, plan, resident_bytes};
use super::report::Unit;
use super::subject::Subject;
use crate::load::{Load, Pace, Paced};
use crate::server::{Server, TOKEN};

const APPLY: &str = "/api/project/main/runs/apply";

/// How long each part of a round goes on.
const PART: Duration = Duration::from_secs(5);

/// Rounds of reading alone and under the flood. A shared machine may stand still for a while, which is all
/// that a single p99 would tell: the median of all rounds is taken.
const ROUNDS: usize = 5;

/// Names of runs are numbered; each round has its own numbers.
const NUMBERS: usize = 1_000_000;

pub(super) fn overload(subject: &Subject, _: usize) -> Result<Vec<Figure>> {
    ours_only(subject)?;
    let server = subject.server().start()?;
    let load = Load {
        clients: 8,
        duration: PART,
        requests: usize::MAX,
    };
    let first = load.run(server.port(), APPLY, Some(TOKEN), plan)?;
    let before = resident_bytes(&server)?;
    let rounds: Vec<Round> = (1..=ROUNDS)
        .map(|number| round(&server, first.rate * 10.0, number * NUMBERS))
        .collect::<Result<_>>()?;
    let after = resident_bytes(&server)?;
    let accepted: usize = rounds.iter().map(|round| round.written.count(200)).sum();
    let refused: usize = rounds.iter().map(|round| round.written.count(429)).sum();
    let found = stored(&server)?;
    if found != first.answers + accepted {
        bail!(
            "{} and {accepted} submissions were accepted, {found} are stored",
            first.answers
        );
    }
    if rounds.iter().any(|round| round.written.silent_refusals > 0) {
        bail!("refusals do not say when to come back");
    }
    let told: Vec<String> = rounds
        .iter()
        .map(|round| format!("{:.1}/{:.1}", round.alone * 1e3, round.during * 1e3))
        .collect();
    println!("    rounds, alone/flooded, ms: {}", told.join(" "));
    let offered = median(rounds.iter().map(|round| round.written.offered).collect())?;
    println!(
        "    sustained {:.0}/s, offered {offered:.0}/s, {refused} refused, resident {:.0} MB before",
        first.rate,
        before / 1e6,
    );
    let flooded = PART.as_secs_f64() * ROUNDS as f64;
    Ok(vec![
        figure(
            "reads alone, 100/s, p99 (median of rounds)",
            Unit::Seconds,
            "–",
            median(rounds.iter().map(|round| round.alone).collect())?,
        ),
        figure(
            "reads while ten times the sustained submissions are offered, p99 (median of rounds)",
            Unit::Seconds,
            "≤ 3× alone",
            median(rounds.iter().map(|round| round.during).collect())?,
        ),
        figure(
            "submissions accepted meanwhile, all of them stored; the others got 429",
            Unit::PerSecond,
            "–",
            accepted as f64 / flooded,
        ),
        figure("server resident afterwards", Unit::Bytes, "–", after),
    ])
}

/// Reads alone, and under a flood of submissions.
struct Round {
    /// Their p99, in seconds.
    alone: f64,
    during: f64,
    written: Paced,
}

fn round(server: &Server, rate: f64, first_number: usize) -> Result<Round> {
    rest(server)?;
    let alone = read(server, &Barrier::new(1))?;
    let flood = Pace {
        rate,
        duration: PART,
        connections: 2000,
    };
    let (port, start) = (server.port(), Barrier::new(2));
    let (written, during) = std::thread::scope(|scope| {
        let writers =
            scope.spawn(|| flood.run(&start, port, APPLY, TOKEN, |number| plan(first_number + number)));
        let during = read(server, &start);
        (writers.join(), during)
    });
    Ok(Round {
        alone,
        during: during?,
        written: written.map_err(|_| anyhow::anyhow!("the writers panicked"))??,
    })
}

/// Until what was accepted has come to its end.
fn rest(server: &Server) -> Result<()> {
    let active = json!({"project_name": "main", "only_active": true, "limit": 1});
    while server
        .get("/api/runs/list", &active)?
        .as_array()
        .is_some_and(|runs| !runs.is_empty())
    {
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> Result<f64> {
    values.sort_by(f64::total_cmp);
    values
        .get(values.len() / 2)
        .copied()
        .context("nothing was measured")
}

/// What a person at a screen asks for: the p99 in seconds.
fn read(server: &Server, start: &Barrier) -> Result<f64> {
    let request = json!({"project_name": "main", "limit": 10}).to_string();
    let pace = Pace {
        rate: 100.0,
        duration: PART,
        connections: 32,
    };
    let read = pace.run(start, server.port(), "/api/runs/list", TOKEN, |_| request.clone())?;
    if read.answers.keys().any(|status| *status != 200) {
        bail!("reads were refused: {:?}", read.answers);
    }
    Ok(read.latency.context("nothing was read")?.p99)
}

/// How many runs are stored.
fn stored(server: &Server) -> Result<usize> {
    let mut count = 0;
    let mut page = json!({"project_name": "main", "limit": 100});
    loop {
        let answer = server.get("/api/runs/list", &page)?;
        let runs = answer.as_array().context("no list of runs")?;
        let Some(last) = runs.last() else {
            return Ok(count);
        };
        count += runs.len();
        let field = |name: &str| last.get(name).cloned().unwrap_or(Value::Null);
        page = json!({
            "project_name": "main",
            "limit": 100,
            "prev_submitted_at": field("submitted_at"),
            "prev_run_id": field("id"),
        });
    }
}
