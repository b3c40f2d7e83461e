//! What clouds have of ours that belongs to nobody: looked for now and then, reported, and ended where the administrator wants
//! that. `dstack_plan::orphans` decides.
//!
//! One server does it for all ([`EngineStore::take_duty`](dstack_store::EngineStore::take_duty)), beside everything else. Rows
//! that lack something which should be there are none of its business: see [`crate::look`].

mod ending;
mod listing;
mod telling;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use dstack_compute::{Account, Owned};
use dstack_plan::orphans::{Holder, Pace, Sighting, judge};
use dstack_store::queries::orphans::{MadeFor, MadeKey, OrphanRow};
use dstack_store::writes::Change;
use dstack_system::{Locked, task};
use futures_util::{FutureExt, StreamExt, stream};
use tokio::sync::Mutex;
use tokio::time::Instant;

use ending::{Orphan, Place, end_all};
pub use listing::{ListError, Listed, Listing, list};
use telling::changes;

use crate::context::Context;
use crate::{EngineError, Result};

/// Of the servers that share a database, one does it.
const DUTY: &str = "sweep of orphans";

/// From the start of a server to its first sweep.
const FIRST_PAUSE: Duration = Duration::from_secs(60);

/// Pause between two sweeps.
pub const SWEEP_INTERVAL: Duration = Duration::from_secs(10 * 60);

/// So many accounts are swept at the same time.
const ACCOUNTS_AT_ONCE: usize = 8;

/// How long an account may take to say what it has, of all regions.
const INVENTORY_LIMIT: Duration = Duration::from_secs(5 * 60);

/// How long the orphans of an account are ended in one sweep; the next one goes on.
const ENDING_LIMIT: Duration = Duration::from_secs(5 * 60);

/// What one sweep leaves to the next.
#[derive(Debug, Default)]
struct Sweeps {
    /// How long the last whole one took.
    took: Locked<Duration>,
    /// Which orphan was begun with last in each account whose ending was cut off.
    stopped_at: Locked<BTreeMap<String, String>>,
    /// Two accounts may list the same thing.
    judging: Mutex<()>,
}

impl Sweeps {
    /// `orphans` are in the order of their keys.
    fn begin_where_stopped(&self, account: &str, orphans: &mut [Orphan]) {
        if let Some(stopped) = self.stopped_at.lock().get(account) {
            let next = orphans.partition_point(|orphan| orphan.row.key <= *stopped);
            orphans.rotate_left(next);
        }
    }

    fn note_begun(&self, account: &str, batch: &[Orphan]) {
        if let Some(last) = batch.last() {
            let key = last.row.key.clone();
            self.stopped_at.lock().insert(account.to_owned(), key);
        }
    }

    fn note_all_begun(&self, account: &str) {
        self.stopped_at.lock().remove(account);
    }
}

/// Sweeps now and then, as long as the engine runs.
pub fn start(ctx: &Arc<Context>) {
    ctx.spawn_service("sweep of orphans", |ctx| async move {
        let interval = ctx.deps.settings.orphans_interval;
        let mut pause = FIRST_PAUSE.min(interval);
        let sweeps = Sweeps::default();
        loop {
            let jitter = ctx.deps.random.fraction() * 0.2 + 0.9;
            tokio::time::sleep(pause.mul_f64(jitter)).await;
            pause = interval;
            let Some(term) = ctx.leases.term() else {
                continue;
            };
            if let Some(Err(error)) = term.run(Box::pin(sweep(&ctx, &sweeps))).await {
                ctx.report(DUTY, &error);
            }
        }
    });
}

/// Sweeps all accounts, if nobody else does.
async fn sweep(ctx: &Context, sweeps: &Sweeps) -> Result<()> {
    let begun = Instant::now();
    if !ctx.deps.store.take_duty(DUTY, &ctx.owner).await? {
        return Ok(());
    }
    let accounts = match ctx.deps.backends.accounts().await {
        Ok(accounts) => accounts,
        Err(error) => {
            tracing::warn!(%error, "nobody knows now which clouds there are: nothing is looked for that belongs to nobody");
            return Ok(());
        }
    };
    forget_accounts(ctx, &accounts).await?;
    let mut each = Vec::new();
    for account in &accounts {
        let swept = sweep_account(ctx, sweeps, account, begun);
        each.push(task::contained("sweep of an account", swept).boxed());
    }
    let mut each = stream::iter(each).buffer_unordered(ACCOUNTS_AT_ONCE);
    while let Some(swept) = each.next().await {
        match swept {
            Ok(Err(error @ (EngineError::Killed(_) | EngineError::LeaseLost))) => return Err(error),
            Ok(Err(error)) => ctx.report(DUTY, &error),
            Ok(Ok(())) | Err(task::Panicked) => {}
        }
    }
    *sweeps.took.lock() = begun.elapsed();
    Ok(())
}

/// What was remembered of accounts that nobody has any more.
async fn forget_accounts(ctx: &Context, accounts: &[Account]) -> Result<()> {
    let mut changes = changes(ctx);
    for row in ctx.deps.store.orphans().await? {
        if !accounts.iter().any(|account| account.id == row.account) {
            changes.directory(Change::DeleteOrphan(row.key));
        }
    }
    let names = ("orphans.forget.before", "orphans.forget.after");
    ctx.commit(names, changes.into_commit()).await
}

