//! One simulated installation.

use std::sync::Arc;
use std::time::Duration;

use dstack_engine::failpoint::NoFailpoints;
use dstack_engine::orphans::SWEEP_INTERVAL;
use dstack_engine::{Engine, EngineDeps, Failpoints, Identity, Settings};
use dstack_model::runs::RunStatus;
use dstack_plan::orphans::Policy as OrphanPolicy;
use dstack_store::rows::RunRow;
use dstack_store::{EngineStore, MemoryStore};
use dstack_system::clock::SharedClock;
use dstack_system::{Random, VirtualClock};
use dstack_units::{InstanceId, RunId, Time, UserId};

use crate::clouds::Clouds;
use crate::hosts::Hosts;
use crate::output::{SimInputs, SimOutput};
use crate::scenario::{Builder, ScenarioError};
use crate::services::{Services, TO_BE_HEARD};
use crate::ssh_hosts::SshHosts;
use crate::waits::Unmet;

/// How long a commit takes. Without it, work without end would be done at one moment of virtual time.
const COMMIT_TIME: Duration = Duration::from_millis(1);

/// A store, a host and their output: what outlives an engine.
#[derive(Debug)]
pub struct World {
    /// Store of the rows, kept in memory.
    pub store: Arc<MemoryStore>,
    /// The simulated hosts and their agents.
    pub hosts: Hosts,
    /// The simulated hosts of SSH fleets, before they have agents.
    pub ssh_hosts: SshHosts,
    /// The simulated clouds.
    pub clouds: Clouds,
    /// How jobs answer their probes, and the requests at them.
    pub services: Services,
    /// Output of jobs, as it was stored.
    pub output: Arc<SimOutput>,
    /// What jobs need.
    pub inputs: Arc<SimInputs>,
    /// Clock of the simulated world, which shows virtual time.
    pub clock: SharedClock,
    /// What its servers do with things in clouds that belong to nobody.
    pub orphans: OrphanPolicy,
    /// Pause between two looks for such things.
    pub orphans_interval: Duration,
    /// Builds the rows of scenarios.
    pub builder: Builder,
    /// Who asks for everything.
    pub user: UserId,
    pub(crate) random: Random,
}

impl World {
    /// An installation with one machine of `blocks` blocks. Call inside a runtime with paused time.
    pub async fn new(seed: u64, blocks: i64) -> Result<Self, ScenarioError> {
        Self::with_store(MemoryStore::new(), TO_BE_HEARD, seed, blocks).await
    }

    /// The same with a store as SQLite is one: for one server at a time, which nobody tells of changes.
    pub async fn of_one_server(seed: u64, blocks: i64) -> Result<Self, ScenarioError> {
        Self::with_store(MemoryStore::of_one_server(), Duration::ZERO, seed, blocks).await
    }

    async fn with_store(
        store: MemoryStore,
        to_be_heard: Duration,
        seed: u64,
        blocks: i64,
    ) -> Result<Self, ScenarioError> {
        let random = Random::seeded(seed);
        let clock: SharedClock = Arc::new(VirtualClock::starting_at(Time::from_millis(1_790_000_000_000)));
        let builder = Builder {
            project: random.uuid().into(),
            random: random.clone(),
        };
        let store = Arc::new(store.with_commit_time(COMMIT_TIME));
        let hosts = Hosts::new(Arc::clone(&clock), random.clone());
        let machine = builder.machine(blocks, clock.now())?;
        store.commit(machine).await.ok(); // a fresh store has no conflicts
        Ok(Self {
            services: Services::new(Arc::clone(&store), Arc::clone(&clock), to_be_heard),
            store,
            ssh_hosts: SshHosts::new(hosts.clone(), random.clone()),
            clouds: Clouds::new(hosts.clone(), random.clone()),
            hosts,
            output: Arc::default(),
            inputs: Arc::default(),
            clock,
            orphans: OrphanPolicy::default(),
            orphans_interval: SWEEP_INTERVAL,
            builder,
            user: random.uuid().into(),
            random,
        })
    }

    /// Adds a fleet of cloud instances; `nodes` is its field.
    pub async fn cloud_fleet(&self, name: &str, nodes: &str) -> Result<(), ScenarioError> {
        let fleet = self.builder.cloud_fleet(name, nodes, self.clock.now())?;
        self.store.commit(fleet).await.ok(); // its name is free
        Ok(())
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
            hosts: Arc::new(self.ssh_hosts.clone()),
            backends: Arc::new(self.clouds.clone()),
            output: Arc::clone(&self.output) as Arc<dyn dstack_engine::Output>,
            inputs: Arc::clone(&self.inputs) as Arc<dyn dstack_engine::Inputs>,
            services: Arc::new(self.services.of_server()),
            clock: Arc::clone(&self.clock),
            random: self.random.clone(),
            failpoints,
            settings: Settings {
                workers: 8,
                orphans: self.orphans,
                orphans_interval: self.orphans_interval,
                ..Settings::default()
            },
        }
    }

    /// Starts an engine that nothing kills.
    pub async fn start(&self) -> dstack_engine::Result<Engine> {
        self.launch(self.deps(Arc::new(NoFailpoints))).await
    }

    /// Starts one of several servers that share the store.
    pub async fn start_as(&self, name: &str) -> dstack_engine::Result<Engine> {
        let mut deps = self.deps(Arc::new(NoFailpoints));
        deps.settings.identity = Some(self.identity(name));
        self.launch(deps).await
    }

    /// A process of the server of this name.
    pub fn identity(&self, name: &str) -> Identity {
        Identity {
            name: name.to_owned(),
            process: self.random.uuid(),
            predecessor: None,
        }
    }

    /// Starts an engine that dies where `failpoints` says.
    pub async fn start_with(&self, failpoints: Arc<dyn Failpoints>) -> dstack_engine::Result<Engine> {
        self.launch(self.deps(failpoints)).await
    }

    /// Starts an engine with what was made for it last.
    pub(crate) async fn launch(&self, deps: EngineDeps) -> dstack_engine::Result<Engine> {
        let server = self.services.newest();
        let engine = Engine::start(deps).await?;
        self.services.end_with(server, &engine);
        Ok(engine)
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
