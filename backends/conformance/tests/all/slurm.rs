use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_backend_kit::{
    CANARY, Cloud, EmulatedTransport, Emulator, Exchange, Faults, Notes, Subject, checks, container_in,
    container_of, env, requirements, soak,
};
use dstack_backend_kit::{Driver, container as any_container, group};
use dstack_backend_slurm::{LoginError, LoginNode, LoginNodes, Output, kind_through};
use dstack_compute::config::SlurmCluster;
use dstack_compute::{Backend, ComputeError, ConfigureError, Container, Group, RegistryLogin};
use dstack_emulator_slurm::{Node, Said, Slurm};
use serde_json::{Value, json};

/// Login nodes of one emulated cluster, whatever they are called.
#[derive(Debug)]
struct Logins {
    slurm: Slurm,
    faults: Arc<Faults>,
}

#[derive(Debug)]
struct Login {
    cluster: String,
    slurm: Slurm,
    faults: Arc<Faults>,
    is_allowed: bool,
}

impl LoginNodes for Logins {
    fn login_node(&self, cluster: &SlurmCluster) -> Arc<dyn LoginNode> {
        Arc::new(Login {
            cluster: cluster.name.clone(),
            slurm: self.slurm.clone(),
            faults: Arc::clone(&self.faults),
            is_allowed: cluster.private_key.content.expose() == CANARY,
        })
    }
}

fn output(said: Said) -> Output {
    Output {
        status: Some(said.status),
        stdout: said.stdout,
        stderr: said.stderr,
    }
}

#[async_trait]
impl LoginNode for Login {
    async fn run(&self, script: &str) -> Result<Output, LoginError> {
        if !self.is_allowed {
            return Err(LoginError::Denied("permission denied (publickey)".to_owned()));
        }
        if self.faults.is_away(&self.cluster) {
            return Err(LoginError::Lost("timed out".to_owned()));
        }
        let (slurm, text) = (self.slurm.clone(), script.to_owned());
        match self.faults.exchange(move || slurm.run(&text)).await {
            Exchange::NotSent => Err(LoginError::NotSent("connection refused".to_owned())),
            Exchange::Lost => Err(LoginError::Lost("connection reset".to_owned())),
            Exchange::Failed => Ok(output(self.slurm.fail(script))),
            Exchange::CutOff(mut said) => {
                said.stdout.truncate(said.stdout.len() / 2);
                Ok(output(said))
            }
            Exchange::Answered(said) => Ok(output(said)),
        }
    }
}

fn config(names: &[&str], key: &str) -> Value {
    let cluster = |name: &&str| {
        json!({"name": name, "hostname": format!("{name}.example"), "user": "me", "private_key": {"content": key},
            "gpu_partitions": [{"gpu": "A100:80GB", "partitions": ["gpu"]}]})
    };
    let clusters: Vec<Value> = names.iter().map(cluster).collect();
    json!({"type": "slurm", "clusters": clusters})
}

fn cloud_of(slurm: Slurm, names: &[&str]) -> Cloud {
    let emulator: Arc<dyn Emulator> = Arc::new(slurm.clone());
    let transport = EmulatedTransport::new(emulator.router());
    let env = env(Arc::new(transport.clone()));
    let faults = Arc::clone(transport.faults());
    Cloud {
        kind: kind_through(env.clone(), Arc::new(Logins { slurm, faults })),
        emulator,
        transport,
        env,
        config: config(names, CANARY),
        refused: vec![(
            config(names, "wrong"),
            &["clusters.0.user", "clusters.0.private_key.content"][..],
        )],
        region: None,
    }
}

fn slurm(is_new: bool) -> Slurm {
    slurm_of(is_new, 4)
}

/// With so many nodes.
fn slurm_of(is_new: bool, nodes: usize) -> Slurm {
    let node = |number: usize| Node {
        name: format!("node{number}"),
        partitions: if number < 3 {
            vec!["cpu".to_owned()]
        } else {
            vec!["cpu".to_owned(), "gpu".to_owned()]
        },
        gpus: if number < 3 { 0 } else { 2 },
    };
    Slurm::new((1..=nodes).map(node).collect(), is_new)
}

fn cloud() -> Cloud {
    cloud_of(slurm(true), &["main"])
}

/// A container whose image needs no login.
async fn container(cloud: &Cloud) -> Subject<Container> {
    without_login(any_container(cloud).await)
}

