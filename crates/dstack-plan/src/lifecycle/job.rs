//! A placed job, from its instance to its final status (dstack 0.22.5: pipelines §6 and §7).

use std::time::Duration;

use dstack_model::runs::{JobStatus, JobTerminationReason};
use dstack_units::Time;

use super::attachment::DETACH_TIMEOUT;
use super::{Wait, WaitReason};
use crate::nodes::Impossible;

/// How long the agents may take to accept a job.
pub const PROVISIONING_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// How long the image may take: the shim itself gives up pulling after 20 minutes.
pub const PULLING_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// A job whose agent cannot be reached for this long is lost.
pub const DISCONNECTED_TIMEOUT: Duration = Duration::from_secs(2 * 60);
/// A job that is to end on an instance whose agent is out of reach for this long ends without the agent's word. Its share of
/// the instance stays taken until the agent, back in reach, has removed what may still run.
pub const LOST_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// The runner enforces `max_duration` itself; the server steps in this much later.
pub const MAX_DURATION_GRACE: Duration = Duration::from_secs(2 * 60);
/// How often a job that waits for other nodes looks at them. Its run wakes it in time; this is for nodes that another server
/// drives.
pub const NODES_INTERVAL: Duration = Duration::from_secs(5);
/// How long the requests may take that are under way at a replica when it is replaced, or one too many.
pub const REQUESTS_TIMEOUT: Duration = Duration::from_secs(60);
/// The same when its user stops it.
pub const REQUESTS_TIMEOUT_OF_STOPPED: Duration = Duration::from_secs(5);
/// How long the last output of a stopped job is waited for.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// A call to the agents of a job. The engine repeats it until it is done or refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// Hand the task to the shim.
    SubmitTask,
    /// Hand job, code and files to the runner and start the commands.
    StartJob,
    /// Ask the runner to end the commands.
    StopJob,
    /// End the container and remove everything of the task.
    RemoveTask,
}

/// How far an operation is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Progress {
    /// Not intended yet.
    #[default]
    None,
    /// Intended; the last call, if any, failed with this.
    Intended(Option<String>),
    /// Confirmed by the agent.
    Done,
    /// Refused for good, with this answer.
    Refused(String),
}

/// What the shim says of the task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Task {
    /// The shim has not been heard since we (re)connected.
    Unknown,
    /// The shim was heard and does not know the task.
    Missing,
    /// Being prepared: image, container.
    Starting(WaitReason),
    /// The container runs and its ports are known.
    Running,
    /// The container ended.
    Terminated {
        /// Reason as the agent gave it.
        reason: Option<JobTerminationReason>,
        /// Message that the agent gave with the reason; empty when there was none.
        message: String,
    },
}

/// The last state that the runner reported for its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Termination reason of the job.
    pub reason: JobTerminationReason,
    /// Details of the reason, where there are any.
    pub message: Option<String>,
    /// Exit code of the commands.
    pub exit_status: Option<i64>,
}

/// How far the network volumes of a job are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Volumes {
    /// It has none, or none of them needs anything.
    #[default]
    Settled,
    /// The instance does not have all of them yet.
    Attaching(WaitReason),
    /// The instance has all of them.
    Attached,
    /// One of them could not be attached, for this reason.
    Failed(String),
    /// They are being detached, since then.
    Detaching(WaitReason, Time),
}

/// What a client that attaches to jobs over SSH was told of its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToldClient {
    /// That it is submitted.
    Submitted,
    /// Nothing so far: its question is being answered.
    Nothing,
    /// That it cannot be attached to yet.
    NotYet,
    /// That it can.
    Running,
}

