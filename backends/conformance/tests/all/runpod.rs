use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dstack_backend_kit::{
    CANARY, Cloud, Driver, Emulator as _, Fault, Subject, checks, container, container_of, extended, group,
    passes_with_the_reference, requirements, sizes_of_catalog, soak, volume, with_container,
};
use dstack_compute::{
    ComputeError, Container, Group, MountedVolume, OwnedKind, Removal, Sign, Volume, VolumeRequest,
};
use dstack_emulator_runpod::{Runpod, Size};
use dstack_model::decode::decode_strict;
use dstack_model::instances::InstanceAvailability;
use dstack_model::runs::Requirements;
use serde_json::{Value, json};

/// A data center in which there are volumes.
const CENTER: &str = "EU-RO-1";

/// All that the catalogue has.
pub(crate) fn sizes() -> Vec<Size> {
    sizes_of_catalog("runpod", &["runpod-cpu", "runpod-cluster"], |row| Size {
        name: row.instance_name().to_owned(),
        place: row.location().to_owned(),
        gpus: row.gpu_count(),
        cpus: row.cpu(),
        memory: row.memory(),
        disk: row.disk_size(),
        is_for_clusters: row.flags().any(|flag| flag == "runpod-cluster"),
    })
}

fn config(key: &str, more: &Value) -> Value {
    let config = json!({"type": "runpod", "creds": {"type": "api_key", "api_key": key}});
    extended(config, more)
}

fn cloud_of(more: &Value) -> Cloud {
    let emulator = Arc::new(Runpod::new(CANARY, sizes()));
    let refused = vec![(config("wrong", more), &["creds.api_key"][..])];
    Cloud::new(
        emulator,
        dstack_backend_runpod::kind,
        config(CANARY, more),
        refused,
    )
}

fn cloud() -> Cloud {
    cloud_of(&json!({}))
}

/// One that offers pods of the community in one country only.
fn community() -> Cloud {
    let places = sizes().into_iter().map(|size| size.place);
    let country = places.into_iter().find(|place| !place.contains('-')).unwrap();
    cloud_of(&json!({"community_cloud": true, "regions": [country]}))
}

fn with_gpus() -> Requirements {
    requirements(&json!({"resources": {"cpu": "1..", "memory": "1GB..", "disk": "1GB..", "gpu": 1}}))
}

/// A container with a GPU, at the cheapest of what is offered in a place.
async fn gpu_container(cloud: &Cloud, is_there: impl Fn(&str) -> bool) -> Subject<Container> {
    container_of(cloud, with_gpus(), |offer| is_there(&offer.region)).await
}

fn volume_in(region: &str) -> Value {
    json!({"type": "volume", "backend": "runpod", "name": "data", "region": region, "size": "100GB"})
}

#[tokio::test(start_paused = true)]
async fn credentials() {
    checks::credentials(&cloud()).await;
}

#[tokio::test(start_paused = true)]
async fn offers() {
    for cloud in [cloud(), community()] {
        checks::offers(&cloud).await;
    }
}

#[tokio::test(start_paused = true)]
async fn pods_of_the_community_are_offered_to_those_who_want_them() {
    let has_countries = async |more: Value| {
        let offers = cloud_of(&more).offers(&with_gpus()).await;
        offers.iter().any(|offer| !offer.region.contains('-'))
    };
    assert!(!has_countries(json!({})).await);
    assert!(!has_countries(json!({"community_cloud": false})).await);
    assert!(has_countries(json!({"community_cloud": true})).await);
}

