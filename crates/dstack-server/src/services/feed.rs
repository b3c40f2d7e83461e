//! Keeps the routes as the database has them.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use dstack_proxy::Routes;
use dstack_store::StoreError;
use dstack_store::notices::SERVICES;
use dstack_system::{chain, task};
use dstack_units::RunId;
use tokio_util::sync::CancellationToken;

use super::{Inner, ServiceRoutes, load};

/// Pause before what could not be read is read again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Runs read at a time.
const BATCH: usize = 200;

/// A safety net where servers share a database: what one was not told of, it reads by then.
const SWEEP_INTERVAL: Duration = Duration::from_secs(30);

impl ServiceRoutes {
    /// Reads all services.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn load(&self) -> Result<(), StoreError> {
        let runs = self.0.database.services().registered_runs().await?;
        for batch in runs.chunks(BATCH) {
            self.0.read(batch).await?;
        }
        Ok(())
    }

    /// Reads what changes, until the server stops.
    pub(crate) fn follow(&self, stop: CancellationToken) {
        let routes = self.clone();
        let stopped = stop.clone();
        task::spawn("read services", async move {
            tokio::select! {
                () = stopped.cancelled() => {}
                () = routes.read_wanted() => {}
            }
        });
        if self.0.database.is_shared() {
            let routes = self.clone();
            task::spawn("hear of services", async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = routes.hear() => {}
                }
            });
        }
    }

    async fn read_wanted(&self) {
        loop {
            let runs = self.0.wanted_runs();
            if runs.is_empty() {
                self.0.wanted.notified().await;
                continue;
            }
            if let Err(error) = self.0.read(&runs).await {
                tracing::warn!(error = %chain(&error), "where requests to services go cannot be read now, and is read again");
                self.0.reading().runs.extend(runs);
                tokio::time::sleep(RETRY_INTERVAL).await;
                continue;
            }
            self.0.tell_others().await;
        }
    }

    /// Reads what other servers change.
    async fn hear(&self) {
        loop {
            match self.hear_until_lost().await {
                Ok(()) => {
                    tracing::debug!("the connection on which servers tell each other of services was lost")
                }
                Err(error) => tracing::warn!(error = %chain(&error), "changes of services are not heard"),
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    async fn hear_until_lost(&self) -> Result<(), StoreError> {
        let Some(mut listener) = self.0.database.listen(SERVICES).await? else {
            return Ok(());
        };
        loop {
            // What was told before we listened, or was lost on its way.
            self.sweep().await?;
            let until = tokio::time::Instant::now() + SWEEP_INTERVAL;
            while let Ok(told) = tokio::time::timeout_at(until, listener.next()).await {
                let Some(text) = told? else { return Ok(()) };
                // What a newer version tells may be unknown here.
                if let Ok(run) = text.parse() {
                    self.want(run, false);
                }
            }
        }
    }

    async fn sweep(&self) -> Result<(), StoreError> {
        let stored = self.0.database.services().registered_runs().await?;
        let routed: Vec<RunId> = self.routes().all().map(|service| service.run_id).collect();
        let runs: BTreeSet<RunId> = stored.into_iter().chain(routed).collect();
        for run in runs {
            self.want(run, false);
        }
        Ok(())
    }
}

impl Inner {
    /// Takes some of the runs that are to be read.
    fn wanted_runs(&self) -> Vec<RunId> {
        let mut reading = self.reading();
        let runs: Vec<RunId> = reading.runs.iter().copied().take(BATCH).collect();
        for run in &runs {
            reading.runs.remove(run);
        }
        runs
    }

    /// Reads these runs, and passes requests on as they say. What is taken away while they are read stays away.
    async fn read(self: &Arc<Self>, runs: &[RunId]) -> Result<(), StoreError> {
        self.reading().withdrawn = Some(HashSet::new());
        let stored = load::read(&self.database, runs).await;
        let services = stored?.services(self);
        let mut reading = self.reading();
        let withdrawn = reading.withdrawn.take().unwrap_or_default();
        // Under the lock, so that what is withdrawn from now on is among what is routed.
        let routed: BTreeSet<_> = services
            .iter()
            .flat_map(|service| service.replicas.iter().map(|replica| replica.id))
            .filter(|job| !withdrawn.contains(job))
            .collect();
        let lost: Vec<_> = runs
            .iter()
            .flat_map(|run| self.replicas.of_run(*run))
            .filter(|job| !routed.contains(job))
            .collect();
        self.routes.rcu(|before| {
            let without = runs
                .iter()
                .fold(Routes::clone(before), |routes, run| routes.without(*run));
            services.iter().fold(without, |routes, service| {
                let mut service = service.clone();
                service.replicas.retain(|replica| routed.contains(&replica.id));
                match service.replicas.is_empty() {
                    true => routes,
                    false => routes.with(service),
                }
            })
        });
        drop(reading);
        for job in lost {
            self.withdraw(job);
        }
        Ok(())
    }

    /// Tells the servers that share the database; what they miss, they find by themselves.
    async fn tell_others(&self) {
        let untold = std::mem::take(&mut self.reading().untold);
        for run in untold {
            if let Err(error) = self.database.tell(SERVICES, &run.to_string()).await {
                tracing::warn!(error = %chain(&error), "other servers are not told of a service");
            }
        }
    }
}
