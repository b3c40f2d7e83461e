//! The network volumes of a project, for the jobs that are about to get a place: which of them are free, which a job takes, and which it
//! gives back without having had them.

use std::time::Duration;

use dstack_compute::ComputeError;
use dstack_model::backends::BackendType;
use dstack_model::configurations::MountPoint;
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_model::runs::{JobProvisioningData, JobSpec};
use dstack_model::volumes::VolumeProvisioningData;
use dstack_plan::lifecycle::WaitReason;
use dstack_plan::lifecycle::attachment::awaited_until;
use dstack_plan::offers::AvailableOffers;
use dstack_plan::volumes::{
    Candidate, Location, are_together, check_mounts, choose, claim, locations, marked_for_deletion, not_found,
};
use dstack_store::rows::{AttachmentRow, InstanceRow, JobRow, VolumeRow};
use dstack_store::{AttachmentsOf, Changes, VolumeUse};
use dstack_units::{InstanceId, JobId, ProjectId, Time, VolumeId};

use crate::Result;
use crate::context::Context;
use crate::operations::containers::is_offered;

/// How long it may take to detach a volume while a machine is made for the next job already.
const DETACHED_SOON: Duration = Duration::from_secs(60);

/// Volumes that jobs name, and who has them, as of one moment.
#[derive(Debug)]
pub(crate) struct ProjectVolumes {
    /// When they were read: what is decided is decided for this time.
    now: Time,
    rows: Vec<VolumeRow>,
    uses: Vec<VolumeUse>,
    /// Those that were given away since they were read, each with who has it, in words for users.
    given: Vec<(VolumeId, String)>,
}

/// What is claimed for jobs.
#[derive(Debug)]
pub(crate) struct Claimed {
    /// The offers of which their instances can be made.
    pub(crate) offers: AvailableOffers,
    /// The other offers: with other volumes.
    pub(crate) elsewhere: Vec<Offer>,
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

/// The volume that a job has for each of its mount points, and the path of that, in their order.
///
/// # Errors
/// It does not have one for each of them: why, in words for users.
pub(crate) fn kept<'a>(
    spec: &'a JobSpec,
    attachments: &'a [AttachmentRow],
) -> Result<Vec<(&'a AttachmentRow, &'a str)>, String> {
    let of_mount = |(names, path): (&[String], &'a str)| {
        let row = attachments.iter().find(|row| names.contains(&row.name));
        let row = row.ok_or_else(|| format!("{} was not kept for the job", names.join(" or ")))?;
        Ok((row, path))
    };
    mounted(spec).map(of_mount).collect()
}

/// The names that the mount points of network volumes have, and their paths, in their order.
fn mounted(spec: &JobSpec) -> impl Iterator<Item = (&[String], &str)> {
    spec.volumes.iter().flatten().filter_map(|mount| match mount {
        MountPoint::Volume(mount) => Some((mount.name.as_slice(), mount.path.as_str())),
        MountPoint::Instance(_) => None,
    })
}

