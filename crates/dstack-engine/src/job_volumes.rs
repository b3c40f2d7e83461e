//! The network volumes of a project, for the jobs that are about to get a place.

use dstack_compute::ComputeError;
use dstack_model::backends::BackendType;
use dstack_model::configurations::MountPoint;
use dstack_model::runs::{JobProvisioningData, JobSpec};
use dstack_model::volumes::VolumeProvisioningData;
use dstack_plan::volumes::{
    Candidate, Location, check_mounts, choose, locations, marked_for_deletion, not_found,
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
#[derive(Debug, Clone, Copy)]
pub struct Chosen<'a> {
    /// Its row.
    pub row: &'a VolumeRow,
    /// What its cloud made of it.
    pub made: &'a VolumeProvisioningData,
}

/// Whether a job mounts network volumes.
pub fn names_volumes(spec: &JobSpec) -> bool {
    mounted(spec).next().is_some()
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
        match jobs.any(|job| names_volumes(&job.job_spec)) {
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

    /// The volumes that a job gets on a machine that is there, or in a container that is.
    ///
    /// # Errors
    /// Why it does not get them, in words for users.
    pub fn on(&self, spec: &JobSpec, place: &JobProvisioningData) -> Result<Vec<Chosen<'_>>, String> {
        let (backend, region) = (place.base_backend(), place.region.as_str());
        if !place.dockerized {
            return self.in_container(spec, backend, region);
        }
        let mounts = self.free(self.mounts(spec)?)?;
        let zone = place.availability_zone.as_deref();
        let chosen = self.choose(&mounts, backend, region, zone)?;
        match chosen.iter().find(|one| !one.made.attachable) {
            None => Ok(chosen),
            Some(one) => Err(format!(
                "{}: volumes of {backend} cannot be attached to a machine that is there already",
                one.row.name
            )),
        }
    }

    /// The volumes that the container of a job is made with.
    ///
    /// # Errors
    /// Why it does not get them, in words for users.
    pub fn in_container(
        &self,
        spec: &JobSpec,
        backend: BackendType,
        region: &str,
    ) -> Result<Vec<Chosen<'_>>, String> {
        self.choose(&self.mounts(spec)?, backend, region, None)
    }

    fn choose(
        &self,
        mounts: &[Vec<Candidate<'_>>],
        backend: BackendType,
        region: &str,
        zone: Option<&str>,
    ) -> Result<Vec<Chosen<'_>>, String> {
        let chosen = choose(mounts, backend, region, zone).map_err(|error| error.to_string())?;
        let made = chosen.iter().map(|candidate| {
            let row = self.rows.iter().find(|row| row.name == candidate.name);
            let made = row.and_then(|row| {
                let made = row.provisioning_data.as_deref()?;
                Some(Chosen { row, made })
            });
            made.ok_or_else(|| format!("{} is not made yet", candidate.name))
        });
        made.collect()
    }

    /// The job has got these volumes on the instance: rows that say so, and names for the job's own row.
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
        let chosen: Vec<(VolumeRow, VolumeProvisioningData)> = self
            .on(&job.job_spec, place)?
            .into_iter()
            .map(|one| (one.row.clone(), one.made.clone()))
            .collect();
        let now = ctx.now();
        let mut names = Vec::with_capacity(chosen.len());
        for (mut volume, mut made) in chosen {
            made.backend.get_or_insert(volume.configuration.backend());
            let id = ctx.deps.random.ordered_uuid(now).into();
            let row = AttachmentRow::wanted(id, (&volume, &made), instance, job.id, now);
            if !row.handed_over {
                let holder = format!(
                    "it is attached to {}, where {} uses it",
                    instance.name, job.job_name
                );
                self.given.push((volume.id, holder));
            }
            changes.insert_silently(row);
            names.push(volume.name.clone());
            // Of two who give it away at the same time, or delete it, one decides again.
            volume.used(now);
            changes.touch(volume);
        }
        Ok(names)
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
