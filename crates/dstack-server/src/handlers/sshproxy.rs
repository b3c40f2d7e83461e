//! How the SSH proxy reaches a job: host by host, with a key for each, and who may come in.

use std::collections::BTreeSet;

use dstack_agent_api::shim::RUNNER_SSH_PORT;
use dstack_api::routes;
use dstack_hosts::pool::Keyring as _;
use dstack_model::reach::{Hop, KeyRef};
use dstack_model::requests::{GetUpstreamRequest, GetUpstreamResponse, UpstreamHost};
use dstack_model::runs::JobStatus;
use dstack_store::rows::{AgentAddress, JobRow, RunRow};
use dstack_store::{EngineStore as _, JobSnapshot};
use dstack_units::JobId;

use crate::api::{Api, Call};
use crate::error::{ApiError, Result};
use crate::state::Data;
use crate::wiring::DatabaseKeyring;

pub(super) fn routes(api: Api) -> Api {
    api.on::<routes::SshProxyGetUpstream, _, _>(get_upstream)
}

async fn get_upstream(call: Call, request: GetUpstreamRequest) -> Result<GetUpstreamResponse> {
    let id: JobId = request.id.parse().map_err(|_| ApiError::not_exists())?;
    let data = &call.state.data;
    let found = data.store().job(id).await?;
    let running = found.filter(|found| found.job.status() == JobStatus::Running);
    let snapshot = running.ok_or_else(ApiError::not_exists)?;
    Ok(GetUpstreamResponse {
        hosts: way(data, &snapshot).await?,
        authorized_keys: authorized_keys(data, &snapshot.run).await?,
    })
}

/// The hosts on the way, the job's container last.
async fn way(data: &Data, snapshot: &JobSnapshot) -> Result<Vec<UpstreamHost>> {
    let address = snapshot.instance.as_ref().and_then(|row| row.agent.as_deref());
    // Jobs on the server's own machine listen on its loopback interface: the proxy may be anywhere.
    let hops = address.and_then(hosts_before).ok_or_else(ApiError::not_exists)?;
    let last = container(&snapshot.job).ok_or_else(ApiError::not_exists)?;
    let keyring = DatabaseKeyring::new(data.database.clone(), data.encryption.clone(), data.keys.clone());
    let mut hosts = Vec::new();
    for hop in hops.into_iter().chain(std::iter::once(&last)) {
        let mut private_key = None;
        for key in &hop.keys {
            private_key = keyring.private_key(key).await.map_err(ApiError::internal)?;
            if private_key.is_some() {
                break;
            }
        }
        hosts.push(UpstreamHost {
            host: hop.host.clone(),
            port: hop.port.into(),
            user: hop.user.clone(),
            private_key: private_key.ok_or_else(ApiError::not_exists)?.expose().to_owned(),
        });
    }
    Ok(hosts)
}

/// The SSH servers before that of the job, which a container of a cloud has itself; `None`: not reached over SSH.
fn hosts_before(address: &AgentAddress) -> Option<Vec<&Hop>> {
    let reach = address.reach()?;
    Some(match address {
        AgentAddress::Container { .. } => reach.jumps.iter().collect(),
        _ => reach.hops().collect(),
    })
}

/// The SSH server in the job, as seen from its host.
fn container(job: &JobRow) -> Option<Hop> {
    let place = job.job_provisioning_data.as_deref()?;
    let runtime = job.job_runtime_data.as_deref();
    let mapped = runtime.and_then(|runtime| runtime.ports.as_ref()?.get(&RUNNER_SSH_PORT).copied());
    let (host, port) = match place.dockerized {
        true => ("localhost".to_owned(), mapped.unwrap_or(RUNNER_SSH_PORT)),
        false => (place.hostname.clone()?, u16::try_from(place.ssh_port?).ok()?),
    };
    let named = job.job_spec.user.as_ref().and_then(|user| user.username.clone());
    let user = runtime.and_then(|runtime| runtime.username.clone()).or(named);
    Some(Hop {
        host,
        port,
        user: user.unwrap_or_else(|| "root".to_owned()),
        keys: vec![KeyRef::Project {
            project: job.project_id,
        }],
        host_keys: Vec::new(),
    })
}

/// Keys of the run's owner: uploaded ones, that of the run, and the one that the server made.
async fn authorized_keys(data: &Data, run: &RunRow) -> Result<Vec<String>> {
    let users = data.database.users();
    let mut keys: BTreeSet<String> = users
        .public_keys(run.user_id)
        .await?
        .into_iter()
        .map(|row| row.key.trim().to_owned())
        .collect();
    keys.extend(
        run.run_spec
            .ssh_key_pub
            .as_deref()
            .map(|key| key.trim().to_owned()),
    );
    if let Some(owner) = users.by_id(run.user_id).await? {
        keys.extend(owner.ssh_public_key.map(|key| key.trim().to_owned()));
    }
    Ok(keys.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use dstack_model::reach::Reach;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_container_of_a_cloud_is_passed_once() {
        let hop = |host: &str| Hop {
            host: host.to_owned(),
            port: 22,
            user: "root".to_owned(),
            keys: Vec::new(),
            host_keys: Vec::new(),
        };
        let reach = Box::new(Reach {
            jumps: vec![hop("jump")],
            host: hop("last"),
        });
        let names = |address: &AgentAddress| -> Vec<String> {
            let hops = hosts_before(address).unwrap();
            hops.into_iter().map(|hop| hop.host.clone()).collect()
        };
        let host = AgentAddress::Ssh {
            reach: reach.clone(),
            shim_port: 10998,
            runtime: "docker".to_owned(),
        };
        assert_eq!(names(&host), ["jump", "last"]);
        let container = AgentAddress::Container {
            reach,
            runner_port: 10999,
            job: Uuid::nil().into(),
        };
        assert_eq!(names(&container), ["jump"]);
    }
}
