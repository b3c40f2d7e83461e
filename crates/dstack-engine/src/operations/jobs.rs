//! Durable calls to agents: a job is handed to the shim and the runner, ended, and removed.
//!
//! Every call may be repeated safely, because the agents know jobs by their id: a task submitted twice is answered with 409,
//! which counts as done.

use std::sync::Arc;

use async_trait::async_trait;
use dstack_agent_api::runner::RunnerState;
use dstack_agent_api::shim::{RUNNER_HTTP_PORT, TaskTerminate};
use dstack_model::runs::JobStatus;
use dstack_plan::nodes::needs_peers;
use dstack_store::rows::{AgentAddress, InstanceRow, OperationKind, OperationRow, OperationState};
use dstack_store::{EntityRef, JobSnapshot};
use serde_json::{Value, json};

use super::{Step, Subject, needs_of, note_error, record};
use crate::agents::shim_of;
use crate::context::Context;
use crate::peers::{RunJobs, peers_of};
use crate::task_config::{Access, task_config};
use crate::{AgentError, InputsError, Result, Runner};

/// What came of one attempt.
enum Attempt {
    Done(Value),
    /// It failed for now, with this error: to be tried again.
    Again(String),
    /// It will never succeed, for this reason.
    Refused(String),
}

impl From<AgentError> for Attempt {
    fn from(error: AgentError) -> Self {
        match error {
            AgentError::Refused { status, message } if (400..500).contains(&status) => Self::Refused(message),
            other => Self::Again(other.to_string()),
        }
    }
}

impl From<InputsError> for Attempt {
    fn from(error: InputsError) -> Self {
        match error {
            InputsError::Refused(reason) => Self::Refused(reason),
            InputsError::Transient(cause) => Self::Again(cause.to_string()),
        }
    }
}

#[async_trait]
impl Subject for JobSnapshot {
    fn operations(&self) -> &[OperationRow] {
        &self.operations
    }

    async fn call(&self, ctx: &Arc<Context>, operation: OperationRow) -> Result<Step> {
        let attempt = match still_wanted(self, operation.kind) {
            true => attempt(ctx, self, operation.kind).await?,
            false => Attempt::Refused("no longer wanted".to_owned()),
        };
        match attempt {
            Attempt::Done(result) => record(ctx, operation, OperationState::Done, None, Some(result)).await?,
            Attempt::Refused(error) => {
                record(ctx, operation, OperationState::Failed, Some(error), None).await?;
            }
            Attempt::Again(error) => {
                note_error(ctx, operation, error).await?;
                return Ok(Step::Again);
            }
        }
        Ok(Step::Ended)
    }
}

/// Nothing is started for a job that is ending, and nothing is done for one that is final.
fn still_wanted(snapshot: &JobSnapshot, kind: OperationKind) -> bool {
    match kind {
        OperationKind::SubmitTask | OperationKind::StartJob => {
            matches!(
                snapshot.job.status(),
                JobStatus::Provisioning | JobStatus::Pulling
            )
        }
        OperationKind::StopJob | OperationKind::RemoveTask => !snapshot.job.status().is_finished(),
        OperationKind::Create | OperationKind::Remove | OperationKind::Prepare | OperationKind::Release => {
            false
        }
    }
}

async fn attempt(ctx: &Context, snapshot: &JobSnapshot, kind: OperationKind) -> Result<Attempt> {
    let instance = snapshot.instance.as_ref();
    let Some((instance, address)) = instance.and_then(|row| Some((row, row.agent.clone()?))) else {
        return Ok(without_agent(kind));
    };
    match kind {
        OperationKind::SubmitTask => submit_task(ctx, snapshot, instance, &address).await,
        OperationKind::StartJob => start_job(ctx, snapshot, &address).await,
        OperationKind::StopJob => stop_job(ctx, snapshot, &address).await,
        OperationKind::RemoveTask => remove_task(ctx, snapshot, instance, &address).await,
        OperationKind::Create | OperationKind::Remove | OperationKind::Prepare | OperationKind::Release => {
            Ok(Attempt::Refused("not a call to an agent".to_owned()))
        }
    }
}

