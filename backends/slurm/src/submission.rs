//! The life of a Slurm job, of one node or of several.

use std::net::IpAddr;
use std::time::Duration;

use dstack_compute::{
    Call, ComputeError, LISTED_WITHIN, Marks, Owned, OwnedKind, OwnedMark, Removal, Sign, Step, Workload,
};
use dstack_model::backends::BackendType;
use dstack_model::instances::{InstanceType, Resources};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::{JobProvisioningData, Requirements};
use dstack_units::Time;
use serde::{Deserialize, Serialize};

use crate::batch::Batch;
use crate::cluster::Cluster;
use crate::jobs::{Job, JobState, is_id};
use crate::nodes::Node;
use crate::offers::allowed_partitions;
use crate::share::share;

/// Longest name of a job. Slurm takes longer ones; those of dstack 0.22.5 are no longer either.
const NAME_LENGTH: usize = 64;

/// How long a job may wait for nodes before something else is tried.
const PENDING_LIMIT: Duration = Duration::from_secs(60);

/// Reasons (<https://slurm.schedmd.com/job_reason_codes.html>) for which a job would wait until somebody changes the cluster.
const NEVER_STARTS: &[&str] = &[
    "BadConstraints",
    "PartitionDown",
    "PartitionInactive",
    "PartitionNodeLimit",
    "PartitionTimeLimit",
];

/// Pause while a job waits for nodes, or they are started.
const WAITS_INTERVAL: Duration = Duration::from_secs(2);

/// Pause while a job ends.
const ENDS_INTERVAL: Duration = Duration::from_secs(2);

/// Who logs in to a container.
const USER: &str = "root";

/// Kind of the keys of a job in the inventory.
pub(crate) const KEYS_KIND: OwnedKind = OwnedKind::Piece("keys on the login node");

/// How long after a call a job may still appear: `sbatch` goes on by itself when the connection is gone, and asks a busy controller
/// again for two minutes.
const SUBMITTED_WITHIN: Duration = Duration::from_secs(5 * 60);

/// The pieces of a job.
const JOB: &str = "job";
const KEYS: &str = "keys";

/// What is asked for.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) marks: &'a Marks,
    pub(crate) offer: &'a InstanceOfferWithAvailability,
    pub(crate) requirements: &'a Requirements,
    /// One for each node.
    pub(crate) workloads: &'a [Workload],
}

/// A job that was submitted, as it is noted.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Submitted {
    pub(crate) id: String,
    /// When, by our clock.
    pub(crate) at: Time,
}

/// A job by which something is known: its name and id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) id: String,
}

/// What runs somewhere.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) job: Named,
    /// In the order of the nodes.
    pub(crate) members: Vec<JobProvisioningData>,
}

/// Name of the job with these marks.
pub(crate) fn job_name(marks: &Marks) -> String {
    marks.name(NAME_LENGTH)
}

impl Cluster {
    /// Sees to it that the job is there, see [`Lifecycle::ensure`](dstack_compute::Lifecycle::ensure).
    pub(crate) async fn ensure(
        &self,
        wanted: &Wanted<'_>,
        call: &Call<'_>,
    ) -> Result<Step<Running>, ComputeError> {
        check(wanted.workloads)?;
        let share = self.share(wanted)?;
        let what = format!(
            "{} x {share:?} in {:?}",
            wanted.workloads.len(),
            wanted.offer.availability_zones
        );
        if call.notes().is_null()
            && let Some(why) = self.failures.why(&what)
        {
            let text = format!(
                "cluster '{}' had nothing of this kind free a moment ago: {why}",
                self.name
            );
            return Err(ComputeError::Skipped(text));
        }
        let step = self.make(wanted, &share, call).await;
        if let Err(error @ (ComputeError::NoCapacity(_) | ComputeError::NoQuota(_))) = &step {
            self.failures.note(&what, error.details());
        }
        step
    }

    fn share(&self, wanted: &Wanted<'_>) -> Result<Resources, ComputeError> {
        share(&wanted.offer.instance.resources, wanted.requirements)
            .ok_or_else(|| ComputeError::Refused("the offer has less than what the job asks for".to_owned()))
    }

