//! Gateways: a pod with an SSH server, to which the server brings the gateway, and a service of type `LoadBalancer`, by which it is
//! reached. See <https://kubernetes.io/docs/concepts/services-networking/service/#loadbalancer>.

mod manifests;

use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::look_by_place;
use dstack_compute::{
    Call, ComputeError, GatewayMachine, GatewayRequest, Known as KnownGateway, Lifecycle, Removal, Sign, Step,
};
use dstack_model::gateways::GatewayReplicaProvisioningData;
use dstack_units::Time;
use futures_util::future::try_join_all;

use crate::client::{Cluster, Kind};
use crate::homes::Home;
use crate::labels::{GATEWAY, POD_NAME_LENGTH, SERVICE_SUFFIX, of_request};
use crate::objects::{Pod, Service};
use crate::pieces::{Piece, Pieces};
use crate::places::{PlaceData, forget_home};
use crate::{Known, Kubernetes, state};

/// Under which the pod and the service are noted.
const POD: &str = "pod";
const SERVICE: &str = "service";

/// Pause while the pod starts, or its service has no address: both take from seconds to minutes.
const STARTS_INTERVAL: Duration = Duration::from_secs(5);

/// An SSH server that does not listen so long after its pod was made will not: packages are installed within a minute or two.
const LISTENS_WITHIN: Duration = Duration::from_secs(8 * 60);

/// A service that has no address so long after it was made will have none: clouds take up to three minutes.
const ADDRESS_WITHIN: Duration = Duration::from_secs(5 * 60);

/// Of the last line of a container, as much is told.
const LONGEST_LINE: usize = 300;

#[async_trait]
impl Lifecycle<GatewayMachine> for Kubernetes {
    async fn ensure(
        &self,
        want: &GatewayRequest,
        call: &Call<'_>,
    ) -> Result<Step<GatewayReplicaProvisioningData>, ComputeError> {
        if !want.is_public {
            return Err(ComputeError::Unsupported("a gateway without a public address"));
        }
        if let Some(instance_type) = &want.instance_type {
            return Err(ComputeError::Refused(format!(
                "the cluster decides on which node a gateway is, and not `instance_type: {instance_type}`: leave that out"
            )));
        }
        let known = self.region_of_gateway(&want.region)?;
        let image = self.gateway_image.as_deref().unwrap_or(manifests::IMAGE);
        known.ensure_gateway(want, image, call).await
    }

    async fn look(
        &self,
        known: &[KnownGateway<GatewayMachine>],
    ) -> Result<Vec<Option<Sign<GatewayReplicaProvisioningData>>>, ComputeError> {
        look_by_place(known, site, |(region, home), known| async move {
            let region = self.region_of_gateway(region)?;
            let cluster = &region.cluster_of(home.as_ref()).await?;
            try_join_all(known.into_iter().map(|known| sign_of(cluster, known))).await
        })
        .await
    }

    async fn remove(
        &self,
        known: &KnownGateway<GatewayMachine>,
        call: &Call<'_>,
    ) -> Result<Removal, ComputeError> {
        let region = self.region_of_gateway(&known.site)?;
        let data = data_of(known.place.as_ref());
        let cluster = &region.home_of(call, &data).await?;
        let pieces = Pieces {
            cluster,
            marks: &known.marks,
            call,
        };
        let made = known.place.as_ref().map(|place| place.instance_id.clone());
        let name = made.clone().unwrap_or_else(|| known.marks.name(POD_NAME_LENGTH));
        let all = [
            (SERVICE, Kind::Service, service_name(&name), None),
            (POD, Kind::Pod, name, data.uid),
        ];
        match pieces.remove_all(all, made.is_some()).await? {
            Removal::Gone => forget_home(call).await,
            underway => Ok(underway),
        }
    }
}

fn service_name(pod: &str) -> String {
    format!("{pod}{SERVICE_SUFFIX}")
}

/// Where a gateway is to be looked for.
fn site(known: &KnownGateway<GatewayMachine>) -> Option<(&str, Option<Home>)> {
    let place = known.place.as_ref()?;
    Some((known.site.as_str(), data_of(Some(place)).home))
}

fn data_of(place: Option<&GatewayReplicaProvisioningData>) -> PlaceData {
    PlaceData::read(place.and_then(|place| place.backend_data.as_deref()))
}

async fn sign_of(
    cluster: &Cluster,
    known: &KnownGateway<GatewayMachine>,
) -> Result<Sign<GatewayReplicaProvisioningData>, ComputeError> {
    let Some(place) = &known.place else {
        return Ok(Sign::Well);
    };
    let piece = Piece::long_ago(place.instance_id.clone(), data_of(Some(place)).uid);
    let pod: Option<Pod> = cluster.get(Kind::Pod, &piece.name).await?;
    let pod = pod.filter(|pod| piece.is(&pod.metadata));
    let service = cluster.get(Kind::Service, &service_name(&piece.name)).await?;
    Ok(sign(place, pod.as_ref(), service.as_ref()))
}

