//! Has clouds end orphans, until they say that those are gone.

use std::time::Duration;

use dstack_compute::{Account, Backend, Owned, Removal};
use dstack_store::queries::orphans::OrphanRow;
use dstack_store::writes::Change;
use futures_util::future::join_all;

use super::listing::{self, Listed};
use super::{DUTY, Sweeps, telling};
use crate::context::Context;
use crate::operations::clouds::in_time;
use crate::{EngineError, Result};

/// So many are ended at the same time, and looked up together immediately before.
const AT_ONCE: usize = 8;

/// Pause at least before a cloud is asked again whether something is gone.
const MIN_PAUSE: Duration = Duration::from_secs(1);

/// Something that may be ended, with what is remembered of it.
#[derive(Debug, Clone)]
pub(super) struct Orphan {
    pub(super) thing: Listed,
    pub(super) row: OrphanRow,
}

/// The account that has the orphans, and what it listed with them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) account: &'a Account,
    pub(super) backend: &'a dyn Backend,
    pub(super) listed: &'a [Owned],
}

/// Ends all, beginning where the last sweep was stopped: those that hang do not keep the others from being asked for.
pub(super) async fn end_all(
    ctx: &Context,
    sweeps: &Sweeps,
    place: Place<'_>,
    mut orphans: Vec<Orphan>,
) -> Result<()> {
    sweeps.begin_where_stopped(&place.account.id, &mut orphans);
    loop {
        let (mut underway, mut pause) = (Vec::new(), Duration::MAX);
        for batch in orphans.chunks(AT_ONCE) {
            sweeps.note_begun(&place.account.id, batch);
            let batch = begin(ctx, place, batch).await?;
            let ended = join_all(batch.iter().map(|orphan| end(ctx, place, orphan))).await;
            for (orphan, again) in batch.iter().zip(ended) {
                if let Some(again) = again? {
                    pause = pause.min(again);
                    underway.push(orphan.clone());
                }
            }
        }
        sweeps.note_all_begun(&place.account.id);
        if underway.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(pause.max(MIN_PAUSE)).await;
        orphans = underway;
    }
}

/// Those of a batch that belong to nobody still. It is told of each that it is being ended: whoever finds it gone later knows why.
async fn begin(ctx: &Context, place: Place<'_>, batch: &[Orphan]) -> Result<Vec<Orphan>> {
    let store = ctx.deps.store.as_ref();
    if !store.take_duty(DUTY, &ctx.owner).await? {
        return Err(EngineError::LeaseLost);
    }
    let things = batch.iter().map(|orphan| orphan.thing.owned.clone()).collect();
    let now = listing::with_rows(store, place.backend, things, place.listed).await?;
    // The next sweep forgets what is known again.
    let removes = ctx.deps.settings.orphans.removes;
    let left = now.into_iter().zip(batch);
    let left = left.filter(|(thing, _)| thing.may_be_ended() && removes.includes(thing.holder()));
    let mut left: Vec<Orphan> = left
        .map(|(thing, orphan)| Orphan {
            thing,
            row: orphan.row.clone(),
        })
        .collect();
    let mut changes = telling::changes(ctx);
    for Orphan { thing, row } in left.iter_mut().filter(|orphan| !orphan.row.sighting.is_ending) {
        row.sighting.is_ending = true;
        changes.directory(Change::PutOrphan(row.clone()));
        changes.event(telling::is_being_ended(&changes, place.account, thing));
    }
    let names = ("orphans.begin.before", "orphans.begin.after");
    ctx.commit(names, changes.into_commit()).await?;
    Ok(left)
}

/// The pause before the cloud is asked again, if it is at it.
async fn end(ctx: &Context, place: Place<'_>, orphan: &Orphan) -> Result<Option<Duration>> {
    if ctx.leases.term().is_none() {
        return Err(EngineError::LeaseLost);
    }
    ctx.reached("orphans.end.before")?;
    let ended = in_time(place.backend.remove_owned(&orphan.thing.owned)).await;
    ctx.reached("orphans.end.after")?;
    let (account, thing) = (place.account, &orphan.row.description);
    match ended {
        Ok(Removal::Gone) => {
            let mut changes = telling::changes(ctx);
            changes.directory(Change::DeleteOrphan(orphan.row.key.clone()));
            let made_for = orphan.thing.made_for.as_ref();
            changes.event(telling::ended(&changes, account, &orphan.row, made_for));
            let names = ("orphans.ended.before", "orphans.ended.after");
            ctx.commit(names, changes.into_commit()).await?;
            tracing::warn!(
                backend.r#type = account.kind,
                thing,
                "what belonged to nobody was ended"
            );
            Ok(None)
        }
        Ok(Removal::Underway { again }) => {
            tracing::debug!(
                backend.r#type = account.kind,
                thing,
                "a cloud is ending what belongs to nobody"
            );
            Ok(Some(again))
        }
        Err(error) => {
            tracing::warn!(
                backend.r#type = account.kind, thing, %error,
                "a cloud does not end what belongs to nobody: it is asked again with the next sweep"
            );
            Ok(None)
        }
    }
}