    async fn make(
        &self,
        wanted: &Wanted<'_>,
        share: &Resources,
        call: &Call<'_>,
    ) -> Result<Step<Running>, ComputeError> {
        let name = job_name(wanted.marks);
        let now = || call.now();
        let submit = async || {
            let at = now();
            let id = self.submit(wanted, share, &name).await?;
            Ok(Submitted { id, at })
        };
        let find = async || {
            let found = self.find(&name).await?;
            Ok(found.map(|id| Submitted { id, at: now() }))
        };
        let submitted = call.make(JOB, SUBMITTED_WITHIN, submit, find).await?;
        let waits = |doing: String| Step::Underway {
            seen: None,
            doing,
            again: WAITS_INTERVAL,
        };
        let listed = self.commands.jobs(&[&submitted.id]).await?;
        let Some(job) = listed
            .into_iter()
            .find(|job| job.id == submitted.id && job.name == name)
        else {
            return match now() < submitted.at + LISTED_WITHIN {
                true => Ok(waits("the Slurm job is listed".to_owned())),
                false => Err(ComputeError::Broken(gone(&submitted.id))),
            };
        };
        match &job.state {
            JobState::Running => {}
            JobState::Pending if NEVER_STARTS.contains(&job.reason.as_str()) => {
                return Err(ComputeError::NoCapacity(format!(
                    "cluster '{}' cannot start the Slurm job {} as it is ({})",
                    self.name, job.id, job.reason
                )));
            }
            JobState::Pending if now() >= submitted.at + PENDING_LIMIT => {
                return Err(ComputeError::NoCapacity(format!(
                    "cluster '{}' did not start the Slurm job {} within {} s ({})",
                    self.name,
                    job.id,
                    PENDING_LIMIT.as_secs(),
                    job.reason
                )));
            }
            JobState::Pending => {
                return Ok(waits(format!(
                    "nodes for the Slurm job {} ({})",
                    job.id, job.reason
                )));
            }
            JobState::Configuring => return Ok(waits("the nodes are started".to_owned())),
            JobState::Over(_) | JobState::Ending => {
                return Err(ComputeError::Broken(job.end().unwrap_or_else(|| gone(&job.id))));
            }
            JobState::Other(state) => return Ok(waits(format!("the Slurm job {} is {state}", job.id))),
        }
        let members = self.members(wanted, share, &name, &job).await?;
        let keys = wanted
            .workloads
            .first()
            .map_or(&[][..], |workload| &workload.authorized_keys);
        call.make_once(KEYS, async || {
            self.commands.add_keys(&name, keys).await?;
            Ok(name.clone())
        })
        .await?;
        let job = Named { name, id: job.id };
        Ok(Step::Ready(Running { job, members }))
    }

    async fn submit(
        &self,
        wanted: &Wanted<'_>,
        share: &Resources,
        name: &str,
    ) -> Result<String, ComputeError> {
        let discovered = self.discovered().await?;
        let zones = wanted.offer.availability_zones.as_ref();
        let mut partitions =
            allowed_partitions(&self.partitions, &discovered.partitions, wanted.requirements);
        partitions.retain(|partition| zones.is_none_or(|zones| zones.contains(partition)));
        if partitions.is_empty() {
            return Err(ComputeError::Refused(format!(
                "no matching partitions found in cluster '{}'. Check `gpu_partitions` and `cpu_partitions` of the backend, and the \
                 `availability_zones` of the run",
                self.name
            )));
        }
        let batch = Batch {
            name,
            partitions: &partitions,
            share,
            image: wanted.workloads.first().map_or("", |workload| &workload.image),
            scripts: wanted
                .workloads
                .iter()
                .map(|workload| workload.script.as_str())
                .collect(),
        };
        let script = batch.script().map_err(ComputeError::Refused)?;
        self.commands.submit(&script).await
    }

    /// The job of this name, if one was submitted that is not over: those that are over may be of offers that were tried before.
    async fn find(&self, name: &str) -> Result<Option<String>, ComputeError> {
        let mut jobs = self.commands.jobs_named(name).await?;
        jobs.retain(|job| !job.state.is_over());
        Ok(jobs.into_iter().next().map(|job| job.id))
    }