/// On an instance whose address is not known yet: nothing was ever started there.
fn without_agent(kind: OperationKind) -> Attempt {
    match kind {
        OperationKind::RemoveTask => Attempt::Done(Value::Null),
        OperationKind::SubmitTask | OperationKind::StartJob => {
            Attempt::Again("the address of its agent is not known yet".to_owned())
        }
        _ => Attempt::Refused("the instance has no agent".to_owned()),
    }
}

async fn submit_task(
    ctx: &Context,
    snapshot: &JobSnapshot,
    instance: &InstanceRow,
    address: &AgentAddress,
) -> Result<Attempt> {
    let needs = needs_of(ctx, snapshot.job.job_provisioning_data.as_deref());
    let image = match ctx.deps.inputs.image(snapshot, needs.has_efa).await {
        Ok(image) => image,
        Err(error) => return Ok(error.into()),
    };
    let access = match access(ctx, snapshot).await {
        Ok(access) => access,
        Err(error) => return Ok(error.into()),
    };
    let config = match task_config(snapshot, image, access, needs) {
        Ok(config) => config,
        Err(error) => return Ok(Attempt::Refused(error)),
    };
    let shim = match shim_of(ctx, instance.project_id, instance.id, address).await {
        Ok(shim) => shim,
        Err(error) => return Ok(error.into()),
    };
    ctx.before_effect("shim.submit.before", EntityRef::Job(snapshot.job.id))?;
    let answer = shim.submit(&config).await;
    ctx.reached("shim.submit.after")?;
    Ok(match answer {
        Ok(()) => Attempt::Done(Value::Null),
        // Submitted by an earlier attempt whose answer we never saw.
        Err(error) if error.is_status(409) => Attempt::Done(Value::Null),
        // The host is another's now: the instance is out of reach, and says so.
        Err(error) if error.is_status(401) => Attempt::Again(error.to_string()),
        Err(error) => error.into(),
    })
}

async fn access(ctx: &Context, snapshot: &JobSnapshot) -> Result<Access, InputsError> {
    Ok(Access {
        ssh_keys: ctx.deps.inputs.ssh_keys(snapshot).await?,
        runner_token: ctx.deps.inputs.runner_token(snapshot).await?,
    })
}

/// The runner of a job; `None` until the shim has said where its API is on the host.
pub async fn runner_of(
    ctx: &Context,
    snapshot: &JobSnapshot,
    address: &AgentAddress,
) -> Result<Option<Arc<dyn Runner>>, InputsError> {
    let Some(port) = runner_port(snapshot) else {
        return Ok(None);
    };
    let token = ctx.deps.inputs.runner_token(snapshot).await?;
    Ok(Some(ctx.deps.agents.runner(
        address,
        snapshot.job.id,
        port,
        token,
    )))
}

fn runner_port(snapshot: &JobSnapshot) -> Option<u16> {
    let runtime = snapshot.job.job_runtime_data.as_ref()?;
    match &runtime.ports {
        Some(ports) if !ports.is_empty() => ports
            .iter()
            .find(|(container, _)| i64::from(**container) == i64::from(RUNNER_HTTP_PORT))
            .map(|(_, host)| *host),
        _ => Some(RUNNER_HTTP_PORT),
    }
}

async fn start_job(ctx: &Context, snapshot: &JobSnapshot, address: &AgentAddress) -> Result<Attempt> {
    let runner = match runner_of(ctx, snapshot, address).await {
        Ok(Some(runner)) => runner,
        Ok(None) => return Ok(Attempt::Again("the runner's port is not known yet".to_owned())),
        Err(error) => return Ok(error.into()),
    };
    let job = EntityRef::Job(snapshot.job.id);
    ctx.before_effect("runner.start.before", job)?;
    let jobs = match needs_peers(&snapshot.run.run_spec, &snapshot.job.job_spec) {
        true => peers_of(ctx, &snapshot.job).await?,
        false => RunJobs::present(vec![snapshot.job.clone()]),
    };
    let inputs = match ctx.deps.inputs.start(snapshot, &jobs).await {
        Ok(inputs) => inputs,
        // What an earlier attempt has started may lack its inputs by now.
        Err(error) => {
            return Ok(match started_before(runner.as_ref()).await {
                Ok(Some(done)) => done,
                Ok(None) => error.into(),
                Err(unreachable) => unreachable.into(),
            });
        }
    };
    ctx.before_effect("runner.submit.before", job)?;
    let answer = hand_over(ctx, job, runner.as_ref(), inputs).await?;
    ctx.reached("runner.start.after")?;
    Ok(match answer {
        Ok(Some(info)) => started(&info.working_dir, &info.username),
        Ok(None) => started("", ""),
        // Asked for only then: a far host answers each question late.
        Err(conflict) if conflict.is_status(409) => match started_before(runner.as_ref()).await {
            Ok(Some(done)) => done,
            Ok(None) => Attempt::Again(conflict.to_string()),
            Err(error) => error.into(),
        },
        Err(error) => error.into(),
    })
}

