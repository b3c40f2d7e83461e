//! Starting and stopping the engine; its workers.

use std::sync::Arc;
use std::time::Duration;

use dstack_plan::lifecycle::job::ToldClient;
use dstack_store::{Claim, Commit, EntityRef};
use dstack_system::clock::sleep_until;
use dstack_system::{observe, task_span};
use dstack_units::{JobId, RunId};
use tokio_util::sync::CancellationToken;
use tracing::Span;

use crate::Result;
use crate::attendance::Attendance;
use crate::context::{Context, EngineDeps};
use crate::market::Market;
use crate::observations::Observations;
use crate::operations::Running;
use crate::owned::Owned;
use crate::reconcile::reconcile;
use crate::wakes::{Key, Wakes};

/// A running engine. Dropping it does not stop it; [`Engine::stop`] does.
#[derive(Debug, Clone)]
pub struct Engine {
    ctx: Arc<Context>,
}

impl Engine {
    /// Takes over everything that no living server drives, and keeps it moving.
    pub async fn start(deps: EngineDeps) -> Result<Self> {
        let name = deps.settings.name.clone();
        let owner = name.unwrap_or_else(|| deps.random.uuid().to_string());
        let ctx = Arc::new(Context {
            deps,
            owner,
            owned: Owned::default(),
            claiming: tokio::sync::Mutex::default(),
            wakes: Wakes::default(),
            seen: Observations::default(),
            attendance: Attendance::default(),
            market: Market::default(),
            running: Running::default(),
            stop: CancellationToken::new(),
        });
        let engine = Self { ctx };
        engine.ctx.deps.store.renew(&engine.ctx.lease()).await?;
        engine.claim().await?;
        engine.tell_home().await?;
        engine.spawn_workers();
        engine.spawn_timers();
        engine.spawn_leases();
        engine.spawn_notices();
        Ok(engine)
    }

    /// Stops all work of this process. What was under way is taken up at the next start.
    pub fn stop(&self) {
        self.ctx.stop.cancel();
    }

    /// Ends when the engine has been stopped (or was killed at a failpoint).
    pub async fn stopped(&self) {
        self.ctx.stop.cancelled().await;
    }

    /// Wants an entity looked at, after a change made outside of the engine.
    pub fn wake(&self, key: impl Into<Key>) {
        self.ctx.wakes.wake(key);
    }

    /// Commits a change from outside (API), driven by this process from then on, and wakes whom it concerns.
    pub async fn commit(&self, commit: Commit) -> Result<()> {
        self.ctx
            .commit(("api.commit.before", "api.commit.after"), commit)
            .await
    }

    /// A client that attaches to jobs over SSH is told something of a run: see [`crate::attendance`].
    pub fn client_told(&self, run: RunId, jobs: &[JobId], what: ToldClient) {
        if self.ctx.attendance.told(run, what, self.ctx.now()) {
            for job in jobs {
                self.ctx.wakes.wake(EntityRef::Job(*job));
            }
        }
    }

    /// What all parts share: for the server's read-only views.
    pub fn context(&self) -> &Arc<Context> {
        &self.ctx
    }

