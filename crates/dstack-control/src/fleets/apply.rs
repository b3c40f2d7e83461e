//! Creating fleets and changing them in place.

use std::collections::BTreeSet;

use dstack_model::fleets::{FleetSpec, FleetStatus};
use dstack_model::instances::{InstanceStatus, InstanceTerminationReason};
use dstack_plan::fleet_diff::{HostChanges, check_updatable, host_changes};
use dstack_plan::hosts::{HostKey, only};
use dstack_plan::lifecycle::{Wait, WaitReason};
use dstack_plan::names;
use dstack_plan::validate::fill_fleet_defaults;
use dstack_store::rows::{FleetRow, InstanceRow, LeavingHost};
use dstack_store::writes::Change;
use dstack_store::{Changes, EntityRef, FleetSnapshot, Sealed, events};
use dstack_units::{FleetId, ProjectId, Time};

use super::hosts::{self, NewHost, new_host, opened, sealed, without_keys};
use super::{FleetRights, Fleets, check_not_own_machine, check_rights, validate};
use crate::core::Actor;
use crate::error::{ControlError, Result};

const BUSY: &str = "Failed to update fleet: fleet is being processed currently. Try again later.";

/// A fleet that is applied.
#[derive(Debug, Clone)]
pub struct ApplyFleet {
    /// In which project.
    pub project: ProjectId,
    /// Who applies it.
    pub actor: Actor,
    /// What the actor may do.
    pub rights: FleetRights,
    /// What is asked for; without a name it gets one.
    pub spec: FleetSpec,
    /// The fleet of that name as the client saw it when it planned.
    pub seen: Option<SeenFleet>,
    /// Change the fleet whatever the client saw.
    pub force: bool,
}

/// A fleet as a client saw it.
#[derive(Debug, Clone, PartialEq)]
pub struct SeenFleet {
    /// Id of the fleet that the client saw.
    pub id: FleetId,
    /// What was asked for.
    pub spec: FleetSpec,
}

impl Fleets {
    /// Creates a fleet, or changes the one of its name in place.
    ///
    /// # Errors
    /// The specification cannot be, a host belongs to another fleet, the fleet cannot be changed so, or it is not what the
    /// client saw.
    pub async fn apply(&self, mut request: ApplyFleet) -> Result<FleetId> {
        validate::check(&request.spec)?;
        fill_fleet_defaults(&mut request.spec);
        check_rights(request.spec.configuration.ssh_config.is_some(), request.rights)?;
        self.core
            .retry_on_conflict(BUSY, || self.try_apply(&request))
            .await
    }

    async fn try_apply(&self, request: &ApplyFleet) -> Result<FleetId> {
        let found = match &request.spec.configuration.name {
            Some(name) => self.core.store.fleet_by_name(request.project, name).await?,
            None => None,
        };
        match found {
            None => self.create(request).await,
            Some(fleet) => {
                if !request.force {
                    check_seen(&fleet, request.seen.as_ref())?;
                }
                self.change(request, fleet.id).await
            }
        }
    }

    async fn create(&self, request: &ApplyFleet) -> Result<FleetId> {
        let mut spec = request.spec.clone();
        self.check_free(&spec, None).await?;
        let name = match &spec.configuration.name {
            Some(name) => name.clone(),
            None => self.free_name(request.project).await?,
        };
        spec.configuration.name = Some(name.clone());
        let now = self.core.now();
        let stored = sealed(spec.clone(), &self.encryption)?;
        let id = self.core.random.uuid().into();
        let fleet = FleetRow::active(id, request.project, name, stored, now);
        let instances = self.first_instances(&fleet, &spec, now);
        let of_hosts = spec.configuration.ssh_config.is_some();
        let by_system = self.core.events(Actor::System);
        let mut changes = self.core.changes(request.actor);
        expect_free(&spec, id, &mut changes);
        changes.insert(fleet, "Fleet created. Status: ACTIVE");
        for row in instances {
            let text = "Instance created on fleet submission. Status: PENDING";
            let targets = vec![events::instance(&row)];
            // Instances in clouds are made by the server to satisfy the fleet.
            match of_hosts {
                true => changes.note(text, targets),
                false => changes.event(by_system.event(text, targets)),
            }
            changes.insert_silently(row);
        }
        self.core.commit(changes).await?;
        Ok(id)
    }

