//! The verbs of the control plane, called as the API calls them.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_compute::{BackendKind, Registry};
use dstack_control::fleets::{ApplyFleet, FleetRights, Fleets, TrustedHost};
use dstack_control::runs::{ApplyRun, RunResources, Runs};
use dstack_control::volumes::Volumes;
use dstack_control::{Actor, ControlError, Core, EngineHandle};
use dstack_engine::{Engine, EngineError};
use dstack_model::runs::{JobSpec, RunSpec};
use dstack_model::volumes::VolumeStatus;
use dstack_plan::services::replicas::Slot;
use dstack_plan::services::rollout::state::Ask;
use dstack_store::encryption::Encryption;
use dstack_store::memory::Tables;
use dstack_store::rows::{FleetRow, GatewayRow, RunRow, VolumeRow};
use dstack_store::{Commit, EngineStore, StoreError};
use dstack_units::{ArchiveId, FleetId, ProjectId, RepoRowId, RunId, UserId, VolumeId};
use serde_json::Value;

use crate::scenario::{ScenarioError, jobs};
use crate::world::World;

/// How long clouds may take to make a volume.
const MADE_WITHIN: Duration = Duration::from_secs(90 * 60);

/// A simulated engine as verbs see it.
#[derive(Debug)]
struct Connected(Engine);

#[async_trait]
impl EngineHandle for Connected {
    async fn commit(&self, commit: Commit) -> Result<(), StoreError> {
        self.0.commit(commit).await.map_err(|error| match error {
            EngineError::Store(error) => error,
            EngineError::Logs(_)
            | EngineError::Inputs(_)
            | EngineError::LeaseLost
            | EngineError::NameTaken(_)
            | EngineError::Killed(_) => StoreError::Closed,
        })
    }
}

/// Runs that need nothing but their jobs.
#[derive(Debug)]
struct NoResources;

#[async_trait]
impl RunResources for NoResources {
    async fn check(&self, _: ProjectId, _: &RunSpec) -> dstack_control::Result<()> {
        Ok(())
    }

    async fn gateway(&self, _: ProjectId, _: &RunSpec) -> dstack_control::Result<Option<GatewayRow>> {
        Ok(None)
    }

    async fn check_archives(&self, _: UserId, _: &[ArchiveId]) -> dstack_control::Result<()> {
        Ok(())
    }

    async fn repo(&self, _: ProjectId, _: &RunSpec) -> dstack_control::Result<Option<RepoRowId>> {
        Ok(None)
    }

    async fn jobs(
        &self,
        _: ProjectId,
        spec: &RunSpec,
        replicas: &[Slot],
    ) -> dstack_control::Result<Vec<JobSpec>> {
        Ok(jobs(spec, replicas)?)
    }
}

/// Whether the server died before it could answer: the client cannot know what became of its call.
fn is_unanswered(error: &ControlError) -> bool {
    matches!(error, ControlError::Store(StoreError::Closed))
}

impl World {
    /// Applies a fleet that is new or there already; `configuration` has its fields. A client that gets no answer looks
    /// whether the fleet is as it wants it, and asks again if not.
    ///
    /// # Errors
    /// It is refused.
    pub async fn apply_fleet(
        &self,
        engine: &Engine,
        name: &str,
        configuration: &Value,
    ) -> Result<FleetId, ScenarioError> {
        let spec = self.builder.fleet_spec(name, configuration)?;
        let before = self.fleet_named(name).await?.map(|fleet| fleet.version);
        loop {
            let request = ApplyFleet {
                project: self.builder.project,
                actor: Actor::User(self.user),
                rights: FleetRights { ssh_fleets: true },
                spec: spec.clone(),
                seen: None,
                force: true,
            };
            match self.fleets(engine).apply(request).await {
                Err(error) if is_unanswered(&error) => {}
                answered => return Ok(answered?),
            }
            let found = self.fleet_named(name).await?;
            if let Some(fleet) = found.filter(|fleet| Some(fleet.version) != before) {
                return Ok(fleet.id);
            }
        }
    }

