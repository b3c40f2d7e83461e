//! Waiting until something that was applied is there; Ctrl-C asks whether to delete it again.

use std::process::ExitCode;

use super::interrupted;
use crate::args::ApplyArgs;
use crate::commands::{REFRESH, exiting};
use crate::context::Context;
use crate::error::CliError;
use crate::ui::{Table, Text};

/// Asks unless `-y`; `None` means go on.
pub(crate) async fn confirm(
    context: &Context,
    args: &ApplyArgs,
    question: impl Into<Text>,
) -> Result<Option<ExitCode>, CliError> {
    if args.yes || context.ui.confirm(question).await? {
        return Ok(None);
    }
    Ok(Some(exiting(&context.ui)))
}

/// Runs what comes before anything is made; Ctrl-C ends it quietly.
pub(crate) async fn before<T>(
    context: &Context,
    preparing: impl Future<Output = Result<Result<T, ExitCode>, CliError>>,
) -> Result<Result<T, ExitCode>, CliError> {
    tokio::select! {
        biased;
        prepared = preparing => prepared,
        _ = tokio::signal::ctrl_c() => Ok(Err(interrupted(context))),
    }
}

/// Words and states of a kind of thing.
pub(crate) struct Kind<T> {
    /// `fleet`, ...
    pub(crate) noun: &'static str,
    /// Whether nothing will change any more.
    pub(crate) is_done: fn(&T) -> bool,
}

/// Shows a thing live until it is done; `None` when the user left.
pub(crate) async fn wait<T>(
    context: &Context,
    args: &ApplyArgs,
    kind: &Kind<T>,
    name: &str,
    mut thing: T,
    table: impl Fn(&T) -> Table,
    fetch: impl AsyncFn() -> Result<T, CliError>,
    delete: impl AsyncFnOnce() -> Result<(), CliError>,
) -> Result<Option<T>, CliError> {
    let ui = &context.ui;
    let done = {
        let live = ui.spin(Text::from("Provisioning ").code(name).push("..."));
        let waiting = async {
            while !(kind.is_done)(&thing) {
                live.body(&table(&thing), &[]);
                tokio::time::sleep(REFRESH).await;
                thing = fetch().await?;
            }
            Ok::<_, CliError>(())
        };
        tokio::select! {
            waited = waiting => {
                waited?;
                true
            }
            _ = tokio::signal::ctrl_c() => false,
        }
    };
    if done {
        return Ok(Some(thing));
    }
    if !args.yes
        && ui
            .confirm(format!("Delete the {} before exiting?", kind.noun))
            .await?
    {
        let _spinner = ui.spin(format!("Deleting {}...", kind.noun));
        delete().await?;
    } else {
        ui.say(format!(
            "Exiting... {} provisioning will continue in the background.",
            crate::format::capitalize(kind.noun)
        ));
    }
    Ok(None)
}

/// Waits until the server no longer knows a thing.
pub(crate) async fn until_gone(exists: impl AsyncFn() -> Result<bool, CliError>) -> Result<(), CliError> {
    while exists().await? {
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
    Ok(())
}
