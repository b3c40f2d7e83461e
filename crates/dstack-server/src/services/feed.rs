//! Keeps the routes as the database has them.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use dstack_proxy::{Routes, Service};
use dstack_store::StoreError;
use dstack_store::notices::SERVICES;
use dstack_system::{chain, task};
use dstack_units::RunId;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::others::{TELL_INTERVAL, Told};
use super::strain::ToldStrain;
use super::{Inner, ServiceRoutes, load, rollouts};

/// Pause before the database is listened to again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Pause before a run that could not be read is read again.
const REREAD_INTERVAL: Duration = Duration::from_secs(5);

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
        let runs = self.0.database.services().runs().await?;
        for batch in runs.chunks(BATCH) {
            // What cannot be read now is read when its time has come.
            for run in self.0.read_each(batch).await {
                self.want_later(run);
            }
        }
        Ok(())
    }

    /// Reads what changes, until the server stops.
    pub fn follow(&self, stop: CancellationToken) {
        let (gateways, until) = (Arc::clone(&self.0.gateways), stop.clone());
        task::spawn_restarted("follow gateways", move || {
            Box::pin(Arc::clone(&gateways).follow(until.clone()))
        });
        self.0.routers.follow(stop.clone());
        self.until(stop.clone(), "read services", |routes| async move {
            routes.read_wanted().await;
        });
        self.until(stop.clone(), "read pages of replicas", |routes| async move {
            routes.0.pages.follow().await;
        });
        if self.0.database.is_shared() {
            self.until(stop.clone(), "hear of services", |routes| async move {
                routes.hear().await;
            });
            self.until(stop, "tell of requests", |routes| async move {
                routes.tell_of_requests().await;
            });
        }
    }

    /// Tells the servers that share the database of requests to services that scale.
    async fn tell_of_requests(&self) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(TELL_INTERVAL) => {}
                () = self.0.waiting.begun() => {}
            }
            for told in self.0.requests_to_tell() {
                self.0.tell(&told.to_string()).await;
            }
            let told = self.0.rollouts.lock().to_tell();
            for told in told {
                self.0.tell(&told.to_string()).await;
            }
            for told in self.0.strain_to_tell() {
                self.0.tell(&told.to_string()).await;
            }
        }
    }

    /// Does what others cannot do without, until the server stops.
    fn until<F>(&self, stop: CancellationToken, name: &'static str, work: impl Fn(Self) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let routes = self.clone();
        task::spawn_restarted(name, move || {
            // Each layer around it would have room for all of it, and moves it: without optimisation that is more than a stack has.
            let (stop, work) = (stop.clone(), Box::pin(work(routes.clone())));
            async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = work => {}
                }
            }
        });
    }

    async fn read_wanted(&self) {
        loop {
            let runs = self.0.wanted_runs();
            if runs.is_empty() {
                self.0.wanted.notified().await;
                continue;
            }
            // Before it is read: what is taken away must not get requests of others for long.
            self.0.tell_others().await;
            for run in self.0.read_each(&runs).await {
                self.want_later(run);
            }
        }
    }

    /// The others are not kept waiting for one that cannot be read.
    fn want_later(&self, run: RunId) {
        let routes = self.clone();
        task::spawn("read a service again", async move {
            tokio::time::sleep(REREAD_INTERVAL).await;
            routes.want(run, false);
        });
    }

    /// Reads what other servers change.
    async fn hear(&self) {
        loop {
            match self.hear_for_a_while().await {
                Ok(()) => continue,
                Err(error) => {
                    self.0.others.lock().miss();
                    self.0.rollouts.lock().miss();
                    tracing::warn!(error = %chain(&error), "changes of services are not heard");
                }
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// For a while: a connection that is dead without a word is not listened to for longer.
    async fn hear_for_a_while(&self) -> Result<(), StoreError> {
        let Some(mut listener) = self.0.database.listen(SERVICES).await? else {
            return Ok(());
        };
        self.0.others.lock().listen(Instant::now());
        self.0.rollouts.lock().listen(Instant::now());
        // What was told before we listened, or was lost on its way.
        self.sweep().await?;
        let until = Instant::now() + SWEEP_INTERVAL;
        while let Ok(told) = tokio::time::timeout_at(until, listener.next()).await {
            let Some(text) = told? else {
                return Err(StoreError::Closed);
            };
            if let Some((sender, what)) = text.split_once(' ')
                && sender != self.0.name
            {
                self.heard(sender, what);
            }
        }
        Ok(())
    }

    /// Another server tells that a service has changed, or of requests to it. What a newer version tells may be unknown here.
    fn heard(&self, sender: &str, what: &str) {
        if let Ok(run) = what.parse() {
            self.0.gateways.changed();
            self.want(run, false);
        } else if let Some(told) = rollouts::Told::read(what) {
            self.0.rollouts.lock().hear(sender, told, Instant::now());
        } else if let Some(told) = Told::read(what) {
            let new = self.0.others.lock().hear(sender, told, Instant::now());
            self.0.forwarder.stats().add_arrived(told.run, new);
            if told.awaited {
                self.0.waiting.report(|observer| observer.awaited(told.run));
            }
        } else if let Some(told) = ToldStrain::read(what) {
            let new = self.0.strains.lock().hear(sender, told, Instant::now());
            self.0.forwarder.stats().add_strain(told.run, new);
        }
    }

    async fn sweep(&self) -> Result<(), StoreError> {
        let stored = self.0.database.services().runs().await?;
        let routed: Vec<RunId> = self.routes().all().map(|service| service.run_id).collect();
        let told = self.0.routers.runs();
        let runs: BTreeSet<RunId> = stored.into_iter().chain(routed).chain(told).collect();
        for run in runs {
            self.want(run, false);
        }
        Ok(())
    }
}

impl Inner {
    /// Takes some of the runs that are to be read.
    fn wanted_runs(&self) -> Vec<RunId> {
        let mut reading = self.reading.lock();
        let runs: Vec<RunId> = reading.runs.iter().copied().take(BATCH).collect();
        for run in &runs {
            reading.runs.remove(run);
        }
        runs
    }

    /// Reads these runs, one by one if they cannot be read together; gives those that cannot be read.
    async fn read_each(self: &Arc<Self>, runs: &[RunId]) -> Vec<RunId> {
        if self.read(runs).await.is_ok() {
            return Vec::new();
        }
        let mut unread = Vec::new();
        for run in runs {
            if let Err(error) = self.read(&[*run]).await {
                tracing::warn!(run.id = %run, error = %chain(&error), "where requests to a service go cannot be read now, and is read again");
                unread.push(*run);
            }
        }
        unread
    }

    /// Reads these runs, and passes requests on as they say. What is taken away while they are read stays away.
    async fn read(self: &Arc<Self>, runs: &[RunId]) -> Result<(), StoreError> {
        self.reading.lock().withdrawn = Some(HashSet::new());
        let stored = load::read(&self.database, runs).await?;
        let services = stored.services(self);
        self.note_scaled(runs, stored.scaled());
        self.note_strained(runs, stored.strained());
        self.routers.note(runs, stored.routed());
        self.forget_rollouts(runs, &services);
        let mut reading = self.reading.lock();
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
                match service.replicas.is_empty() && !service.starts_on_request {
                    true => routes,
                    false => routes.with(service),
                }
            })
        });
        drop(reading);
        let routes = self.routes.load();
        let routed: HashSet<RunId> = routes.all().map(|service| service.run_id).collect();
        for run in runs.iter().filter(|run| !routed.contains(run)) {
            self.forwarder.forget_prompts(*run);
        }
        self.waiting.look_again();
        for job in lost {
            self.withdraw(job);
        }
        Ok(())
    }

    /// Of these runs, those without a split are in no roll-out any more.
    fn forget_rollouts(&self, runs: &[RunId], services: &[Service]) {
        let is_split = |run: RunId| {
            services
                .iter()
                .any(|service| service.run_id == run && service.split.is_some())
        };
        let mut rollouts = self.rollouts.lock();
        for run in runs.iter().filter(|run| !is_split(**run)) {
            rollouts.forget(*run);
        }
    }

    /// Of these runs, those are the ones whose replicas follow their requests.
    fn note_scaled(&self, runs: &[RunId], scaled: impl Iterator<Item = RunId>) {
        let mut known = self.scaled.lock();
        known.retain(|run| !runs.contains(run));
        for run in scaled {
            self.telling
                .lock()
                .begin(run, self.forwarder.stats().arrived(run));
            known.insert(run);
        }
    }

    /// Of these runs, those are the ones whose replicas follow how busy they are.
    fn note_strained(&self, runs: &[RunId], strained: impl Iterator<Item = RunId>) {
        let mut known = self.strained.lock();
        known.retain(|run| !runs.contains(run));
        for run in strained {
            let here = self.forwarder.stats().strain_here(run);
            self.strains.lock().begin(run, here);
            known.insert(run);
        }
    }

    /// Tells the servers that share the database; what they miss, they find by themselves.
    async fn tell_others(&self) {
        let untold = std::mem::take(&mut self.reading.lock().untold);
        for run in untold {
            self.tell(&run.to_string()).await;
        }
    }

    /// Tells the servers that share the database.
    async fn tell(&self, what: &str) {
        let text = format!("{} {what}", self.name);
        if let Err(error) = self.database.tell(SERVICES, &text).await {
            tracing::warn!(error = %chain(&error), "other servers are not told of a service");
        }
    }

    /// What the others are to hear of requests that came through this server.
    fn requests_to_tell(&self) -> Vec<Told> {
        let scaled = self.scaled.lock().clone();
        let (stats, now) = (self.forwarder.stats(), Instant::now());
        let mut telling = self.telling.lock();
        telling.retain(|run| scaled.contains(&run));
        let told = scaled.into_iter().filter_map(|run| {
            let awaited = self.waiting.is_awaited(run);
            telling.next(run, stats.arrived(run), awaited, now)
        });
        told.collect()
    }

    /// What the others are to hear of how busy services were here.
    fn strain_to_tell(&self) -> Vec<ToldStrain> {
        let strained = self.strained.lock().clone();
        let mut strains = self.strains.lock();
        strains.retain(|run| strained.contains(&run));
        let here = |run| self.forwarder.stats().strain_here(run);
        strained
            .into_iter()
            .filter_map(|run| strains.next(run, here(run)))
            .collect()
    }
}