    /// Ends a fleet, or those of its instances that have these numbers, however often no answer comes.
    ///
    /// # Errors
    /// It is refused.
    pub async fn end_fleet(
        &self,
        engine: &Engine,
        id: FleetId,
        nums: Option<&[i64]>,
    ) -> Result<(), ScenarioError> {
        let rights = FleetRights { ssh_fleets: true };
        let project = self.builder.project;
        let names = self
            .store
            .read(|tables| tables.fleets.get(&id).map(|fleet| fleet.name.clone()));
        let names: Vec<String> = names.into_iter().collect();
        let actor = Actor::User(self.user);
        loop {
            let verbs = self.fleets(engine);
            match verbs.terminate(actor, rights, project, &names, nums).await {
                Err(error) if is_unanswered(&error) => {}
                answered => return Ok(answered?),
            }
        }
    }

    /// Accepts another host key of a fleet's host, however often no answer comes.
    ///
    /// # Errors
    /// It is refused.
    pub async fn trust_host(
        &self,
        engine: &Engine,
        fleet: &str,
        instance_num: i64,
        host_key: &str,
    ) -> Result<(), ScenarioError> {
        let host = TrustedHost {
            project: self.builder.project,
            fleet: fleet.to_owned(),
            instance_num,
            host_key: host_key.to_owned(),
            jump_host: false,
        };
        let (actor, rights) = (Actor::User(self.user), FleetRights { ssh_fleets: true });
        loop {
            match self.fleets(engine).trust_host(actor, rights, &host).await {
                Err(error) if is_unanswered(&error) => {}
                answered => return Ok(answered?),
            }
        }
    }

    /// Submits a task, or what `extra` makes of it. A client that gets no answer looks whether the run is there, and asks
    /// again if not.
    ///
    /// # Errors
    /// It is refused.
    pub async fn submit(&self, engine: &Engine, name: &str, extra: &Value) -> Result<RunRow, ScenarioError> {
        let spec = self.builder.spec(name, extra)?;
        loop {
            match self.runs(engine).apply(&self.application(spec.clone())).await {
                Err(error) if is_unanswered(&error) => {}
                answered => return Ok(answered?.run),
            }
            let stored = self.store.run_by_name(self.builder.project, name).await;
            if let Some(run) = stored.map_err(ControlError::from)? {
                return Ok(run);
            }
        }
    }

    /// Changes a run in place, whatever it is like by now, however often no answer comes.
    ///
    /// # Errors
    /// It is refused.
    pub async fn update(&self, engine: &Engine, run: &RunRow, extra: &Value) -> Result<(), ScenarioError> {
        let request = self.application(self.builder.spec(&run.run_name, extra)?);
        let before = self.deployment(run.id);
        loop {
            match self.runs(engine).apply(&request).await {
                Err(error) if is_unanswered(&error) => {}
                answered => return Ok(answered.map(|_| ())?),
            }
            if self.deployment(run.id) != before {
                return Ok(());
            }
        }
    }

    /// Asks for something of a roll-out, however often no answer comes.
    ///
    /// # Errors
    /// It is refused.
    pub async fn ask_of_rollout(&self, engine: &Engine, run: &RunRow, ask: Ask) -> Result<(), ScenarioError> {
        let (actor, project) = (Actor::User(self.user), self.builder.project);
        loop {
            let verbs = self.runs(engine);
            match verbs.ask_of_rollout(actor, project, &run.run_name, ask).await {
                Err(error) if is_unanswered(&error) => {}
                answered => return Ok(answered?),
            }
        }
    }

    /// Stops a run, or aborts it, however often no answer comes.
    ///
    /// # Errors
    /// It is refused.
    pub async fn stop(&self, engine: &Engine, run: &RunRow, abort: bool) -> Result<(), ScenarioError> {
        let (actor, project) = (Actor::User(self.user), self.builder.project);
        let names = [run.run_name.clone()];
        loop {
            match self.runs(engine).stop(actor, project, &names, abort).await {
                Err(error) if is_unanswered(&error) => {}
                answered => return Ok(answered?),
            }
        }
    }

