//! Which status may follow which. The engine checks every commit against these tables.

use dstack_model::fleets::FleetStatus;
use dstack_model::gateways::{GatewayReplicaStatus, GatewayStatus};
use dstack_model::instances::InstanceStatus;
use dstack_model::runs::{JobStatus, RunStatus};
use dstack_model::volumes::VolumeStatus;

use super::attachment::AttachmentStatus;
use super::compute_group::ComputeGroupState;
use super::placement_group::PlacementGroupStatus;

/// Whether a run may go from one status to the other.
pub const fn run_allowed(from: RunStatus, to: RunStatus) -> bool {
    use RunStatus::{Done, Failed, Pending, Provisioning, Running, Submitted, Terminated, Terminating};
    match from {
        Pending => matches!(to, Submitted | Terminating),
        // A retry gives the run new submissions, so that it may go back to every earlier status.
        Submitted | Provisioning | Running => {
            matches!(to, Submitted | Provisioning | Running | Pending | Terminating)
        }
        Terminating => matches!(to, Terminated | Failed | Done | Pending),
        Terminated | Failed | Done => false,
    }
}

/// Whether a job submission may go from one status to the other.
pub const fn job_allowed(from: JobStatus, to: JobStatus) -> bool {
    use JobStatus::{
        Aborted, Done, Failed, Provisioning, Pulling, Running, Submitted, Terminated, Terminating,
    };
    match from {
        Submitted => matches!(to, Provisioning | Terminating),
        Provisioning => matches!(to, Pulling | Running | Terminating),
        Pulling => matches!(to, Running | Terminating),
        Running => matches!(to, Terminating),
        Terminating => matches!(to, Terminated | Aborted | Failed | Done),
        Terminated | Aborted | Failed | Done => false,
    }
}

/// Whether an instance may go from one status to the other.
pub const fn instance_allowed(from: InstanceStatus, to: InstanceStatus) -> bool {
    use InstanceStatus::{Busy, Idle, Pending, Provisioning, Terminated, Terminating};
    match from {
        Pending => matches!(to, Provisioning | Idle | Busy | Terminating | Terminated),
        Provisioning => matches!(to, Idle | Busy | Terminating | Terminated),
        Idle => matches!(to, Busy | Terminating),
        Busy => matches!(to, Idle | Terminating),
        Terminating => matches!(to, Terminated),
        Terminated => false,
    }
}

/// Whether a fleet may go from one status to the other.
pub const fn fleet_allowed(from: FleetStatus, to: FleetStatus) -> bool {
    use FleetStatus::{Active, Failed, Submitted, Terminated, Terminating};
    match from {
        Submitted => matches!(to, Active | Failed | Terminating),
        Active => matches!(to, Terminating),
        Failed => matches!(to, Terminating),
        Terminating => matches!(to, Terminated),
        Terminated => false,
    }
}

/// Whether a volume may go from one status to the other. Deleting one is no status: it keeps the one it has.
pub const fn volume_allowed(from: VolumeStatus, to: VolumeStatus) -> bool {
    use VolumeStatus::{Active, Failed, Provisioning, Submitted};
    match from {
        Submitted => matches!(to, Provisioning | Active | Failed),
        Provisioning => matches!(to, Active | Failed),
        Active | Failed => false,
    }
}

/// Whether an attachment of a volume may go from one status to the other. One that is gone has no row.
pub const fn attachment_allowed(from: AttachmentStatus, to: AttachmentStatus) -> bool {
    use AttachmentStatus::{Attached, Attaching, Detaching, Failed};
    match from {
        Attaching => matches!(to, Attached | Detaching | Failed),
        Attached => matches!(to, Detaching),
        // Of one that was given up the job is told why.
        Detaching => matches!(to, Failed),
        Failed => false,
    }
}

/// Whether a gateway may go from one status to the other. Deleting one is no status: it keeps the one it has.
pub const fn gateway_allowed(from: GatewayStatus, to: GatewayStatus) -> bool {
    use GatewayStatus::{Failed, Provisioning, Running, Submitted};
    match from {
        Submitted => matches!(to, Provisioning | Failed),
        Provisioning => matches!(to, Running | Failed),
        Running | Failed => false,
    }
}

