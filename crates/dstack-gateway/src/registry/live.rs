//! What runs of what is registered: links to replicas, what clients have used of their limits, and the sites.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dstack_proxy::rate_limit::{Key, RateLimit, RateLimits};
use dstack_proxy::{Balancing, ChatFormat, Forwarder, Model, Paths, Replica, Routes, Service, Split};
use dstack_system::{Locked, Random, task};
use dstack_units::{JobId, RunId};
use http::HeaderName;
use uuid::Uuid;

use crate::replicas::{Chain, Link, Reconnects};
use crate::sites::{ModelsSite, ServiceSite, Sites};
use crate::state::{
    BalancingRecord, ModelFormat, ModelRecord, RateKey, RateLimitRecord, ReplicaRecord, ServiceRecord, State,
};

/// After its replica is unregistered a link lives until the requests under way are answered, at most for so long.
const DRAIN_LIMIT: Duration = Duration::from_secs(600);

/// Links and sites of what is registered.
#[derive(Debug)]
pub(super) struct Live {
    services: HashMap<Uuid, LiveService>,
    routes: Routes,
    random: Random,
    reconnects: Reconnects,
}

#[derive(Debug)]
struct LiveService {
    record: Arc<ServiceRecord>,
    site: Arc<ServiceSite>,
    replicas: Vec<LiveReplica>,
}

#[derive(Debug, Clone)]
struct LiveReplica {
    record: ReplicaRecord,
    replica: Arc<Replica>,
    link: Arc<Link>,
}

/// What is out of the sites.
#[must_use]
pub(super) struct Retired {
    replicas: Vec<LiveReplica>,
    /// Services without a replica by now.
    emptied: Vec<RunId>,
}

impl Retired {
    /// They get no more requests, and their links end once those under way are answered; of services without replicas no prompts are
    /// remembered. Called when the sites are without them.
    pub(super) fn end(self, forwarder: &Forwarder) {
        for live in self.replicas {
            live.replica.retire();
            task::spawn("replica that gets no requests any more", async move {
                let _ = tokio::time::timeout(DRAIN_LIMIT, live.replica.idle()).await;
                live.link.end();
            });
        }
        // After the replicas: one that is retired is chosen for no prompt any more.
        for run in self.emptied {
            forwarder.forget_prompts(run);
        }
    }
}

/// A link that was opened before its replica is registered.
pub(super) struct Opened {
    pub(super) job: String,
    pub(super) link: Link,
}

impl Live {
    pub(super) fn new(random: Random) -> Self {
        Self {
            services: HashMap::new(),
            routes: Routes::default(),
            reconnects: Reconnects::new(random.clone()),
            random,
        }
    }

    pub(super) const fn reconnects(&self) -> &Reconnects {
        &self.reconnects
    }

    /// How many replicas there are, and to how many of them there is a connection.
    pub(super) fn links(&self) -> (usize, usize) {
        let all = self.services.values().flat_map(|service| &service.replicas);
        all.fold((0, 0), |(count, live), replica| {
            (count + 1, live + usize::from(replica.link.is_live()))
        })
    }

    /// The replicas of all services.
    pub(super) fn replicas(&self) -> Vec<Arc<Replica>> {
        let all = self.services.values().flat_map(|service| &service.replicas);
        all.map(|replica| Arc::clone(&replica.replica)).collect()
    }

    /// The replica of a job of a service.
    pub(super) fn replica(&self, service: Uuid, job: &str) -> Option<Arc<Replica>> {
        let replicas = &self.services.get(&service)?.replicas;
        let found = replicas.iter().find(|replica| replica.record.job_id == job)?;
        Some(Arc::clone(&found.replica))
    }

    /// How the requests to services are split, by the keys of those whose are.
    pub(super) fn splits(&self) -> HashMap<Uuid, Arc<Split>> {
        let services = self.services.iter();
        let split = |(key, service): (&Uuid, &LiveService)| {
            Some((*key, Arc::clone(service.site.service.split.as_ref()?)))
        };
        services.filter_map(split).collect()
    }

    /// Makes what runs follow what is registered. Returns the sites of that, and what is not in them any more.
    pub(super) async fn follow(&mut self, state: &State, mut opened: Option<Opened>) -> (Sites, Retired) {
        let (mut retired, mut emptied) = (Vec::new(), Vec::new());
        let mut before = std::mem::take(&mut self.services);
        for (project, run, record) in state.services() {
            let old = before.remove(&record.key);
            let service = match old {
                Some(old) if Arc::ptr_eq(&old.record, record) => old,
                old => {
                    let key = &state
                        .projects
                        .get(project)
                        .map(|found| found.ssh_private_key.clone());
                    let key = key.clone().unwrap_or_default();
                    let names = Names { project, run };
                    let next = self
                        .service(names, record, &key, old, (&mut opened, &mut retired))
                        .await;
                    self.routes = std::mem::take(&mut self.routes).with(next.site.service.clone());
                    emptied.extend(next.replicas.is_empty().then_some(next.site.service.run_id));
                    next
                }
            };
            self.services.insert(record.key, service);
        }
        for (_, gone) in before {
            let run = gone.site.service.run_id;
            self.routes = std::mem::take(&mut self.routes).without(run);
            retired.extend(gone.replicas);
            emptied.push(run);
        }
        let retired = Retired {
            replicas: retired,
            emptied,
        };
        (self.sites(state), retired)
    }

    fn sites(&self, state: &State) -> Sites {
        let services = self.services.values();
        let services = services.map(|service| (service.record.domain.clone(), Arc::clone(&service.site)));
        let models = state.entrypoints().map(|(project, entrypoint)| {
            let site = ModelsSite {
                project: project.to_owned(),
                https: entrypoint.https,
            };
            (entrypoint.domain.clone(), Arc::new(site))
        });
        Sites::new(models, services.collect(), self.routes.clone())
    }

