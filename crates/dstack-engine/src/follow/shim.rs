//! Follows the tasks of an instance.

use std::sync::Arc;
use std::time::Duration;

use dstack_agent_api::shim::{StreamEvent, TaskInfo, TaskStatus, TaskTerminate};
use dstack_model::backends::BackendType;
use dstack_plan::lifecycle::instance::MUTE_PATIENCE;
use dstack_store::EntityRef;
use dstack_store::rows::{AgentAddress, InstanceRow};
use dstack_units::{InstanceId, JobId, ProjectId};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::{FIRST_PAUSE, FOLLOW_AGAIN, health, longer, machine};
use crate::agents::shim_of;
use crate::context::Context;
use crate::observations::Implausible;
use crate::operations::hosts::host_of;
use crate::running::{Begun, Work};
use crate::{AgentError, Result, Shim, TaskSource};

/// How long an agent may take to tell all its tasks, from the beginning of its stream. It has them all in memory.
const SYNC_TIMEOUT: Duration = Duration::from_secs(60);

/// Makes sure that the shim of an instance is followed.
pub fn ensure(ctx: &Arc<Context>, row: &InstanceRow, address: AgentAddress) {
    let (project, instance) = (row.project_id, row.id);
    let is_named = is_named(row, &address);
    let Some(begun) = Begun::new(ctx, Work::FollowShim(instance)) else {
        return;
    };
    let context = Arc::clone(ctx);
    ctx.spawn_under_lease("follow shim", EntityRef::Instance(instance), async move {
        let last = follow(&context, project, instance, address, is_named).await;
        // Ended, or another server's: nothing here goes there any more.
        context.deps.agents.forget(&last);
        drop(begun);
    });
}

/// Whether people name the machine, and may do so by several names: a machine of a cloud has one, and this machine none.
fn is_named(row: &InstanceRow, address: &AgentAddress) -> bool {
    row.backend.as_deref() == Some(BackendType::Remote.as_str()) && address.reach().is_some()
}

/// Until the instance is over, or another server's; the address by which its agent was reached last.
async fn follow(
    ctx: &Arc<Context>,
    project: ProjectId,
    instance: InstanceId,
    mut address: AgentAddress,
    is_named: bool,
) -> AgentAddress {
    let mut pause = FIRST_PAUSE;
    let mut asked = health::Asked::default();
    loop {
        let ended = match shim_of(ctx, project, instance, &address).await {
            Ok(shim) => listen(ctx, instance, shim.as_ref(), &mut asked, is_named).await,
            Err(error) => Err(error.into()),
        };
        // However it ended: only what the next stream tells says what is there.
        ctx.seen.update_instance(instance, |seen| seen.synced = false);
        match ended {
            Ok(heard) => {
                if heard {
                    pause = FIRST_PAUSE;
                }
            }
            // The store's: the shim may be well. A timer of the instance would do only until the next look at it.
            Err(error) => {
                ctx.report("follow shim", &error);
                tokio::time::sleep(FOLLOW_AGAIN).await;
                if !ctx.leases.contains(EntityRef::Instance(instance)) {
                    ctx.seen.forget_instance(instance);
                    return address;
                }
                continue;
            }
        }
        let now = ctx.now();
        ctx.seen.update_instance(instance, |seen| {
            seen.unreachable_since.get_or_insert(now);
        });
        ctx.wakes.wake(EntityRef::Instance(instance));
        tokio::time::sleep(pause).await;
        pause = longer(pause);
        // After the pause: what has ended meanwhile is not connected to any more.
        if !ctx.leases.contains(EntityRef::Instance(instance)) {
            // Another server sees it with its own eyes.
            ctx.seen.forget_instance(instance);
            return address;
        }
        match ctx.deps.store.instance(instance).await {
            Ok(Some(snapshot)) if !snapshot.instance.deleted => {
                // Another host key may have been accepted.
                if let Some(now) = snapshot.instance.agent.as_deref().filter(|now| **now != address) {
                    ctx.deps.agents.forget(&address);
                    address = now.clone();
                }
            }
            Ok(_) => {
                ctx.seen.forget_instance(instance);
                return address;
            }
            Err(error) => ctx.report("follow shim", &error.into()),
        }
    }
}

