//! Rows of instances, and the changes of status that they allow.

use dstack_model::fleets::Blocks;
use dstack_model::health::HealthStatus;
use dstack_model::instances::{InstanceStatus, InstanceTerminationReason};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::reach::Reach;
use dstack_model::runs::JobProvisioningData;
use dstack_plan::hosts::{PreparedHost, proxy_host_key};
use dstack_plan::lifecycle::transitions::instance_allowed;
use dstack_plan::lifecycle::{Wait, WaitReason};
use dstack_plan::placement::HostRules;
use dstack_units::{ComputeGroupId, FleetId, InstanceId, JobId, PlacementGroupId, ProjectId, Time};
use serde::{Deserialize, Serialize};

use super::{FleetRow, TransitionError, change_status, life};
use crate::entity::entity;
use crate::{Json, Sealed};

/// How to reach the agents of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum AgentAddress {
    /// The shim that this server runs on its own machine.
    Local {
        /// How jobs are run there: `docker` or `process`.
        runtime: String,
        /// The machine, by the name of the server that runs on it: no other server reaches its agents.
        #[serde(default)]
        host: String,
        /// What the machine's owner allows there.
        #[serde(default)]
        rules: HostRules,
    },
    /// The shim of a host that is reached over SSH, on a port of the host's loopback interface.
    Ssh {
        /// The way there, with the host keys that were pinned when the host was set up.
        reach: Box<Reach>,
        /// TCP port of the shim.
        shim_port: u16,
        /// How jobs are run there: `docker` or `process`.
        runtime: String,
    },
    /// A container of a cloud, made for one job: there is no shim, and the job's runner serves SSH itself.
    Container {
        /// The way there, with the host keys that were pinned when the runner was brought.
        reach: Box<Reach>,
        /// TCP port of the runner on the container's loopback interface.
        runner_port: u16,
        /// The job whose runner it is.
        job: JobId,
    },
}

/// Hosts of users take whatever jobs ask for.
const NO_RULES: &HostRules = &HostRules {
    offered: true,
    containers: true,
    protected_paths: Vec::new(),
    told: None,
};

/// As [`NO_RULES`], where jobs are processes.
const NO_CONTAINERS: &HostRules = &HostRules {
    offered: true,
    containers: false,
    protected_paths: Vec::new(),
    told: None,
};

impl AgentAddress {
    /// What the owner of the machine allows there.
    pub const fn rules(&self) -> &HostRules {
        match self {
            Self::Local { rules, .. } => rules,
            Self::Ssh { runtime, .. } => match runtime.as_bytes() {
                b"process" => NO_CONTAINERS,
                _ => NO_RULES,
            },
            Self::Container { .. } => NO_RULES,
        }
    }

    /// Same, of a machine that has another address now; `None`: it is not reached by one, or is reached there already.
    pub fn moved_to(&self, place: &JobProvisioningData) -> Option<Self> {
        let mut moved = Box::new(self.reach()?.clone());
        moved.host.host = place.hostname.clone()?;
        if let Some(port) = place.ssh_port.and_then(|port| u16::try_from(port).ok()) {
            moved.host.port = port;
        }
        if let (Some(jump), Some(proxy)) = (moved.jumps.last_mut(), &place.ssh_proxy) {
            jump.host.clone_from(&proxy.hostname);
            jump.port = u16::try_from(proxy.port).unwrap_or(jump.port);
            if let Some(key) = proxy_host_key(place) {
                jump.host_keys = vec![key];
            }
        }
        if self.reach() == Some(moved.as_ref()) {
            return None;
        }
        let mut address = self.clone();
        if let Self::Ssh { reach, .. } | Self::Container { reach, .. } = &mut address {
            *reach = moved;
        }
        Some(address)
    }

    /// Same, with what is remembered of the address that the machine had before.
    #[must_use]
    pub fn after(mut self, before: Option<&Self>) -> Self {
        if let Self::Local { rules, .. } = &mut self {
            rules.told = before.and_then(|before| before.rules().told.clone());
        }
        self
    }

    /// Same, remembering that those who govern the project were told of it as it is.
    #[must_use]
    pub fn told_of(mut self) -> Self {
        if let Self::Local { runtime, rules, .. } = &mut self {
            rules.told = Some(runtime.clone());
        }
        self
    }

