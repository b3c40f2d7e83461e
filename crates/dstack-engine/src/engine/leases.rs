//! This server's lease: taken, renewed in time, and taken anew when it was lost; and what is claimed with it.

use std::sync::Arc;
use std::time::Duration;

use dstack_store::{Acquired, Claim, EntityRef, Lease, LeaseRequest};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::context::{Context, Identity};
use crate::term::Term;
use crate::{EngineError, Result};

/// Pause before the database is asked again after an error.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// The answer to the question for the lease.
enum Asked {
    Granted(Arc<Term>),
    /// Another living process has the name, for so long unless it renews its lease.
    Taken(Duration),
}

/// The first lease of this process. Another process of the same name may have died just now: its lease is waited for.
pub(super) async fn first_term(ctx: &Context, identity: &Identity) -> Result<Arc<Term>> {
    let request = request(ctx, identity, 1);
    let patience = Instant::now() + 2 * ctx.deps.settings.lease;
    loop {
        let remaining = match ask(ctx, &request).await? {
            Asked::Granted(term) => return Ok(term),
            Asked::Taken(remaining) => remaining,
        };
        if Instant::now() >= patience {
            return Err(EngineError::NameTaken(identity.name.clone()));
        }
        sleep(remaining).await;
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

async fn ask(ctx: &Context, request: &LeaseRequest) -> Result<Asked> {
    // From before the question: the lease ends here before it ends for the database.
    let until = Instant::now() + request.duration;
    let until = match ctx.deps.store.acquire(request).await? {
        Acquired::Refused { remaining } => return Ok(Asked::Taken(remaining)),
        Acquired::Held => Some(until),
        Acquired::Alone => None,
    };
    Ok(Asked::Granted(Arc::new(Term::new(request.lease.clone(), until))))
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
            // An answer that comes when the lease has run out is too late: others may have taken over since.
            Ok(Ok(true)) if Instant::now() < until => {
                term.extend(asked_at + duration);
                ask_at = asked_at + step;
                continue;
            }
            Ok(Ok(_)) => return,
            Ok(Err(error)) => ctx.report("renew the lease", &error.into()),
            Err(_) => tracing::warn!("the database has not answered in time whether the lease is renewed"),
        }
        if Instant::now() >= until {
            return;
        }
        ask_at = Instant::now() + RETRY_INTERVAL;
    }
    // Nobody else may take over: nothing needs to be renewed.
    term.ended().await;
}

async fn acquire_again(ctx: &Context, request: &LeaseRequest) -> Arc<Term> {
    loop {
        let patience = Instant::now() + request.duration;
        let pause = match timeout_at(patience, ask(ctx, request)).await {
            Ok(Ok(Asked::Granted(term))) => return term,
            Ok(Ok(Asked::Taken(remaining))) => {
                ctx.report(
                    "take the lease",
                    &EngineError::NameTaken(request.lease.owner.clone()),
                );
                remaining
            }
            Ok(Err(error)) => {
                ctx.report("take the lease", &error);
                RETRY_INTERVAL
            }
            Err(_) => {
                tracing::warn!("the database has not answered in time whether this server has a lease");
                RETRY_INTERVAL
            }
        };
        sleep(pause).await;
    }
}

/// Takes over what others left at the moment when a lease runs out, and everything now and then: the safety net of a lost wake
/// as well.
async fn claim_again(ctx: &Context) {
    let settings = &ctx.deps.settings;
    let mut claim_at = Instant::now() + settings.sweep;
    let mut look_at = Instant::now();
    loop {
        tokio::select! {
            () = ctx.claim_wanted.notified() => claim_at = Instant::now(),
            () = sleep_until(look_at.min(claim_at)) => {}
        }
        let Some(term) = ctx.leases.term() else {
            // Whoever takes the lease anew wants a claim.
            ctx.claim_wanted.notified().await;
            claim_at = Instant::now();
            continue;
        };
        match term.run(claim_expired(ctx, claim_at)).await {
            Some(Ok(next)) => {
                if next.claimed {
                    claim_at = Instant::now() + settings.sweep;
                }
                // A server that comes meanwhile has a whole lease before it.
                look_at = Instant::now() + next.expiry.unwrap_or(settings.lease).min(settings.lease);
            }
            Some(Err(error)) => {
                ctx.report("claim", &error);
                look_at = Instant::now() + RETRY_INTERVAL;
                claim_at = claim_at.max(look_at);
            }
            None => {}
        }
    }
}

/// What a look at other servers' leases came to.
struct Looked {
    claimed: bool,
    /// How long until the next lease of another server runs out, unless it is renewed.
    expiry: Option<Duration>,
}

async fn claim_expired(ctx: &Context, claim_at: Instant) -> Result<Looked> {
    let expiry = ctx.deps.store.first_expiry(&ctx.owner).await?;
    if expiry != Some(Duration::ZERO) && Instant::now() < claim_at {
        return Ok(Looked {
            claimed: false,
            expiry,
        });
    }
    claim(ctx).await?;
    Ok(Looked {
        claimed: true,
        expiry: ctx.deps.store.first_expiry(&ctx.owner).await?,
    })
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
