//! Ends what waits for a gateway: this version has no cloud that makes gateways, so a submitted one fails, with a reason,
//! and one without replicas is gone as soon as its deletion was asked for.

use std::sync::Arc;

use dstack_control::Actor;
use dstack_model::gateways::GatewayStatus;
use dstack_store::events;
use dstack_store::queries::gateways::{self, GatewayRow};
use dstack_store::writes::Change;
use dstack_system::{observe, task_span};
use tokio_util::sync::CancellationToken;

use crate::cloud_worker::{self, Left};
use crate::state::AppState;

const NOT_MADE: &str = "This server version cannot create gateways yet";

/// Runs until the server stops.
pub(crate) fn start(state: &Arc<AppState>, stop: CancellationToken) {
    let changed = Arc::clone(&state.control.verbs.gateways_changed);
    let state = Arc::clone(state);
    cloud_worker::start("gateways", changed, stop, move || {
        let state = Arc::clone(&state);
        async move {
            let span = task_span!("pipeline_tasks.GatewayWorker.process");
            observe::task(span, pass(&state)).await
        }
    });
}

/// Looks once at every gateway that waits.
async fn pass(state: &AppState) -> dstack_control::Result<Left> {
    let database = &state.data.database;
    let mut left = Left::Nothing;
    for listed in gateways::waiting(database.reads()).await? {
        let row = listed.row;
        let done = if !row.to_be_deleted {
            fail(state, row).await
        } else if gateways::replicas(database.reads(), &[row.id]).await?.is_empty() {
            remove(state, row).await
        } else {
            // One with replicas in a cloud stays until they are known to be gone.
            left = Left::Unanswered;
            Ok(())
        };
        match done {
            Err(error) if error.is_conflict() => left = Left::Unanswered,
            other => other?,
        }
    }
    Ok(left)
}

async fn remove(state: &AppState, row: GatewayRow) -> dstack_control::Result<()> {
    let directory = &state.control.verbs.directory;
    let mut work = directory.work(Actor::System);
    work.event("Gateway deleted", vec![events::gateway(&row)]);
    work.change(Change::DeleteGateway(row.id));
    directory.finish(work).await
}

async fn fail(state: &AppState, row: GatewayRow) -> dstack_control::Result<()> {
    let text = format!(
        "Gateway status changed {} -> FAILED ({NOT_MADE})",
        row.status.as_str().to_uppercase()
    );
    let directory = &state.control.verbs.directory;
    let mut work = directory.work(Actor::System);
    work.event(text, vec![events::gateway(&row)]);
    work.change(Change::PutGateway(Box::new(GatewayRow {
        status: GatewayStatus::Failed,
        status_message: Some(NOT_MADE.to_owned()),
        last_processed_at: state.data.clock.now(),
        ..row
    })));
    directory.finish(work).await
}
