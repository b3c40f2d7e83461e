//! Starting and stopping the engine.

mod changes;
mod leases;
mod workers;

use std::sync::{Arc, Weak};

use dstack_plan::lifecycle::job::ToldClient;
use dstack_store::{Commit, EntityRef, StoreError};
use dstack_system::task;
use dstack_units::{JobId, RunId};
use tokio_util::sync::CancellationToken;

use crate::Result;
use crate::attendance::Attendance;
use crate::context::{Context, EngineDeps, Identity};
use crate::follow::probes::Places;
use crate::lease_set::LeaseSet;
use crate::look::{self, Looks};
use crate::observations::Observations;
use crate::offer_cache::OfferCache;
use crate::orphans;
use crate::panics::Panics;
use crate::running::Running;
use crate::services::RequestObserver;
use crate::wakes::{Key, Wakes};

/// A running engine. Dropping it does not stop it; [`Engine::stop`] does.
#[derive(Debug, Clone)]
pub struct Engine {
    ctx: Arc<Context>,
}

impl Engine {
    /// Takes over everything that no living server drives, and keeps it moving.
    ///
    /// # Errors
    /// Besides others [`crate::EngineError::NameTaken`], when another process has the name of this one for longer than a lease of
    /// it could outlive it.
    pub async fn start(deps: EngineDeps) -> Result<Self> {
        let identity = deps.settings.identity.clone().unwrap_or_else(|| Identity {
            name: deps.random.uuid().to_string(),
            process: deps.random.uuid(),
            predecessor: None,
        });
        let ctx = Arc::new(Context {
            deps,
            owner: identity.name.clone(),
            leases: LeaseSet::default(),
            claiming: tokio::sync::Mutex::default(),
            claim_wanted: tokio::sync::Notify::new(),
            wakes: Wakes::default(),
            seen: Observations::default(),
            attendance: Attendance::default(),
            offer_cache: OfferCache::default(),
            looks: Looks::default(),
            running: Running::default(),
            probing: Places::default(),
            panics: Panics::default(),
            stop: CancellationToken::new(),
        });
        let observer: Weak<dyn RequestObserver> = Arc::<Context>::downgrade(&ctx);
        ctx.deps.services.report_to(observer);
        let term = leases::first_term(&ctx, &identity).await?;
        ctx.leases.begin_term(term);
        leases::claim(&ctx).await?;
        leases::tell_home(&ctx).await?;
        workers::start(&ctx);
        leases::start(&ctx, identity);
        changes::start(&ctx);
        look::start(&ctx);
        orphans::start(&ctx);
        Ok(Self { ctx })
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
        let ctx = Arc::clone(&self.ctx);
        // The store writes it also when the caller has gone away: then whom it concerns has to be woken all the same.
        let written = task::uncancelled("commit of a call", async move {
            let name = ("api.commit.before", "api.commit.after");
            ctx.commit_from_outside(name, commit).await
        });
        written.await.map_err(StoreError::from)?
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
}

impl From<&EntityRef> for Key {
    fn from(entity: &EntityRef) -> Self {
        Self::Entity(*entity)
    }
}
