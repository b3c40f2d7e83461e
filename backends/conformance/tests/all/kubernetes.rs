use std::sync::Arc;
use std::time::Duration;

use dstack_backend_kit::{
    CANARY, Cloud, Driver, Fault, Subject, checks, container, container_in, container_of, marks,
    requirements, soak,
};
use dstack_compute::{ComputeError, Container, Lifecycle, Owner, Volume, VolumeRequest};
use dstack_emulator_kubernetes::Kubernetes;
use dstack_model::decode::decode_strict;
use dstack_units::Time;
use serde_json::{Value, json};

pub(crate) fn node(name: &str, more: &[(&str, Value)]) -> Value {
    let mut node = json!({
        "metadata": {"name": name, "labels": {}},
        "status": {
            "allocatable": {"cpu": "7900m", "memory": "31Gi", "ephemeral-storage": "200Gi"},
            "nodeInfo": {"architecture": "amd64"},
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.5"}, {"type": "ExternalIP", "address": "192.0.2.41"}],
        },
    });
    for (pointer, value) in more {
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        let parent = node.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        parent.insert(field.to_owned(), value.clone());
    }
    node
}

pub(crate) fn nodes() -> Vec<Value> {
    let gpus = json!({"cpu": "7900m", "memory": "31Gi", "ephemeral-storage": "200Gi", "nvidia.com/gpu": "8"});
    let more = [
        (
            "/metadata/labels",
            json!({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}),
        ),
        (
            "/spec",
            json!({"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}),
        ),
        ("/status/allocatable", gpus),
    ];
    vec![node("cpu-1", &[]), node("gpu-1", &more)]
}

/// A cluster of two nodes.
pub(crate) fn cluster() -> (Cloud, Arc<Kubernetes>) {
    let emulator = emulator(nodes(), Duration::ZERO);
    (cloud(&emulator, "team", &json!(["alpha"])), emulator)
}

/// A cluster of these nodes, whose clock is behind by so much.
pub(crate) fn emulator(nodes: Vec<Value>, behind: Duration) -> Arc<Kubernetes> {
    let nothing = dstack_backend_kit::EmulatedTransport::new(Default::default());
    let now = dstack_backend_kit::env(Arc::new(nothing)).clock.now();
    let behind = i64::try_from(behind.as_micros()).unwrap();
    let now = Time::from_micros(now.as_micros() - behind);
    Arc::new(Kubernetes::new(CANARY, nodes, now))
}

/// A backend for a cluster by these `contexts`, which are all the same in this namespace.
pub(crate) fn cloud(emulator: &Arc<Kubernetes>, namespace: &str, contexts: &Value) -> Cloud {
    let config = |token: &str| {
        let context = |name: &str| {
            format!("- name: {name}\n  context: {{cluster: c, user: u, namespace: {namespace}}}\n")
        };
        let data = format!(
            "apiVersion: v1\nkind: Config\ncontexts:\n{}{}\
             clusters:\n- name: c\n  cluster: {{server: 'https://192.0.2.1:6443'}}\nusers:\n- name: u\n  user: {{token: {token}}}\n",
            context("alpha"),
            context("beta"),
        );
        json!({"type": "kubernetes", "kubeconfig": {"data": data}, "contexts": contexts})
    };
    let refused = vec![(config("wrong"), &["kubeconfig"][..])];
    Cloud::new(
        emulator.clone(),
        dstack_backend_kubernetes::kind,
        config(CANARY),
        refused,
    )
}

pub(crate) fn volume(cloud: &Cloud) -> Subject<Volume> {
    let configuration =
        json!({"type": "volume", "backend": "kubernetes", "name": "data", "size": "10GB", "region": "alpha"});
    let marks = marks(cloud, "data");
    Subject {
        lifecycle: |backend| {
            backend
                .volumes()
                .map(|volumes| -> &dyn Lifecycle<Volume> { volumes })
        },
        site: "alpha".to_owned(),
        want: VolumeRequest {
            marks: marks.clone(),
            owner: Owner::default(),
            configuration: decode_strict(&configuration).unwrap(),
        },
        asked: |want, marks| VolumeRequest {
            marks,
            ..want.clone()
        },
        marks,
        problem: |place| (place.size_gb != Some(10)).then(|| format!("{:?}", place.size_gb)),
        called: |place| &place.volume_id,
    }
}

#[tokio::test(start_paused = true)]
async fn credentials() {
    checks::credentials(&cluster().0).await;
}

#[tokio::test(start_paused = true)]
async fn offers() {
    checks::offers(&cluster().0).await;
}

#[tokio::test(start_paused = true)]
async fn a_container_lives_and_ends() {
    let (cloud, emulator) = cluster();
    checks::whole_life(&cloud, &container(&cloud).await).await;
    assert_eq!(
        emulator.objects(),
        Vec::<String>::new(),
        "the jump pod goes with the last"
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_is_to_be_had() {
    let (cloud, _) = cluster();
    checks::sold_out(&cloud, &container(&cloud).await).await;
}

#[tokio::test(start_paused = true)]
async fn what_breaks_is_seen() {
    let (cloud, _) = cluster();
    checks::loss(&cloud, &container(&cloud).await).await;
    let (cloud, _) = cluster();
    checks::loss(&cloud, &volume(&cloud)).await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_lives_and_ends() {
    let (cloud, _) = cluster();
    checks::whole_life(&cloud, &volume(&cloud)).await;
}

#[tokio::test(start_paused = true)]
async fn whatever_happens_no_container_is_made_twice_or_left() {
    checks::any_fault_anywhere(one_container).await;
}

#[tokio::test(start_paused = true)]
async fn whatever_happens_no_volume_is_made_twice_or_left() {
    checks::any_fault_anywhere(one_volume).await;
}

#[tokio::test(start_paused = true)]
async fn another_attempt_makes_another_thing() {
    checks::another_attempt(one_container).await;
    checks::another_attempt(one_volume).await;
}

/// The kit counts what is made for requests; the jump pod is of none.
#[tokio::test(start_paused = true)]
async fn whatever_happens_no_jump_pod_is_left() {
    for fault in Fault::ALL {
        for nth in 1.. {
            let (cloud, emulator) = cluster();
            let subject = container(&cloud).await;
            cloud.faults().at(nth, *fault);
            let driver = Driver::new(&cloud);
            let place = driver.make(&subject).await.unwrap();
            tokio::time::sleep(Duration::from_secs(600)).await;
            driver.remove(&subject.known(Some(place)), &subject).await;
            tokio::time::sleep(Duration::from_secs(600)).await;
            assert_eq!(
                emulator.objects(),
                Vec::<String>::new(),
                "{fault:?} at request {nth}"
            );
            if !cloud.faults().happened() {
                break;
            }
        }
    }
}

/// A second container of the same project.
pub(crate) fn another(cloud: &Cloud, first: &Subject<Container>, key: &str) -> Subject<Container> {
    let mut marks = marks(cloud, "second");
    marks.project = first.marks.project;
    let mut want = first.want.clone();
    want.marks = marks.clone();
    want.workload.authorized_keys.push(key.to_owned());
    Subject {
        lifecycle: first.lifecycle,
        want,
        asked: first.asked,
        marks,
        site: first.site.clone(),
        problem: first.problem,
        called: first.called,
    }
}

#[tokio::test(start_paused = true)]
async fn containers_of_a_project_share_a_jump_pod_until_the_last_is_gone() {
    let (cloud, emulator) = cluster();
    let first = container(&cloud).await;
    let second = another(&cloud, &first, "ssh-ed25519 AAAAsecond user");
    let (one, other) = (Driver::new(&cloud), Driver::new(&cloud));
    let (place, second_place) = (
        one.make(&first).await.unwrap(),
        other.make(&second).await.unwrap(),
    );
    assert_eq!(place.ssh_proxy, second_place.ssh_proxy);
    assert_ne!(place.internal_ip, second_place.internal_ip);
    assert_eq!(place.ssh_proxy.unwrap().hostname, "192.0.2.41");
    let jumps = || {
        emulator
            .objects()
            .into_iter()
            .filter(|name| name.contains("-jump"))
            .collect::<Vec<_>>()
    };
    let there = jumps();
    assert_eq!(there.len(), 3, "{there:?}");
    let keys = there
        .iter()
        .find_map(|name| name.strip_prefix("secrets/"))
        .unwrap();
    let keys = emulator.object("secrets", keys).unwrap();
    let of_both = keys["data"].as_object().unwrap().keys();
    assert_eq!(of_both.filter(|name| *name != "host_key").count(), 2);
    one.remove(&first.known(None), &first).await;
    assert_eq!(jumps(), there);
    other.remove(&second.known(None), &second).await;
    assert_eq!(emulator.objects(), Vec::<String>::new());
}

/// Whenever the next pod of a project comes while the jump pod is removed with the last one, it has one in the end.
#[tokio::test(start_paused = true)]
async fn a_pod_that_comes_while_the_jump_pod_is_removed_has_one() {
    for nth in 1.. {
        let (cloud, emulator) = cluster();
        let first = container(&cloud).await;
        let second = another(&cloud, &first, "ssh-ed25519 AAAAsecond user");
        let (one, other) = (Driver::new(&cloud), Driver::new(&cloud));
        let place = one.make(&first).await.unwrap();
        cloud.faults().at(nth, Fault::SlowAnswer(Duration::from_secs(60)));
        let comes = async {
            tokio::time::sleep(Duration::from_secs(20)).await;
            other.make(&second).await.unwrap()
        };
        let known = first.known(Some(place));
        let ((), place) = tokio::join!(one.remove(&known, &first), comes);
        if !cloud.faults().happened() {
            assert!(nth > 5, "only {nth} requests");
            return;
        }
        let proxy = place.ssh_proxy.unwrap();
        let objects = emulator.objects();
        let service = objects.iter().find_map(|name| {
            name.strip_prefix("services/")
                .filter(|name| name.contains("-jump"))
        });
        let service = service.unwrap_or_else(|| panic!("no jump pod, request {nth}: {objects:?}"));
        let service = emulator.object("services", service).unwrap();
        assert_eq!(
            service["spec"]["ports"][0]["nodePort"], proxy.port,
            "request {nth}"
        );
        let jumps = objects.iter().filter(|name| name.contains("-jump"));
        assert_eq!(jumps.count(), 3, "request {nth}: {objects:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_pod_asks_for_is_what_the_job_asked_for() {
    let (cloud, emulator) = cluster();
    let wanted = json!({"resources": {"cpu": "2..4", "memory": "8GB..", "disk": "10GB..", "gpu": "H100:2"}});
    let subject = container_of(&cloud, requirements(&wanted), |_| true).await;
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    let pod = emulator.object("pods", &place.instance_id).unwrap();
    assert_eq!(pod["spec"]["nodeName"], "gpu-1");
    let container = &pod["spec"]["containers"][0];
    assert_eq!(
        container["resources"],
        json!({"requests": {"cpu": "2", "memory": "8192Mi", "ephemeral-storage": "10240Mi", "nvidia.com/gpu": "2"},
            "limits": {"cpu": "4", "nvidia.com/gpu": "2"}})
    );
    assert!(container["env"].is_null());
    assert_eq!(
        pod["spec"]["volumes"][0],
        json!({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}})
    );
    let without = container_of_cpu(&cloud, &emulator).await;
    assert_eq!(
        without["spec"]["containers"][0]["env"],
        json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}])
    );
}

async fn container_of_cpu(cloud: &Cloud, emulator: &Kubernetes) -> Value {
    let subject = container(cloud).await;
    let place = Driver::new(cloud).make(&subject).await.unwrap();
    emulator.object("pods", &place.instance_id).unwrap()
}

#[tokio::test(start_paused = true)]
async fn what_of_somebody_else_has_the_name_is_neither_used_nor_removed() {
    let (cloud, emulator) = cluster();
    let subject = container(&cloud).await;
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    // Another installation asks for a key that ends alike: the labels tell them apart.
    let mut other = another(&cloud, &subject, "ssh-ed25519 AAAAother user");
    other.marks = subject.marks.clone();
    other.marks.key = uuid_like(subject.marks.key);
    other.want.marks = other.marks.clone();
    let error = Driver::new(&cloud).make(&other).await.unwrap_err();
    assert!(matches!(error, ComputeError::Refused(_)), "{error:?}");
    assert!(emulator.object("pods", &place.instance_id).is_some());
}

/// Another id with the same code in names.
fn uuid_like(id: uuid::Uuid) -> uuid::Uuid {
    uuid::Uuid::from_u128(id.as_u128() ^ (1 << 100))
}

pub(crate) async fn one_container() -> (Cloud, Subject<Container>) {
    let (cloud, _) = cluster();
    let subject = container(&cloud).await;
    (cloud, subject)
}

async fn one_volume() -> (Cloud, Subject<Volume>) {
    let (cloud, _) = cluster();
    let subject = volume(&cloud);
    (cloud, subject)
}

#[tokio::test(start_paused = true)]
async fn things_of_others_are_neither_taken_nor_ended() {
    checks::neighbours(async || {
        let (cloud, subject) = one_container().await;
        let other = container(&cloud).await;
        (cloud, vec![subject, other])
    })
    .await;
    checks::neighbours(async || {
        let (cloud, subject) = one_volume().await;
        let other = volume(&cloud);
        (cloud, vec![subject, other])
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_was_left_behind_is_found_and_ended() {
    checks::left_behind(one_container).await;
    checks::left_behind(one_volume).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_removed_before_it_is_listed_is_not_left() {
    checks::removed_before_listed(one_container).await;
    checks::removed_before_listed(one_volume).await;
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_is_away_hides_no_other() {
    let mut cloud = cloud(
        &emulator(nodes(), Duration::ZERO),
        "team",
        &json!(["alpha", "beta"]),
    );
    move_beta(&mut cloud);
    let here = container_in(&cloud, "alpha").await;
    let there = container_in(&cloud, "beta").await;
    checks::a_place_away(&cloud, &[here, there], "192.0.2.2").await;
}

#[tokio::test(start_paused = true)]
async fn many_lives_of_containers() {
    let (cloud, subject) = one_container().await;
    soak(&cloud, &subject).await;
}

#[tokio::test(start_paused = true)]
async fn many_lives_of_volumes() {
    let (cloud, subject) = one_volume().await;
    soak(&cloud, &subject).await;
}

/// The cluster of the context `beta` is at 192.0.2.2.
pub(crate) fn move_beta(cloud: &mut Cloud) {
    let data = cloud.config["kubeconfig"]["data"].as_str().unwrap();
    let data = data
        .replace(
            "name: beta\n  context: {cluster: c",
            "name: beta\n  context: {cluster: d",
        )
        .replace(
            "users:\n",
            "- name: d\n  cluster: {server: 'https://192.0.2.2:6443'}\nusers:\n",
        );
    cloud.config["kubeconfig"]["data"] = data.into();
}
