//! Rows of fleets, and the changes of status that they allow.

use dstack_model::fleets::{FleetSpec, FleetStatus};
use dstack_plan::lifecycle::transitions::fleet_allowed;
use dstack_plan::lifecycle::{Wait, WaitReason};
use dstack_units::{FleetId, InstanceId, ProjectId, Time};

use super::{TransitionError, change_status, life};
use crate::Sealed;
use crate::entity::entity;

entity! {
    /// A named group of instances that are made for its project's runs, or connected over SSH.
    FleetRow in "fleets" {
        /// Id.
        key id: FleetId,
        /// Project.
        pub project_id: ProjectId,
        /// Unique among the project's fleets that are not deleted.
        pub name: String,
        /// When it was created.
        pub created_at: Time,
        /// Status.
        status: FleetStatus,
        /// Details of the status.
        pub status_message: Option<String>,
        /// What was asked for.
        pub spec: Sealed<FleetSpec>,
        /// The fleet of this very machine, kept by the server itself.
        pub local: bool,
        /// The first instance of a cluster: the others are made beside it.
        pub current_master_instance_id: Option<InstanceId>,
        /// Attempts in a row to get the fleet to its size.
        pub consolidation_attempt: i64,
        /// When the last of them was, or was found to be needless.
        pub last_consolidated_at: Option<Time>,
        /// Deleted; kept for history.
        pub deleted: bool,
        /// When it was deleted.
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

life!(FleetRow, FleetStatus);

impl FleetRow {
    /// A new fleet, ready for instances.
    pub fn active(id: FleetId, project: ProjectId, name: String, spec: FleetSpec, now: Time) -> Self {
        Self {
            id,
            project_id: project,
            name,
            created_at: now,
            status: FleetStatus::Active,
            status_message: None,
            spec: Sealed::new(spec),
            local: false,
            current_master_instance_id: None,
            consolidation_attempt: 0,
            last_consolidated_at: None,
            deleted: false,
            deleted_at: None,
            last_processed_at: now,
            next_wake_at: None,
            deadline_at: None,
            waiting_for: None,
            version: 0,
        }
    }

    fn go(&mut self, to: FleetStatus) -> Result<(), TransitionError> {
        change_status(("fleet", &self.id), &mut self.status, to, fleet_allowed)
    }

    /// Begins to end: it is over once its instances and runs are.
    ///
    /// # Errors
    /// The status must not follow the present one; nothing is changed.
    pub fn terminate(&mut self, now: Time) -> Result<(), TransitionError> {
        self.go(FleetStatus::Terminating)?;
        self.last_processed_at = now;
        self.wake_at(now);
        Ok(())
    }

    /// Is over and not shown any more.
    ///
    /// # Errors
    /// As [`FleetRow::terminate`].
    pub fn finish(&mut self, now: Time) -> Result<(), TransitionError> {
        self.go(FleetStatus::Terminated)?;
        self.deleted = true;
        self.deleted_at = Some(now);
        self.wait(Wait::none());
        Ok(())
    }
}
