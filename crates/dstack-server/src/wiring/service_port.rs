//! Where a job of a service listens, as this server gets there.

use dstack_agent_api::shim::RUNNER_SSH_PORT;
use dstack_model::common::NetworkMode;
use dstack_model::reach::{Hop, KeyRef, Reach};
use dstack_store::rows::{AgentAddress, JobRow};

/// A port of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ServicePort {
    /// On this machine.
    Here(u16),
    /// On the loopback interface at the end of this way: of a host, or of a container that has an SSH server of its own.
    Through(Reach, u16),
}

/// A port of a job, as it is connected to.
///
/// # Errors
/// It is not known how the job's container is reached.
pub(super) fn service_port(
    address: &AgentAddress,
    job: &JobRow,
    port: u16,
) -> Result<ServicePort, &'static str> {
    let runtime = job.job_runtime_data.as_deref();
    let shares_network = runtime.is_none_or(|runtime| runtime.network_mode == NetworkMode::Host);
    if address.runs_processes() || shares_network || matches!(address, AgentAddress::Container { .. }) {
        return Ok(match address.reach() {
            Some(reach) => ServicePort::Through(reach.clone(), port),
            None => ServicePort::Here(port),
        });
    }
    // Not the port of the same number on the host: another job may have its SSH server there.
    let mapped = runtime.and_then(|runtime| runtime.ports.as_ref()?.get(&RUNNER_SSH_PORT).copied());
    let mapped = mapped.ok_or("the ports of the job's container are not known")?;
    let user = runtime.and_then(|runtime| runtime.username.clone());
    let container = Hop {
        host: "127.0.0.1".to_owned(),
        port: mapped,
        user: user.unwrap_or_else(|| "root".to_owned()),
        keys: vec![KeyRef::Project {
            project: job.project_id,
        }],
        // It is made with the container, and nobody has told it.
        host_keys: Vec::new(),
    };
    let jumps = address.reach().map(|reach| reach.hops().cloned().collect());
    let reach = Reach {
        jumps: jumps.unwrap_or_default(),
        host: container,
    };
    Ok(ServicePort::Through(reach, port))
}
