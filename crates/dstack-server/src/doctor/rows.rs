//! Rows that do not get on.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dstack_model::diagnosis::{DiagnosisCheck, Finding};
use dstack_store::queries::diagnosis::{DiagnosedRow, PendingCall};
use dstack_store::rows::OperationKind;
use dstack_store::{EntityRef, StoreError};
use dstack_units::Time;

use super::{Report, counted};
use crate::state::Data;

/// What is to be ended is ended within this time, unless something is wrong.
const ENDING_LIMIT: Duration = Duration::from_secs(15 * 60);

/// Waits end so long after their deadline at most: whoever decides has others to look at.
const DEADLINE_SLACK: Duration = Duration::from_secs(2 * 60);

/// Calls that have come to nothing for so long are wrong, or those that were repeated so often.
const CALL_LIMIT: Duration = Duration::from_secs(15 * 60);
const MAX_ATTEMPTS: i64 = 30;

pub(super) async fn check(data: &Data) -> Result<Report, StoreError> {
    let (now, diagnoses) = (data.clock.now(), data.database.diagnoses());
    let (ending, overdue) = (
        diagnoses.ending().await?,
        diagnoses.overdue(now - DEADLINE_SLACK).await?,
    );
    let (unreachable, calls) = (
        diagnoses.unreachable().await?,
        diagnoses.pending_calls(now).await?,
    );
    let subjects: BTreeSet<EntityRef> = calls.iter().map(|call| call.subject).collect();
    let subjects: Vec<EntityRef> = subjects.into_iter().collect();
    let rows = diagnoses.rows(&subjects).await?;
    let mut report = Report::default();
    report.looked_at(
        DiagnosisCheck::Terminations,
        format!("{} being ended", counted(ending.len(), "row")),
    );
    report.looked_at(
        DiagnosisCheck::Stuck,
        format!("all waits, and {}", counted(calls.len(), "call")),
    );
    report.looked_at(DiagnosisCheck::Hosts, "all instances");
    report.findings.extend(terminations(&ending, &calls, now));
    report.findings.extend(overdue.iter().map(waits_too_long));
    report.findings.extend(repeated(&calls, &rows, now));
    report.findings.extend(unreachable.iter().map(is_unreachable));
    Ok(report)
}

/// Whether a call ends what it is made for.
const fn ends(call: &PendingCall) -> bool {
    matches!(call.kind, OperationKind::Remove | OperationKind::Release)
}

/// What should have ended by now, with what the last call said.
fn terminations(ending: &[DiagnosedRow], calls: &[PendingCall], now: Time) -> Vec<Finding> {
    let over_age = ending.iter().filter_map(|row| {
        let call = calls.iter().find(|call| call.subject == row.entity && ends(call));
        // The row may have been changed since, the call may have been intended later.
        let since = call.map_or(row.changed_at, |call| call.created_at.min(row.changed_at));
        (now >= since + ENDING_LIMIT).then(|| {
            let error = call.and_then(|call| call.error.clone());
            let why = error.or_else(|| row.waiting_for.as_ref().map(ToString::to_string));
            Finding {
                since: Some(since),
                ..about(
                    row,
                    DiagnosisCheck::Terminations,
                    format!("it is being ended: {}", why.unwrap_or_else(|| "nobody knows why it takes so long".to_owned())),
                    "The server asks again until its end is confirmed, and never gives up. If the error is about the backend, mend \
                     its configuration; else end it where it is, and the server sees that it is gone",
                )
            }
        })
    });
    over_age.collect()
}

fn waits_too_long(row: &DiagnosedRow) -> Finding {
    let what = row.waiting_for.as_ref().map(ToString::to_string);
    Finding {
        since: row.deadline_at,
        ..about(
            row,
            DiagnosisCheck::Stuck,
            format!(
                "it is {} and waits for {}, past the deadline of that",
                row.status,
                what.unwrap_or_else(|| "nothing".to_owned())
            ),
            "No server has decided on it: see the log of the servers for `step failed`, and whether one runs that is not started with \
             DSTACK_SERVER_BACKGROUND_PROCESSING_DISABLED",
        )
    }
}

/// Calls that come to nothing, besides those that end something.
fn repeated(calls: &[PendingCall], rows: &BTreeMap<EntityRef, DiagnosedRow>, now: Time) -> Vec<Finding> {
    let is_wrong = |call: &&PendingCall| {
        let is_old = now >= call.created_at + CALL_LIMIT && call.attempt > 1;
        !ends(call) && call.error.is_some() && (is_old || call.attempt >= MAX_ATTEMPTS)
    };
    let found = calls.iter().filter(is_wrong).filter_map(|call| {
        let error = call.error.as_deref().unwrap_or_default();
        Some(Finding {
            since: Some(call.created_at),
            ..about(
                rows.get(&call.subject)?,
                DiagnosisCheck::Stuck,
                format!("{} comes to nothing: {error}", doing(call.kind)),
                "Mend what the error says: the server tries again by itself",
            )
        })
    });
    found.collect()
}

