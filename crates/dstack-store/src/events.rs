//! Audit events: the fixed texts of dstack 0.22.5, which clients show verbatim.

use dstack_model::events::EventTargetType;
use dstack_model::runs::JobStatus;
use dstack_system::Random;
use dstack_units::{Time, UserId};

use crate::queries::projects::ProjectRow;
use crate::queries::secrets::SecretRow;
use crate::queries::users::UserRow;
use crate::rows::{
    AttachmentRow, FleetRow, GatewayReplicaRow, GatewayRow, InstanceRow, JobRow, RunRow, VolumeRow,
};
use crate::{EventTarget, NewEvent};

/// Makes events that happen at one time by one actor.
#[derive(Debug, Clone)]
pub struct EventMaker {
    /// When the events happen.
    pub now: Time,
    /// Who; `None` = the system.
    pub actor: Option<UserId>,
    /// Makes the ids of the events.
    pub random: Random,
}

impl EventMaker {
    /// By the system.
    pub const fn system(now: Time, random: Random) -> Self {
        Self {
            now,
            actor: None,
            random,
        }
    }

    /// An event with this text about these targets.
    pub fn event(&self, message: impl Into<String>, targets: Vec<EventTarget>) -> NewEvent {
        NewEvent {
            id: self.random.ordered_uuid(self.now).into(),
            message: message.into(),
            recorded_at: self.now,
            actor: self.actor,
            for_managers: false,
            targets,
        }
    }

    /// `Job status changed A -> B. Termination reason: R (message)`.
    pub fn job_status(&self, from: &JobRow, to: &JobRow) -> NewEvent {
        let reason = newly(from.termination_reason(), to.termination_reason());
        let message = to.termination_reason_message();
        let text = status_changed("Job", (&from.status(), &to.status()), reason, message);
        self.event(text, vec![job(to)])
    }

    /// `Service replica ready to receive requests`. dstack 0.22.5 does not take requests from a replica because of its probes.
    /// That a job which ends gets no requests goes without saying.
    pub fn job_requests(&self, from: &JobRow, to: &JobRow) -> Option<NewEvent> {
        let text = if to.ready && !from.ready {
            "Service replica ready to receive requests".to_owned()
        } else if to.status() != JobStatus::Running || from.registered == to.registered {
            return None;
        } else if to.registered {
            "Service replica receives requests again".to_owned()
        } else {
            let failure = to
                .probes
                .as_ref()
                .and_then(|probes| probes.failure(&to.job_spec.probes));
            let failure = failure.map(|failure| format!(" ({failure})"));
            format!(
                "Service replica receives no requests: a probe fails{}",
                failure.unwrap_or_default()
            )
        };
        Some(self.event(text, vec![job(to)]))
    }

    /// `Run status changed A -> B. Termination reason: R`.
    pub fn run_status(&self, from: &RunRow, to: &RunRow) -> NewEvent {
        let reason = newly(from.termination_reason(), to.termination_reason());
        let text = status_changed("Run", (&from.status(), &to.status()), reason, None);
        self.event(text, vec![run(to)])
    }

    /// `Instance status changed A -> B. Termination reason: R (message)`.
    pub fn instance_status(&self, from: &InstanceRow, to: &InstanceRow) -> NewEvent {
        let reason = newly(from.termination_reason(), to.termination_reason());
        let message = to.termination_reason_message();
        let text = status_changed("Instance", (&from.status(), &to.status()), reason, message);
        self.event(text, vec![instance(to)])
    }

    /// `Fleet status changed A -> B`.
    pub fn fleet_status(&self, from: &FleetRow, to: &FleetRow) -> NewEvent {
        let text = status_changed("Fleet", (&from.status(), &to.status()), None::<()>, None);
        self.event(text, vec![fleet(to)])
    }

