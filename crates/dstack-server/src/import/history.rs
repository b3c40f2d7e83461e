//! Fleets, instances, runs, jobs, events. What is over is taken as history; what lives stays with the server that made it.

use std::collections::{BTreeMap, HashMap, HashSet};

use dstack_model::fleets::{FleetSpec, FleetStatus};
use dstack_model::health::HealthStatus;
use dstack_model::instances::{InstanceStatus, InstanceTerminationReason};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::{
    JobProvisioningData, JobRuntimeData, JobSpec, JobStatus, JobTerminationReason, RunSpec, RunStatus,
    RunTerminationReason, ServiceSpec,
};
use dstack_store::legacy::{LegacyDatabase, LegacyRow, NewRow, column, sealed_column};
use uuid::Uuid;

use super::ImportError;
use super::read::{Keys, Plan, id, needed, rows, time, uuid};

/// Fleets and instances.
pub(super) async fn fleets(
    source: &LegacyDatabase,
    keys: &Keys<'_>,
    plan: &mut Plan,
) -> Result<(), ImportError> {
    let instances = rows(source, "instances", INSTANCE_COLUMNS, "created_at").await?;
    let lives = |row: &&LegacyRow| row.member::<InstanceStatus>("status") != Some(InstanceStatus::Terminated);
    let living: HashSet<Uuid> = instances
        .iter()
        .filter(lives)
        .filter_map(|row| row.parse("fleet_id"))
        .collect();
    let columns = [
        "id",
        "name",
        "project_id",
        "created_at",
        "last_processed_at",
        "deleted",
        "deleted_at",
        "status",
        "status_message",
        "spec",
    ];
    for row in rows(source, "fleets", &columns, "created_at").await? {
        let id = id("fleets", &row)?;
        let status: FleetStatus = needed("fleets", &row, "status", row.member("status"))?;
        let name = row.text("name");
        let over = row.flag("deleted");
        let spec = match row.json::<FleetSpec>("spec") {
            Ok(Some(spec)) => spec,
            _ => {
                plan.leave("fleets", name, "its configuration cannot be read");
                continue;
            }
        };
        if !over && living.contains(&id) {
            let why = match spec.configuration.ssh_config {
                Some(_) => {
                    "its hosts belong to the other server: delete it there and apply its configuration again"
                }
                None => {
                    "it has instances, which belong to the other server: delete it there and apply its configuration again"
                }
            };
            plan.leave("fleets", name, why);
            continue;
        }
        let spec = dstack_control::fleets::hosts::sealed(spec, keys.new).map_err(ImportError::Target)?;
        let new = NewRow::new("fleets", "id")
            .with("id", id)
            .with("project_id", uuid("fleets", &row, "project_id")?)
            .with("name", name)
            .with("created_at", time("fleets", &row, "created_at")?)
            .with("status", status.as_str())
            .maybe("status_message", row.get("status_message"))
            .with("spec", sealed_column(spec, &plan.keys))
            .with("deleted", over)
            .maybe("deleted_at", row.time("deleted_at"))
            .with("last_processed_at", processed(&row, "fleets")?)
            .with("version", 1_i64);
        plan.add("fleets", id, new);
    }
    for row in &instances {
        instance(row, plan)?;
    }
    health_checks(source, plan).await
}

/// What was said of the GPUs of instances that are taken over.
async fn health_checks(source: &LegacyDatabase, plan: &mut Plan) -> Result<(), ImportError> {
    let table = "instance_health_checks";
    // Those of living instances stay, and are many.
    let ended = "instance_id IN (SELECT id FROM instances WHERE status = 'TERMINATED')";
    let columns = ["id", "instance_id", "collected_at", "status", "response"];
    let found = source.rows_where(table, ended, &columns, "collected_at").await;
    for row in found.map_err(ImportError::Source)? {
        let instance = uuid(table, &row, "instance_id")?;
        if !plan.has("instances", Some(instance)) {
            continue;
        }
        let status: HealthStatus = needed(table, &row, "status", row.member("status"))?;
        let new = NewRow::new(table, "id")
            .with("id", id(table, &row)?)
            .with("instance_id", instance)
            .with("collected_at", time(table, &row, "collected_at")?)
            .with("status", status.as_str())
            .with("response", row.text("response"));
        plan.add_part(new);
    }
    Ok(())
}

