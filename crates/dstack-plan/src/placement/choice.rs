//! The instance that is taken.

use dstack_model::common::NetworkMode;
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::JobRuntimeData;
use dstack_units::{FleetId, InstanceId, Memory};

/// When a job that has an instance to itself gets its network (`DSTACK_SERVER_JOB_NETWORK_MODE` of dstack 0.22.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HostNetwork {
    /// 1: when it is a node of several.
    Multinode,
    /// 2: always.
    #[default]
    WholeInstance,
    /// 3: never.
    Never,
}

impl HostNetwork {
    /// By the number that the variable has; `None`: there is no such rule.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Multinode),
            2 => Some(Self::WholeInstance),
            3 => Some(Self::Never),
            _ => None,
        }
    }

    const fn allows(self, multinode: bool) -> bool {
        match self {
            Self::Multinode => multinode,
            Self::WholeInstance => true,
            Self::Never => false,
        }
    }
}

/// The existing instance that takes a job, and the job's share of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// Fleet of the instance.
    pub fleet_id: FleetId,
    /// Instance that takes the job.
    pub instance_id: InstanceId,
    /// The job's share of it.
    pub offer: InstanceOfferWithAvailability,
    /// Takes the whole instance.
    pub whole: bool,
    /// This very machine.
    pub local: bool,
}

impl Choice {
    /// What the job's row records of its place. On this very machine the network is never the host's, so that a job's
    /// ports cannot clash with those of the server or of another program.
    pub fn runtime_data(&self, rule: HostNetwork, multinode: bool) -> JobRuntimeData {
        let share = &self.offer.instance.resources;
        let limited = !self.whole;
        JobRuntimeData {
            network_mode: if self.whole && !self.local && rule.allows(multinode) {
                NetworkMode::Host
            } else {
                NetworkMode::Bridge
            },
            gpu: limited.then_some(i64::try_from(share.gpus.len()).unwrap_or(0)),
            cpu: limited.then_some(to_f64(share.cpus)),
            memory: limited.then_some(Memory::from_mib(to_f64(share.memory_mib))),
            ports: None,
            volume_names: None,
            offer: Some(self.offer.clone()),
            working_dir: None,
            username: None,
        }
    }
}

#[allow(clippy::cast_precision_loss)] // sizes of machines
const fn to_f64(value: i64) -> f64 {
    value as f64
}
