//! One simulated installation.

use std::sync::Arc;
use std::time::Duration;

use dstack_engine::failpoint::NoFailpoints;
use dstack_engine::{Engine, EngineDeps, Failpoints, Settings};
use dstack_model::instances::InstanceTerminationReason;
use dstack_model::runs::{RunStatus, RunTerminationReason};
use dstack_store::rows::{InstanceRow, RunRow};
use dstack_store::{EngineStore, Json, MemoryStore};
use dstack_system::clock::SharedClock;
use dstack_system::{Random, VirtualClock};
use dstack_units::{FleetId, InstanceId, RunId, Time};
use serde_json::Value;

use crate::clouds::Clouds;
use crate::hosts::Hosts;
use crate::output::{SimInputs, SimOutput};
use crate::scenario::{Builder, ScenarioError};
use crate::waits::Unmet;

/// A store, a host and their output: what outlives an engine.
#[derive(Debug)]
pub struct World {
    /// State.
    pub store: Arc<MemoryStore>,
    /// Agents.
    pub hosts: Hosts,
    /// Clouds.
    pub clouds: Clouds,
    /// Output.
    pub output: Arc<SimOutput>,
    /// What jobs need.
    pub inputs: Arc<SimInputs>,
    /// Virtual time.
    pub clock: SharedClock,
    /// Rows.
    pub builder: Builder,
    random: Random,
}

impl World {
    /// An installation with one machine of `blocks` blocks. Call inside a runtime with paused time.
    pub async fn new(seed: u64, blocks: i64) -> Result<Self, ScenarioError> {
        let random = Random::seeded(seed);
        let clock: SharedClock = Arc::new(VirtualClock::starting_at(Time::from_millis(1_790_000_000_000)));
        let builder = Builder {
            project: random.uuid().into(),
            random: random.clone(),
        };
        let store = Arc::new(MemoryStore::new());
        let hosts = Hosts::new(Arc::clone(&clock), random.clone());
        let machine = builder.machine(blocks, clock.now())?;
        store.commit(machine).await.ok(); // a fresh store has no conflicts
        Ok(Self {
            store,
            hosts,
            clouds: Clouds::new(random.clone()),
            output: Arc::default(),
            inputs: Arc::default(),
            clock,
            builder,
            random,
        })
    }

    /// Adds a fleet of cloud instances; `nodes` is its field.
    pub async fn cloud_fleet(&self, name: &str, nodes: &str) -> Result<(), ScenarioError> {
        let fleet = self.builder.cloud_fleet(name, nodes, self.clock.now())?;
        self.store.commit(fleet).await.ok(); // its name is free
        Ok(())
    }

    /// Applies a new fleet, as the API does; `configuration` has its fields.
    pub async fn apply_fleet(
        &self,
        engine: &Engine,
        name: &str,
        configuration: &Value,
    ) -> Result<FleetId, ScenarioError> {
        let now = self.clock.now();
        let fleet = self.builder.fleet(name, configuration, now)?;
        let id = fleet.id;
        let instances = self.builder.first_instances(&fleet, now);
        let mut changes = self.builder.changes(now);
        changes.insert_silently(fleet);
        for instance in instances {
            changes.insert_silently(instance);
        }
        if let Err(error) = engine.commit(changes.into_commit()).await {
            tracing::debug!(%error, "the fleet may not have been accepted");
        }
        Ok(id)
    }

    /// Applies a fleet that is there again, as the API does.
    pub async fn update_fleet(
        &self,
        engine: &Engine,
        id: FleetId,
        configuration: &Value,
    ) -> Result<(), ScenarioError> {
        while let Ok(Some(snapshot)) = self.store.fleet(id).await {
            let mut row = snapshot.fleet;
            row.spec = Json::new(self.builder.fleet_spec(&row.name, configuration)?);
            row.consolidation_attempt = 0;
            let mut changes = self.builder.changes(self.clock.now());
            changes.touch(row);
            if engine.commit(changes.into_commit()).await.is_ok() {
                break;
            }
        }
        Ok(())
    }

    /// Ends a fleet, or some of its instances, as the API does.
    pub async fn end_fleet(&self, engine: &Engine, id: FleetId, nums: Option<&[i64]>) {
        while let Ok(Some(snapshot)) = self.store.fleet(id).await {
            if snapshot.fleet.deleted {
                return;
            }
            let chosen = |row: &InstanceRow| nums.is_none_or(|nums| nums.contains(&row.instance_num));
            let now = self.clock.now();
            let mut changes = self.builder.changes(now);
            for row in snapshot.instances.iter().filter(|row| chosen(row)) {
                let mut ending = row.clone();
                if row.status().is_active() {
                    let reason = InstanceTerminationReason::TerminatedByUser;
                    ending.terminate(reason, None, now).ok(); // an active one may be ended
                }
                changes.update(row, ending);
            }
            if nums.is_none() {
                let mut ending = snapshot.fleet.clone();
                ending.terminate(now).ok(); // as may a fleet that is not over
                changes.touch(ending);
            }
            let commit = changes.into_commit();
            if engine.commit(commit).await.is_ok() {
                return;
            }
        }
    }

