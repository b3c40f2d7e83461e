//! What Kubernetes does besides what every backend does: other clusters, other people's objects, admission, jump pods.

use std::collections::BTreeSet;
use std::time::Duration;

use dstack_backend_kit::{
    CANARY, Cloud, Driver, Emulator as _, Fault, Notes, Subject, container, container_of, requirements,
};
use dstack_compute::{Backend, ComputeError, ConfigureError, Container, Resource, Sign, Step};
use dstack_emulator_kubernetes::Kubernetes;
use dstack_model::decode::decode_strict;
use dstack_model::instances::InstanceAvailability;
use dstack_model::runs::JobProvisioningData;
use serde_json::{Value, json};

use crate::kubernetes::{another, cloud, cluster, emulator, node, nodes, volume};

/// `None`: the cluster was not asked.
async fn told<R: Resource>(
    backend: &dyn Backend,
    subject: &Subject<R>,
    place: &R::Place,
) -> Option<Sign<R::Place>> {
    let lifecycle = (subject.lifecycle)(backend).unwrap();
    let known = subject.known(Some(place.clone()));
    lifecycle.look(&[known]).await.ok()?.remove(0)
}

async fn sign<R: Resource>(backend: &dyn Backend, subject: &Subject<R>, place: &R::Place) -> Sign<R::Place> {
    let known = subject.known(Some(place.clone()));
    subject.sign(backend, &known).await.unwrap()
}

fn data(place: &JobProvisioningData) -> Value {
    serde_json::from_str(place.backend_data.as_deref().unwrap()).unwrap()
}

/// Name of an object of the jump pod, of a kind (`pods`).
fn jump(emulator: &Kubernetes, kind: &str) -> Option<String> {
    let all = emulator.objects().into_iter();
    let mut of_kind = all.filter_map(|name| Some(name.strip_prefix(kind)?.strip_prefix('/')?.to_owned()));
    of_kind.find(|name| name.contains("-jump"))
}