/// Until the stream breaks; says whether anything was heard.
async fn listen(
    ctx: &Arc<Context>,
    instance: InstanceId,
    shim: &dyn Shim,
    asked: &mut health::Asked,
    is_named: bool,
) -> Result<bool> {
    let asked_at = ctx.now();
    let stream = match shim.watch().await {
        Ok(stream) => stream,
        Err(error) => {
            tracing::debug!(instance.id = %instance, %error, "shim is out of reach");
            ctx.seen.update_instance(instance, |seen| {
                seen.unreachable_because = Some(error.to_string());
                seen.unreachable_since.get_or_insert(asked_at);
            });
            ctx.wakes.wake(EntityRef::Instance(instance));
            let is_silent = is_silent(ctx, instance, &error).await?;
            let is_mute = is_mute(shim, &error).await;
            let now = ctx.now();
            ctx.seen.update_instance(instance, |seen| {
                seen.silent_since = is_silent.then(|| seen.silent_since.unwrap_or(now));
                seen.mute_since = is_mute.then(|| seen.mute_since.unwrap_or(asked_at));
            });
            return Ok(false);
        }
    };
    let all_told = Notify::new();
    tokio::select! {
        heard = hear(ctx, instance, shim, stream, &all_told) => heard,
        never = health::check(ctx, instance, shim, asked) => match never {},
        never = machine::ask(ctx, instance, &all_told), if is_named => match never {},
    }
}

/// Takes in what the stream tells until it breaks.
async fn hear(
    ctx: &Arc<Context>,
    instance: InstanceId,
    shim: &dyn Shim,
    mut stream: Box<dyn TaskSource>,
    all_told: &Notify,
) -> Result<bool> {
    // What was known may be out of date: everything is told before each `Synced`, of which a stream has several when its
    // reader was too slow.
    let mut told = std::collections::HashMap::new();
    let (mut heard, mut is_synced) = (false, false);
    let limit = Instant::now() + SYNC_TIMEOUT;
    loop {
        let next = match is_synced {
            true => stream.next().await,
            false => match timeout_at(limit, stream.next()).await {
                Ok(next) => next,
                Err(_) => {
                    never_told_all(ctx, instance);
                    return Ok(false);
                }
            },
        };
        let event = match next {
            Ok(Some(event)) => event,
            Ok(None) | Err(_) => return Ok(heard),
        };
        heard = true;
        if !ctx.leases.contains(EntityRef::Instance(instance)) {
            // It is over, or another server's.
            return Ok(heard);
        }
        match event {
            StreamEvent::Task(task) => {
                let id = task.id.clone();
                let kept = ctx.seen.update_instance(instance, |seen| {
                    seen.keep_task(task)?;
                    Ok::<_, Implausible>(seen.tasks.get(&id).cloned())
                });
                match kept {
                    Ok(task) => told.extend(task.map(|task| (id.clone(), task))),
                    Err(problem) => {
                        tracing::warn!(instance.id = %instance, %problem, "the agent is not listened to");
                        return Ok(false);
                    }
                }
                wake_job(ctx, &id);
            }
            StreamEvent::Removed { id } => {
                ctx.seen.update_instance(instance, |seen| seen.tasks.remove(&id));
                told.remove(&id);
                wake_job(ctx, &id);
            }
            StreamEvent::Synced => {
                is_synced = true;
                let keep = ctx.deps.settings.keep_tasks;
                let kept = |task: &TaskInfo| keep && task.status == TaskStatus::Terminated;
                let left = told.iter().filter(|(_, task)| !kept(task));
                let ids: Vec<String> = left.map(|(id, _)| id.clone()).collect();
                ctx.seen.update_instance(instance, |seen| {
                    seen.tasks = std::mem::take(&mut told);
                    seen.synced = true;
                    seen.unreachable_since = None;
                    seen.unreachable_because = None;
                    seen.silent_since = None;
                    seen.mute_since = None;
                });
                ctx.wakes.wake(EntityRef::Instance(instance));
                all_told.notify_one();
                remove_dangling(ctx, instance, shim, &ids).await?;
            }
            StreamEvent::Tick | StreamEvent::Unknown => {}
        }
    }
}

