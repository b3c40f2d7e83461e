//! What clouds have of ours that belongs to nobody: looked for now and then, reported, and ended where the administrator wants
//! that. `dstack_plan::orphans` decides.
//!
//! One server does it for all ([`EngineStore::take_duty`](dstack_store::EngineStore::take_duty)), beside everything else. Rows
//! that lack something which should be there are none of its business: see [`crate::look`].

mod listing;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dstack_compute::{Account, Backend, Removal};
use dstack_plan::orphans::{Holder, Sighting, judge};
use dstack_store::queries::orphans::OrphanRow;
use dstack_store::writes::Change;
use dstack_store::{Changes, EventMaker, EventTarget, NewEvent};
use dstack_system::task;
use futures_util::{FutureExt, StreamExt, stream};
use tokio::sync::Mutex;

pub use listing::{ListError, Listed, list};

use crate::context::Context;
use crate::operations::clouds::in_time;
use crate::{EngineError, Result};

/// Of the servers that share a database, one does it.
const DUTY: &str = "sweep of orphans";

/// From the start of a server to its first sweep.
const FIRST_PAUSE: Duration = Duration::from_secs(60);

/// Pause between two sweeps.
pub const SWEEP_INTERVAL: Duration = Duration::from_secs(10 * 60);

/// So many accounts are swept at the same time.
const ACCOUNTS_AT_ONCE: usize = 4;

/// How long an account may take to say what it has, of all regions.
const INVENTORY_LIMIT: Duration = Duration::from_secs(5 * 60);

/// Pause at least before a cloud is asked again whether something is gone.
const MIN_PAUSE: Duration = Duration::from_secs(1);

/// How long the orphans of an account are ended in one sweep; the next one goes on.
const ENDING_LIMIT: Duration = Duration::from_secs(5 * 60);

/// Sweeps now and then, as long as the engine runs.
pub fn start(ctx: &Arc<Context>) {
    ctx.spawn_service("sweep of orphans", |ctx| async move {
        let interval = ctx.deps.settings.orphans_interval;
        let mut pause = FIRST_PAUSE.min(interval);
        loop {
            let jitter = ctx.deps.random.fraction() * 0.2 + 0.9;
            tokio::time::sleep(pause.mul_f64(jitter)).await;
            pause = interval;
            let Some(term) = ctx.leases.term() else {
                continue;
            };
            if let Some(Err(error)) = term.run(Box::pin(sweep(&ctx))).await {
                ctx.report(DUTY, &error);
            }
        }
    });
}