    async fn service(
        &self,
        names: Names<'_>,
        record: &Arc<ServiceRecord>,
        key: &dstack_system::Secret,
        old: Option<LiveService>,
        (opened, retired): (&mut Option<Opened>, &mut Vec<LiveReplica>),
    ) -> LiveService {
        let split = split(
            record,
            old.as_ref().and_then(|old| old.site.service.split.as_deref()),
        );
        let (mut kept, limits) = match old {
            Some(old) => (old.replicas, of_same_limits(&old.record, record, &old.site)),
            None => (Vec::new(), None),
        };
        let mut replicas = Vec::new();
        for replica in &record.replicas {
            let same = kept.iter().position(|live| live.record == *replica);
            let live = match same {
                Some(place) => Some(kept.swap_remove(place)),
                None => self.replica_of(&names, replica, key, opened).await,
            };
            replicas.extend(live);
        }
        retired.extend(kept);
        let limits = limits.unwrap_or_else(|| Arc::new(Locked::new(rate_limits(&record.rate_limits))));
        let services = replicas.iter().map(|live| Arc::clone(&live.replica)).collect();
        LiveService {
            record: Arc::clone(record),
            site: Arc::new(site(&names, record, limits, (split, services))),
            replicas,
        }
    }

    async fn replica_of(
        &self,
        names: &Names<'_>,
        record: &ReplicaRecord,
        key: &dstack_system::Secret,
        opened: &mut Option<Opened>,
    ) -> Option<LiveReplica> {
        let link = match opened.take_if(|opened| opened.job == record.job_id) {
            Some(opened) => opened.link,
            None => {
                let name = format!("{}/{} {}", names.project, names.run, record.job_id);
                match Chain::of(record, key).await {
                    Ok(chain) => Link::new(name, record.app_port, chain, None, self.reconnects.clone()),
                    Err(error) => {
                        let error = dstack_system::chain(&error).to_string();
                        tracing::error!(replica = name, error, "a replica gets no requests");
                        return None;
                    }
                }
            }
        };
        let link = Arc::new(link);
        let id = record
            .job_id
            .parse::<Uuid>()
            .unwrap_or_else(|_| self.random.uuid());
        Some(LiveReplica {
            record: record.clone(),
            replica: Arc::new(Replica::new(JobId::from(id), Arc::clone(&link) as _)),
            link,
        })
    }
}

/// Names of a service's project and run.
struct Names<'n> {
    project: &'n str,
    run: &'n str,
}

/// What clients have used of limits that stay as they are.
fn of_same_limits(
    old: &ServiceRecord,
    new: &ServiceRecord,
    site: &ServiceSite,
) -> Option<Arc<Locked<RateLimits>>> {
    (old.rate_limits == new.rate_limits).then(|| Arc::clone(&site.limits))
}

/// How requests are split; what was answered before of the same deployment goes on to count.
fn split(record: &ServiceRecord, before: Option<&Split>) -> Option<Arc<Split>> {
    let split = record.split.as_ref()?;
    let before = before.filter(|before| before.deployment == split.deployment);
    let header = split.header.as_ref();
    let ids = split.new.iter().filter_map(|id| id.parse::<Uuid>().ok());
    Some(Arc::new(Split {
        deployment: split.deployment,
        new: ids.map(JobId::from).collect(),
        share: split.share,
        header: header.and_then(|header| Some((header.name.parse().ok()?, header.value.parse().ok()?))),
        answered: before
            .map(|before| Arc::clone(&before.answered))
            .unwrap_or_default(),
    }))
}

fn site(
    names: &Names<'_>,
    record: &ServiceRecord,
    limits: Arc<Locked<RateLimits>>,
    (split, replicas): (Option<Arc<Split>>, Vec<Arc<Replica>>),
) -> ServiceSite {
    let service = Service {
        run_id: RunId::from(record.key),
        project: names.project.to_owned(),
        run: names.run.to_owned(),
        created: record.created,
        auth: record.auth,
        strip_prefix: record.strip_prefix,
        paths: match record.has_router_replica {
            true => Paths::OfRouter,
            false => Paths::All,
        },
        read_timeout: Duration::from_secs(record.read_timeout.max(1)),
        shares_origin: false,
        starts_on_request: false,
        split,
        model: record.model.as_ref().map(model),
        balancing: match record.balancing {
            BalancingRecord::LeastRequests => Balancing::LeastRequests,
            BalancingRecord::Prefix => Balancing::Prefix,
        },
        replicas,
    };
    ServiceSite {
        https: record.https,
        any_origin: record.allows_any_origin(),
        max_body: (record.client_max_body_size > 0).then_some(record.client_max_body_size),
        limits,
        service,
    }
}

fn model(record: &ModelRecord) -> Model {
    let format = match &record.format {
        ModelFormat::Openai { prefix } => ChatFormat::OpenAi {
            prefix: prefix.clone(),
        },
        ModelFormat::Tgi {
            chat_template,
            eos_token,
        } => ChatFormat::Tgi {
            chat_template: chat_template.clone(),
            eos_token: eos_token.clone(),
        },
    };
    Model {
        name: record.name.clone(),
        format,
    }
}

fn rate_limits(records: &[RateLimitRecord]) -> RateLimits {
    let limit = |record: &RateLimitRecord| {
        Some(RateLimit {
            prefix: record.prefix.clone(),
            key: match &record.key {
                RateKey::IpAddress => Key::Address,
                // Checked at registration.
                RateKey::Header { header } => Key::Header(header.parse::<HeaderName>().ok()?),
            },
            rps: record.rps,
            burst: record.burst,
        })
    };
    RateLimits::new(records.iter().filter_map(limit))
}
