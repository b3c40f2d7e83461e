//! Gateways on Kubernetes: a pod, and a service by which it is reached.

use std::sync::Arc;
use std::time::Duration;

use dstack_backend_kit::{Cloud, Driver, Subject, checks, checks_of, gateway};
use dstack_compute::{ComputeError, GatewayMachine, OwnedKind, Sign};
use dstack_emulator_kubernetes::{Balancers, Kubernetes};
use dstack_model::gateways::GatewayReplicaProvisioningData;
use serde_json::{Value, json};

use crate::kubernetes::{cloud, cluster, emulator, move_beta, node, nodes};

const REGION: &str = "alpha";

async fn one_gateway() -> (Cloud, Subject<GatewayMachine>) {
    let (cloud, _) = cluster();
    let subject = gateway(&cloud, REGION);
    (cloud, subject)
}

async fn two_gateways() -> (Cloud, Vec<Subject<GatewayMachine>>) {
    let (cloud, _) = cluster();
    let subjects = vec![gateway(&cloud, REGION), gateway(&cloud, REGION)];
    (cloud, subjects)
}

checks_of!(gateways: one_gateway, two_gateways);

/// The pod and the service of a gateway.
fn pieces(emulator: &Kubernetes, place: &GatewayReplicaProvisioningData) -> (Value, Value) {
    let name = &place.instance_id;
    let pod = emulator.object("pods", name).unwrap();
    let service = emulator.object("services", &format!("{name}-service")).unwrap();
    (pod, service)
}

#[tokio::test(start_paused = true)]
async fn a_gateway_is_a_pod_behind_a_load_balancer() {
    let (cloud, emulator) = cluster();
    let subject = gateway(&cloud, REGION);
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    let (pod, service) = pieces(&emulator, &place);
    assert_eq!(service["spec"]["type"], "LoadBalancer");
    let ports = service["spec"]["ports"].as_array().unwrap().iter();
    let ports: Vec<&Value> = ports.map(|port| &port["port"]).collect();
    assert_eq!(ports, [22, 80, 443]);
    let (label, value) = service["spec"]["selector"]
        .as_object()
        .unwrap()
        .iter()
        .next()
        .unwrap();
    assert_eq!(pod["metadata"]["labels"][label], *value);
    assert_eq!(
        place.ip_address,
        service["status"]["loadBalancer"]["ingress"][0]["ip"]
    );
    assert_eq!(place.region, REGION);

    let container = &pod["spec"]["containers"][0];
    assert_eq!(container["image"], "ubuntu:22.04");
    let script = container["args"][1].as_str().unwrap();
    assert!(script.contains(&subject.want.authorized_keys[0]), "{script}");
    // A container that is started again finds its host key and the gateway's state.
    for volume in pod["spec"]["volumes"].as_array().unwrap() {
        assert_eq!(volume["emptyDir"], json!({}));
    }
    let mounts = container["volumeMounts"].as_array().unwrap().iter();
    let mounts: Vec<&Value> = mounts.map(|mount| &mount["mountPath"]).collect();
    assert_eq!(mounts, ["/var/lib/dstack-gateway", "/var/lib/dstack-gateway-ssh"]);
    assert!(pod["spec"]["restartPolicy"].is_null(), "always");
    assert_eq!(pod["spec"]["automountServiceAccountToken"], false);
    assert_eq!(pod["spec"]["tolerations"], json!([]));
    let labels = &pod["metadata"]["labels"];
    assert_eq!(labels["app.kubernetes.io/name"], "dstack-gateway");
    assert_eq!(labels["team"], "vision");
}

