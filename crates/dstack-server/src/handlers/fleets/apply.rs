//! Creating fleets and changing them in place.

use dstack_api::ErrorCode;
use dstack_model::fleets::{Fleet, FleetSpec};
use dstack_model::instances::InstanceTerminationReason;
use dstack_model::requests::ApplyFleetPlanRequest;
use dstack_plan::fleet_diff::{HostChanges, check_updatable, host_changes};
use dstack_plan::lifecycle::{Wait, WaitReason};
use dstack_plan::names;
use dstack_plan::validate::fill_fleet_defaults;
use dstack_store::directory::lists::{self, ListedFleet};
use dstack_store::events as targets;
use dstack_store::rows::{FleetRow, InstanceRow};
use dstack_store::{Changes, Commit, EngineStore, Json, StoreError};
use dstack_units::Time;

use super::ssh::{NewHost, check_free, host, opened, sealed};
use super::{ATTEMPTS, check_ssh_permission, validate, with_instances};
use crate::api::Call;
use crate::audit;
use crate::error::{ApiError, Result};
use crate::render::fleets::without_keys;
use crate::state::AppState;

const SSH_FLEETS_LATER: &str = "This server version does not connect to hosts of SSH fleets yet. Runs use the fleet of \
     the server's own machine, and fleets in clouds (`nodes` instead of `ssh_config`).";

pub(super) async fn apply(call: Call, request: ApplyFleetPlanRequest) -> Result<Fleet> {
    let (state, project) = (&call.state, call.project()?.row.id);
    let mut spec = state.plugins.on_apply(&call, request.plan.spec).await?;
    validate::check(&spec)?;
    fill_fleet_defaults(&mut spec);
    if spec.configuration.ssh_config.is_some() {
        check_ssh_permission(&call)?;
    }
    for _ in 0..ATTEMPTS {
        let found = match &spec.configuration.name {
            Some(name) => lists::fleet_by_name(state.database.pool(), project, name).await?,
            None => None,
        };
        let expected = request.plan.current_resource.as_ref();
        let (commit, id) = match &found {
            None => creation(&call, spec.clone()).await?,
            Some(found) => {
                if !request.force {
                    check_expected(found, expected)?;
                }
                (change(&call, found, spec.clone()).await?, found.fleet.id)
            }
        };
        match state.engine.commit(commit).await {
            Err(error) if error.is_conflict() || error.is_unique_violation() => {}
            Err(error) => return Err(error.into()),
            Ok(()) => {
                let made = lists::fleet_by_id(state.database.pool(), project, id).await?;
                let made = made.ok_or_else(ApiError::not_exists)?;
                let shown = with_instances(state, &[made]).await?.pop();
                return shown.ok_or_else(ApiError::not_exists);
            }
        }
    }
    Err(ApiError::client(
        "Failed to update fleet: fleet is being processed currently. Try again later.",
    ))
}

/// The fleet must be what the client saw when it planned.
fn check_expected(found: &ListedFleet, expected: Option<&Fleet>) -> Result<()> {
    let filled = |spec: &FleetSpec| {
        let mut spec = spec.clone();
        fill_fleet_defaults(&mut spec);
        without_keys(spec)
    };
    let same = expected.is_some_and(|expected| {
        expected.id == found.fleet.id && filled(&expected.spec) == filled(&found.fleet.spec)
    });
    if same { Ok(()) } else { Err(ApiError::stale()) }
}

/// Refuses hosts that would wait for ever.
fn check_connected(state: &AppState, spec: &FleetSpec, hosts: usize) -> Result<()> {
    let refused = spec.configuration.ssh_config.is_some() && hosts > 0 && !state.engine.connects_hosts();
    match refused {
        false => Ok(()),
        true => Err(ApiError::with_code(
            ErrorCode::BackendNotAvailable,
            SSH_FLEETS_LATER,
        )),
    }
}

async fn creation(call: &Call, mut spec: FleetSpec) -> Result<(Commit, dstack_units::FleetId)> {
    let (state, project) = (&call.state, call.project()?.row.id);
    check_free(state, &spec, None).await?;
    let name = match &spec.configuration.name {
        Some(name) => name.clone(),
        None => free_name(call).await?,
    };
    spec.configuration.name = Some(name.clone());
    let now = state.clock.now();
    let stored = sealed(spec.clone(), &state.encryption)?;
    let fleet = FleetRow::active(state.random.uuid().into(), project, name, stored, now);
    let instances = first_instances(state, &fleet, &spec, now);
    check_connected(state, &spec, instances.len())?;
    let by_system = audit::by_system(state);
    let mut changes = Changes::new(audit::by(state, call.user()?));
    let id = fleet.id;
    changes.insert(fleet, "Fleet created. Status: ACTIVE");
    for row in instances {
        let text = "Instance created on fleet submission. Status: PENDING";
        let targets = vec![targets::instance(&row)];
        // Instances in clouds are made by the server to satisfy the fleet.
        match spec.configuration.ssh_config {
            Some(_) => changes.note(text, targets),
            None => changes.event(by_system.event(text, targets)),
        }
        changes.insert_silently(row);
    }
    Ok((audit::kept_of(state, changes), id))
}

