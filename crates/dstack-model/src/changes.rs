//! What has changed, for pages and clients that show it. Not part of dstack 0.22.5's API.

use dstack_units::{FleetId, ProjectId, RunId};
use serde::Serialize;
use uuid::Uuid;

use crate::Decode;
use crate::string_enum;

string_enum! {
    /// What was changed. Clients leave aside what they do not know.
    pub enum ChangedKind {
        /// A run, or one of its jobs.
        Run = "run",
        /// An instance; `fleet_id` says of which fleet.
        Instance = "instance",
        /// A fleet itself: its configuration or its status.
        Fleet = "fleet",
        /// A volume, or where it is attached.
        Volume = "volume",
        /// A gateway, or one of its replicas.
        Gateway = "gateway",
        /// A project: its settings, members, backends, secrets, repos or exports.
        Project = "project",
        /// A user, or their keys and tokens.
        User = "user",
        /// An audit event was written.
        Event = "event",
        /// Output of a run was stored.
        Logs = "logs",
    }
}

/// Something that has changed, and is to be read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Decode)]
pub struct Changed {
    /// What it is.
    pub kind: ChangedKind,
    /// Which one; of output, the id of the run; `null` of events.
    pub id: Option<Uuid>,
    /// The project that it belongs to; `null` of users.
    pub project_id: Option<ProjectId>,
    /// The fleet of an instance.
    pub fleet_id: Option<FleetId>,
}

impl Changed {
    /// Something of a project.
    pub fn of(kind: ChangedKind, project: ProjectId, id: Uuid) -> Self {
        Self {
            kind,
            id: Some(id),
            project_id: Some(project),
            fleet_id: None,
        }
    }
}

/// The data of an event `changes` of the stream.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Decode)]
pub struct Changes {
    /// All that changed since the last one; each once.
    pub changes: Vec<Changed>,
}

/// The query of `GET changes/follow`: without any, all that the caller may see is followed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Decode)]
pub struct FollowChangesQuery {
    /// Only things of this project.
    pub project_name: Option<String>,
    /// Of runs, fleets and the like only this run, and also when output of it is stored.
    pub run_id: Option<RunId>,
    /// Of runs, fleets and the like only this fleet, and its instances.
    pub fleet_id: Option<FleetId>,
}
