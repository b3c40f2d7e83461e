//! What is registered, and who may change it: each change is checked, written to the disk, and put into effect, in this order. What
//! takes long (certificates, connections) comes before, side by side for different services.

mod live;
mod refusal;
pub(crate) mod turns;

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use dstack_agent_api::gateway::Split;
use dstack_proxy::{Forwarder, Replica};
use dstack_system::clock::SharedClock;
use dstack_system::{Random, Secret};
use tokio::sync::{Mutex, watch};

use live::{Live, Opened};
pub use refusal::Refusal;
use turns::Turns;

use crate::replicas::{Chain, Link, link};
use crate::sites::Sites;
use crate::state::store::{Store, StoreError};
use crate::state::{AcmeSettings, Entrypoint, ReplicaRecord, ServiceRecord, State};
use crate::tls::Certificates;

/// Holds what is registered, and changes it.
#[derive(Debug)]
pub struct Registry {
    store: Store,
    inner: Mutex<Inner>,
    sites: Arc<ArcSwap<Sites>>,
    /// Told of each change.
    changed: watch::Sender<()>,
    turns: Turns,
    certificates: Arc<Certificates>,
    forwarder: Arc<Forwarder>,
    clock: SharedClock,
    random: Random,
}

#[derive(Debug)]
struct Inner {
    state: State,
    live: Live,
    /// Nothing is changed any more.
    is_frozen: bool,
}

/// Names of a project and of a run in it, in small letters.
#[derive(Debug, Clone, Copy)]
pub struct Run<'n> {
    project: &'n str,
    run: &'n str,
}

impl<'n> Run<'n> {
    /// The run of this name in the project of that name.
    pub const fn new(project: &'n str, run: &'n str) -> Self {
        Self { project, run }
    }
}

impl std::fmt::Display for Run<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.project, self.run)
    }
}

/// What a registry is built of.
#[derive(Debug)]
pub struct Parts {
    /// Keeps what is registered on the disk.
    pub store: Store,
    /// Orders what services need.
    pub certificates: Arc<Certificates>,
    /// Passes requests on to what is registered, and remembers their prompts.
    pub forwarder: Arc<Forwarder>,
    /// Tells when services were registered.
    pub clock: SharedClock,
    /// Makes keys and pauses.
    pub random: Random,
}

impl Registry {
    /// With this state, whose links it opens.
    pub async fn start(state: State, parts: Parts) -> Self {
        let mut live = Live::new(parts.random.clone());
        let (sites, retired) = live.follow(&state, None).await;
        retired.end(&parts.forwarder);
        parts.certificates.set_acme(state.acme.clone());
        Self {
            store: parts.store,
            inner: Mutex::new(Inner {
                state,
                live,
                is_frozen: false,
            }),
            sites: Arc::new(ArcSwap::from_pointee(sites)),
            changed: watch::channel(()).0,
            turns: Turns::default(),
            certificates: parts.certificates,
            forwarder: parts.forwarder,
            clock: parts.clock,
            random: parts.random,
        }
    }

    /// What answers at which host name.
    pub const fn sites(&self) -> &Arc<ArcSwap<Sites>> {
        &self.sites
    }

    /// Is told of each change.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// What is registered now.
    pub async fn state(&self) -> State {
        self.inner.lock().await.state.clone()
    }

    /// How many replicas there are, and to how many of them there is a connection.
    pub async fn links(&self) -> (usize, usize) {
        self.inner.lock().await.live.links()
    }

    /// The replicas of all services.
    pub async fn replicas(&self) -> Vec<Arc<Replica>> {
        self.inner.lock().await.live.replicas()
    }

    /// The replica of a job, if the service has it.
    pub async fn replica(&self, run: Run<'_>, job: &str) -> Option<Arc<Replica>> {
        let inner = self.inner.lock().await;
        let key = inner.state.service(run.project, run.run)?.key;
        inner.live.replica(key, job)
    }