/// All that is known of a placed job.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Status of the job before the decision.
    pub status: JobStatus,
    /// When the agent of its instance was called first.
    pub placed_at: Time,
    /// When its commands started.
    pub running_at: Option<Time>,
    /// Since when its agent cannot be reached.
    pub disconnected_at: Option<Time>,
    /// When it was asked to stop.
    pub stop_requested_at: Option<Time>,
    /// Until when its last output is waited for.
    pub remove_at: Option<Time>,
    /// Until when requests at it may go on, if it may still get some or some are under way.
    pub requests_until: Option<Time>,
    /// What a running job waits for so that it gets requests: a probe that has not succeeded often enough yet, or not lately, or
    /// the router of its service.
    pub requests_awaited: Option<WaitReason>,
    /// Its wait as it is stored.
    pub stored_wait: Wait,
    /// Nodes of its run that are to run before its task is prepared.
    pub task_waits_for: Option<WaitReason>,
    /// Nodes of its run whose addresses its commands need.
    pub start_waits_for: Option<WaitReason>,
    /// Why its commands can never be started: nodes that they need are over for good.
    pub start_impossible: Option<Impossible>,
    /// When its start was intended.
    pub start_intended_at: Option<Time>,
    /// Why it ends.
    pub termination_reason: Option<JobTerminationReason>,
    /// `max_duration` of its spec.
    pub max_duration: Option<Duration>,
    /// Until when somebody who reads the output at the job itself may still do so after its end.
    pub attended_until: Option<Time>,
    /// A policy of the run wants it ended, for this reason.
    pub unwanted: Option<Ended>,
    /// Its instance is of another project's fleet, which its own does not import any more.
    pub access_revoked: bool,
    /// Whether it runs on spot capacity.
    pub spot: bool,
    /// Its instance still exists.
    pub instance_alive: bool,
    /// Why the cloud of its instance will take that away, if it will.
    pub instance_leaves: Option<String>,
    /// The agent of its instance has answered since the instance was made.
    pub instance_ready: bool,
    /// Since when the agent of its instance is out of reach.
    pub agent_unreachable_since: Option<Time>,
    /// Why it is.
    pub agent_unreachable_because: Option<String>,
    /// Name of the instance, for reasons.
    pub instance_name: String,
    /// What the shim says.
    pub task: Task,
    /// What the runner reported at the end.
    pub ended: Option<Ended>,
    /// Everything the runner had to say is stored.
    pub drained: bool,
    /// How far its network volumes are.
    pub volumes: Volumes,
    /// Progress of each operation.
    pub submit_task: Progress,
    /// See [`Operation::StartJob`].
    pub start_job: Progress,
    /// See [`Operation::StopJob`].
    pub stop_job: Progress,
    /// See [`Operation::RemoveTask`].
    pub remove_task: Progress,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Intend an operation, and wait for it.
    Intend(Operation, Wait),
    /// Go to the next status of a healthy job.
    Advance(JobStatus),
    /// Begin to end it.
    Terminate(Ended),
    /// Ask for a graceful stop, and wait for the last output until then.
    Stop {
        /// Until when the last output is waited for.
        drain_until: Time,
        /// Whether the runner is to be asked (it is not when the commands have ended by themselves).
        ask: bool,
    },
    /// Nothing to do but wait.
    Wait(Wait),
    /// Have its network volumes detached, and wait for that.
    Detach(Wait),
    /// It is over: release the instance.
    Finish(JobStatus),
    /// It is over for the user; its share of the instance stays taken, since something of it may still run there.
    Abandon(JobStatus),
}

/// Decides about a job that has been placed; jobs still waiting for a place are the scheduler's.
pub fn decide(facts: &Facts, now: Time) -> Decision {
    let is_there = matches!(
        facts.status,
        JobStatus::Provisioning | JobStatus::Pulling | JobStatus::Running
    );
    if is_there && facts.access_revoked {
        let message = "The fleet is not exported to the project any more";
        return failed(JobTerminationReason::InstanceAccessRevoked, message);
    }
    // What has ended by itself is told as it is.
    if is_there
        && facts.ended.is_none()
        && let Some(why) = &facts.instance_leaves
    {
        return failed(interruption(facts), why);
    }
    match facts.status {
        JobStatus::Provisioning => provisioning(facts, now),
        JobStatus::Pulling => pulling(facts, now),
        JobStatus::Running => running(facts, now),
        JobStatus::Terminating => terminating(facts, now),
        JobStatus::Submitted
        | JobStatus::Terminated
        | JobStatus::Aborted
        | JobStatus::Failed
        | JobStatus::Done => Decision::Wait(Wait::none()),
    }
}

fn failed(reason: JobTerminationReason, message: impl Into<String>) -> Decision {
    Decision::Terminate(Ended {
        reason,
        message: Some(message.into()),
        exit_status: None,
    })
}

fn provisioning(facts: &Facts, now: Time) -> Decision {
    let called_at = match facts.submit_task {
        Progress::None => now,
        _ => facts.placed_at,
    };
    let deadline = called_at + PROVISIONING_TIMEOUT;
    let waits = |error: Option<&String>| {
        let reason = WaitReason::TaskAccepted {
            instance: facts.instance_name.clone(),
            error: error.cloned(),
        };
        Wait::until(deadline, reason)
    };
    if !facts.instance_alive {
        return failed(
            JobTerminationReason::WaitingInstanceLimitExceeded,
            "Instance is terminated",
        );
    }
    if let (Progress::None, Volumes::Failed(error)) = (&facts.submit_task, &facts.volumes) {
        return failed(
            JobTerminationReason::VolumeError,
            format!("Failed to attach volume: {error}"),
        );
    }
    // Instances of some clouds take an hour until they answer: how long that may be is decided for the instance.
    if facts.submit_task == Progress::None && !facts.instance_ready {
        return Decision::Wait(Wait::indefinite(WaitReason::AgentReachable {
            instance: facts.instance_name.clone(),
        }));
    }
    if facts.submit_task == Progress::None
        && let Some(nodes) = &facts.task_waits_for
    {
        return Decision::Wait(wait_for_nodes(facts, nodes, now));
    }
    if facts.submit_task == Progress::None
        && let Some(decision) = before_mount(facts)
    {
        return decision;
    }
    match &facts.submit_task {
        Progress::Done => Decision::Advance(JobStatus::Pulling),
        Progress::Refused(error) => failed(
            JobTerminationReason::ExecutorError,
            format!("The agent refused the task: {error}"),
        ),
        _ if now >= deadline => failed(
            JobTerminationReason::WaitingRunnerLimitExceeded,
            format!(
                "Runner did not become available within {}s",
                PROVISIONING_TIMEOUT.as_secs()
            ),
        ),
        Progress::None => Decision::Intend(Operation::SubmitTask, waits(None)),
        Progress::Intended(error) => Decision::Wait(waits(error.as_ref())),
    }
}