    async fn free_name(&self, project: ProjectId) -> Result<String> {
        let taken = self.core.store.fleet_names(project).await?;
        Ok(names::numbered(&names::stem(&self.core.random), |name| {
            taken.iter().any(|taken| taken == name)
        }))
    }

    fn first_instances(&self, fleet: &FleetRow, spec: &FleetSpec, now: Time) -> Vec<InstanceRow> {
        let configuration = &spec.configuration;
        let Some(ssh) = &configuration.ssh_config else {
            let target = configuration.nodes.map_or(0, |nodes| nodes.target);
            let wanted = |num| {
                let row = InstanceRow::wanted(self.core.random.uuid().into(), fleet, num, now);
                in_order(row, now)
            };
            return (0..target).map(wanted).collect();
        };
        let numbered = (0..).zip(&ssh.hosts);
        numbered
            .map(|(num, host)| {
                let name = format!("{}-{num}", fleet.name);
                self.instance_of_host(fleet, num, new_host(ssh, host, configuration.blocks, &name), now)
            })
            .collect()
    }

    fn instance_of_host(&self, fleet: &FleetRow, num: i64, host: NewHost, now: Time) -> InstanceRow {
        let row = InstanceRow::pending(self.core.random.uuid().into(), fleet, num, now);
        let mut row = row.offering(host.offer, host.provisioning);
        row.started_at = Some(now);
        row.total_blocks = host.total_blocks;
        row.wait(Wait::briefly(now, WaitReason::HostPrepared));
        in_order(row, now)
    }

    /// Gives a fleet that is there another specification.
    async fn change(&self, request: &ApplyFleet, id: FleetId) -> Result<FleetId> {
        let spec = &request.spec;
        let snapshot = self.core.store.fleet(id).await?;
        let snapshot = snapshot.ok_or_else(ControlError::not_found)?;
        check_not_own_machine(&snapshot.fleet)?;
        if snapshot.fleet.status() == FleetStatus::Terminating {
            let name = &snapshot.fleet.name;
            return Err(ControlError::refused(format!(
                "Fleet {name} is being deleted. Try again later"
            )));
        }
        let mut old = opened(FleetSpec::clone(&snapshot.fleet.spec), &self.encryption)?;
        fill_fleet_defaults(&mut old);
        check_updatable(&old, spec)?;
        let now = self.core.now();
        let mut fleet = snapshot.fleet.clone();
        fleet.spec = Sealed::new(sealed(spec.clone(), &self.encryption)?);
        // It is brought to its new size soon, also where that was given up.
        fleet.consolidation_attempt = 0;
        fleet.wake_at(now);
        let mut changes = self.core.changes(request.actor);
        changes.touch(fleet.clone());
        self.change_hosts(&old, spec, &fleet, &snapshot, &mut changes)
            .await?;
        self.core.commit(changes).await?;
        Ok(id)
    }

    /// Adds instances for new hosts, and ends those of hosts that are not named any more.
    async fn change_hosts(
        &self,
        old: &FleetSpec,
        spec: &FleetSpec,
        fleet: &FleetRow,
        snapshot: &FleetSnapshot,
        changes: &mut Changes,
    ) -> Result<()> {
        let (instances, stored) = (&snapshot.instances, &*snapshot.fleet.spec);
        let (Some(before), Some(after)) = (&old.configuration.ssh_config, &spec.configuration.ssh_config)
        else {
            return Ok(());
        };
        let HostChanges { added, removed, .. } = host_changes(before, after);
        if !added.is_empty() {
            self.check_free(spec, Some(fleet.id)).await?;
            expect_free(spec, fleet.id, changes);
        }
        let now = self.core.now();
        let living: Vec<&InstanceRow> = instances.iter().filter(|row| !row.deleted).collect();
        check_released(&living, &added)?;
        let mut taken: Vec<i64> = living.iter().map(|row| row.instance_num).collect();
        for host in after
            .hosts
            .iter()
            .filter(|host| added.contains(&HostKey::of(after, host)))
        {
            let num = (0..).find(|num| !taken.contains(num)).unwrap_or_default();
            taken.push(num);
            let name = format!("{}-{num}", fleet.name);
            let host = new_host(after, host, spec.configuration.blocks, &name);
            let row = self.instance_of_host(fleet, num, host, now);
            changes.insert(row, "Instance created on fleet update. Status: PENDING");
        }
        let is_removed = |row: &InstanceRow| {
            let place = row.job_provisioning_data.as_deref();
            let key = place.and_then(HostKey::of_place);
            key.is_some_and(|key| removed.contains(&key))
        };
        for row in living.into_iter().filter(|row| is_removed(row)) {
            if row.status() == InstanceStatus::Terminated {
                continue;
            }
            if row.status().is_active() {
                let mut ending = row.clone();
                ending.terminate(InstanceTerminationReason::TerminatedByUser, None, now)?;
                changes.update(row, ending);
            }
            self.keep_keys(stored, row, changes).await?;
        }
        Ok(())
    }

