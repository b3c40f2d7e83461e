//! What the way through the server adds to a time.

use anyhow::Result;

use crate::bench::measures::{Figure, figure, median};
use crate::bench::report::Unit;
use crate::load::Latency;

/// The same load straight to the service, and right after it through the server: together they would want twice the processors.
#[derive(Debug, Clone, Copy)]
pub(super) struct Round {
    pub(super) direct: Latency,
    pub(super) through: Latency,
}

/// What was added in the rounds, and what came to be so. A shared machine may stand still for a while: medians are taken.
pub(super) fn figures(what: &str, rounds: &[Round]) -> Result<Vec<Figure>> {
    println!("    rounds, p99 straight/through in ms: {}", told(rounds));
    let seconds = |name: &str, target, value: fn(&Round) -> f64| {
        let value = median(rounds.iter().map(value).collect())?;
        let name = format!("{what}: {name} (median of rounds in turns)");
        anyhow::Ok(figure(name, Unit::Seconds, target, value))
    };
    Ok(vec![
        seconds(
            "added by the server, p99 through it less p99 straight from the service",
            "≤ 1 ms",
            |round| round.through.p99 - round.direct.p99,
        )?,
        seconds("added by the server, p50", "–", |round| {
            round.through.p50 - round.direct.p50
        })?,
        seconds("through the server, p99", "–", |round| round.through.p99)?,
        seconds("straight from the service, p99", "–", |round| round.direct.p99)?,
    ])
}

fn told(rounds: &[Round]) -> String {
    let told = |round: &Round| {
        let [direct, through] = [round.direct, round.through].map(|latency| latency.p99 * 1e3);
        format!("{direct:.2}/{through:.2}")
    };
    rounds.iter().map(told).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_that_of_the_middle_round() {
        let latency = |p50: f64, p99: f64| Latency { p50, p95: p99, p99 };
        let round = |direct, through| Round { direct, through };
        let rounds = [
            round(latency(0.1, 0.2), latency(0.2, 0.5)),
            // The machine stood still.
            round(latency(0.1, 0.2), latency(0.3, 90.0)),
            round(latency(0.1, 0.4), latency(0.5, 0.8)),
        ];
        let figures = figures("a request", &rounds).unwrap();
        let values: Vec<i64> = figures
            .iter()
            .map(|figure| (figure.value * 10.0).round() as i64)
            .collect();
        assert_eq!(values, [4, 2, 8, 2]);
        assert_eq!(figures[0].target, "≤ 1 ms");
        assert!(super::figures("a request", &[]).is_err());
    }
}