const INSTANCE_COLUMNS: &[&str] = &[
    "id",
    "name",
    "instance_num",
    "created_at",
    "last_processed_at",
    "deleted",
    "deleted_at",
    "project_id",
    "fleet_id",
    "status",
    "unreachable",
    "health",
    "started_at",
    "finished_at",
    "termination_reason",
    "termination_reason_message",
    "backend",
    "offer",
    "region",
    "price",
    "job_provisioning_data",
    "total_blocks",
];

fn instance(row: &LegacyRow, plan: &mut Plan) -> Result<(), ImportError> {
    let (id, table) = (id("instances", row)?, "instances");
    let name = row.text("name");
    let status: InstanceStatus = needed(table, row, "status", row.member("status"))?;
    if status != InstanceStatus::Terminated {
        let why = format!("it is {}: it belongs to the other server", status.as_str());
        plan.leave("instances", name, why);
        return Ok(());
    }
    let fleet = row
        .parse::<Uuid>("fleet_id")
        .filter(|id| plan.has("fleets", Some(*id)));
    let reason = row.member::<InstanceTerminationReason>("termination_reason");
    let health: HealthStatus = needed(table, row, "health", row.member("health"))?;
    // Details of what is gone: what cannot be read is not shown.
    let offer = row.json::<InstanceOfferWithAvailability>("offer").ok().flatten();
    let place = row
        .json::<JobProvisioningData>("job_provisioning_data")
        .ok()
        .flatten();
    let new = NewRow::new(table, "id")
        .with("id", id)
        .with("project_id", uuid(table, row, "project_id")?)
        .maybe("fleet_id", fleet)
        .with("name", name)
        .with("instance_num", row.parse::<i64>("instance_num").unwrap_or(0))
        .with("created_at", time(table, row, "created_at")?)
        .maybe("started_at", row.time("started_at"))
        .maybe("finished_at", row.time("finished_at"))
        .with("status", status.as_str())
        .with("unreachable", row.flag("unreachable"))
        .with("health", health.as_str())
        .maybe(
            "termination_reason",
            reason.map(InstanceTerminationReason::as_str),
        )
        .maybe(
            "termination_reason_message",
            row.get("termination_reason_message"),
        )
        .maybe("backend", row.get("backend").map(str::to_lowercase))
        .maybe("region", row.get("region"))
        .maybe("offer", offer.map(column))
        .maybe(
            "job_provisioning_data",
            place.map(|place| sealed_column(place, &plan.keys)),
        )
        .maybe("total_blocks", row.parse::<i64>("total_blocks"))
        .with("deleted", row.flag("deleted"))
        .maybe("deleted_at", row.time("deleted_at"))
        .with("last_processed_at", processed(row, table)?)
        .with("version", 1_i64);
    plan.add("instances", id, new);
    Ok(())
}

fn processed(row: &LegacyRow, table: &'static str) -> Result<dstack_units::Time, ImportError> {
    time(table, row, "last_processed_at")
}

/// Runs that are over, and their jobs.
pub(super) async fn runs(source: &LegacyDatabase, plan: &mut Plan) -> Result<(), ImportError> {
    let columns = [
        "id",
        "deleted",
        "project_id",
        "user_id",
        "repo_id",
        "fleet_id",
        "run_name",
        "submitted_at",
        "last_processed_at",
        "status",
        "termination_reason",
        "resubmission_attempt",
        "run_spec",
        "service_spec",
        "priority",
        "deployment_num",
        "desired_replica_count",
    ];
    for row in rows(source, "runs", &columns, "submitted_at").await? {
        run(&row, plan)?;
    }
    for row in rows(source, "jobs", JOB_COLUMNS, "submitted_at").await? {
        job(&row, plan)?;
    }
    Ok(())
}