    async fn members(
        &self,
        wanted: &Wanted<'_>,
        share: &Resources,
        name: &str,
        job: &Job,
    ) -> Result<Vec<JobProvisioningData>, ComputeError> {
        let nodes = self.commands.nodes_of(&job.node_list).await?;
        let (has, asked) = (nodes.len(), wanted.workloads.len());
        if has != asked {
            let text = format!(
                "the Slurm job {} has {has} nodes ({}) instead of {asked}",
                job.id, job.node_list
            );
            return Err(ComputeError::Broken(text));
        }
        let is_name = |text: &&str| text.parse::<IpAddr>().is_err();
        let both = nodes
            .iter()
            .flat_map(|node| [node.address.as_str(), node.host_name.as_str()]);
        let mut names: Vec<&str> = both.filter(is_name).collect();
        names.sort_unstable();
        names.dedup();
        let addresses = self.commands.addresses(&names).await?;
        let member = |node: Node| {
            let known = node.address.parse().ok();
            let address = known.or_else(|| addresses.get(&node.address).copied());
            let address = address.map(|address| address.to_string());
            // The login node has to know the name.
            let host_name = Some(node.host_name).filter(|name| addresses.contains_key(name));
            let hostname = host_name.or_else(|| address.clone()).unwrap_or(node.address);
            JobProvisioningData {
                backend: BackendType::Slurm,
                base_backend: None,
                instance_type: InstanceType {
                    name: node.name.clone(),
                    resources: share.clone(),
                },
                instance_id: format!("{name}:{}:{}", job.id, node.name),
                hostname: Some(hostname),
                internal_ip: address,
                public_ip_enabled: false,
                instance_network: None,
                region: self.name.clone(),
                availability_zone: Some(job.partition.clone()),
                reservation: None,
                price: wanted.offer.price,
                username: USER.to_owned(),
                ssh_port: Some(dstack_compute::CONTAINER_SSH_PORT.into()),
                dockerized: false,
                ssh_proxy: Some(self.login.clone()),
                backend_data: None,
                gpu_driver: None,
            }
        };
        Ok(nodes.into_iter().map(member).collect())
    }

    /// How these jobs are, in the same order.
    pub(crate) async fn look<P>(&self, known: &[&Named]) -> Result<Vec<Sign<P>>, ComputeError> {
        let ids: Vec<&str> = known.iter().map(|named| named.id.as_str()).collect();
        let listed = self.commands.jobs(&ids).await?;
        let sign = |named: &&Named| {
            let job = listed
                .iter()
                .find(|job| job.id == named.id && job.name == named.name);
            match job {
                None => Sign::Lost(gone(&named.id)),
                // Somebody has put it back into the queue: what ran there is gone.
                Some(job) if job.state == JobState::Pending => Sign::Lost(format!(
                    "the Slurm job {} waits for nodes again ({})",
                    job.id, job.reason
                )),
                Some(job) => job.end().map_or(Sign::Well, Sign::Lost),
            }
        };
        Ok(known.iter().map(sign).collect())
    }

    /// Removes the job with all that belongs to it.
    pub(crate) async fn remove(
        &self,
        marks: &Marks,
        known: Option<Named>,
        call: &Call<'_>,
    ) -> Result<Removal, ComputeError> {
        let name = known
            .as_ref()
            .map_or_else(|| job_name(marks), |named| named.name.clone());
        let submitted = known.map(|named| Submitted {
            id: named.id,
            at: call.now(),
        });
        let find = async || {
            let found = self.find(&name).await?;
            Ok(found.map(|id| Submitted { id, at: call.now() }))
        };
        let cancel = async |submitted: Submitted| self.cancel(&submitted.id, &name).await;
        let job = call
            .unmake(JOB, submitted, SUBMITTED_WITHIN, find, cancel)
            .await?;
        if job != Removal::Gone {
            return Ok(job);
        }
        let find = async || {
            let all = self.commands.jobs_with_keys().await?;
            Ok(all.into_iter().find(|with_keys| *with_keys == name))
        };
        let remove = async |name: String| self.remove_keys(&name).await;
        call.unmake(KEYS, None, LISTED_WITHIN, find, remove).await
    }

    /// Cancels a job until Slurm shows it no more.
    pub(crate) async fn cancel(&self, id: &str, name: &str) -> Result<Removal, ComputeError> {
        self.commands.cancel(id, name).await?;
        let is_there = |state: Option<JobState>| state.is_some_and(|state| !state.is_over());
        if !is_there(self.commands.state(id).await?) {
            return Ok(Removal::Gone);
        }
        // It may be another one that has the same id.
        let listed = self.commands.jobs(&[id]).await?;
        let is_ours = listed
            .iter()
            .any(|job| job.id == id && job.name == name && !job.state.is_over());
        Ok(match is_ours {
            true => Removal::Underway { again: ENDS_INTERVAL },
            false => Removal::Gone,
        })
    }

    pub(crate) async fn remove_keys(&self, name: &str) -> Result<Removal, ComputeError> {
        self.commands.remove_keys(name).await?;
        Ok(Removal::Gone)
    }

