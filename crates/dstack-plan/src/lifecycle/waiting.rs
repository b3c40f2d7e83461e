//! Why something waits, and until when.

use std::fmt;

use dstack_model::runs::WAITING_FOR_COMMANDS;
use dstack_units::Time;
use serde::{Deserialize, Serialize};

/// What a run, job, instance, fleet, volume, attachment or gateway waits for.
///
/// Programs compare values; users read the text, which follows the words "waits for". It is stored as JSON with the variant
/// as `kind`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum WaitReason {
    // Jobs
    /// A job without an instance.
    Placement,
    /// An instance is being made for the job.
    NewInstance {
        /// Name of that instance.
        instance: String,
    },
    /// The shim has not confirmed the task yet.
    TaskAccepted {
        /// Name of the instance.
        instance: String,
        /// Why the last call failed.
        error: Option<String>,
    },
    /// The connection to the shim is new, and it has not reported the task yet.
    TaskReport {
        /// Name of the instance.
        instance: String,
    },
    /// The shim prepares mounts, GPUs and keys.
    TaskPrepared,
    /// The image is being pulled.
    ImagePulled,
    /// The container is being created.
    ContainerCreated,
    /// The container runs, and its ports are not known yet.
    ContainerPorts,
    /// Nodes that are to run before the job, by the `startup_order` of its run.
    NodeRunning {
        /// Name of the first of them.
        node: String,
        /// How many there are besides.
        others: usize,
    },
    /// Nodes whose addresses the job needs, and which have none yet.
    NodeAddress {
        /// Name of the first of them.
        node: String,
        /// How many there are besides.
        others: usize,
    },
    /// The runner has not confirmed the job yet.
    JobAccepted {
        /// Why the last call failed.
        error: Option<String>,
    },
    /// The runner has confirmed the job.
    JobStarted,
    /// The commands run: nothing is wrong.
    Commands,
    /// A probe of a job of a service has not succeeded often enough yet, or not lately.
    ProbeSucceeds {
        /// What the first such probe asks.
        probe: String,
        /// How many there are besides.
        others: usize,
        /// What came instead of a success the last time.
        error: Option<String>,
    },
    /// The router of a service does not have the job among its workers.
    WorkerAdded {
        /// What keeps it from that, if anything is known to.
        error: Option<String>,
    },
    /// Requests are under way at a job of a service that is to end.
    RequestsFinished,
    /// Clients that are attached, or about to attach, read the output of a job that is over.
    OutputRead,
    /// Output that the runner still has, after the commands were asked to end.
    LastOutput,
    /// The shim has not confirmed that nothing of the task is left.
    TaskRemoved {
        /// Name of the instance.
        instance: String,
        /// Why the last call failed.
        error: Option<String>,
    },
    /// The job is to be ended.
    JobEnded,

    // Runs
    /// A run whose jobs decide what becomes of it.
    Jobs,
    /// A run that ends once its jobs have ended.
    JobsEnded,
    /// A run that is tried again once the jobs of its last attempt have ended.
    LastAttemptEnded,
    /// A pause between two attempts.
    NextAttempt,
    /// The next time of a schedule.
    Schedule,
    /// A service with `replicas: 0`.
    Replicas,
    /// A service that has no replicas until requests come.
    Requests,
    /// The run ends, because its jobs cannot be made.
    EndWithoutJobs,
    /// The jobs of a deployment, or of a run's next attempt, cannot be made now.
    JobsMade {
        /// Number of the deployment.
        deployment: i64,
        /// What prevents it, for users.
        error: String,
    },
    /// The new deployment of a service stands beside the old one.
    Rollout {
        /// Number of the new deployment.
        deployment: i64,
        /// What the roll-out waits for, for users.
        what: String,
    },

    // Instances
    /// The configuration of clouds is to be read and their offers looked at.
    CloudsAsked,
    /// A cloud is to be called.
    CloudAsked,
    /// Clouds have not answered yet.
    Offers,
    /// The fleet of an instance cannot be found.
    Fleet,
    /// The other instances of a cluster go beside its first.
    ClusterMasterMade {
        /// Name of the first instance.
        instance: String,
    },
    /// The fleet has not chosen the first instance of the cluster yet.
    ClusterMasterChosen,
    /// A cloud makes it.
    Creation {
        /// Name of the resource in the cloud.
        name: String,
        /// Why the last call failed.
        error: Option<String>,
    },
    /// A cloud has not said what came of a call.
    CreationKnown {
        /// Name of the resource in the cloud.
        name: String,
        /// Why the last call failed.
        error: Option<String>,
    },
    /// A cloud ends it.
    Termination {
        /// Name of the resource in the cloud.
        name: String,
        /// Why the last call failed.
        error: Option<String>,
    },
    /// Machines are still in a placement group that is to be deleted.
    MachinesGone {
        /// Name of the fleet of the group.
        name: String,
        /// Number of machines that are still in the group.
        machines: usize,
    },
    /// A host of an SSH fleet is to be set up.
    HostPrepared,
    /// The server sets up the agent of a host.
    HostSetUp {
        /// Name of the instance.
        instance: String,
        /// Why the last attempt failed.
        error: Option<String>,
    },
    /// The server sets up a host anew that is in use: its agent is gone, or of another build.
    HostSetUpAgain {
        /// Name of the instance.
        instance: String,
        /// Why the last attempt failed.
        error: Option<String>,
    },
    /// The jobs of an instance that its cloud takes away are told to stop.
    JobsEndedBefore {
        /// Name of the instance.
        instance: String,
    },
    /// The server takes its agent and keys off a host.
    HostReleased {
        /// Name of the instance.
        instance: String,
        /// Why the last attempt failed.
        error: Option<String>,
    },
    /// The agent of a new instance has not answered yet.
    AgentReachable {
        /// Name of the instance.
        instance: String,
    },
    /// The agent answered before, and does not now.
    AgentReachableAgain {
        /// Name of the instance.
        instance: String,
        /// Why it is not reached.
        #[serde(default)]
        error: Option<String>,
    },
    /// A job that takes the idle instance before its `idle_duration` is over.
    JobBeforeIdleTimeout,
    /// The instance is to be ended.
    InstanceEnded,

    // Volumes
    /// A job that uses the volume before its `auto_cleanup_duration` is over.
    JobBeforeCleanup,
    /// Jobs have a volume that is to be deleted.
    VolumeUnused {
        /// Name of the volume.
        volume: String,
    },

    // Attachments of volumes
    /// Another instance is to be without the volume first.
    VolumeFree {
        /// Name of the volume.
        volume: String,
        /// Name of that instance.
        instance: String,
    },
    /// A cloud attaches a volume.
    VolumeAttached {
        /// Name of the volume.
        volume: String,
        /// Name of the instance.
        instance: String,
        /// Why the last call failed.
        error: Option<String>,
    },
    /// A cloud detaches a volume.
    VolumeDetached {
        /// Name of the volume.
        volume: String,
        /// Name of the instance.
        instance: String,
        /// Why the last call failed.
        error: Option<String>,
    },
    /// A container that was made with a volume is to end.
    VolumeReleased {
        /// Name of the volume.
        volume: String,
        /// Name of the instance.
        instance: String,
    },

    // Gateways
    /// No host of the fleet has room for a replica of the gateway.
    GatewayHost {
        /// Name of the fleet.
        fleet: String,
    },
    /// Replicas of the gateway do not answer yet.
    GatewayReplicas,
    /// The load balancer before the gateway is being made, or told which machines are behind it.
    GatewayLoadBalancer {
        /// Why it is not so yet.
        error: Option<String>,
    },
    /// The load balancer before the gateway is being removed.
    GatewayLoadBalancerRemoved {
        /// Why it is not gone yet.
        error: Option<String>,
    },
    /// The load balancer before a gateway still sends requests to the machine of the replica.
    GatewayTargetReleased,
    /// Replicas of the gateway are being taken off their hosts, or their machines end.
    GatewayReplicasEnded,

    // Fleets
    /// The pause before the next attempt to bring the fleet to its size.
    FleetSize {
        /// Number of that attempt.
        attempt: i64,
    },

    /// A text written by a version that had no kinds.
    Other {
        /// That text, which follows the words "waits for".
        text: String,
    },
}

