//! Applying: a new run, or a change of one that is active.

use dstack_api::ErrorCode;
use dstack_model::repos::{AnyRepoInfo, AnyRunRepoData};
use dstack_model::requests::ApplyRunPlanRequest;
use dstack_model::runs::{Run, RunSpec, RunStatus};
use dstack_plan::diff::{changed_fields, check_updatable};
use dstack_plan::names;
use dstack_plan::schedule::next_trigger;
use dstack_plan::services::replicas::first;
use dstack_store::directory::lists::{self, ListedRun};
use dstack_store::directory::users::UserRow;
use dstack_store::directory::{content, repos};
use dstack_store::events as targets;
use dstack_store::rows::{JobRow, NewRun, RunRow};
use dstack_store::{Changes, Commit, Json};
use dstack_units::{ArchiveId, ProjectId, RepoRowId};

use super::ATTEMPTS;
use super::plan::{check_supported, effective, stale};
use crate::api::Call;
use crate::audit;
use crate::error::{ApiError, Result};
use crate::render::runs::{View, run as render_run};
use crate::state::AppState;

pub(super) async fn apply(call: Call, request: ApplyRunPlanRequest) -> Result<Run> {
    let (state, project) = (&call.state, call.project()?);
    let mut spec = effective(&call, request.plan.run_spec.clone()).await?;
    super::volumes::check_active(state, project.row.id, &spec).await?;
    super::services::check_gateway(&call, &spec).await?;
    check_supported(&spec)?;
    check_archives(state, call.user()?, &spec).await?;
    let generated = spec.run_name.is_none();
    for _ in 0..ATTEMPTS {
        if generated {
            spec.run_name = Some(free_name(state, project.row.id).await?);
        }
        let name = spec.run_name.clone().unwrap_or_default();
        let current = state.database.run_by_name(project.row.id, &name).await?;
        let done = match &current {
            Some(current) if !current.run.status().is_finished() => {
                update(&call, current, &spec, &request).await
            }
            finished => submit(&call, &spec, finished.as_ref()).await,
        };
        match done {
            Ok(run) => return Ok(run),
            Err(Failure::Raced) => {}
            Err(Failure::Refused(error)) => return Err(error),
        }
    }
    Err(ApiError::client(
        "The run is being processed at the moment. Try again later.",
    ))
}

/// Refuses archives that somebody else has uploaded: their ids are no secret, their content is.
async fn check_archives(state: &AppState, user: &UserRow, spec: &RunSpec) -> Result<()> {
    let ids: Vec<ArchiveId> = spec.file_archives.iter().map(|mapping| mapping.id).collect();
    if ids.is_empty() {
        return Ok(());
    }
    let foreign = content::foreign_archives(state.database.pool(), user.id, &ids).await?;
    match foreign.first() {
        None => Ok(()),
        Some(id) => Err(ApiError::with_code(
            ErrorCode::ResourceNotExists,
            format!("The file archive {id} does not exist. Upload the files again"),
        )),
    }
}

/// The run as this call has left it: what the engine does to it meanwhile is not part of the answer.
fn show(call: &Call, listed: &ListedRun, jobs: &[JobRow]) -> Run {
    let jobs: Vec<&JobRow> = jobs.iter().collect();
    let mut run = render_run(listed, &jobs, View::single(), call.state.clock.now());
    crate::compat::run(&mut run, &call.version);
    run
}

enum Failure {
    /// Someone else was faster: look again.
    Raced,
    Refused(ApiError),
}

impl<E: Into<ApiError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Refused(error.into())
    }
}

async fn commit(state: &AppState, commit: Commit) -> Result<(), Failure> {
    match state.engine.commit(commit).await {
        Err(error) if error.is_conflict() || error.is_unique_violation() => Err(Failure::Raced),
        other => Ok(other?),
    }
}

async fn free_name(state: &AppState, project: ProjectId) -> Result<String> {
    let stem = names::stem(&state.random);
    let taken = lists::run_names(state.database.pool(), project, &stem).await?;
    Ok(names::numbered(&stem, |name| {
        taken.iter().any(|taken| taken == name)
    }))
}

