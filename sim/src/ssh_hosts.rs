//! Simulated hosts of SSH fleets, before and after they have an agent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use dstack_agent_api::shim::{HostInfo, HostReport};
use dstack_compute::JobNeeds;
use dstack_engine::{
    ContainerRef, GatewayRef, GatewaySite, HostError, HostRef, Hosts, Preparation, ReadyGateway, ReadyHost,
};
use dstack_model::reach::Reach;
use dstack_plan::hosts::{cloud_reach, reach};
use dstack_system::{Random, task};
use dstack_units::{GatewayReplicaId, InstanceId};
use serde_json::{Value, json};

use crate::output::shim_token;

/// A private key of the right form, which opens nothing.
pub const KEY: &str = "\
-----BEGIN OPENSSH PRIVATE KEY-----\n\
b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW\n\
QyNTUxOQAAACB8kJianwVrLKGw4+nV6mOTy2OGbYpytfqap2qLDRZMQQAAAIi31J3It9Sd\n\
yAAAAAtzc2gtZWQyNTUxOQAAACB8kJianwVrLKGw4+nV6mOTy2OGbYpytfqap2qLDRZMQQ\n\
AAAEChazO2+rvlP6KYqQoKuAxAakHyXPrD9GCz0ehzFYv9EXyQmJqfBWssobDj6dXqY5PL\n\
Y4ZtinK1+pqnaosNFkxBAAAAAAECAwQF\n\
-----END OPENSSH PRIVATE KEY-----\n
";

/// Steps of a preparation; the last one makes the agent answer.
const STEPS: u64 = 4;
/// The build of the agent that servers carry at first.
const FIRST_BUILD: &str = "build-1";

#[derive(Debug)]
struct State {
    /// What is in the way at a host, by name.
    trouble: BTreeMap<String, HostError>,
    /// Hosts on which something of ours is, with the build of the agent that stands there.
    installed: BTreeMap<String, String>,
    /// Hosts at which no step comes to an end.
    hanging: BTreeSet<String>,
    /// How long each step takes.
    step: Duration,
    /// How long after the step a release takes effect, whether somebody still waits for it or not.
    late_release: Option<Duration>,
    /// Chance that a step takes effect and its answer is lost.
    lost_answer: f64,
    /// Steps that were begun, by host.
    begun: BTreeMap<String, u64>,
    /// Steps under way, by host, and the most that there were at once.
    under_way: BTreeMap<String, u64>,
    most_at_once: u64,
    /// How often an agent was started, by host.
    started: BTreeMap<String, u64>,
    /// Host keys that are not the first ones, by host.
    keys: BTreeMap<String, String>,
    /// The build of the agent that servers carry.
    build: String,
    /// CPUs of hosts that have another number than most.
    cpus: BTreeMap<String, u32>,
    /// Hosts to which the way may be kept open.
    reached: BTreeSet<String>,
    /// What machines say of themselves that do not say their names.
    identities: BTreeMap<String, String>,
    /// Replicas of gateways, with their builds, by host.
    gateways: BTreeMap<String, (GatewayReplicaId, String)>,
    /// What is in the way of gateways at a host.
    gateway_trouble: BTreeMap<String, HostError>,
}

/// All hosts that fleets may name.
#[derive(Debug, Clone)]
pub struct SshHosts {
    state: Arc<Mutex<State>>,
    agents: crate::hosts::Hosts,
    random: Random,
}

/// A step under way at a host, until it is dropped.
struct UnderWay<'a>(&'a SshHosts, &'a str);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if let Some(count) = self.0.lock().under_way.get_mut(self.1) {
            *count -= 1;
        }
    }
}