fn without_login(mut subject: Subject<Container>) -> Subject<Container> {
    subject.want.workload.registry = None;
    subject
}

#[tokio::test(start_paused = true)]
async fn credentials() {
    checks::credentials(&cloud()).await;
}

#[tokio::test(start_paused = true)]
async fn all_clusters_are_checked_and_those_that_fail_are_named() {
    let cloud = cloud_of(slurm(true), &["one", "two"]);
    cloud.faults().at(2, dstack_backend_kit::Fault::NotSent);
    let error = cloud.configure(&cloud.config).await.unwrap_err();
    let ConfigureError::Invalid(text) = &error else {
        panic!("{error:?}");
    };
    assert_eq!(
        text,
        "Failed to check clusters: (name=two hostname=two.example): connection refused"
    );
    for (config, expected) in [
        (
            self::config(&["a", "a"], CANARY),
            "clusters[1].name: there are several clusters 'a'",
        ),
        (self::config(&[], CANARY), "clusters: at least one is needed"),
    ] {
        let error = cloud.configure(&config).await.unwrap_err();
        assert_eq!(error, ConfigureError::Invalid(expected.to_owned()));
    }
}

#[tokio::test(start_paused = true)]
async fn offers() {
    checks::offers(&cloud()).await;
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_is_away_hides_no_offers_of_others() {
    let cloud = cloud_of(slurm(true), &["one", "two"]);
    cloud.faults().at(1, dstack_backend_kit::Fault::NotSent);
    let found = cloud.offers(&Cloud::requirements()).await;
    assert!(!found.is_empty());
    let region = &found[0].region;
    assert!(found.iter().all(|offer| offer.region == *region), "{found:?}");
    cloud.faults().from(1, 100, dstack_backend_kit::Fault::NotSent);
    cloud.open().offers(&Cloud::requirements()).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn a_container_lives_and_ends() {
    for is_new in [true, false] {
        let cloud = cloud_of(slurm(is_new), &["main"]);
        checks::whole_life(&cloud, &container(&cloud).await).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_container_is_reached_through_the_login_node() {
    let cloud = cloud();
    let gpus = requirements(&json!({"resources": {"cpu": "2..", "memory": "4GB..", "gpu": "A100:2"}}));
    let subject = without_login(container_of(&cloud, gpus, |_| true).await);
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    let name = subject.marks.name(64);
    assert_eq!(place.instance_id, format!("{name}:1000:node3"));
    assert_eq!(place.hostname.as_deref(), Some("node3"));
    assert_eq!(place.internal_ip.as_deref(), Some("10.0.0.3"));
    assert_eq!(place.availability_zone.as_deref(), Some("gpu"));
    assert_eq!((place.username.as_str(), place.ssh_port), ("root", Some(10_022)));
    let proxy = place.ssh_proxy.unwrap();
    assert_eq!(
        (proxy.hostname.as_str(), proxy.username.as_str(), proxy.port),
        ("main.example", "me", 22)
    );
    assert_eq!(place.instance_type.resources.gpus.len(), 2);
    assert_eq!(place.instance_type.resources.memory_mib, 4096);
}

#[tokio::test(start_paused = true)]
async fn a_group_is_one_job() {
    let cloud = cloud();
    let subject = group(&cloud, 3).await;
    checks::whole_life(&cloud, &subject).await;
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    let nodes: Vec<&str> = place
        .job_provisioning_datas
        .iter()
        .map(|member| member.instance_type.name.as_str())
        .collect();
    assert_eq!(nodes, ["node1", "node2", "node3"]);
    let jobs = cloud
        .emulator
        .ledger()
        .alive()
        .into_iter()
        .filter(|entry| entry.kind == "job")
        .count();
    assert_eq!(jobs, 1);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_to_be_had() {
    let cloud = cloud();
    checks::sold_out(&cloud, &container(&cloud).await).await;
    let cloud = self::cloud();
    checks::sold_out(&cloud, &group(&cloud, 2).await).await;
    // More nodes than there are.
    let cloud = self::cloud();
    let error = Driver::new(&cloud)
        .make(&group(&cloud, 5).await)
        .await
        .unwrap_err();
    assert!(matches!(error, ComputeError::NoCapacity(_)), "{error:?}");
}

/// What one backend says at last, which is an error.
async fn first_error(cloud: &Cloud, backend: &dyn Backend, subject: &Subject<Container>) -> ComputeError {
    Notes::default().make(cloud, backend, subject).await.unwrap_err()
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_had_is_not_tried_again_at_once() {
    let cloud = cloud();
    cloud.emulator.sell_out(true);
    let backend = cloud.open();
    let waited = first_error(&cloud, backend.as_ref(), &container(&cloud).await).await;
    assert_eq!(
        waited,
        ComputeError::NoCapacity(
            "cluster 'main' did not start the Slurm job 1000 within 60 s (Resources)".to_owned()
        )
    );
    let skipped = first_error(&cloud, backend.as_ref(), &container(&cloud).await).await;
    assert!(matches!(skipped, ComputeError::Skipped(_)), "{skipped:?}");
    assert_eq!(cloud.emulator.ledger().count(), 1);
    tokio::time::sleep(Duration::from_secs(61)).await;
    let waited = first_error(&cloud, backend.as_ref(), &container(&cloud).await).await;
    assert!(matches!(waited, ComputeError::NoCapacity(_)), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn private_registries_are_refused_before_anything_is_made() {
    let cloud = cloud();
    let mut subject = container(&cloud).await;
    subject.want.workload.registry = Some(RegistryLogin {
        username: "puller".to_owned(),
        password: CANARY.into(),
        is_servers: false,
    });
    let error = Driver::new(&cloud).make(&subject).await.unwrap_err();
    assert!(
        matches!(&error, ComputeError::Refused(text) if text.contains("Private registries")),
        "{error:?}"
    );
    assert_eq!(cloud.emulator.ledger().count(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_breaks_is_seen() {
    let cloud = cloud();
    checks::loss(&cloud, &container(&cloud).await).await;
    let cloud = self::cloud();
    checks::loss(&cloud, &group(&cloud, 2).await).await;
}

#[tokio::test(start_paused = true)]
async fn what_nobody_knows_of_is_removed_with_its_keys() {
    let cloud = cloud();
    Driver::new(&cloud).make(&container(&cloud).await).await.unwrap();
    let backend = cloud.open();
    let owned = backend.inventory().await.unwrap();
    assert_eq!(owned.len(), 2, "{owned:?}");
    for one in &owned {
        backend.remove_owned(one).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(backend.inventory().await.unwrap(), []);
    assert_eq!(cloud.emulator.ledger().alive(), []);
}

#[tokio::test(start_paused = true)]
async fn whatever_happens_to_a_container_nothing_is_made_twice_or_left() {
    checks::any_fault_anywhere(one_container).await;
}

#[tokio::test(start_paused = true)]
async fn whatever_happens_to_a_group_nothing_is_made_twice_or_left() {
    checks::any_fault_anywhere(async || {
        let cloud = cloud_of(slurm(false), &["main"]);
        let subject = group(&cloud, 2).await;
        (cloud, subject)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn another_attempt_makes_another_container() {
    checks::another_attempt(one_container).await;
}

pub(crate) async fn one_container() -> (Cloud, Subject<Container>) {
    let cloud = cloud();
    let subject = container(&cloud).await;
    (cloud, subject)
}

pub(crate) async fn one_group() -> (Cloud, Subject<Group>) {
    let cloud = cloud_of(slurm_of(true, 8), &["main"]);
    let subject = group(&cloud, 2).await;
    (cloud, subject)
}

#[tokio::test(start_paused = true)]
async fn jobs_of_others_are_neither_taken_nor_ended() {
    checks::neighbours(async || {
        let (cloud, subject) = one_container().await;
        let other = container(&cloud).await;
        (cloud, vec![subject, other])
    })
    .await;
    checks::neighbours(async || {
        let (cloud, subject) = one_group().await;
        let other = group(&cloud, 2).await;
        (cloud, vec![subject, other])
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_was_left_behind_is_found_and_ended() {
    checks::left_behind(one_container).await;
    checks::left_behind(one_group).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_removed_before_it_is_listed_is_not_left() {
    checks::removed_before_listed(one_container).await;
    checks::removed_before_listed(one_group).await;
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_is_away_hides_no_other() {
    let cloud = cloud_of(slurm_of(true, 8), &["here", "there"]);
    let here = without_login(container_in(&cloud, "here").await);
    let there = without_login(container_in(&cloud, "there").await);
    checks::a_place_away(&cloud, &[here, there], "there").await;
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
