//! Jobs that wait for a place: highest priority first, then oldest.

mod assignments;
mod pass;

use std::sync::Arc;
use std::time::Duration;

use dstack_units::ProjectId;

use crate::context::Context;
use crate::wakes::Key;
use crate::{EngineError, Result};

/// Jobs that are placed in one pass, and in one commit. To find the first of many takes the database as long as to find all
/// of them; one of a higher priority that comes meanwhile is looked at after these.
const JOBS_PER_PASS: usize = 1024;

/// Conflicts in a row after which there is a pause.
const MAX_CONFLICTS: u32 = 20;

/// Length of the pause after [`MAX_CONFLICTS`] conflicts in a row.
const CONFLICT_PAUSE: Duration = Duration::from_secs(1);

/// Places every waiting job of the project, has an instance made for it, or says why neither can be.
pub async fn reconcile(ctx: &Arc<Context>, project: ProjectId) -> Result<()> {
    let (mut size, mut conflicts) = (JOBS_PER_PASS, 0);
    // Jobs that were looked at and must wait for others, or for what clouds have to say.
    let mut undecided = 0;
    loop {
        let limit = size + undecided;
        let waiting = ctx.deps.store.waiting(&ctx.owner, project, limit).await?;
        match pass::place_all(ctx, project, &waiting).await {
            Ok(left) => undecided = left,
            // One of the rows was changed by others: fewer jobs meet fewer of such changes.
            Err(EngineError::Store(error)) if error.is_conflict() => {
                conflicts += 1;
                if conflicts > MAX_CONFLICTS {
                    ctx.wakes
                        .wake_at(Key::Schedule(project), Some(ctx.now() + CONFLICT_PAUSE));
                    return Ok(());
                }
                size = (size.min(waiting.len()) / 2).max(1);
                continue;
            }
            Err(error) => return Err(error),
        }
        if waiting.len() < limit {
            // Whatever came meanwhile has woken us again.
            return Ok(());
        }
        conflicts = 0;
        size = (size * 2).min(JOBS_PER_PASS);
    }
}
