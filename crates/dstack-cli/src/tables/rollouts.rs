//! The roll-out of a service: what it is waiting for, and a table of its deployments.

use dstack_model::rollouts::{RolloutAction, RolloutAnswers, RolloutDeployment, RolloutPhase, RolloutState};
use dstack_units::Time;

use crate::ui::{Column, Table, Text};

/// The lines above the table.
pub(crate) fn lines(state: &RolloutState, now: Time) -> Vec<Text> {
    let mut first = Text::new()
        .code(&state.run_name)
        .push(format!(" ({}): ", state.strategy));
    first = first.push(match state.phase {
        None => "no roll-out by canary or blue/green is under way".to_owned(),
        Some(phase) => told(phase, state),
    });
    let left = state
        .until
        .map(|until| seconds(until, now))
        .filter(|left| *left > 0);
    if let Some(left) = left {
        first = first.push(format!(", for another {}", duration(left)));
    }
    let mut lines = vec![first];
    if let Some(obstacle) = &state.obstacle {
        lines.push(Text::new().push(format!("It cannot go on: {obstacle}.")));
    }
    if let Some(asked) = state.asked {
        lines.push(Text::from(match asked {
            RolloutAction::Promote => "It is to go on as soon as it can.",
            RolloutAction::Abort => "It is about to be rolled back.",
        }));
    }
    let mut answers = state.deployments.iter().filter_map(|one| one.answers);
    if answers.any(|answers| answers.is_partial) {
        lines.push(Text::from(
            "Numbers with + are partial: a gateway or another server has not said lately what it has counted.",
        ));
    }
    lines
}

fn told(phase: RolloutPhase, state: &RolloutState) -> String {
    match phase {
        RolloutPhase::Preparing => "the new replicas get ready".to_owned(),
        RolloutPhase::Watching => {
            "the new replicas get their share of the requests and are watched".to_owned()
        }
        RolloutPhase::Ready => "the new replicas are ready, and wait for --promote or --abort".to_owned(),
        RolloutPhase::Kept => "all requests go to the new replicas; the old ones are kept".to_owned(),
        RolloutPhase::Following => "the other replicas are replaced one after another".to_owned(),
        RolloutPhase::RolledBack => match &state.reason {
            Some(reason) => format!("rolled back: {reason}"),
            None => "rolled back".to_owned(),
        },
    }
}

/// Whole seconds until then; negative if that is over.
fn seconds(until: Time, now: Time) -> i64 {
    (until.as_micros() - now.as_micros()) / 1_000_000
}

fn duration(seconds: i64) -> String {
    match seconds {
        ..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        _ => format!("{}h {}m", seconds / 3600, seconds % 3600 / 60),
    }
}

/// A row for each deployment.
pub(crate) fn table(state: &RolloutState) -> Table {
    let titles = [
        "DEPLOYMENT",
        "REPLICAS",
        "READY",
        "SHARE",
        "ANSWERS",
        "FAILED",
        "P95",
    ];
    let mut table = Table::new(titles.map(Column::new).map(Column::no_wrap).to_vec());
    for deployment in &state.deployments {
        table.row(row(deployment).map(Text::from).to_vec());
    }
    table
}

fn row(deployment: &RolloutDeployment) -> [String; 7] {
    let answers = deployment.answers.as_ref();
    let shown = |text: fn(&RolloutAnswers) -> String| answers.map_or_else(|| "-".to_owned(), text);
    [
        deployment.deployment_num.to_string(),
        deployment.replicas.to_string(),
        deployment.ready.to_string(),
        deployment
            .share_percent
            .map_or_else(|| "-".to_owned(), |share| format!("{share}%")),
        shown(|answers| format!("{}{}", answers.requests, mark(answers))),
        shown(|answers| {
            let (failed, percent) = (answers.failed, answers.error_percent);
            format!("{failed}{} ({percent:.1}%)", mark(answers))
        }),
        shown(|answers| {
            answers
                .p95_seconds
                .map_or_else(|| "-".to_owned(), |p95| format!("{p95:.2} s"))
        }),
    ]
}

/// Behind numbers that are not all of it.
const fn mark(answers: &RolloutAnswers) -> &'static str {
    match answers.is_partial {
        true => "+",
        false => "",
    }
}

#[cfg(test)]
mod tests {
    use dstack_model::configurations::RolloutStrategy;

    use super::*;

    fn now() -> Time {
        Time::from_millis(1_790_000_000_000)
    }

    fn state(phase: Option<RolloutPhase>) -> RolloutState {
        RolloutState {
            run_name: "web".to_owned(),
            strategy: RolloutStrategy::Canary,
            phase,
            since: Some(now()),
            until: None,
            asked: None,
            reason: None,
            obstacle: None,
            deployments: Vec::new(),
        }
    }

    fn said(state: &RolloutState) -> Vec<String> {
        lines(state, now()).iter().map(Text::plain).collect()
    }

    #[test]
    fn what_a_roll_out_does_is_said_with_the_time_that_is_left() {
        let watching = RolloutState {
            until: Some(now() + std::time::Duration::from_secs(95)),
            ..state(Some(RolloutPhase::Watching))
        };
        assert_eq!(
            said(&watching),
            [
                "web (canary): the new replicas get their share of the requests and are watched, for another 1m 35s"
            ]
        );
        let back = RolloutState {
            reason: Some("2 of 20 answers failed".to_owned()),
            ..state(Some(RolloutPhase::RolledBack))
        };
        assert_eq!(said(&back), ["web (canary): rolled back: 2 of 20 answers failed"]);
        let asked = RolloutState {
            asked: Some(RolloutAction::Abort),
            ..state(Some(RolloutPhase::Ready))
        };
        assert_eq!(said(&asked)[1], "It is about to be rolled back.");
        assert!(said(&state(None))[0].ends_with("no roll-out by canary or blue/green is under way"));
    }

    #[test]
    fn what_is_not_known_of_a_deployment_is_a_dash() {
        let deployment = RolloutDeployment {
            deployment_num: 2,
            replicas: 3,
            ready: 1,
            share_percent: Some(2.5),
            answers: None,
        };
        assert_eq!(row(&deployment), ["2", "3", "1", "2.5%", "-", "-", "-"]);
        let answers = RolloutAnswers {
            requests: 40,
            failed: 5,
            error_percent: 12.5,
            p95_seconds: Some(0.25),
            is_partial: false,
        };
        let with = |answers| RolloutDeployment {
            answers: Some(answers),
            ..deployment.clone()
        };
        assert_eq!(row(&with(answers))[4..], ["40", "5 (12.5%)", "0.25 s"]);
        let partial = with(RolloutAnswers {
            is_partial: true,
            ..answers
        });
        assert_eq!(row(&partial)[4..], ["40+", "5+ (12.5%)", "0.25 s"]);
        let watching = |deployment| RolloutState {
            deployments: vec![deployment],
            ..state(Some(RolloutPhase::Watching))
        };
        assert!(said(&watching(partial))[1].starts_with("Numbers with + are partial"));
        assert_eq!(said(&watching(with(answers))).len(), 1);
    }

    #[test]
    fn what_is_in_the_way_is_said() {
        let held = RolloutState {
            obstacle: Some("its gateway is old".to_owned()),
            ..state(Some(RolloutPhase::Preparing))
        };
        assert_eq!(said(&held)[1], "It cannot go on: its gateway is old.");
    }
}
