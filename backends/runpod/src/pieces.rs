//! What pods, clusters and volumes have in common: how long they take, what is noted of them, how they are reached.

use std::time::Duration;

use dstack_compute::{CONTAINER_SSH_PORT, Call, ComputeError, LISTED_WITHIN, Sign};
use dstack_http::ApiError;
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::JobProvisioningData;
use dstack_units::Time;
use serde::{Deserialize, Serialize};

use crate::client::{Pod, PodStatus};

/// Longest name of anything.
pub(crate) const NAME_LENGTH: usize = 60;

/// The user as which containers run, see `requests::ENVIRONMENT`.
const USER: &str = "root";

/// Pause while a pod starts: its image is downloaded, which takes minutes.
pub(crate) const STARTS_INTERVAL: Duration = Duration::from_secs(10);

/// Pause while something is being taken away.
pub(crate) const ENDS_INTERVAL: Duration = Duration::from_secs(5);

/// What is noted of a pod or cluster that was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Made {
    pub(crate) id: String,
    /// When that became known: soon afterwards it may not be listed yet.
    pub(crate) at: Time,
}

impl Made {
    pub(crate) fn now(id: String, call: &Call<'_>) -> Self {
        Self { id, at: call.now() }
    }

    /// Whether the API may not know it yet.
    pub(crate) fn is_new(&self, call: &Call<'_>) -> bool {
        call.now() < self.at + LISTED_WITHIN
    }
}

pub(crate) fn told<T>(answer: Result<T, ApiError>) -> Result<T, ComputeError> {
    answer.map_err(|error| dstack_backend::compute_error(&error))
}

/// Why a pod will never work (again).
pub(crate) fn end_of(pod: &Pod) -> Option<&'static str> {
    match pod.status {
        PodStatus::Exited => Some("the container has ended on Runpod"),
        PodStatus::Error => Some("Runpod cannot run the container"),
        PodStatus::Terminated => Some("Runpod has ended the pod"),
        PodStatus::Provisioning | PodStatus::Starting | PodStatus::Running | PodStatus::Other => None,
    }
}

/// What is waited for until a pod can be reached.
pub(crate) fn stage_of(pod: &Pod) -> &'static str {
    match pod.status {
        PodStatus::Provisioning => "a host for the pod",
        PodStatus::Running => "an address of the pod",
        _ => "the image is pulled and the container starts",
    }
}

/// Where the SSH server of a pod is reached; `None`: not yet.
pub(crate) fn address(pod: &Pod) -> Option<(&str, i64)> {
    let ports = pod.runtime.as_ref()?.ports.as_ref()?;
    let port = ports
        .iter()
        .find(|port| port.private == Some(i64::from(CONTAINER_SSH_PORT)))?;
    Some((port.ip.as_deref()?, port.public?))
}

/// Address in the network of the pod's cluster.
pub(crate) fn cluster_ip(pod: &Pod) -> Option<&str> {
    pod.cluster.as_ref()?.ip.as_deref()
}

/// How a pod is that was at this place.
pub(crate) fn sign_of(place: &JobProvisioningData, pod: &Pod) -> Sign<JobProvisioningData> {
    if let Some(end) = end_of(pod) {
        return Sign::Lost(end.to_owned());
    }
    match address(pod) {
        Some((ip, port)) if place.hostname.as_deref() != Some(ip) || place.ssh_port != Some(port) => {
            Sign::Moved(JobProvisioningData {
                hostname: Some(ip.to_owned()),
                ssh_port: Some(port),
                ..place.clone()
            })
        }
        _ => Sign::Well,
    }
}

/// The place of a pod that can be reached; `None`: not yet. Members of clusters need an address in their cluster as well.
pub(crate) fn place_of(pod: &Pod, offer: &InstanceOfferWithAvailability) -> Option<JobProvisioningData> {
    let (ip, port) = address(pod)?;
    let internal_ip = match &pod.cluster {
        Some(_) => Some(cluster_ip(pod)?.to_owned()),
        None => None,
    };
    Some(JobProvisioningData {
        backend: offer.backend,
        base_backend: None,
        instance_type: (*offer.instance).clone(),
        instance_id: pod.id.clone(),
        hostname: Some(ip.to_owned()),
        internal_ip,
        public_ip_enabled: true,
        instance_network: None,
        region: offer.region.to_string(),
        availability_zone: None,
        reservation: None,
        price: offer.price,
        username: USER.to_owned(),
        ssh_port: Some(port),
        dockerized: false,
        ssh_proxy: None,
        backend_data: None,
        gpu_driver: None,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use super::*;

    pub(crate) fn pod(more: &Value) -> Pod {
        let mut value = json!({"id": "8r2k1m4n6pxyz0", "name": "dstack-x", "status": "RUNNING", "cost": 0.69,
            "dataCenterId": "US-TX-3", "createdAt": "2026-10-01T12:00:00Z",
            "runtime": {"uptime": 12, "ports": [
                {"private": 22, "public": 22022, "type": "tcp", "ip": "192.0.2.2"},
                {"private": 10022, "public": 43210, "type": "tcp", "ip": "192.0.2.7"}]}});
        for (name, field) in more.as_object().unwrap() {
            value[name] = field.clone();
        }
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_pod_is_reached_where_its_port_leads() {
        let port = |public: Value, ip: Value| json!({"runtime": {"ports": [{"private": 10022, "public": public, "ip": ip}]}});
        for (more, reached) in [
            (json!({}), Some(("192.0.2.7", 43210))),
            (json!({"runtime": null}), None),
            (json!({"runtime": {}}), None),
            (json!({"runtime": {"ports": []}}), None),
            (port(json!(null), json!("192.0.2.7")), None),
            (port(json!(43210), json!(null)), None),
        ] {
            assert_eq!(address(&pod(&more)), reached, "{more}");
        }
    }

    #[test]
    fn what_is_over_is_told() {
        for (status, over) in [
            ("PROVISIONING", false),
            ("STARTING", false),
            ("RUNNING", false),
            ("EXITED", true),
            ("ERROR", true),
            ("TERMINATED", true),
            ("MIGRATING", false),
        ] {
            assert_eq!(
                end_of(&pod(&json!({"status": status}))).is_some(),
                over,
                "{status}"
            );
        }
    }
}