    /// `Volume status changed A -> B (message)`.
    pub fn volume_status(&self, from: &VolumeRow, to: &VolumeRow) -> NewEvent {
        let text = status_changed_with("Volume", (&from.status(), &to.status()), to.status_message());
        self.event(text, vec![volume(to)])
    }

    /// `Volume attached to instance`; dstack 0.22.5 does not tell of it.
    pub fn attached(&self, to: &AttachmentRow) -> NewEvent {
        self.event("Volume attached to instance", attachment(to))
    }

    /// `Volume detached from instance`.
    pub fn detached(&self, from: &AttachmentRow) -> NewEvent {
        self.event("Volume detached from instance", attachment(from))
    }

    /// `Gateway status changed A -> B (message)`.
    pub fn gateway_status(&self, from: &GatewayRow, to: &GatewayRow) -> NewEvent {
        let text = status_changed_with("Gateway", (&from.status(), &to.status()), to.status_message());
        self.event(text, vec![gateway(to)])
    }

    /// `Gateway replica status changed A -> B (message)`.
    pub fn gateway_replica_status(&self, from: &GatewayReplicaRow, to: &GatewayReplicaRow) -> NewEvent {
        let statuses = (&from.status(), &to.status());
        let text = status_changed_with("Gateway replica", statuses, to.status_message());
        self.event(text, vec![gateway_replica(to)])
    }

    /// `Instance became reachable`, or the opposite.
    pub fn instance_reach(&self, to: &InstanceRow) -> NewEvent {
        let text = match to.unreachable {
            true => "Instance became unreachable",
            false => "Instance became reachable",
        };
        self.event(text, vec![instance(to)])
    }

    /// `Instance health changed A -> B`.
    pub fn instance_health(&self, from: &InstanceRow, to: &InstanceRow) -> NewEvent {
        let text = format!(
            "Instance health changed {} -> {}",
            upper(&from.health),
            upper(&to.health)
        );
        self.event(text, vec![instance(to)])
    }

    /// `Job assigned to instance. Instance blocks: a/b busy`.
    pub fn assigned(&self, on: &JobRow, to: &InstanceRow) -> NewEvent {
        let text = format!("Job assigned to instance. Instance blocks: {}", blocks(to));
        self.event(text, vec![job(on), instance(to)])
    }

    /// `Job unassigned from instance. Instance blocks: a/b busy`.
    pub fn unassigned(&self, from: &JobRow, on: &InstanceRow) -> NewEvent {
        let text = format!("Job unassigned from instance. Instance blocks: {}", blocks(on));
        self.event(text, vec![job(from), instance(on)])
    }
}

/// What is there now and was not before.
fn newly<T: PartialEq + Copy>(before: Option<T>, now: Option<T>) -> Option<T> {
    if before == now { None } else { now }
}

fn status_changed<S: serde::Serialize, R: serde::Serialize>(
    what: &str,
    (from, to): (&S, &S),
    reason: Option<R>,
    message: Option<&str>,
) -> String {
    let mut text = format!("{what} status changed {} -> {}", upper(from), upper(to));
    if let Some(reason) = reason {
        text.push_str(&format!(". Termination reason: {}", upper(&reason)));
        if let Some(message) = message.filter(|message| !message.is_empty()) {
            text.push_str(&format!(" ({message})"));
        }
    }
    text
}

fn status_changed_with<S: serde::Serialize>(what: &str, statuses: (&S, &S), message: Option<&str>) -> String {
    let text = status_changed(what, statuses, None::<()>, None);
    match message {
        Some(message) => format!("{text} ({message})"),
        None => text,
    }
}

fn blocks(instance: &InstanceRow) -> String {
    format!(
        "{}/{} busy",
        instance.busy_blocks,
        instance.total_blocks.unwrap_or(1)
    )
}

/// Enum values in messages are upper-cased.
pub fn upper<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_value(value)
        .ok()
        .and_then(|v| v.as_str().map(str::to_uppercase))
        .unwrap_or_default()
}

