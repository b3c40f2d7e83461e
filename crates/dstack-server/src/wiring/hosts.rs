//! Hosts of SSH fleets, and machines and containers of clouds: what the engine asks for, carried out over SSH.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use dstack_agent_api::container::ContainerPaths;
use dstack_compute::{JobNeeds, MachineSetup};
use dstack_control::keys::Keys;
use dstack_engine::operations::hosts::is_machine_of;
use dstack_engine::{
    ContainerRef, GatewayRef, GatewaySite, HostError, HostRef, Hosts, InputsError, Preparation, ReadyGateway,
    ReadyHost,
};
use dstack_hosts::deploy::{
    ContainerDeployment, ContainerOutcome, DeployError, Deployer, Deployment, GatewayDeployment, Outcome,
    Progress, Stage,
};
use dstack_model::instances::InstanceStatus;
use dstack_model::reach::Reach;
use dstack_plan::hosts::{are_one_machine, cloud_reach, reach, show_same_key};
use dstack_store::rows::{AgentAddress, InstanceRow};
use dstack_store::{Database, EngineStore as _, SqlStore, StoreError};
use dstack_system::{Secret, chain, task};
use dstack_units::ProjectId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::agent_tokens::AgentTokens;
use super::slots::Slots;

/// Sets up hosts with the agents that this server carries.
#[derive(Debug)]
pub struct SshHosts {
    deployer: Deployer,
    database: Database,
    keys: Arc<Keys>,
    tokens: AgentTokens,
    slots: Slots,
    /// Builds of the agent by architecture, once they are known.
    builds: Arc<Mutex<HashMap<String, Option<String>>>>,
}

impl SshHosts {
    /// Through this deployer.
    pub fn new(deployer: Deployer, database: Database, keys: Arc<Keys>) -> Self {
        Self {
            deployer,
            tokens: AgentTokens::new(database.clone(), Arc::clone(&keys)),
            database,
            keys,
            slots: Slots::default(),
            builds: Arc::default(),
        }
    }

    /// Refuses a host whose machine is another host's already, under another name. When two become one at the same time, the commit
    /// decides that makes them ready.
    async fn check_alone(
        &self,
        host: HostRef<'_>,
        reach: &Reach,
        is_installed: bool,
    ) -> Result<(), HostError> {
        let own = host.instance;
        if own.status() != InstanceStatus::Pending {
            return Ok(());
        }
        let Some(machine) = self.deployer.machine(reach).await.map_err(DeployFailed)? else {
            return Ok(());
        };
        let store = SqlStore::new(self.database.clone());
        let transient = |error: StoreError| HostError::Transient(chain(&error).to_string());
        let others = store.hosts_on(&machine).await.map_err(transient)?;
        let is_same = |other: &InstanceRow| {
            let way = other.agent.as_deref().and_then(AgentAddress::reach);
            other.id != own.id && are_one_machine((own.project_id, reach), (other.project_id, way))
        };
        let other = match others.into_iter().find(is_same) {
            Some(other) => Some(other),
            None => {
                let found = store.fleet(host.fleet.id).await.map_err(transient)?;
                let instances = found.map(|found| found.instances).unwrap_or_default();
                self.twin(own, reach, &machine, instances).await?
            }
        };
        match other {
            None => Ok(()),
            Some(other) => Err(HostError::Taken {
                error: is_machine_of(own, &other),
                disturbed: is_installed.then_some(other.id),
            }),
        }
    }

    /// The host of the same fleet that shows the same key, and is this machine: it has another number since it was started again.
    /// Copies of one machine show the same key as well.
    async fn twin(
        &self,
        own: &InstanceRow,
        reach: &Reach,
        machine: &str,
        others: Vec<InstanceRow>,
    ) -> Result<Option<InstanceRow>, HostError> {
        for other in others {
            let way = other.agent.as_deref().and_then(AgentAddress::reach);
            let Some(way) = way.filter(|way| show_same_key(way, reach)) else {
                continue;
            };
            if other.id == own.id || !other.status().is_active() {
                continue;
            }
            let found = self.deployer.machine(way).await;
            let unknown = |error: DeployError| {
                HostError::Transient(format!(
                    "{} shows the host key of {}, which cannot be asked whether it is the same machine: {error}. Mend that, or take {} \
                     out of its fleet",
                    reach.host.host, other.name, other.name
                ))
            };
            if found.map_err(unknown)?.as_deref() == Some(machine) {
                return Ok(Some(other));
            }
        }
        Ok(None)
    }