    /// Submits a volume; `configuration` has its fields. A client that gets no answer looks whether the volume is there, and
    /// asks again if not.
    ///
    /// # Errors
    /// It is refused.
    pub async fn submit_volume(
        &self,
        engine: &Engine,
        name: &str,
        configuration: &Value,
    ) -> Result<VolumeId, ScenarioError> {
        let configuration = self.builder.volume(name, configuration)?;
        loop {
            let verbs = self.volumes(engine);
            match verbs
                .create(self.user, self.builder.project, &configuration)
                .await
            {
                Err(error) if is_unanswered(&error) => {}
                answered => return Ok(answered?.id),
            }
            if let Some(volume) = self.volume_named(name).await? {
                return Ok(volume);
            }
        }
    }

    /// As [`World::submit_volume`]; the volume is made then.
    ///
    /// # Errors
    /// It is refused, or not made within an hour and a half, which is long for clouds that lose calls as well.
    pub async fn made_volume(
        &self,
        engine: &Engine,
        name: &str,
        configuration: &Value,
    ) -> Result<VolumeId, ScenarioError> {
        let id = self.submit_volume(engine, name, configuration).await?;
        let is_made = |world: &World| {
            let status = |tables: &Tables| tables.volumes.get(&id).map(VolumeRow::status);
            world.store.read(status) == Some(VolumeStatus::Active)
        };
        self.until(&format!("the volume {name} is made"), MADE_WITHIN, is_made)
            .await?;
        Ok(id)
    }

    /// Deletes a volume, however often no answer comes.
    ///
    /// # Errors
    /// It is refused.
    pub async fn delete_volume(&self, engine: &Engine, name: &str) -> Result<(), ScenarioError> {
        let (actor, project) = (Actor::User(self.user), self.builder.project);
        let names = [name.to_owned()];
        loop {
            match self.volumes(engine).delete(actor, project, &names).await {
                Err(error) if is_unanswered(&error) => {}
                answered => return Ok(answered?),
            }
        }
    }

    async fn volume_named(&self, name: &str) -> Result<Option<VolumeId>, ScenarioError> {
        let found = self.store.volumes(self.builder.project).await;
        let found = found.map_err(ControlError::from)?;
        Ok(found.iter().find(|row| row.name == name).map(|row| row.id))
    }

    fn volumes(&self, engine: &Engine) -> Volumes {
        let clouds = self.clouds.all().into_iter();
        let kinds = clouds.map(|cloud| Arc::new(cloud) as Arc<dyn BackendKind>);
        Volumes::new(self.core(engine), Registry::new(kinds))
    }

    fn application(&self, spec: RunSpec) -> ApplyRun {
        ApplyRun {
            project: self.builder.project,
            project_name: "main".to_owned(),
            user: self.user,
            spec,
            seen: None,
            force: true,
        }
    }

    fn deployment(&self, run: RunId) -> Option<i64> {
        self.store
            .read(|tables| tables.runs.get(&run).map(|run| run.deployment_num))
    }

    async fn fleet_named(&self, name: &str) -> Result<Option<FleetRow>, ScenarioError> {
        let found = self.store.fleet_by_name(self.builder.project, name).await;
        Ok(found.map_err(ControlError::from)?)
    }

    fn runs(&self, engine: &Engine) -> Runs {
        Runs::new(self.core(engine), Arc::new(NoResources))
    }

    fn fleets(&self, engine: &Engine) -> Fleets {
        Fleets::new(
            self.core(engine),
            Encryption::new(Vec::new(), self.random.clone()),
        )
    }

    fn core(&self, engine: &Engine) -> Core {
        Core {
            store: Arc::clone(&self.store) as Arc<dyn EngineStore>,
            engine: Arc::new(Connected(engine.clone())),
            clock: Arc::clone(&self.clock),
            random: self.random.clone(),
            keep_events: true,
        }
    }
}
