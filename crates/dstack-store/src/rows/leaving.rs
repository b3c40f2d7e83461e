//! Hosts that their fleet does not name any more, until they are released.

use dstack_model::fleets::FleetSpec;
use dstack_units::{OperationId, Time};
use serde::{Deserialize, Serialize};

use super::{OperationKind, OperationRow, OperationState};
use crate::{EntityRef, Sealed};

/// What its fleet said of such a host, with the keys that open it and its jump host, encrypted as in the fleet. It stands in the
/// notes of the release, and goes with its end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LeavingHost {
    /// The fleet as it was, with no other host.
    pub fleet: FleetSpec,
}

impl LeavingHost {
    /// The release of a host that is under way; `None`: nothing is kept for it.
    pub fn of(operations: &[OperationRow]) -> Option<Self> {
        let under_way =
            |row: &&OperationRow| row.kind == OperationKind::Release && row.state == OperationState::Intended;
        let release = operations.iter().rev().find(under_way)?;
        serde_json::from_value(release.notes.as_deref()?.clone()).ok()
    }

    /// The release of the host, still to be made, that keeps this; `None`: it has ended already. `id` is for one that is new.
    pub fn release(
        &self,
        operations: &[OperationRow],
        subject: EntityRef,
        id: OperationId,
        now: Time,
    ) -> Option<OperationRow> {
        let last = operations
            .iter()
            .rev()
            .find(|row| row.kind == OperationKind::Release);
        let release = match last {
            None => OperationRow::intended(id, subject, OperationKind::Release, now),
            Some(row) if row.state == OperationState::Intended => row.clone(),
            Some(_) => return None,
        };
        Some(OperationRow {
            // Serialization of a specification that was decoded cannot fail.
            notes: serde_json::to_value(self).ok().map(Sealed::new),
            ..release
        })
    }
}
