//! Publishes services at gateways: each replica of a gateway is told what it should have, again and again, by all servers alike. What it
//! has, it says itself: nothing of it is stored here.
//!
//! * [`link`] — one replica of a gateway: what it has, and telling it what it should have.
//! * [`expected`] — what it should have, as the database says.
//! * [`questions`] — gateways ask servers who may use a project.

mod expected;
mod link;
mod questions;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dstack_agent_api::gateway::AcmeSettings;
use dstack_engine::services::Measured;
use dstack_plan::services::autoscaling::Load;
use dstack_proxy::stats::Strain;
use dstack_store::{Database, StoreError};
use dstack_system::{Locked, Random, chain, task};
use dstack_units::{GatewayId, GatewayReplicaId, JobId, RunId};
use futures_util::future::join_all;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub(crate) use self::link::CountedService;
use self::link::Link;
use super::rollouts::Both;
use super::strain;
use super::waiting::Waiting;
use crate::wiring::GatewayHosts;

/// Replicas of gateways that come and go are looked for so often where nobody tells of them.
const LOOK_INTERVAL: Duration = Duration::from_secs(15);

/// What gateways are told of all services alike.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    /// How long a replica may be silent.
    pub(super) read_timeout: Duration,
    /// Bytes that the body of a request may have.
    pub(super) max_body_size: u64,
    /// Where certificates come from.
    pub(super) acme: AcmeSettings,
}

/// The gateways of an installation.
#[derive(Debug)]
pub(super) struct Gateways {
    database: Database,
    random: Random,
    rules: Rules,
    hosts: OnceLock<Arc<GatewayHosts>>,
    /// Where this server answers, for the questions of gateways.
    address: OnceLock<SocketAddr>,
    /// By replica; `None`: they were not read yet.
    links: Locked<Option<HashMap<GatewayReplicaId, Arc<Link>>>>,
    /// Runs that a gateway has passed requests on to.
    taken: Locked<HashSet<RunId>>,
    /// Replicas may have come or gone.
    wanted: Notify,
    /// Knows who acts on what happens to requests.
    waiting: Arc<Waiting>,
}

impl Gateways {
    pub(super) fn new(database: Database, random: Random, rules: Rules, waiting: Arc<Waiting>) -> Self {
        Self {
            database,
            random,
            rules,
            hosts: OnceLock::new(),
            address: OnceLock::new(),
            links: Locked::default(),
            taken: Locked::default(),
            wanted: Notify::new(),
            waiting,
        }
    }

    /// Gateways are reached so from now on. To be called once.
    pub(super) fn reach_through(&self, hosts: Arc<GatewayHosts>) {
        self.hosts.set(hosts).ok(); // the first ones stay
        self.wanted.notify_one();
    }

    /// Where this server answers.
    pub(super) fn answer_at(&self, address: SocketAddr) {
        self.address.set(address).ok(); // it does not move
    }

    /// Replicas of gateways may have come or gone.
    pub(super) fn look_again(&self) {
        self.wanted.notify_one();
    }

    /// What gateways should have may have changed.
    pub(super) fn changed(&self) {
        for link in self.links.lock().iter().flat_map(HashMap::values) {
            link.want();
        }
    }

    /// Whether a commit that leaves a job without requests concerns a gateway.
    pub(super) fn has(&self, job: JobId) -> bool {
        let links = self.links.lock();
        links.iter().flat_map(HashMap::values).any(|link| link.has(job))
    }

    fn of(&self, gateway: GatewayId) -> Option<Vec<Arc<Link>>> {
        let links = self.links.lock();
        let of_gateway = links.as_ref()?.values().filter(|link| link.gateway == gateway);
        Some(of_gateway.cloned().collect())
    }

    /// Whether the job gets requests at a gateway, or may at that of its run, or some are under way.
    pub(super) fn serves(&self, job: JobId, gateway: GatewayId) -> bool {
        // Its run may have moved to another gateway meanwhile.
        self.has(job)
            || match self.of(gateway) {
                None => true,
                Some(links) => links.iter().any(|link| link.is_yet_unknown()),
            }
    }

    /// Whether all replicas of the gateway pass requests on to the job. Those that were not reached for long do not count, unless it is
    /// all of them; of a gateway without replicas nobody waits for anything.
    pub(super) fn is_published(&self, job: JobId, gateway: GatewayId) -> bool {
        let Some(links) = self.of(gateway) else {
            return false;
        };
        if links.is_empty() {
            return true;
        }
        let mut current = links.iter().filter(|link| link.is_current()).peekable();
        current.peek().is_some() && current.all(|link| link.is_registered(job))
    }

    /// Whether a replica has not answered for long.
    pub(super) fn is_silent(&self, replica: GatewayReplicaId) -> bool {
        let links = self.links.lock();
        let link = links.as_ref().and_then(|links| links.get(&replica));
        link.is_some_and(|link| !link.is_current())
    }

    /// Why the service is not taken, by the last replica that said so, if all do. One that was taken before is not refused for good:
    /// what is in the way may be mended.
    pub(super) fn refusal(&self, run: RunId, gateway: GatewayId) -> Option<String> {
        if self.taken.lock().contains(&run) {
            return None;
        }
        let links = self.of(gateway)?;
        let refusals: Option<Vec<String>> = links.iter().map(|link| link.refusal(run)).collect();
        refusals?.pop()
    }