/// The shim mounts volumes when it gets the task: they are there before.
fn before_mount(facts: &Facts) -> Option<Decision> {
    match &facts.volumes {
        // One that has failed is not waited for.
        Volumes::Settled | Volumes::Attached | Volumes::Failed(_) => None,
        // How long it may take is decided for each of them.
        Volumes::Attaching(reason) => Some(Decision::Wait(Wait::indefinite(reason.clone()))),
        Volumes::Detaching(..) => Some(failed(
            JobTerminationReason::VolumeError,
            "Failed to attach volume: it is being detached",
        )),
    }
}

/// Without a deadline, as in dstack 0.22.5: each of those nodes has its own, and the run ends with it.
fn wait_for_nodes(facts: &Facts, nodes: &WaitReason, now: Time) -> Wait {
    let wait = Wait::indefinite(nodes.clone()).or_at(now + NODES_INTERVAL);
    wait.or_stored(&facts.stored_wait, now)
}

fn pulling(facts: &Facts, now: Time) -> Decision {
    // What was spent on waiting for other nodes does not count.
    let deadline = facts.start_intended_at.unwrap_or(facts.placed_at) + PULLING_TIMEOUT;
    if let Some(lost) = lost(facts, now) {
        return lost;
    }
    if facts.start_job == Progress::Done {
        return Decision::Advance(JobStatus::Running);
    }
    let reason = match &facts.task {
        Task::Terminated { reason, message } => {
            // A start that was refused explains more than the container that ended because of it.
            if let Progress::Refused(error) = &facts.start_job {
                return failed(JobTerminationReason::ExecutorError, error.clone());
            }
            let reason = reason.unwrap_or(JobTerminationReason::ExecutorError);
            return Decision::Terminate(Ended {
                reason,
                message: Some(message.clone()).filter(|m| !m.is_empty()),
                exit_status: None,
            });
        }
        Task::Missing => {
            return failed(
                JobTerminationReason::ExecutorError,
                "The agent lost the task (was its state removed?)",
            );
        }
        Task::Running => match &facts.start_job {
            Progress::None => {
                if let Some(impossible) = &facts.start_impossible {
                    return failed(impossible.reason, &impossible.message);
                }
                if let Some(nodes) = &facts.start_waits_for {
                    return Decision::Wait(wait_connected(facts, wait_for_nodes(facts, nodes, now)));
                }
                return Decision::Intend(
                    Operation::StartJob,
                    Wait::until(now + PULLING_TIMEOUT, WaitReason::JobAccepted { error: None }),
                );
            }
            Progress::Refused(error) => {
                return failed(
                    JobTerminationReason::ExecutorError,
                    format!("The runner refused the job: {error}"),
                );
            }
            Progress::Intended(error) => WaitReason::JobAccepted { error: error.clone() },
            Progress::Done => WaitReason::JobStarted,
        },
        Task::Starting(reason) => reason.clone(),
        Task::Unknown => match awaited_before(facts) {
            Some(nodes) => return still_wait_for_nodes(facts, nodes, now),
            None => WaitReason::TaskReport {
                instance: facts.instance_name.clone(),
            },
        },
    };
    if now >= deadline {
        return failed(
            JobTerminationReason::WaitingRunnerLimitExceeded,
            format!(
                "The job did not start within {}s. It was waiting for {reason}",
                PULLING_TIMEOUT.as_secs()
            ),
        );
    }
    Decision::Wait(wait_connected(facts, Wait::until(deadline, reason)))
}

/// Nodes that a job waited for whose start was not intended yet.
fn awaited_before(facts: &Facts) -> Option<&WaitReason> {
    let stored = facts.stored_wait.reason.as_ref();
    stored.filter(|reason| reason.is_for_nodes() && facts.start_job == Progress::None)
}

/// The server has started anew, and the agent has not told of the task yet. What was spent on waiting for other nodes does not
/// count, however long it was; only an agent that stays out of reach ends this wait.
fn still_wait_for_nodes(facts: &Facts, nodes: &WaitReason, now: Time) -> Decision {
    let unreachable = facts.agent_unreachable_since;
    if unreachable.is_some_and(|since| now >= since + PULLING_TIMEOUT) {
        return failed(
            JobTerminationReason::WaitingRunnerLimitExceeded,
            format!(
                "The agent of {} was out of reach for {}s. The job was waiting for {nodes}",
                facts.instance_name,
                PULLING_TIMEOUT.as_secs()
            ),
        );
    }
    Decision::Wait(wait_for_nodes(facts, nodes, now))
}

