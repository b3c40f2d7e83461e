//! `dstack doctor`: what is wrong with an installation, and what it has in clouds. For admins of the server.

use std::process::ExitCode;
use std::time::Duration;

use dstack_api::client::ClientError;
use dstack_api::endpoint::Nothing;
use dstack_api::routes::{ServerGetDiagnosis, ServerListAccount};
use dstack_model::backends::BackendType;
use dstack_model::diagnosis::{Diagnosis, DiagnosisCheck, Finding, ListAccountRequest, ListAccountResponse};
use dstack_system::{Clock, SystemClock};
use dstack_units::Time;

use super::print_pretty;
use crate::args::DoctorArgs;
use crate::context::{Context, Project};
use crate::error::{CliError, ErrorKind};
use crate::tables::diagnosis;
use crate::ui::Ui;

/// Clocks that differ by more than this are wrong.
const MAX_SKEW: Duration = Duration::from_secs(5);

/// Runs the command. It fails when something is wrong.
pub(crate) async fn run(context: &Context, args: &DoctorArgs) -> Result<ExitCode, CliError> {
    let wanted = args.project.name.as_deref();
    match args.account {
        Some(backend) => account(context, args, backend, wanted).await,
        None => diagnose(context, args, &context.project(wanted)?).await,
    }
}

async fn diagnose(context: &Context, args: &DoctorArgs, project: &Project) -> Result<ExitCode, CliError> {
    let (ui, before) = (&context.ui, SystemClock.now());
    let spinner = ui.spin("Looking at everything...");
    let diagnosis = project.client.call::<ServerGetDiagnosis>((), &Nothing).await;
    drop(spinner);
    let diagnosis = with_own_clock(diagnosis.map_err(explained)?, (before, SystemClock.now()));
    if args.format.is_json() {
        print_pretty(ui, &diagnosis)?;
    } else {
        print(ui, &diagnosis);
    }
    Ok(match diagnosis.findings.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn print(ui: &Ui, diagnosis: &Diagnosis) {
    ui.table(&diagnosis::checks(diagnosis));
    ui.blank();
    if diagnosis.findings.is_empty() {
        ui.say("Nothing is wrong.");
        return;
    }
    let now = SystemClock.now();
    for finding in &diagnosis.findings {
        ui.say(diagnosis::title(finding, now));
        ui.say_hanging(&diagnosis::problem(finding), diagnosis::INDENT);
        ui.say_hanging(&diagnosis::remedy(finding), diagnosis::INDENT);
        ui.blank();
    }
    ui.say(diagnosis::summary(&diagnosis.findings));
}

/// With a finding if the clocks of server and client differ. The call was sent and answered between these two times of the
/// client, and came and left between those two of the server.
fn with_own_clock(mut diagnosis: Diagnosis, (sent, received): (Time, Time)) -> Diagnosis {
    let seconds = |from: Time, to: Time| (to.as_micros() - from.as_micros()) as f64 / 1e6;
    let (behind, ahead) = (
        seconds(diagnosis.asked_at, sent),
        seconds(received, diagnosis.answered_at),
    );
    let (apart, direction) = match behind > ahead {
        true => (behind, "behind"),
        false => (ahead, "ahead of"),
    };
    if apart > MAX_SKEW.as_secs_f64() {
        diagnosis.findings.push(Finding {
            check: DiagnosisCheck::Clocks,
            subject: "clock of the server".to_owned(),
            projects: Vec::new(),
            since: None,
            problem: format!("it is {apart:.1} s {direction} that of this machine"),
            remedy: "Let both machines set their clocks by the network (chrony, systemd-timesyncd): what `--since` and ages say is \
                     wrong by as much"
                .to_owned(),
            price_per_hour: None,
        });
        diagnosis
            .findings
            .sort_by(|a, b| (a.check, &a.subject).cmp(&(b.check, &b.subject)));
    }
    diagnosis
}

async fn account(
    context: &Context,
    args: &DoctorArgs,
    backend: BackendType,
    wanted: Option<&str>,
) -> Result<ExitCode, CliError> {
    // The project's own server if this machine knows it, else the usual one.
    let is_known = match wanted {
        Some(name) => context.config()?.project(name).is_some(),
        None => false,
    };
    let project = context.project(wanted.filter(|_| is_known))?;
    let request = ListAccountRequest {
        backend,
        project_name: wanted.map(str::to_owned),
    };
    let spinner = context.ui.spin("Asking the cloud...");
    let answer = project.client.call::<ServerListAccount>((), &request).await;
    drop(spinner);
    let answer = answer.map_err(explained)?;
    if answer.accounts.is_empty() {
        let who = wanted.map_or_else(|| "No project".to_owned(), |name| format!("Project {name}"));
        let message = match wanted {
            Some(_) => format!("{who} does not have the backend {backend}"),
            None => format!("{who} has the backend {backend}"),
        };
        return Err(CliError::new(ErrorKind::NotFound, message));
    }
    if args.format.is_json() {
        print_pretty(&context.ui, &answer)?;
    } else {
        print_accounts(&context.ui, &answer);
    }
    let is_complete = answer.accounts.iter().all(|account| account.error.is_none());
    Ok(match is_complete {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn print_accounts(ui: &Ui, answer: &ListAccountResponse) {
    let now = SystemClock.now();
    for account in &answer.accounts {
        ui.say(diagnosis::account(account));
        if !account.things.is_empty() {
            ui.table(&diagnosis::things(account, now));
        }
        if account.error.is_none() || !account.things.is_empty() {
            ui.say(diagnosis::total(account));
        }
        if let Some(error) = &account.error {
            ui.complain(diagnosis::unknown(account, error));
        }
        ui.blank();
    }
}

fn explained(error: ClientError) -> CliError {
    let is_denied = matches!(error, ClientError::Denied { .. });
    let error = CliError::from(error);
    match is_denied {
        true => error.hint("only admins of the server may look at all of it"),
        false => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_compared_as_far_as_the_answer_can_tell() {
        let at = |seconds: i64| Time::from_millis(1_790_000_000_000 + seconds * 1000);
        // It took the server 40 seconds, and the way there and back one.
        for (asked_at, wrong) in [
            (0, None),
            (1, None),
            (-5, None),
            (6, None),
            (-7, Some("it is 7.0 s behind that of this machine")),
            (60, Some("it is 59.0 s ahead of that of this machine")),
        ] {
            let diagnosis = Diagnosis {
                asked_at: at(asked_at),
                answered_at: at(asked_at + 40),
                checks: Vec::new(),
                findings: Vec::new(),
            };
            let found = with_own_clock(diagnosis, (at(0), at(41))).findings;
            let problems: Vec<&str> = found.iter().map(|finding| finding.problem.as_str()).collect();
            assert_eq!(problems, Vec::from_iter(wrong), "{asked_at}");
        }
    }
}