    /// A host that leaves is reached with the keys that it had, until it is released: the fleet does not have them any more.
    async fn keep_keys(&self, stored: &FleetSpec, row: &InstanceRow, changes: &mut Changes) -> Result<()> {
        let found = self.core.store.instance(row.id).await?;
        let place = row.job_provisioning_data.as_deref();
        let (Some(found), Some(fleet)) = (found, place.and_then(|place| only(stored, place))) else {
            return Ok(());
        };
        let now = self.core.now();
        let id = self.core.random.ordered_uuid(now).into();
        let subject = EntityRef::Instance(row.id);
        if let Some(release) = (LeavingHost { fleet }).release(&found.operations, subject, id, now) {
            changes.intend(release);
        }
        Ok(())
    }

    /// Refuses hosts that another fleet has; `own` is the fleet that is changed.
    ///
    /// # Errors
    /// With the names of the hosts; the store.
    pub async fn check_free(&self, spec: &FleetSpec, own: Option<FleetId>) -> Result<()> {
        if spec.configuration.ssh_config.is_none() {
            return Ok(());
        }
        let used = self.core.store.remote_hosts().await?;
        hosts::check_free(spec, own, &used)
    }
}

/// Two fleets that get the same host at the same time are told apart in the transaction.
fn expect_free(spec: &FleetSpec, fleet: FleetId, changes: &mut Changes) {
    let Some(ssh) = &spec.configuration.ssh_config else {
        return;
    };
    let hosts = ssh.hosts.iter().map(|host| HostKey::of(ssh, host));
    changes.directory(Change::ExpectFreeHosts {
        fleet,
        hosts: hosts.collect(),
    });
}

/// A host that is named again while its agent is still taken off, or in the change that takes it out under another spelling, would
/// lose the new agent with the old.
fn check_released(living: &[&InstanceRow], added: &BTreeSet<HostKey>) -> Result<()> {
    let named = |row: &&InstanceRow| {
        let host = HostKey::of_place(row.job_provisioning_data.as_deref()?)?;
        (row.status() != InstanceStatus::Terminated && added.contains(&host)).then(|| (row.status(), host))
    };
    match living.iter().find_map(named) {
        None => Ok(()),
        Some((InstanceStatus::Terminating, host)) => Err(ControlError::refused(format!(
            "Host {host} is still being removed from the fleet. Try again in a minute"
        ))),
        Some((_, host)) => Err(ControlError::refused(format!(
            "Host {host} is in the fleet, under that name. Remove it first, then add it under the other"
        ))),
    }
}

/// The fleet must be what the client saw when it planned.
fn check_seen(found: &FleetRow, seen: Option<&SeenFleet>) -> Result<()> {
    let filled = |spec: &FleetSpec| {
        let mut spec = spec.clone();
        fill_fleet_defaults(&mut spec);
        without_keys(spec)
    };
    let same = seen.is_some_and(|seen| seen.id == found.id && filled(&seen.spec) == filled(&found.spec));
    if same { Ok(()) } else { Err(ControlError::stale()) }
}

/// Lists are sorted by time: instances of one fleet are not to be mixed up.
fn in_order(mut row: InstanceRow, now: Time) -> InstanceRow {
    row.created_at = Time::from_micros(now.as_micros() + row.instance_num);
    row
}