impl SshHosts {
    /// Hosts that can be reached and have no agent; those that get one are among `agents`.
    pub fn new(agents: crate::hosts::Hosts, random: Random) -> Self {
        let state = State {
            trouble: BTreeMap::new(),
            installed: BTreeMap::new(),
            hanging: BTreeSet::new(),
            step: Duration::ZERO,
            late_release: None,
            lost_answer: 0.0,
            begun: BTreeMap::new(),
            under_way: BTreeMap::new(),
            most_at_once: 0,
            started: BTreeMap::new(),
            keys: BTreeMap::new(),
            build: FIRST_BUILD.to_owned(),
            cpus: BTreeMap::new(),
            reached: BTreeSet::new(),
            identities: BTreeMap::new(),
            gateways: BTreeMap::new(),
            gateway_trouble: BTreeMap::new(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            agents,
            random,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on this is in the way at a host; `None`: nothing.
    pub fn trouble(&self, host: &str, trouble: Option<HostError>) {
        let mut state = self.lock();
        match trouble {
            Some(error) => state.trouble.insert(host.to_owned(), error),
            None => state.trouble.remove(host),
        };
    }

    /// Whether steps that are begun at a host from now on come to no end, as where a disk hangs.
    pub fn hang(&self, host: &str, hangs: bool) {
        let mut state = self.lock();
        match hangs {
            true => state.hanging.insert(host.to_owned()),
            false => state.hanging.remove(host),
        };
    }

    /// How long each step takes from now on.
    pub fn step_takes(&self, time: Duration) {
        self.lock().step = time;
    }

    /// Releases take effect so long after their step, also where whoever asked for them has given up.
    pub fn release_late(&self, late: Option<Duration>) {
        self.lock().late_release = late;
    }

    /// Chance that a step takes effect and its answer is lost.
    pub fn lose_answers(&self, chance: f64) {
        self.lock().lost_answer = chance;
    }

    /// Servers carry another build of the agent from now on.
    pub fn carry(&self, build: &str) {
        build.clone_into(&mut self.lock().build);
    }

    /// The machine at an address shows the first key of another one, as it is that one, and has moved.
    pub fn is_the_one_of(&self, address: &str, first: &str) {
        self.lock().keys.insert(address.to_owned(), first_key(first));
    }

    /// The machine is installed anew: nothing of ours is there any more, and it has another host key.
    pub fn reinstall(&self, host: &str, key: &str) {
        let mut state = self.lock();
        state.installed.remove(host);
        state.keys.insert(host.to_owned(), key.to_owned());
        drop(state);
        self.agents.change_key(host, key);
        self.agents.agent_runs(host, false);
        self.agents.shim_token(host, None);
    }

    /// A machine says this of itself from now on: it was started again, or its owner has made it up.
    pub fn says_of_itself(&self, machine: &str, identity: &str) {
        let mut state = self.lock();
        state.identities.insert(machine.to_owned(), identity.to_owned());
    }

    fn identity(&self, machine: &str) -> String {
        let state = self.lock();
        let said = state.identities.get(machine).cloned();
        said.unwrap_or_else(|| machine.to_owned())
    }

    /// From now on this is in the way of gateways at a host; `None`: nothing.
    pub fn gateway_trouble(&self, host: &str, trouble: Option<HostError>) {
        let mut state = self.lock();
        match trouble {
            Some(error) => state.gateway_trouble.insert(host.to_owned(), error),
            None => state.gateway_trouble.remove(host),
        };
    }

    /// The builds of the gateways, by host.
    pub fn gateways(&self) -> BTreeMap<String, String> {
        let state = self.lock();
        let build =
            |(host, (_, build)): (&String, &(GatewayReplicaId, String))| (host.clone(), build.clone());
        state.gateways.iter().map(build).collect()
    }

    /// A host has so many CPUs from now on.
    pub fn has_cpus(&self, host: &str, cpus: u32) {
        self.lock().cpus.insert(host.to_owned(), cpus);
    }

    /// Hosts to which the way may still be kept open.
    pub fn reached(&self) -> BTreeSet<String> {
        self.lock().reached.clone()
    }

    /// Hosts on which something of ours is.
    pub fn installed(&self) -> BTreeSet<String> {
        self.lock().installed.keys().cloned().collect()
    }

    /// The build of the agent that stands on a host.
    pub fn build_at(&self, host: &str) -> Option<String> {
        self.lock().installed.get(host).cloned()
    }

    /// The build of the agent that servers carry.
    pub fn carried(&self) -> String {
        self.lock().build.clone()
    }

    /// Steps that were begun at a host.
    pub fn steps_begun(&self, host: &str) -> u64 {
        self.lock().begun.get(host).copied().unwrap_or_default()
    }

    /// How often an agent was started at a host: one that runs as it should is left alone.
    pub fn agents_started(&self, host: &str) -> u64 {
        self.lock().started.get(host).copied().unwrap_or_default()
    }

    /// The most steps that were under way at one host at the same time.
    pub fn most_at_once(&self) -> u64 {
        self.lock().most_at_once
    }

    /// Whether a host shows the key that is asked for; any one where none is.
    fn check_key(&self, host: &str, reach: &Reach) -> Result<(), HostError> {
        let state = self.lock();
        let shown = state.keys.get(host);
        let wanted = reach.host.host_keys.first();
        match (wanted, shown) {
            (None, _) => Ok(()),
            (Some(wanted), Some(shown)) if wanted == shown => Ok(()),
            (Some(wanted), None) if *wanted == first_key(host) => Ok(()),
            (Some(wanted), _) => Err(HostError::Transient(format!("the host key was {wanted}"))),
        }
    }

    /// A step that may fail as the host wants, or be lost on the way back.
    async fn step(&self, host: &str, effect: impl FnOnce(&mut State)) -> Result<(), HostError> {
        let (time, hangs) = {
            let mut state = self.lock();
            *state.begun.entry(host.to_owned()).or_default() += 1;
            state.reached.insert(host.to_owned());
            let count = state.under_way.entry(host.to_owned()).or_default();
            *count += 1;
            let count = *count;
            state.most_at_once = state.most_at_once.max(count);
            (state.step, state.hanging.contains(host))
        };
        let _under_way = UnderWay(self, host);
        if hangs {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(time).await;
        let dice = self.random.fraction();
        let mut state = self.lock();
        if let Some(error) = state.trouble.get(host) {
            return Err(error.clone());
        }
        effect(&mut state);
        match dice < state.lost_answer {
            true => Err(HostError::Transient("the connection broke".to_owned())),
            false => Ok(()),
        }
    }

    /// The agent of a host is there, of the build that the server carries.
    fn install(&self, instance: InstanceId, host: &str, state: &mut State) {
        let before = state.installed.insert(host.to_owned(), state.build.clone());
        let is_as_it_should_be = before.as_ref() == Some(&state.build)
            && self.agents.has_token(host, &shim_token(instance))
            && !self.agents.lacks_agent(host)
            && !self.agents.is_mute(host);
        if !is_as_it_should_be {
            *state.started.entry(host.to_owned()).or_default() += 1;
            self.agents.agent_is_late(host, None);
        }
        self.agents.agent_runs(host, true);
        self.agents.shim_token(host, Some(shim_token(instance)));
    }

    fn uninstall(&self, host: &str, state: &mut State) {
        state.installed.remove(host);
        // It does not run without what its host was given.
        state.gateways.remove(host);
        self.agents.agent_runs(host, false);
        self.agents.shim_token(host, None);
    }
}

impl SshHosts {
    fn place_of(&self, site: GatewaySite<'_>) -> String {
        match site {
            GatewaySite::Host { host, .. } => self.agents.named(&name(host)),
            GatewaySite::Machine { reach } => reach.host.host.clone(),
        }
    }
}

/// The key that a host has as long as it is not installed anew.
fn first_key(host: &str) -> String {
    format!("first key of {host}")
}

fn name(host: HostRef<'_>) -> String {
    let place = host.instance.job_provisioning_data.as_deref();
    place.and_then(|place| place.hostname.clone()).unwrap_or_default()
}

/// As it is known, else as the fleet says.
fn way(host: HostRef<'_>) -> Option<Reach> {
    let known = host
        .instance
        .agent
        .as_deref()
        .and_then(|agent| agent.reach().cloned());
    known.or_else(|| {
        let place = host.instance.job_provisioning_data.as_deref()?;
        match host.fleet.spec.configuration.ssh_config {
            Some(_) => reach(host.fleet.id, &host.fleet.spec, place),
            None => cloud_reach(host.instance.project_id, place),
        }
    })
}

#[async_trait]
impl Hosts for SshHosts {
    async fn prepare(
        &self,
        host: HostRef<'_>,
        _needs: JobNeeds,
        progress: Option<&Value>,
    ) -> Result<Preparation, HostError> {
        let name = self.agents.named(&name(host));
        let gone = || HostError::Refused("the fleet does not have this host any more".to_owned());
        let mut reach = way(host).ok_or_else(gone)?;
        self.check_key(&name, &reach)?;
        let done = progress
            .and_then(|progress| progress["done"].as_u64())
            .unwrap_or(0);
        let is_last = done + 1 >= STEPS;
        self.step(&name, |state| match done {
            // The first step only looks.
            0 => {}
            _ if is_last => self.install(host.instance.id, &name, state),
            _ => {
                // A file is brought; what runs goes on.
                state.installed.entry(name.clone()).or_default();
            }
        })
        .await?;
        if !is_last {
            return Ok(Preparation::Underway {
                progress: json!({"done": done + 1}),
                done: format!("step {}", done + 1),
            });
        }
        let (key, build, cpus) = {
            let state = self.lock();
            let key = state.keys.get(&name).cloned();
            (
                key.unwrap_or_else(|| first_key(&name)),
                state.build.clone(),
                state.cpus.get(&name).copied().unwrap_or(8),
            )
        };
        reach.host.host_keys = vec![key];
        Ok(Preparation::Ready(Box::new(ReadyHost {
            reach,
            shim_port: 10_998,
            report: HostReport {
                host_info: HostInfo {
                    cpus,
                    memory: 64 << 30,
                    disk_size: 512 << 30,
                    addresses: vec![format!("10.0.0.{}/24", 1 + name.len())],
                    ..HostInfo::default()
                },
                runtime: "docker".to_owned(),
                arch: "amd64".to_owned(),
                ..HostReport::default()
            },
            build: Some(build),
            machine: Some(self.identity(&name)),
        })))
    }

    async fn greet_machine(&self, reach: &Reach) -> Result<Reach, HostError> {
        let name = &reach.host.host;
        let state = self.lock();
        if let Some(error) = state.gateway_trouble.get(name) {
            return Err(error.clone());
        }
        let mut seen = reach.clone();
        let shown = state.keys.get(name).cloned();
        seen.host.host_keys = vec![shown.unwrap_or_else(|| first_key(name))];
        Ok(seen)
    }

    async fn prepare_gateway(&self, gateway: GatewayRef<'_>) -> Result<ReadyGateway, HostError> {
        let name = self.place_of(gateway.site);
        let reach = gateway.site.reach();
        let carried = self.lock().build.clone();
        let (build, seen) = match gateway.site {
            GatewaySite::Host { build, .. } => {
                self.check_key(&name, reach)?;
                (build.unwrap_or_default().to_owned(), None)
            }
            GatewaySite::Machine { .. } => {
                self.check_key(&name, reach)?;
                if reach.host.host_keys.is_empty() {
                    return Err(HostError::Refused("nobody knows its host key".to_owned()));
                }
                let seen = reach.clone();
                (carried, Some(seen))
            }
        };
        let trouble = self.lock().gateway_trouble.get(&name).cloned();
        if let Some(error) = trouble {
            return Err(error);
        }
        let id = gateway.replica.id;
        self.step(&name, |state| {
            state.gateways.insert(name.clone(), (id, build.clone()));
        })
        .await?;
        Ok(ReadyGateway {
            build: Some(build),
            arch: seen.as_ref().map(|_| "amd64".to_owned()),
            reach: seen,
        })
    }

    async fn release_gateway(&self, gateway: GatewayRef<'_>) -> Result<(), HostError> {
        let name = self.place_of(gateway.site);
        self.check_key(&name, gateway.site.reach())?;
        self.step(&name, |state| {
            state.gateways.remove(&name);
        })
        .await
    }

    async fn machine(&self, host: HostRef<'_>) -> Result<Option<String>, HostError> {
        let name = self.agents.named(&name(host));
        Ok(Some(self.identity(&name)))
    }

    async fn prepare_container(
        &self,
        container: ContainerRef<'_>,
        progress: Option<&Value>,
    ) -> Result<Preparation<Reach>, HostError> {
        let row = container.instance;
        let place = row.job_provisioning_data.as_deref();
        let unknown = || HostError::Transient("nobody knows how it is reached".to_owned());
        let mut reach = place
            .and_then(|place| cloud_reach(row.project_id, place))
            .ok_or_else(unknown)?;
        let name = reach.host.host.clone();
        if !self.agents.has_container(&name) {
            return Err(HostError::Transient("connection refused".to_owned()));
        }
        let done = progress
            .and_then(|progress| progress["done"].as_u64())
            .unwrap_or(0);
        let is_last = done + 1 >= STEPS;
        let job = container
            .token
            .expose()
            .trim_start_matches("token of ")
            .to_owned();
        self.step(&name, |_| {
            if is_last {
                self.agents
                    .run_container(&name, &row.name, &job, container.token.clone());
            }
        })
        .await?;
        if !is_last {
            return Ok(Preparation::Underway {
                progress: json!({"done": done + 1}),
                done: format!("step {}", done + 1),
            });
        }
        reach.host.host_keys = vec![first_key(&name)];
        Ok(Preparation::Ready(Box::new(reach)))
    }

    async fn release(&self, host: HostRef<'_>, preparation: Option<&Value>) -> Result<(), HostError> {
        let name = self.agents.named(&name(host));
        if way(host).is_none() && preparation.is_none() {
            return Err(HostError::Refused(
                "nobody knows how the host is reached".to_owned(),
            ));
        }
        let Some(late) = self.lock().late_release else {
            return self.step(&name, |state| self.uninstall(&name, state)).await;
        };
        self.step(&name, |_| {
            let (hosts, name) = (self.clone(), name.clone());
            task::spawn("late release", async move {
                tokio::time::sleep(late).await;
                hosts.uninstall(&name, &mut hosts.lock());
            });
        })
        .await?;
        std::future::pending().await
    }

    async fn has_own_agent(&self, host: HostRef<'_>) -> Result<bool, HostError> {
        let name = self.agents.named(&name(host));
        Ok(self.agents.has_token(&name, &shim_token(host.instance.id)))
    }

    fn build(&self, _arch: &str) -> Option<String> {
        Some(self.lock().build.clone())
    }

    fn forget(&self, host: HostRef<'_>, _preparation: Option<&Value>) {
        self.lock().reached.remove(&self.agents.named(&name(host)));
    }
}