impl WaitReason {
    /// What keeps a cloud or a host from doing what it is asked for, in words for users; `None`: nothing went wrong.
    pub fn trouble(&self) -> Option<String> {
        match self {
            Self::Creation { error: Some(_), .. }
            | Self::CreationKnown { error: Some(_), .. }
            | Self::Termination { error: Some(_), .. }
            | Self::HostSetUp { error: Some(_), .. }
            | Self::HostSetUpAgain { error: Some(_), .. }
            | Self::HostReleased { error: Some(_), .. }
            | Self::GatewayLoadBalancer { error: Some(_) }
            | Self::GatewayLoadBalancerRemoved { error: Some(_) }
            | Self::VolumeAttached { error: Some(_), .. }
            | Self::VolumeDetached { error: Some(_), .. } => Some(format!("Waits for {self}")),
            _ => None,
        }
    }

    /// Whether other nodes of the run are waited for.
    pub const fn is_for_nodes(&self) -> bool {
        matches!(self, Self::NodeRunning { .. } | Self::NodeAddress { .. })
    }

    /// The kind for clients, stable over versions. They need only that of a running job whose commands alone are awaited.
    pub const fn client_kind(&self) -> Option<&'static str> {
        match self {
            Self::Commands => Some(WAITING_FOR_COMMANDS),
            _ => None,
        }
    }
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Placement => f.write_str("a place to run"),
            Self::NewInstance { instance } => write!(f, "a new instance: {instance}"),
            Self::TaskAccepted { instance, error } => with_error(
                f,
                format_args!("the agent of {instance} to accept the job"),
                error.as_ref(),
            ),
            Self::TaskReport { instance } => write!(f, "news from the agent of {instance}"),
            Self::TaskPrepared => f.write_str("the task to be prepared"),
            Self::ImagePulled => f.write_str("the image to be pulled"),
            Self::ContainerCreated => f.write_str("the container to be created"),
            Self::ContainerPorts => f.write_str("the ports of the container"),
            Self::JobAccepted { error } => {
                with_error(f, format_args!("the container to accept the job"), error.as_ref())
            }
            Self::NodeRunning { node, others } => write!(f, "{} to run", and_others(node, *others)),
            Self::NodeAddress { node, others } => {
                write!(f, "{} to have an address", and_others(node, *others))
            }
            Self::JobStarted => f.write_str("the job to start"),
            Self::Commands => f.write_str("the commands to end"),
            Self::ProbeSucceeds { probe, others, error } => {
                let others = match others {
                    0 => String::new(),
                    1 => " and another one".to_owned(),
                    others => format!(" and {others} others"),
                };
                with_error(
                    f,
                    format_args!("its probe {probe}{others} to succeed"),
                    error.as_ref(),
                )
            }
            Self::WorkerAdded { error } => with_error(
                f,
                format_args!("the router to have it as a worker"),
                error.as_ref(),
            ),
            Self::RequestsFinished => f.write_str("the requests under way: they are finished first"),
            Self::OutputRead => f.write_str("clients to read the output of the job, which is over"),
            Self::LastOutput => f.write_str("the last output of the job"),
            Self::TaskRemoved { instance, error } => with_error(
                f,
                format_args!("the agent of {instance} to remove the job"),
                error.as_ref(),
            ),
            Self::JobEnded => f.write_str("the job to be ended"),
            Self::Jobs => f.write_str("its jobs"),
            Self::JobsEnded => f.write_str("its jobs to end"),
            Self::LastAttemptEnded => f.write_str("the jobs of the last attempt to end"),
            Self::NextAttempt => f.write_str("the next attempt after a failed one"),
            Self::Schedule => f.write_str("its schedule"),
            Self::Replicas => f.write_str("replicas to be asked for: `replicas` is 0"),
            Self::Requests => f.write_str("requests: replicas are started when some come"),
            Self::EndWithoutJobs => f.write_str("its end: its jobs cannot be made"),
            Self::JobsMade { deployment, error } => {
                write!(f, "the jobs of deployment {deployment}: {error}")
            }
            Self::Rollout { deployment, what } => {
                write!(f, "the roll-out of deployment {deployment}: {what}")
            }
            Self::CloudsAsked => f.write_str("the clouds to be asked"),
            Self::CloudAsked => f.write_str("the cloud to be asked"),
            Self::Offers => f.write_str("the offers of the clouds"),
            Self::Fleet => f.write_str("its fleet"),
            Self::ClusterMasterMade { instance } => {
                write!(f, "{instance}, the first instance of the cluster, to be made")
            }
            Self::ClusterMasterChosen => f.write_str("the first instance of the cluster to be chosen"),
            Self::Creation { name, error } => {
                with_error(f, format_args!("the cloud to make {name}"), error.as_ref())
            }
            Self::CreationKnown { name, error } => with_error(
                f,
                format_args!("the cloud to say what it has made of {name}"),
                error.as_ref(),
            ),
            Self::Termination { name, error } => {
                with_error(f, format_args!("the cloud to end {name}"), error.as_ref())
            }
            Self::MachinesGone { name, machines } => {
                write!(f, "{machines} machines to leave the placement group of {name}")
            }
            Self::HostPrepared => f.write_str("its host to be prepared"),
            Self::GatewayHost { fleet } => {
                write!(
                    f,
                    "a host of fleet {fleet} that can be used and has no gateway yet"
                )
            }
            Self::GatewayReplicas => f.write_str("its replicas to answer"),
            Self::GatewayLoadBalancer { error } => {
                with_error(f, format_args!("its load balancer"), error.as_ref())
            }
            Self::GatewayLoadBalancerRemoved { error } => {
                with_error(f, format_args!("its load balancer to be removed"), error.as_ref())
            }
            Self::GatewayTargetReleased => f.write_str("the load balancer to send it no requests any more"),
            Self::GatewayReplicasEnded => f.write_str("its replicas to end"),
            Self::HostSetUp { instance, error } => with_error(
                f,
                format_args!("the host of {instance} to be set up"),
                error.as_ref(),
            ),
            Self::HostSetUpAgain { instance, error } => with_error(
                f,
                format_args!("the host of {instance} to be set up again"),
                error.as_ref(),
            ),
            Self::JobsEndedBefore { instance } => {
                write!(f, "its jobs to end: the cloud takes {instance} away")
            }
            Self::HostReleased { instance, error } => with_error(
                f,
                format_args!("the agent to be taken off the host of {instance}"),
                error.as_ref(),
            ),
            Self::AgentReachable { instance } => {
                write!(f, "the agent of {instance} to be reachable")
            }
            Self::AgentReachableAgain { instance, error } => with_error(
                f,
                format_args!("the agent of {instance} to be reachable again"),
                error.as_ref(),
            ),
            Self::JobBeforeIdleTimeout => f.write_str("a job, until it has been idle for too long"),
            Self::JobBeforeCleanup => {
                f.write_str("a job that uses it, until it has been unused for too long")
            }
            Self::VolumeUnused { volume } => write!(f, "the jobs that use volume {volume} to end"),
            Self::VolumeFree { volume, instance } => {
                write!(f, "volume {volume} to be detached from {instance}")
            }
            Self::VolumeAttached {
                volume,
                instance,
                error,
            } => with_error(
                f,
                format_args!("the cloud to attach volume {volume} to {instance}"),
                error.as_ref(),
            ),
            Self::VolumeDetached {
                volume,
                instance,
                error,
            } => with_error(
                f,
                format_args!("the cloud to detach volume {volume} from {instance}"),
                error.as_ref(),
            ),
            Self::VolumeReleased { volume, instance } => {
                write!(f, "{instance}, which was made with volume {volume}, to end")
            }
            Self::InstanceEnded => f.write_str("the instance to be ended"),
            Self::FleetSize { attempt } => {
                write!(f, "attempt {attempt} to bring the fleet to its size")
            }
            Self::Other { text } => f.write_str(text),
        }
    }
}

