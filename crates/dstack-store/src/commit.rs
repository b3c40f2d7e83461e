//! Changes that belong together: rows, their events and the operations they intend.

use dstack_model::changes::Changed;
use dstack_model::events::EventTargetType;
use dstack_units::{EventId, Time, UserId};
use uuid::Uuid;

use crate::entities::with_entities;
use crate::lease::Lease;
use crate::rows::{
    AttachmentRow, ComputeGroupRow, FleetRow, GatewayReplicaRow, GatewayRow, InstanceRow, JobRow,
    OperationRow, PlacementGroupRow, RunRow, VolumeRow,
};
use crate::writes::Change;
use crate::{Entity, EntityRef};

macro_rules! generate_put {
    ($($name:ident($row:ident, $id:ident) in $table:ident as $kind:literal, driven $driven:literal, is_over |$it:ident| $is_over:expr;)*) => {
        /// One row to insert (version 0) or to update (if it still has the version read).
        #[derive(Debug, Clone, PartialEq)]
        pub enum Put {
            $(
                #[doc = concat!("A row of `", stringify!($table), "`.")]
                $name($row),
            )*
            /// A call to the outside.
            Operation(OperationRow),
        }

        impl Put {
            /// Whom a change of this row concerns first; operations concern their subject.
            pub const fn entity(&self) -> EntityRef {
                match self {
                    $(Self::$name(row) => EntityRef::$name(row.id),)*
                    Self::Operation(row) => row.subject,
                }
            }

            /// The row's id.
            pub const fn id(&self) -> Uuid {
                match self {
                    $(Self::$name(row) => row.id.uuid(),)*
                    Self::Operation(row) => row.id.uuid(),
                }
            }

            /// Whether it is a new row.
            pub fn is_insert(&self) -> bool {
                match self {
                    $(Self::$name(row) => row.version() == 0,)*
                    Self::Operation(row) => row.version() == 0,
                }
            }
        }

        $(
            impl From<$row> for Put {
                fn from(row: $row) -> Self {
                    Self::$name(row)
                }
            }
        )*
    };
}
with_entities!(generate_put);

/// A row to delete, if it still has the version read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removal {
    /// The row to delete.
    pub entity: EntityRef,
    /// Version of the row when it was read.
    pub version: i64,
    /// What whoever shows the row has to read again.
    pub changed: Option<Changed>,
}

/// What an event is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventTarget {
    /// What it is, in a word that clients know.
    pub entity_type: EventTargetType,
    /// Id of the entity, as text.
    pub entity_id: String,
    /// Its name at the time.
    pub entity_name: String,
    /// For the `within_*` filters.
    pub project_id: Option<String>,
    /// For the `within_*` filters.
    pub run_id: Option<String>,
    /// For the `within_*` filters.
    pub fleet_id: Option<String>,
    /// For the `within_*` filters.
    pub gateway_id: Option<String>,
}

/// An audit event, written in the transaction of the change it reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent {
    /// Id.
    pub id: EventId,
    /// Fixed text that clients show verbatim.
    pub message: String,
    /// When the event was recorded.
    pub recorded_at: Time,
    /// Who; `None` = the system.
    pub actor: Option<UserId>,
    /// Of users who are no admins, only admins and managers of the targets' projects see it.
    pub for_managers: bool,
    /// What it is about; the order is kept.
    pub targets: Vec<EventTarget>,
}

/// Changes made in one transaction, or not at all.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Commit {
    /// Rows; each once.
    pub(crate) puts: Vec<Put>,
    /// Rows that are deleted; all others are kept for history.
    pub(crate) removals: Vec<Removal>,
    /// Changes of tables that the engine does not drive, made after those of rows.
    pub(crate) directory: Vec<Change>,
    pub(crate) events: Vec<NewEvent>,
    /// Name of the server that drives the rows inserted here; `None`: whoever claims them.
    pub owner: Option<String>,
    /// The lease under which this was decided: refused with [`crate::StoreError::LeaseLost`] when it is not held any more.
    /// `None` for what any server may do at any time, as calls of the API.
    pub fence: Option<Lease>,
}

impl Commit {
    /// These rows and events as they are, whatever follows from them: for tests. Programs use [`crate::Changes`], which
    /// forgets no event (clippy.toml sees to it).
    pub fn unchecked(puts: Vec<Put>, events: Vec<NewEvent>) -> Self {
        Self {
            puts,
            events,
            ..Self::default()
        }
    }

    /// The same, of which this server drives the new rows.
    #[must_use]
    pub fn driven_by(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// The same, refused unless this lease is held.
    #[must_use]
    pub fn under(mut self, lease: Lease) -> Self {
        self.fence = Some(lease);
        self
    }

    /// The rows that are written.
    pub fn puts(&self) -> &[Put] {
        &self.puts
    }

    /// The rows that are deleted.
    pub fn removals(&self) -> &[Removal] {
        &self.removals
    }

    /// What is changed in tables that the engine does not drive.
    pub fn directory(&self) -> &[Change] {
        &self.directory
    }

    /// The events that are written.
    pub fn events(&self) -> &[NewEvent] {
        &self.events
    }

    /// The same without events: for installations that keep none.
    #[must_use]
    pub fn without_events(mut self) -> Self {
        self.events.clear();
        self
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.puts.is_empty()
            && self.removals.is_empty()
            && self.directory.is_empty()
            && self.events.is_empty()
    }

    /// Whether it leaves all rows that there are as they are.
    pub fn only_adds(&self) -> bool {
        let puts_only = self.removals.is_empty() && self.directory.is_empty();
        puts_only && self.puts.iter().all(Put::is_insert) && self.runs_of_jobs().is_empty()
    }

    /// Runs whose jobs change here while they themselves do not.
    pub fn runs_of_jobs(&self) -> std::collections::BTreeSet<dstack_units::RunId> {
        let mut runs: std::collections::BTreeSet<_> = self
            .puts
            .iter()
            .filter_map(|put| {
                if let Put::Job(job) = put {
                    Some(job.run_id)
                } else {
                    None
                }
            })
            .collect();
        for put in &self.puts {
            if let Put::Run(run) = put {
                runs.remove(&run.id);
            }
        }
        runs
    }

    /// Whether it need not wait for any other commit: it only adds rows, and nothing is to be checked first.
    pub(crate) fn is_independent(&self) -> bool {
        self.fence.is_none() && self.only_adds()
    }

    /// Every row that this commit writes or counts up: two commits without a row in common may be written in any order.
    pub fn rows(&self) -> std::collections::BTreeSet<Uuid> {
        let written = self.puts.iter().map(Put::id);
        let removed = self.removals.iter().map(|removal| removal.entity.uuid());
        written
            .chain(removed)
            .chain(self.runs_of_jobs().into_iter().map(dstack_units::RunId::uuid))
            .collect()
    }
}
