//! Applying: a new run, or a change of one that is active.

use dstack_model::runs::{RunSpec, RunStatus};
use dstack_plan::diff::{changed_fields, check_updatable};
use dstack_plan::names;
use dstack_plan::schedule::next_trigger;
use dstack_plan::services::publish;
use dstack_plan::services::replicas::first;
use dstack_store::rows::{GatewayRow, JobRow, NewRun, RunRow};
use dstack_store::{Json, Sealed, events};
use dstack_units::{ArchiveId, ProjectId, RunId, UserId};

use super::{BUSY, Runs, rollout};
use crate::core::Actor;
use crate::error::{ControlError, Result};

/// A run that is applied.
#[derive(Debug, Clone)]
pub struct ApplyRun {
    /// In which project.
    pub project: ProjectId,
    /// The project's name, for the address of a service.
    pub project_name: String,
    /// Who applies it.
    pub user: UserId,
    /// What is asked for, checked and with defaults; without a name it gets one.
    pub spec: RunSpec,
    /// The run of that name as the client saw it when it planned.
    pub seen: Option<SeenRun>,
    /// Change the run whatever the client saw.
    pub force: bool,
}

/// A run as a client saw it.
#[derive(Debug, Clone, PartialEq)]
pub struct SeenRun {
    /// Id of the run that the client saw.
    pub id: RunId,
    /// What was asked for.
    pub spec: RunSpec,
}

/// What became of it: the rows as this verb has left them.
#[derive(Debug, Clone)]
pub struct Applied {
    /// The run, new or changed.
    pub run: RunRow,
    /// All jobs of the run; none yet where a schedule begins it.
    pub jobs: Vec<JobRow>,
    /// Whether it is new.
    pub submitted: bool,
}

impl Runs {
    /// Submits a run, or changes the active one of its name in place. A finished one of its name is deleted.
    ///
    /// # Errors
    /// The run cannot be had, the active one cannot be changed so, or is not what the client saw.
    pub async fn apply(&self, request: &ApplyRun) -> Result<Applied> {
        self.resources.check(request.project, &request.spec).await?;
        self.core
            .retry_on_conflict(BUSY, || self.try_apply(request))
            .await
    }

    async fn try_apply(&self, request: &ApplyRun) -> Result<Applied> {
        let mut spec = request.spec.clone();
        let name = match &spec.run_name {
            Some(name) => name.clone(),
            None => self.free_name(request.project).await?,
        };
        spec.run_name = Some(name.clone());
        let current = self.core.store.run_by_name(request.project, &name).await?;
        match current {
            Some(run) if !run.status().is_finished() => self.update(request, spec, run).await,
            finished => self.submit(request, spec, finished).await,
        }
    }

    async fn free_name(&self, project: ProjectId) -> Result<String> {
        let stem = names::stem(&self.core.random);
        let taken = self.core.store.run_names(project, &stem).await?;
        Ok(names::numbered(&stem, |name| {
            taken.iter().any(|taken| taken == name)
        }))
    }

    async fn update(&self, request: &ApplyRun, spec: RunSpec, old: RunRow) -> Result<Applied> {
        if check_updatable(&old.run_spec, &spec).is_err() {
            return Err(ControlError::refused(
                "Cannot override active run. Stop the run first.",
            ));
        }
        if old.status() == RunStatus::Terminating {
            return Err(ControlError::refused(format!(
                "Run {} is being stopped. Try again later",
                old.run_name
            )));
        }
        let seen = request.seen.as_ref();
        let unchanged = seen.is_some_and(|seen| seen.id == old.id && seen.spec == *old.run_spec);
        if !request.force && !unchanged {
            return Err(ControlError::stale());
        }
        // Those that it has already were checked when they came, whoever has uploaded them.
        let known: Vec<ArchiveId> = archives(&old.run_spec);
        let mut new_archives = archives(&spec);
        new_archives.retain(|id| !known.contains(id));
        self.resources.check_archives(request.user, &new_archives).await?;
        let changed = changed_fields(&old.run_spec, &spec).join(", ");
        let mut new = old.clone();
        let goes_on = rollout::goes_on(&old, &spec);
        if !goes_on {
            new.deploy(self.core.now());
        }
        new.priority = spec.configuration.base().priority.unwrap_or(0);
        let gateway = self.resources.gateway(request.project, &spec).await?;
        let service_spec = published(&request.project_name, &spec, gateway.as_ref())?.map(Json::new);
        new.gateway_id = gateway.map(|gateway| gateway.id);
        // Where it is published already, its addresses stay: a gateway is told of a service once.
        if new.gateway_id.is_none() || new.gateway_id != old.gateway_id {
            new.service_spec = service_spec;
        }
        new.run_spec = Sealed::new(spec);
        let mut ended = Vec::new();
        if goes_on {
            rollout::go_on(&old, &mut new)?;
        } else if rollout::concerns(&old, &new) {
            let snapshot = self.core.store.run(old.id).await?;
            let jobs = snapshot.map(|snapshot| snapshot.jobs).unwrap_or_default();
            ended = rollout::begin(&old, &mut new, &jobs, self.core.now())?;
        }
        let deployment = new.deployment_num;
        let mut changes = self.core.changes(Actor::User(request.user));
        changes.note(
            format!("Run updated. Deployment: {deployment}. Changed fields: {changed}"),
            vec![events::run(&new)],
        );
        changes.touch(new.clone());
        for (before, after) in ended {
            changes.update(&before, after);
        }
        self.core.commit(changes).await?;
        let snapshot = self.core.store.run(new.id).await?;
        Ok(Applied {
            run: new,
            jobs: snapshot.map(|snapshot| snapshot.jobs).unwrap_or_default(),
            submitted: false,
        })
    }

