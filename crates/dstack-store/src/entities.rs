//! The engine's entities: what it drives, in one list.
//!
//! A new entity is a line in [`with_entities`], a file in [`crate::rows`], and a snapshot in [`crate::EngineStore`]; leases,
//! commits, notifications between servers and the store in memory follow from the list.

use std::fmt;
use std::str::FromStr;

use dstack_units::{
    AttachmentId, ComputeGroupId, FleetId, GatewayId, GatewayReplicaId, InstanceId, JobId, PlacementGroupId,
    RunId, VolumeId,
};
use uuid::Uuid;

use crate::Column;

/// Hands the list of entities to a macro: name, row and id; table; name of the kind in texts; when somebody drives a row, in
/// SQL, and when nobody does any more, in Rust.
///
/// The order is that in which tables are written, so that servers that share a database do not wait for each other in a circle.
macro_rules! with_entities {
    ($($generate:tt)*) => {
        $($generate)*! {
            Fleet(FleetRow, FleetId) in fleets as "fleet",
                driven "status NOT IN ('terminated', 'failed')",
                is_over |row| matches!(
                    row.status(),
                    dstack_model::fleets::FleetStatus::Terminated | dstack_model::fleets::FleetStatus::Failed
                );
            Instance(InstanceRow, InstanceId) in instances as "instance",
                driven "status NOT IN ('terminated')",
                is_over |row| row.status() == dstack_model::instances::InstanceStatus::Terminated;
            Volume(VolumeRow, VolumeId) in volumes as "volume",
                driven "deleted = 0",
                is_over |row| row.deleted;
            Attachment(AttachmentRow, AttachmentId) in attachments as "attachment",
                driven "status NOT IN ('failed')",
                is_over |row| row.status() == dstack_plan::lifecycle::attachment::AttachmentStatus::Failed;
            Gateway(GatewayRow, GatewayId) in gateways as "gateway",
                driven "TRUE",
                is_over |_row| false;
            GatewayReplica(GatewayReplicaRow, GatewayReplicaId) in gateway_replicas as "gateway-replica",
                driven "status NOT IN ('terminated')",
                is_over |row| row.status() == dstack_model::gateways::GatewayReplicaStatus::Terminated;
            PlacementGroup(PlacementGroupRow, PlacementGroupId) in placement_groups as "placement-group",
                driven "status NOT IN ('failed', 'deleted')",
                is_over |row| row.status().is_over();
            ComputeGroup(ComputeGroupRow, ComputeGroupId) in compute_groups as "compute-group",
                driven "status NOT IN ('terminated')",
                is_over |row| row.status() == dstack_plan::lifecycle::compute_group::ComputeGroupState::Terminated;
            Run(RunRow, RunId) in runs as "run",
                driven "status NOT IN ('terminated', 'failed', 'done')",
                is_over |row| row.status().is_finished();
            Job(JobRow, JobId) in jobs as "job",
                driven "status NOT IN ('terminated', 'aborted', 'failed', 'done')",
                is_over |row| row.status().is_finished();
        }
    };
}
pub(crate) use with_entities;

macro_rules! generate_entity_ref {
    ($($name:ident($row:ident, $id:ident) in $table:ident as $kind:literal, driven $driven:literal, is_over |$it:ident| $is_over:expr;)*) => {
        /// Names one row of the engine. As text: kind and id, with a space between them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum EntityRef {
            $(
                #[doc = concat!("Id of a row of `", stringify!($table), "`.")]
                $name($id),
            )*
        }

        impl EntityRef {
            /// Kind of the row, as in events: `run`, `job`, …
            pub const fn kind(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => $kind,)*
                }
            }

            /// The row's id.
            pub const fn uuid(&self) -> Uuid {
                match self {
                    $(Self::$name(id) => id.uuid(),)*
                }
            }

            /// Name of the row's table.
            pub(crate) const fn table(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => stringify!($table),)*
                }
            }
        }

        impl FromStr for EntityRef {
            type Err = UnknownEntity;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let unknown = || UnknownEntity(text.to_owned());
                let (kind, id) = text.split_once(' ').ok_or_else(unknown)?;
                match kind {
                    $($kind => id.parse().map(Self::$name).map_err(|_| unknown()),)*
                    _ => Err(unknown()),
                }
            }
        }

        /// A table of rows that are driven.
        #[derive(Debug, Clone, Copy)]
        pub(crate) struct DrivenTable {
            /// Name of the table in the database.
            pub(crate) name: &'static str,
            /// Condition of rows that somebody drives, in the very words of the table's index.
            pub(crate) driven: &'static str,
            /// The entity with an id.
            pub(crate) entity: fn(&str) -> Option<EntityRef>,
        }

        impl DrivenTable {
            /// The column that has the name of a row.
            pub(crate) fn name_column(&self) -> &'static str {
                match self.name {
                    "runs" => "run_name",
                    "jobs" => "job_name",
                    _ => "name",
                }
            }
        }

        /// All tables of rows that are driven.
        pub(crate) const DRIVEN: &[DrivenTable] = &[
            $(DrivenTable {
                name: stringify!($table),
                driven: $driven,
                entity: |id| id.parse().ok().map(EntityRef::$name),
            },)*
        ];
    };
}
with_entities!(generate_entity_ref);

/// A text that names no entity that this version knows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the kind and id of an entity")]
pub struct UnknownEntity(String);

impl fmt::Display for EntityRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind(), self.uuid())
    }
}

impl Column for EntityRef {
    type Raw = String;
    fn to_raw(&self) -> String {
        self.to_string()
    }
    fn from_raw(raw: String) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        Ok(raw.parse::<Self>()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entities_are_read_as_they_are_written() {
        let id = Uuid::from_u128(7);
        for entity in [
            EntityRef::Run(id.into()),
            EntityRef::Job(id.into()),
            EntityRef::Volume(id.into()),
            EntityRef::PlacementGroup(id.into()),
            EntityRef::ComputeGroup(id.into()),
        ] {
            assert_eq!(entity.to_string().parse(), Ok(entity));
        }
        assert!("moon 1".parse::<EntityRef>().is_err() && "run".parse::<EntityRef>().is_err());
    }
}