/// The agent does not come to the end of its tasks: it is asked for all of them again.
fn never_told_all(ctx: &Context, instance: InstanceId) {
    let seconds = SYNC_TIMEOUT.as_secs();
    let problem = format!(
        "the agent has not told all its tasks within {seconds} s: see its log on the host, and start it again there"
    );
    tracing::warn!(instance.id = %instance, problem, "the agent is asked again");
    let now = ctx.now();
    ctx.seen.update_instance(instance, |seen| {
        seen.unreachable_because = Some(problem);
        seen.unreachable_since.get_or_insert(now);
    });
}

/// Whether the machine is reached, and no agent there that serves us: none runs, or one that has no such route, or another program
/// in its place. One that wants another token is another instance's, which has set the host up since: two that name one host do not
/// take it from each other. What answers on the port can say so and be anybody, so the host itself is asked.
async fn is_silent(ctx: &Context, instance: InstanceId, error: &AgentError) -> Result<bool> {
    match error {
        AgentError::NotRunning(_) => return Ok(true),
        AgentError::Unreachable(_) | AgentError::NoAnswer(_) => return Ok(false),
        AgentError::Refused { status, .. }
        | AgentError::Unproven {
            status: Some(status), ..
        } if *status != 401 => return Ok((400..500).contains(status)),
        AgentError::Unproven { .. } | AgentError::Refused { .. } => {}
    }
    let snapshot = ctx.deps.store.instance(instance).await?;
    let Some(host) = snapshot.as_ref().and_then(host_of) else {
        return Ok(false);
    };
    let is_ours = ctx.deps.hosts.has_own_agent(host).await;
    Ok(is_ours.unwrap_or_else(|error| {
        tracing::debug!(instance.id = %instance, %error, "whose agent a host has is not known just now");
        false
    }))
}

/// Whether an agent that has not answered in time answers nothing at all. One on a host under load answers late.
async fn is_mute(shim: &dyn Shim, error: &AgentError) -> bool {
    let is_late = |error: &AgentError| matches!(error, AgentError::NoAnswer(_));
    is_late(error)
        && shim
            .answers_within(MUTE_PATIENCE)
            .await
            .is_err_and(|error| is_late(&error))
}

fn wake_job(ctx: &Context, id: &str) {
    if let Ok(id) = id.parse::<JobId>() {
        ctx.wakes.wake(EntityRef::Job(id));
    }
}

/// Ends tasks of jobs that are over or that we do not know: left by a server that died between two calls.
async fn remove_dangling(ctx: &Context, instance: InstanceId, shim: &dyn Shim, ids: &[String]) -> Result<()> {
    for id in ids {
        let Ok(job) = id.parse::<JobId>() else { continue };
        let wanted = ctx
            .deps
            .store
            .job(job)
            .await?
            .is_some_and(|snapshot| !snapshot.job.status().is_finished());
        if wanted {
            continue;
        }
        tracing::warn!(task.id = %id, "removing a task that no job owns");
        ctx.before_effect("dangling.remove.before", EntityRef::Instance(instance))?;
        let order = TaskTerminate::default();
        // Found again at the next connection if it fails.
        let mut gone = is_gone(&shim.terminate(id, &order).await);
        if gone && !ctx.deps.settings.keep_tasks {
            gone = is_gone(&shim.remove(id).await);
        }
        if gone {
            // Its job may have been given up while it still held its share of the instance.
            ctx.seen.update_instance(instance, |seen| seen.tasks.remove(id));
            ctx.wakes.wake(EntityRef::Instance(instance));
        }
    }
    Ok(())
}

/// Whether a task is ended, or was not there any more: what a slow reader missed may have been its removal.
const fn is_gone(done: &std::result::Result<(), AgentError>) -> bool {
    matches!(done, Ok(()) | Err(AgentError::Refused { status: 404, .. }))
}
