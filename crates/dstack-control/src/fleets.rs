//! Fleets: creating, changing, ending; and the checks of what they are made from.

mod apply;
pub mod hosts;
mod trust;
pub mod validate;

use dstack_model::fleets::FleetStatus;
use dstack_model::instances::{InstanceStatus, InstanceTerminationReason};
use dstack_store::encryption::Encryption;
use dstack_store::rows::{FleetRow, InstanceRow};
use dstack_store::{Changes, FleetSnapshot};
use dstack_units::{FleetId, ProjectId};

use crate::core::{Actor, Core};
use crate::error::{ControlError, Result};

pub use apply::{ApplyFleet, SeenFleet};
pub use trust::TrustedHost;

/// What the actor may do with fleets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FleetRights {
    /// Create, change and end fleets of hosts.
    pub ssh_fleets: bool,
}

/// The verbs of fleets.
#[derive(Debug, Clone)]
pub struct Fleets {
    core: Core,
    encryption: Encryption,
}

impl Fleets {
    /// On this store and engine; private keys of hosts are encrypted with these keys.
    pub fn new(core: Core, encryption: Encryption) -> Self {
        Self { core, encryption }
    }

    /// Ends the fleets of these names, or of each only the instances with these numbers; unknown names are left alone.
    ///
    /// # Errors
    /// Jobs run in one of them, it is the server's own machine, which the server offers, or the actor may not: none is ended.
    pub async fn terminate(
        &self,
        actor: Actor,
        rights: FleetRights,
        project: ProjectId,
        names: &[String],
        nums: Option<&[i64]>,
    ) -> Result<()> {
        let fleets = self.core.store.fleets_by_names(project, names).await?;
        for fleet in &fleets {
            check_rights(fleet.spec.configuration.ssh_config.is_some(), rights)?;
        }
        let ids: Vec<FleetId> = fleets.iter().map(|fleet| fleet.id).collect();
        let names: Vec<&str> = fleets.iter().map(|fleet| fleet.name.as_str()).collect();
        let busy = format!(
            "Fleet {} is being processed currently. Try again later.",
            names.join(", ")
        );
        self.core
            .retry_on_conflict(&busy, || self.try_terminate(actor, &ids, nums))
            .await
    }

    async fn try_terminate(&self, actor: Actor, ids: &[FleetId], nums: Option<&[i64]>) -> Result<()> {
        let mut changes = self.core.changes(actor);
        for id in ids {
            if let Some(snapshot) = self.core.store.fleet(*id).await? {
                self.end(&snapshot, nums, &mut changes)?;
            }
        }
        self.core.commit(changes).await
    }

    fn end(&self, snapshot: &FleetSnapshot, nums: Option<&[i64]>, changes: &mut Changes) -> Result<()> {
        let fleet = &snapshot.fleet;
        let chosen = |row: &&InstanceRow| nums.is_none_or(|nums| nums.contains(&row.instance_num));
        // Without runs that are active only jobs that were given up hold a share: nobody knows what their hosts do.
        let held = |row: &InstanceRow| row.unreachable && snapshot.active_runs.is_empty();
        let busy = snapshot
            .instances
            .iter()
            .filter(chosen)
            .any(|row| row.busy_blocks > 0 && !held(row));
        if fleet.local
            && let Some(row) = snapshot.instances.iter().filter(chosen).find(is_offered)
        {
            return Err(match nums {
                None => own_machine_of_fleet(&fleet.name),
                Some(_) => own_machine(&row.name),
            });
        }
        if busy || (nums.is_none() && !snapshot.active_runs.is_empty()) {
            return Err(in_use(fleet, nums));
        }
        let now = self.core.now();
        for row in snapshot.instances.iter().filter(chosen) {
            let mut changed = row.clone();
            if row.status() == InstanceStatus::Terminated {
                // It is over, and need not be shown any more.
                changed.delete(now);
            } else if row.status().is_active() {
                changed.terminate(InstanceTerminationReason::TerminatedByUser, None, now)?;
            }
            changes.update(row, changed);
        }
        if nums.is_none() && fleet.status() != FleetStatus::Terminating {
            let mut ending = fleet.clone();
            ending.terminate(now)?;
            changes.update(fleet, ending);
        }
        Ok(())
    }
}

/// Refuses to change the fleet of a server's own machine: the server keeps it as it is.
fn check_not_own_machine(fleet: &FleetRow) -> Result<()> {
    match fleet.local {
        false => Ok(()),
        true => Err(own_machine_of_fleet(&fleet.name)),
    }
}

fn own_machine_of_fleet(fleet: &str) -> ControlError {
    ControlError::refused(format!(
        "Fleet {fleet} is this server's own machine. To do without it, start the server with --no-local, then delete the fleet."
    ))
}

/// Whether it is the machine of a server that runs and offers it. One that its server does not offer any more, or whose server is
/// gone for good, may be ended: nobody else would.
fn is_offered(row: &&InstanceRow) -> bool {
    let is_wanted = row.agent.as_deref().is_none_or(|agent| agent.rules().offered);
    is_wanted && row.status().is_active() && !row.unreachable
}

fn own_machine(instance: &str) -> ControlError {
    ControlError::refused(format!(
        "Instance {instance} is the machine of a server that runs. Start that server with --no-local to do without it."
    ))
}

fn check_rights(of_hosts: bool, rights: FleetRights) -> Result<()> {
    match of_hosts && !rights.ssh_fleets {
        true => Err(ControlError::Forbidden("Access denied".to_owned())),
        false => Ok(()),
    }
}

fn in_use(fleet: &FleetRow, nums: Option<&[i64]>) -> ControlError {
    ControlError::refused(match nums {
        None => format!("Failed to delete fleet {}. Fleet is in use.", fleet.name),
        Some(nums) => format!(
            "Failed to delete fleet {} instances {nums:?}. Fleet instances are in use.",
            fleet.name
        ),
    })
}