async fn sweep_account(ctx: &Context, sweeps: &Sweeps, account: &Account, begun: Instant) -> Result<()> {
    let projects = account.projects.first().map(|project| project.name.as_str());
    let (kind, project) = (account.kind.as_str(), projects.unwrap_or_default());
    let backend = match &account.backend {
        Ok(backend) => backend.as_ref(),
        Err(error) => {
            tracing::warn!(backend.r#type = kind, project.name = project, %error, "a cloud is not asked what it has of ours");
            return Ok(());
        }
    };
    let (store, installation) = (ctx.deps.store.as_ref(), ctx.deps.settings.installation);
    let listed = match list(store, installation, backend, INVENTORY_LIMIT).await {
        Ok(listed) => listed,
        Err(ListError::Cloud(error)) => {
            tracing::warn!(backend.r#type = kind, project.name = project, %error, "a cloud does not tell what it has of ours");
            return Ok(());
        }
        Err(ListError::Store(error)) => return Err(error.into()),
    };
    for missing in &listed.missing {
        let (region, Some(error)) = (&missing.region, &missing.error) else {
            continue;
        };
        tracing::warn!(
            backend.r#type = kind, project.name = project, region, %error,
            "a region does not tell what it has of ours: the others are looked at"
        );
    }
    let all: Vec<Owned> = listed.things.iter().map(|thing| thing.owned.clone()).collect();
    let orphans = {
        let _judging = sweeps.judging.lock().await;
        let took = *sweeps.took.lock();
        let pace = Pace::of(ctx.deps.settings.orphans_interval, took, begun.elapsed());
        judge_all(ctx, account, listed, pace).await?
    };
    let place = Place {
        account,
        backend,
        listed: &all,
    };
    let ended = tokio::time::timeout(ENDING_LIMIT, end_all(ctx, sweeps, place, orphans)).await;
    ended.unwrap_or(Ok(()))
}

/// Decides on everything that an account lists, and writes down what follows; of what regions have that do not tell, nothing does.
/// Those that may be ended, in the order of their keys.
async fn judge_all(ctx: &Context, account: &Account, listing: Listing, pace: Pace) -> Result<Vec<Orphan>> {
    let now = ctx.now();
    let rows = ctx.deps.store.orphans().await?.into_iter();
    let rows: Vec<OrphanRow> = rows.filter(|row| !listing.hides(&row.key)).collect();
    let listed = listing.things.into_iter();
    let listed = listed.map(|thing| (thing.key(&account.kind), thing));
    let listed: BTreeMap<String, Listed> = listed.collect();
    let holders = listed.iter().map(|(key, thing)| (key.clone(), thing.holder()));
    let holders: BTreeMap<String, Holder> = holders.collect();
    let rows = rows.into_iter();
    let rows = rows.filter(|row| row.account == account.id || listed.contains_key(&row.key));
    let known: BTreeMap<String, OrphanRow> = rows.map(|row| (row.key.clone(), row)).collect();
    let seen = known.iter().map(|(key, row)| (key.clone(), row.sighting));
    let seen: BTreeMap<String, Sighting> = seen.collect();
    let mut changes = changes(ctx);
    let (mut reported, mut may_end, mut ended) = (Vec::new(), Vec::new(), Vec::new());
    for (key, verdict) in judge(&holders, &seen, ctx.deps.settings.orphans, pace, now) {
        let (Some(thing), Some(sighting)) = (listed.get(&key), verdict.sighting) else {
            ended.extend(known.get(&key).filter(|_| verdict.has_ended));
            changes.directory(Change::DeleteOrphan(key));
            continue;
        };
        let row = OrphanRow {
            key,
            account: account.id.clone(),
            description: thing.description(),
            sighting,
        };
        changes.directory(Change::PutOrphan(row.clone()));
        if verdict.is_reported_now {
            changes.event(telling::found(&changes, account, thing));
            reported.push(thing);
        }
        if verdict.may_end && thing.may_be_ended() {
            let thing = thing.clone();
            may_end.push(Orphan { thing, row });
        }
    }
    let made_for = made_for(ctx, &ended).await?;
    for (row, made_for) in ended.into_iter().zip(&made_for) {
        changes.event(telling::ended(&changes, account, row, made_for.as_ref()));
    }
    let names = ("orphans.judge.before", "orphans.judge.after");
    ctx.commit(names, changes.into_commit()).await?;
    for thing in reported {
        report(account, thing);
    }
    Ok(may_end)
}

/// For what each of these was made, if that is known.
async fn made_for(ctx: &Context, orphans: &[&OrphanRow]) -> Result<Vec<Option<MadeFor>>> {
    let keys = orphans.iter().map(|row| listing::made_key_of(&row.key));
    let keys: Vec<Option<MadeKey>> = keys.collect();
    let asked: BTreeSet<MadeKey> = keys.iter().flatten().cloned().collect();
    if asked.is_empty() {
        return Ok(vec![None; orphans.len()]);
    }
    let rows = ctx.deps.store.made_for(&asked).await?;
    let row_of = |key: &MadeKey| rows.iter().find(|row| key.is_of(row.id)).cloned();
    Ok(keys.iter().map(|key| key.as_ref().and_then(row_of)).collect())
}

fn report(account: &Account, thing: &Listed) {
    let owned = &thing.owned;
    tracing::warn!(
        backend.r#type = account.kind,
        kind = %owned.kind,
        id = owned.id,
        name = owned.name,
        region = owned.region,
        price_per_hour = owned.price,
        reason = thing.reason(),
        "something in a cloud carries our marks and belongs to nobody"
    );
}
