//! Whether everything answers that the server keeps things in.

use std::time::Duration;

use dstack_logs::{LogStream, PollQuery, Producer};
use dstack_model::diagnosis::{DiagnosisCheck, Finding};
use dstack_system::chain;
use dstack_units::{JobId, Time};
use uuid::Uuid;

use super::{CHECK_LIMIT, Report, finding};
use crate::state::Data;

/// Clocks that differ by more than this are wrong.
const MAX_SKEW: Duration = Duration::from_secs(5);

const AWAY: &str =
    "Nothing that runs is lost meanwhile: mend what the error says, the server goes on by itself";

pub(super) async fn check(data: &Data) -> Report {
    let (database, logs, bucket) = tokio::join!(database(data), logs(data), bucket(data));
    database.and(logs).and(bucket)
}

/// The database does not answer as it should.
pub(super) fn unreadable(error: &str) -> Finding {
    finding(DiagnosisCheck::Database, "database", error.to_owned(), AWAY)
}

async fn database(data: &Data) -> Report {
    let mut report = Report::default();
    let before = data.clock.now();
    let answer = data.database.check().await;
    let after = data.clock.now();
    report.looked_at(
        DiagnosisCheck::Database,
        match &answer {
            Ok(_) => format!("answered within {} ms", millis(before, after)),
            Err(_) => "does not answer as it should".to_owned(),
        },
    );
    match answer {
        Ok(None) => report.looked_at(DiagnosisCheck::Clocks, "the database has that of the server"),
        Ok(Some(time)) => {
            report.looked_at(DiagnosisCheck::Clocks, "server and database");
            report.findings.extend(skew(time, (before, after)));
        }
        Err(error) => report.findings.push(unreadable(&chain(&error).to_string())),
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

/// A log that nobody writes is read: who answers that there is none can be reached, and takes the credentials.
async fn logs(data: &Data) -> Report {
    let mut report = Report::default();
    let nobody = LogStream {
        project: "doctor".to_owned(),
        run: "no-such-run".to_owned(),
        job: JobId::new(Uuid::nil()),
        producer: Producer::Job,
    };
    let query = PollQuery {
        limit: 1,
        ..PollQuery::default()
    };
    let read = tokio::time::timeout(CHECK_LIMIT, data.logs.poll(&nobody, &query)).await;
    report.looked_at(DiagnosisCheck::LogStore, "a log was read");
    let error = match read {
        Ok(Ok(_)) => return report,
        Ok(Err(error)) => chain(&error).to_string(),
        Err(_) => no_answer(),
    };
    let found = finding(DiagnosisCheck::LogStore, "store of output", error, AWAY);
    report.findings.push(found);
    report
}

async fn bucket(data: &Data) -> Report {
    let mut report = Report::default();
    let read = tokio::time::timeout(CHECK_LIMIT, data.blobs.check_bucket()).await;
    let error = match read {
        Ok(Ok(true)) => None,
        Ok(Ok(false)) => {
            report.looked_at(DiagnosisCheck::Bucket, "none is set: uploads are in the database");
            return report;
        }
        Ok(Err(error)) => Some(chain(&error).to_string()),
        Err(_) => Some(no_answer()),
    };
    report.looked_at(DiagnosisCheck::Bucket, "an object was asked for");
    let remedy = "Jobs whose code or files are in it do not start: mend what the error says, the server goes on by itself";
    let found = error.map(|error| finding(DiagnosisCheck::Bucket, "bucket of uploads", error, remedy));
    report.findings.extend(found);
    report
}

fn no_answer() -> String {
    format!("no answer within {} s", CHECK_LIMIT.as_secs())
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
