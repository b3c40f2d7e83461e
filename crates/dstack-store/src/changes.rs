//! Collects what is written together, with the events that tell of it.
//!
//! Rows get into a [`Commit`] only through here: whoever changes a status, the health or the reach of something cannot forget
//! the event, since it is made from the row before and the row after.

use std::time::Duration;

use dstack_plan::lifecycle::attachment::AttachmentStatus;

use crate::rows::{
    AttachmentRow, ComputeGroupRow, FleetRow, GatewayReplicaRow, GatewayRow, InstanceRow, JobRow,
    OperationRow, PlacementGroupRow, RunRow, VolumeRow,
};
use crate::writes::Change;
use crate::{Commit, Entity, EventMaker, EventTarget, NewEvent, Put, Removal, events};

/// A row whose changes users can follow.
pub trait Tracked: Clone + PartialEq + Entity + Into<Put> {
    /// Its name, as users know it.
    fn name(&self) -> &str;
    /// The events that tell of a change, in order.
    fn changed(before: &Self, after: &Self, maker: &EventMaker) -> Vec<NewEvent>;
}

/// A row that events can be about.
pub trait Told: Tracked {
    /// As the target of events.
    fn target(&self) -> EventTarget;
}

impl Tracked for RunRow {
    fn name(&self) -> &str {
        &self.run_name
    }
    fn changed(before: &Self, after: &Self, maker: &EventMaker) -> Vec<NewEvent> {
        let changed = before.status() != after.status();
        changed
            .then(|| maker.run_status(before, after))
            .into_iter()
            .collect()
    }
}

impl Tracked for JobRow {
    fn name(&self) -> &str {
        &self.job_name
    }
    fn changed(before: &Self, after: &Self, maker: &EventMaker) -> Vec<NewEvent> {
        let changed = before.status() != after.status();
        let status = changed.then(|| maker.job_status(before, after));
        status
            .into_iter()
            .chain(maker.job_requests(before, after))
            .collect()
    }
}

impl Tracked for InstanceRow {
    fn name(&self) -> &str {
        &self.name
    }
    fn changed(before: &Self, after: &Self, maker: &EventMaker) -> Vec<NewEvent> {
        let mut found = Vec::new();
        if before.status() != after.status() {
            found.push(maker.instance_status(before, after));
        }
        if before.health != after.health {
            found.push(maker.instance_health(before, after));
        }
        if before.unreachable != after.unreachable {
            found.push(maker.instance_reach(after));
        }
        found
    }
}

impl Tracked for FleetRow {
    fn name(&self) -> &str {
        &self.name
    }
    fn changed(before: &Self, after: &Self, maker: &EventMaker) -> Vec<NewEvent> {
        let changed = before.status() != after.status();
        changed
            .then(|| maker.fleet_status(before, after))
            .into_iter()
            .collect()
    }
}

impl Tracked for VolumeRow {
    fn name(&self) -> &str {
        &self.name
    }
    fn changed(before: &Self, after: &Self, maker: &EventMaker) -> Vec<NewEvent> {
        let mut found = Vec::new();
        if before.status() != after.status() {
            found.push(maker.volume_status(before, after));
        }
        if after.deleted && !before.deleted {
            found.push(maker.event("Volume deleted", vec![events::volume(after)]));
        }
        found
    }
}

/// Users follow the volume: its events tell where it is.
impl Tracked for AttachmentRow {
    fn name(&self) -> &str {
        &self.name
    }
    fn changed(before: &Self, after: &Self, maker: &EventMaker) -> Vec<NewEvent> {
        let is_new = after.status() == AttachmentStatus::Attached && before.status() != after.status();
        is_new.then(|| maker.attached(after)).into_iter().collect()
    }
}

/// Users follow the fleet: no event tells of its placement group.
impl Tracked for PlacementGroupRow {
    fn name(&self) -> &str {
        &self.name
    }
    fn changed(_before: &Self, _after: &Self, _maker: &EventMaker) -> Vec<NewEvent> {
        Vec::new()
    }
}

/// Users follow its instances.
impl Tracked for ComputeGroupRow {
    fn name(&self) -> &str {
        &self.name
    }
    fn changed(_before: &Self, _after: &Self, _maker: &EventMaker) -> Vec<NewEvent> {
        Vec::new()
    }
}

impl Tracked for GatewayRow {
    fn name(&self) -> &str {
        &self.name
    }
    fn changed(before: &Self, after: &Self, maker: &EventMaker) -> Vec<NewEvent> {
        let changed = before.status() != after.status();
        changed
            .then(|| maker.gateway_status(before, after))
            .into_iter()
            .collect()
    }
}

impl Tracked for GatewayReplicaRow {
    fn name(&self) -> &str {
        &self.name
    }
    fn changed(before: &Self, after: &Self, maker: &EventMaker) -> Vec<NewEvent> {
        let changed = before.status() != after.status();
        changed
            .then(|| maker.gateway_replica_status(before, after))
            .into_iter()
            .collect()
    }
}

impl Told for RunRow {
    fn target(&self) -> EventTarget {
        events::run(self)
    }
}

impl Told for JobRow {
    fn target(&self) -> EventTarget {
        events::job(self)
    }
}

impl Told for InstanceRow {
    fn target(&self) -> EventTarget {
        events::instance(self)
    }
}

impl Told for FleetRow {
    fn target(&self) -> EventTarget {
        events::fleet(self)
    }
}

impl Told for VolumeRow {
    fn target(&self) -> EventTarget {
        events::volume(self)
    }
}