async fn update(
    call: &Call,
    current: &ListedRun,
    spec: &RunSpec,
    request: &ApplyRunPlanRequest,
) -> Result<Run, Failure> {
    let (state, old) = (&call.state, &current.run);
    if check_updatable(&old.run_spec, spec).is_err() {
        return Err(ApiError::client("Cannot override active run. Stop the run first.").into());
    }
    let seen = request.plan.current_resource.as_ref();
    let unchanged = seen.is_some_and(|seen| seen.id == old.id && seen.run_spec == *old.run_spec);
    if !request.force && !unchanged {
        return Err(stale().into());
    }
    let service_spec = super::services::published(&current.project_name, spec)?;
    let deployment_num = old.deployment_num + 1;
    let changed = changed_fields(&old.run_spec, spec).join(", ");
    let mut new = old.clone();
    new.run_spec = Json::new(spec.clone());
    new.priority = spec.configuration.base().priority.unwrap_or(0);
    new.deployment_num = deployment_num;
    new.service_spec = service_spec.map(Json::new);
    let message = format!("Run updated. Deployment: {deployment_num}. Changed fields: {changed}");
    let mut changes = Changes::new(audit::by(state, call.user()?));
    changes.note(message, vec![targets::run(&new)]);
    changes.touch(new.clone());
    commit(state, audit::kept_of(state, changes)).await?;
    let jobs = lists::jobs(state.database.pool(), &[new.id]).await?;
    let updated = ListedRun {
        run: new,
        ..current.clone()
    };
    Ok(show(call, &updated, &jobs))
}

/// Stores a new run with its jobs; a finished one of the same name is deleted in the same transaction.
async fn submit(call: &Call, spec: &RunSpec, finished: Option<&ListedRun>) -> Result<Run, Failure> {
    let (state, user, project) = (&call.state, call.user()?, &call.project()?.row);
    let repo = repo_of(state, project.id, spec).await?;
    let now = state.clock.now();
    let replicas = first(spec);
    let mut run = RunRow::new(
        NewRun {
            id: state.random.ordered_uuid(now).into(),
            project_id: project.id,
            user_id: user.id,
            repo_id: Some(repo),
            spec: spec.clone(),
            next_triggered_at: next_trigger(spec, now),
        },
        now,
    );
    run.service_spec = super::services::published(&project.name, spec)?.map(Json::new);
    run.desired_replica_count = i64::try_from(replicas.len()).unwrap_or(i64::MAX);
    let by_system = audit::by_system(state);
    let mut changes = Changes::new(audit::by(state, user));
    if let Some(old) = finished {
        let mut deleted = old.run.clone();
        deleted.deleted = true;
        changes.note("Run deleted", vec![targets::run(&old.run)]);
        changes.update(&old.run, deleted);
    }
    let status = targets::upper(&run.status());
    changes.insert(run.clone(), &format!("Run submitted. Status: {status}"));
    if run.service_spec.is_some() {
        let text = "Service assigned to run without a gateway";
        changes.event(by_system.event(text, vec![targets::run(&run)]));
    }
    let mut jobs = Vec::new();
    if run.status() == RunStatus::Submitted {
        for job in state.jobs().jobs(project.id, spec, &replicas).await? {
            let row = JobRow::submitted(state.random.ordered_uuid(now).into(), &run, Json::new(job), now);
            let text = "Job created on run submission. Status: SUBMITTED";
            changes.event(by_system.event(text, vec![targets::job(&row)]));
            changes.insert_silently(row.clone());
            jobs.push(row);
        }
    }
    commit(state, audit::kept_of(state, changes)).await?;
    let submitted = ListedRun {
        run,
        project_name: project.name.clone(),
        user_name: user.name.clone(),
        fleet_name: None,
    };
    Ok(show(call, &submitted, &jobs))
}

/// The run's repo, which must be known; virtual ones are created.
async fn repo_of(state: &AppState, project: ProjectId, spec: &RunSpec) -> Result<RepoRowId> {
    let id = spec.repo_id.clone().unwrap_or_default();
    if let Some(repo) = state.database.repo_by_name(project, &id).await? {
        return Ok(repo.id);
    }
    let info = match &spec.repo_data {
        Some(AnyRunRepoData::Virtual(data)) => AnyRepoInfo::Virtual(data.clone()),
        _ => return Err(ApiError::no_repo(&id)),
    };
    let row = crate::handlers::repos::row_for(state, project, &id, &info)?;
    Ok(state
        .database
        .write(move |tx| Box::pin(async move { repos::put(tx, &row).await }))
        .await?)
}