    async fn step(
        &self,
        host: HostRef<'_>,
        needs: JobNeeds,
        progress: Option<&Value>,
    ) -> Result<Preparation, HostError> {
        // What another version wrote down is begun anew: every step may be repeated.
        let noted: Option<Noted> = progress.and_then(|value| serde_json::from_value(value.clone()).ok());
        if let Some(noted) = noted
            .as_ref()
            .filter(|noted| noted.progress.next >= Stage::Install)
        {
            let is_installed = noted.progress.next > Stage::Install;
            self.check_alone(host, &noted.pinned(), is_installed).await?;
        }
        let (known, progress) = noted.map(|noted| (noted.reach, noted.progress)).unzip();
        let deployment = Deployment {
            gpu_devices: needs.gpu_devices.iter().copied().map(str::to_owned).collect(),
            ..self.deployment(host, known.or_else(|| pinned(host))).await?
        };
        match self
            .deployer
            .step(&deployment, progress)
            .await
            .map_err(DeployFailed)?
        {
            Outcome::Underway { progress, done } => {
                let reach = deployment.reach;
                let noted = Noted { reach, progress };
                Ok(Preparation::Underway {
                    progress: serde_json::to_value(noted).unwrap_or_default(),
                    done,
                })
            }
            Outcome::Ready {
                reach,
                shim_port,
                report,
                build,
                machine,
            } => Ok(Preparation::Ready(Box::new(ReadyHost {
                reach,
                shim_port,
                report: *report,
                build: Some(build),
                machine,
            }))),
        }
    }

    /// Finds out which build it is, for the next one who asks.
    fn find_build(&self, arch: &str) {
        let (deployer, builds, arch) = (self.deployer.clone(), Arc::clone(&self.builds), arch.to_owned());
        task::spawn("agent build", async move {
            let found = deployer.build(&arch).await;
            let mut builds = locked(&builds);
            match found {
                Some(build) => builds.insert(arch, Some(build)),
                None => builds.remove(&arch),
            };
        });
    }

    async fn deployment(&self, host: HostRef<'_>, known: Option<Reach>) -> Result<Deployment, HostError> {
        let (project, instance) = (host.instance.project_id, host.instance.id);
        let named = || {
            let place = host.instance.job_provisioning_data.as_deref()?;
            match host.fleet.spec.configuration.ssh_config {
                Some(_) => reach(host.fleet.id, &host.fleet.spec, place),
                None => cloud_reach(project, place),
            }
        };
        let gone = || HostError::Refused("the fleet does not have this host any more".to_owned());
        // What is on hosts of their own, their owners decide.
        let machine = host
            .instance
            .job_provisioning_data
            .as_deref()
            .filter(|_| host.fleet.spec.configuration.ssh_config.is_none());
        let setup = machine.map(MachineSetup::of).unwrap_or_default();
        Ok(Deployment {
            reach: known.or_else(named).ok_or_else(gone)?,
            authorized_keys: vec![self.project_key(host.fleet.project_id).await?],
            env: env(host)?,
            gpu_devices: Vec::new(),
            token: self
                .tokens
                .of_instance(project, instance)
                .await
                .map_err(no_token)?,
            install_docker: setup.install_docker,
        })
    }

    async fn set_up_gateway(&self, gateway: GatewayRef<'_>) -> Result<ReadyGateway, HostError> {
        let token = self.gateway_token(gateway).await?;
        match gateway.site {
            GatewaySite::Host { host, build, reach } => {
                let foreign = || {
                    HostError::Refused(format!(
                        "{} has an agent that this server has not brought there, which has no gateway",
                        host.instance.name
                    ))
                };
                let build = build.ok_or_else(foreign)?.to_owned();
                self.start_gateway(gateway, reach, &build, token).await?;
                Ok(ReadyGateway {
                    build: Some(build),
                    arch: None,
                    reach: None,
                })
            }
            GatewaySite::Machine { reach } => {
                let delivered = self.deployer.deliver(reach).await.map_err(DeployFailed)?;
                self.start_gateway(gateway, &delivered.reach, &delivered.build, token)
                    .await?;
                self.deployer.clean_machine(&delivered).await;
                Ok(ReadyGateway {
                    build: Some(delivered.build),
                    arch: Some(delivered.arch),
                    reach: Some(delivered.reach),
                })
            }
        }
    }

