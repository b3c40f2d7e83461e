//! Rows of network volumes, and the changes of status that they allow.

use dstack_model::volumes::{AnyVolumeConfiguration, VolumeProvisioningData, VolumeStatus};
use dstack_plan::lifecycle::transitions::volume_allowed;
use dstack_plan::lifecycle::{Wait, WaitReason};
use dstack_plan::volumes::Candidate;
use dstack_units::{ProjectId, Time, UserId, VolumeId};

use super::{TransitionError, change_status, life};
use crate::Json;
use crate::entity::entity;

entity! {
    /// A network volume of a project, made in a cloud or registered from there.
    VolumeRow in "volumes" {
        /// Id.
        key id: VolumeId,
        /// Project.
        pub project_id: ProjectId,
        /// Who created it.
        pub user_id: UserId,
        /// Unique among the project's volumes that are not deleted.
        pub name: String,
        /// When it was created.
        pub created_at: Time,
        /// Status.
        status: VolumeStatus,
        /// Why it has failed.
        status_message: Option<String>,
        /// What was asked for.
        pub configuration: Json<AnyVolumeConfiguration>,
        /// What the cloud made of it; unset until the cloud has answered.
        pub provisioning_data: Option<Json<VolumeProvisioningData>>,
        /// Whether it is deleted once it has not been used for its `auto_cleanup_duration`.
        pub auto_cleanup_enabled: bool,
        /// Whether its deletion was asked for.
        pub to_be_deleted: bool,
        /// Whether it is gone from its cloud; the row is kept for history.
        pub deleted: bool,
        /// When it was found to be gone.
        pub deleted_at: Option<Time>,
        /// When a job used it last.
        pub last_job_processed_at: Option<Time>,
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

life!(VolumeRow, VolumeStatus);

/// What a volume begins with.
#[derive(Debug, Clone)]
pub struct NewVolume {
    /// Id.
    pub id: VolumeId,
    /// Project.
    pub project: ProjectId,
    /// Who creates it.
    pub user: UserId,
    /// Unique among the project's volumes that are not deleted.
    pub name: String,
    /// What is asked for, with that name.
    pub configuration: AnyVolumeConfiguration,
    /// Whether it is deleted once it has not been used for its `auto_cleanup_duration`.
    pub auto_cleanup_enabled: bool,
}

impl VolumeRow {
    /// A new volume that its cloud has yet to make.
    pub fn submitted(new: NewVolume, now: Time) -> Self {
        Self {
            id: new.id,
            project_id: new.project,
            user_id: new.user,
            name: new.name,
            created_at: now,
            status: VolumeStatus::Submitted,
            status_message: None,
            configuration: Json::new(new.configuration),
            provisioning_data: None,
            auto_cleanup_enabled: new.auto_cleanup_enabled,
            to_be_deleted: false,
            deleted: false,
            deleted_at: None,
            last_job_processed_at: None,
            last_processed_at: now,
            next_wake_at: Some(now),
            deadline_at: None,
            waiting_for: None,
            version: 0,
        }
    }

    /// Why it has failed, for users.
    pub fn status_message(&self) -> Option<&str> {
        self.status_message.as_deref()
    }

    fn go(&mut self, to: VolumeStatus) -> Result<(), TransitionError> {
        change_status(("volume", &self.id), &mut self.status, to, volume_allowed)
    }

    /// The cloud has made it, or it was there already.
    ///
    /// # Errors
    /// The status must not follow the present one; nothing is changed.
    pub fn activate(&mut self, data: VolumeProvisioningData, now: Time) -> Result<(), TransitionError> {
        self.go(VolumeStatus::Active)?;
        self.provisioning_data = Some(Json::new(data));
        self.last_processed_at = now;
        self.wait(Wait::none());
        Ok(())
    }

    /// The cloud refuses to make it, and nothing was made.
    ///
    /// # Errors
    /// As [`VolumeRow::activate`].
    pub fn fail(&mut self, message: String, now: Time) -> Result<(), TransitionError> {
        self.go(VolumeStatus::Failed)?;
        self.status_message = Some(message);
        self.last_processed_at = now;
        self.wait(Wait::none());
        Ok(())
    }

    /// As planning looks at it.
    pub fn candidate(&self) -> Candidate<'_> {
        Candidate {
            name: &self.name,
            status: self.status,
            to_be_deleted: self.to_be_deleted,
            configuration: &self.configuration,
            made: self.provisioning_data.as_deref(),
        }
    }

    /// A job uses it, or has used it until now.
    pub const fn used(&mut self, now: Time) {
        self.last_job_processed_at = Some(now);
    }

    /// Its deletion is asked for.
    pub const fn mark_for_deletion(&mut self, now: Time) {
        self.to_be_deleted = true;
        self.last_processed_at = now;
        self.wake_at(now);
    }

    /// Nothing of it is left.
    pub fn finish(&mut self, now: Time) {
        self.deleted = true;
        self.deleted_at = Some(now);
        self.last_processed_at = now;
        self.wait(Wait::none());
    }

    /// Whether it costs money in a cloud of this type, or may do so any moment: only a backend of this type can end that.
    pub fn needs(&self, backend: &str) -> bool {
        let made = self.provisioning_data.as_ref();
        let kind = made
            .and_then(|data| data.backend)
            .unwrap_or(self.configuration.backend());
        let may_exist = made.is_some() || self.status == VolumeStatus::Submitted;
        may_exist && kind.as_str() == backend
    }
}
