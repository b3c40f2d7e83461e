//! The network volumes of a project, for the jobs that are about to get a place.

use std::sync::Arc;

use dstack_compute::ComputeError;
use dstack_model::backends::BackendType;
use dstack_model::configurations::MountPoint;
use dstack_model::instances::InstanceRuntime;
use dstack_model::runs::{JobProvisioningData, JobSpec};
use dstack_model::volumes::VolumeProvisioningData;
use dstack_plan::offers::AvailableOffers;
use dstack_plan::volumes::{
    Candidate, Location, check_mounts, choose, claim, locations, marked_for_deletion, not_found,
};
use dstack_store::rows::{AttachmentRow, InstanceRow, JobRow, VolumeRow};
use dstack_store::{AttachmentsOf, Changes, VolumeUse};
use dstack_units::{ProjectId, VolumeId};

use crate::Result;
use crate::context::Context;

/// Volumes that jobs name, and who has them.
#[derive(Debug, Default)]
pub struct ProjectVolumes {
    rows: Vec<VolumeRow>,
    uses: Vec<VolumeUse>,
    /// Those that were given away since they were read.
    given: Vec<(VolumeId, String)>,
}

/// A volume that a job gets.
struct Chosen {
    row: VolumeRow,
    /// What its cloud made of it.
    made: VolumeProvisioningData,
}

fn check_attachable(volumes: &[Chosen], backend: BackendType) -> Result<(), String> {
    match volumes.iter().find(|one| !one.made.attachable) {
        None => Ok(()),
        Some(one) => Err(format!(
            "{}: volumes of {backend} cannot be attached to a machine",
            one.row.name
        )),
    }
}

/// The volume that a job has for each of its mount points, in their order.
///
/// # Errors
/// It does not have one for each of them: why, in words for users.
pub fn kept<'a>(spec: &JobSpec, attachments: &'a [AttachmentRow]) -> Result<Vec<&'a AttachmentRow>, String> {
    let of_names = |names: &[String]| {
        let row = attachments.iter().find(|row| names.contains(&row.name));
        row.ok_or_else(|| format!("{} was not kept for the job", names.join(" or ")))
    };
    mounted(spec).map(of_names).collect()
}

/// The names that the mount points of network volumes have, in their order.
fn mounted(spec: &JobSpec) -> impl Iterator<Item = &[String]> {
    spec.volumes.iter().flatten().filter_map(|mount| match mount {
        MountPoint::Volume(mount) => Some(mount.name.as_slice()),
        MountPoint::Instance(_) => None,
    })
}