#[tokio::test(start_paused = true)]
async fn the_image_is_the_configured_one_and_the_address_may_be_a_name() {
    let guarded = json!({"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]});
    let emulator = emulator(vec![node("gpu-1", &[("/spec", guarded)])], Duration::ZERO);
    emulator.set_balancers(Balancers::Names);
    let mut cloud = cloud(&emulator, "team", &json!([REGION]));
    cloud.config["gateway_image"] = "registry.example/gateway:1".into();
    let place = Driver::new(&cloud).make(&gateway(&cloud, REGION)).await.unwrap();
    let (pod, _) = pieces(&emulator, &place);
    assert_eq!(
        pod["spec"]["containers"][0]["image"],
        "registry.example/gateway:1"
    );
    assert!(place.ip_address.ends_with(".elb.example.com"), "{place:?}");
    // There is no other node.
    assert_eq!(pod["spec"]["nodeName"], "gpu-1");
}

#[tokio::test(start_paused = true)]
async fn without_a_controller_for_load_balancers_it_fails_with_the_remedy() {
    let (cloud, emulator) = cluster();
    emulator.set_balancers(Balancers::None);
    let error = Driver::new(&cloud)
        .make(&gateway(&cloud, REGION))
        .await
        .unwrap_err();
    assert!(
        matches!(&error, ComputeError::Broken(text) if text.contains("controller") && text.contains("MetalLB")),
        "{error:?}"
    );
    assert_eq!(emulator.objects(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn what_keeps_its_image_from_being_pulled_is_told() {
    let (cloud, emulator) = cluster();
    let subject = gateway(&cloud, REGION);
    let driver = Driver::new(&cloud);
    let fails = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        let waiting = json!({"reason": "ImagePullBackOff", "message": "Back-off pulling image"});
        let status = json!({"phase": "Pending", "containerStatuses": [{"state": {"waiting": waiting}}]});
        emulator.set_pod_status("dstack-", &status);
    };
    let (made, ()) = tokio::join!(driver.make(&subject), fails);
    let error = made.unwrap_err();
    assert!(
        matches!(&error, ComputeError::Broken(text) if text == "ImagePullBackOff: Back-off pulling image"),
        "{error:?}"
    );
    assert_eq!(emulator.objects(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn what_no_gateway_can_be_is_refused() {
    let (cloud, emulator) = cluster();
    let mut private = gateway(&cloud, REGION);
    private.want.is_public = false;
    let error = Driver::new(&cloud).make(&private).await.unwrap_err();
    assert!(matches!(error, ComputeError::Unsupported(_)), "{error:?}");
    let mut sized = gateway(&cloud, REGION);
    sized.want.instance_type = Some("large".to_owned());
    let error = Driver::new(&cloud).make(&sized).await.unwrap_err();
    assert!(
        matches!(&error, ComputeError::Refused(text) if text.contains("instance_type: large")),
        "{error:?}"
    );
    let backend = cloud.open();
    let elsewhere = gateway(&cloud, "gamma");
    let notes = dstack_backend_kit::Notes::default();
    let error = backend
        .gateways()
        .unwrap()
        .ensure(&elsewhere.want, &notes.call(&cloud))
        .await
        .unwrap_err();
    assert!(
        matches!(&error, ComputeError::Configuration(text) if text.contains("gamma")),
        "{error:?}"
    );
    assert_eq!(emulator.objects(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_cluster_without_a_name_has_the_gateways_of_all_regions() {
    let emulator = emulator(nodes(), Duration::ZERO);
    let mut cloud = cloud(&emulator, "team", &Value::Null);
    let data = cloud.config["kubeconfig"]["data"].as_str().unwrap();
    cloud.config["kubeconfig"]["data"] = format!("current-context: {REGION}\n{data}").into();
    let subject = gateway(&cloud, "anywhere");
    let driver = Driver::new(&cloud);
    let place = driver.make(&subject).await.unwrap();
    assert_eq!(place.region, "anywhere");
    let known = subject.known(Some(place));
    let backend = cloud.open();
    assert_eq!(subject.sign(&*backend, &known).await, Some(Sign::Well));
    driver.remove(&known, &subject).await;
    assert_eq!(emulator.objects(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn one_whose_address_changes_has_moved_and_one_without_a_service_is_lost() {
    let (cloud, emulator) = cluster();
    let subject = gateway(&cloud, REGION);
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    let service = format!("{}-service", place.instance_id);
    let known = subject.known(Some(place.clone()));
    let backend = cloud.open();
    emulator.set_address(&service, "203.0.113.251");
    let moved = GatewayReplicaProvisioningData {
        ip_address: "203.0.113.251".to_owned(),
        ..place
    };
    assert_eq!(
        subject.sign(&*backend, &known).await,
        Some(Sign::Moved(moved.clone()))
    );
    let known = subject.known(Some(moved));
    assert_eq!(subject.sign(&*backend, &known).await, Some(Sign::Well));

    let inventory = backend.inventory().await.unwrap();
    let kinds = inventory.iter().map(|owned| owned.kind.clone());
    let of_gateway = [OwnedKind::Gateway, OwnedKind::Piece("service")];
    assert_eq!(kinds.collect::<Vec<_>>(), of_gateway);
    backend.remove_owned(&inventory[1]).await.unwrap();
    let sign = subject.sign(&*backend, &known).await;
    assert!(matches!(sign, Some(Sign::Lost(_))), "{sign:?}");
    Driver::new(&cloud).remove(&known, &subject).await;
    assert_eq!(emulator.objects(), Vec::<String>::new());
}

/// What dstack 0.22.5 has made has no marks, and its place says nothing but its name.
#[tokio::test(start_paused = true)]
async fn one_of_dstack_0_22_5_is_removed() {
    let (cloud, emulator) = cluster();
    let name = "dstack-main-gate-0-a1b2c3d4";
    let metadata = |name: &str| json!({"name": name, "labels": {"app.kubernetes.io/managed-by": "dstack"}});
    let pod = json!({"kind": "Pod", "metadata": metadata(name), "status": {"phase": "Pending"},
        "spec": {"containers": [{"name": "gateway", "image": "ubuntu:22.04"}]}});
    let service = json!({"kind": "Service", "metadata": metadata(&format!("{name}-service")), "spec": {"type": "LoadBalancer"},
        "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.9"}]}}});
    emulator.put("team", &pod);
    emulator.put("team", &service);
    let subject = gateway(&cloud, REGION);
    let known = subject.known(Some(GatewayReplicaProvisioningData {
        instance_id: name.to_owned(),
        ip_address: "203.0.113.9".to_owned(),
        region: REGION.to_owned(),
        availability_zone: None,
        backend_data: None,
    }));
    let backend = cloud.open();
    assert_eq!(subject.sign(&*backend, &known).await, Some(Sign::Well));
    Driver::new(&cloud).remove(&known, &subject).await;
    assert_eq!(emulator.objects(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_is_away_hides_no_other() {
    let emulator: Arc<Kubernetes> = emulator(nodes(), Duration::ZERO);
    let mut cloud = cloud(&emulator, "team", &json!([REGION, "beta"]));
    move_beta(&mut cloud);
    let (here, there) = (gateway(&cloud, REGION), gateway(&cloud, "beta"));
    checks::a_place_away(&cloud, &[here, there], "192.0.2.2").await;
}