/// How a gateway is by its pod and its service.
fn sign(
    place: &GatewayReplicaProvisioningData,
    pod: Option<&Pod>,
    service: Option<&Service>,
) -> Sign<GatewayReplicaProvisioningData> {
    let Some(pod) = pod else {
        return Sign::Lost("the cluster does not have the pod any more".to_owned());
    };
    if let Some(end) = state::end_of(pod) {
        return Sign::Lost(end);
    }
    let Some(service) = service.filter(|service| service.metadata.deletion_timestamp.is_none()) else {
        return Sign::Lost("somebody has deleted the service by which it is reached".to_owned());
    };
    if let Some(why) = state::ending(pod) {
        return Sign::Ending { at: None, why };
    }
    match service.address() {
        Some(address) if address != place.ip_address => Sign::Moved(GatewayReplicaProvisioningData {
            ip_address: address.to_owned(),
            ..place.clone()
        }),
        _ => Sign::Well,
    }
}

/// How far a gateway is.
#[derive(Debug, Clone, PartialEq)]
enum Progress {
    /// It is reached at this address.
    Reached(String),
    /// What is waited for.
    Waits(String),
}

/// How far a gateway is by its pod and its service. `made_at`: when these were made, by our clock.
fn progress(
    (pod, service): (&Pod, &Service),
    (pod_made_at, service_made_at): (Time, Time),
    now: Time,
) -> Result<Progress, ComputeError> {
    if let Some(obstacle) = state::obstacle(pod, pod_made_at, now) {
        return Err(with_last_line(obstacle, pod));
    }
    let address = service.address();
    if address.is_none() && now >= service_made_at + ADDRESS_WITHIN {
        return Err(ComputeError::Broken(format!(
            "the service {} of type LoadBalancer has no address {} s after it was made. The cluster needs a controller that gives it one, such \
             as that of its cloud or MetalLB: `kubectl describe service {}` says what it does",
            service.metadata.name,
            ADDRESS_WITHIN.as_secs(),
            service.metadata.name,
        )));
    }
    if !state::is_ready(pod) {
        if now >= pod_made_at + LISTENS_WITHIN {
            let late = ComputeError::Broken(format!(
                "the SSH server of the pod {} does not listen {} s after the pod was made: `kubectl logs {}` says why",
                pod.metadata.name,
                LISTENS_WITHIN.as_secs(),
                pod.metadata.name,
            ));
            return Err(with_last_line(late, pod));
        }
        return Ok(Progress::Waits(match state::is_running(pod) {
            true => "the SSH server of the pod".to_owned(),
            false => state::doing(pod),
        }));
    }
    Ok(match address {
        Some(address) => Progress::Reached(address.to_owned()),
        None => Progress::Waits("an address from the load balancer of the cluster".to_owned()),
    })
}

/// With what the container said last before it ended.
fn with_last_line(error: ComputeError, pod: &Pod) -> ComputeError {
    match (error, state::last_line(pod)) {
        (ComputeError::Broken(text), Some(line)) => {
            let line: String = line.chars().take(LONGEST_LINE).collect();
            ComputeError::Broken(format!("{text}. The container said last: {line}"))
        }
        (error, _) => error,
    }
}

impl Kubernetes {
    /// A gateway names a region also where the only cluster has no name: any.
    fn region_of_gateway(&self, region: &str) -> Result<&Known, ComputeError> {
        let named = self.region(region);
        named.or_else(|error| self.region("").map_err(|_| error))
    }
}

impl Known {
    async fn ensure_gateway(
        &self,
        want: &GatewayRequest,
        image: &str,
        call: &Call<'_>,
    ) -> Result<Step<GatewayReplicaProvisioningData>, ComputeError> {
        let name = &want.marks.name(POD_NAME_LENGTH);
        let service_name = &service_name(name);
        let (home, cluster) = self.make_home(call).await?;
        let pieces = Pieces {
            cluster: &cluster,
            marks: &want.marks,
            call,
        };
        let labels = &of_request(GATEWAY, name, &want.marks, &want.owner);
        let object = || async move {
            let capacity = self.capacity().await?;
            Ok(manifests::pod(want, name, image, labels, &capacity.nodes))
        };
        let made = pieces.make(POD, Kind::Pod, name, object).await?;
        let object = || async move { Ok(manifests::service(service_name, name, labels)) };
        let led = pieces.make(SERVICE, Kind::Service, service_name, object).await?;

        let deleted = |what: &str| ComputeError::Broken(format!("somebody has deleted the {what}"));
        let pod: Option<Pod> = cluster.get(Kind::Pod, name).await?;
        let pod = pod.filter(|pod| made.is(&pod.metadata));
        let pod = pod.ok_or_else(|| deleted(POD))?;
        let service: Option<Service> = cluster.get(Kind::Service, service_name).await?;
        let service = service.filter(|service| led.is(&service.metadata));
        let service = service.ok_or_else(|| deleted(SERVICE))?;
        Ok(match progress((&pod, &service), (made.at, led.at), call.now())? {
            Progress::Waits(doing) => Step::Underway {
                seen: None,
                doing,
                again: STARTS_INTERVAL,
            },
            Progress::Reached(address) => Step::Ready(place(want, &pod, home, address)),
        })
    }
}

