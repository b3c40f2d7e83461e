//! Serving until somebody says stop.

use std::sync::Arc;
use std::time::Duration;

use dstack_store::queries::users::UserRow;
use dstack_system::task;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::announce::{announce, say};
use super::assemble::{Assembled, assemble};
use super::options::ServerOptions;
use super::{Reloader, ServerError, listening};
use crate::connections::Connections;
use crate::state::AppState;
use crate::{access, handlers, retention};

/// How long requests under way may take when the server stops.
const DRAIN: Duration = Duration::from_secs(3);

/// Runs the server until it is told to stop.
pub async fn serve(mut options: ServerOptions) -> Result<(), ServerError> {
    let open_files = listening::raise_file_limit();
    let listener = listening::listen(options.settings.listening_address()).await?;
    let (home, ready, stop) = (options.home.take(), options.ready.take(), options.stop.clone());
    let Assembled {
        state,
        first,
        config,
        stop_engine,
        lock: _lock,
    } = assemble(options).await?;
    warm_keys(&state, first.admin.clone());
    if let Ok(address) = listener.local_addr() {
        state.services.answer_at(address);
    }
    let connections = Connections::new(state.edge.settings.max_connections, open_files);
    state.data.live.limit(connections.limit());
    start_workers(&state, &stop);
    reload_on_hangup(&state, Reloader::new(first.admin.clone(), &config), stop.clone());
    announce(&state, &listener, home, &first).await;
    if let (Some(ready), Ok(address)) = (ready, listener.local_addr()) {
        ready.send(address).ok(); // whoever asked may be gone
    }
    run(listener, connections, &state, stop).await;
    if let Some(stop_engine) = stop_engine {
        stop_engine().await;
    }
    state.data.database.close().await;
    Ok(())
}

fn start_workers(state: &Arc<AppState>, stop: &CancellationToken) {
    retention::start(&state.data, &state.edge, stop.clone());
    state.services.follow(stop.clone());
    access::shared::start(&state.auth.access, &state.data.random, stop.clone());
    state
        .data
        .live
        .start(&state.data, &state.auth.access, stop.clone());
}

/// The first request should not have to wait for prime numbers.
fn warm_keys(state: &AppState, admin: UserRow) {
    let (data, auth) = (Arc::clone(&state.data), Arc::clone(&state.auth));
    task::spawn("make the admin's key pair", async move {
        if let Err(error) = auth.key_pair(&data, &admin).await {
            tracing::warn!(?error, "cannot make the admin's key pair");
        }
    });
}

/// Applies config.yml again at each SIGHUP.
fn reload_on_hangup(state: &Arc<AppState>, reloader: Reloader, stop: CancellationToken) {
    use tokio::signal::unix::{SignalKind, signal};
    let (state, Ok(mut hangup)) = (Arc::clone(state), signal(SignalKind::hangup())) else {
        return;
    };
    task::spawn("reload config.yml", async move {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                received = hangup.recv() => if received.is_none() { return },
            }
            if state.edge.settings.config_disabled {
                tracing::warn!("config.yml is not applied again: DSTACK_SERVER_CONFIG_DISABLED is set");
                continue;
            }
            match reloader.reload(&state).await {
                Ok(reloaded) => {
                    for change in reloaded.changes {
                        tracing::info!("config.yml: {change}");
                    }
                    for warning in reloaded.warnings {
                        tracing::warn!("config.yml: {warning}");
                    }
                    tracing::info!("config.yml was applied again");
                }
                Err(error) => tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "config.yml is not applied again, everything stays as it was: {error}"
                ),
            }
        }
    });
}

async fn run(
    listener: TcpListener,
    connections: Connections,
    state: &Arc<AppState>,
    stop: CancellationToken,
) {
    let (signals, clock) = (stop.clone(), Arc::clone(&state.data.clock));
    let watcher = task::spawn("signals", async move {
        terminated().await;
        say(&clock, "The dstack server is stopping. Jobs go on");
        signals.cancel();
    });
    let router = handlers::router(Arc::clone(state));
    tokio::select! {
        () = connections.serve(listener, router, stop.clone()) => {}
        () = async { stop.cancelled().await; tokio::time::sleep(DRAIN).await; } => {}
    }
    watcher.abort();
}

/// SIGTERM or Ctrl-C.
async fn terminated() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}