async fn free_name(call: &Call) -> Result<String> {
    let (state, project) = (&call.state, call.project()?.row.id);
    let page = dstack_store::directory::Page::newest(super::ALL);
    let fleets = lists::fleets(state.database.pool(), Some(&[project]), true, &page).await?;
    Ok(names::numbered(&names::stem(&state.random), |name| {
        fleets.iter().any(|listed| listed.fleet.name == name)
    }))
}

fn first_instances(state: &AppState, fleet: &FleetRow, spec: &FleetSpec, now: Time) -> Vec<InstanceRow> {
    let configuration = &spec.configuration;
    match &configuration.ssh_config {
        Some(ssh) => (0..)
            .zip(&ssh.hosts)
            .map(|(num, one)| {
                let name = format!("{}-{num}", fleet.name);
                let new = host(ssh, one, configuration.blocks, &name);
                instance(state, fleet, num, new, now)
            })
            .collect(),
        None => {
            let target = configuration.nodes.map_or(0, |nodes| nodes.target);
            let wanted = |num| {
                let row = InstanceRow::wanted(state.random.uuid().into(), fleet, num, now);
                in_order(row, now)
            };
            (0..target).map(wanted).collect()
        }
    }
}

/// Lists are sorted by time: instances of one fleet are not to be mixed up.
fn in_order(mut row: InstanceRow, now: Time) -> InstanceRow {
    row.created_at = Time::from_micros(now.as_micros() + row.instance_num);
    row
}

/// An instance of an SSH fleet.
fn instance(state: &AppState, fleet: &FleetRow, num: i64, host: NewHost, now: Time) -> InstanceRow {
    let row = InstanceRow::pending(state.random.uuid().into(), fleet, num, now);
    let mut row = row.offering(host.offer, host.place);
    row.started_at = Some(now);
    row.total_blocks = host.total_blocks;
    row.wait(Wait::briefly(now, WaitReason::HostPrepared));
    in_order(row, now)
}

/// What changes when a fleet that is there gets another specification.
async fn change(call: &Call, found: &ListedFleet, spec: FleetSpec) -> Result<Commit> {
    let state = &call.state;
    let snapshot = state
        .store
        .fleet(found.fleet.id)
        .await?
        .ok_or_else(ApiError::not_exists)?;
    let mut old = opened(FleetSpec::clone(&snapshot.fleet.spec), &state.encryption)?;
    fill_fleet_defaults(&mut old);
    check_updatable(&old, &spec)?;
    let now = state.clock.now();
    let mut fleet = snapshot.fleet.clone();
    fleet.spec = Json::new(sealed(spec.clone(), &state.encryption)?);
    // It is brought to its new size soon, also where that was given up.
    fleet.consolidation_attempt = 0;
    fleet.wake_at(now);
    let mut changes = Changes::new(audit::by(state, call.user()?));
    changes.touch(fleet.clone());
    if let (Some(before), Some(after)) = (&old.configuration.ssh_config, &spec.configuration.ssh_config) {
        let HostChanges { added, removed, .. } = host_changes(before, after);
        if !added.is_empty() {
            check_free(state, &spec, Some(fleet.id)).await?;
        }
        check_connected(state, &spec, added.len())?;
        let living: Vec<&InstanceRow> = snapshot.instances.iter().filter(|row| !row.deleted).collect();
        let mut taken: Vec<i64> = living.iter().map(|row| row.instance_num).collect();
        for one in after.hosts.iter().filter(|host| added.contains(host.hostname())) {
            let num = (0..).find(|num| !taken.contains(num)).unwrap_or_default();
            taken.push(num);
            let new = host(
                after,
                one,
                spec.configuration.blocks,
                &format!("{}-{num}", fleet.name),
            );
            let row = instance(state, &fleet, num, new, now);
            changes.insert(row, "Instance created on fleet update. Status: PENDING");
        }
        let leaves = |row: &&&InstanceRow| {
            let place = row.job_provisioning_data.as_ref();
            row.status().is_active()
                && place
                    .and_then(|place| place.hostname.as_ref())
                    .is_some_and(|name| removed.contains(name))
        };
        for row in living.iter().filter(leaves) {
            let mut ending = (*row).clone();
            let reason = InstanceTerminationReason::TerminatedByUser;
            ending.terminate(reason, None, now).map_err(StoreError::from)?;
            changes.update(*row, ending);
        }
    }
    Ok(audit::kept_of(state, changes))
}
