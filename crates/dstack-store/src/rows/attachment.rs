//! Rows of attachments of volumes, and the changes of status that they allow.

use dstack_model::volumes::{VolumeAttachmentData, VolumeProvisioningData};
use dstack_plan::lifecycle::attachment::AttachmentStatus;
use dstack_plan::lifecycle::transitions::attachment_allowed;
use dstack_plan::lifecycle::{Wait, WaitReason};
use dstack_units::{AttachmentId, InstanceId, JobId, ProjectId, Time, VolumeId};

use super::{InstanceRow, TransitionError, VolumeRow, change_status, life};
use crate::Json;
use crate::entity::entity;

entity! {
    /// A volume that an instance has for a job, is to have, or is to be without. The row is deleted when the cloud has confirmed that the
    /// instance does not have it.
    AttachmentRow in "attachments" {
        /// Id: also the key of the operations that attach and detach.
        key id: AttachmentId,
        /// Project of the volume and of the job.
        pub project_id: ProjectId,
        /// The volume.
        pub volume_id: VolumeId,
        /// The instance.
        pub instance_id: InstanceId,
        /// The job that mounts it there.
        pub job_id: JobId,
        /// Name of the volume.
        pub name: String,
        /// Name of the instance.
        pub instance_name: String,
        /// The volume, as it was made.
        pub volume: Json<VolumeProvisioningData>,
        /// Whether the volume was there before, and is not to be formatted.
        pub external: bool,
        /// Whether the instance is made with the volume and has it until its end: there are no calls.
        pub handed_over: bool,
        /// When the volume was taken for the job.
        pub created_at: Time,
        /// How far it is.
        status: AttachmentStatus,
        /// Why it has failed, or takes too long.
        status_message: Option<String>,
        /// Whether the cloud may have attached it, since it was asked to: no other instance is given the volume before this row is gone.
        pub begun: bool,
        /// What the cloud said when it had attached it.
        pub data: Option<Json<VolumeAttachmentData>>,
        /// Since when the instance is to be without it; unset while the job ends that has it.
        pub detaching_since: Option<Time>,
        /// From when on it is detached although the instance does not let go of it; unset: never.
        pub forced_from: Option<Time>,
        /// When the row was changed last.
        pub last_processed_at: Time,
        /// When the engine looks again by itself.
        next_wake_at: Option<Time>,
        /// When the present wait ends badly.
        deadline_at: Option<Time>,
        /// What it waits for, in words.
        waiting_for: Option<WaitReason>,
    }
}

life!(AttachmentRow, AttachmentStatus);

impl AttachmentRow {
    /// The volume, which was made as `data` says, is taken for the job and for the instance that it has, or that is to be made for it.
    /// `handed_over`: the instance is a container of the job alone, and is made with the volume.
    pub fn wanted(
        id: AttachmentId,
        (volume, data): (&VolumeRow, &VolumeProvisioningData),
        (instance, job): (&InstanceRow, JobId),
        handed_over: bool,
        now: Time,
    ) -> Self {
        Self {
            id,
            project_id: volume.project_id,
            volume_id: volume.id,
            instance_id: instance.id,
            job_id: job,
            name: volume.name.clone(),
            instance_name: instance.name.clone(),
            volume: Json::new(data.clone()),
            external: volume.configuration.is_external(),
            handed_over,
            created_at: now,
            status: match handed_over {
                true => AttachmentStatus::Attached,
                false => AttachmentStatus::Attaching,
            },
            status_message: None,
            begun: handed_over,
            data: None,
            detaching_since: None,
            forced_from: None,
            last_processed_at: now,
            next_wake_at: Some(now),
            deadline_at: None,
            waiting_for: None,
            version: 0,
        }
    }

    /// Why it has failed, or takes too long, for users.
    pub fn status_message(&self) -> Option<&str> {
        self.status_message.as_deref()
    }

    fn go(&mut self, to: AttachmentStatus) -> Result<(), TransitionError> {
        change_status(("attachment", &self.id), &mut self.status, to, attachment_allowed)
    }

    /// The cloud has attached it.
    ///
    /// # Errors
    /// The status must not follow the present one; nothing is changed.
    pub fn attach(&mut self, data: VolumeAttachmentData, now: Time) -> Result<(), TransitionError> {
        self.go(AttachmentStatus::Attached)?;
        self.data = Some(Json::new(data));
        self.last_processed_at = now;
        self.wait(Wait::none());
        Ok(())
    }

    /// It is not attached, and nothing is left of the attempt.
    ///
    /// # Errors
    /// As [`AttachmentRow::attach`].
    pub fn fail(&mut self, message: String, now: Time) -> Result<(), TransitionError> {
        self.go(AttachmentStatus::Failed)?;
        self.status_message = Some(message);
        self.last_processed_at = now;
        self.wait(Wait::none());
        Ok(())
    }

    /// It takes too long to attach it: whatever has come of that is undone.
    ///
    /// # Errors
    /// As [`AttachmentRow::attach`].
    pub fn give_up(&mut self, message: String, now: Time) -> Result<(), TransitionError> {
        self.detach(Some(now), now)?;
        self.status_message = Some(message);
        Ok(())
    }

    /// Why it was given up, while it is undone; `None`: it was not, or it is undone already.
    pub fn given_up_because(&self) -> Option<&str> {
        match self.status {
            AttachmentStatus::Detaching => self.status_message.as_deref(),
            _ => None,
        }
    }

    /// The instance is to be without it, from `forced_from` on (`None`: never) also if it does not let go of it.
    ///
    /// # Errors
    /// As [`AttachmentRow::attach`].
    pub fn detach(&mut self, forced_from: Option<Time>, now: Time) -> Result<(), TransitionError> {
        self.go(AttachmentStatus::Detaching)?;
        self.detaching_since = Some(now);
        self.forced_from = forced_from;
        self.last_processed_at = now;
        self.wait(Wait::none().or_at(now));
        Ok(())
    }

    /// Whether the volume is taken: an instance has it, may have it, or is to have it. One that could not be attached is free.
    pub const fn takes_volume(&self) -> bool {
        !matches!(self.status, AttachmentStatus::Failed)
    }

    /// Whether the instance has it, or is to have it, and is not to give it back.
    pub const fn is_wanted(&self) -> bool {
        matches!(
            self.status,
            AttachmentStatus::Attaching | AttachmentStatus::Attached
        )
    }
}