    /// Whether jobs are processes of the machine, without images and containers.
    pub fn runs_processes(&self) -> bool {
        self.runtime() == "process"
    }

    /// How jobs are run there: `docker` or `process`.
    pub fn runtime(&self) -> &str {
        match self {
            Self::Local { runtime, .. } | Self::Ssh { runtime, .. } => runtime,
            Self::Container { .. } => "docker",
        }
    }

    /// The way to the host, where it is another machine than the server's.
    pub const fn reach(&self) -> Option<&Reach> {
        match self {
            Self::Local { .. } => None,
            Self::Ssh { reach, .. } | Self::Container { reach, .. } => Some(reach),
        }
    }
}

entity! {
    /// A machine on which jobs run: of a cloud, connected over SSH, or the server's own.
    InstanceRow in "instances" {
        /// Id.
        key id: InstanceId,
        /// Project.
        pub project_id: ProjectId,
        /// Fleet.
        pub fleet_id: Option<FleetId>,
        /// `<fleet>-<num>`.
        pub name: String,
        /// Number within the fleet.
        pub instance_num: i64,
        /// When it was created.
        pub created_at: Time,
        /// When its creation was started.
        pub started_at: Option<Time>,
        /// When it ended.
        pub finished_at: Option<Time>,
        /// Status.
        status: InstanceStatus,
        /// Its agent cannot be reached.
        pub unreachable: bool,
        /// Since when, where it is so.
        pub unreachable_since: Option<Time>,
        /// Its cloud will take it away, for this reason (for people): no job is placed there. Unset: it has not said so.
        pub leaving_because: Option<String>,
        /// When it does, if the cloud says so.
        pub leaving_at: Option<Time>,
        /// What tells the machine of a host from all others that run, however it is named; unset: nobody has asked it.
        pub machine: Option<String>,
        /// Health of its GPUs.
        pub health: HealthStatus,
        /// Why it ends or ended.
        termination_reason: Option<InstanceTerminationReason>,
        /// Details of the reason.
        termination_reason_message: Option<String>,
        /// Backend type.
        pub backend: Option<String>,
        /// Region.
        pub region: Option<String>,
        /// Dollars per hour.
        pub price: Option<f64>,
        /// What it offers.
        pub offer: Option<Json<InstanceOfferWithAvailability>>,
        /// How it is reached and what it costs.
        pub job_provisioning_data: Option<Sealed<JobProvisioningData>>,
        /// How its agents are reached.
        pub agent: Option<Json<AgentAddress>>,
        /// Blocks it is divided into.
        pub total_blocks: Option<i64>,
        /// Blocks taken by jobs.
        pub busy_blocks: i64,
        /// When a job left it last.
        pub last_job_processed_at: Option<Time>,
        /// The placement group of its fleet that it is, or is to be, made in.
        pub placement_group_id: Option<PlacementGroupId>,
        /// The compute group with which it is made and removed.
        pub compute_group_id: Option<ComputeGroupId>,
        /// Gone; kept for history.
        pub deleted: bool,
        /// When it was deleted.
        pub deleted_at: Option<Time>,
        /// When the row was changed last.
        pub last_processed_at: Time,
        /// When the engine looks again by itself.
        next_wake_at: Option<Time>,
        /// When the present wait ends badly.
        deadline_at: Option<Time>,
        /// What it waits for, in words.
        waiting_for: Option<WaitReason>,
    }
}

life!(InstanceRow, InstanceStatus);

impl InstanceRow {
    /// A new instance of a fleet: nothing is known of it yet, and nothing waits for it.
    pub fn pending(id: InstanceId, fleet: &FleetRow, num: i64, now: Time) -> Self {
        Self {
            id,
            project_id: fleet.project_id,
            fleet_id: Some(fleet.id),
            name: format!("{}-{num}", fleet.name),
            instance_num: num,
            created_at: now,
            started_at: None,
            finished_at: None,
            status: InstanceStatus::Pending,
            unreachable: false,
            unreachable_since: None,
            leaving_because: None,
            leaving_at: None,
            machine: None,
            health: HealthStatus::Healthy,
            termination_reason: None,
            termination_reason_message: None,
            backend: None,
            region: None,
            price: None,
            offer: None,
            job_provisioning_data: None,
            agent: None,
            total_blocks: None,
            busy_blocks: 0,
            last_job_processed_at: None,
            placement_group_id: None,
            compute_group_id: None,
            deleted: false,
            deleted_at: None,
            last_processed_at: now,
            next_wake_at: None,
            deadline_at: None,
            waiting_for: None,
            version: 0,
        }
    }