    /// Stores a new run with its jobs; a finished one of the same name is deleted in the same transaction.
    async fn submit(&self, request: &ApplyRun, spec: RunSpec, finished: Option<RunRow>) -> Result<Applied> {
        self.resources
            .check_archives(request.user, &archives(&spec))
            .await?;
        let now = self.core.now();
        let replicas = first(&spec);
        let next_triggered_at = next_trigger(&spec, now);
        let gateway = self.resources.gateway(request.project, &spec).await?;
        let service_spec = published(&request.project_name, &spec, gateway.as_ref())?.map(Json::new);
        let specs = match next_triggered_at {
            None => self.resources.jobs(request.project, &spec, &replicas).await?,
            Some(_) => Vec::new(),
        };
        // After everything that may be refused: a repo may be made for the run.
        let repo_id = self.resources.repo(request.project, &spec).await?;
        let new = NewRun {
            id: self.core.random.ordered_uuid(now).into(),
            project_id: request.project,
            user_id: request.user,
            repo_id,
            next_triggered_at,
            spec: spec.clone(),
        };
        let mut run = RunRow::new(new, now);
        run.service_spec = service_spec;
        run.gateway_id = gateway.as_ref().map(|gateway| gateway.id);
        run.desired_replica_count = i64::try_from(replicas.len()).unwrap_or(i64::MAX);
        let by_system = self.core.events(Actor::System);
        let mut changes = self.core.changes(Actor::User(request.user));
        if let Some(old) = finished {
            let mut deleted = old.clone();
            deleted.deleted = true;
            changes.note("Run deleted", vec![events::run(&old)]);
            changes.update(&old, deleted);
        }
        let status = events::upper(&run.status());
        changes.insert(run.clone(), &format!("Run submitted. Status: {status}"));
        if run.service_spec.is_some() {
            let (text, targets) = match &gateway {
                Some(gateway) => (
                    "Service assigned to gateway",
                    vec![events::run(&run), events::gateway(gateway)],
                ),
                None => (
                    "Service assigned to run without a gateway",
                    vec![events::run(&run)],
                ),
            };
            changes.event(by_system.event(text, targets));
        }
        let mut jobs = Vec::new();
        for job in specs {
            let id = self.core.random.ordered_uuid(now).into();
            let row = JobRow::submitted(id, &run, Sealed::new(job), now);
            let text = "Job created on run submission. Status: SUBMITTED";
            changes.event(by_system.event(text, vec![events::job(&row)]));
            changes.insert_silently(row.clone());
            jobs.push(row);
        }
        self.core.commit(changes).await?;
        Ok(Applied {
            run,
            jobs,
            submitted: true,
        })
    }
}

/// Where a service is reached; `None`: the run is none.
fn published(
    project: &str,
    spec: &RunSpec,
    gateway: Option<&GatewayRow>,
) -> Result<Option<dstack_model::runs::ServiceSpec>> {
    let Some(service) = spec.configuration.service() else {
        return Ok(None);
    };
    let run = spec.run_name.as_deref().unwrap_or_default();
    let published = match gateway {
        None => publish::without_gateway(project, run, service),
        Some(gateway) => {
            let domain = gateway.wildcard_domain.as_deref().unwrap_or_default();
            publish::at_gateway(project, run, service, &gateway.configuration, domain)
        }
    };
    Ok(Some(published?))
}

fn archives(spec: &RunSpec) -> Vec<ArchiveId> {
    spec.file_archives.iter().map(|mapping| mapping.id).collect()
}