/// Whether an earlier attempt whose answer was lost has started the job.
async fn started_before(runner: &dyn Runner) -> Result<Option<Attempt>, AgentError> {
    let status = match runner.job().await {
        Ok(status) => status,
        // An agent of dstack 0.22.5 has no such route.
        Err(error) if error.is_status(404) => return Ok(None),
        Err(error) => return Err(error),
    };
    let is_started = matches!(
        status.state,
        RunnerState::ServeLogs | RunnerState::WaitLogsFinished
    );
    Ok(is_started.then(|| started(&status.working_dir, &status.username)))
}

fn started(working_dir: &str, username: &str) -> Attempt {
    Attempt::Done(json!({ "working_dir": working_dir, "username": username }))
}

type HandedOver = Result<Option<dstack_agent_api::runner::JobInfo>, AgentError>;

async fn hand_over(
    ctx: &Context,
    job: EntityRef,
    runner: &dyn Runner,
    inputs: crate::StartInputs,
) -> Result<HandedOver> {
    if let Err(error) = runner.submit(&inputs.body).await {
        return Ok(Err(error));
    }
    ctx.reached("runner.submit.after")?;
    for (id, archive) in &inputs.archives {
        if let Err(error) = runner.upload_archive(id, archive).await {
            return Ok(Err(error));
        }
    }
    if let Some(code) = inputs.code
        && let Err(error) = runner.upload_code(code).await
    {
        return Ok(Err(error));
    }
    ctx.before_effect("runner.run.before", job)?;
    Ok(runner.run().await)
}

async fn stop_job(ctx: &Context, snapshot: &JobSnapshot, address: &AgentAddress) -> Result<Attempt> {
    let runner = match runner_of(ctx, snapshot, address).await {
        Ok(Some(runner)) => runner,
        Ok(None) => return Ok(Attempt::Refused("the job was never started".to_owned())),
        Err(error) => return Ok(error.into()),
    };
    ctx.before_effect("runner.stop.before", EntityRef::Job(snapshot.job.id))?;
    let answer = runner.stop().await;
    ctx.reached("runner.stop.after")?;
    Ok(answer.map_or_else(Attempt::from, |()| Attempt::Done(Value::Null)))
}

async fn remove_task(
    ctx: &Context,
    snapshot: &JobSnapshot,
    instance: &InstanceRow,
    address: &AgentAddress,
) -> Result<Attempt> {
    let shim = match shim_of(ctx, instance.project_id, instance.id, address).await {
        Ok(shim) => shim,
        Err(InputsError::Refused(error)) => return Ok(Attempt::Again(error)),
        Err(error) => return Ok(error.into()),
    };
    let id = snapshot.job.id.to_string();
    ctx.before_effect("shim.remove.before", EntityRef::Job(snapshot.job.id))?;
    let order = TaskTerminate {
        termination_reason: snapshot
            .job
            .termination_reason()
            .map(|reason| reason.to_string())
            .unwrap_or_default(),
        termination_message: snapshot
            .job
            .termination_reason_message()
            .unwrap_or_default()
            .to_owned(),
        timeout: 0,
    };
    let result = match shim.terminate(&id, &order).await {
        Err(error) if !error.is_status(404) => Err(error),
        // Ended, and what it took is given back: only the container stays.
        Ok(()) if ctx.deps.settings.keep_tasks => Ok(()),
        _ => shim.remove(&id).await,
    };
    ctx.reached("shim.remove.after")?;
    Ok(match result {
        Ok(()) => Attempt::Done(Value::Null),
        Err(error) if error.is_status(404) => Attempt::Done(Value::Null),
        // Whatever the shim says, what it did not confirm may still run: ask again.
        Err(error) => Attempt::Again(error.to_string()),
    })
}
