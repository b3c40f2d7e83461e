//! The life of the process: it starts, and ends when it is told to.

use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::gateway::{Gateway, StartError};
use crate::settings::Settings;

/// Runs a gateway until SIGTERM or SIGINT. A second one ends it at once.
///
/// # Errors
/// It cannot be started.
pub async fn run(settings: Settings) -> Result<(), StartError> {
    crate::log::init(settings.log_level);
    let settings = Settings {
        max_connections: settings.max_connections.min(most_connections()),
        ..settings
    };
    let grace = Duration::from_secs(settings.grace);
    let gateway = Gateway::start(settings).await?;
    let (mut term, mut int) = (
        listen_for(SignalKind::terminate()),
        listen_for(SignalKind::interrupt()),
    );
    told(&mut term, &mut int).await;
    tracing::info!("the gateway ends");
    tokio::select! {
        () = gateway.stop(grace) => {}
        () = told(&mut term, &mut int) => {}
    }
    Ok(())
}

fn listen_for(kind: SignalKind) -> Option<Signal> {
    signal(kind)
        .inspect_err(|error| tracing::warn!(%error, "a signal is not listened for"))
        .ok()
}

async fn told(term: &mut Option<Signal>, int: &mut Option<Signal>) {
    tokio::select! {
        () = received(term) => {}
        () = received(int) => {}
    }
}

async fn received(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Each connection is a file: of as many as the system allows, three quarters.
fn most_connections() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
    let files = getrlimit(Resource::Nofile).current;
    let files = files.and_then(|files| usize::try_from(files).ok());
    files.map_or(usize::MAX, |files| files - files / 4)
}
