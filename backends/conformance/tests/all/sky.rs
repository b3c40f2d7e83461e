use std::sync::Arc;
use std::time::Duration;

use dstack_backend_kit::{
    CANARY, Cloud, Driver, Emulator as _, Fault, Notes, Subject, checks, checks_of, container,
    reference_python, run, served,
};
use dstack_compute::{ComputeError, ConfigureError, Container, MountedFolder, RegistryLogin, Sign};
use dstack_emulator_sky::Sky;
use dstack_model::decode::decode_strict;
use dstack_model::instances::InstanceAvailability;
use dstack_model::runs::Requirements;
use serde_json::{Value, json};

fn offer(backend: &str, region: &str, name: &str, price: f64, more: &Value) -> Value {
    let mut offer = json!({"backend": backend, "region": region, "price": price, "backend_data": {},
        "instance": {"name": name, "resources": {"cpus": 8, "memory_mib": 32_768, "gpus": [], "spot": false,
            "disk": {"size_mib": 102_400}, "cpu_arch": "x86", "description": ""}},
        "availability": "unknown", "availability_zones": null, "instance_runtime": "shim", "blocks": 1,
        "total_blocks": 1});
    let gpu = json!({"name": "A10G", "memory_mib": 24_576, "vendor": "nvidia"});
    offer["instance"]["resources"]["gpus"] = json!([gpu]);
    for (name, value) in more.as_object().unwrap() {
        match name.as_str() {
            "spot" => offer["instance"]["resources"]["spot"] = value.clone(),
            name => offer[name] = value.clone(),
        }
    }
    offer
}

fn offers() -> Vec<Value> {
    let none = json!({});
    vec![
        offer("aws", "us-east-1", "g5.2xlarge", 1.2, &none),
        // In another region, for another price.
        offer("aws", "us-west-2", "g5.2xlarge", 1.3, &none),
        // A region of the same name.
        offer("gcp", "us-east-1", "g2", 1.4, &none),
        offer("aws", "us-east-1", "g5.2xlarge", 0.5, &json!({"spot": true})),
        // An instance that is there, and one that is in use.
        offer("remote", "remote", "ssh", 0.0, &json!({"availability": "idle"})),
        offer(
            "aws",
            "us-east-1",
            "g6.2xlarge",
            1.0,
            &json!({"availability": "busy"}),
        ),
        // A container of a cloud.
        offer(
            "runpod",
            "US-KS-2",
            "A40",
            0.9,
            &json!({"instance_runtime": "runner"}),
        ),
        // Shares of an instance, containers with one port, and yet another server.
        offer(
            "aws",
            "us-east-1",
            "g5.48xlarge",
            0.2,
            &json!({"blocks": 1, "total_blocks": 8}),
        ),
        offer(
            "kubernetes",
            "cluster",
            "node",
            0.1,
            &json!({"instance_runtime": "runner"}),
        ),
        offer(
            "dstack",
            "aws/us-east-1",
            "g5.2xlarge",
            0.1,
            &json!({"instance_runtime": "runner"}),
        ),
        // What no version knows.
        offer(
            "aws",
            "us-east-1",
            "new",
            0.1,
            &json!({"availability": "perhaps"}),
        ),
    ]
}

struct Played {
    emulator: Arc<Sky>,
    cloud: Cloud,
}

const URL: &str = "http://dstack.example:3000/";

fn played(more: &Value) -> Played {
    let config = |token: &str| {
        let mut config = json!({"type": "dstack", "url": URL, "project": "research",
            "creds": {"type": "api_token", "api_token": token}});
        config
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        config
    };
    let emulator = Arc::new(Sky::new(CANARY, "research", offers()));
    let refused = vec![(config("wrong"), &["creds.api_token"][..])];
    let cloud = Cloud::new(
        Arc::clone(&emulator) as _,
        dstack_backend_sky::kind,
        config(CANARY),
        refused,
    );
    Played { emulator, cloud }
}

fn cloud() -> Cloud {
    played(&json!({})).cloud
}

async fn one_run() -> (Cloud, Subject<Container>) {
    let cloud = cloud();
    let subject = wanted(&cloud).await;
    (cloud, subject)
}

/// What a run can be asked for: it has no network volumes.
async fn wanted(cloud: &Cloud) -> Subject<Container> {
    let mut subject = container(cloud).await;
    subject.want.workload.volumes.clear();
    subject
}

