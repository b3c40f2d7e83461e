//! Starting and stopping the engine; its workers.

use std::sync::Arc;

use dstack_store::{Commit, EntityRef};
use dstack_system::clock::sleep_until;
use tokio_util::sync::CancellationToken;

use crate::Result;
use crate::context::{Context, EngineDeps};
use crate::observations::Observations;
use crate::operations::Running;
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
        let owner = deps.random.uuid().to_string();
        let ctx = Arc::new(Context {
            deps,
            owner,
            wakes: Wakes::default(),
            seen: Observations::default(),
            running: Running::default(),
            stop: CancellationToken::new(),
        });
        let engine = Self { ctx };
        engine.claim().await?;
        engine.spawn_workers();
        engine.spawn_timers();
        engine.spawn_leases();
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

    /// What all parts share: for the server's read-only views.
    pub fn context(&self) -> &Arc<Context> {
        &self.ctx
    }

    async fn claim(&self) -> Result<()> {
        for (entity, at) in self
            .ctx
            .deps
            .store
            .claim(&self.ctx.lease(), self.ctx.now())
            .await?
        {
            // Everything once at start: streams and calls are to be taken up, whatever the timers say.
            self.ctx.wakes.wake(entity);
            if at > self.ctx.now() {
                self.ctx.wakes.wake_at(entity, Some(at));
            }
        }
        Ok(())
    }

    fn spawn_workers(&self) {
        for _ in 0..self.ctx.deps.settings.workers {
            let ctx = Arc::clone(&self.ctx);
            self.ctx.spawn("engine worker", async move {
                loop {
                    let key = ctx.wakes.next().await;
                    if let Err(error) = reconcile(&ctx, key).await {
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

    /// Renews the leases, and takes over what other servers left: the safety net of a lost wake as well.
    fn spawn_leases(&self) {
        let engine = self.clone();
        self.ctx.spawn("engine leases", async move {
            let ctx = &engine.ctx;
            let renew_every = ctx.deps.settings.lease / 3;
            let mut sweep_at = ctx.now() + ctx.deps.settings.sweep;
            loop {
                sleep_until(ctx.deps.clock.as_ref(), ctx.now() + renew_every).await;
                if let Err(error) = ctx.deps.store.renew(&ctx.lease()).await {
                    ctx.report("renew leases", &error.into());
                }
                if ctx.now() >= sweep_at {
                    sweep_at = ctx.now() + ctx.deps.settings.sweep;
                    if let Err(error) = engine.claim().await {
                        ctx.report("sweep", &error);
                    }
                }
            }
        });
    }
}

/// A failed step is taken up again after a pause.
fn retry_later(ctx: &Context, key: Key) {
    let pause = std::time::Duration::from_secs(1);
    ctx.wakes.wake_at(key, Some(ctx.now() + pause));
}

impl From<&EntityRef> for Key {
    fn from(entity: &EntityRef) -> Self {
        Self::Entity(*entity)
    }
}