/// Sweeps all accounts, if nobody else does.
async fn sweep(ctx: &Context) -> Result<()> {
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
    // Two accounts may list the same thing.
    let judging = Mutex::new(());
    let mut sweeps = Vec::new();
    for account in &accounts {
        let swept = sweep_account(ctx, account, &judging);
        sweeps.push(task::contained("sweep of an account", swept).boxed());
    }
    let mut sweeps = stream::iter(sweeps).buffer_unordered(ACCOUNTS_AT_ONCE);
    while let Some(swept) = sweeps.next().await {
        match swept {
            Ok(Err(error @ (EngineError::Killed(_) | EngineError::LeaseLost))) => return Err(error),
            Ok(Err(error)) => ctx.report(DUTY, &error),
            Ok(Ok(())) | Err(task::Panicked) => {}
        }
    }
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

async fn sweep_account(ctx: &Context, account: &Account, judging: &Mutex<()>) -> Result<()> {
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
    let orphans = {
        let _judging = judging.lock().await;
        judge_all(ctx, account, listed).await?
    };
    let ended = tokio::time::timeout(ENDING_LIMIT, end_all(ctx, account, backend, orphans)).await;
    ended.unwrap_or(Ok(()))
}

/// Decides on everything that an account lists, and writes down what follows. Those that may be ended.
async fn judge_all(ctx: &Context, account: &Account, listed: Vec<Listed>) -> Result<Vec<Listed>> {
    let now = ctx.now();
    let listed = listed.into_iter().map(|thing| (thing.key(&account.kind), thing));
    let listed: BTreeMap<String, Listed> = listed.collect();
    let holders = listed.iter().map(|(key, thing)| (key.clone(), thing.holder()));
    let holders: BTreeMap<String, Holder> = holders.collect();
    let rows = ctx.deps.store.orphans().await?.into_iter();
    let rows = rows.filter(|row| row.account == account.id || listed.contains_key(&row.key));
    let seen: BTreeMap<String, Sighting> = rows.map(|row| (row.key, row.sighting)).collect();
    let mut changes = changes(ctx);
    let (mut reported, mut may_end) = (Vec::new(), Vec::new());
    for (key, verdict) in judge(&holders, &seen, ctx.deps.settings.orphans, now) {
        let (Some(thing), Some(sighting)) = (listed.get(&key), verdict.sighting) else {
            changes.directory(Change::DeleteOrphan(key));
            continue;
        };
        changes.directory(Change::PutOrphan(OrphanRow {
            key,
            account: account.id.clone(),
            description: thing.description(),
            sighting,
        }));
        if verdict.is_reported_now {
            changes.event(event(&changes, account, thing, "found"));
            reported.push(thing);
        }
        if verdict.may_end {
            may_end.push(thing.clone());
        }
    }
    let names = ("orphans.judge.before", "orphans.judge.after");
    ctx.commit(names, changes.into_commit()).await?;
    for thing in reported {
        report(account, thing);
    }
    Ok(may_end)
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

/// Ends orphans, until the cloud says that they are gone.
async fn end_all(
    ctx: &Context,
    account: &Account,
    backend: &dyn Backend,
    mut orphans: Vec<Listed>,
) -> Result<()> {
    loop {
        let (mut underway, mut pause) = (Vec::new(), Duration::MAX);
        for orphan in orphans {
            if let Some(again) = end(ctx, account, backend, &orphan).await? {
                pause = pause.min(again);
                underway.push(orphan);
            }
        }
        if underway.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(pause.max(MIN_PAUSE)).await;
        orphans = underway;
    }
}

/// Has the cloud end an orphan, if it belongs to nobody still. The pause before the cloud is asked again, if it is at it.
async fn end(
    ctx: &Context,
    account: &Account,
    backend: &dyn Backend,
    orphan: &Listed,
) -> Result<Option<Duration>> {
    let store = ctx.deps.store.as_ref();
    if !store.take_duty(DUTY, &ctx.owner).await? {
        return Err(EngineError::LeaseLost);
    }
    let now = listing::with_rows(store, vec![orphan.owned.clone()]).await?;
    // The next sweep forgets what is known again.
    let removes = ctx.deps.settings.orphans.removes;
    let Some(orphan) = now.into_iter().find(|thing| removes.includes(thing.holder())) else {
        return Ok(None);
    };
    if ctx.leases.term().is_none() {
        return Err(EngineError::LeaseLost);
    }
    ctx.reached("orphans.end.before")?;
    let ended = in_time(backend.remove_owned(&orphan.owned)).await;
    ctx.reached("orphans.end.after")?;
    let thing = orphan.description();
    match ended {
        Ok(Removal::Gone) => {
            let mut changes = changes(ctx);
            changes.directory(Change::DeleteOrphan(orphan.key(&account.kind)));
            changes.event(event(&changes, account, &orphan, "ended"));
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

fn changes(ctx: &Context) -> Changes {
    Changes::new(EventMaker::system(ctx.now(), ctx.deps.random.clone()))
}

/// Managers and admins of the projects that have the account see it.
fn event(changes: &Changes, account: &Account, thing: &Listed, what: &str) -> NewEvent {
    let text = format!(
        "Orphan {what} in {}: {}. {}",
        account.kind,
        thing.description(),
        capitalized(&thing.reason())
    );
    let targets = account.projects.iter().map(|project| EventTarget {
        entity_type: "project",
        entity_id: project.id.to_string(),
        entity_name: project.name.clone(),
        project_id: Some(project.id.to_string()),
        run_id: None,
        fleet_id: None,
        gateway_id: None,
    });
    NewEvent {
        for_managers: true,
        ..changes.maker().event(text, targets.collect())
    }
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_uppercase().chain(letters).collect(),
        None => String::new(),
    }
}
