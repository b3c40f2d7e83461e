//! This server's lease: taken, renewed in time, and taken anew when it was lost; and what is claimed with it.

use std::sync::Arc;
use std::time::Duration;

use dstack_store::{Acquired, Claim, EntityRef, Lease, LeaseRequest};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::context::{Context, Identity};
use crate::term::Term;
use crate::{EngineError, Result};

/// Pause before a lease is asked for again after an error, or while another process has it.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// The first lease of this process. Another process of the same name may have died just now: its lease is waited for.
pub(super) async fn first_term(ctx: &Context, identity: &Identity) -> Result<Arc<Term>> {
    let request = request(ctx, identity, 1);
    let patience = Instant::now() + 2 * ctx.deps.settings.lease;
    loop {
        if let Some(term) = acquire(ctx, &request).await? {
            return Ok(term);
        }
        if Instant::now() >= patience {
            return Err(EngineError::NameTaken(identity.name.clone()));
        }
        sleep(ASK_AGAIN).await;
    }
}

/// Starts renewing the lease, and claiming what others left.
pub(super) fn start(ctx: &Arc<Context>, identity: Identity) {
    ctx.spawn_service("engine lease", move |ctx| {
        let identity = identity.clone();
        async move { keep(&ctx, &identity).await }
    });
    ctx.spawn_service("engine claims", |ctx| async move { claim_again(&ctx).await });
}

fn request(ctx: &Context, identity: &Identity, generation: i64) -> LeaseRequest {
    LeaseRequest {
        lease: Lease {
            owner: identity.name.clone(),
            process: identity.process,
            generation,
        },
        predecessor: identity.predecessor,
        duration: ctx.deps.settings.lease,
    }
}

/// `None`: another living process has the name.
async fn acquire(ctx: &Context, request: &LeaseRequest) -> Result<Option<Arc<Term>>> {
    // From before the question: the lease ends here before it ends for the database.
    let until = Instant::now() + request.duration;
    let until = match ctx.deps.store.acquire(request).await? {
        Acquired::Refused => return Ok(None),
        Acquired::Held => Some(until),
        Acquired::Alone => None,
    };
    Ok(Some(Arc::new(Term::new(request.lease.clone(), until))))
}

/// Renews the lease as long as that succeeds, and takes it anew when it was lost.
async fn keep(ctx: &Context, identity: &Identity) {
    let mut generation = 1;
    loop {
        if let Some(term) = ctx.leases.term() {
            generation = term.lease().generation;
            renew_until_lost(ctx, &term).await;
            tracing::warn!(
                server = identity.name,
                "the lease of this server has run out: others may take over what it drove"
            );
        }
        ctx.leases.end_term().await;
        // Whatever was seen may have changed while others drove it.
        ctx.seen.clear();
        generation += 1;
        let term = acquire_again(ctx, &request(ctx, identity, generation)).await;
        tracing::info!(
            server = identity.name,
            generation,
            "this server has a lease again"
        );
        ctx.leases.begin_term(term);
        ctx.claim_wanted.notify_one();
    }
}

/// Returns when the lease has run out, or was taken away.
async fn renew_until_lost(ctx: &Context, term: &Term) {
    let duration = ctx.deps.settings.lease;
    // A third of the lease at a time, so that one question that is lost does not cost the lease.
    let step = duration / 3;
    let mut ask_at = Instant::now() + step;
    while let Some(until) = term.until() {
        tokio::select! {
            () = term.ended() => return,
            () = sleep_until(ask_at.min(until)) => {}
        }
        let asked_at = Instant::now();
        let answer = ctx.deps.store.renew(term.lease(), duration);
        match timeout_at(until.min(asked_at + step), answer).await {
            Ok(Ok(true)) => {
                term.extend(asked_at + duration);
                ask_at = asked_at + step;
                continue;
            }
            Ok(Ok(false)) => return,
            Ok(Err(error)) => ctx.report("renew the lease", &error.into()),
            Err(_) => tracing::warn!("the database has not answered in time whether the lease is renewed"),
        }
        if Instant::now() >= until {
            return;
        }
        ask_at = Instant::now() + ASK_AGAIN;
    }
    // Nobody else may take over: nothing needs to be renewed.
    term.ended().await;
}

async fn acquire_again(ctx: &Context, request: &LeaseRequest) -> Arc<Term> {
    loop {
        let patience = Instant::now() + request.duration;
        match timeout_at(patience, acquire(ctx, request)).await {
            Ok(Ok(Some(term))) => return term,
            Ok(Ok(None)) => {
                ctx.report(
                    "take the lease",
                    &EngineError::NameTaken(request.lease.owner.clone()),
                );
            }
            Ok(Err(error)) => ctx.report("take the lease", &error),
            Err(_) => tracing::warn!("the database has not answered in time whether this server has a lease"),
        }
        sleep(ASK_AGAIN).await;
    }
}

/// Takes over what others left when a server has died, and now and then: the safety net of a lost wake as well.
async fn claim_again(ctx: &Context) {
    let settings = &ctx.deps.settings;
    let mut claim_at = Instant::now() + settings.sweep;
    loop {
        tokio::select! {
            () = ctx.claim_wanted.notified() => claim_at = Instant::now(),
            () = sleep(settings.lease / 3) => {}
        }
        let Some(term) = ctx.leases.term() else { continue };
        let claimed = term.run(async {
            let expired = ctx.deps.store.some_expired(&ctx.owner).await;
            if Instant::now() < claim_at && !expired.unwrap_or(false) {
                return Ok(false);
            }
            claim(ctx).await.map(|()| true)
        });
        match claimed.await {
            Some(Ok(true)) => claim_at = Instant::now() + settings.sweep,
            Some(Ok(false)) | None => {}
            Some(Err(error)) => ctx.report("sweep", &error),
        }
    }
}

/// Asks for everything that is ours, together with what nobody drives any more.
pub(super) async fn claim(ctx: &Context) -> Result<()> {
    let claim = Claim {
        owner: ctx.owner.clone(),
        home: ctx.deps.settings.home,
    };
    let _claiming = ctx.claiming.lock().await;
    ctx.leases.begin_refresh();
    let claimed = ctx.deps.store.claim(&claim).await?;
    ctx.leases
        .finish_refresh(claimed.iter().map(|(entity, _)| *entity));
    for (entity, at) in claimed {
        // Everything once at start: streams and calls are to be taken up, whatever the timers say.
        ctx.wakes.wake(entity);
        if at > ctx.now() {
            ctx.wakes.wake_at(entity, Some(at));
        }
    }
    Ok(())
}

/// Whoever drove this machine and its jobs while we were away hears that we do now.
pub(super) async fn tell_home(ctx: &Context) -> Result<()> {
    let store = &ctx.deps.store;
    let Some(home) = ctx.deps.settings.home else {
        return Ok(());
    };
    let Some(snapshot) = store.instance(home).await? else {
        return Ok(());
    };
    store.notify_owner(EntityRef::Instance(home)).await?;
    for job in snapshot.jobs {
        store.notify_owner(EntityRef::Job(job.id)).await?;
    }
    Ok(())
}