fn and_others(node: &str, others: usize) -> String {
    match others {
        0 => node.to_owned(),
        1 => format!("{node} and another node"),
        _ => format!("{node} and {others} other nodes"),
    }
}

fn with_error(
    f: &mut fmt::Formatter<'_>,
    awaited: fmt::Arguments<'_>,
    error: Option<&String>,
) -> fmt::Result {
    match error {
        Some(error) => write!(f, "{awaited} (last attempt: {error})"),
        None => f.write_fmt(awaited),
    }
}

/// A wait: no state is waited in without a deadline and a reason that a user can read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wait {
    /// When the wait ends badly; `None` where the reference waits for ever on purpose (a running job without
    /// `max_duration`).
    pub deadline: Option<Time>,
    /// When to look again although nothing woke us.
    pub wake_at: Option<Time>,
    /// What is waited for; `None`: nothing.
    pub reason: Option<WaitReason>,
}

impl Wait {
    /// Until `deadline`, for `reason`.
    pub const fn until(deadline: Time, reason: WaitReason) -> Self {
        Self {
            deadline: Some(deadline),
            wake_at: Some(deadline),
            reason: Some(reason),
        }
    }

    /// For `reason`, without a deadline: what ends the wait wakes the entity.
    pub const fn indefinite(reason: WaitReason) -> Self {
        Self {
            deadline: None,
            wake_at: None,
            reason: Some(reason),
        }
    }