impl ProjectVolumes {
    /// Those of the project.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) async fn load(ctx: &Context, project: ProjectId, now: Time) -> Result<Self> {
        let store = &ctx.deps.store;
        Ok(Self {
            now,
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
    pub(crate) async fn of_jobs<'j>(
        ctx: &Context,
        project: ProjectId,
        mut jobs: impl Iterator<Item = &'j JobRow>,
        now: Time,
    ) -> Result<Self> {
        match jobs.any(JobRow::mounts_volumes) {
            true => Self::load(ctx, project, now).await,
            false => Ok(Self {
                now,
                rows: Vec::new(),
                uses: Vec::new(),
                given: Vec::new(),
            }),
        }
    }

    /// Where a job can be for the sake of its volumes; empty: it has none, and can be anywhere.
    ///
    /// # Errors
    /// It can be nowhere: its volumes are not there, not active, apart from each other, or used by others. Or nowhere yet, as one of
    /// them is being detached.
    pub(crate) fn places(&self, spec: &JobSpec) -> Result<Vec<Location>, NoPlace> {
        let mounts = self.mounts(spec).map_err(NoPlace::Never)?;
        check_mounts(&mounts).map_err(|error| NoPlace::Never(error.to_string()))?;
        let free = self.free(mounts).map_err(|taken| match taken {
            Taken {
                until: Some(until), ..
            } => NoPlace::Until(until),
            Taken { why, until: None } => NoPlace::Never(not_attached(&why)),
        })?;
        if !are_together(&free) {
            let why = "the volumes that no other job uses are in different availability zones";
            return Err(NoPlace::Never(not_attached(why)));
        }
        Ok(locations(&free))
    }

    /// The volumes that a job gets on an instance that is made.
    ///
    /// # Errors
    /// One of its mount points gets none there: why, in words for users.
    fn on(&self, spec: &JobSpec, place: &JobProvisioningData) -> Result<Vec<Chosen>, String> {
        let mounts = self.free(self.mounts(spec)?).map_err(|taken| taken.why)?;
        let (backend, zone) = (place.base_backend(), place.availability_zone.as_deref());
        let chosen = choose(&mounts, backend, &place.region, zone).map_err(|error| error.to_string())?;
        self.chosen(&chosen)
    }

    /// The rows of the volumes, and what their cloud made of them.
    ///
    /// # Errors
    /// One of them is not made yet.
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

    /// The job has got its volumes on the instance, which is made: rows that say so, and names for the job's own row.
    ///
    /// # Errors
    /// Why the job does not get its volumes, in words for users.
    pub(crate) fn give(
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
        let handed_over = instance.offer.as_deref().is_some_and(is_offered);
        if !handed_over {
            check_attachable(&chosen, place.base_backend())?;
        }
        let names = chosen.iter().map(|one| one.row.name.clone()).collect();
        self.take(ctx, changes, chosen, (instance, job), handed_over);
        Ok(names)
    }

    /// Each of the jobs has its volumes from now on, on the instance that is to be made for it: rows that say so.
    ///
    /// # Errors
    /// Why the jobs do not get their volumes, in words for users.
    pub(crate) fn claim(
        &mut self,
        ctx: &Context,
        changes: &mut Changes,
        jobs: &[(&InstanceRow, &JobRow)],
        offers: &AvailableOffers,
    ) -> Result<Claimed, String> {
        if !jobs.iter().any(|(_, job)| job.mounts_volumes()) {
            return Ok(Claimed {
                offers: offers.clone(),
                elsewhere: Vec::new(),
            });
        }
        let (claimed, chosen) = {
            let free = |job: &JobRow| {
                let free = self.free(self.mounts(&job.job_spec)?);
                free.map_err(|taken| taken.why)
            };
            let mounts = jobs.iter().map(|(_, job)| free(job));
            let mounts = mounts.collect::<Result<Vec<_>, String>>()?;
            let claim = claim(&mounts, offers).map_err(|error| error.to_string())?;
            let chosen = claim.volumes.iter().map(|volumes| self.chosen(volumes));
            let claimed = Claimed {
                offers: claim.offers,
                elsewhere: claim.elsewhere,
            };
            (claimed, chosen.collect::<Result<Vec<_>, String>>()?)
        };
        let first = claimed.offers.best.first();
        let handed_over = first.is_some_and(is_offered);
        if let Some(offer) = first.filter(|_| !handed_over) {
            for volumes in &chosen {
                check_attachable(volumes, offer.backend)?;
            }
        }
        for (of, volumes) in jobs.iter().zip(chosen) {
            self.take(ctx, changes, volumes, *of, handed_over);
        }
        Ok(claimed)
    }

    /// What the job was to have on the instance, of which nothing is left, is free from now on.
    pub(crate) fn give_back(&mut self, changes: &mut Changes, instance: InstanceId, job: JobId) {
        let is_its = |one: &mut VolumeUse| one.row.instance_id == instance && one.row.job_id == job;
        for one in self.uses.extract_if(.., is_its) {
            if let Some(volume) = self.rows.iter().find(|row| row.id == one.row.volume_id) {
                let mut used = volume.clone();
                used.used(self.now);
                changes.touch(used);
            }
            changes.remove_silently(one.row);
        }
    }

    /// The volumes are the job's, on the instance: nobody else gets them but, where they are `handed_over`, other containers.
    fn take(
        &mut self,
        ctx: &Context,
        changes: &mut Changes,
        volumes: Vec<Chosen>,
        (instance, job): (&InstanceRow, &JobRow),
        handed_over: bool,
    ) {
        let now = self.now;
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

    /// For each mount point the volumes that it names, in its order.
    ///
    /// # Errors
    /// One of them is not there, or about to be deleted: in words for users.
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
        mounted(spec).map(|(names, _)| of_names(names)).collect()
    }

    /// The mount points without volumes that are taken by machines, as no two of these can have one.
    ///
    /// # Errors
    /// All volumes of a mount point are taken.
    fn free<'a>(&'a self, mounts: Vec<Vec<Candidate<'a>>>) -> Result<Vec<Vec<Candidate<'a>>>, Taken> {
        let mut free = Vec::with_capacity(mounts.len());
        for volumes in mounts {
            let (mut left, mut taken) = (Vec::new(), Vec::new());
            for volume in volumes {
                match self.taken(volume.name) {
                    None => left.push(volume),
                    Some(by) => taken.push(by),
                }
            }
            if left.is_empty() {
                // One that is let go of soon is waited for.
                let first = taken.iter().position(|one| one.until.is_some()).unwrap_or(0);
                if first < taken.len() {
                    return Err(taken.swap_remove(first));
                }
            }
            free.push(left);
        }
        Ok(free)
    }

    /// Why a job does not get a volume, which only one machine can have; `None`: it is free, or will be soon enough.
    fn taken(&self, name: &str) -> Option<Taken> {
        let volume = self.rows.iter().find(|row| row.name == name)?;
        let for_good = |holder: &str| Taken {
            why: format!("{name}: {holder}"),
            until: None,
        };
        if let Some((_, holder)) = self.given.iter().find(|(given, _)| *given == volume.id) {
            return Some(for_good(holder));
        }
        let is_its = |one: &&VolumeUse| {
            one.row.volume_id == volume.id && !one.row.handed_over && one.row.takes_volume()
        };
        let mut its = self.uses.iter().filter(is_its);
        its.find_map(|one| {
            let instance = &one.row.instance_name;
            if let Some(job) = one.user() {
                return Some(for_good(&format!(
                    "it is attached to {instance}, where {job} uses it"
                )));
            }
            let until = match let_go(one.leaving_since(), one.row.forced_from, self.now) {
                LetGo::Soon => return None,
                LetGo::By(until) => Some(until),
                LetGo::Never => None,
            };
            Some(Taken {
                why: format!("{name}: {}", not_let_go(one, self.now)),
                until,
            })
        })
    }
}

/// Why a job does not get a volume.
struct Taken {
    /// In words for users.
    why: String,
    /// It is being detached, which is waited for until then.
    until: Option<Time>,
}

/// Why a job can be nowhere for the sake of its volumes.
#[derive(Debug)]
pub(crate) enum NoPlace {
    /// For this reason, in words for users.
    Never(String),
    /// A volume is being detached, which takes longer than it should. Waited for until then at the latest, without a machine.
    Until(Time),
}

/// When a volume is free that is being detached.
enum LetGo {
    /// Before a machine is ready, if all goes well.
    Soon,
    /// By then, or never.
    By(Time),
    /// Nobody knows when.
    Never,
}

/// Of one that is on its way back since then; `None`: it is not known since when.
fn let_go(since: Option<Time>, forced_from: Option<Time>, now: Time) -> LetGo {
    let Some(since) = since else {
        return LetGo::Soon;
    };
    let until = awaited_until(since, forced_from);
    match now {
        now if now < since + DETACHED_SOON => LetGo::Soon,
        now if now < until => LetGo::By(until),
        _ => LetGo::Never,
    }
}

fn not_let_go(held: &VolumeUse, now: Time) -> String {
    let since = held.leaving_since().unwrap_or(now);
    let minutes = now.since(since).as_secs() / 60;
    let error = match held.row.waiting_for() {
        Some(WaitReason::VolumeDetached { error, .. }) => error.as_deref(),
        _ => None,
    };
    let error = error.map(|error| format!(": {error}")).unwrap_or_default();
    let instance = &held.row.instance_name;
    match &held.job {
        // The cloud has not been asked for it yet.
        Some(job) if held.row.is_wanted() => {
            format!("{} has been ending on {instance} for {minutes} minutes", job.name)
        }
        _ => format!("{instance} has not let go of it for {minutes} minutes{error}"),
    }
}

/// What is said to users of a job that does not get its volumes, in the words of dstack 0.22.5.
pub(crate) fn not_attached(why: &str) -> String {
    format!("Failed to attach volume: {why}")
}

/// What is said of a backend whose volumes containers are made with, and nothing else.
pub(crate) const NOT_ATTACHED_BY_CALL: ComputeError =
    ComputeError::Unsupported("to attach volumes to machines that are there");
