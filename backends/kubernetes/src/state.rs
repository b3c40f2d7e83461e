//! What the state of a pod means. See <https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/>.

use std::time::Duration;

use dstack_compute::ComputeError;
use dstack_units::Time;

use crate::objects::{Condition, Pod};

/// A pod that fits nowhere waits so long for somebody to end, or for a new node, since it was made.
const SCHEDULED_WITHIN: Duration = Duration::from_secs(60);

/// An image is pulled again, and a container started again, for so long since the pod was made: registries are away for a moment
/// sometimes.
const STARTED_WITHIN: Duration = Duration::from_secs(120);

/// Reasons for which a container waits, and will for ever.
const HOPELESS: [&str; 5] = [
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
];

/// Reasons for which a container waits until it is tried again.
const TRIED_AGAIN: [&str; 2] = ["ImagePullBackOff", "CrashLoopBackOff"];

/// Why a pod will never work (again); `None`: it does, or may.
pub(crate) fn end_of(pod: &Pod) -> Option<String> {
    let status = &pod.status;
    if !matches!(status.phase.as_str(), "Failed" | "Succeeded") {
        let leaves = pod.metadata.deletion_timestamp.as_ref();
        return leaves.map(|_| "the pod is being deleted".to_owned());
    }
    let ended = status
        .container_statuses
        .iter()
        .find_map(|one| one.state.terminated.as_ref());
    Some(match ended {
        _ if !status.reason.is_empty() => said(&status.reason, &status.message),
        Some(ended) => format!(
            "the container has ended with exit code {}: {}",
            ended.exit_code,
            said(&ended.reason, &ended.message)
        ),
        None => format!("the pod is in phase {}", status.phase),
    })
}

/// That a node will evict it, before it has.
pub(crate) fn ending(pod: &Pod) -> Option<String> {
    let condition = condition(pod, "DisruptionTarget").filter(|one| one.status == "True")?;
    Some(said(&condition.reason, &condition.message))
}

/// What stands in the way of a pod that does not run. `since`: when it was made, by our clock: that of the cluster may be another.
pub(crate) fn obstacle(pod: &Pod, since: Time, now: Time) -> Option<ComputeError> {
    if let Some(end) = end_of(pod) {
        return Some(ComputeError::Broken(end));
    }
    let is_late = |limit: Duration| now >= since + limit;
    let unplaced = condition(pod, "PodScheduled").filter(|one| one.status == "False");
    if let Some(unplaced) = unplaced
        && is_late(SCHEDULED_WITHIN)
    {
        return Some(ComputeError::NoCapacity(said(
            &unplaced.reason,
            &unplaced.message,
        )));
    }
    let mut waiting = pod
        .status
        .container_statuses
        .iter()
        .filter_map(|one| one.state.waiting.as_ref());
    let stuck = waiting.find(|one| {
        HOPELESS.contains(&one.reason.as_str())
            || (TRIED_AGAIN.contains(&one.reason.as_str()) && is_late(STARTED_WITHIN))
    });
    stuck.map(|stuck| ComputeError::Broken(said(&stuck.reason, &stuck.message)))
}

/// Whether a pod runs, and its containers with it: one that crashes again and again is in the same phase.
pub(crate) fn is_running(pod: &Pod) -> bool {
    let mut states = pod.status.container_statuses.iter().map(|one| &one.state);
    pod.status.phase == "Running" && states.all(|state| state.waiting.is_none())
}

/// Whether the probe of a pod that runs has found what it looks for.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|one| one.status == "True")
}

/// What a container said last before it ended and was started again, where its pod asks for that.
pub(crate) fn last_line(pod: &Pod) -> Option<&str> {
    let mut ended = pod
        .status
        .container_statuses
        .iter()
        .filter_map(|one| one.last_state.terminated.as_ref());
    let lines = ended.next()?.message.lines();
    lines.map(str::trim).rfind(|line| !line.is_empty())
}

/// What is waited for.
pub(crate) fn doing(pod: &Pod) -> String {
    let waiting = pod
        .status
        .container_statuses
        .iter()
        .find_map(|one| one.state.waiting.as_ref());
    match (&pod.spec.node_name, waiting) {
        (None, _) => "a node for the pod".to_owned(),
        (_, Some(waiting)) if !waiting.reason.is_empty() => said(&waiting.reason, &waiting.message),
        _ => "the pod starts".to_owned(),
    }
}

fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a Condition> {
    pod.status.conditions.iter().find(|one| one.kind == kind)
}

fn said(reason: &str, message: &str) -> String {
    match message.is_empty() {
        true => reason.to_owned(),
        false => format!("{reason}: {message}"),
    }
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value)] // literals
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(status: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "status": status})).unwrap()
    }

    #[test]
    fn what_is_stuck_is_told_once_it_is_certain() {
        let made = "2026-10-01T12:00:00Z".parse::<Time>().unwrap();
        let obstacle = |pod: &Pod, seconds: u64| obstacle(pod, made, made + Duration::from_secs(seconds));
        // The cluster's clock is an hour behind.
        let unplaced = pod(
            json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/2 nodes are available", "lastTransitionTime": "2026-10-01T11:00:00Z"}]}),
        );
        assert_eq!(obstacle(&unplaced, 59), None);
        assert_eq!(
            obstacle(&unplaced, 60),
            Some(ComputeError::NoCapacity(
                "Unschedulable: 0/2 nodes are available".to_owned()
            ))
        );
        let waiting = |reason: &str| {
            pod(
                json!({"phase": "Pending", "startTime": "2026-10-01T11:00:00Z", "containerStatuses": [{"state": {"waiting": {"reason": reason}}}]}),
            )
        };
        for reason in ["ImagePullBackOff", "CrashLoopBackOff"] {
            assert_eq!(obstacle(&waiting(reason), 119), None);
            assert!(matches!(
                obstacle(&waiting(reason), 120),
                Some(ComputeError::Broken(_))
            ));
        }
        assert!(matches!(
            obstacle(&waiting("InvalidImageName"), 1),
            Some(ComputeError::Broken(_))
        ));
        assert_eq!(obstacle(&waiting("ContainerCreating"), 600), None);
    }

    #[test]
    fn a_container_that_crashes_again_and_again_does_not_run() {
        let running =
            |state: Value| pod(json!({"phase": "Running", "containerStatuses": [{"state": state}]}));
        assert!(is_running(&running(json!({"running": {}}))));
        assert!(!is_running(&running(
            json!({"waiting": {"reason": "CrashLoopBackOff"}})
        )));
        assert!(!is_running(&pod(json!({"phase": "Pending"}))));
    }

    #[test]
    fn what_is_over_is_told_with_its_reason() {
        for (status, expected) in [
            (
                json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}),
                Some("Evicted: low on memory"),
            ),
            (
                json!({"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}]}),
                Some("the container has ended with exit code 137: OOMKilled"),
            ),
            (json!({"phase": "Running"}), None),
        ] {
            assert_eq!(end_of(&pod(status.clone())).as_deref(), expected, "{status}");
        }
    }
}