fn running(facts: &Facts, now: Time) -> Decision {
    if let Some(ended) = &facts.ended {
        // The agent ends the task when they have read everything.
        let attended = facts.attended_until.filter(|until| now < *until);
        return match attended.filter(|_| !matches!(facts.task, Task::Terminated { .. } | Task::Missing)) {
            Some(until) => Decision::Wait(Wait::until(until, WaitReason::OutputRead)),
            None => Decision::Terminate(ended.clone()),
        };
    }
    // The container may end without a last word of the runner (killed, out of memory). While the runner's
    // output is still being read, its own report comes first.
    if let (Task::Terminated { reason, message }, true) =
        (&facts.task, facts.disconnected_at.is_some() || facts.drained)
    {
        let reason = match reason {
            Some(reason) if *reason != JobTerminationReason::DoneByRunner => *reason,
            _ => JobTerminationReason::ContainerExitedWithError,
        };
        let message = if message.is_empty() {
            "The container ended without reporting a result"
        } else {
            message
        };
        return failed(reason, message);
    }
    if facts.task == Task::Missing && facts.disconnected_at.is_some() {
        return failed(
            JobTerminationReason::ExecutorError,
            "The agent lost the task (was its state removed?)",
        );
    }
    if let Some(lost) = lost(facts, now) {
        return lost;
    }
    if let Some(unwanted) = &facts.unwanted {
        return Decision::Terminate(unwanted.clone());
    }
    let deadline = match (facts.running_at, facts.max_duration) {
        (Some(running_at), Some(max)) => Some(running_at + max + MAX_DURATION_GRACE),
        _ => None,
    };
    if deadline.is_some_and(|deadline| now >= deadline) {
        return failed(JobTerminationReason::MaxDurationExceeded, "Max duration exceeded");
    }
    Decision::Wait(wait_connected(
        facts,
        Wait {
            deadline,
            wake_at: deadline,
            reason: Some(facts.requests_awaited.clone().unwrap_or(WaitReason::Commands)),
        },
    ))
}

/// The agent has been out of reach for too long, or its instance is gone.
fn lost(facts: &Facts, now: Time) -> Option<Decision> {
    let too_long = facts
        .disconnected_at
        .is_some_and(|since| now >= since + DISCONNECTED_TIMEOUT);
    if facts.instance_alive && !too_long {
        return None;
    }
    Some(failed(interruption(facts), "Instance is unreachable"))
}

/// Why a job ends whose instance is taken from it.
const fn interruption(facts: &Facts) -> JobTerminationReason {
    match facts.spot {
        true => JobTerminationReason::InterruptedByNoCapacity,
        false => JobTerminationReason::InstanceUnreachable,
    }
}

/// While the agent is out of reach, that is what is waited for.
fn wait_connected(facts: &Facts, wait: Wait) -> Wait {
    match facts.disconnected_at {
        Some(since) => Wait::until(
            since + DISCONNECTED_TIMEOUT,
            WaitReason::AgentReachableAgain {
                instance: facts.instance_name.clone(),
                error: facts.agent_unreachable_because.clone(),
            },
        ),
        None => wait,
    }
}

fn terminating(facts: &Facts, now: Time) -> Decision {
    let reason = facts
        .termination_reason
        .unwrap_or(JobTerminationReason::TerminatedByServer);
    let never_placed = facts.submit_task == Progress::None;
    if !facts.instance_alive {
        return Decision::Finish(reason.status());
    }
    if never_placed {
        return finish(facts, reason, now);
    }
    let aborted = reason == JobTerminationReason::AbortedByUser;
    // Operations under way are let end first, so that a late `submit` can never follow a `remove`.
    if facts.running_at.is_some() && !aborted {
        match facts.remove_at {
            None => {
                if let Some(until) = facts.requests_until.filter(|until| now < *until)
                    && !is_gone(facts)
                {
                    return Decision::Wait(Wait::until(until, WaitReason::RequestsFinished));
                }
                // A runner that ended by itself needs no asking; one out of reach is asked all the same.
                let ask = facts.stop_requested_at.is_none() && !ended_by_itself(facts, reason);
                return Decision::Stop {
                    drain_until: now + DRAIN_TIMEOUT,
                    ask,
                };
            }
            Some(until) if now < until && may_have_output(facts) => {
                return Decision::Wait(Wait::until(until, WaitReason::LastOutput));
            }
            Some(_) => {}
        }
    }
    let lost_at = facts.agent_unreachable_since.map(|since| since + LOST_TIMEOUT);
    if facts.remove_task != Progress::Done && lost_at.is_some_and(|at| now >= at) {
        return Decision::Abandon(reason.status());
    }
    // While the agent answers it is never given up: what it did not confirm may still run.
    let waits = |error: Option<&String>| Wait {
        deadline: lost_at,
        wake_at: lost_at,
        reason: Some(WaitReason::TaskRemoved {
            instance: facts.instance_name.clone(),
            error: error.cloned(),
        }),
    };
    match &facts.remove_task {
        Progress::None => Decision::Intend(Operation::RemoveTask, waits(None)),
        Progress::Done => finish(facts, reason, now),
        Progress::Intended(error) => Decision::Wait(waits(error.as_ref())),
        Progress::Refused(error) => Decision::Wait(waits(Some(error))),
    }
}