fn run(row: &LegacyRow, plan: &mut Plan) -> Result<(), ImportError> {
    let id = id("runs", row)?;
    let name = row.text("run_name");
    let status: RunStatus = needed("runs", row, "status", row.member("status"))?;
    if !status.is_finished() {
        let why = format!(
            "it is {}: stop it there, or import again when it is over",
            status.as_str()
        );
        plan.leave("runs", name, why);
        return Ok(());
    }
    let spec = match row.json::<RunSpec>("run_spec") {
        Ok(Some(spec)) => spec,
        _ => {
            plan.leave("runs", name, "its configuration cannot be read");
            return Ok(());
        }
    };
    let user = uuid("runs", row, "user_id")?;
    let repo = row
        .parse::<Uuid>("repo_id")
        .filter(|id| plan.has("repos", Some(*id)));
    let reason = row.member::<RunTerminationReason>("termination_reason");
    let service = row.json::<ServiceSpec>("service_spec").ok().flatten();
    let new = NewRow::new("runs", "id")
        .with("id", id)
        .with("project_id", uuid("runs", row, "project_id")?)
        .with("user_id", user)
        .maybe("repo_id", repo)
        .maybe("fleet_id", row.parse::<Uuid>("fleet_id"))
        .with("run_name", name)
        .with("submitted_at", time("runs", row, "submitted_at")?)
        .with("status", status.as_str())
        .maybe("termination_reason", reason.map(RunTerminationReason::as_str))
        .with("resubmission_attempt", number(row, "resubmission_attempt"))
        .with("run_spec", sealed_column(spec, &plan.keys))
        .maybe("service_spec", service.map(column))
        .with("priority", number(row, "priority"))
        .with("deployment_num", number(row, "deployment_num"))
        .with("desired_replica_count", number(row, "desired_replica_count"))
        .with("deleted", row.flag("deleted"))
        .with("last_processed_at", processed(row, "runs")?)
        .with("version", 1_i64);
    plan.add("runs", id, new);
    Ok(())
}

fn number(row: &LegacyRow, column: &'static str) -> i64 {
    row.parse(column).unwrap_or(0)
}

const JOB_COLUMNS: &[&str] = &[
    "id",
    "project_id",
    "run_id",
    "fleet_id",
    "run_name",
    "job_num",
    "job_name",
    "submission_num",
    "submitted_at",
    "running_at",
    "last_processed_at",
    "status",
    "termination_reason",
    "termination_reason_message",
    "exit_status",
    "job_spec_data",
    "job_provisioning_data",
    "used_instance_id",
    "replica_num",
    "deployment_num",
    "job_runtime_data",
];

