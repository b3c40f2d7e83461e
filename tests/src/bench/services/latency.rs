//! What the server adds to how long a request takes that comes when it comes, whatever became of those before.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::added::{Round, figures};
use super::upstream::{hello_at_once, serve};
use super::{PATH, ROUNDS, serving};
use crate::bench::measures::{Figure, ours_only};
use crate::bench::subject::Subject;
use crate::load::{Latency, Pace};
use crate::server::TOKEN;

const PACE: Pace = Pace {
    rate: 1000.0,
    duration: Duration::from_secs(10),
    connections: 32,
};

pub(in crate::bench) fn latency(subject: &Subject, _: usize) -> Result<Vec<Figure>> {
    ours_only(subject)?;
    let port = serve(hello_at_once)?;
    let server = serving(subject, port, &json!({}))?;
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push(Round {
            direct: paced(port, "/", None)?,
            through: paced(server.port(), PATH, Some(TOKEN))?,
        });
    }
    let rate = PACE.rate;
    figures(
        &format!("a request to a service, {rate}/s whatever the answers take"),
        &rounds,
    )
}

fn paced(port: u16, path: &str, token: Option<&str>) -> Result<Latency> {
    let paced = PACE.get(port, path, token)?;
    ensure!(
        paced.answers.len() == 1,
        "some requests were refused: {:?}",
        paced.answers
    );
    paced.latency.context("no request was answered")
}
