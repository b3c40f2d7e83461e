//! Events, and what each is about.

use dstack_units::{EventId, ProjectId, Time, UserId};
use serde::Serialize;
use uuid::Uuid;

use crate::{Decode, string_enum};

string_enum! {
    /// What an event can be about.
    pub enum EventTargetType {
        /// A project.
        Project = "project",
        /// A user.
        User = "user",
        /// A fleet.
        Fleet = "fleet",
        /// An instance.
        Instance = "instance",
        /// A run.
        Run = "run",
        /// A job.
        Job = "job",
        /// A volume.
        Volume = "volume",
        /// A gateway.
        Gateway = "gateway",
        /// A gateway's replica.
        GatewayReplica = "gateway-replica",
        /// A secret.
        Secret = "secret",
        /// A preset.
        Preset = "preset",
    }
}

/// What an event is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct EventTarget {
    /// An [`EventTargetType`], or one that this version does not know.
    #[serde(rename = "type")]
    pub kind: String,
    /// ID of the project the target entity belongs to, or `null` for target types not bound to a project.
    pub project_id: Option<ProjectId>,
    /// Name of the project the target entity belongs to.
    pub project_name: Option<String>,
    /// Whether the project the target entity belongs to is deleted.
    pub is_project_deleted: Option<bool>,
    /// ID of the target entity.
    pub id: Uuid,
    /// Name of the target entity.
    pub name: String,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct Event {
    /// Id of the event.
    pub id: EventId,
    /// What happened, in a sentence that clients show as it is.
    pub message: String,
    /// When it happened.
    pub recorded_at: Time,
    /// ID of the user who performed the action, or `null` if it was the system.
    pub actor_user_id: Option<UserId>,
    /// Name of the user who performed the action, or `null` if it was the system.
    pub actor_user: Option<String>,
    /// Whether the user who performed the action is deleted, or `null` if it was the system.
    pub is_actor_user_deleted: Option<bool>,
    /// List of entities affected by the event.
    pub targets: Vec<EventTarget>,
}