    /// To be looked at once more at `now`, because the next step follows at once.
    pub const fn briefly(now: Time, reason: WaitReason) -> Self {
        Self {
            deadline: None,
            wake_at: Some(now),
            reason: Some(reason),
        }
    }

    /// Nothing is waited for.
    pub const fn none() -> Self {
        Self {
            deadline: None,
            wake_at: None,
            reason: None,
        }
    }

    /// This wait as it is `stored`, if that is for the same reason and its time is still to come. A time that moved with each
    /// look would be written each time, and what is written is looked at again.
    #[must_use]
    pub fn or_stored(self, stored: &Self, now: Time) -> Self {
        let is_same = stored.reason == self.reason && stored.wake_at.is_some_and(|at| at > now);
        if is_same { stored.clone() } else { self }
    }

    /// The same, looked at again at `at` if that is earlier.
    #[must_use]
    pub fn or_at(mut self, at: Time) -> Self {
        self.wake_at = Some(self.wake_at.map_or(at, |wake| wake.min(at)));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_survive_storing_and_read_as_sentences() {
        let reasons = [
            (WaitReason::Placement, "a place to run"),
            (
                WaitReason::TaskAccepted {
                    instance: "local-0".to_owned(),
                    error: Some("503".to_owned()),
                },
                "the agent of local-0 to accept the job (last attempt: 503)",
            ),
            (
                WaitReason::NodeAddress {
                    node: "train-1-0".to_owned(),
                    others: 2,
                },
                "train-1-0 and 2 other nodes to have an address",
            ),
            (
                WaitReason::FleetSize { attempt: 2 },
                "attempt 2 to bring the fleet to its size",
            ),
            (
                WaitReason::Other {
                    text: "rain".to_owned(),
                },
                "rain",
            ),
        ];
        for (reason, text) in reasons {
            let stored = serde_json::to_string(&reason).unwrap();
            assert_eq!(
                serde_json::from_str::<WaitReason>(&stored).unwrap(),
                reason,
                "{stored}"
            );
            assert_eq!(reason.to_string(), text);
        }
    }
}
