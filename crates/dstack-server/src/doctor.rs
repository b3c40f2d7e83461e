//! What is wrong with an installation, and what it has in clouds: `dstack doctor`.
//!
//! Everything is looked at anew, side by side, and nothing is changed but what a check writes and takes back. What cannot be looked
//! at is a finding as well, and the whole answers in time whatever hangs.

mod accounts;
mod backend_files;
mod rows;
mod stores;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use dstack_model::diagnosis::{
    CheckDone, Diagnosis, DiagnosisCheck, Finding, ListAccountRequest, ListAccountResponse,
};
use dstack_system::Locked;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use tokio::sync::Semaphore;
use tokio::time::Instant;

pub use backend_files::{BackendFiles, LeftOut, Wrong};

use crate::error::Result;
use crate::state::AppState;

/// How long a diagnosis may take. The call as a whole has a minute.
const LIMIT: Duration = Duration::from_secs(40);

/// So many accounts are asked at the same time.
const ACCOUNTS_AT_ONCE: usize = 4;

/// What all diagnoses share.
#[derive(Debug)]
pub struct Doctor {
    limit: Duration,
    /// The one under way: whoever asks meanwhile gets its findings.
    underway: Locked<Option<WeakShared<BoxFuture<'static, Diagnosis>>>>,
    accounts: Semaphore,
    files: BackendFiles,
}

impl Default for Doctor {
    fn default() -> Self {
        Self::within(LIMIT)
    }
}

impl Doctor {
    /// Whose diagnoses take no longer than this.
    pub fn within(limit: Duration) -> Self {
        Self {
            limit,
            underway: Locked::new(None),
            accounts: Semaphore::new(ACCOUNTS_AT_ONCE),
            files: BackendFiles::default(),
        }
    }

    /// Who tells of these files that describe backends as well.
    #[must_use]
    pub fn with_files(self, files: BackendFiles) -> Self {
        Self { files, ..self }
    }

    /// The diagnosis that is under way; one is begun if there is none.
    fn join(
        &self,
        begin: impl FnOnce() -> BoxFuture<'static, Diagnosis>,
    ) -> Shared<BoxFuture<'static, Diagnosis>> {
        let mut underway = self.underway.lock();
        if let Some(shared) = underway.as_ref().and_then(WeakShared::upgrade) {
            return shared;
        }
        let shared = begin().shared();
        *underway = shared.downgrade();
        shared
    }
}

/// What checks have found so far.
#[derive(Debug, Default)]
struct Report {
    checks: Vec<CheckDone>,
    findings: Vec<Finding>,
}

impl Report {
    /// Nothing but this.
    fn of(finding: Finding) -> Self {
        Self {
            checks: Vec::new(),
            findings: vec![finding],
        }
    }

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

/// The time until which checks may take.
#[derive(Debug, Clone, Copy)]
struct Deadline {
    at: Instant,
    limit: Duration,
}

impl Deadline {
    fn of(doctor: &Doctor) -> Self {
        Self {
            at: Instant::now() + doctor.limit,
            limit: doctor.limit,
        }
    }

    /// What comes of the work; that it did not answer, where it takes too long.
    ///
    /// # Errors
    /// Those of the work, as a text, or that.
    async fn keep<T, E: std::error::Error + 'static>(
        self,
        work: impl Future<Output = std::result::Result<T, E>>,
    ) -> std::result::Result<T, String> {
        match tokio::time::timeout_at(self.at, work).await {
            Ok(done) => done.map_err(|error| dstack_system::chain(&error).to_string()),
            Err(_) => Err(format!("no answer within {} s", self.limit.as_secs())),
        }
    }
}

/// Looks at everything, or waits for what whoever asked before will find.
pub(crate) async fn diagnose(state: &Arc<AppState>) -> Diagnosis {
    let asked_at = state.data.clock.now();
    let look = || {
        let state = Arc::clone(state);
        async move { look_at_everything(&state).await }.boxed()
    };
    let found = state.control.doctor.join(look).await;
    // By these the caller compares its clock.
    Diagnosis {
        asked_at,
        answered_at: state.data.clock.now(),
        ..found
    }
}

async fn look_at_everything(state: &AppState) -> Diagnosis {
    let asked_at = state.data.clock.now();
    let deadline = Deadline::of(&state.control.doctor);
    let (stores, rows, accounts) = tokio::join!(
        stores::check(&state.data, deadline),
        deadline.keep(rows::check(&state.data)),
        accounts::check(state, deadline),
    );
    let rows = rows.unwrap_or_else(|error| Report::of(stores::unreadable(&error)));
    let files = backend_files::check(&state.control.doctor.files);
    let mut report = stores.and(rows).and(files).and(accounts);
    report.checks.sort_by_key(|done| done.check);
    report
        .findings
        .sort_by(|a, b| (a.check, &a.subject, &a.problem).cmp(&(b.check, &b.subject, &b.problem)));
    // What is wrong with the database may be told by several checks.
    report.findings.dedup();
    Diagnosis {
        asked_at,
        answered_at: state.data.clock.now(),
        checks: report.checks,
        findings: report.findings,
    }
}

/// What the accounts of a cloud have of this installation.
///
/// # Errors
/// The database cannot be read.
pub(crate) async fn list_account(
    state: &AppState,
    request: &ListAccountRequest,
) -> Result<ListAccountResponse> {
    let deadline = Deadline::of(&state.control.doctor);
    accounts::list(state, request, deadline).await
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use dstack_units::Time;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn work_that_hangs_is_an_error_in_time() {
        let deadline = Deadline::of(&Doctor::default());
        let late = deadline
            .keep(pending::<std::result::Result<(), std::fmt::Error>>())
            .await;
        assert_eq!(late, Err("no answer within 40 s".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_asks_meanwhile_gets_the_same_and_who_asks_later_another() {
        let doctor = Doctor::default();
        let begun = Arc::new(AtomicUsize::new(0));
        let begin = || {
            let begun = Arc::clone(&begun);
            async move {
                begun.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_secs(5)).await;
                Diagnosis {
                    asked_at: Time::from_millis(1),
                    answered_at: Time::from_millis(2),
                    checks: Vec::new(),
                    findings: Vec::new(),
                }
            }
            .boxed()
        };
        // The first goes away in the middle.
        let left = tokio::time::timeout(Duration::from_secs(1), doctor.join(begin));
        let (left, first, second) = tokio::join!(left, doctor.join(begin), doctor.join(begin));
        assert!(left.is_err());
        assert_eq!(first, second);
        assert_eq!(begun.load(Ordering::SeqCst), 1);
        doctor.join(begin).await;
        assert_eq!(begun.load(Ordering::SeqCst), 2);
    }
}