    /// A machine of a cloud breaks: nobody is told.
    pub fn lose(&self, instance: InstanceId) {
        self.clouds.lose(instance);
        self.hosts.lose(instance);
    }

    /// What an engine of this installation is given.
    pub fn deps(&self, failpoints: Arc<dyn Failpoints>) -> EngineDeps {
        EngineDeps {
            store: Arc::clone(&self.store) as Arc<dyn EngineStore>,
            agents: Arc::new(self.hosts.clone()),
            backends: Arc::new(self.clouds.clone()),
            output: Arc::clone(&self.output) as Arc<dyn dstack_engine::Output>,
            inputs: Arc::clone(&self.inputs) as Arc<dyn dstack_engine::Inputs>,
            clock: Arc::clone(&self.clock),
            random: self.random.clone(),
            failpoints,
            settings: Settings {
                workers: 8,
                ..Settings::default()
            },
        }
    }

    /// Starts an engine that nothing kills.
    pub async fn start(&self) -> dstack_engine::Result<Engine> {
        Engine::start(self.deps(Arc::new(NoFailpoints))).await
    }

    /// Starts one of several servers that share the store.
    pub async fn start_as(&self, name: &str) -> dstack_engine::Result<Engine> {
        let mut deps = self.deps(Arc::new(NoFailpoints));
        deps.settings.name = Some(name.to_owned());
        Engine::start(deps).await
    }

    /// Asks a server to stop a run, as the API does.
    pub async fn stop(&self, engine: &Engine, run: &RunRow) {
        loop {
            let Ok(Some(snapshot)) = self.store.run(run.id).await else {
                return;
            };
            let mut row = snapshot.run;
            if row.status().is_finished() || row.status() == RunStatus::Terminating {
                return;
            }
            let reason = RunTerminationReason::StoppedByUser;
            let before = row.clone();
            row.terminate(reason, self.clock.now()).ok(); // it is not over
            let mut changes = self.builder.changes(self.clock.now());
            changes.update(&before, row);
            if engine.commit(changes.into_commit()).await.is_ok() {
                return;
            }
        }
    }

    /// Starts an engine that dies where `failpoints` says.
    pub async fn start_with(&self, failpoints: Arc<dyn Failpoints>) -> dstack_engine::Result<Engine> {
        Engine::start(self.deps(failpoints)).await
    }

    /// Changes a run in place, as the API does.
    pub async fn update(&self, engine: &Engine, run: &RunRow, extra: &Value) -> Result<(), ScenarioError> {
        let spec = self.builder.spec(&run.run_name, extra)?;
        while let Ok(Some(snapshot)) = self.store.run(run.id).await {
            let mut row = snapshot.run;
            row.run_spec = Json::new(spec.clone());
            row.deployment_num = run.deployment_num + 1;
            let mut changes = self.builder.changes(self.clock.now());
            changes.touch(row);
            if engine.commit(changes.into_commit()).await.is_ok() {
                break;
            }
        }
        Ok(())
    }

    /// Submits a task, or what `extra` makes of it.
    pub async fn submit(&self, engine: &Engine, name: &str, extra: &Value) -> Result<RunRow, ScenarioError> {
        let (run, commit) = self.builder.run(name, extra, self.clock.now())?;
        if let Err(error) = engine.commit(commit).await {
            tracing::debug!(%error, "submission did not return");
        }
        Ok(run)
    }

    /// Waits, in virtual time, until the run is final.
    pub async fn finished(&self, run: &RunRow, within: Duration) -> Result<RunStatus, Unmet> {
        let end = |world: &World| world.status(run.id).filter(|status| status.is_finished());
        self.found(&format!("the end of {}", run.run_name), within, end)
            .await
    }

    /// Waits, in virtual time, until the run is running.
    pub async fn running(&self, run: &RunRow, within: Duration) -> Result<(), Unmet> {
        let runs = |world: &World| world.status(run.id) == Some(RunStatus::Running);
        self.until(&format!("{} to run", run.run_name), within, runs)
            .await
    }

    /// Present status of a run.
    pub fn status(&self, run: RunId) -> Option<RunStatus> {
        self.store
            .read(|tables| tables.runs.get(&run).map(dstack_store::rows::RunRow::status))
    }
}
