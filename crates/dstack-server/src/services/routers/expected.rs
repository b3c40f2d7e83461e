//! What the router of a service should have, as the database says.

use std::collections::HashMap;
use std::sync::Arc;

use dstack_agent_api::http::Connector;
use dstack_model::runs::JobProvisioningData;
use dstack_plan::services::routers::{Wanted, router_group};
use dstack_store::rows::{InstanceRow, JobRow};
use dstack_store::{Database, StoreError};
use dstack_units::{InstanceId, JobId, RunId};

use super::super::ports::Reachable;

/// A running job of the service.
#[derive(Debug, Clone)]
pub(super) struct Replica {
    pub(super) job: JobId,
    /// Reaches the port of the service there.
    pub(super) connector: Arc<dyn Connector>,
    /// Host and port, as routers reach it; `None`: its instance has no address.
    pub(super) address: Option<String>,
}

/// What runs of a service.
#[derive(Debug, Clone, Default)]
pub(super) struct Expected {
    /// Replicas of the router; two while one takes the other's place.
    pub(super) routers: Vec<Replica>,
    /// Those of all other groups.
    pub(super) workers: Vec<Replica>,
}

impl Expected {
    /// As it is compared.
    pub(super) fn wanted(&self) -> Vec<Wanted> {
        let wanted = |worker: &Replica| {
            Some(Wanted {
                job: worker.job,
                address: worker.address.clone()?,
            })
        };
        self.workers.iter().filter_map(wanted).collect()
    }

    pub(super) fn worker(&self, job: JobId) -> Option<&Replica> {
        self.workers.iter().find(|worker| worker.job == job)
    }
}

/// Reads it; nothing, where the service has no router any more.
///
/// Whether a replica is ready does not matter: a router may be ready only once it has workers.
pub(super) async fn read(database: &Database, ports: &Reachable, run: RunId) -> Result<Expected, StoreError> {
    let listed = database.views().runs(&[run]).await?;
    let service = listed
        .first()
        .and_then(|listed| listed.run.run_spec.configuration.service());
    let Some(router) = service.and_then(router_group) else {
        return Ok(Expected::default());
    };
    let mut jobs = database.services().running_jobs(run).await?;
    // Of a replica of several nodes, the first one answers.
    jobs.retain(|job| job.job_num == 0);
    let ids: Vec<InstanceId> = jobs.iter().filter_map(|job| job.instance_id).collect();
    let instances = match ids.is_empty() {
        true => Vec::new(),
        false => database.services().instances(&ids).await?,
    };
    let instances: HashMap<InstanceId, InstanceRow> =
        instances.into_iter().map(|row| (row.id, row)).collect();
    let mut expected = Expected::default();
    for job in &jobs {
        let instance = job.instance_id.and_then(|id| instances.get(&id));
        let Some(replica) = replica(ports, job, instance) else {
            continue;
        };
        match router.name.as_deref() == Some(job.job_spec.replica_group.as_str()) {
            true => expected.routers.push(replica),
            false => expected.workers.push(replica),
        }
    }
    Ok(expected)
}

fn replica(ports: &Reachable, job: &JobRow, instance: Option<&InstanceRow>) -> Option<Replica> {
    let port = job.job_spec.service_port?;
    let place = job.job_provisioning_data.as_deref();
    Some(Replica {
        job: job.id,
        connector: ports.connector(instance.and_then(|row| row.agent.as_deref()), job, port),
        address: place.and_then(host).map(|host| format!("{host}:{port}")),
    })
}

/// Where routers reach a job: at its internal address, else at the public one (dstack 0.22.5's choice).
fn host(place: &JobProvisioningData) -> Option<String> {
    let known = |address: &&String| !address.is_empty();
    let internal = place.internal_ip.as_ref().filter(known);
    let host = internal.or_else(|| place.hostname.as_ref().filter(known))?;
    Some(match host.contains(':') {
        true => format!("[{host}]"),
        false => host.clone(),
    })
}