    /// A new instance of a fleet in clouds, that the fleet wants for itself: offers are looked for.
    pub fn wanted(id: InstanceId, fleet: &FleetRow, num: i64, now: Time) -> Self {
        Self {
            total_blocks: match fleet.spec.configuration.blocks {
                // Depends on what is made.
                Blocks::Auto => None,
                Blocks::Count(blocks) => Some(blocks),
            },
            next_wake_at: Some(now),
            waiting_for: Some(WaitReason::CloudsAsked),
            ..Self::pending(id, fleet, num, now)
        }
    }

    /// With what it offers, at its place and price.
    #[must_use]
    pub fn offering(self, offer: InstanceOfferWithAvailability, place: JobProvisioningData) -> Self {
        Self {
            backend: Some(offer.backend.to_string()),
            region: Some(offer.region.to_string()),
            price: Some(offer.price),
            offer: Some(Json::new(offer)),
            job_provisioning_data: Some(Sealed::new(place)),
            ..self
        }
    }

    /// Why it ends or ended.
    pub const fn termination_reason(&self) -> Option<InstanceTerminationReason> {
        self.termination_reason
    }

    /// Details of the reason.
    pub fn termination_reason_message(&self) -> Option<&str> {
        self.termination_reason_message.as_deref()
    }

    fn go(&mut self, to: InstanceStatus) -> Result<(), TransitionError> {
        change_status(("instance", &self.id), &mut self.status, to, instance_allowed)
    }

    /// A cloud has made it, and its agent is to answer.
    ///
    /// # Errors
    /// The status must not follow the present one; nothing is changed.
    pub fn provision(&mut self, now: Time) -> Result<(), TransitionError> {
        self.go(InstanceStatus::Provisioning)?;
        self.started_at = Some(now);
        self.wake_at(now);
        Ok(())
    }

    /// Its agent answers: it is idle, or busy where jobs were waiting for it.
    ///
    /// # Errors
    /// As [`InstanceRow::provision`].
    pub fn make_ready(&mut self, status: InstanceStatus) -> Result<(), TransitionError> {
        self.go(status)?;
        self.wait(Wait::none());
        Ok(())
    }

    /// The host of a fleet is set up: its agent answers, and this is what it has.
    ///
    /// # Errors
    /// As [`InstanceRow::provision`].
    pub fn host_ready(
        &mut self,
        host: PreparedHost,
        agent: AgentAddress,
        now: Time,
    ) -> Result<(), TransitionError> {
        self.make_ready(InstanceStatus::Idle)?;
        *self = Self {
            agent: Some(Json::new(agent)),
            total_blocks: Some(host.total_blocks),
            started_at: Some(now),
            ..self.clone().offering(host.offer, host.place)
        };
        Ok(())
    }

    /// The host of a fleet, which is in use, was set up again: its agent is reached so, and this is what it has, if that counts.
    pub fn host_ready_again(&mut self, host: Option<PreparedHost>, agent: AgentAddress) {
        self.agent = Some(Json::new(agent));
        if let Some(host) = host {
            self.total_blocks = Some(host.total_blocks);
            *self = self.clone().offering(host.offer, host.place);
        }
    }

    /// A job takes this many blocks.
    ///
    /// # Errors
    /// As [`InstanceRow::provision`].
    pub fn occupy(&mut self, blocks: i64, now: Time) -> Result<(), TransitionError> {
        self.go(InstanceStatus::Busy)?;
        self.busy_blocks += blocks;
        self.last_processed_at = now;
        Ok(())
    }

    /// A job gives this many blocks back. The last one leaves it idle, unless it is being ended.
    pub fn release(&mut self, blocks: i64, now: Time) {
        self.busy_blocks = (self.busy_blocks - blocks).max(0);
        self.last_job_processed_at = Some(now);
        if self.busy_blocks == 0 && self.status == InstanceStatus::Busy {
            self.status = InstanceStatus::Idle;
        }
    }

