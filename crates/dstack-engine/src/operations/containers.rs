//! Containers of clouds, each for one job: what is asked of the cloud, and how the job's runner comes there.
//!
//! What runs in a container is put together when the cloud is called, of the job as it is then: image, login of its registry and
//! keys stand in no operation.

use dstack_agent_api::shim::RUNNER_HTTP_PORT;
use dstack_compute::{
    Backend, ComputeError, Container, ContainerRequest, Known, Lifecycle, Marks, MountedFolder,
    MountedVolume, RegistryLogin, Removal, Step as Progress, Workload,
};
use dstack_model::configurations::MountPoint;
use dstack_model::instances::InstanceRuntime;
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_model::reach::Reach;
use dstack_model::runs::{JobProvisioningData, JobSpec};
use dstack_plan::bootstrap::Bootstrap;
use dstack_store::rows::{AgentAddress, OperationKind, OperationRow, OperationState};
use dstack_store::{EntityRef, InstanceSnapshot, JobSnapshot};
use dstack_system::{Secret, chain};
use dstack_units::JobId;
use serde::{Deserialize, Serialize};

use super::clouds::OperationJournal;
use super::hosts::{self, STEP_LIMIT, end, given_up, in_time, stepped};
use super::instances::NotAsked;
use super::preparation::{Notes, Underway};
use super::{Step, claims, last_of};
use crate::Result;
use crate::context::Context;
use crate::hosts::{ContainerRef, HostError, Preparation};
use crate::inputs::{Image, InputsError};
use crate::job_volumes::{kept, not_attached};

/// Whether an offer is of containers, and not of machines.
pub(crate) fn is_offered(offer: &Offer) -> bool {
    offer.instance_runtime == InstanceRuntime::Runner
}

/// Whether an instance is a container, and not a machine.
pub(crate) fn is_made(snapshot: &InstanceSnapshot) -> bool {
    snapshot.instance.offer.as_deref().is_some_and(is_offered)
}

/// The backend makes the next piece of a container.
pub(super) async fn ensure(
    journal: &OperationJournal<'_>,
    cloud: &dyn Backend,
    request: &ContainerRequest,
) -> Result<Progress<JobProvisioningData>, ComputeError> {
    let containers = containers_of(cloud).ok_or(NOT_MADE)?;
    journal.ensure(containers, request).await
}

/// Removes what was made for an offer that does not work.
pub(super) async fn clear(
    journal: &OperationJournal<'_>,
    cloud: &dyn Backend,
    marks: Marks,
    offer: &Offer,
) -> Result<Removal, ComputeError> {
    let containers = containers_of(cloud).ok_or(ComputeError::Unsupported("to remove containers"))?;
    let known = Known {
        marks,
        site: offer.region.to_string(),
        place: None,
    };
    journal.remove(containers, &known).await
}

const NOT_MADE: ComputeError = ComputeError::Unsupported("to make containers");

pub(super) fn containers_of(backend: &dyn Backend) -> Option<&dyn Lifecycle<Container>> {
    backend.containers()
}

/// What the cloud is asked for, with all that the job needs.
pub(super) async fn request(
    ctx: &Context,
    snapshot: &InstanceSnapshot,
    marks: Marks,
    offer: Offer,
) -> Result<ContainerRequest, NotAsked> {
    let job = with_volumes(ctx, snapshot, job_of(ctx, snapshot).await?, &offer).await?;
    let inputs = ctx
        .deps
        .inputs
        .machine(&snapshot.instance, snapshot.fleet.as_ref());
    let owner = inputs.await?.owner;
    let image = ctx.deps.inputs.image(&job, false).await?;
    let keys = ctx.deps.inputs.ssh_keys(&job).await?.container;
    let spec = &job.job.job_spec;
    let volumes = volumes(&job)?;
    Ok(ContainerRequest {
        marks,
        owner,
        offer,
        requirements: spec.requirements.clone(),
        workload: workload(spec, image, &keys, volumes),
    })
}

/// The job with its network volumes. They are taken when its container is asked for; those of a job that has waited since before
/// this was so are taken now.
async fn with_volumes(
    ctx: &Context,
    snapshot: &InstanceSnapshot,
    job: JobSnapshot,
    offer: &Offer,
) -> Result<JobSnapshot, NotAsked> {
    if !job.job.mounts_volumes() || !job.attachments.is_empty() {
        return Ok(job);
    }
    claims::take_late(ctx, (&snapshot.instance, &job.job), offer).await?;
    Ok(job_of(ctx, snapshot).await?)
}

/// The network volumes that were chosen for the job when it got its container.
fn volumes(job: &JobSnapshot) -> Result<Vec<MountedVolume>, InputsError> {
    let kept = kept(&job.job.job_spec, &job.attachments);
    let kept = kept.map_err(|error| InputsError::Refused(not_attached(&error)))?;
    let mounted = kept.into_iter().map(|(row, path)| MountedVolume {
        name: row.name.clone(),
        volume: (*row.volume).clone(),
        path: path.to_owned(),
    });
    Ok(mounted.collect())
}

