//! What is wrong with an installation, and what it has in clouds: `dstack doctor`.
//!
//! Everything is looked at anew, side by side, and nothing is changed. What cannot be looked at is a finding as well.

mod accounts;
mod rows;
mod stores;

use std::time::Duration;

use dstack_model::diagnosis::{
    CheckDone, Diagnosis, DiagnosisCheck, Finding, ListAccountRequest, ListAccountResponse,
};
use dstack_system::chain;
use tokio::time::Instant;

use crate::error::Result;
use crate::state::AppState;

/// How long one check may take. The call as a whole has a minute.
const CHECK_LIMIT: Duration = Duration::from_secs(45);

/// What checks have found so far.
#[derive(Debug, Default)]
struct Report {
    checks: Vec<CheckDone>,
    findings: Vec<Finding>,
}

impl Report {
    fn looked_at(&mut self, check: DiagnosisCheck, looked_at: impl Into<String>) {
        self.checks.push(CheckDone {
            check,
            looked_at: looked_at.into(),
        });
    }

    fn and(mut self, other: Self) -> Self {
        self.checks.extend(other.checks);
        self.findings.extend(other.findings);
        self
    }
}

/// A finding of which neither time nor price is known.
fn finding(check: DiagnosisCheck, subject: &str, problem: String, remedy: &str) -> Finding {
    Finding {
        check,
        subject: subject.to_owned(),
        projects: Vec::new(),
        since: None,
        problem,
        remedy: remedy.to_owned(),
        price_per_hour: None,
    }
}

/// `1 row`, `2 rows`.
fn counted(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

/// Looks at everything.
///
/// # Errors
/// None of its own: what cannot be looked at is a finding.
pub(crate) async fn diagnose(state: &AppState) -> Result<Diagnosis> {
    let clock = &state.data.clock;
    let asked_at = clock.now();
    let deadline = Instant::now() + CHECK_LIMIT;
    let (stores, rows, accounts) = tokio::join!(
        stores::check(&state.data),
        rows::check(&state.data),
        accounts::check(state, deadline),
    );
    let mut report = stores.and(match rows {
        Ok(rows) => rows,
        Err(error) => {
            let mut unread = Report::default();
            unread
                .findings
                .push(stores::unreadable(&chain(&error).to_string()));
            unread
        }
    });
    report = report.and(accounts);
    report.checks.sort_by_key(|done| done.check);
    report
        .findings
        .sort_by(|a, b| (a.check, &a.subject).cmp(&(b.check, &b.subject)));
    Ok(Diagnosis {
        asked_at,
        answered_at: clock.now(),
        checks: report.checks,
        findings: report.findings,
    })
}

/// What the accounts of a cloud have of this installation.
///
/// # Errors
/// The database cannot be read.
pub(crate) async fn list_account(
    state: &AppState,
    request: &ListAccountRequest,
) -> Result<ListAccountResponse> {
    let deadline = Instant::now() + CHECK_LIMIT;
    accounts::list(state, request, deadline).await
}
