//! Telling what was written to those who show it.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

use dstack_model::changes::{Changed, ChangedKind};
use dstack_units::{ProjectId, UserId};
use uuid::Uuid;

use crate::commit::{Commit, NewEvent, Put};
use crate::writes::Change;
use crate::{Database, Result, StoreError};

/// Hears what this server has written, once it is written. Nobody tells what other servers write.
pub trait ChangeObserver: Send + Sync + Debug {
    /// This is not as it was; each once. Must not block.
    fn changed(&self, changed: BTreeSet<Changed>);
}

/// Who hears of it, once there is somebody.
#[derive(Debug, Clone, Default)]
pub(crate) struct Observed(Arc<OnceLock<Arc<dyn ChangeObserver>>>);

impl Observed {
    pub(crate) fn is_observed(&self) -> bool {
        self.0.get().is_some()
    }

    /// Tells of what came to this end. Also after an error that leaves open whether it was written.
    pub(crate) fn tell<T>(&self, changed: BTreeSet<Changed>, outcome: &Result<T>) {
        let may_be_written = match outcome {
            Ok(_) => true,
            Err(StoreError::Closed) => false,
            Err(error) => error.unavailable().is_some(),
        };
        if let Some(observer) = self.0.get()
            && may_be_written
            && !changed.is_empty()
        {
            observer.changed(changed);
        }
    }
}

impl Database {
    /// From now on, tells of all that is written; the first observer stays.
    pub fn observe(&self, observer: Arc<dyn ChangeObserver>) {
        self.observed().0.set(observer).ok(); // one server has one
    }
}

impl Commit {
    /// What is not as it was once this is written.
    pub fn changed(&self) -> BTreeSet<Changed> {
        let rows = self.puts().iter().filter_map(Put::changed);
        let removed = self.removals().iter().filter_map(|removal| removal.changed);
        let directory = self.directory().iter().filter_map(Change::changed);
        rows.chain(removed)
            .chain(directory)
            .chain(of_events(self.events()))
            .collect()
    }
}

/// The same of changes outside of the engine.
pub(crate) fn of_changes(changes: &[Change], events: &[NewEvent]) -> BTreeSet<Changed> {
    let changed = changes.iter().filter_map(Change::changed);
    changed.chain(of_events(events)).collect()
}

/// One for each project that has a new event. Those of users alone are of no project.
fn of_events(events: &[NewEvent]) -> impl Iterator<Item = Changed> {
    let targets = events.iter().flat_map(|event| event.targets.iter());
    targets.map(|target| Changed {
        kind: ChangedKind::Event,
        id: None,
        project_id: target.project_id.as_ref().and_then(|id| id.parse().ok()),
        fleet_id: None,
    })
}

impl Put {
    /// What whoever shows it has to read again; `None`: nobody shows it.
    pub(crate) fn changed(&self) -> Option<Changed> {
        use ChangedKind::{Fleet, Gateway, Instance, Run, Volume};
        let (kind, project, id) = match self {
            Self::Run(row) => (Run, row.project_id, row.id.uuid()),
            Self::Job(row) => (Run, row.project_id, row.run_id.uuid()),
            Self::Fleet(row) => (Fleet, row.project_id, row.id.uuid()),
            Self::Volume(row) => (Volume, row.project_id, row.id.uuid()),
            Self::Attachment(row) => (Volume, row.project_id, row.volume_id.uuid()),
            Self::Gateway(row) => (Gateway, row.project_id, row.id.uuid()),
            Self::GatewayReplica(row) => (Gateway, row.project_id, row.gateway_id.uuid()),
            Self::Instance(row) => {
                return Some(Changed {
                    fleet_id: row.fleet_id,
                    ..Changed::of(Instance, row.project_id, row.id.uuid())
                });
            }
            Self::PlacementGroup(_) | Self::ComputeGroup(_) | Self::Operation(_) => return None,
        };
        Some(Changed::of(kind, project, id))
    }
}

impl Change {
    /// What whoever shows it has to read again; `None`: nobody shows it.
    fn changed(&self) -> Option<Changed> {
        match self {
            Self::InsertUser { user, .. } | Self::DeleteUser { user, .. } => Some(of_user(user.id)),
            Self::UpdateUser { id, .. } | Self::SetUserToken { id, .. } | Self::SetUserKeys { id, .. } => {
                Some(of_user(*id))
            }
            Self::InsertIdentity { user, .. } => Some(of_user(*user)),
            Self::InsertToken { token, .. } => Some(of_user(token.user_id)),
            Self::InsertPublicKey(key) => Some(of_user(key.user_id)),
            // Whose it was is not in the change.
            Self::DeleteToken(_) | Self::DeletePublicKey(_) => Some(of_anything(ChangedKind::User)),
            Self::InsertProject { project, .. } => Some(of_project(project.id)),
            Self::UpdateProject { id, .. } | Self::DeleteProject { id, .. } | Self::ClearMembers(id) => {
                Some(of_project(*id))
            }
            Self::PutMember { project, .. }
            | Self::RemoveMember { project, .. }
            | Self::DeleteRepos { project, .. }
            | Self::DeleteBackend { project, .. }
            | Self::SetDefaultGateway { project, .. } => Some(of_project(*project)),
            Self::PutSecret(secret) => Some(of_project(secret.project_id)),
            Self::PutRepo { repo, .. } => Some(of_project(repo.project_id)),
            Self::InsertBackend(row) | Self::UpdateBackend(row) => Some(of_project(row.project_id)),
            // Which projects have to do with it is not in the change.
            Self::DeleteSecret(_) | Self::PutExport { .. } | Self::DeleteExport(_) => {
                Some(of_anything(ChangedKind::Project))
            }
            Self::ExpectMembers { .. }
            | Self::PutCode { .. }
            | Self::ExpectBackend { .. }
            | Self::ExpectFreeHosts { .. }
            | Self::ExpectOwnMachine { .. }
            | Self::PutOrphan(_)
            | Self::DeleteOrphan(_) => None,
        }
    }
}

fn of_project(id: ProjectId) -> Changed {
    Changed::of(ChangedKind::Project, id, id.uuid())
}

fn of_user(id: UserId) -> Changed {
    Changed {
        id: Some(id.uuid()),
        ..of_anything(ChangedKind::User)
    }
}

const fn of_anything(kind: ChangedKind) -> Changed {
    Changed {
        kind,
        id: None::<Uuid>,
        project_id: None,
        fleet_id: None,
    }
}