    /// Asks for everything that is ours, together with what nobody drives any more.
    async fn claim(&self) -> Result<()> {
        let (ctx, settings) = (&self.ctx, &self.ctx.deps.settings);
        let claim = Claim {
            owner: ctx.owner.clone(),
            home: settings.home,
        };
        let _claiming = ctx.claiming.lock().await;
        ctx.owned.asking();
        let claimed = ctx.deps.store.claim(&claim, ctx.now()).await?;
        ctx.owned.all(claimed.iter().map(|(entity, _)| *entity));
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
    async fn tell_home(&self) -> Result<()> {
        let store = &self.ctx.deps.store;
        let Some(home) = self.ctx.deps.settings.home else {
            return Ok(());
        };
        let Some(snapshot) = store.instance(home).await? else {
            return Ok(());
        };
        store.tell(EntityRef::Instance(home)).await?;
        for job in snapshot.jobs {
            store.tell(EntityRef::Job(job.id)).await?;
        }
        Ok(())
    }

    fn spawn_workers(&self) {
        for _ in 0..self.ctx.deps.settings.workers {
            let ctx = Arc::clone(&self.ctx);
            self.ctx.spawn("engine worker", async move {
                loop {
                    let key = ctx.wakes.next().await;
                    if let Err(error) = observe::task(span(key), reconcile(&ctx, key)).await {
                        ctx.report("reconcile", &error);
                        retry_later(&ctx, key);
                    }
                    ctx.wakes.done(key);
                }
            });
        }
    }

    fn spawn_timers(&self) {
        let ctx = Arc::clone(&self.ctx);
        self.ctx.spawn("engine timers", async move {
            ctx.wakes.run_timers(ctx.deps.clock.as_ref()).await;
        });
    }

    /// Says that this server lives, and takes over what others left: the safety net of a lost wake as well.
    fn spawn_leases(&self) {
        let engine = self.clone();
        self.ctx.spawn("engine leases", async move {
            let ctx = &engine.ctx;
            let settings = &ctx.deps.settings;
            let mut sweep_at = ctx.now() + settings.sweep;
            let mut until = ctx.now() + settings.lease;
            loop {
                sleep_until(ctx.deps.clock.as_ref(), ctx.now() + settings.lease / 3).await;
                let lease = ctx.lease();
                // Without a lease others may have taken over everything meanwhile.
                let lost = ctx.now() > until;
                match ctx.deps.store.renew(&lease).await {
                    Ok(()) => until = lease.until,
                    Err(error) => {
                        ctx.report("renew the lease", &error.into());
                        if ctx.now() > until {
                            // Others drive it by now, as far as we can know.
                            ctx.owned.all([]);
                        }
                        continue;
                    }
                }
                let expired = ctx.deps.store.some_expired(&ctx.owner, ctx.now()).await;
                if lost || ctx.now() >= sweep_at || expired.unwrap_or(false) {
                    sweep_at = ctx.now() + settings.sweep;
                    if let Err(error) = engine.claim().await {
                        ctx.report("sweep", &error);
                    }
                }
            }
        });
    }

    /// Hears what other servers changed of what is ours, and what they handed over to us.
    fn spawn_notices(&self) {
        let engine = self.clone();
        self.ctx.spawn("engine notices", async move {
            loop {
                match engine.hear().await {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(error) => engine.ctx.report("hear other servers", &error),
                }
                tokio::time::sleep(LISTEN_AGAIN).await;
            }
        });
    }

    /// Until the connection is lost; false when there are no other servers.
    async fn hear(&self) -> Result<bool> {
        let Some(mut notices) = self.ctx.deps.store.listen().await? else {
            return Ok(false);
        };
        // Whatever was told before we listened.
        self.claim().await?;
        while let Some(entity) = notices.next().await? {
            if self.ctx.deps.store.owner_of(entity).await?.as_ref() == Some(&self.ctx.owner) {
                self.ctx.owned.extend([entity]);
                self.ctx.wakes.wake(entity);
            } else {
                self.ctx.owned.remove(entity);
                self.ctx.wakes.wake_at(entity, None);
            }
        }
        Ok(true)
    }
}

/// Of one step; named as in dstack 0.22.5, where the same is done.
fn span(key: Key) -> Span {
    match key {
        Key::Entity(EntityRef::Run(_)) => task_span!("pipeline_tasks.RunWorker.process"),
        Key::Entity(EntityRef::Job(_)) => task_span!("pipeline_tasks.JobWorker.process"),
        Key::Entity(EntityRef::Instance(_)) => task_span!("pipeline_tasks.InstanceWorker.process"),
        Key::Entity(EntityRef::Fleet(_)) => task_span!("pipeline_tasks.FleetWorker.process"),
        Key::Schedule(_) => task_span!("pipeline_tasks.JobSubmittedWorker.process"),
    }
}

/// Pause before a lost connection to other servers' notices is made again.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);

/// A failed step is taken up again after a pause.
fn retry_later(ctx: &Context, key: Key) {
    let pause = Duration::from_secs(1);
    ctx.wakes.wake_at(key, Some(ctx.now() + pause));
}

impl From<&EntityRef> for Key {
    fn from(entity: &EntityRef) -> Self {
        Self::Entity(*entity)
    }
}
