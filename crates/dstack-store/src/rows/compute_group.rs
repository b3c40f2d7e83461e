//! Rows of compute groups, and the changes of state that they allow.

use dstack_model::compute_groups::ComputeGroupProvisioningData;
use dstack_plan::lifecycle::compute_group::ComputeGroupState;
use dstack_plan::lifecycle::transitions::compute_group_allowed;
use dstack_plan::lifecycle::{Wait, WaitReason};
use dstack_units::{ComputeGroupId, FleetId, InstanceId, ProjectId, Time};

use super::{FleetRow, TransitionError, change_status, life};
use crate::entity::entity;
use crate::{Json, Sealed};

entity! {
    /// Containers that a cloud makes and removes as one, one for each node of a run.
    ComputeGroupRow in "compute_groups" {
        /// Id, which everything that is made for the group carries.
        key id: ComputeGroupId,
        /// Project of the fleet.
        pub project_id: ProjectId,
        /// The fleet whose instances its members are.
        pub fleet_id: FleetId,
        /// Name of the run, for people.
        pub name: String,
        /// When it was created.
        pub created_at: Time,
        /// Where it is in its life.
        status: ComputeGroupState,
        /// Its instances, in the order of the nodes.
        pub members: Json<Vec<InstanceId>>,
        /// What the cloud made of it; unset until the cloud has answered.
        pub provisioning_data: Option<Sealed<ComputeGroupProvisioningData>>,
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

life!(ComputeGroupRow, ComputeGroupState);

impl ComputeGroupRow {
    /// A new group of these instances of a fleet, which its cloud has yet to make.
    pub fn submitted(
        id: ComputeGroupId,
        fleet: &FleetRow,
        name: String,
        members: Vec<InstanceId>,
        now: Time,
    ) -> Self {
        Self {
            id,
            project_id: fleet.project_id,
            fleet_id: fleet.id,
            name,
            created_at: now,
            status: ComputeGroupState::Submitted,
            members: Json::new(members),
            provisioning_data: None,
            deleted_at: None,
            last_processed_at: now,
            next_wake_at: Some(now),
            deadline_at: None,
            waiting_for: None,
            version: 0,
        }
    }

    fn go(&mut self, to: ComputeGroupState, now: Time) -> Result<(), TransitionError> {
        let of = ("compute group", &self.id as &dyn std::fmt::Display);
        change_status(of, &mut self.status, to, compute_group_allowed)?;
        self.last_processed_at = now;
        self.wait(Wait::none());
        Ok(())
    }

    /// The cloud has made all of it.
    ///
    /// # Errors
    /// The state must not follow the present one; nothing is changed.
    pub fn run(&mut self, data: ComputeGroupProvisioningData, now: Time) -> Result<(), TransitionError> {
        self.go(ComputeGroupState::Running, now)?;
        self.provisioning_data = Some(Sealed::new(data));
        self.wake_at(now);
        Ok(())
    }

    /// The cloud is to remove all of it.
    ///
    /// # Errors
    /// As [`ComputeGroupRow::run`].
    pub fn terminate(&mut self, now: Time) -> Result<(), TransitionError> {
        self.go(ComputeGroupState::Terminating, now)
    }

    /// Nothing of it is left.
    ///
    /// # Errors
    /// As [`ComputeGroupRow::run`].
    pub fn finish(&mut self, now: Time) -> Result<(), TransitionError> {
        self.go(ComputeGroupState::Terminated, now)?;
        self.deleted_at = Some(now);
        Ok(())
    }
}