/// Whether a replica of a gateway may go from one status to the other.
pub const fn gateway_replica_allowed(from: GatewayReplicaStatus, to: GatewayReplicaStatus) -> bool {
    use GatewayReplicaStatus::{Provisioning, Running, Submitted, Terminated, Terminating};
    match from {
        Submitted => matches!(to, Provisioning | Terminating | Terminated),
        Provisioning => matches!(to, Running | Terminating | Terminated),
        Running => matches!(to, Terminating),
        Terminating => matches!(to, Terminated),
        Terminated => false,
    }
}

/// Whether a compute group may go from one state to the other. One of which nothing was made ends at once.
pub const fn compute_group_allowed(from: ComputeGroupState, to: ComputeGroupState) -> bool {
    use ComputeGroupState::{Running, Submitted, Terminated, Terminating};
    match from {
        Submitted => matches!(to, Running | Terminated),
        Running => matches!(to, Terminating),
        Terminating => matches!(to, Terminated),
        Terminated => false,
    }
}

/// Whether a placement group may go from one status to the other.
pub const fn placement_group_allowed(from: PlacementGroupStatus, to: PlacementGroupStatus) -> bool {
    use PlacementGroupStatus::{Active, Deleted, Failed, Submitted, Unused};
    match from {
        Submitted => matches!(to, Active | Failed | Unused),
        Active => matches!(to, Unused),
        Unused => matches!(to, Deleted),
        Failed | Deleted => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends reached from the first status by allowed steps; each status is visited once.
    fn ends<T: Copy + PartialEq>(all: &[T], first: T, allowed: fn(T, T) -> bool) -> Vec<T> {
        let (mut open, mut seen, mut ends) = (vec![first], Vec::new(), Vec::new());
        while let Some(from) = open.pop() {
            if seen.contains(&from) {
                continue;
            }
            seen.push(from);
            let next: Vec<T> = all.iter().copied().filter(|to| allowed(from, *to)).collect();
            if next.is_empty() {
                ends.push(from);
            }
            open.extend(next);
        }
        assert_eq!(seen.len(), all.len(), "a status that nothing leads to");
        ends
    }

    /// Every life ends, and in the statuses meant for that.
    #[test]
    fn lives_end_where_they_should() {
        use {FleetStatus as F, GatewayReplicaStatus as R, GatewayStatus as G, VolumeStatus as V};
        let all = [F::Submitted, F::Active, F::Terminating, F::Terminated, F::Failed];
        assert_eq!(ends(&all, F::Submitted, fleet_allowed), [F::Terminated]);
        let all = [V::Submitted, V::Provisioning, V::Active, V::Failed];
        let found = ends(&all, V::Submitted, volume_allowed);
        assert!(found.len() == 2 && found.contains(&V::Active) && found.contains(&V::Failed));
        let all = [G::Submitted, G::Provisioning, G::Running, G::Failed];
        let found = ends(&all, G::Submitted, gateway_allowed);
        assert!(found.len() == 2 && found.contains(&G::Running) && found.contains(&G::Failed));
        let all = [
            R::Submitted,
            R::Provisioning,
            R::Running,
            R::Terminating,
            R::Terminated,
        ];
        assert_eq!(ends(&all, R::Submitted, gateway_replica_allowed), [R::Terminated]);
        use ComputeGroupState as C;
        let all = [C::Submitted, C::Running, C::Terminating, C::Terminated];
        assert_eq!(ends(&all, C::Submitted, compute_group_allowed), [C::Terminated]);
        use PlacementGroupStatus as P;
        let all = [P::Submitted, P::Active, P::Failed, P::Unused, P::Deleted];
        let found = ends(&all, P::Submitted, placement_group_allowed);
        assert!(found.len() == 2 && found.contains(&P::Failed) && found.contains(&P::Deleted));
    }
}