#[tokio::test(start_paused = true)]
async fn clusters_are_offered_for_several_nodes_only() {
    let backend = cloud().open();
    let of = async |multinode: Option<bool>| {
        let requirements = Requirements {
            multinode,
            ..with_gpus()
        };
        let eight = decode_strict(&json!({"cpu": "1..", "memory": "1GB..", "disk": "1GB..", "gpu": "1..8"}));
        let requirements = Requirements {
            resources: eight.unwrap(),
            ..requirements
        };
        backend.offers(&requirements).await.unwrap()
    };
    let is_of_cluster = |data: &serde_json::Map<String, Value>| data.contains_key("pod_counts");
    assert!(
        of(Some(true))
            .await
            .iter()
            .all(|offer| is_of_cluster(&offer.backend_data))
    );
    assert!(!of(Some(true)).await.is_empty());
    for multinode in [None, Some(false)] {
        assert!(
            !of(multinode)
                .await
                .iter()
                .any(|offer| is_of_cluster(&offer.backend_data))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_out_of_stock_is_not_available() {
    let availability = async |cloud: &Cloud| {
        let offers = cloud.offers(&with_gpus()).await;
        let mut all: Vec<InstanceAvailability> = offers.iter().map(|offer| offer.availability).collect();
        all.dedup();
        all
    };
    let cloud = cloud();
    assert_eq!(availability(&cloud).await, [InstanceAvailability::Available]);
    cloud.emulator.sell_out(true);
    assert_eq!(availability(&cloud).await, [InstanceAvailability::NotAvailable]);
    // The prices are known all the same, and to try shows whether it is there.
    cloud.faults().from(1, 10, Fault::Refused(503));
    assert_eq!(availability(&cloud).await, [InstanceAvailability::Unknown]);
    cloud.faults().from(1, 10, Fault::Refused(401));
    let error = cloud.open().offers(&with_gpus()).await.unwrap_err();
    assert!(matches!(error, ComputeError::Credentials(_)), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_container_lives_and_ends() {
    let without_gpus = cloud();
    checks::whole_life(&without_gpus, &container(&without_gpus).await).await;
    let with_gpus = cloud();
    checks::whole_life(&with_gpus, &gpu_container(&with_gpus, |_| true).await).await;
    let community = community();
    checks::whole_life(&community, &container(&community).await).await;
}

#[tokio::test(start_paused = true)]
async fn a_group_lives_and_ends() {
    let cloud = cloud();
    let subject = group(&cloud, 3).await;
    checks::whole_life(&cloud, &subject).await;
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    let addresses: Vec<_> = place
        .job_provisioning_datas
        .iter()
        .map(|member| member.internal_ip.as_deref())
        .collect();
    let in_order = [Some("10.65.0.2"), Some("10.65.0.3"), Some("10.65.0.4")];
    assert_eq!(addresses, in_order, "members are in the order of their nodes");
}

#[tokio::test(start_paused = true)]
async fn a_volume_lives_and_ends() {
    let cloud = cloud();
    // In lower case it would be made in no data center.
    let subject = volume(&cloud, &volume_in("eu-ro-1"));
    checks::whole_life(&cloud, &subject).await;
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    assert_eq!(
        (place.size_gb, place.attachable, place.detachable),
        (Some(100), false, false)
    );
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_exists_is_registered() {
    let cloud = cloud();
    let made = Driver::new(&cloud)
        .make(&volume(&cloud, &volume_in(CENTER)))
        .await
        .unwrap();
    let backend = cloud.open();
    let volumes = backend.volumes().unwrap();
    let ask = |id: &str, region: &str| {
        let configuration =
            json!({"type": "volume", "backend": "runpod", "name": "data", "region": region, "volume_id": id});
        VolumeRequest {
            ..volume(&cloud, &configuration).want
        }
    };
    let registered = volumes.register(&ask(&made.volume_id, CENTER)).await.unwrap();
    assert_eq!(registered, made);
    for (id, region) in [
        ("gone", CENTER),
        ("../pods", CENTER),
        ("", CENTER),
        (&*made.volume_id, "US-TX-3"),
    ] {
        let error = volumes.register(&ask(id, region)).await.unwrap_err();
        assert!(matches!(error, ComputeError::Refused(_)), "{id}: {error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_deleted_when_no_pod_has_it_any_more() {
    let cloud = cloud();
    let driver = Driver::new(&cloud);
    let disk = volume(&cloud, &volume_in(CENTER));
    let made = driver.make(&disk).await.unwrap();
    let mut subject = gpu_container(&cloud, |region| region == CENTER).await;
    subject.want.workload.volumes = vec![MountedVolume {
        name: "data".to_owned(),
        volume: made.clone(),
        path: "/data".to_owned(),
    }];
    let pods = Driver::new(&cloud);
    let place = pods.make(&subject).await.unwrap();
    let owned = cloud.open().inventory().await.unwrap();
    let owned = owned
        .iter()
        .find(|owned| owned.kind == OwnedKind::Volume)
        .unwrap();
    let error = cloud.open().remove_owned(owned).await.unwrap_err();
    assert!(matches!(error, ComputeError::InUse(_)), "{error:?}");
    pods.remove(&subject.known(Some(place)), &subject).await;
    driver.remove(&disk.known(Some(made)), &disk).await;
    assert_eq!(cloud.emulator.ledger().alive(), []);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_to_be_had() {
    for cloud in [cloud(), community()] {
        checks::sold_out(&cloud, &container(&cloud).await).await;
    }
    let cloud = cloud();
    checks::sold_out(&cloud, &group(&cloud, 2).await).await;
    checks::sold_out(&cloud, &volume(&cloud, &volume_in(CENTER))).await;
}

#[tokio::test(start_paused = true)]
async fn what_breaks_is_seen() {
    for cloud in [cloud(), community()] {
        checks::loss(&cloud, &container(&cloud).await).await;
    }
    let cloud = cloud();
    checks::loss(&cloud, &group(&cloud, 2).await).await;
}

#[tokio::test(start_paused = true)]
async fn a_container_that_ends_before_it_is_reached_has_failed() {
    let cloud = cloud();
    let subject = container(&cloud).await;
    let driver = Driver::new(&cloud);
    let ended = async {
        // While it starts.
        tokio::time::sleep(Duration::from_secs(15)).await;
        cloud.emulator.lose_all();
    };
    let (made, ()) = tokio::join!(driver.make(&subject), ended);
    let error = made.unwrap_err();
    assert!(matches!(error, ComputeError::Broken(_)), "{error:?}");
    assert_eq!(cloud.emulator.ledger().alive(), [], "the login goes with the pod");
}

#[tokio::test(start_paused = true)]
async fn what_somebody_else_has_deleted_is_lost() {
    let cloud = cloud();
    let (pod, nodes) = (container(&cloud).await, group(&cloud, 2).await);
    let disk = volume(&cloud, &volume_in(CENTER));
    let driver = || Driver::new(&cloud);
    let pod_place = driver().make(&pod).await.unwrap();
    let nodes_place = driver().make(&nodes).await.unwrap();
    let disk_place = driver().make(&disk).await.unwrap();
    let backend = cloud.open();
    // A login is in use until its pod is forgotten.
    for _ in 0..20 {
        let mut left = BTreeMap::new();
        for owned in backend.inventory().await.unwrap() {
            left.insert(owned.id.clone(), backend.remove_owned(&owned).await.unwrap());
        }
        if left.is_empty() {
            break;
        }
        assert!(left.values().any(|removal| *removal == Removal::Gone), "{left:?}");
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    assert_eq!(cloud.emulator.ledger().alive(), []);
    let sign = pod.sign(&*backend, &pod.known(Some(pod_place))).await;
    assert!(matches!(sign, Some(Sign::Lost(_))), "{sign:?}");
    let sign = nodes.sign(&*backend, &nodes.known(Some(nodes_place))).await;
    assert!(matches!(sign, Some(Sign::Lost(_))), "{sign:?}");
    let sign = disk.sign(&*backend, &disk.known(Some(disk_place))).await;
    assert!(matches!(sign, Some(Sign::Lost(_))), "{sign:?}");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_reached_elsewhere_has_moved() {
    let cloud = cloud();
    let (pod, nodes) = (container(&cloud).await, group(&cloud, 2).await);
    let pod_place = Driver::new(&cloud).make(&pod).await.unwrap();
    let nodes_place = Driver::new(&cloud).make(&nodes).await.unwrap();
    let backend = cloud.open();
    let mut before = pod_place.clone();
    before.ssh_port = Some(1);
    let sign = pod.sign(&*backend, &pod.known(Some(before))).await;
    assert_eq!(sign, Some(Sign::Moved(pod_place)));
    let mut before = nodes_place.clone();
    before.job_provisioning_datas[1].hostname = Some("192.0.2.99".to_owned());
    let sign = nodes.sign(&*backend, &nodes.known(Some(before))).await;
    assert_eq!(sign, Some(Sign::Moved(nodes_place)));
}

#[tokio::test(start_paused = true)]
async fn whatever_happens_no_container_is_made_twice_or_left() {
    for fresh in [cloud, community] {
        checks::any_fault_anywhere(async || {
            let cloud = fresh();
            let subject = container(&cloud).await;
            (cloud, subject)
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn whatever_happens_no_group_is_made_twice_or_left() {
    checks::any_fault_anywhere(async || {
        let cloud = cloud();
        let subject = group(&cloud, 2).await;
        (cloud, subject)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn whatever_happens_no_volume_is_made_twice_or_left() {
    checks::any_fault_anywhere(one_volume).await;
}

/// The reference's own code against this cloud: `reference.py` makes, waits for and removes one thing of each kind.
#[tokio::test]
async fn the_reference_finds_its_way_in_the_emulated_cloud() {
    let emulator = Runpod::with_pace(CANARY, sizes(), Duration::from_millis(50));
    let one = |is_wanted: &dyn Fn(&Size) -> bool| {
        let size = sizes().into_iter().find(is_wanted).unwrap();
        json!({"name": size.name, "place": size.place, "gpus": size.gpus, "cpus": size.cpus,
            "memory": size.memory, "cluster": size.is_for_clusters})
    };
    let kinds = json!({
        "cpu": one(&|size| size.gpus == 0),
        "gpu": one(&|size| size.gpus == 1 && size.place == CENTER),
        "community": one(&|size| size.gpus == 1 && !size.place.contains('-')),
        "cluster": one(&|size| size.is_for_clusters),
    });
    if !passes_with_the_reference("runpod", &emulator, &[CANARY, &kinds.to_string()]).await {
        return;
    }
    assert_eq!(emulator.ledger().alive(), []);
    assert!(emulator.ledger().count() >= 8, "it made too little");
}

#[tokio::test(start_paused = true)]
async fn another_attempt_makes_another_container() {
    checks::another_attempt(one_container).await;
}

#[tokio::test(start_paused = true)]
async fn things_of_others_are_neither_taken_nor_ended() {
    checks::neighbours(async || {
        let cloud = cloud();
        let subjects = vec![container(&cloud).await, container(&cloud).await];
        (cloud, subjects)
    })
    .await;
    checks::neighbours(async || {
        let cloud = cloud();
        let subjects = vec![group(&cloud, 2).await, group(&cloud, 2).await];
        (cloud, subjects)
    })
    .await;
    checks::neighbours(async || {
        let cloud = cloud();
        let subjects = vec![
            volume(&cloud, &volume_in(CENTER)),
            volume(&cloud, &volume_in(CENTER)),
        ];
        (cloud, subjects)
    })
    .await;
}

pub(crate) async fn one_container() -> (Cloud, Subject<Container>) {
    with_container(cloud()).await
}

pub(crate) async fn one_group() -> (Cloud, Subject<Group>) {
    let cloud = cloud();
    let subject = group(&cloud, 2).await;
    (cloud, subject)
}

async fn one_volume() -> (Cloud, Subject<Volume>) {
    let cloud = cloud();
    let subject = volume(&cloud, &volume_in(CENTER));
    (cloud, subject)
}

#[tokio::test(start_paused = true)]
async fn what_was_left_behind_is_found_and_ended() {
    checks::left_behind(one_container).await;
    checks::left_behind(one_group).await;
    checks::left_behind(one_volume).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_removed_before_it_is_listed_is_not_left() {
    checks::removed_before_listed(one_container).await;
    checks::removed_before_listed(one_group).await;
    checks::removed_before_listed(one_volume).await;
}

#[tokio::test(start_paused = true)]
async fn many_lives_of_containers() {
    let (cloud, subject) = one_container().await;
    soak(&cloud, &subject).await;
}

#[tokio::test(start_paused = true)]
async fn many_lives_of_groups() {
    let (cloud, subject) = one_group().await;
    soak(&cloud, &subject).await;
}

#[tokio::test(start_paused = true)]
async fn many_lives_of_volumes() {
    let (cloud, subject) = one_volume().await;
    soak(&cloud, &subject).await;
}
