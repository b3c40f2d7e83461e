//! The engine's entities: one file and one struct per table.
//!
//! Status, reason, deadline, wake time and what is waited for are private to each file: they change through methods that
//! consult the table of allowed transitions (`dstack_plan::lifecycle::transitions`), and nowhere else.

mod attachment;
mod compute_group;
mod fleet;
mod gateway;
mod gateway_replica;
mod instance;
mod job;
mod leaving;
mod operation;
mod placement_group;
mod run;
mod volume;

use dstack_model::fleets::FleetStatus;
use dstack_model::gateways::{GatewayReplicaStatus, GatewayStatus};
use dstack_model::health::HealthStatus;
use dstack_model::instances::{InstanceStatus, InstanceTerminationReason};
use dstack_model::runs::{JobStatus, JobTerminationReason, RunStatus, RunTerminationReason};
use dstack_model::volumes::VolumeStatus;
use dstack_plan::lifecycle::WaitReason;
use dstack_plan::lifecycle::attachment::AttachmentStatus;
use dstack_plan::lifecycle::compute_group::ComputeGroupState;
use dstack_plan::lifecycle::placement_group::PlacementGroupStatus;
use dstack_plan::probes::ProbeStates;

pub use attachment::AttachmentRow;
pub use compute_group::ComputeGroupRow;
pub use dstack_plan::placement::HostRules;
pub use fleet::FleetRow;
pub use gateway::{GatewayRow, NewGateway};
pub use gateway_replica::GatewayReplicaRow;
pub use instance::{AgentAddress, InstanceRow};
pub use job::JobRow;
pub use leaving::LeavingHost;
pub use operation::{OperationKind, OperationRow, OperationState};
pub use placement_group::PlacementGroupRow;
pub use run::{NewRun, RunRow};
pub use volume::{NewVolume, VolumeRow};

crate::text_columns!(
    AttachmentStatus,
    ComputeGroupState,
    FleetStatus,
    GatewayReplicaStatus,
    GatewayStatus,
    HealthStatus,
    InstanceStatus,
    InstanceTerminationReason,
    JobStatus,
    JobTerminationReason,
    RunStatus,
    RunTerminationReason,
    VolumeStatus,
    OperationKind,
    OperationState,
    PlacementGroupStatus,
);

/// A status was to follow one that it must not follow: a bug. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{entity} {id} cannot go from {from} to {to}")]
pub struct TransitionError {
    /// Kind of row.
    pub entity: &'static str,
    /// The row's id.
    pub id: String,
    /// The status it has.
    pub from: String,
    /// The status it was to get.
    pub to: String,
}

/// Changes a status if the table allows it; staying in a status is always allowed.
fn change_status<S: Copy + PartialEq + serde::Serialize>(
    (entity, id): (&'static str, &dyn std::fmt::Display),
    status: &mut S,
    to: S,
    allowed: fn(S, S) -> bool,
) -> Result<(), TransitionError> {
    if *status == to || allowed(*status, to) {
        *status = to;
        return Ok(());
    }
    Err(TransitionError {
        entity,
        id: id.to_string(),
        from: crate::events::upper(status),
        to: crate::events::upper(&to),
    })
}

/// Kept as JSON; rows written before there were kinds have a plain text.
impl crate::Column for WaitReason {
    type Raw = String;
    fn to_raw(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|_| self.to_string())
    }
    fn from_raw(raw: String) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        Ok(serde_json::from_str(&raw).unwrap_or(Self::Other { text: raw }))
    }
}

/// Kept as JSON; what is not understood counts as if no probe had been asked.
impl crate::Column for ProbeStates {
    type Raw = String;
    fn to_raw(&self) -> String {
        // Numbers and texts, for which serialization cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }
    fn from_raw(raw: String) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        Ok(serde_json::from_str(&raw).unwrap_or_default())
    }
}

/// The reads that all rows with a life of their own have, and the ways to wait.
macro_rules! life {
    ($row:ident, $status:ty) => {
        impl $row {
            /// The status as of the last read or change.
            pub const fn status(&self) -> $status {
                self.status
            }

            /// When the engine looks again by itself.
            pub const fn next_wake_at(&self) -> Option<dstack_units::Time> {
                self.next_wake_at
            }

            /// When the present wait ends badly.
            pub const fn deadline_at(&self) -> Option<dstack_units::Time> {
                self.deadline_at
            }

            /// What it waits for.
            pub const fn waiting_for(&self) -> Option<&dstack_plan::lifecycle::WaitReason> {
                self.waiting_for.as_ref()
            }

            /// The present wait as a whole.
            pub fn stored_wait(&self) -> dstack_plan::lifecycle::Wait {
                dstack_plan::lifecycle::Wait {
                    deadline: self.deadline_at,
                    wake_at: self.next_wake_at,
                    reason: self.waiting_for.clone(),
                }
            }

            /// Waits, from now on for this alone.
            pub fn wait(&mut self, wait: dstack_plan::lifecycle::Wait) {
                self.deadline_at = wait.deadline;
                self.next_wake_at = wait.wake_at;
                self.waiting_for = wait.reason;
            }

            /// Is looked at again then, whatever it waits for.
            pub const fn wake_at(&mut self, at: dstack_units::Time) {
                self.next_wake_at = Some(at);
            }
        }
    };
}
use life;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Column;

    #[test]
    fn probes_of_another_form_do_not_make_a_row_unreadable() {
        let known = ProbeStates::from_raw(r#"[{"streak": 1, "failures": 0}]"#.to_owned()).unwrap();
        assert_eq!(known.of(0).streak, 1);
        assert_eq!(ProbeStates::from_raw(known.to_raw()).unwrap(), known);
        let unknown = ProbeStates::from_raw(r#"{"version": 9}"#.to_owned()).unwrap();
        assert_eq!(unknown, ProbeStates::default());
    }

    #[test]
    fn waits_of_versions_without_kinds_are_read_as_texts() {
        let old = WaitReason::from_raw("its jobs to end".to_owned()).unwrap();
        assert_eq!(old.to_string(), "its jobs to end");
        let new = WaitReason::FleetSize { attempt: 3 };
        assert_eq!(WaitReason::from_raw(new.to_raw()).unwrap(), new);
    }
}