impl ProjectVolumes {
    /// Those of the project.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn load(ctx: &Context, project: ProjectId) -> Result<Self> {
        let store = &ctx.deps.store;
        Ok(Self {
            // Whoever takes a volume changes its row: it is read first.
            rows: store.volumes(project).await?,
            uses: store.attachments(AttachmentsOf::Project(project)).await?,
            given: Vec::new(),
        })
    }

    /// As [`Self::load`], if one of these jobs mounts some.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn of_jobs<'j>(
        ctx: &Context,
        project: ProjectId,
        mut jobs: impl Iterator<Item = &'j JobRow>,
    ) -> Result<Self> {
        match jobs.any(JobRow::mounts_volumes) {
            true => Self::load(ctx, project).await,
            false => Ok(Self::default()),
        }
    }

    /// Where a job can be for the sake of its volumes; empty: it has none.
    ///
    /// # Errors
    /// It can be nowhere, for this reason, in words for users.
    pub fn places(&self, spec: &JobSpec) -> Result<Vec<Location>, String> {
        let mounts = self.mounts(spec)?;
        check_mounts(&mounts).map_err(|error| error.to_string())?;
        let free = self.free(mounts).map_err(|error| not_attached(&error))?;
        Ok(locations(&free))
    }

    /// The volumes that a job gets on a machine that is there.
    fn on(&self, spec: &JobSpec, place: &JobProvisioningData) -> Result<Vec<Chosen>, String> {
        let mounts = self.free(self.mounts(spec)?)?;
        let (backend, zone) = (place.base_backend(), place.availability_zone.as_deref());
        let chosen = choose(&mounts, backend, &place.region, zone).map_err(|error| error.to_string())?;
        let chosen = self.chosen(&chosen)?;
        check_attachable(&chosen, backend)?;
        Ok(chosen)
    }

    /// Of the volumes the rows, and what their cloud made of them.
    fn chosen(&self, volumes: &[Candidate<'_>]) -> Result<Vec<Chosen>, String> {
        let of_candidate = |candidate: &Candidate<'_>| {
            let row = self.rows.iter().find(|row| row.name == candidate.name)?;
            let mut made = row.provisioning_data.as_deref()?.clone();
            made.backend.get_or_insert(row.configuration.backend());
            Some(Chosen {
                row: row.clone(),
                made,
            })
        };
        let found = volumes.iter().map(|candidate| {
            of_candidate(candidate).ok_or_else(|| format!("{} is not made yet", candidate.name))
        });
        found.collect()
    }

    /// The job has got its volumes on the machine, which is there: rows that say so, and names for the job's own row.
    pub fn give(
        &mut self,
        ctx: &Context,
        changes: &mut Changes,
        instance: &InstanceRow,
        job: &JobRow,
    ) -> Result<Vec<String>, String> {
        let Some(place) = instance.job_provisioning_data.as_deref() else {
            return Ok(Vec::new());
        };
        let chosen = self.on(&job.job_spec, place)?;
        let names = chosen.iter().map(|one| one.row.name.clone()).collect();
        self.take(ctx, changes, chosen, (instance, job), false);
        Ok(names)
    }

    /// Each of the jobs has its volumes from now on, on the instance that is to be made for it: rows that say so. Returns the offers
    /// of which the instances can be made then.
    ///
    /// # Errors
    /// Why the jobs do not get their volumes, in words for users.
    pub fn claim(
        &mut self,
        ctx: &Context,
        changes: &mut Changes,
        jobs: &[(&InstanceRow, &JobRow)],
        offers: &Arc<AvailableOffers>,
    ) -> Result<Arc<AvailableOffers>, String> {
        if !jobs.iter().any(|(_, job)| job.mounts_volumes()) {
            return Ok(Arc::clone(offers));
        }
        let (left, chosen) = {
            let mounts = jobs.iter().map(|(_, job)| self.free(self.mounts(&job.job_spec)?));
            let mounts = mounts.collect::<Result<Vec<_>, String>>()?;
            let claim = claim(&mounts, offers).map_err(|error| error.to_string())?;
            let chosen = claim.volumes.iter().map(|volumes| self.chosen(volumes));
            (claim.offers, chosen.collect::<Result<Vec<_>, String>>()?)
        };
        let first = left.best.first();
        let handed_over = first.is_some_and(|offer| offer.instance_runtime == InstanceRuntime::Runner);
        if let Some(offer) = first.filter(|_| !handed_over) {
            for volumes in &chosen {
                check_attachable(volumes, offer.backend)?;
            }
        }
        for (of, volumes) in jobs.iter().zip(chosen) {
            self.take(ctx, changes, volumes, *of, handed_over);
        }
        Ok(Arc::new(left))
    }

    /// Nobody else gets the volumes.
    fn take(
        &mut self,
        ctx: &Context,
        changes: &mut Changes,
        volumes: Vec<Chosen>,
        (instance, job): (&InstanceRow, &JobRow),
        handed_over: bool,
    ) {
        let now = ctx.now();
        for Chosen { mut row, made } in volumes {
            if !handed_over {
                let holder = format!(
                    "it is attached to {}, where {} uses it",
                    instance.name, job.job_name
                );
                self.given.push((row.id, holder));
            }
            let id = ctx.deps.random.ordered_uuid(now).into();
            let attachment = AttachmentRow::wanted(id, (&row, &made), (instance, job.id), handed_over, now);
            changes.insert_silently(attachment);
            // Of two who give it away at the same time, or delete it, one decides again.
            row.used(now);
            changes.touch(row);
        }
    }

    /// For each mount point the volumes that it names.
    fn mounts(&self, spec: &JobSpec) -> Result<Vec<Vec<Candidate<'_>>>, String> {
        let of_names = |names: &[String]| {
            let mut found = Vec::with_capacity(names.len());
            for name in names {
                let row = self.rows.iter().find(|row| row.name == *name);
                let row = row.ok_or_else(|| not_found(names))?;
                if row.to_be_deleted {
                    return Err(marked_for_deletion(names));
                }
                found.push(row.candidate());
            }
            Ok(found)
        };
        mounted(spec).map(of_names).collect()
    }

    /// The mount points without volumes that other jobs use and that no two machines can have.
    fn free<'a>(&'a self, mounts: Vec<Vec<Candidate<'a>>>) -> Result<Vec<Vec<Candidate<'a>>>, String> {
        let mut free = Vec::with_capacity(mounts.len());
        for volumes in mounts {
            let holders = volumes.iter().map(|volume| self.holder(volume.name));
            let holders: Vec<Option<String>> = holders.collect();
            let left = volumes
                .iter()
                .zip(&holders)
                .filter(|(_, holder)| holder.is_none());
            let left: Vec<Candidate<'_>> = left.map(|(volume, _)| *volume).collect();
            if let (true, Some(Some(holder)), Some(first)) =
                (left.is_empty(), holders.first(), volumes.first())
            {
                return Err(format!("{}: {holder}", first.name));
            }
            free.push(left);
        }
        Ok(free)
    }

    /// Who uses a volume that only one machine can have.
    fn holder(&self, name: &str) -> Option<String> {
        let volume = self.rows.iter().find(|row| row.name == name)?;
        if let Some((_, holder)) = self.given.iter().find(|(given, _)| *given == volume.id) {
            return Some(holder.clone());
        }
        let mut its = self.uses.iter().filter(|one| one.row.volume_id == volume.id);
        its.find_map(|one| {
            let job = one.user().filter(|_| !one.row.handed_over)?;
            Some(format!(
                "it is attached to {}, where {job} uses it",
                one.row.instance_name
            ))
        })
    }
}

/// What is said to users of a job that does not get its volumes, in the words of dstack 0.22.5.
pub fn not_attached(why: &str) -> String {
    format!("Failed to attach volume: {why}")
}

/// What is said of a backend whose volumes containers are made with, and nothing else.
pub(crate) const NOT_ATTACHED_BY_CALL: ComputeError =
    ComputeError::Unsupported("to attach volumes to machines that are there");