    /// Registers a service, whose certificate is ordered before.
    ///
    /// # Errors
    /// There is one of this name or host name, or there is no certificate for it.
    pub async fn register_service(
        &self,
        run: Run<'_>,
        service: ServiceRecord,
        key: Secret,
    ) -> Result<(), Refusal> {
        let _turn = self.turns.take(&run.to_string()).await;
        let domain = service.domain.clone();
        let is_free = |state: &State| match state.service(run.project, run.run) {
            Some(_) => Err(Refusal::bad(format!("Service {run} is already registered"))),
            None => domain_is_free(state, &domain),
        };
        is_free(&self.inner.lock().await.state)?;
        if service.https {
            self.certificates.ensure(&domain).await?;
        }
        self.change(None, |state| {
            is_free(state)?;
            let project = state.projects.entry(run.project.to_owned()).or_default();
            project.ssh_private_key = key;
            project.services.insert(run.run.to_owned(), Arc::new(service));
            Ok(())
        })
        .await?;
        tracing::info!(service = %run, "a service is registered");
        Ok(())
    }

    /// Takes a service away.
    ///
    /// # Errors
    /// There is none of this name.
    pub async fn unregister_service(&self, run: Run<'_>) -> Result<(), Refusal> {
        let _turn = self.turns.take(&run.to_string()).await;
        self.change(None, |state| {
            let project = state.projects.get_mut(run.project);
            let gone = project.and_then(|project| project.services.remove(run.run));
            state.remove_empty_projects();
            gone.map(drop).ok_or_else(|| no_service(run, "cannot unregister"))
        })
        .await?;
        tracing::info!(service = %run, "a service is not registered any more");
        Ok(())
    }

    /// Tells the run of a service of which it is not known yet.
    ///
    /// # Errors
    /// There is no such service, or it is known to be another run.
    pub async fn set_id(&self, run: Run<'_>, id: &str) -> Result<(), Refusal> {
        self.change(None, |state| {
            let service = service_mut(state, run, "cannot set ID")?;
            match &service.id {
                Some(known) if known != id => {
                    return Err(Refusal::bad(format!("Service {run} already has another ID")));
                }
                Some(_) => {}
                None => service.id = Some(id.to_owned()),
            }
            Ok(())
        })
        .await
    }

    /// How the requests to a service are split from now on.
    ///
    /// # Errors
    /// There is no such service.
    pub async fn set_split(&self, run: Run<'_>, split: Option<Split>) -> Result<(), Refusal> {
        self.change(None, |state| {
            service_mut(state, run, "cannot split its requests")?.split = split;
            Ok(())
        })
        .await
    }

    /// How the requests to services are split, by the keys of those whose are.
    pub async fn splits(&self) -> HashMap<uuid::Uuid, Arc<dstack_proxy::Split>> {
        self.inner.lock().await.live.splits()
    }

    /// Registers a replica, to which a connection is opened before.
    ///
    /// # Errors
    /// There is no such service, or it has this replica already or is another one by the time that there is a connection, or the replica
    /// cannot be reached.
    pub async fn register_replica(&self, run: Run<'_>, replica: ReplicaRecord) -> Result<(), Refusal> {
        let job = replica.job_id.clone();
        let _turn = self.turns.take(&format!("{run}/{job}")).await;
        let is_new = |service: &ServiceRecord| match service.replica(&job) {
            None => Ok(()),
            Some(_) => Err(Refusal::bad(format!(
                "Replica {job} already exists in service {run}"
            ))),
        };
        let (service, key, reconnects) = {
            let inner = self.inner.lock().await;
            let service = inner.state.service(run.project, run.run);
            let service = service.ok_or_else(|| no_service(run, "cannot register replica"))?;
            is_new(service)?;
            let project = inner.state.projects.get(run.project);
            let key = project.map(|project| project.ssh_private_key.clone());
            (
                service.key,
                key.unwrap_or_default(),
                inner.live.reconnects().clone(),
            )
        };
        let unreachable = |problem: String| {
            Refusal::bad(format!(
                "Cannot connect to replica {job} of service {run}: {problem}"
            ))
        };
        let chain = Chain::of(&replica, &key).await;
        let chain = chain.map_err(|error| unreachable(dstack_system::chain(&error).to_string()))?;
        let connection = link::open(&chain).await.map_err(unreachable)?;
        let name = format!("{run} {job}");
        let opened = Opened {
            job: job.clone(),
            link: Link::new(name, replica.app_port, chain, Some(connection), reconnects),
        };
        self.change(Some(opened), |state| {
            let present = service_mut(state, run, "cannot register replica")?;
            if present.key != service {
                let refusal = format!("Service {run} was registered anew, cannot register replica");
                return Err(Refusal::bad(refusal));
            }
            is_new(present)?;
            present.replicas.push(replica);
            Ok(())
        })
        .await?;
        tracing::info!(service = %run, replica = job, "a replica is registered");
        Ok(())
    }

