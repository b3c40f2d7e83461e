//! Where a job of a service listens, as this server gets there.

use dstack_agent_api::shim::RUNNER_SSH_PORT;
use dstack_model::common::NetworkMode;
use dstack_model::reach::{Hop, KeyRef, Reach};
use dstack_model::runs::JobRuntimeData;
use dstack_store::rows::AgentAddress;
use dstack_units::ProjectId;

/// A port of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ServicePort {
    /// On this machine.
    Here(u16),
    /// On the loopback interface at the end of this way: of a host, or of a container that has an SSH server of its own.
    Through(Reach, u16),
}

/// A port of a job of a project, as it is connected to.
///
/// # Errors
/// It is not known how the job's container is reached.
pub(super) fn service_port(
    address: &AgentAddress,
    project: ProjectId,
    runtime: Option<&JobRuntimeData>,
    port: u16,
) -> Result<ServicePort, &'static str> {
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
        keys: vec![KeyRef::Project { project }],
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use uuid::Uuid;

    use super::*;

    fn hop(host: &str) -> Hop {
        Hop {
            host: host.to_owned(),
            port: 22,
            user: "me".to_owned(),
            keys: Vec::new(),
            host_keys: Vec::new(),
        }
    }

    fn way() -> Reach {
        Reach {
            jumps: vec![hop("jump")],
            host: hop("host"),
        }
    }

    fn host(runtime: &str) -> AgentAddress {
        AgentAddress::Ssh {
            reach: Box::new(way()),
            shim_port: 10_998,
            runtime: runtime.to_owned(),
        }
    }

    fn machine(runtime: &str) -> AgentAddress {
        AgentAddress::Local {
            runtime: runtime.to_owned(),
            host: "server".to_owned(),
            rules: Default::default(),
        }
    }

    fn runtime(network_mode: NetworkMode, ssh: Option<u16>) -> JobRuntimeData {
        JobRuntimeData {
            network_mode,
            gpu: None,
            cpu: None,
            memory: None,
            ports: ssh.map(|port| BTreeMap::from([(RUNNER_SSH_PORT, port)])),
            volume_names: None,
            offer: None,
            working_dir: None,
            username: None,
        }
    }

    fn port(address: &AgentAddress, runtime: &JobRuntimeData) -> Result<ServicePort, &'static str> {
        service_port(address, Uuid::nil().into(), Some(runtime), 8000)
    }

    #[test]
    fn jobs_that_share_the_network_are_reached_as_their_agents_are() {
        let shared = runtime(NetworkMode::Host, None);
        let of_host = Ok(ServicePort::Through(way(), 8000));
        assert_eq!(port(&host("docker"), &shared), of_host);
        assert_eq!(
            port(&host("process"), &runtime(NetworkMode::Bridge, None)),
            of_host
        );
        assert_eq!(port(&machine("process"), &shared), Ok(ServicePort::Here(8000)));
        let container = AgentAddress::Container {
            reach: Box::new(way()),
            runner_port: 10_999,
            job: Uuid::nil().into(),
        };
        assert_eq!(port(&container, &runtime(NetworkMode::Bridge, Some(5))), of_host);
    }

    #[test]
    fn containers_with_a_network_of_their_own_are_reached_through_their_own_ssh_server() {
        let own = runtime(NetworkMode::Bridge, Some(32_768));
        let through = |address: &AgentAddress| match port(address, &own) {
            Ok(ServicePort::Through(reach, 8000)) => reach,
            other => panic!("{other:?}"),
        };
        let names = |reach: &Reach| -> Vec<(String, u16)> {
            let hops = reach.hops();
            hops.map(|hop| (hop.host.clone(), hop.port)).collect()
        };
        let container = ("127.0.0.1".to_owned(), 32_768);
        let on_host = through(&host("docker"));
        assert_eq!(
            names(&on_host),
            [
                ("jump".to_owned(), 22),
                ("host".to_owned(), 22),
                container.clone()
            ]
        );
        assert_eq!(on_host.host.user, "root");
        assert_eq!(names(&through(&machine("docker"))), [container]);
        // Never a port of the host itself.
        let unknown = runtime(NetworkMode::Bridge, None);
        assert!(port(&host("docker"), &unknown).is_err());
    }
}
