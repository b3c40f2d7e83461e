//! Ten times the submissions that can be served are offered, while others read.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::measures::{Figure, figure, ours_only, plan, resident_bytes};
use super::report::Unit;
use super::subject::Subject;
use crate::load::{Load, Pace, Paced};
use crate::server::{Server, TOKEN};

const APPLY: &str = "/api/project/main/runs/apply";

/// How long each part of it goes on.
const PART: Duration = Duration::from_secs(10);

pub(super) fn overload(subject: &Subject, _: usize) -> Result<Vec<Figure>> {
    ours_only(subject)?;
    let server = subject.server().start()?;
    let load = Load {
        clients: 8,
        duration: PART / 2,
        requests: usize::MAX,
    };
    let first = load.run(server.port(), APPLY, Some(TOKEN), plan)?;
    let alone = read(&server)?;
    let before = resident_bytes(&server)?;
    let flood = Pace {
        rate: first.rate * 10.0,
        duration: PART,
        connections: 2000,
    };
    let port = server.port();
    let (written, during) = std::thread::scope(|scope| {
        let writers = scope.spawn(|| flood.run(port, APPLY, TOKEN, |number| plan(1_000_000 + number)));
        let during = read(&server);
        (writers.join(), during)
    });
    let (written, during) = (
        written.map_err(|_| anyhow::anyhow!("the writers panicked"))??,
        during?,
    );
    let after = resident_bytes(&server)?;
    let accepted = written.count(200);
    let found = stored(&server)?;
    if found != first.answers + accepted {
        bail!(
            "{} and {accepted} submissions were accepted, {found} are stored",
            first.answers
        );
    }
    if written.silent_refusals > 0 {
        bail!(
            "{} refusals do not say when to come back",
            written.silent_refusals
        );
    }
    let p99 = |paced: &Paced| Ok::<_, anyhow::Error>(paced.latency.context("nothing was read")?.p99);
    println!(
        "    sustained {:.0}/s, offered {:.0}/s, {:.0} % of it refused, resident {:.0} MB before",
        first.rate,
        written.offered,
        written.count(429) as f64 * 100.0 / written.answers.values().sum::<usize>() as f64,
        before / 1e6,
    );
    let accepted_per_second = accepted as f64 / PART.as_secs_f64();
    Ok(vec![
        figure("reads alone, 100/s, p99", Unit::Seconds, "–", p99(&alone)?),
        figure(
            "reads while ten times the sustained submissions are offered, p99",
            Unit::Seconds,
            "≤ 3× alone",
            p99(&during)?,
        ),
        figure(
            "submissions accepted meanwhile, all of them stored; the others got 429",
            Unit::PerSecond,
            "–",
            accepted_per_second,
        ),
        figure("server resident afterwards", Unit::Bytes, "–", after),
    ])
}

/// What a person at a screen asks for.
fn read(server: &Server) -> Result<Paced> {
    let request = json!({"project_name": "main", "limit": 10}).to_string();
    let pace = Pace {
        rate: 100.0,
        duration: PART,
        connections: 32,
    };
    let read = pace.run(server.port(), "/api/runs/list", TOKEN, |_| request.clone())?;
    if read.answers.keys().any(|status| *status != 200) {
        bail!("reads were refused: {:?}", read.answers);
    }
    Ok(read)
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