async fn two_runs() -> (Cloud, Vec<Subject<Container>>) {
    let cloud = cloud();
    let subjects = vec![wanted(&cloud).await, wanted(&cloud).await];
    (cloud, subjects)
}

checks_of!(containers: one_run, two_runs);

#[tokio::test(start_paused = true)]
async fn credentials() {
    checks::credentials(&cloud()).await;
}

#[tokio::test(start_paused = true)]
async fn offers_are_those_of_the_other_server() {
    checks::offers(&cloud()).await;
}

fn of(resources: &Value, spot: Option<bool>) -> Requirements {
    decode_strict(&json!({"resources": resources, "spot": spot})).unwrap()
}

async fn found(cloud: &Cloud, requirements: &Requirements) -> Vec<(String, String, f64)> {
    let offers = cloud.open().offers(requirements).await.unwrap();
    let row = |offer: &dstack_model::offers::InstanceOfferWithAvailability| {
        (offer.region.to_string(), offer.instance.name.clone(), offer.price)
    };
    offers.iter().map(row).collect()
}

fn rows(expected: &[(&str, &str, f64)]) -> Vec<(String, String, f64)> {
    let row = |(region, name, price): &(&str, &str, f64)| ((*region).to_owned(), (*name).to_owned(), *price);
    expected.iter().map(row).collect()
}

#[tokio::test(start_paused = true)]
async fn what_leads_back_or_cannot_be_reached_is_not_offered() {
    let Played { emulator, cloud } = played(&json!({}));
    let any = json!({"cpu": "1..", "memory": "1GB..", "disk": "1GB..", "gpu": "0.."});
    let all = [
        ("aws/us-east-1", "g5.2xlarge", 1.2),
        ("aws/us-west-2", "g5.2xlarge", 1.3),
        ("gcp/us-east-1", "g2", 1.4),
        ("remote/remote", "ssh", 0.0),
        ("aws/us-east-1", "g6.2xlarge", 1.0),
        ("runpod/US-KS-2", "A40", 0.9),
    ];
    assert_eq!(found(&cloud, &of(&any, Some(false))).await, rows(&all));
    assert_eq!(
        found(&cloud, &of(&any, Some(true))).await,
        rows(&[("aws/us-east-1", "g5.2xlarge", 0.5)])
    );
    // The other server never asks a backend that may be this one.
    let planned = emulator.planned();
    assert_eq!(planned[0]["backends"], json!(["aws", "gcp", "runpod", "remote"]));
    assert_eq!(planned[0]["fleets"].as_array().unwrap().len(), 2);

    let offers = cloud.open().offers(&of(&any, Some(false))).await.unwrap();
    let availability = |name: &str| {
        let named = offers.iter().find(|offer| offer.instance.name == name);
        named.unwrap().availability
    };
    assert_eq!(availability("ssh"), InstanceAvailability::Available);
    assert_eq!(availability("g6.2xlarge"), InstanceAvailability::NotAvailable);
}

#[tokio::test(start_paused = true)]
async fn backends_can_be_named() {
    let Played { emulator, cloud } = played(&json!({"backends": ["gcp", "dstack"]}));
    let any = of(&json!({"gpu": "1.."}), None);
    assert_eq!(found(&cloud, &any).await, rows(&[("gcp/us-east-1", "g2", 1.4)]));
    assert_eq!(emulator.planned()[0]["backends"], json!(["gcp"]));
    let only_itself = played(&json!({"backends": ["dstack"]}));
    assert_eq!(found(&only_itself.cloud, &any).await, []);
    assert_eq!(only_itself.emulator.planned(), Vec::<Value>::new());
}

