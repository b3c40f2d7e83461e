//! As many submissions as can be served are offered, then ten times as many, while others read.

use std::sync::Barrier;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::measures::{Figure, figure, median, ours_only, plan};
use super::report::Unit;
use super::subject::Subject;
use crate::load::{Load, Pace, Paced};
use crate::server::{Server, TOKEN};

const APPLY: &str = "/api/project/main/runs/apply";

/// How long each part of a round goes on.
const PART: Duration = Duration::from_secs(5);

/// Rounds of reading alone, beside what can be served, and under the flood. A shared machine may stand still for a
/// while, which is all that a single p99 would tell: the median of all rounds is taken.
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
    let before = server.resident_bytes()?;
    let rounds: Vec<Round> = (1..=ROUNDS)
        .map(|number| round(&server, first.rate, number * NUMBERS))
        .collect::<Result<_>>()?;
    let at_most = server.resident_bytes_at_most()?;
    check(&rounds, stored(&server)? - first.answers)?;
    let told: Vec<String> = rounds
        .iter()
        .map(|round| {
            let p99s =
                [round.alone, round.sustained.0, round.flooded.0].map(|p99| format!("{:.1}", p99 * 1e3));
            format!("{} {:.0} MB", p99s.join("/"), round.resident / 1e6)
        })
        .collect();
    println!(
        "    rounds, alone/sustained/flooded in ms, resident at the end: {}",
        told.join(", ")
    );
    let of_all = |of: fn(&Round) -> f64| median(rounds.iter().map(of).collect());
    println!(
        "    sustained {:.0}/s, of which {:.0}/s accepted beside reads; flooded with {:.0}/s; resident {:.0} MB before",
        first.rate,
        of_all(|round| round.sustained.1.accepted())?,
        of_all(|round| round.flooded.1.offered)?,
        before / 1e6,
    );
    let sustained = of_all(|round| round.sustained.0)?;
    let flooded = of_all(|round| round.flooded.0)?;
    let p99 = |name: &str, target, value| {
        let name = format!("reads {name}, 100/s, p99 (median of rounds)");
        figure(name, Unit::Seconds, target, value)
    };
    Ok(vec![
        p99("alone", "–", of_all(|round| round.alone)?),
        p99("beside the submissions that can be served", "–", sustained),
        p99(
            "while ten times as many are offered",
            "≤ 3× beside those that can be served",
            flooded,
        ),
        figure(
            "submissions accepted under the flood, all of them stored; the others got 429",
            Unit::PerSecond,
            "–",
            of_all(|round| round.flooded.1.accepted())?,
        ),
        figure("server resident at most", Unit::Bytes, "–", at_most),
    ])
}

/// Whether what is stored is what was accepted, and whoever was refused knows when to come back.
fn check(rounds: &[Round], stored: usize) -> Result<()> {
    let written = || {
        rounds
            .iter()
            .flat_map(|round| [&round.sustained.1, &round.flooded.1])
    };
    let accepted: usize = written().map(|written| written.count(200)).sum();
    ensure!(
        stored == accepted,
        "{accepted} submissions were accepted, {stored} are stored"
    );
    ensure!(
        written().all(|written| written.silent_refusals == 0),
        "refusals do not say when to come back"
    );
    Ok(())
}

/// Reads, with their p99 in seconds: alone, beside as many submissions as can be served, and under ten times as many.
struct Round {
    alone: f64,
    sustained: (f64, Paced),
    flooded: (f64, Paced),
    /// Bytes, right after the flood.
    resident: f64,
}

fn round(server: &Server, rate: f64, first_number: usize) -> Result<Round> {
    rest(server)?;
    let alone = read(server, &Barrier::new(1))?;
    let sustained = read_beside(server, rate, first_number)?;
    rest(server)?;
    let flooded = read_beside(server, rate * 10.0, first_number + NUMBERS / 2)?;
    Ok(Round {
        alone,
        sustained,
        flooded,
        resident: server.resident_bytes()?,
    })
}

/// Reads while so many submissions per second are offered.
fn read_beside(server: &Server, rate: f64, first_number: usize) -> Result<(f64, Paced)> {
    let submissions = Pace {
        rate,
        duration: PART,
        connections: 2000,
    };
    let (port, start) = (server.port(), Barrier::new(2));
    let submit = || submissions.run(&start, port, APPLY, TOKEN, |number| plan(first_number + number));
    let (written, p99) = std::thread::scope(|scope| {
        let writers = scope.spawn(submit);
        let p99 = read(server, &start);
        (writers.join(), p99)
    });
    let written = written.map_err(|_| anyhow::anyhow!("the writers panicked"))?;
    Ok((p99?, written?))
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