/// How long requests under way may take once a job begins to end for this reason; `None`: nothing waits for them.
pub const fn requests_timeout(reason: JobTerminationReason) -> Option<Duration> {
    match reason {
        JobTerminationReason::ScaledDown => Some(REQUESTS_TIMEOUT),
        JobTerminationReason::TerminatedByUser => Some(REQUESTS_TIMEOUT_OF_STOPPED),
        _ => None,
    }
}

/// Whether the commands have ended: no request is answered any more.
const fn is_gone(facts: &Facts) -> bool {
    facts.ended.is_some() || matches!(facts.task, Task::Terminated { .. } | Task::Missing)
}

/// Whether more of the job's output may come: not of a container that has ended, once the connection to its runner is gone with it.
fn may_have_output(facts: &Facts) -> bool {
    let is_gone = match facts.task {
        Task::Missing => true,
        Task::Terminated { .. } => facts.disconnected_at.is_some(),
        _ => false,
    };
    !facts.drained && !is_gone
}

/// Nothing of the job runs any more. It is over when its volumes are detached, as nobody else gets them before; a cloud that does
/// not answer is not waited for for ever.
fn finish(facts: &Facts, reason: JobTerminationReason, now: Time) -> Decision {
    let detached = |reason: &WaitReason, since: Time| Wait::until(since + DETACH_TIMEOUT, reason.clone());
    match &facts.volumes {
        Volumes::Attaching(reason) => Decision::Detach(detached(reason, now)),
        Volumes::Attached => Decision::Detach(detached(&WaitReason::JobEnded, now)),
        Volumes::Detaching(reason, since) if now < *since + DETACH_TIMEOUT => {
            Decision::Wait(detached(reason, *since))
        }
        Volumes::Settled | Volumes::Failed(_) | Volumes::Detaching(..) => Decision::Finish(reason.status()),
    }
}