/// The job that the container is made for: a container runs one, and ends with it.
async fn job_of(ctx: &Context, snapshot: &InstanceSnapshot) -> Result<JobSnapshot, InputsError> {
    let of_nobody = || InputsError::Refused("a container is made for a job, and not for a fleet".to_owned());
    let mut jobs = snapshot.jobs.iter();
    let job = jobs.find(|job| !job.status().is_finished());
    let id = job.ok_or_else(of_nobody)?.id;
    ctx.deps.store.job(id).await?.ok_or_else(of_nobody)
}

fn workload(spec: &JobSpec, image: Image, keys: &[String], volumes: Vec<MountedVolume>) -> Workload {
    let shm = spec.requirements.resources.shm_size.as_ref();
    let is_servers = image.are_credentials_servers;
    Workload {
        image: image.name,
        registry: image.credentials.map(|(username, password)| RegistryLogin {
            username,
            password,
            is_servers,
        }),
        script: Bootstrap::new(keys.to_vec()).script(),
        authorized_keys: keys.iter().map(|key| without_comment(key)).collect(),
        privileged: spec.privileged,
        shm_mib: shm.map(|size| mebibytes(size.gb())),
        volumes,
        folders: spec.volumes.iter().flatten().filter_map(folder).collect(),
    }
}

/// A public key as `type base64`.
fn without_comment(key: &str) -> String {
    key.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}

fn folder(mount: &MountPoint) -> Option<MountedFolder> {
    match mount {
        MountPoint::Instance(mount) => Some(MountedFolder {
            node_path: mount.instance_path.clone(),
            path: mount.path.clone(),
            optional: mount.optional,
        }),
        MountPoint::Volume(_) => None,
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // gigabytes of a machine fit by far, and are not negative
fn mebibytes(gigabytes: f64) -> u64 {
    (gigabytes * 1024.0) as u64
}

/// A container whose runner answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadyContainer {
    /// The way there, with the host keys that were seen.
    reach: Reach,
    /// TCP port of the runner on the container's loopback interface.
    runner_port: u16,
    /// Whose runner it is.
    job: JobId,
}

impl ReadyContainer {
    /// What the preparation of a container has brought.
    pub fn of(snapshot: &InstanceSnapshot) -> Option<Self> {
        let operation = last_of(&snapshot.operations, OperationKind::Prepare)?;
        let done = Some(operation).filter(|operation| operation.state == OperationState::Done)?;
        match Notes::read(done) {
            Some(Notes::Container(ready)) => Some(ready),
            _ => None,
        }
    }

    /// How the runner is reached from now on.
    pub fn address(self) -> AgentAddress {
        AgentAddress::Container {
            reach: Box::new(self.reach),
            runner_port: self.runner_port,
            job: self.job,
        }
    }
}

/// One step on the way to a container whose runner answers.
pub(super) async fn prepare(
    ctx: &Context,
    snapshot: &InstanceSnapshot,
    operation: OperationRow,
) -> Result<Step> {
    let row = &snapshot.instance;
    if !row.status().is_active() {
        return given_up(ctx, operation, "no longer wanted".to_owned()).await;
    }
    let last = Underway::read(&operation).last;
    let progress = last.as_ref().map(|last| &last.progress);
    let (job, token) = match runner_of(ctx, snapshot).await {
        Ok(runner) => runner,
        Err(InputsError::Refused(error)) => return given_up(ctx, operation, error).await,
        Err(InputsError::Transient(error)) => {
            let error = chain(error.as_ref()).to_string();
            return hosts::again(ctx, snapshot, operation, error).await;
        }
    };
    let runner_port = RUNNER_HTTP_PORT;
    let container = ContainerRef {
        instance: row,
        runner_port,
        token,
    };
    ctx.before_effect("container.prepare.before", EntityRef::Instance(row.id))?;
    let step = ctx.deps.hosts.prepare_container(container, progress);
    let prepared = in_time(STEP_LIMIT, step).await;
    ctx.reached("container.prepare.after")?;
    match prepared {
        Ok(Preparation::Underway { progress, done }) => {
            stepped(ctx, snapshot, operation, progress, &done).await
        }
        Ok(Preparation::Ready(reach)) => {
            let ready = ReadyContainer {
                reach: *reach,
                runner_port,
                job,
            };
            let notes = Some(Notes::Container(ready).sealed());
            end(ctx, operation, OperationState::Done, None, notes).await
        }
        Err(HostError::Refused(error) | HostError::Taken { error, .. }) => {
            given_up(ctx, operation, error).await
        }
        Err(HostError::Transient(error)) => hosts::again(ctx, snapshot, operation, error).await,
    }
}

/// The job whose runner is to be brought, and what calls to that must bring.
async fn runner_of(ctx: &Context, snapshot: &InstanceSnapshot) -> Result<(JobId, Secret), InputsError> {
    let job = job_of(ctx, snapshot).await?;
    let token = ctx.deps.inputs.runner_token(&job).await?;
    Ok((job.job.id, token))
}