    /// All that carries marks, also keys whose job is gone.
    pub(crate) async fn owned(&self) -> Result<Vec<Owned>, ComputeError> {
        let (jobs, with_keys) = tokio::try_join!(self.commands.own_jobs(), self.commands.jobs_with_keys())?;
        let owned = |kind: OwnedKind, id: String, name: String, made_at: Option<Time>| {
            Some(Owned {
                kind,
                id,
                mark: OwnedMark::of_name(&name)?,
                name,
                region: self.name.clone(),
                price: None,
                made_at,
            })
        };
        let of_jobs = jobs
            .into_iter()
            .filter(|job| !job.state.is_over())
            .filter_map(|job| {
                let kind = if job.nodes > 1 {
                    OwnedKind::Group
                } else {
                    OwnedKind::Container
                };
                owned(kind, job.id, job.name, job.submitted_at)
            });
        let of_keys = with_keys
            .into_iter()
            .filter_map(|name| owned(KEYS_KIND, format!("keys of {name}"), name, None));
        Ok(of_jobs.chain(of_keys).collect())
    }
}

impl Named {
    /// From `<job name>:<job id>:<node>`.
    pub(crate) fn of_instance(id: &str) -> Option<Self> {
        let mut parts = id.rsplitn(3, ':').skip(1);
        let (id, name) = (parts.next()?, parts.next()?);
        Self::new(name, id)
    }

    /// Unless it is no id of a job.
    pub(crate) fn new(name: &str, id: &str) -> Option<Self> {
        is_id(id).then(|| Self {
            name: name.to_owned(),
            id: id.to_owned(),
        })
    }
}

fn gone(id: &str) -> String {
    format!("Slurm does not know the job {id} any more")
}

/// What Slurm's containers cannot do is said before anything is made.
fn check(workloads: &[Workload]) -> Result<(), ComputeError> {
    let refuse = |text: &str| Err(ComputeError::Refused(text.to_owned()));
    let Some(first) = workloads.first() else {
        return refuse("a job of Slurm has at least one node");
    };
    for workload in workloads {
        if workload.registry.is_some() {
            return refuse(
                "Private registries are not supported yet on Slurm: name an image that the cluster can pull without a login, and leave \
                 out `registry_auth`",
            );
        }
        if !workload.volumes.is_empty() {
            return refuse(
                "Slurm has no network volumes: leave out `volumes`, and keep data in a shared folder of the cluster",
            );
        }
        if workload.folders.iter().any(|folder| !folder.optional) {
            return refuse(
                "instance volumes are not supported on Slurm: leave them out of `volumes`, or make them optional",
            );
        }
        if workload.privileged {
            return refuse("privileged containers are not supported on Slurm: leave out `privileged`");
        }
        if workload.image != first.image {
            return refuse(
                "all nodes of a Slurm job have the same image: name one image for all jobs of the run",
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use dstack_compute::{MountedFolder, RegistryLogin};

    use super::*;

    fn workload() -> Workload {
        Workload {
            image: "image".to_owned(),
            registry: None,
            script: "true".to_owned(),
            authorized_keys: Vec::new(),
            privileged: false,
            shm_mib: Some(64),
            volumes: Vec::new(),
            folders: Vec::new(),
        }
    }

    #[test]
    fn what_cannot_be_done_is_refused_in_words() {
        check(&[workload(), workload()]).unwrap();
        let folder = |optional| MountedFolder {
            node_path: "/data".to_owned(),
            path: "/data".to_owned(),
            optional,
        };
        check(&[Workload {
            folders: vec![folder(true)],
            ..workload()
        }])
        .unwrap();
        let registry = Some(RegistryLogin {
            username: "u".to_owned(),
            password: "p".into(),
            is_servers: false,
        });
        for (workloads, expected) in [
            (
                vec![Workload {
                    registry,
                    ..workload()
                }],
                "Private registries are not supported yet",
            ),
            (
                vec![Workload {
                    privileged: true,
                    ..workload()
                }],
                "privileged",
            ),
            (
                vec![Workload {
                    folders: vec![folder(false)],
                    ..workload()
                }],
                "instance volumes",
            ),
            (
                vec![
                    workload(),
                    Workload {
                        image: "other".to_owned(),
                        ..workload()
                    },
                ],
                "the same image",
            ),
            (Vec::new(), "at least one node"),
        ] {
            let error = check(&workloads).unwrap_err();
            assert!(
                matches!(&error, ComputeError::Refused(text) if text.contains(expected)),
                "{error:?}"
            );
        }
    }

    #[test]
    fn an_instance_is_known_by_its_job() {
        let named = Named::of_instance("dstack-x-1:17:node1").unwrap();
        assert_eq!((named.name.as_str(), named.id.as_str()), ("dstack-x-1", "17"));
        for wrong in ["", "17:node1", "dstack-x:--user=x:node1", "dstack-x::node1"] {
            assert_eq!(Named::of_instance(wrong), None, "{wrong}");
        }
    }
}
