//! Whether everything answers that the server keeps things in.

use std::time::Duration;

use dstack_model::diagnosis::{DiagnosisCheck, Finding};
use dstack_units::Time;

use super::{Deadline, Report, finding};
use crate::state::Data;

/// Clocks that differ by more than this are wrong.
const MAX_SKEW: Duration = Duration::from_secs(5);

const AWAY: &str =
    "Nothing that runs is lost meanwhile: mend what the error says, the server goes on by itself";

pub(super) async fn check(data: &Data, deadline: Deadline) -> Report {
    let (database, logs, bucket) = tokio::join!(
        database(data, deadline),
        logs(data, deadline),
        bucket(data, deadline)
    );
    database.and(logs).and(bucket)
}

/// The database does not answer as it should.
pub(super) fn unreadable(error: &str) -> Finding {
    finding(DiagnosisCheck::Database, "database", error.to_owned(), AWAY)
}

async fn database(data: &Data, deadline: Deadline) -> Report {
    let mut report = Report::default();
    let before = data.clock.now();
    let answer = deadline.keep(data.database.check()).await;
    let after = data.clock.now();
    report.looked_at(
        DiagnosisCheck::Database,
        match &answer {
            Ok(_) => format!(
                "something was read and written within {} ms",
                millis(before, after)
            ),
            Err(_) => "does not answer as it should".to_owned(),
        },
    );
    match answer {
        Ok(None) => report.looked_at(DiagnosisCheck::Clocks, "the database has that of the server"),
        Ok(Some(time)) => {
            report.looked_at(DiagnosisCheck::Clocks, "server and database");
            report.findings.extend(skew(time, (before, after)));
        }
        Err(error) => report.findings.push(unreadable(&error)),
    }
    report
}

fn millis(from: Time, to: Time) -> i64 {
    (to.as_micros() - from.as_micros()) / 1000
}

/// How far the clock of the database is from that of the server, which asked for it between these two times.
fn skew(database: Time, (before, after): (Time, Time)) -> Option<Finding> {
    let ahead = millis(after, database).max(0);
    let behind = millis(database, before).max(0);
    let apart = ahead.max(behind);
    let is_wrong = u128::try_from(apart).is_ok_and(|apart| apart > MAX_SKEW.as_millis());
    let direction = if ahead > behind { "ahead of" } else { "behind" };
    is_wrong.then(|| {
        finding(
            DiagnosisCheck::Clocks,
            "clock of the database",
            format!("it is {:.1} s {direction} that of the server", apart as f64 / 1000.0),
            "Let both machines set their clocks by the network (chrony, systemd-timesyncd): deadlines and ages are wrong by as much",
        )
    })
}

async fn logs(data: &Data, deadline: Deadline) -> Report {
    let mut report = Report::default();
    let checked = deadline.keep(data.logs.check()).await;
    report.looked_at(
        DiagnosisCheck::LogStore,
        *checked.as_ref().unwrap_or(&"does not answer as it should"),
    );
    if let Err(error) = checked {
        let found = finding(DiagnosisCheck::LogStore, "store of output", error, AWAY);
        report.findings.push(found);
    }
    report
}

async fn bucket(data: &Data, deadline: Deadline) -> Report {
    let mut report = Report::default();
    let error = match deadline.keep(data.blobs.check_bucket()).await {
        Ok(true) => None,
        Ok(false) => {
            report.looked_at(DiagnosisCheck::Bucket, "none is set: uploads are in the database");
            return report;
        }
        Err(error) => Some(error),
    };
    report.looked_at(DiagnosisCheck::Bucket, "an object was asked for");
    let remedy = "Jobs whose code or files are in it do not start: mend what the error says, the server goes on by itself";
    let found = error.map(|error| finding(DiagnosisCheck::Bucket, "bucket of uploads", error, remedy));
    report.findings.extend(found);
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_compared_as_far_as_the_answer_can_tell() {
        let at = |seconds: i64| Time::from_millis(1_790_000_000_000 + seconds * 1000);
        // The answer came after 3 seconds: the database was asked at any time of those.
        let asked = (at(0), at(3));
        for (database, wrong) in [
            (at(0), None),
            (at(3), None),
            (at(8), None),
            (at(-5), None),
            (at(9), Some("it is 6.0 s ahead of that of the server")),
            (at(-60), Some("it is 60.0 s behind that of the server")),
        ] {
            let found = skew(database, asked).map(|finding| finding.problem);
            assert_eq!(found.as_deref(), wrong);
        }
    }
}
