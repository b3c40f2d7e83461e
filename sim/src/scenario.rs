//! Rows to begin with: a project's fleet with a machine, and runs.

use std::collections::BTreeMap;

use dstack_model::decode::decode_strict;
use dstack_model::fleets::FleetSpec;
use dstack_model::instances::InstanceStatus;
use dstack_model::runs::{JobSpec, RunSpec};
use dstack_model::volumes::AnyVolumeConfiguration;
use dstack_plan::jobs::{JobContext, Target, job_specs};
use dstack_plan::placement::HostRules;
use dstack_plan::schedule::next_trigger;
use dstack_plan::services::replicas::{Slot, first};
use dstack_plan::validate::effective_run_spec;
use dstack_plan::{PlanError, ServerDefaults};
use dstack_store::rows::{AgentAddress, FleetRow, InstanceRow, JobRow, NewRun, RunRow, TransitionError};
use dstack_store::{Changes, Commit, EventMaker, Json, Sealed, StoreError};
use dstack_system::Random;
use dstack_units::{ProjectId, Time};
use serde_json::{Value, json};

use crate::waits::Unmet;

/// Why a scenario cannot be set up: a mistake in the test.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The JSON is not of the type.
    #[error("not a valid {0}: {1}")]
    Json(&'static str, String),
    /// The planner refuses the run.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A row cannot get the status.
    #[error(transparent)]
    Transition(#[from] TransitionError),
    /// A verb is refused.
    #[error("the verb is refused")]
    Refused(#[from] dstack_control::ControlError),
    /// What the test wants to change is not there.
    #[error("there is no {0}")]
    Missing(String),
    /// The store refuses it.
    #[error("the store refuses it")]
    Store(#[from] StoreError),
    /// What the test waits for does not come.
    #[error(transparent)]
    Unmet(#[from] Unmet),
}

/// Builds the rows of a scenario, with ids from `random`.
#[derive(Debug, Clone)]
pub struct Builder {
    /// The only project.
    pub project: ProjectId,
    /// Source of the ids of new rows.
    pub random: Random,
}

impl Builder {
    /// A fleet of one machine with `blocks` blocks.
    pub fn machine(&self, blocks: i64, now: Time) -> Result<Commit, ScenarioError> {
        let spec = json!({"configuration": {"type": "fleet", "name": "local", "ssh_config": {"hosts": ["127.0.0.1"]}}, "profile": {}});
        let resources =
            json!({"cpus": 8, "memory_mib": 65536, "gpus": [], "spot": false, "disk": {"size_mib": 512_000}});
        let kind = json!({"name": "ssh", "resources": resources});
        let offer = json!({"backend": "remote", "instance": kind, "region": "remote", "price": 0.0, "availability": "idle",
            "total_blocks": blocks});
        let place = json!({"backend": "remote", "instance_type": kind, "instance_id": "local", "hostname": "127.0.0.1",
            "region": "remote", "price": 0.0, "username": "root", "ssh_port": 22, "dockerized": false});
        let mut fleet = FleetRow::active(
            self.random.uuid().into(),
            self.project,
            "local".to_owned(),
            decode("fleet spec", &spec)?,
            now,
        );
        fleet.local = true;
        let mut instance = InstanceRow::pending(self.random.uuid().into(), &fleet, 0, now)
            .offering(decode("offer", &offer)?, decode("provisioning data", &place)?);
        instance.make_ready(InstanceStatus::Idle)?;
        instance.started_at = Some(now);
        instance.agent = Some(Json::new(AgentAddress::Local {
            runtime: "process".to_owned(),
            host: String::new(),
            rules: HostRules::default(),
        }));
        instance.total_blocks = Some(blocks);
        let mut changes = self.changes(now);
        changes.insert_silently(fleet);
        changes.insert_silently(instance);
        Ok(changes.into_commit())
    }

    /// A fleet whose instances are made when they are needed.
    pub fn cloud_fleet(&self, name: &str, nodes: &str, now: Time) -> Result<Commit, ScenarioError> {
        let fleet = self.fleet(name, &json!({"nodes": nodes, "placement": "cluster"}), now)?;
        let mut changes = self.changes(now);
        changes.insert_silently(fleet);
        Ok(changes.into_commit())
    }

    /// Changes of the system at that time.
    pub fn changes(&self, now: Time) -> Changes {
        Changes::new(EventMaker::system(now, self.random.clone()))
    }

    /// A fleet, still without instances; `configuration` has its fields.
    pub fn fleet(&self, name: &str, configuration: &Value, now: Time) -> Result<FleetRow, ScenarioError> {
        let spec = self.fleet_spec(name, configuration)?;
        let id = self.random.uuid().into();
        Ok(FleetRow::active(id, self.project, name.to_owned(), spec, now))
    }

    /// What a volume is made from; `configuration` has the fields besides name and backend.
    pub fn volume(&self, name: &str, configuration: &Value) -> Result<AnyVolumeConfiguration, ScenarioError> {
        let mut fields =
            json!({"type": "volume", "backend": "aws", "region": "here", "name": name, "size": "100GB"});
        if let (Some(base), Some(more)) = (fields.as_object_mut(), configuration.as_object()) {
            base.extend(more.clone());
        }
        decode("volume configuration", &fields)
    }

    /// What a fleet is made from.
    pub fn fleet_spec(&self, name: &str, configuration: &Value) -> Result<FleetSpec, ScenarioError> {
        let mut fields = json!({"type": "fleet", "name": name});
        if let (Some(base), Some(more)) = (fields.as_object_mut(), configuration.as_object()) {
            base.extend(more.clone());
        }
        decode("fleet spec", &json!({"configuration": fields, "profile": {}}))
    }

    /// What is asked for by a task, or whatever `extra`, merged into its configuration, makes of it; `null` takes a field out.
    pub fn spec(&self, name: &str, extra: &Value) -> Result<RunSpec, ScenarioError> {
        let mut configuration =
            json!({"type": "task", "commands": ["train"], "resources": {"cpu": "1..", "memory": "1GB.."}});
        if let (Some(base), Some(extra)) = (configuration.as_object_mut(), extra.as_object()) {
            base.extend(extra.clone());
            base.retain(|_, value| !value.is_null());
            if base.get("type") == Some(&json!("dev-environment")) {
                base.remove("commands");
            }
        }
        let spec: RunSpec = decode(
            "run spec",
            &json!({"run_name": name, "configuration": configuration}),
        )?;
        let server = ServerDefaults::default();
        Ok(effective_run_spec(spec, Some("ssh-ed25519 AAAA"), &server)?)
    }

    /// A run of [`Builder::spec`] submitted now.
    pub fn run(&self, name: &str, extra: &Value, now: Time) -> Result<(RunRow, Commit), ScenarioError> {
        let spec = self.spec(name, extra)?;
        let next_triggered_at = next_trigger(&spec, now);
        let scheduled = spec.merged_profile().params.schedule.is_some();
        let specs = if scheduled {
            Vec::new()
        } else {
            jobs(&spec, &first(&spec))?
        };
        let new = NewRun {
            id: self.random.uuid().into(),
            project_id: self.project,
            user_id: self.random.uuid().into(),
            repo_id: None,
            spec,
            next_triggered_at,
        };
        let run = RunRow::new(new, now);
        let mut changes = self.changes(now);
        changes.insert_silently(run.clone());
        for spec in specs {
            let id = self.random.uuid().into();
            changes.insert_silently(JobRow::submitted(id, &run, Sealed::new(spec), now));
        }
        Ok((run, changes.into_commit()))
    }
}

/// The jobs of these replicas, as the server makes them.
pub fn jobs(spec: &RunSpec, replicas: &[Slot]) -> Result<Vec<JobSpec>, PlanError> {
    let context = JobContext {
        server: &ServerDefaults::default(),
        images: &BTreeMap::new(),
        target: Target::Container,
    };
    let mut jobs = Vec::new();
    for replica in replicas {
        let num = u32::try_from(replica.num).unwrap_or_default();
        jobs.extend(job_specs(spec, num, replica.group.as_deref(), &context)?);
    }
    Ok(jobs)
}

fn decode<T: dstack_model::decode::Decode>(what: &'static str, value: &Value) -> Result<T, ScenarioError> {
    decode_strict(value).map_err(|problems| ScenarioError::Json(what, format!("{problems:?}")))
}