/// A run as a target.
pub fn run(row: &RunRow) -> EventTarget {
    EventTarget {
        entity_type: EventTargetType::Run,
        entity_id: row.id.to_string(),
        entity_name: row.run_name.clone(),
        project_id: Some(row.project_id.to_string()),
        run_id: Some(row.id.to_string()),
        fleet_id: None,
        gateway_id: None,
    }
}

/// A job as a target.
pub fn job(row: &JobRow) -> EventTarget {
    EventTarget {
        entity_type: EventTargetType::Job,
        entity_id: row.id.to_string(),
        entity_name: row.job_name.clone(),
        project_id: Some(row.project_id.to_string()),
        run_id: Some(row.run_id.to_string()),
        fleet_id: None,
        gateway_id: None,
    }
}

/// An instance as a target.
pub fn instance(row: &InstanceRow) -> EventTarget {
    EventTarget {
        entity_type: EventTargetType::Instance,
        entity_id: row.id.to_string(),
        entity_name: row.name.clone(),
        project_id: Some(row.project_id.to_string()),
        run_id: None,
        fleet_id: row.fleet_id.map(|id| id.to_string()),
        gateway_id: None,
    }
}

/// A fleet as a target.
pub fn fleet(row: &FleetRow) -> EventTarget {
    EventTarget {
        entity_type: EventTargetType::Fleet,
        entity_id: row.id.to_string(),
        entity_name: row.name.clone(),
        project_id: Some(row.project_id.to_string()),
        run_id: None,
        fleet_id: Some(row.id.to_string()),
        gateway_id: None,
    }
}

fn target(kind: EventTargetType, id: &dyn ToString, name: &str, project: Option<String>) -> EventTarget {
    EventTarget {
        entity_type: kind,
        entity_id: id.to_string(),
        entity_name: name.to_owned(),
        project_id: project,
        run_id: None,
        fleet_id: None,
        gateway_id: None,
    }
}

/// A user as a target.
pub fn user(row: &UserRow) -> EventTarget {
    target(EventTargetType::User, &row.id, &row.name, None)
}

/// A project as a target.
pub fn project(row: &ProjectRow) -> EventTarget {
    target(
        EventTargetType::Project,
        &row.id,
        &row.name,
        Some(row.id.to_string()),
    )
}

/// A secret as a target.
pub fn secret(row: &SecretRow) -> EventTarget {
    target(
        EventTargetType::Secret,
        &row.id,
        &row.name,
        Some(row.project_id.to_string()),
    )
}

/// A volume as a target.
pub fn volume(row: &VolumeRow) -> EventTarget {
    target(
        EventTargetType::Volume,
        &row.id,
        &row.name,
        Some(row.project_id.to_string()),
    )
}

/// The volume of an attachment as a target.
fn attached_volume(row: &AttachmentRow) -> EventTarget {
    let project = Some(row.project_id.to_string());
    target(EventTargetType::Volume, &row.volume_id, &row.name, project)
}

/// The volume and the instance of an attachment as targets.
fn attachment(row: &AttachmentRow) -> Vec<EventTarget> {
    let project = Some(row.project_id.to_string());
    let instance = target(
        EventTargetType::Instance,
        &row.instance_id,
        &row.instance_name,
        project,
    );
    vec![attached_volume(row), instance]
}

/// A replica of a gateway as a target.
pub fn gateway_replica(row: &GatewayReplicaRow) -> EventTarget {
    EventTarget {
        gateway_id: Some(row.gateway_id.to_string()),
        ..target(
            EventTargetType::GatewayReplica,
            &row.id,
            &row.name,
            Some(row.project_id.to_string()),
        )
    }
}

/// A gateway as a target.
pub fn gateway(row: &GatewayRow) -> EventTarget {
    EventTarget {
        gateway_id: Some(row.id.to_string()),
        ..target(
            EventTargetType::Gateway,
            &row.id,
            &row.name,
            Some(row.project_id.to_string()),
        )
    }
}