    async fn start_gateway(
        &self,
        gateway: GatewayRef<'_>,
        reach: &Reach,
        build: &str,
        token: Secret,
    ) -> Result<(), HostError> {
        let deployment = GatewayDeployment {
            reach: reach.clone(),
            build: build.to_owned(),
            token,
            load_balancer_hops: gateway.gateway.configuration.load_balancer_hops(),
        };
        let started = self.deployer.set_up_gateway(&deployment).await;
        Ok(started.map_err(DeployFailed)?)
    }

    async fn gateway_token(&self, gateway: GatewayRef<'_>) -> Result<Secret, HostError> {
        let replica = gateway.replica;
        let token = self.tokens.of_gateway(replica.project_id, replica.id).await;
        token.map_err(no_token)
    }

    /// The public key of a project.
    async fn project_key(&self, project: ProjectId) -> Result<String, HostError> {
        let row = self.database.projects().by_id(project).await;
        let row = row.map_err(|error| HostError::Transient(chain(&error).to_string()))?;
        let row = row.ok_or_else(|| HostError::Refused("the project is gone".to_owned()))?;
        let pair = self.keys.of_project(&row).await;
        let pair = pair.map_err(|error| HostError::Transient(chain(&error).to_string()))?;
        Ok(pair.public.trim_end().to_owned())
    }
}