fn job(row: &LegacyRow, plan: &mut Plan) -> Result<(), ImportError> {
    let (id, table) = (id("jobs", row)?, "jobs");
    let run = uuid(table, row, "run_id")?;
    let name = row.text("job_name");
    if !plan.has("runs", Some(run)) {
        plan.leave("jobs", name, "its run is not taken over");
        return Ok(());
    }
    let status: JobStatus = needed(table, row, "status", row.member("status"))?;
    let spec = row.json::<JobSpec>("job_spec_data").ok().flatten();
    let Some(spec) = spec.filter(|_| status.is_finished()) else {
        plan.leave("jobs", name, "it is not over, or what it ran cannot be read");
        return Ok(());
    };
    let ended = processed(row, table)?;
    let reason = row.member::<JobTerminationReason>("termination_reason");
    let place = row
        .json::<JobProvisioningData>("job_provisioning_data")
        .ok()
        .flatten();
    let runtime = row.json::<JobRuntimeData>("job_runtime_data").ok().flatten();
    let new = NewRow::new(table, "id")
        .with("id", id)
        .with("project_id", uuid(table, row, "project_id")?)
        .with("run_id", run)
        .with("run_name", row.text("run_name"))
        .with("job_num", number(row, "job_num"))
        .with("replica_num", number(row, "replica_num"))
        .with("submission_num", number(row, "submission_num"))
        .with("job_name", name)
        .with("deployment_num", number(row, "deployment_num"))
        .with("submitted_at", time(table, row, "submitted_at")?)
        .maybe("running_at", row.time("running_at"))
        .with("finished_at", ended)
        .with("status", status.as_str())
        .maybe("termination_reason", reason.map(JobTerminationReason::as_str))
        .maybe(
            "termination_reason_message",
            row.get("termination_reason_message"),
        )
        .maybe("exit_status", row.parse::<i64>("exit_status"))
        .with("job_spec", sealed_column(spec, &plan.keys))
        .maybe(
            "job_provisioning_data",
            place.map(|place| sealed_column(place, &plan.keys)),
        )
        .maybe("job_runtime_data", runtime.map(column))
        .maybe("fleet_id", row.parse::<Uuid>("fleet_id"))
        .maybe("used_instance_id", row.parse::<Uuid>("used_instance_id"))
        .with("last_processed_at", ended)
        .with("version", 1_i64);
    plan.add("jobs", id, new);
    Ok(())
}

/// The audit trail.
pub(super) async fn events(source: &LegacyDatabase, plan: &mut Plan) -> Result<(), ImportError> {
    let columns = [
        "id",
        "event_id",
        "entity_project_id",
        "entity_run_id",
        "entity_fleet_id",
        "entity_gateway_id",
        "entity_type",
        "entity_id",
        "entity_name",
    ];
    let mut targets: HashMap<Uuid, Vec<LegacyRow>> = HashMap::new();
    for row in rows(source, "event_targets", &columns, "id").await? {
        let event = uuid("event_targets", &row, "event_id")?;
        targets.entry(event).or_default().push(row);
    }
    let columns = ["id", "message", "recorded_at", "actor_user_id"];
    for row in rows(source, "events", &columns, "recorded_at").await? {
        let id = id("events", &row)?;
        let mut of_event = (0_i64..).zip(targets.remove(&id).unwrap_or_default());
        let first = match of_event.next() {
            Some((_, target)) => event_target(event(id, 0, &row)?, &target)?,
            None => event(id, 0, &row)?,
        };
        plan.add("events", id, first);
        for (position, target) in of_event {
            plan.add_part(event_target(event(id, position, &row)?, &target)?);
        }
    }
    Ok(())
}

fn event(id: Uuid, position: i64, row: &LegacyRow) -> Result<NewRow, ImportError> {
    Ok(NewRow::new("events", "recorded_at, id, position")
        .with("recorded_at", time("events", row, "recorded_at")?)
        .with("id", id)
        .with("position", position)
        .with("message", row.text("message"))
        .maybe("actor_user_id", row.parse::<Uuid>("actor_user_id")))
}

fn event_target(event: NewRow, row: &LegacyRow) -> Result<NewRow, ImportError> {
    let entity = uuid("event_targets", row, "entity_id")?;
    let others = BTreeMap::from([
        ("project_id", "entity_project_id"),
        ("fleet_id", "entity_fleet_id"),
        ("gateway_id", "entity_gateway_id"),
    ]);
    let kind = row.text("entity_type").to_lowercase().replace('_', "-");
    // A run is found through itself.
    let run = (kind == "run").then_some(entity);
    let new = event
        .with("entity_type", kind)
        .with("entity_id", entity)
        .with("entity_name", row.text("entity_name"))
        .maybe("run_id", run.or(row.parse::<Uuid>("entity_run_id")));
    Ok(others.into_iter().fold(new, |new, (ours, theirs)| {
        new.maybe(ours, row.parse::<Uuid>(theirs))
    }))
}