    /// Requests that came to the service at all replicas of its gateway, within a window of so many seconds; `None`: one of them
    /// has not said so lately.
    pub(super) fn load(&self, run: RunId, gateway: GatewayId, seconds: u64) -> Option<Load> {
        let links = self.of(gateway).filter(|links| !links.is_empty())?;
        let counted = links.iter().map(|link| link.requests(run, seconds));
        let requests = counted.sum::<Option<u64>>()?;
        Some(Load { requests })
    }

    /// What both sides of the roll-out of this deployment have answered at all replicas of the gateway, which is partial where one of
    /// them has not said so lately; `None`: none has. One that has been silent for long counts as gone as long as there is another.
    pub(super) fn answered(&self, run: RunId, gateway: GatewayId, deployment: i64) -> Option<Both> {
        let mut links = self.of(gateway)?;
        if links.iter().any(|link| link.is_current()) {
            links.retain(|link| link.is_current());
        }
        let told: Vec<Option<Both>> = links.iter().map(|link| link.answered(run, deployment)).collect();
        let is_partial = told.iter().any(Option::is_none);
        let all = told.into_iter().flatten().reduce(|all, more| all.plus(&more))?;
        Some(match is_partial {
            true => all.partial(),
            false => all,
        })
    }

    /// Whether no replica of the gateway that was reached lately has said that it cannot split requests.
    pub(super) fn can_split(&self, gateway: GatewayId) -> bool {
        let links = self.of(gateway).unwrap_or_default();
        !links.iter().any(|link| link.is_current() && link.cannot_split())
    }

    /// What all replicas of its gateway have measured of the requests to the service; those of dstack 0.22.5 tell nothing of it.
    pub(super) fn measured(&self, run: RunId, gateway: GatewayId, seconds: u64) -> Measured {
        let Some(links) = self.of(gateway).filter(|links| !links.is_empty()) else {
            return Measured::default();
        };
        let strains = links.iter().map(|link| link.strain(run, seconds));
        let (known, is_whole) = strains.fold((Strain::default(), true), |(sum, is_whole), strain| {
            (sum.plus(strain.unwrap_or_default()), is_whole && strain.is_some())
        });
        strain::measured(known, seconds, is_whole)
    }

    /// What a gateway has counted, all of them if none is named, as far as they say so soon.
    pub(super) async fn counts(&self, gateway: Option<GatewayId>) -> Vec<CountedService> {
        let links: Vec<Arc<Link>> = {
            let links = self.links.lock();
            let all = links.iter().flat_map(HashMap::values);
            all.filter(|link| gateway.is_none_or(|gateway| link.gateway == gateway))
                .cloned()
                .collect()
        };
        let counted = join_all(links.iter().map(|link| link.counts())).await;
        counted.into_iter().flatten().flatten().collect()
    }

    /// Follows what gateways there are, until the server stops.
    pub(super) async fn follow(self: Arc<Self>, stop: CancellationToken) {
        loop {
            if let Some(hosts) = self.hosts.get()
                && let Err(error) = self.look(hosts, &stop).await
            {
                tracing::warn!(error = %chain(&error), "which gateways there are cannot be read now, and is read again");
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.wanted.notified() => {}
                () = tokio::time::sleep(LOOK_INTERVAL) => {}
            }
        }
    }

    /// Begins with replicas that have come, and ends with those that are gone.
    async fn look(
        self: &Arc<Self>,
        hosts: &Arc<GatewayHosts>,
        stop: &CancellationToken,
    ) -> Result<(), StoreError> {
        let running = self.database.gateways().running().await?;
        let mut gone = Vec::new();
        {
            let mut links = self.links.lock();
            let links = links.get_or_insert_default();
            links.retain(|id, link| {
                let stays = running.iter().any(|replica| replica.id == *id);
                if !stays {
                    gone.push(Arc::clone(link));
                }
                stays
            });
            for replica in running {
                links.entry(replica.id).or_insert_with(|| {
                    let link = Arc::new(Link::new(&replica, stop.child_token()));
                    link.start(self, hosts);
                    link
                });
            }
        }
        for link in gone {
            for (job, run) in link.end() {
                self.left(job);
                self.told(run);
            }
        }
        Ok(())
    }

    /// A job gets no requests at any gateway any more.
    fn left(&self, job: JobId) {
        if !self.has(job) {
            self.waiting.report(|observer| observer.idle(job));
        }
    }

    /// Jobs of a run have come, or the run is refused.
    fn came(&self, run: RunId) {
        self.taken.lock().insert(run);
        self.told(run);
    }

    /// A run is over, or is published there no longer.
    fn forget(&self, run: RunId) {
        self.taken.lock().remove(&run);
    }

    /// Something was heard of a run.
    fn told(&self, run: RunId) {
        self.waiting.report(|observer| observer.published(run));
    }

    /// Does what others cannot do without, until the link ends.
    fn until_ended<F>(link: &Arc<Link>, name: &'static str, work: impl Fn() -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let ended = link.ended();
        task::spawn_restarted(name, move || {
            let (ended, work) = (ended.clone(), Box::pin(work()));
            async move {
                tokio::select! {
                    () = ended.cancelled() => {}
                    () = work => {}
                }
            }
        });
    }
}