/// A pod of somebody else.
fn pod_of_others(name: &str) -> Value {
    json!({"kind": "Pod", "metadata": {"name": name, "labels": {"team": "other"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}, "status": {"phase": "Running"}})
}

#[tokio::test(start_paused = true)]
async fn lists_come_in_pages_and_begin_anew_when_their_rest_expires() {
    let many = (0..1_001)
        .map(|number| node(&format!("cpu-{number}"), &[]))
        .collect();
    let emulator = emulator(many, Duration::ZERO);
    let cloud = cloud(&emulator, "team", &json!(["alpha"]));
    emulator.expire_pages(1);
    let offers = cloud.offers(&Cloud::requirements()).await;
    assert_eq!(offers.len(), 1_001);
    let longest = emulator.asked().iter().map(|one| one.listed).max();
    assert_eq!(longest, Some(500));
    emulator.expire_pages(100);
    let error = cloud.open().offers(&Cloud::requirements()).await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    assert!(emulator.asked().len() < 20, "{}", emulator.asked().len());
}

#[tokio::test(start_paused = true)]
async fn pods_that_are_over_are_not_asked_for() {
    let (cloud, emulator) = cluster();
    let mut over = pod_of_others("over");
    over["status"]["phase"] = json!("Succeeded");
    over["spec"]["nodeName"] = json!("cpu-1");
    over["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "7"}});
    emulator.put("elsewhere", &over);
    let large = json!({"resources": {"cpu": "4..", "memory": "1GB..", "disk": "1GB.."}});
    let offers = cloud.offers(&requirements(&large)).await;
    assert!(
        offers
            .iter()
            .all(|offer| offer.availability == InstanceAvailability::Available)
    );
    let asked = emulator.asked();
    let pods = asked.iter().find(|one| one.resource == "pods").unwrap();
    assert_eq!(pods.listed, 0);
}

#[tokio::test(start_paused = true)]
async fn what_somebody_else_made_under_a_name_is_never_taken() {
    for nth in 1.. {
        let (cloud, emulator) = cluster();
        let subject = container(&cloud).await;
        let name = subject.marks.name(63 - "-registry-auth".len());
        emulator.put("team", &pod_of_others(&name));
        cloud.faults().at(nth, Fault::Lost);
        let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
        assert!(
            matches!(error, ComputeError::Refused(_)),
            "request {nth}: {error:?}"
        );
        let left = emulator.objects();
        assert_eq!(left, [format!("pods/{name}")], "request {nth}");
        if !cloud.faults().happened() {
            return;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_has_taken_the_place_of_an_object_is_not_removed() {
    let (cloud, emulator) = cluster();
    let subject = container(&cloud).await;
    let driver = Driver::new(&cloud);
    let place = driver.make(&subject).await.unwrap();
    let name = place.instance_id.clone();
    emulator.put("team", &pod_of_others(&name));
    let lost = sign(cloud.open().as_ref(), &subject, &place).await;
    assert!(matches!(lost, Sign::Lost(_)), "{lost:?}");
    driver.remove(&subject.known(Some(place)), &subject).await;
    assert_eq!(emulator.objects(), [format!("pods/{name}")]);
}

#[tokio::test(start_paused = true)]
async fn notes_of_earlier_builds_lead_to_what_they_made() {
    let names = |name: &str| {
        let made = |name: String| json!({"state": "made", "made": name});
        json!({"pod": made(name.to_owned()), "service": made(format!("{name}-service")),
            "registry secret": made(format!("{name}-registry-auth"))})
    };
    let (cloud, emulator) = cluster();
    let subject = container(&cloud).await;
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    let notes = Notes::of(names(&place.instance_id));
    notes.remove(&cloud, &subject, None).await.unwrap();
    assert_eq!(emulator.objects(), Vec::<String>::new());
    // By then, somebody else may have the name.
    emulator.put("team", &pod_of_others(&place.instance_id));
    let notes = Notes::of(names(&place.instance_id));
    notes.remove(&cloud, &subject, None).await.unwrap();
    assert_eq!(emulator.objects(), [format!("pods/{}", place.instance_id)]);
}

/// All is removed in the moment in which a request is late.
#[tokio::test(start_paused = true)]
async fn a_late_request_leaves_no_jump_pod_when_all_is_removed_at_once() {
    for nth in 1.. {
        let (cloud, emulator) = cluster();
        let subject = container(&cloud).await;
        cloud.faults().at(nth, Fault::Late(Duration::from_secs(45)));
        let driver = Driver::new(&cloud);
        let is_late = async {
            while !cloud.faults().happened() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let place = tokio::select! {
            place = driver.make(&subject) => Some(place.unwrap()),
            () = is_late => None,
        };
        driver.remove(&subject.known(place.clone()), &subject).await;
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(emulator.objects(), Vec::<String>::new(), "request {nth}");
        if place.is_some() {
            assert!(nth > 10, "only {nth} requests");
            return;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_in_another_cluster_is_neither_gone_nor_lost() {
    let (cloud, emulator) = cluster();
    let (subject, disk) = (container(&cloud).await, volume(&cloud));
    let (notes, of_disk) = (Notes::default(), Notes::default());
    let backend = cloud.open();
    let place = notes.make(&cloud, backend.as_ref(), &subject).await.unwrap();
    let claim = of_disk.make(&cloud, backend.as_ref(), &disk).await.unwrap();
    emulator.swap_cluster();
    assert_eq!(told(backend.as_ref(), &subject, &place).await, None);
    assert_eq!(told(backend.as_ref(), &disk, &claim).await, None);
    // By what is noted, and by the place alone.
    let unnoted = (Notes::default(), Notes::default());
    for (notes, of_disk) in [(&notes, &of_disk), (&unnoted.0, &unnoted.1)] {
        let errors = [
            notes
                .remove(&cloud, &subject, Some(place.clone()))
                .await
                .unwrap_err(),
            of_disk
                .remove(&cloud, &disk, Some(claim.clone()))
                .await
                .unwrap_err(),
        ];
        for error in errors {
            assert!(
                matches!(&error, ComputeError::Configuration(text) if text.contains("\"alpha\" does not lead any more")),
                "{error:?}"
            );
        }
    }
    emulator.swap_cluster();
    notes.remove(&cloud, &subject, Some(place)).await.unwrap();
    of_disk.remove(&cloud, &disk, Some(claim)).await.unwrap();
    assert_eq!(emulator.objects(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn what_is_in_another_namespace_is_made_to_the_end_seen_and_removed_there() {
    let (before, emulator) = cluster();
    let after = cloud(&emulator, "other", &json!(["alpha"]));
    let subject = container(&before).await;
    let notes = Notes::default();
    notes
        .ensure(&before, before.open().as_ref(), &subject)
        .await
        .unwrap();
    let backend = after.open();
    let place = notes.make(&after, backend.as_ref(), &subject).await.unwrap();
    let pod = emulator.object("pods", &place.instance_id).unwrap();
    assert_eq!(pod["metadata"]["namespace"], "team");
    assert_eq!(sign(backend.as_ref(), &subject, &place).await, Sign::Well);
    // As of a row whose notes are gone.
    Notes::default()
        .remove(&after, &subject, Some(place))
        .await
        .unwrap();
    assert_eq!(emulator.objects(), Vec::<String>::new());

    let notes = Notes::default();
    notes
        .ensure(&before, before.open().as_ref(), &subject)
        .await
        .unwrap();
    notes.remove(&after, &subject, None).await.unwrap();
    assert_eq!(emulator.objects(), Vec::<String>::new());
}

/// Who may not see the namespaces of the system is told apart by the own one.
#[tokio::test(start_paused = true)]
async fn a_cluster_whose_namespaces_may_not_be_seen_is_used_as_it_is() {
    let (cloud, emulator) = cluster();
    emulator.put("team", &pod_of_others("before"));
    emulator.deny("get", "namespaces");
    let subject = container(&cloud).await;
    let driver = Driver::new(&cloud);
    let place = driver.make(&subject).await.unwrap();
    driver.remove(&subject.known(Some(place)), &subject).await;
    assert_eq!(emulator.objects(), ["pods/before"]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_not_given_up_because_other_nodes_are_there_now() {
    let (cloud, emulator) = cluster();
    let wanted = json!({"resources": {"cpu": "2..", "memory": "8GB..", "disk": "10GB..", "gpu": "H100:2"}});
    let subject = container_of(&cloud, requirements(&wanted), |_| true).await;
    let (notes, backend) = (Notes::default(), cloud.open());
    let step = notes.ensure(&cloud, backend.as_ref(), &subject).await.unwrap();
    assert!(matches!(step, Step::Underway { .. }), "{step:?}");
    tokio::time::sleep(Duration::from_secs(200)).await;
    let name = subject.marks.name(63 - "-registry-auth".len());
    let pod = emulator.object("pods", &name).unwrap();
    assert_eq!(pod["spec"]["nodeName"], "gpu-1");
    emulator.set_nodes(vec![node("cpu-1", &[])]);
    let place = notes.make(&cloud, backend.as_ref(), &subject).await.unwrap();
    assert_eq!(place.instance_type.name, "gpu-1");
}

#[tokio::test(start_paused = true)]
async fn admission_and_roles_are_told_apart() {
    let (cloud, emulator) = cluster();
    let make = async || {
        let subject = container(&cloud).await;
        Driver::new(&cloud).make(&subject).await
    };
    let race = "Operation cannot be fulfilled on resourcequotas \"q\": the object has been modified; please apply your changes to the latest version and try again";
    emulator.refuse("pods", 409, "Conflict", race);
    make().await.unwrap();
    let security =
        "pods \"p\" is forbidden: violates PodSecurity \"restricted:latest\": runAsNonRoot != true";
    emulator.refuse("pods", 403, "Forbidden", security);
    let refused = make().await.unwrap_err();
    assert_eq!(
        refused,
        ComputeError::Refused(format!("192.0.2.1 answered 403 Forbidden: {security}"))
    );
    let quota =
        "pods \"p\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1";
    emulator.refuse("pods", 403, "Forbidden", quota);
    let over = make().await.unwrap_err();
    assert!(matches!(over, ComputeError::NoQuota(_)), "{over:?}");
    emulator.deny("create", "secrets");
    let denied = make().await.unwrap_err();
    assert!(
        matches!(&denied, ComputeError::Credentials(text) if !text.contains('{')),
        "{denied:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_jump_pod_that_is_stuck_says_why() {
    let (cloud, emulator) = cluster();
    let subject = container(&cloud).await;
    let (notes, backend) = (Notes::default(), cloud.open());
    let waiting = json!({"reason": "ImagePullBackOff", "message": "Back-off pulling image"});
    let status =
        json!({"phase": "Pending", "containerStatuses": [{"name": "sshd", "state": {"waiting": waiting}}]});
    let (mut told, began) = (String::new(), tokio::time::Instant::now());
    let error = loop {
        match notes.ensure(&cloud, backend.as_ref(), &subject).await {
            Ok(Step::Underway { doing, again, .. }) => {
                told = doing;
                tokio::time::sleep(again).await;
            }
            Ok(Step::Ready(place)) => panic!("{place:?}"),
            Err(error) => break error,
        }
        if let Some(name) = jump(&emulator, "pods") {
            emulator.set_pod_status(&name, &status);
        }
        assert!(began.elapsed() < Duration::from_secs(600), "{told}");
    };
    assert_eq!(told, "the jump pod: ImagePullBackOff: Back-off pulling image");
    let expected = "the jump pod, by which pods are reached: ImagePullBackOff: Back-off pulling image";
    assert_eq!(error, ComputeError::Broken(expected.to_owned()));
}

#[tokio::test(start_paused = true)]
async fn what_fits_nowhere_is_not_tried_on_every_node() {
    let (cloud, emulator) = cluster();
    let subject = container(&cloud).await;
    let backend = cloud.open();
    let jobs = || {
        let asked = emulator.asked();
        asked
            .iter()
            .filter(|one| one.verb == "create" && one.resource == "pods")
            .count()
    };
    emulator.sell_out(true);
    let first = Notes::default();
    let waited = first.make(&cloud, backend.as_ref(), &subject).await.unwrap_err();
    assert!(matches!(waited, ComputeError::NoCapacity(_)), "{waited:?}");
    first.remove(&cloud, &subject, None).await.unwrap();
    let tried = jobs();
    let second = another(&cloud, &subject, "ssh-ed25519 AAAAsecond user");
    let skipped = Notes::default()
        .make(&cloud, backend.as_ref(), &second)
        .await
        .unwrap_err();
    assert!(
        matches!(&skipped, ComputeError::Skipped(text) if text.contains("Unschedulable")),
        "{skipped:?}"
    );
    assert_eq!(jobs(), tried);
    // Something else may fit.
    let mut less = another(&cloud, &subject, "ssh-ed25519 AAAAthird user");
    less.want.requirements =
        decode_strict(&json!({"resources": {"cpu": "2..", "memory": "1GB..", "disk": "1GB.."}})).unwrap();
    let waited = Notes::default()
        .make(&cloud, backend.as_ref(), &less)
        .await
        .unwrap_err();
    assert!(matches!(waited, ComputeError::NoCapacity(_)), "{waited:?}");
    tokio::time::sleep(Duration::from_secs(61)).await;
    let waited = Notes::default()
        .make(&cloud, backend.as_ref(), &second)
        .await
        .unwrap_err();
    assert!(matches!(waited, ComputeError::NoCapacity(_)), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_fits_nowhere_waits_by_our_clock() {
    let emulator = emulator(nodes(), Duration::from_secs(3600));
    let cloud = cloud(&emulator, "team", &json!(["alpha"]));
    emulator.sell_out(true);
    let subject = container(&cloud).await;
    let (driver, began) = (Driver::new(&cloud), tokio::time::Instant::now());
    let somebody_ends = async {
        tokio::time::sleep(Duration::from_secs(30)).await;
        emulator.sell_out(false);
    };
    let (made, ()) = tokio::join!(driver.make(&subject), somebody_ends);
    made.unwrap();
    assert!(began.elapsed() > Duration::from_secs(30));
}

/// The details of an error that names the kubeconfig.
fn kubeconfig_error(error: ConfigureError) -> String {
    let ConfigureError::Credentials { fields, details } = error else {
        panic!("{error:?}");
    };
    assert_eq!(fields, [["kubeconfig"]]);
    details.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_configuration_that_cannot_work_is_refused_with_what_is_wrong() {
    let emulator = emulator(nodes(), Duration::ZERO);
    let both = cloud(&emulator, "team", &json!(["alpha", "beta"]));
    both.configure(&both.config).await.unwrap();
    both.faults().from(1, 100, Fault::NotSent);
    let away = kubeconfig_error(both.configure(&both.config).await.unwrap_err());
    assert!(away.contains("cannot be reached"), "{away}");
    both.faults()
        .from(1, 100, Fault::SlowAnswer(Duration::from_secs(25)));
    let began = tokio::time::Instant::now();
    let silent = kubeconfig_error(both.configure(&both.config).await.unwrap_err());
    assert!(silent.contains("did not answer within 10 s"), "{silent}");
    assert!(began.elapsed() < Duration::from_secs(11), "one after the other");
    both.faults().none();
    emulator.deny("create", "pods");
    emulator.deny("list", "nodes");
    let missing = kubeconfig_error(both.configure(&both.config).await.unwrap_err());
    assert!(
        missing.contains("may not list nodes in all namespaces, create pods in team"),
        "{missing}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_place_names_the_node_on_which_the_pod_is() {
    let larger = json!({"cpu": "3900m", "memory": "15Gi", "ephemeral-storage": "100Gi"});
    let all = vec![
        node("cpu-1", &[("/status/allocatable", larger)]),
        node("cpu-2", &[]),
    ];
    let emulator = emulator(all, Duration::ZERO);
    let cloud = cloud(&emulator, "team", &json!(["alpha"]));
    let subject = container_of(&cloud, Cloud::requirements(), |offer| {
        offer.instance.name == "cpu-2"
    })
    .await;
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    let pod = emulator.object("pods", &place.instance_id).unwrap();
    assert_eq!(pod["spec"]["nodeName"], "cpu-1", "the scheduler decides");
    assert_eq!(place.instance_type.name, "cpu-1");
    let has = &place.instance_type.resources;
    assert_eq!((has.cpus, has.memory_mib, has.disk.size_mib), (1, 1024, 1024));
}

#[tokio::test(start_paused = true)]
async fn a_fixed_port_serves_one_project() {
    let emulator = emulator(nodes(), Duration::ZERO);
    let fixed = json!([{"name": "alpha", "proxy_jump": {"port": 32000}}]);
    let cloud = cloud(&emulator, "team", &fixed);
    let place = Driver::new(&cloud).make(&container(&cloud).await).await.unwrap();
    assert_eq!(place.ssh_proxy.unwrap().port, 32000);
    let of_another_project = container(&cloud).await;
    let error = Driver::new(&cloud).make(&of_another_project).await.unwrap_err();
    assert!(
        matches!(&error, ComputeError::Configuration(text) if text.starts_with("port 32000 of proxy_jump is taken")),
        "{error:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn each_jump_pod_shows_a_host_key_of_its_own() {
    let (cloud, emulator) = cluster();
    let mut seen = BTreeSet::new();
    for _ in 0..2 {
        let subject = container(&cloud).await;
        let place = Driver::new(&cloud).make(&subject).await.unwrap();
        let key = data(&place)["ssh_proxy_host_key"].as_str().unwrap().to_owned();
        assert!(key.starts_with("ssh-ed25519 "), "{key}");
        let name = jump(&emulator, "pods").unwrap();
        let pod = emulator.object("pods", &name).unwrap();
        assert_eq!(pod["metadata"]["annotations"]["k8s.dstack.ai/host-key"], key);
        let volume = json!({"secretName": format!("{name}-keys"), "defaultMode": 0o400});
        assert_eq!(pod["spec"]["volumes"][0]["secret"], volume);
        let script = pod["spec"]["containers"][0]["args"][1].as_str().unwrap();
        assert!(script.contains(" -h /etc/dstack/keys/host_key ") && !script.contains("ssh-keygen"));
        let keys = emulator.object("secrets", &format!("{name}-keys")).unwrap();
        assert_eq!(keys["metadata"]["annotations"]["k8s.dstack.ai/host-key"], key);
        assert!(keys["data"]["host_key"].is_string());
        seen.insert(key);
        Driver::new(&cloud)
            .remove(&subject.known(Some(place)), &subject)
            .await;
    }
    assert_eq!(seen.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn keys_of_an_earlier_build_get_a_host_key() {
    let (cloud, emulator) = cluster();
    let subject = container(&cloud).await;
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    let name = jump(&emulator, "secrets").unwrap();
    let mut keys = emulator.object("secrets", &name).unwrap();
    keys["metadata"].as_object_mut().unwrap().remove("annotations");
    keys["data"].as_object_mut().unwrap().remove("host_key");
    Driver::new(&cloud)
        .remove(&subject.known(Some(place)), &subject)
        .await;
    emulator.put("team", &keys);
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    let keys = emulator.object("secrets", &name).unwrap();
    assert!(keys["data"]["host_key"].is_string(), "{keys}");
    assert_eq!(
        data(&place)["ssh_proxy_host_key"],
        keys["metadata"]["annotations"]["k8s.dstack.ai/host-key"]
    );
}

/// Looks until it is so.
async fn look_until(
    cloud: &Cloud,
    (backend, subject, place): (&dyn Backend, &Subject<Container>, &JobProvisioningData),
    is_so: impl Fn(&Sign<JobProvisioningData>) -> bool,
) -> Sign<JobProvisioningData> {
    let began = cloud.env.clock.now();
    loop {
        let sign = sign(backend, subject, place).await;
        if is_so(&sign) {
            return sign;
        }
        assert!(
            cloud.env.clock.now() < began + Duration::from_secs(1_200),
            "{sign:?}"
        );
        tokio::time::sleep(Duration::from_secs(30)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_jump_pod_that_was_evicted_is_made_anew_for_those_who_use_it() {
    let (cloud, emulator) = cluster();
    let subject = container(&cloud).await;
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    let name = jump(&emulator, "pods").unwrap();
    let uid = |name: &str| {
        emulator
            .object("pods", name)
            .map(|pod| pod["metadata"]["uid"].clone())
    };
    let before = uid(&name);
    emulator.set_pod_status(&name, &json!({"phase": "Failed", "reason": "Evicted"}));
    let backend = cloud.open();
    let at = (backend.as_ref(), &subject, &place);
    let is_running = |_: &Sign<_>| {
        let pod = emulator.object("pods", &name);
        pod.is_some_and(|pod| pod["status"]["phase"] == "Running")
    };
    let sign = look_until(&cloud, at, is_running).await;
    assert_eq!(
        sign,
        Sign::Well,
        "its address, port and host key are what they were"
    );
    assert_ne!(uid(&name), before);

    // Its node has another address now.
    let addresses = json!([{"type": "ExternalIP", "address": "192.0.2.99"}]);
    emulator.set_nodes(vec![node("cpu-1", &[("/status/addresses", addresses)])]);
    let moved = look_until(&cloud, at, |sign| matches!(sign, Sign::Moved(_))).await;
    let Sign::Moved(moved) = moved else {
        panic!("{moved:?}");
    };
    assert_eq!(moved.ssh_proxy.as_ref().unwrap().hostname, "192.0.2.99");
    assert_eq!(
        data(&moved)["ssh_proxy_host_key"],
        data(&place)["ssh_proxy_host_key"]
    );
    let at = (backend.as_ref(), &subject, &moved);
    look_until(&cloud, at, |sign| *sign == Sign::Well).await;

    // dstack 0.22.5 has jump pods of its own: its containers stay with theirs.
    let mut of_reference = moved.clone();
    of_reference.backend_data = None;
    of_reference.ssh_proxy.as_mut().unwrap().port = 30_999;
    let seen = self::sign(backend.as_ref(), &subject, &of_reference).await;
    assert_eq!(seen, Sign::Well);
}

/// `verb resource`, with `all` where it is in all namespaces.
type Rights = BTreeSet<String>;

/// What the roles of the page about the backend allow.
fn documented() -> Rights {
    let page = include_str!("../../../../docs/backends/kubernetes.md");
    let list = |line: &str, field: &str| -> Vec<String> {
        let rest = line.split_once(&format!("{field}: [")).unwrap().1;
        let inner = rest.split_once(']').unwrap().0;
        inner.split(',').map(|one| one.trim().to_owned()).collect()
    };
    let (mut rights, mut place) = (Rights::new(), "");
    for line in page.lines() {
        match line.trim() {
            "kind: ClusterRole" => place = "all ",
            "kind: Role" => place = "",
            line if line.starts_with("- {apiGroups:") => {
                for resource in list(line, "resources") {
                    for verb in list(line, "verbs") {
                        rights.insert(format!("{verb} {place}{resource}"));
                    }
                }
            }
            _ => {}
        }
    }
    rights
}

#[tokio::test(start_paused = true)]
async fn the_roles_of_the_documentation_are_what_is_needed() {
    let (cloud, emulator) = cluster();
    let (subject, disk) = (container(&cloud).await, volume(&cloud));
    cloud.configure(&cloud.config).await.unwrap();
    let driver = Driver::new(&cloud);
    let place = driver.make(&subject).await.unwrap();
    let second = another(&cloud, &subject, "ssh-ed25519 AAAAsecond user");
    let other = Driver::new(&cloud).make(&second).await.unwrap();
    let of_disk = Driver::new(&cloud);
    let claim = of_disk.make(&disk).await.unwrap();
    let backend = cloud.open();
    sign(backend.as_ref(), &subject, &place).await;
    sign(backend.as_ref(), &disk, &claim).await;
    backend.inventory().await.unwrap();
    driver.remove(&subject.known(Some(place)), &subject).await;
    Driver::new(&cloud)
        .remove(&second.known(Some(other)), &second)
        .await;
    of_disk.remove(&disk.known(Some(claim)), &disk).await;
    let needed: Rights = emulator
        .asked()
        .into_iter()
        .map(|one| {
            let place = if one.is_namespaced { "" } else { "all " };
            format!("{} {place}{}", one.verb, one.resource)
        })
        .collect();
    assert_eq!(needed, documented());
    assert!(!format!("{:?}", emulator.asked()).contains(CANARY));
}