fn ended_by_itself(facts: &Facts, reason: JobTerminationReason) -> bool {
    if reason == JobTerminationReason::DoneByRunner {
        // Nodes that are not needed any more, once the first is done, end for the same reason.
        let is_over = matches!(facts.task, Task::Terminated { .. } | Task::Missing);
        return facts.ended.is_some() || is_over;
    }
    matches!(
        reason,
        JobTerminationReason::ContainerExitedWithError
            | JobTerminationReason::ExecutorError
            | JobTerminationReason::LogQuotaExceeded
            | JobTerminationReason::PortsBindingFailed
            | JobTerminationReason::CreatingContainerError
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Time {
        Time::from_millis(seconds * 1000)
    }

    fn facts(status: JobStatus) -> Facts {
        Facts {
            status,
            placed_at: at(0),
            running_at: None,
            disconnected_at: None,
            stop_requested_at: None,
            remove_at: None,
            requests_until: None,
            requests_awaited: None,
            stored_wait: Wait::none(),
            task_waits_for: None,
            start_waits_for: None,
            start_impossible: None,
            start_intended_at: None,
            termination_reason: None,
            max_duration: None,
            attended_until: None,
            unwanted: None,
            access_revoked: false,
            spot: false,
            instance_alive: true,
            instance_leaves: None,
            instance_ready: true,
            agent_unreachable_since: None,
            agent_unreachable_because: None,
            instance_name: "cloud-0".to_owned(),
            task: Task::Unknown,
            ended: None,
            drained: false,
            volumes: Volumes::Settled,
            submit_task: Progress::None,
            start_job: Progress::None,
            stop_job: Progress::None,
            remove_task: Progress::None,
        }
    }

    #[test]
    fn the_task_waits_for_its_volumes_and_the_end_for_their_being_detached() {
        let with = |status, volumes| Facts {
            volumes,
            ..facts(status)
        };
        let reason = WaitReason::VolumeAttached {
            volume: "data".to_owned(),
            instance: "cloud-0".to_owned(),
            error: None,
        };
        let attaching = with(JobStatus::Provisioning, Volumes::Attaching(reason.clone()));
        assert_eq!(
            decide(&attaching, at(1)),
            Decision::Wait(Wait::indefinite(reason.clone()))
        );
        let attached = with(JobStatus::Provisioning, Volumes::Attached);
        let submits = decide(&attached, at(1));
        assert!(matches!(submits, Decision::Intend(Operation::SubmitTask, _)));
        let refused = with(JobStatus::Provisioning, Volumes::Failed("no".to_owned()));
        let Decision::Terminate(ended) = decide(&refused, at(1)) else {
            panic!("it has no volume");
        };
        assert_eq!(
            (ended.reason, ended.message.as_deref()),
            (
                JobTerminationReason::VolumeError,
                Some("Failed to attach volume: no")
            )
        );
        let ending = |volumes, remove_task| Facts {
            submit_task: Progress::Done,
            remove_task,
            ..with(JobStatus::Terminating, volumes)
        };
        let mounted = ending(Volumes::Attached, Progress::None);
        let removes = decide(&mounted, at(1));
        assert!(
            matches!(removes, Decision::Intend(Operation::RemoveTask, _)),
            "unmounted first"
        );
        let unmounted = ending(Volumes::Attached, Progress::Done);
        assert!(matches!(decide(&unmounted, at(1)), Decision::Detach(_)));
        let leaving = ending(Volumes::Detaching(reason, at(1)), Progress::Done);
        assert!(matches!(decide(&leaving, at(600)), Decision::Wait(_)));
        assert!(
            matches!(decide(&leaving, at(601)), Decision::Finish(_)),
            "not for ever"
        );
        let gone = Facts {
            instance_alive: false,
            ..leaving
        };
        assert!(matches!(decide(&gone, at(1)), Decision::Finish(_)));
    }

    #[test]
    fn who_has_not_ended_is_asked_to_also_when_others_are_done() {
        let done = Ended {
            reason: JobTerminationReason::DoneByRunner,
            message: None,
            exit_status: Some(0),
        };
        let asks = |reason, ended: Option<&Ended>, task: Task| {
            let facts = Facts {
                running_at: Some(at(1)),
                submit_task: Progress::Done,
                termination_reason: Some(reason),
                ended: ended.cloned(),
                task,
                ..facts(JobStatus::Terminating)
            };
            matches!(decide(&facts, at(2)), Decision::Stop { ask: true, .. })
        };
        let ended = || Task::Terminated {
            reason: None,
            message: String::new(),
        };
        assert!(asks(done.reason, None, Task::Running));
        assert!(!asks(done.reason, Some(&done), Task::Running));
        assert!(!asks(done.reason, None, ended()));
        assert!(asks(JobTerminationReason::TerminatedByUser, None, Task::Running));
        assert!(!asks(
            JobTerminationReason::ContainerExitedWithError,
            None,
            Task::Running
        ));
    }

    #[test]
    fn requests_under_way_are_finished_before_the_job_is_asked_to_stop() {
        let ending = |requests_until: Option<Time>| Facts {
            running_at: Some(at(1)),
            submit_task: Progress::Done,
            termination_reason: Some(JobTerminationReason::ScaledDown),
            requests_until,
            task: Task::Running,
            ..facts(JobStatus::Terminating)
        };
        let asks = |facts: &Facts| matches!(decide(facts, at(10)), Decision::Stop { ask: true, .. });
        let Decision::Wait(wait) = decide(&ending(Some(at(60))), at(10)) else {
            panic!("it is left alone");
        };
        assert_eq!(wait, Wait::until(at(60), WaitReason::RequestsFinished));
        assert!(asks(&ending(Some(at(10)))), "not for ever");
        assert!(asks(&ending(None)));
        let crashed = Facts {
            task: Task::Terminated {
                reason: None,
                message: String::new(),
            },
            ..ending(Some(at(60)))
        };
        assert!(asks(&crashed), "nobody answers any more");
        let aborted = Facts {
            termination_reason: Some(JobTerminationReason::AbortedByUser),
            ..ending(Some(at(60)))
        };
        assert!(matches!(
            decide(&aborted, at(10)),
            Decision::Intend(Operation::RemoveTask, _)
        ));
        for (reason, limit) in [
            (JobTerminationReason::ScaledDown, Some(60)),
            (JobTerminationReason::TerminatedByUser, Some(5)),
            (JobTerminationReason::AbortedByUser, None),
            (JobTerminationReason::ContainerExitedWithError, None),
            (JobTerminationReason::InterruptedByNoCapacity, None),
        ] {
            assert_eq!(
                requests_timeout(reason),
                limit.map(Duration::from_secs),
                "{reason:?}"
            );
        }
    }

    fn reason(decision: &Decision) -> Option<JobTerminationReason> {
        match decision {
            Decision::Terminate(ended) => Some(ended.reason),
            _ => None,
        }
    }

    fn awaited(decision: &Decision) -> Option<&WaitReason> {
        match decision {
            Decision::Wait(wait) => wait.reason.as_ref(),
            _ => None,
        }
    }

    #[test]
    fn nodes_wait_for_one_another_without_a_deadline() {
        let nodes = || WaitReason::NodeAddress {
            node: "train-1-0".to_owned(),
            others: 0,
        };
        let ordered = Facts {
            task_waits_for: Some(nodes()),
            ..facts(JobStatus::Provisioning)
        };
        let late = at(24 * 60 * 60);
        assert_eq!(awaited(&decide(&ordered, late)), Some(&nodes()));
        let lacking = Facts {
            start_waits_for: Some(nodes()),
            task: Task::Running,
            submit_task: Progress::Done,
            ..facts(JobStatus::Pulling)
        };
        assert_eq!(awaited(&decide(&lacking, late)), Some(&nodes()));
        // A node that is lost meanwhile is found out.
        let lost = Facts {
            disconnected_at: Some(at(0)),
            ..lacking.clone()
        };
        let lost = decide(&lost, late);
        assert_eq!(reason(&lost), Some(JobTerminationReason::InstanceUnreachable));
        // The time spent on waiting is not the runner's.
        let ready = Facts {
            start_waits_for: None,
            ..lacking
        };
        assert!(matches!(
            decide(&ready, late),
            Decision::Intend(Operation::StartJob, Wait { deadline: Some(until), .. }) if until > late
        ));
        let called = Facts {
            start_job: Progress::Intended(None),
            start_intended_at: Some(late),
            ..ready
        };
        assert!(awaited(&decide(&called, late + Duration::from_secs(60))).is_some());
        let unanswered = decide(&called, late + PULLING_TIMEOUT);
        assert_eq!(
            reason(&unanswered),
            Some(JobTerminationReason::WaitingRunnerLimitExceeded)
        );
    }

    #[test]
    fn a_job_whose_nodes_are_over_for_good_fails_and_says_so() {
        let lacking = Facts {
            start_waits_for: Some(WaitReason::NodeAddress {
                node: "web-0-0".to_owned(),
                others: 0,
            }),
            start_impossible: Some(Impossible {
                reason: JobTerminationReason::ExecutorError,
                message: "web-0-0 has ended".to_owned(),
            }),
            task: Task::Running,
            submit_task: Progress::Done,
            ..facts(JobStatus::Pulling)
        };
        let Decision::Terminate(ended) = decide(&lacking, at(1)) else {
            panic!("it does not wait");
        };
        assert_eq!(ended.message.as_deref(), Some("web-0-0 has ended"));
    }

    /// A time that moves with each look is written at each look, and wakes the job each time.
    #[test]
    fn a_wait_for_nodes_stays_as_it_is_until_its_time_comes() {
        let nodes = || WaitReason::NodeAddress {
            node: "train-1-0".to_owned(),
            others: 0,
        };
        let waiting = |stored_wait: Wait, at: Time| {
            let waiting = Facts {
                start_waits_for: Some(nodes()),
                task: Task::Running,
                submit_task: Progress::Done,
                stored_wait,
                ..facts(JobStatus::Pulling)
            };
            match decide(&waiting, at) {
                Decision::Wait(wait) => wait,
                other => panic!("{other:?}"),
            }
        };
        let first = waiting(Wait::none(), at(10));
        assert_eq!(first.wake_at, Some(at(10) + NODES_INTERVAL));
        assert_eq!(waiting(first.clone(), at(12)), first);
        let next = waiting(first, at(10) + NODES_INTERVAL);
        assert_eq!(next.wake_at, Some(at(10) + NODES_INTERVAL * 2));
    }

    #[test]
    fn the_time_spent_on_waiting_for_nodes_does_not_count_after_a_restart_either() {
        let nodes = WaitReason::NodeAddress {
            node: "train-1-0".to_owned(),
            others: 0,
        };
        let unheard = Facts {
            submit_task: Progress::Done,
            stored_wait: Wait::indefinite(nodes.clone()),
            ..facts(JobStatus::Pulling)
        };
        let late = at(24 * 60 * 60);
        assert_eq!(awaited(&decide(&unheard, late)), Some(&nodes));
        let out_of_reach = Facts {
            agent_unreachable_since: Some(late),
            ..unheard
        };
        let soon = decide(&out_of_reach, late + Duration::from_secs(60));
        assert_eq!(awaited(&soon), Some(&nodes));
        assert_eq!(
            reason(&decide(&out_of_reach, late + PULLING_TIMEOUT)),
            Some(JobTerminationReason::WaitingRunnerLimitExceeded)
        );
    }

    #[test]
    fn a_container_that_has_ended_is_not_waited_for_unless_its_output_is_still_read() {
        let killed = |disconnected_at: Option<Time>, task: Task| Facts {
            termination_reason: Some(JobTerminationReason::ContainerExitedWithError),
            running_at: Some(at(1)),
            remove_at: Some(at(40)),
            submit_task: Progress::Done,
            disconnected_at,
            task,
            ..facts(JobStatus::Terminating)
        };
        let ended = || Task::Terminated {
            reason: None,
            message: String::new(),
        };
        let removes =
            |facts: &Facts| matches!(decide(facts, at(11)), Decision::Intend(Operation::RemoveTask, _));
        assert!(removes(&killed(Some(at(10)), ended())));
        assert!(!removes(&killed(None, ended())), "its output is still read");
        assert!(
            !removes(&killed(Some(at(10)), Task::Running)),
            "it may be in reach again"
        );
        assert!(removes(&killed(None, Task::Missing)));
    }

    #[test]
    fn a_job_whose_instance_is_taken_away_is_told_to_stop() {
        for (spot, reason_told) in [
            (true, JobTerminationReason::InterruptedByNoCapacity),
            (false, JobTerminationReason::InstanceUnreachable),
        ] {
            for status in [JobStatus::Provisioning, JobStatus::Pulling, JobStatus::Running] {
                let leaves = Facts {
                    spot,
                    instance_leaves: Some("the price went up".to_owned()),
                    ..facts(status)
                };
                let Decision::Terminate(ended) = decide(&leaves, at(5)) else {
                    panic!("it ends");
                };
                let told = (ended.reason, ended.message.as_deref());
                assert_eq!(told, (reason_told, Some("the price went up")));
            }
            let ending = Facts {
                spot,
                instance_leaves: Some("the price went up".to_owned()),
                termination_reason: Some(reason_told),
                running_at: Some(at(1)),
                submit_task: Progress::Done,
                task: Task::Running,
                ..facts(JobStatus::Terminating)
            };
            assert!(matches!(decide(&ending, at(5)), Decision::Stop { ask: true, .. }));
        }
    }

    #[test]
    fn how_long_an_instance_takes_to_answer_is_not_the_jobs_time() {
        let booting = Facts {
            instance_ready: false,
            ..facts(JobStatus::Provisioning)
        };
        let Decision::Wait(wait) = decide(&booting, at(55 * 60)) else {
            panic!("it waits for the instance");
        };
        assert_eq!((wait.deadline, wait.wake_at), (None, None));
        assert_eq!(
            wait.reason,
            Some(WaitReason::AgentReachable {
                instance: "cloud-0".to_owned()
            })
        );
        // The instance has a deadline of its own.
        let gone = Facts {
            instance_alive: false,
            ..booting
        };
        assert_eq!(
            reason(&decide(&gone, at(56 * 60))),
            Some(JobTerminationReason::WaitingInstanceLimitExceeded)
        );
        let ready = decide(&facts(JobStatus::Provisioning), at(55 * 60));
        assert!(
            matches!(ready, Decision::Intend(Operation::SubmitTask, _)),
            "{ready:?}"
        );
        let called = |seconds: i64| {
            let called = Facts {
                placed_at: at(55 * 60),
                submit_task: Progress::Intended(None),
                ..facts(JobStatus::Provisioning)
            };
            reason(&decide(&called, at(55 * 60 + seconds)))
        };
        assert_eq!(called(599), None);
        assert_eq!(
            called(600),
            Some(JobTerminationReason::WaitingRunnerLimitExceeded)
        );
    }

    #[test]
    fn a_job_that_is_over_stays_while_somebody_reads_its_output_there() {
        let over = |task: Task| Facts {
            ended: Some(Ended {
                reason: JobTerminationReason::DoneByRunner,
                message: None,
                exit_status: Some(0),
            }),
            submit_task: Progress::Done,
            attended_until: Some(at(20)),
            task,
            ..facts(JobStatus::Running)
        };
        let Decision::Wait(wait) = decide(&over(Task::Running), at(19)) else {
            panic!("it waits");
        };
        assert_eq!(
            (wait.wake_at, wait.reason),
            (Some(at(20)), Some(WaitReason::OutputRead))
        );
        let done = Some(JobTerminationReason::DoneByRunner);
        assert_eq!(reason(&decide(&over(Task::Running), at(20))), done);
        let ended = Task::Terminated {
            reason: None,
            message: String::new(),
        };
        assert_eq!(reason(&decide(&over(ended), at(1))), done);
    }

    #[test]
    fn a_job_is_given_up_only_where_nobody_answers_for_long() {
        let ending = |since: Option<i64>, remove_task: Progress| Facts {
            termination_reason: Some(JobTerminationReason::InstanceUnreachable),
            submit_task: Progress::Done,
            agent_unreachable_since: since.map(at),
            remove_task,
            ..facts(JobStatus::Terminating)
        };
        let asked = || Progress::Intended(Some("timed out".to_owned()));
        assert!(matches!(
            decide(&ending(None, asked()), at(100_000)),
            Decision::Wait(Wait { deadline: None, .. })
        ));
        let Decision::Wait(wait) = decide(&ending(Some(1000), asked()), at(1299)) else {
            panic!("not yet");
        };
        assert_eq!((wait.deadline, wait.wake_at), (Some(at(1300)), Some(at(1300))));
        assert_eq!(
            decide(&ending(Some(1000), asked()), at(1300)),
            Decision::Abandon(JobStatus::Failed)
        );
        // What is known to be removed needs no giving up.
        assert_eq!(
            decide(&ending(Some(1000), Progress::Done), at(1300)),
            Decision::Finish(JobStatus::Failed)
        );
    }
}