impl Told for GatewayReplicaRow {
    fn target(&self) -> EventTarget {
        events::gateway_replica(self)
    }
}

impl Told for GatewayRow {
    fn target(&self) -> EventTarget {
        events::gateway(self)
    }
}

/// Rows and events of one transaction, in the order in which they are told.
#[derive(Debug, Clone)]
pub struct Changes {
    maker: EventMaker,
    commit: Commit,
}

impl Changes {
    /// None yet; what is added happens at the time and by the actor of `maker`.
    pub fn new(maker: EventMaker) -> Self {
        Self {
            maker,
            commit: Commit::default(),
        }
    }

    /// By whom, and when.
    pub const fn maker(&self) -> &EventMaker {
        &self.maker
    }

    /// Adds a row that is new, and says so.
    pub fn insert<R: Told>(&mut self, row: R, message: &str) {
        self.note(message, vec![row.target()]);
        self.put(row.into());
    }

    /// Adds a row that is new and of which there is nothing to say.
    pub fn insert_silently<R: Tracked>(&mut self, row: R) {
        self.put(row.into());
    }

    /// Adds a row as it is to be, with the events that follow from the difference; nothing where there is none.
    pub fn update<R: Tracked>(&mut self, before: &R, after: R) {
        if *before == after {
            return;
        }
        for event in R::changed(before, &after, &self.maker) {
            self.event(event);
        }
        self.put(after.into());
    }

    /// Adds a row even where nothing of it changes: whoever decided upon what it was decides again.
    pub fn touch<R: Tracked>(&mut self, row: R) {
        self.put(row.into());
    }

    /// Deletes a row that is not kept for history, and says so.
    pub fn remove<R: Told>(&mut self, row: R, message: &str) {
        self.note(message, vec![row.target()]);
        self.remove_silently(row);
    }

    /// Deletes a row of which there is nothing to say.
    pub fn remove_silently<R: Tracked>(&mut self, row: R) {
        let version = row.version();
        let put: Put = row.into();
        let (entity, changed) = (put.entity(), put.changed());
        self.commit.puts.retain(|other| other.entity() != entity);
        self.commit.removals.push(Removal {
            entity,
            version,
            changed,
        });
    }

    /// Adds a change of a table that the engine does not drive.
    pub fn directory(&mut self, change: Change) {
        self.commit.directory.push(change);
    }

    /// Adds a call that is to be made.
    pub fn intend(&mut self, operation: OperationRow) {
        self.put(Put::Operation(operation));
    }

    /// Adds an event of its own.
    pub fn note(&mut self, message: impl Into<String>, targets: Vec<EventTarget>) {
        let event = self.maker.event(message, targets);
        self.event(event);
    }

    /// Adds an event. Lists are sorted by time: what is told later is later, however quick it was.
    pub fn event(&mut self, mut event: NewEvent) {
        if let Some(last) = self.commit.events.last() {
            let next = last.recorded_at + Duration::from_micros(1);
            event.recorded_at = event.recorded_at.max(next);
        }
        self.commit.events.push(event);
    }

    /// A row that is put twice is written as it was put last.
    fn put(&mut self, put: Put) {
        let same = |other: &&mut Put| other.id() == put.id();
        match self.commit.puts.iter_mut().find(same) {
            Some(earlier) => *earlier = put,
            None => self.commit.puts.push(put),
        }
    }

    /// Adds everything of another commit, after what is there.
    pub fn extend(&mut self, other: Commit) {
        for put in other.puts {
            self.put(put);
        }
        self.commit.removals.extend(other.removals);
        self.commit.directory.extend(other.directory);
        for event in other.events {
            self.event(event);
        }
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.commit.is_empty()
    }

    /// Everything collected, as one commit.
    pub fn into_commit(self) -> Commit {
        self.commit
    }
}

impl From<Changes> for Commit {
    fn from(changes: Changes) -> Self {
        changes.into_commit()
    }
}

#[cfg(test)]
mod tests {
    use dstack_model::fleets::FleetSpec;
    use dstack_system::Random;
    use dstack_units::Time;
    use serde_json::json;

    use super::*;

    fn fleet(maker: &EventMaker) -> FleetRow {
        let spec: FleetSpec = serde_json::from_value(json!({
            "configuration": {"type": "fleet", "name": "f", "nodes": 1}, "profile": {"name": "default"},
        }))
        .unwrap();
        let random = &maker.random;
        FleetRow::active(
            random.uuid().into(),
            random.uuid().into(),
            "f".to_owned(),
            spec,
            maker.now,
        )
    }

    #[test]
    fn a_change_brings_its_event_and_no_change_brings_nothing() {
        let maker = EventMaker::system(Time::from_millis(1000), Random::seeded(1));
        let mut changes = Changes::new(maker.clone());
        let before = fleet(&maker);
        changes.update(&before, before.clone());
        assert!(changes.is_empty());
        let mut after = before.clone();
        after.terminate(maker.now).unwrap();
        changes.update(&before, after.clone());
        let ended = {
            let mut ended = after.clone();
            ended.finish(maker.now).unwrap();
            ended
        };
        changes.update(&after, ended);
        let commit = changes.into_commit();
        let texts: Vec<&str> = commit.events.iter().map(|event| event.message.as_str()).collect();
        assert_eq!(
            texts,
            [
                "Fleet status changed ACTIVE -> TERMINATING",
                "Fleet status changed TERMINATING -> TERMINATED"
            ]
        );
        assert!(commit.events[0].recorded_at < commit.events[1].recorded_at);
        assert_eq!(commit.puts().len(), 1, "the last row counts");
    }
}