    /// Takes a replica away: it gets no new requests, and those under way go on.
    ///
    /// # Errors
    /// There is no such service or replica.
    pub async fn unregister_replica(&self, run: Run<'_>, job: &str) -> Result<(), Refusal> {
        let _turn = self.turns.take(&format!("{run}/{job}")).await;
        self.change(None, |state| {
            let service = service_mut(state, run, "cannot unregister replica")?;
            let before = service.replicas.len();
            service.replicas.retain(|replica| replica.job_id != job);
            match service.replicas.len() < before {
                true => Ok(()),
                false => Err(Refusal::bad(format!(
                    "Replica {job} does not exist in service {run}, cannot unregister"
                ))),
            }
        })
        .await?;
        tracing::info!(service = %run, replica = job, "a replica is not registered any more");
        Ok(())
    }

    /// Sets where the models of a project are asked. Of projects with the same host name the last has it, as in dstack 0.22.5: one that is
    /// gone tells nobody.
    ///
    /// # Errors
    /// A service has this host name, or there is no certificate for it.
    pub async fn register_entrypoint(&self, project: &str, entrypoint: Entrypoint) -> Result<(), Refusal> {
        let _turn = self.turns.take(project).await;
        let domain = entrypoint.domain.clone();
        let is_free = |state: &State| match state.has_service_at(&domain) {
            true => Err(is_taken(&domain)),
            false => Ok(()),
        };
        is_free(&self.inner.lock().await.state)?;
        if entrypoint.https {
            self.certificates.ensure(&domain).await?;
        }
        self.change(None, |state| {
            is_free(state)?;
            state.remove_entrypoint(&domain);
            let project = state.projects.entry(project.to_owned()).or_default();
            project.entrypoint = Some(entrypoint);
            Ok(())
        })
        .await
    }

    /// Sets where certificates are ordered from now on.
    ///
    /// # Errors
    /// It cannot be written down.
    pub async fn configure(&self, acme: AcmeSettings) -> Result<(), Refusal> {
        self.certificates.check(&acme)?;
        let settings = acme.clone();
        self.change(None, |state| {
            state.acme = settings;
            Ok(())
        })
        .await?;
        self.certificates.set_acme(acme);
        Ok(())
    }

    /// Changes nothing from now on: another gateway is about to begin with the same file.
    pub async fn freeze(&self) {
        self.inner.lock().await.is_frozen = true;
    }

    /// What tells a new service from all others, and the time, in seconds since 1970.
    pub fn new_key(&self) -> (uuid::Uuid, i64) {
        (self.random.uuid(), self.clock.now().to_jiff().as_second())
    }

    /// Decides on the present state, writes the next one down, and puts it into effect.
    async fn change(
        &self,
        opened: Option<Opened>,
        decide: impl FnOnce(&mut State) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let mut inner = self.inner.lock().await;
        if inner.is_frozen {
            return Err(Refusal::internal("This gateway ends: ask again"));
        }
        let mut next = inner.state.clone();
        decide(&mut next)?;
        if next != inner.state {
            self.store
                .save_later(next.clone())
                .await
                .map_err(|error| not_written(&error))?;
        }
        inner.state = next;
        let Inner { state, live, .. } = &mut *inner;
        let (sites, retired) = live.follow(state, opened).await;
        self.sites.store(Arc::new(sites));
        retired.end(&self.forwarder);
        self.changed.send_replace(());
        Ok(())
    }
}

fn not_written(error: &StoreError) -> Refusal {
    let error = dstack_system::chain(error).to_string();
    tracing::error!(error, "nothing was changed");
    Refusal::internal(error)
}

fn domain_is_free(state: &State, domain: &str) -> Result<(), Refusal> {
    match state.has_domain(domain) {
        true => Err(is_taken(domain)),
        false => Ok(()),
    }
}

fn is_taken(domain: &str) -> Refusal {
    Refusal::bad(format!("Domain {domain} is already registered"))
}

fn no_service(run: Run<'_>, what: &str) -> Refusal {
    Refusal::bad(format!("Service {run} does not exist, {what}"))
}

fn service_mut<'s>(state: &'s mut State, run: Run<'_>, what: &str) -> Result<&'s mut ServiceRecord, Refusal> {
    let project = state.projects.get_mut(run.project);
    let service = project.and_then(|project| project.services.get_mut(run.run));
    service.map(Arc::make_mut).ok_or_else(|| no_service(run, what))
}