impl SshHosts {
    /// The next step on the way to a runner that answers in a container.
    async fn container_step(
        &self,
        container: ContainerRef<'_>,
        progress: Option<&Value>,
    ) -> Result<Preparation<Reach>, HostError> {
        let row = container.instance;
        let place = row.job_provisioning_data.as_deref();
        let way = place.and_then(|place| cloud_reach(row.project_id, place));
        let noted = progress.and_then(|noted| serde_json::from_value::<Noted>(noted.clone()).ok());
        // What was noted of another address is of no use, where the cloud has moved the container meanwhile.
        let is_there = |noted: &Noted| {
            let way = way.as_ref();
            way.is_none_or(|way| {
                (&way.host.host, way.host.port) == (&noted.reach.host.host, noted.reach.host.port)
            })
        };
        let noted = noted.filter(is_there);
        let (known, progress) = noted.map(|noted| (noted.reach, noted.progress)).unzip();
        let unknown =
            || HostError::Transient("the cloud has not said yet how the container is reached".to_owned());
        let deployment = ContainerDeployment {
            reach: known.or(way).ok_or_else(unknown)?,
            paths: ContainerPaths::default(),
            runner_port: container.runner_port,
            token: container.token,
        };
        let step = self.deployer.container_step(&deployment, progress).await;
        Ok(match step.map_err(DeployFailed)? {
            ContainerOutcome::Underway { progress, done } => {
                let reach = deployment.reach;
                let noted = Noted { reach, progress };
                Preparation::Underway {
                    progress: serde_json::to_value(noted).unwrap_or_default(),
                    done,
                }
            }
            ContainerOutcome::Ready { reach } => Preparation::Ready(Box::new(reach)),
        })
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The way to a host that was set up: with the host keys that were pinned then.
fn pinned(host: HostRef<'_>) -> Option<Reach> {
    host.instance.agent.as_deref()?.reach().cloned()
}

/// The way to a host that is being set up, with the host keys that were seen.
fn preparation_way(preparation: Option<&Value>) -> Option<Reach> {
    let noted: Noted = serde_json::from_value(preparation?.clone()).ok()?;
    Some(noted.pinned())
}

fn no_token(error: InputsError) -> HostError {
    match error {
        InputsError::Refused(text) => HostError::Refused(text),
        InputsError::Transient(cause) => HostError::Transient(chain(cause.as_ref()).to_string()),
    }
}

/// Variables of the fleet for its hosts.
fn env(host: HostRef<'_>) -> Result<Vec<(String, String)>, HostError> {
    let env = host.fleet.spec.configuration.env.to_map();
    check_env(env.map_err(HostError::Refused)?.into_iter().collect())
}

/// Hosts are their users': none ends itself.
fn check_env(env: Vec<(String, String)>) -> Result<Vec<(String, String)>, HostError> {
    match env
        .iter()
        .find(|(name, _)| name.starts_with("DSTACK_SHIM_SELF_TERMINATE_"))
    {
        None => Ok(env),
        Some((name, _)) => Err(HostError::Refused(format!(
            "{name} would have the host end itself, which is for machines of clouds: take it out of the fleet's `env`"
        ))),
    }
}

impl From<DeployFailed> for HostError {
    fn from(DeployFailed(error): DeployFailed) -> Self {
        match error {
            DeployError::Transient(text) => Self::Transient(text),
            DeployError::Refused(text) => Self::Refused(text),
        }
    }
}

/// How far a host is, and how it is reached: its fleet may be changed meanwhile.
#[derive(Debug, Serialize, Deserialize)]
struct Noted {
    reach: Reach,
    progress: Progress,
}

impl Noted {
    /// The way there, with the host keys that were seen.
    fn pinned(&self) -> Reach {
        let mut reach = self.reach.clone();
        for (hop, key) in reach.hops_mut().zip(&self.progress.host_keys) {
            hop.host_keys = vec![key.clone()];
        }
        reach
    }
}

/// An error of another crate, for the conversion above.
struct DeployFailed(DeployError);

#[async_trait]
impl Hosts for SshHosts {
    async fn prepare(
        &self,
        host: HostRef<'_>,
        needs: JobNeeds,
        progress: Option<&Value>,
    ) -> Result<Preparation, HostError> {
        let step = self.step(host, needs, progress);
        self.slots.step(host.instance.id, step).await
    }

    async fn prepare_container(
        &self,
        container: ContainerRef<'_>,
        progress: Option<&Value>,
    ) -> Result<Preparation<Reach>, HostError> {
        let instance = container.instance.id;
        let step = self.container_step(container, progress);
        self.slots.step(instance, step).await
    }

    async fn greet_machine(&self, reach: &Reach) -> Result<Reach, HostError> {
        Ok(self.deployer.greet(reach).await.map_err(DeployFailed)?)
    }

    async fn prepare_gateway(&self, gateway: GatewayRef<'_>) -> Result<ReadyGateway, HostError> {
        let step = self.set_up_gateway(gateway);
        match gateway.site {
            GatewaySite::Host { host, .. } => self.slots.step(host.instance.id, step).await,
            // Nobody else sets anything up there.
            GatewaySite::Machine { .. } => step.await,
        }
    }

    async fn release_gateway(&self, gateway: GatewayRef<'_>) -> Result<(), HostError> {
        let token = self.gateway_token(gateway).await?;
        let released = self
            .deployer
            .release_gateway(gateway.site.reach(), Some(&token))
            .await;
        Ok(released.map_err(DeployFailed)?)
    }

    async fn release(&self, host: HostRef<'_>, preparation: Option<&Value>) -> Result<(), HostError> {
        let known = pinned(host).or_else(|| preparation_way(preparation));
        let deployment = self.deployment(host, known).await?;
        Ok(self.deployer.release(&deployment).await.map_err(DeployFailed)?)
    }

    async fn has_own_agent(&self, host: HostRef<'_>) -> Result<bool, HostError> {
        let deployment = self.deployment(host, pinned(host)).await?;
        Ok(self.deployer.has_token(&deployment).await.map_err(DeployFailed)?)
    }

    async fn machine(&self, host: HostRef<'_>) -> Result<Option<String>, HostError> {
        let Some(way) = pinned(host) else { return Ok(None) };
        Ok(self.deployer.machine(&way).await.map_err(DeployFailed)?)
    }

    fn build(&self, arch: &str) -> Option<String> {
        let known = locked(&self.builds).get(arch).cloned();
        if known.is_none() {
            locked(&self.builds).insert(arch.to_owned(), None);
            self.find_build(arch);
        }
        known.flatten()
    }

    fn forget(&self, host: HostRef<'_>, preparation: Option<&Value>) {
        self.slots.forget(host.instance.id);
        for reach in pinned(host).into_iter().chain(preparation_way(preparation)) {
            self.deployer.forget(&reach);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fleet_does_not_have_its_hosts_end_themselves() {
        let env = |name: &str| vec![(name.to_owned(), "1".to_owned())];
        assert_eq!(check_env(env("HF_TOKEN")), Ok(env("HF_TOKEN")));
        let refused = check_env(env("DSTACK_SHIM_SELF_TERMINATE_AFTER"));
        assert!(
            matches!(&refused, Err(HostError::Refused(text)) if text.contains("take it out of the fleet's `env`")),
            "{refused:?}"
        );
    }
}