const fn doing(kind: OperationKind) -> &'static str {
    match kind {
        OperationKind::SubmitTask => "handing the task to the host",
        OperationKind::StartJob => "starting the commands",
        OperationKind::StopJob => "stopping the commands",
        OperationKind::RemoveTask => "removing the task from the host",
        OperationKind::Create => "making it",
        OperationKind::Remove => "ending it",
        OperationKind::Prepare => "setting up the host",
        OperationKind::Release => "leaving the host",
    }
}

fn is_unreachable(row: &DiagnosedRow) -> Finding {
    let why = row.waiting_for.as_ref().map(ToString::to_string);
    about(
        row,
        DiagnosisCheck::Hosts,
        match why {
            Some(why) => format!("its agent does not answer ({why})"),
            None => "its agent does not answer".to_owned(),
        },
        "See that the machine runs and that the server reaches its SSH port: `dstack event --within-fleet FLEET` says since when. Jobs \
         that run there go on, and end as lost when it stays away",
    )
}

fn about(row: &DiagnosedRow, check: DiagnosisCheck, problem: String, remedy: &str) -> Finding {
    Finding {
        projects: vec![row.project.clone()],
        ..super::finding(
            check,
            &format!("{} {}", row.entity.kind(), row.name),
            problem,
            remedy,
        )
    }
}

#[cfg(test)]
mod tests {
    use dstack_plan::lifecycle::WaitReason;
    use uuid::Uuid;

    use super::*;

    fn at(minutes: i64) -> Time {
        Time::from_millis(1_790_000_000_000 + minutes * 60_000)
    }

    fn row(number: u128, changed_at: Time) -> DiagnosedRow {
        DiagnosedRow {
            entity: EntityRef::Instance(Uuid::from_u128(number).into()),
            name: format!("train-{number}"),
            project: "main".to_owned(),
            status: "terminating".to_owned(),
            waiting_for: Some(WaitReason::InstanceEnded),
            deadline_at: None,
            changed_at,
        }
    }

    fn call(
        number: u128,
        kind: OperationKind,
        created_at: Time,
        attempt: i64,
        error: Option<&str>,
    ) -> PendingCall {
        PendingCall {
            subject: row(number, at(0)).entity,
            kind,
            attempt,
            created_at,
            error: error.map(str::to_owned),
        }
    }

    fn subjects(findings: &[Finding]) -> Vec<&str> {
        findings.iter().map(|finding| finding.subject.as_str()).collect()
    }

    #[test]
    fn terminations_of_more_than_a_quarter_of_an_hour_are_found_with_the_last_error() {
        let now = at(20);
        let ending = [row(1, at(19)), row(2, at(5)), row(3, at(6)), row(4, at(0))];
        let calls = [
            // Its row was written since, as the error is new.
            call(1, OperationKind::Remove, at(2), 9, Some("403 Forbidden")),
            call(2, OperationKind::RemoveTask, at(2), 9, Some("another call")),
            call(4, OperationKind::Release, at(10), 1, None),
        ];
        let found = terminations(&ending, &calls, now);
        assert_eq!(
            subjects(&found),
            ["instance train-1", "instance train-2", "instance train-4"]
        );
        assert_eq!(found[0].problem, "it is being ended: 403 Forbidden");
        assert_eq!(found[0].since, Some(at(2)));
        assert!(
            found[1].problem.contains(&WaitReason::InstanceEnded.to_string()),
            "{:?}",
            found[1]
        );
        assert_eq!(found[2].since, Some(at(0)));
    }

    #[test]
    fn calls_that_come_to_nothing_are_found_and_those_that_are_new_or_work_are_not() {
        let now = at(20);
        let rows: Vec<DiagnosedRow> = (1..=7).map(|number| row(number, at(0))).collect();
        let rows = rows.into_iter().map(|row| (row.entity, row)).collect();
        let calls = [
            call(1, OperationKind::Create, at(5), 2, Some("no answer")),
            call(2, OperationKind::Create, at(6), 2, Some("no answer")),
            call(3, OperationKind::Create, at(19), 30, Some("no answer")),
            call(4, OperationKind::Create, at(0), 40, None),
            call(5, OperationKind::Remove, at(0), 40, Some("no answer")),
            call(6, OperationKind::Prepare, at(0), 1, Some("no answer")),
            call(8, OperationKind::Create, at(0), 40, Some("its row is gone")),
        ];
        let found = repeated(&calls, &rows, now);
        assert_eq!(subjects(&found), ["instance train-1", "instance train-3"]);
        assert_eq!(found[0].problem, "making it comes to nothing: no answer");
    }
}
