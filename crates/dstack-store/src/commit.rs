//! Changes that belong together: rows, their events and the operations they intend.

use dstack_units::{EventId, Time, UserId};
use uuid::Uuid;

use crate::lease::Lease;
use crate::rows::{FleetRow, InstanceRow, JobRow, OperationRow, RunRow};
use crate::{Entity, EntityRef};

/// One row to insert (version 0) or to update (if it still has the version read).
#[derive(Debug, Clone, PartialEq)]
pub enum Put {
    /// A run.
    Run(RunRow),
    /// A job submission.
    Job(JobRow),
    /// An instance.
    Instance(InstanceRow),
    /// A fleet.
    Fleet(FleetRow),
    /// An operation.
    Operation(OperationRow),
}

impl Put {
    /// Whom a change of this row concerns first; operations concern their job or instance.
    pub fn entity(&self) -> Option<EntityRef> {
        match self {
            Self::Run(row) => Some(EntityRef::Run(row.id)),
            Self::Job(row) => Some(EntityRef::Job(row.id)),
            Self::Instance(row) => Some(EntityRef::Instance(row.id)),
            Self::Fleet(row) => Some(EntityRef::Fleet(row.id)),
            Self::Operation(row) => row
                .job_id
                .map(EntityRef::Job)
                .or_else(|| row.instance_id.map(EntityRef::Instance)),
        }
    }

    /// The row's id.
    pub const fn id(&self) -> Uuid {
        match self {
            Self::Run(row) => row.id.uuid(),
            Self::Job(row) => row.id.uuid(),
            Self::Instance(row) => row.id.uuid(),
            Self::Fleet(row) => row.id.uuid(),
            Self::Operation(row) => row.id.uuid(),
        }
    }

    /// Whether it is a new row.
    pub fn is_insert(&self) -> bool {
        match self {
            Self::Run(row) => row.version() == 0,
            Self::Job(row) => row.version() == 0,
            Self::Instance(row) => row.version() == 0,
            Self::Fleet(row) => row.version() == 0,
            Self::Operation(row) => row.version() == 0,
        }
    }
}

/// What an event is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventTarget {
    /// `run`, `job`, `instance`, `fleet`, `user`, `project`, `secret`, …
    pub entity_type: &'static str,
    /// Its id.
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
    /// When.
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
    /// Events.
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
        self.puts.is_empty() && self.events.is_empty()
    }

    /// Whether it leaves all rows that there are as they are.
    pub fn only_adds(&self) -> bool {
        self.puts.iter().all(Put::is_insert) && self.runs_of_jobs().is_empty()
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
        written
            .chain(self.runs_of_jobs().into_iter().map(dstack_units::RunId::uuid))
            .collect()
    }
}