#[tokio::test(start_paused = true)]
async fn offers_are_asked_for_once_in_a_while_for_each_requirement() {
    let Played { emulator, cloud } = played(&json!({}));
    let backend = cloud.open();
    let (one, other) = (of(&json!({"gpu": 1}), None), of(&json!({"gpu": 2}), None));
    for requirements in [&one, &one, &other, &one] {
        backend.offers(requirements).await.unwrap();
    }
    assert_eq!(emulator.planned().len(), 2);
    tokio::time::sleep(Duration::from_secs(200)).await;
    backend.offers(&one).await.unwrap();
    assert_eq!(emulator.planned().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn what_the_other_server_waits_for_is_waited_for_and_never_taken_for_all_there_is() {
    let Played { emulator, cloud } = played(&json!({}));
    let (backend, any) = (cloud.open(), of(&json!({"gpu": 1}), None));
    let all = backend.offers(&any).await.unwrap().len();
    tokio::time::sleep(Duration::from_secs(200)).await;
    emulator.answer_early(2);
    assert_eq!(backend.offers(&any).await.unwrap().len(), all);
    assert_eq!(emulator.planned().len(), 1 + 3);

    // It is not waited for for ever, and what it has said so far does for a moment.
    tokio::time::sleep(Duration::from_secs(200)).await;
    emulator.answer_early(6);
    assert_eq!(backend.offers(&any).await.unwrap().len(), 0);
    let asked = emulator.planned().len();
    assert_eq!(asked, 1 + 3 + 5);
    backend.offers(&any).await.unwrap();
    assert_eq!(emulator.planned().len(), asked);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(backend.offers(&any).await.unwrap().len(), all);
    assert_eq!(emulator.planned().len(), asked + 2);
}

async fn configured(cloud: &Cloud) -> Result<(), ConfigureError> {
    cloud.configure(&cloud.config).await.map(drop)
}

/// Not all routes find a project whatever the case of its letters.
#[tokio::test(start_paused = true)]
async fn the_project_is_stored_as_the_other_server_writes_it() {
    let cloud = played(&json!({"project": "Research"})).cloud;
    let stored = cloud.configure(&cloud.config).await.unwrap();
    assert_eq!(stored["project"], "research");
}

/// What runs in a project that is not configured any more goes on, and is not taken for gone.
#[tokio::test(start_paused = true)]
async fn a_run_is_looked_for_where_it_was_made() {
    let Played { emulator, mut cloud } = played(&json!({}));
    let subject = wanted(&cloud).await;
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    let known = subject.known(Some(place));
    for (url, project) in [
        ("http://dstack.example:3000/", "main"),
        ("http://other.example/", "research"),
    ] {
        let before = cloud.config.clone();
        cloud.config["url"] = url.into();
        cloud.config["project"] = project.into();
        assert_eq!(subject.sign(&*cloud.open(), &known).await, None);
        let error = Notes::default()
            .remove(&cloud, &subject, known.place.clone())
            .await
            .unwrap_err();
        assert!(
            matches!(&error, ComputeError::Configuration(text) if text.contains("research at http://dstack.example:3000")),
            "{error:?}"
        );
        cloud.config = before;
    }
    assert_eq!(emulator.ledger().alive().len(), 1);
    assert_eq!(subject.sign(&*cloud.open(), &known).await, Some(Sign::Well));
    Driver::new(&cloud).remove(&known, &subject).await;
    assert_eq!(emulator.ledger().alive(), []);
}

#[tokio::test(start_paused = true)]
async fn what_is_missing_at_the_other_server_is_said() {
    let refused = async |played: &Played| match configured(&played.cloud).await.unwrap_err() {
        ConfigureError::Invalid(text) => text,
        other => panic!("{other:?}"),
    };
    for (more, expected) in [
        (json!({"project": "other"}), "has no project other"),
        (json!({"project": "../users"}), "is no name of a project"),
        (json!({"url": "sky"}), "is no address of a dstack server"),
        (json!({"url": "ftp://sky"}), "is no address of a dstack server"),
    ] {
        let text = refused(&played(&more)).await;
        assert!(text.contains(expected), "{text}");
    }
    let without_fleets = played(&json!({}));
    configured(&without_fleets.cloud).await.unwrap();
    without_fleets.emulator.remove_fleets();
    let text = refused(&without_fleets).await;
    assert!(text.contains("has no fleet"), "{text}");
    assert_eq!(found(&without_fleets.cloud, &of(&json!({}), None)).await, []);
    let old = played(&json!({}));
    old.emulator.be_of_version(0, 21);
    let text = refused(&old).await;
    assert!(text.contains("0.22 or later"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_server_is_no_backend_of_itself() {
    let mut cloud = cloud();
    for (own, refused) in [
        ("http://dstack.example:3000", true),
        ("http://dstack.example:3001", false),
    ] {
        let mut env = cloud.env.clone();
        env.own_url = Some(own.parse().unwrap());
        cloud.kind = dstack_backend_sky::kind(env);
        let configured = configured(&cloud).await;
        assert_eq!(configured.is_err(), refused, "{configured:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_is_asked_for_as_the_job_needs_it() {
    let Played { emulator, cloud } = played(&json!({}));
    let mut subject = wanted(&cloud).await;
    let workload = &mut subject.want.workload;
    workload.script = "echo 'a b'\nexec sleep infinity".to_owned();
    workload.authorized_keys = vec!["ssh-ed25519 AAAA".to_owned(), "ssh-ed25519 BBBB".to_owned()];
    workload.privileged = true;
    workload.folders = vec![MountedFolder {
        node_path: "/mnt/data".to_owned(),
        path: "/data".to_owned(),
        optional: true,
    }];
    workload.registry = Some(RegistryLogin {
        username: "${{ secrets.user }}".to_owned(),
        password: "a$b$$c".to_owned().into(),
        is_servers: false,
    });
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    let applied = &emulator.applied()[0];
    assert_eq!(applied["ssh_key_pub"], "ssh-ed25519 AAAA");
    let asked = &applied["configuration"];
    for (field, expected) in [
        ("backends", json!(["aws"])),
        ("regions", json!(["us-east-1"])),
        ("instance_types", json!(["g5.2xlarge"])),
        ("spot_policy", json!("on-demand")),
        ("max_price", json!(1.2)),
        ("retry", json!(false)),
        ("max_duration", json!("off")),
        ("privileged", json!(true)),
        ("user", json!("root")),
        (
            // The other server takes two dollar signs for one, and puts no secret of its own there.
            "registry_auth",
            json!({"username": "$${{ secrets.user }}", "password": "a$$b$$$$c"}),
        ),
        ("image", json!(subject.want.workload.image)),
        (
            "volumes",
            json!([{"instance_path": "/mnt/data", "path": "/data", "optional": true}]),
        ),
    ] {
        assert_eq!(asked[field], expected, "{field}");
    }
    let command = asked["commands"][0].as_str().unwrap();
    assert!(
        command.starts_with("export DSTACK_BOOTSTRAP_SSH_PORT=10023 "),
        "{command}"
    );
    assert!(command.ends_with("echo 'a b'\nexec sleep infinity"), "{command}");
    assert!(
        command.contains("ssh-ed25519 BBBB") && !command.contains("AAAA"),
        "{command}"
    );
    let proxy = place.ssh_proxy.unwrap();
    assert_eq!(
        (place.hostname.as_deref(), place.ssh_port, place.username.as_str()),
        (Some("localhost"), Some(10_023), "root")
    );
    assert_eq!(
        (proxy.hostname.as_str(), proxy.username.as_str(), proxy.port),
        ("203.0.113.5", "ubuntu", 22)
    );
    assert_eq!(place.region, "aws/us-east-1");
}

#[tokio::test(start_paused = true)]
async fn a_container_of_a_cloud_is_gone_through() {
    let Played { cloud, .. } = played(&json!({"backends": ["runpod"]}));
    let place = Driver::new(&cloud).make(&wanted(&cloud).await).await.unwrap();
    let proxy = place.ssh_proxy.unwrap();
    assert_eq!(
        (place.hostname.as_deref(), place.ssh_port),
        (Some("localhost"), Some(10_023))
    );
    assert_eq!((proxy.username.as_str(), proxy.port), ("root", 20_022));
}

/// A host costs nothing, which is no price that can be asked for.
#[tokio::test(start_paused = true)]
async fn a_host_of_the_other_server_is_taken() {
    let Played { emulator, cloud } = played(&json!({"backends": ["remote"]}));
    Driver::new(&cloud).make(&wanted(&cloud).await).await.unwrap();
    assert_eq!(emulator.applied()[0]["configuration"]["max_price"], Value::Null);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_made_or_reached_is_said_and_leaves_nothing() {
    let Played { emulator, cloud } = played(&json!({}));
    let mut volume = container(&cloud).await;
    volume.want.workload.volumes = vec![dstack_compute::MountedVolume {
        name: "data".to_owned(),
        volume: serde_json::from_value(json!({"volume_id": "v", "size_gb": 1})).unwrap(),
        path: "/data".to_owned(),
    }];
    let error = Driver::new(&cloud).make(&volume).await.unwrap_err();
    assert!(matches!(error, ComputeError::Refused(_)), "{error:?}");
    assert_eq!(emulator.ledger().count(), 0);

    emulator.give_own_networks();
    let error = Driver::new(&cloud).make(&wanted(&cloud).await).await.unwrap_err();
    assert!(
        matches!(&error, ComputeError::Broken(why) if why.contains("NETWORK_MODE")),
        "{error:?}"
    );
    assert_eq!((emulator.ledger().alive(), emulator.runs()), (Vec::new(), 0));

    emulator.sell_out(true);
    let error = Driver::new(&cloud).make(&wanted(&cloud).await).await.unwrap_err();
    assert!(matches!(error, ComputeError::NoCapacity(_)), "{error:?}");
    assert_eq!((emulator.ledger().alive(), emulator.runs()), (Vec::new(), 0));
}

/// A run of the name is there already when the answer to its making was lost and it is asked for again.
#[tokio::test(start_paused = true)]
async fn a_run_that_is_listed_late_is_made_once() {
    let Played { emulator, cloud } = played(&json!({}));
    let subject = wanted(&cloud).await;
    cloud.faults().at(1, Fault::AnswerLost);
    emulator.lag(Duration::from_secs(100));
    let driver = Driver::new(&cloud);
    let made = driver.make(&subject).await.unwrap();
    assert!(cloud.faults().happened());
    assert_eq!(emulator.ledger().count(), 1);
    driver.remove(&subject.known(Some(made)), &subject).await;
    assert_eq!(
        (emulator.ledger().alive(), emulator.ledger().count()),
        (Vec::new(), 1)
    );
}

/// One call tells of all that run, and what is over is asked for by itself.
#[tokio::test(start_paused = true)]
async fn a_run_that_somebody_ends_is_lost() {
    let Played { emulator, cloud } = played(&json!({}));
    let (one, other) = (wanted(&cloud).await, wanted(&cloud).await);
    let driver = Driver::new(&cloud);
    let known = [
        one.known(Some(driver.make(&one).await.unwrap())),
        other.known(Some(Driver::new(&cloud).make(&other).await.unwrap())),
        one.known(None),
    ];
    let backend = cloud.open();
    let signs = backend.containers().unwrap().look(&known).await.unwrap();
    assert_eq!(signs, [Some(Sign::Well), Some(Sign::Well), None]);
    driver.remove(&known[0], &one).await;
    let signs = backend.containers().unwrap().look(&known).await.unwrap();
    let gone = "the other server does not have the run any more".to_owned();
    assert_eq!(signs, [Some(Sign::Lost(gone)), Some(Sign::Well), None]);
    emulator.lose_all();
    let signs = backend.containers().unwrap().look(&known).await.unwrap();
    assert!(
        matches!(&signs[1], Some(Sign::Lost(why)) if why.contains("instance_unreachable")),
        "{signs:?}"
    );
}

/// Runs of the project that are not ours are on many pages.
#[tokio::test(start_paused = true)]
async fn runs_are_found_on_later_pages() {
    let Played { emulator, cloud } = played(&json!({}));
    let subject = wanted(&cloud).await;
    let place = Driver::new(&cloud).make(&subject).await.unwrap();
    for at in 0..230 {
        emulator.run_of_somebody(&format!("train-{at}"));
    }
    let backend = cloud.open();
    let owned = backend.inventory().await.unwrap();
    assert_eq!(owned.len(), 1);
    assert!(owned[0].id == place.instance_id && owned[0].region == "aws/us-east-1");
    let signs = backend
        .containers()
        .unwrap()
        .look(&[subject.known(Some(place))])
        .await;
    assert_eq!(signs.unwrap(), [Some(Sign::Well)]);
}

/// The reference's own client against this server: `reference.py` plans, makes, looks at, ends and deletes a run.
#[tokio::test]
async fn the_reference_finds_its_way_in_the_emulated_server() {
    let python = match reference_python() {
        Ok(python) => python,
        Err(reason) => {
            eprintln!("skipped: {reason}");
            return;
        }
    };
    let emulator = Sky::with_pace(CANARY, "research", offers(), Duration::from_millis(50));
    let url = served(&emulator).await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../sky/emulator/reference.py");
    let (status, text) = run(&python, &[script, &url, CANARY]).await;
    assert!(status && text.contains("all parts passed"), "{text}");
    assert_eq!((emulator.ledger().alive(), emulator.runs()), (Vec::new(), 0));
    assert!(emulator.ledger().count() >= 2, "it made too little");
}