fn place(want: &GatewayRequest, pod: &Pod, home: Home, address: String) -> GatewayReplicaProvisioningData {
    let data = PlaceData {
        home: Some(home),
        uid: Some(pod.metadata.uid.clone()),
        ..PlaceData::default()
    };
    GatewayReplicaProvisioningData {
        instance_id: pod.metadata.name.clone(),
        ip_address: address,
        region: want.region.clone(),
        availability_zone: None,
        backend_data: data.write(),
    }
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value)] // literals
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(status: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "gate", "uid": "u"}, "status": status})).unwrap()
    }

    fn service(ingress: Value) -> Service {
        let status = json!({"loadBalancer": {"ingress": ingress}});
        serde_json::from_value(json!({"metadata": {"name": "gate-service"}, "status": status})).unwrap()
    }

    fn listening() -> Pod {
        pod(
            json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"state": {"running": {}}}]}),
        )
    }

    fn starting() -> Pod {
        pod(
            json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}],
            "containerStatuses": [{"state": {"running": {}}}]}),
        )
    }

    fn at(pod: &Pod, service: &Service, seconds: u64) -> Result<Progress, ComputeError> {
        let made = Time::from_millis(1_000_000);
        progress((pod, service), (made, made), made + Duration::from_secs(seconds))
    }

    fn told(answer: Result<Progress, ComputeError>) -> String {
        match answer.unwrap_err() {
            ComputeError::Broken(text) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn it_is_reached_once_it_listens_and_has_an_address() {
        let (ip, name, none) = (
            service(json!([{"ip": "203.0.113.7"}])),
            service(json!([{"hostname": "a1-2.elb.example.com"}])),
            service(json!([])),
        );
        let reached = |address: &str| Ok(Progress::Reached(address.to_owned()));
        assert_eq!(at(&listening(), &ip, 1), reached("203.0.113.7"));
        assert_eq!(at(&listening(), &name, 1), reached("a1-2.elb.example.com"));
        for (pod, service, seconds) in [(listening(), &none, 299), (starting(), &ip, 479)] {
            let waits = at(&pod, service, seconds);
            assert!(matches!(waits, Ok(Progress::Waits(_))), "{waits:?}");
        }
    }

    #[test]
    fn what_is_waited_for_in_vain_is_told_with_a_remedy() {
        let none = service(json!([]));
        let text = told(at(&listening(), &none, 300));
        assert!(
            text.contains("gate-service") && text.contains("MetalLB"),
            "{text}"
        );
        let text = told(at(&starting(), &service(json!([{"ip": "203.0.113.7"}])), 480));
        assert!(text.contains("`kubectl logs gate`"), "{text}");
        let crashing = pod(json!({"phase": "Running", "containerStatuses": [{
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s"}},
            "lastState": {"terminated": {"exitCode": 11, "reason": "Error", "message": "Err:1 no route\ndstack: there is no sshd\n"}}}]}));
        let text = told(at(&crashing, &none, 120));
        assert_eq!(
            text,
            "CrashLoopBackOff: back-off 20s. The container said last: dstack: there is no sshd"
        );
    }

    #[test]
    fn what_is_gone_is_lost_and_what_has_another_address_has_moved() {
        let place = GatewayReplicaProvisioningData {
            instance_id: "gate".to_owned(),
            ip_address: "203.0.113.7".to_owned(),
            region: "alpha".to_owned(),
            availability_zone: None,
            backend_data: None,
        };
        let here = service(json!([{"ip": "203.0.113.7"}]));
        let there = service(json!([{"ip": "203.0.113.8"}]));
        let evicted = pod(json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}));
        let lost = |text: &str| Sign::Lost(text.to_owned());
        assert_eq!(sign(&place, Some(&listening()), Some(&here)), Sign::Well);
        assert_eq!(
            sign(&place, Some(&evicted), Some(&here)),
            lost("Evicted: low on memory")
        );
        assert!(matches!(sign(&place, None, Some(&here)), Sign::Lost(_)));
        assert!(matches!(sign(&place, Some(&listening()), None), Sign::Lost(_)));
        // A load balancer that is being changed has none for a moment.
        assert_eq!(
            sign(&place, Some(&listening()), Some(&service(json!([])))),
            Sign::Well
        );
        let Sign::Moved(moved) = sign(&place, Some(&listening()), Some(&there)) else {
            panic!("it has moved");
        };
        assert_eq!(moved.ip_address, "203.0.113.8");
    }
}