    /// Begins to end.
    ///
    /// # Errors
    /// As [`InstanceRow::provision`].
    pub fn terminate(
        &mut self,
        reason: InstanceTerminationReason,
        message: Option<String>,
        now: Time,
    ) -> Result<(), TransitionError> {
        self.go(InstanceStatus::Terminating)?;
        self.termination_reason = Some(reason);
        self.termination_reason_message = message;
        self.last_processed_at = now;
        self.wait(Wait::briefly(now, WaitReason::InstanceEnded));
        Ok(())
    }

    /// Nothing was made for it. It is shown with the reason, until whoever wanted it decides what to do.
    ///
    /// # Errors
    /// As [`InstanceRow::provision`].
    pub fn give_up(
        &mut self,
        reason: InstanceTerminationReason,
        message: String,
    ) -> Result<(), TransitionError> {
        self.go(InstanceStatus::Terminated)?;
        self.termination_reason = Some(reason);
        self.termination_reason_message = Some(message);
        self.wait(Wait::none());
        Ok(())
    }

    /// Nothing of it is left, and it is not shown any more; whatever else was known of it stays for history.
    ///
    /// # Errors
    /// As [`InstanceRow::provision`].
    pub fn finish(&mut self, now: Time) -> Result<(), TransitionError> {
        self.go(InstanceStatus::Terminated)?;
        self.busy_blocks = 0;
        self.finished_at = Some(now);
        self.delete(now);
        self.wait(Wait::none());
        Ok(())
    }

    /// Is not shown any more.
    pub fn delete(&mut self, now: Time) {
        self.deleted = true;
        self.deleted_at = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use dstack_model::reach::Hop;
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_container_is_stored_with_its_job_and_followed_to_another_address() {
        let reach = Reach {
            jumps: Vec::new(),
            host: Hop {
                host: "10.0.0.1".to_owned(),
                port: 10_022,
                user: "root".to_owned(),
                keys: Vec::new(),
                host_keys: vec!["ssh-ed25519 AAAA".to_owned()],
            },
        };
        let job = JobId::from(Uuid::from_u128(7));
        let address = AgentAddress::Container {
            reach: Box::new(reach),
            runner_port: 10_999,
            job,
        };
        let stored = serde_json::to_value(&address).unwrap();
        assert_eq!(
            (&stored["kind"], &stored["runner_port"]),
            (&json!("container"), &json!(10_999))
        );
        assert_eq!(serde_json::from_value::<AgentAddress>(stored).unwrap(), address);
        let place = |host: &str, port: i64| -> JobProvisioningData {
            let place = json!({"backend": "runpod", "instance_type": {"name": "x", "resources": {"cpus": 1,
                "memory_mib": 1, "gpus": [], "spot": false}}, "instance_id": "i", "hostname": host, "region": "here",
                "price": 1.0, "username": "root", "ssh_port": port, "dockerized": false});
            serde_json::from_value(place).unwrap()
        };
        assert_eq!(address.moved_to(&place("10.0.0.1", 10_022)), None);
        let moved = address.moved_to(&place("10.0.0.2", 22)).unwrap();
        let way = moved.reach().unwrap();
        assert_eq!((way.host.host.as_str(), way.host.port), ("10.0.0.2", 22));
        assert_eq!(way.host.host_keys, ["ssh-ed25519 AAAA"]);
        assert!(matches!(moved, AgentAddress::Container { job: of, .. } if of == job));

        let AgentAddress::Container { mut reach, .. } = address else {
            panic!("it is a container");
        };
        reach.jumps = vec![Hop {
            host: "192.0.2.1".to_owned(),
            port: 30_001,
            ..reach.host.clone()
        }];
        let behind = AgentAddress::Container {
            reach,
            runner_port: 10_999,
            job,
        };
        let mut place = place("10.0.0.1", 10_022);
        let proxy = json!({"hostname": "192.0.2.2", "username": "root", "port": 30_002});
        place.ssh_proxy = Some(serde_json::from_value(proxy).unwrap());
        place.backend_data = Some(json!({"ssh_proxy_host_key": "ssh-ed25519 BBBB"}).to_string());
        let moved = behind.moved_to(&place).unwrap();
        let jump = &moved.reach().unwrap().jumps[0];
        assert_eq!((jump.host.as_str(), jump.port), ("192.0.2.2", 30_002));
        assert_eq!(jump.host_keys, ["ssh-ed25519 BBBB"]);
        assert_eq!(moved.moved_to(&place), None);
    }
}
