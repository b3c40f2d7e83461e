//! Rows of placement groups, and the changes of status that they allow.

use dstack_model::placement::{PlacementGroupConfiguration, PlacementGroupProvisioningData};
use dstack_plan::lifecycle::placement_group::PlacementGroupStatus;
use dstack_plan::lifecycle::transitions::placement_group_allowed;
use dstack_plan::lifecycle::{Wait, WaitReason};
use dstack_units::{FleetId, PlacementGroupId, ProjectId, Time};

use super::{FleetRow, TransitionError, change_status, life};
use crate::Json;
use crate::entity::entity;

entity! {
    /// A group of machines of one fleet that a cloud places close to each other.
    PlacementGroupRow in "placement_groups" {
        /// Id, which the group carries in its cloud.
        key id: PlacementGroupId,
        /// Project of the fleet.
        pub project_id: ProjectId,
        /// The fleet whose machines are in it.
        pub fleet_id: FleetId,
        /// Name of the fleet: what the cloud calls the group follows from it and the id.
        pub name: String,
        /// When it was created.
        pub created_at: Time,
        /// Where it is in its life.
        status: PlacementGroupStatus,
        /// Why it has failed.
        status_message: Option<String>,
        /// What was asked for.
        pub configuration: Json<PlacementGroupConfiguration>,
        /// Type of the machine for which it was asked first.
        pub instance_type: String,
        /// What the cloud made of it; unset until the cloud has answered.
        pub provisioning_data: Option<Json<PlacementGroupProvisioningData>>,
        /// When it was found to be gone.
        pub deleted_at: Option<Time>,
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

life!(PlacementGroupRow, PlacementGroupStatus);

impl PlacementGroupRow {
    /// A new group of a fleet that its cloud has yet to make, for machines of this type.
    pub fn submitted(
        id: PlacementGroupId,
        fleet: &FleetRow,
        configuration: PlacementGroupConfiguration,
        instance_type: String,
        now: Time,
    ) -> Self {
        Self {
            id,
            project_id: fleet.project_id,
            fleet_id: fleet.id,
            name: fleet.name.clone(),
            created_at: now,
            status: PlacementGroupStatus::Submitted,
            status_message: None,
            configuration: Json::new(configuration),
            instance_type,
            provisioning_data: None,
            deleted_at: None,
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

    fn go(&mut self, to: PlacementGroupStatus, now: Time) -> Result<(), TransitionError> {
        let of = ("placement group", &self.id as &dyn std::fmt::Display);
        change_status(of, &mut self.status, to, placement_group_allowed)?;
        self.last_processed_at = now;
        self.wait(Wait::none());
        Ok(())
    }

    /// The cloud has made it.
    ///
    /// # Errors
    /// The status must not follow the present one; nothing is changed.
    pub fn activate(
        &mut self,
        data: PlacementGroupProvisioningData,
        now: Time,
    ) -> Result<(), TransitionError> {
        self.go(PlacementGroupStatus::Active, now)?;
        self.provisioning_data = Some(Json::new(data));
        Ok(())
    }

    /// The cloud refuses to make it, and nothing was made.
    ///
    /// # Errors
    /// As [`PlacementGroupRow::activate`].
    pub fn fail(&mut self, message: String, now: Time) -> Result<(), TransitionError> {
        self.go(PlacementGroupStatus::Failed, now)?;
        self.status_message = Some(message);
        Ok(())
    }

    /// Nobody wants it any more.
    ///
    /// # Errors
    /// As [`PlacementGroupRow::activate`].
    pub fn set_aside(&mut self, now: Time) -> Result<(), TransitionError> {
        self.go(PlacementGroupStatus::Unused, now)?;
        self.wake_at(now);
        Ok(())
    }

    /// Nothing of it is left.
    ///
    /// # Errors
    /// As [`PlacementGroupRow::activate`].
    pub fn finish(&mut self, now: Time) -> Result<(), TransitionError> {
        self.go(PlacementGroupStatus::Deleted, now)?;
        self.deleted_at = Some(now);
        Ok(())
    }
}
