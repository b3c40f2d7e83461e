//! Where a job of a service listens, as this server gets there.

use dstack_agent_api::shim::RUNNER_SSH_PORT;
use dstack_model::common::NetworkMode;
use dstack_model::reach::{Hop, KeyRef, Reach};
use dstack_store::rows::{AgentAddress, JobRow};

/// A port of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ServicePort {
    /// On the loopback interface of where the job's agents are.
    OfHost(u16),
    /// On the loopback interface of the job's container, which has an SSH server of its own.
    OfContainer(Reach, u16),
}

/// A port of a job, as it is connected to.
pub(super) fn service_port(address: &AgentAddress, job: &JobRow, port: u16) -> ServicePort {
    let runtime = job.job_runtime_data.as_deref();
    let shares_network = runtime.is_none_or(|runtime| runtime.network_mode == NetworkMode::Host);
    if address.runs_processes() || shares_network || matches!(address, AgentAddress::Container { .. }) {
        return ServicePort::OfHost(port);
    }
    let mapped = runtime.and_then(|runtime| runtime.ports.as_ref()?.get(&RUNNER_SSH_PORT).copied());
    let user = runtime.and_then(|runtime| runtime.username.clone());
    let container = Hop {
        host: "127.0.0.1".to_owned(),
        port: mapped.unwrap_or(RUNNER_SSH_PORT),
        user: user.unwrap_or_else(|| "root".to_owned()),
        keys: vec![KeyRef::Project {
            project: job.project_id,
        }],
        // It is made with the container; whoever is on the host could answer in its stead anyway.
        host_keys: Vec::new(),
    };
    let jumps = address.reach().map(|reach| reach.hops().cloned().collect());
    ServicePort::OfContainer(
        Reach {
            jumps: jumps.unwrap_or_default(),
            host: container,
        },
        port,
    )
}
