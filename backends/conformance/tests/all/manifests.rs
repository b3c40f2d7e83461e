//! Backends that a file describes, against the same emulators as those in Rust.

use std::sync::Arc;
use std::time::Duration;

use dstack_backend_kit::{
    CANARY, Cloud, Driver, Emulator as _, Subject, checks, checks_of, machine, machine_of, requirements,
    sizes_of_catalog, with_machine, with_machines,
};
use dstack_backend_manifest::{Choice, Finding, Manifest, check_life, kind, read};
use dstack_compute::{ComputeError, Machine};
use dstack_model::instances::InstanceAvailability;
use serde_json::{Value, json};

const LAMBDA: &str = include_str!("../../../manifest/examples/lambda.yml");

const DIGITALOCEAN: &str = include_str!("../../../manifest/examples/digitalocean.yml");

fn manifest(text: &str) -> Manifest {
    read(text, "example.yml").unwrap_or_else(|errors| panic!("{errors}"))
}

fn config(kind: &str, key: &str) -> Value {
    json!({"type": kind, "creds": {"type": "api_key", "api_key": key}})
}

mod lambda {
    use dstack_emulator_lambda::{Lambda, Size, Times, USUAL};

    use super::*;

    const KIND: &str = "lambda-manifest";

    /// All sizes of the catalogue.
    fn sizes() -> Vec<Size> {
        sizes_of_catalog("lambdalabs", &["lambda-arm"], |row| Size {
            name: row.instance_name().to_owned(),
            region: row.location().to_owned(),
        })
    }

    fn cloud_of(emulator: Lambda) -> Cloud {
        let refused = vec![(config(KIND, "wrong"), &["creds.api_key"][..])];
        Cloud::new(
            Arc::new(emulator),
            |env| kind(env, manifest(LAMBDA)).unwrap(),
            config(KIND, CANARY),
            refused,
        )
    }

    fn cloud() -> Cloud {
        cloud_of(Lambda::new(CANARY, sizes()))
    }

    async fn one_machine() -> (Cloud, Subject<Machine>) {
        with_machine(cloud()).await
    }

    async fn two_machines() -> (Cloud, Vec<Subject<Machine>>) {
        with_machines(cloud(), 2).await
    }

    checks_of!(machines: one_machine, two_machines);

    #[tokio::test(start_paused = true)]
    async fn credentials() {
        checks::credentials(&cloud()).await;
    }

    #[tokio::test(start_paused = true)]
    async fn offers() {
        checks::offers(&cloud()).await;
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_free_is_told_for_each_region() {
        let free = sizes()[0].clone();
        let cloud = cloud_of(Lambda::new(CANARY, vec![free.clone()]));
        let offers = cloud.offers(&Cloud::requirements()).await;
        let available = offers
            .iter()
            .filter(|offer| offer.availability == InstanceAvailability::Available);
        let places: Vec<_> = available
            .map(|offer| (&*offer.instance.name, &*offer.region))
            .collect();
        assert_eq!(places, [(&*free.name, &*free.region)]);
        assert!(offers.len() > 100, "{}", offers.len());
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_are_told_apart() {
        for (status, code) in [
            (400, "global/quota-exceeded"),
            (403, "global/invalid-address"),
            (403, "global/account-inactive"),
            (400, "global/invalid-parameters"),
        ] {
            let emulator = Lambda::new(CANARY, sizes());
            emulator.refuse_launches(status, code);
            let cloud = cloud_of(emulator);
            let error = Driver::new(&cloud)
                .make(&machine(&cloud).await)
                .await
                .unwrap_err();
            let is_expected = match code {
                "global/quota-exceeded" => matches!(error, ComputeError::NoQuota(_)),
                "global/account-inactive" => matches!(error, ComputeError::Credentials(_)),
                _ => matches!(error, ComputeError::Refused(_)),
            };
            assert!(is_expected, "{code}: {error:?}");
        }
    }

    /// The API takes one request a second, and one launch in twelve: whoever asks sooner is told 429.
    #[tokio::test(start_paused = true)]
    async fn requests_and_launches_are_as_far_apart_as_the_api_wants() {
        let times = Times {
            request_interval: Duration::from_secs(1),
            ..USUAL
        };
        let another = cloud();
        let subjects = [
            machine(&another).await,
            machine(&another).await,
            machine(&another).await,
        ];
        let emulator = Lambda::with_times(CANARY, sizes(), times);
        let cloud = cloud_of(emulator.clone());
        let backend = cloud.open();
        let lives = subjects.iter().map(async |subject| {
            let driver = Driver::with_backend(&cloud, Arc::clone(&backend));
            let place = driver.make(subject).await.unwrap();
            driver.remove(&subject.known(Some(place)), subject).await;
            let errors = driver.errors.lock().unwrap().clone();
            assert!(errors.iter().all(|error| !error.contains("429")), "{errors:?}");
        });
        futures_util::future::join_all(lives).await;
        assert_eq!(
            (emulator.ledger().count(), emulator.ledger().alive()),
            (3, Vec::new())
        );
        assert_eq!(emulator.key_names().len(), 1, "all share one key");
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_is_told_the_same_as_by_the_backend_in_rust() {
        let emulator = Lambda::new(CANARY, sizes());
        let cloud = cloud_of(emulator.clone());
        Driver::new(&cloud).make(&machine(&cloud).await).await.unwrap();
        let told = emulator.user_data().remove(0);
        let config: Value = serde_json::from_str(told.strip_prefix("#cloud-config\n").unwrap()).unwrap();
        let docker: Value =
            serde_json::from_str(config["write_files"][0]["content"].as_str().unwrap()).unwrap();
        assert_eq!(docker["runtimes"]["nvidia"]["path"], "nvidia-container-runtime");
        assert_eq!(config["ssh_authorized_keys"].as_array().unwrap().len(), 1);
        let commands = config["runcmd"][0].as_array().unwrap();
        assert_eq!(commands.len(), 3, "{commands:?}");
    }

    async fn findings(text: &str, key: &str) -> (bool, Vec<Finding>, Lambda) {
        let emulator = Lambda::new(CANARY, sizes());
        let cloud = cloud_of(emulator.clone());
        let fields = [("api_key".to_owned(), key.to_owned())];
        let mut found = Vec::new();
        let mut tell = |finding: &Finding| found.push(finding.clone());
        let (manifest, never) = (manifest(text), std::future::pending());
        let is_right = check_life(
            &cloud.env,
            &manifest,
            &fields,
            &Choice::default(),
            never,
            &mut tell,
        )
        .await;
        (is_right, found, emulator)
    }

    fn result<'a>(findings: &'a [Finding], step: &str) -> &'a Result<String, String> {
        let found = findings.iter().find(|finding| finding.step == step);
        &found
            .unwrap_or_else(|| panic!("{step} is not in {findings:?}"))
            .result
    }

    #[tokio::test(start_paused = true)]
    async fn a_life_is_gone_through_step_by_step() {
        let (is_right, found, emulator) = findings(LAMBDA, CANARY).await;
        assert!(is_right, "{found:?}");
        let steps: Vec<&str> = found.iter().map(|finding| finding.step).collect();
        assert_eq!(
            steps,
            [
                "wrong credentials",
                "credentials",
                "offers",
                "make",
                "found by its marks",
                "found after a lost answer",
                "look",
                "remove",
                "remove again",
                "inventory"
            ]
        );
        assert_eq!(
            (emulator.ledger().count(), emulator.ledger().alive()),
            (1, Vec::new())
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_fit_is_named_and_nothing_is_left() {
        for (from, to, step, told) in [
            (
                "name: /name",
                "name: /label",
                "found by its marks",
                "`/label` (machine.read.name)",
            ),
            (
                "address: /ip",
                "address: /address",
                "make",
                "`/address` finds nothing",
            ),
            ("running: [active]", "running: [up]", "make", "the machine starts"),
            (
                "id: /data/instance_ids/0",
                "id: /data/id",
                "make",
                "`/data/id` (machine.make.id in the manifest) finds nothing",
            ),
            (
                "id: /data/instance_ids/0",
                "id: \"{{ 'order-' ~ item.data.instance_ids[0] }}\"",
                "make",
                "does not have the machine any more",
            ),
            (
                "  show:\n",
                "  find:\n    - get: instances\n      items: \"{{ item.data | rejectattr('name', 'equalto', name) | list }}\"\n  show:\n",
                "found after a lost answer",
                "it would be made a second time",
            ),
            (
                "id: /id\n    name: /name\n    state: /status",
                "id: \"{{ item.id ~ '-x' }}\"\n    name: /name\n    state: /status",
                "make",
                "finds another id",
            ),
            (
                "{get: instances, items: /data}",
                "{get: instances, items: /instances}",
                "found by its marks",
                "`/instances` finds nothing",
            ),
            (
                "type: /instance_type/name",
                "type: /kind",
                "offers",
                "offers.free.type",
            ),
            (
                "- get: instance-types",
                "- get: instance-kinds",
                "credentials",
                "404",
            ),
        ] {
            assert!(LAMBDA.contains(from), "{from}");
            let (is_right, found, emulator) = findings(&LAMBDA.replacen(from, to, 1), CANARY).await;
            assert!(!is_right, "{to}: {found:?}");
            let text = result(&found, step).as_ref().unwrap_err();
            assert!(text.contains(told), "{to}: {text}");
            assert_eq!(emulator.ledger().alive(), [], "{to}");
        }
        let (is_right, found, _) = findings(LAMBDA, "another").await;
        assert!(!is_right);
        let text = result(&found, "credentials").as_ref().unwrap_err();
        assert!(text.starts_with("creds.api_key: "), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_made_is_ended_when_it_is_interrupted() {
        let emulator = Lambda::new(CANARY, sizes());
        let cloud = cloud_of(emulator.clone());
        let fields = [("api_key".to_owned(), CANARY.to_owned())];
        let mut found = Vec::new();
        let mut tell = |finding: &Finding| found.push(finding.clone());
        let stop = tokio::time::sleep(Duration::from_secs(30));
        let manifest = manifest(LAMBDA);
        let is_right = check_life(
            &cloud.env,
            &manifest,
            &fields,
            &Choice::default(),
            stop,
            &mut tell,
        )
        .await;
        assert!(!is_right);
        result(&found, "interrupted").as_ref().unwrap_err();
        assert_eq!(
            (emulator.ledger().count(), emulator.ledger().alive()),
            (1, Vec::new())
        );
    }
}

mod digitalocean {
    use dstack_emulator_digitalocean::{DigitalOcean, PROJECT, Times, size};

    use super::*;

    const KIND: &str = "digitalocean-manifest";

    const TIMES: Times = Times {
        starts: Duration::from_secs(45),
        ends: Duration::from_secs(10),
    };

    /// More than a page of each list.
    fn sizes() -> Vec<Value> {
        let h100 = |count: u64| Some(("nvidia_h100", count, 80 * count));
        let mi300x = Some(("amd_mi300x", 8, 1536));
        vec![
            size("s-4vcpu-8gb", (4, 8, 0.071_43), None, &["nyc1", "fra1"]),
            size("g-16vcpu-64gb", (16, 64, 0.75), None, &["nyc1"]),
            size("gpu-h100x1-80gb", (20, 240, 3.39), h100(1), &["tor1", "nyc2"]),
            size("gpu-h100x8-640gb", (160, 1920, 23.92), h100(8), &["tor1"]),
            size("gpu-mi300x8-1536gb", (160, 1920, 15.92), mi300x, &["atl1"]),
        ]
    }

    fn with_project(key: &str, project: &str) -> Value {
        let mut config = config(KIND, key);
        config["project_name"] = json!(project);
        config
    }

    /// Pages of lists are so small that nothing fits on one.
    fn digitalocean() -> (Arc<DigitalOcean>, Cloud) {
        let emulator = Arc::new(DigitalOcean::with(CANARY, sizes(), TIMES, 2));
        let refused = vec![
            (config(KIND, "wrong"), &["creds.api_key"][..]),
            (with_project(CANARY, "none"), &["project_name"][..]),
        ];
        let cloud = Cloud::new(
            Arc::clone(&emulator) as _,
            |env| kind(env, manifest(DIGITALOCEAN)).unwrap(),
            with_project(CANARY, PROJECT),
            refused,
        );
        (emulator, cloud)
    }

    fn cloud() -> Cloud {
        digitalocean().1
    }

    async fn gpu_machine(cloud: &Cloud, gpus: &Value) -> Subject<Machine> {
        let resources = json!({"cpu": "1..", "memory": "1GB..", "disk": "1GB..", "gpu": gpus});
        machine_of(cloud, &requirements(&json!({"resources": resources})), |_| true).await
    }

    async fn one_machine() -> (Cloud, Subject<Machine>) {
        with_machine(cloud()).await
    }

    async fn machines_of_both_lists() -> (Cloud, Vec<Subject<Machine>>) {
        let cloud = cloud();
        let gpus = json!("H100:1");
        let subjects = vec![
            machine(&cloud).await,
            machine(&cloud).await,
            machine(&cloud).await,
            gpu_machine(&cloud, &gpus).await,
            gpu_machine(&cloud, &gpus).await,
        ];
        (cloud, subjects)
    }

    checks_of!(machines: one_machine, machines_of_both_lists);

    #[tokio::test(start_paused = true)]
    async fn credentials() {
        checks::credentials(&cloud()).await;
    }

    #[tokio::test(start_paused = true)]
    async fn offers() {
        checks::offers(&cloud()).await;
    }

    #[tokio::test(start_paused = true)]
    async fn each_gpu_has_its_image_and_docker_is_installed_where_it_lacks() {
        let (emulator, cloud) = digitalocean();
        for (gpus, image, has_docker) in [
            (json!(0), "ubuntu-24-04-x64", false),
            (json!("H100:1"), "gpu-h100x1-base", true),
            (json!("H100:8"), "gpu-h100x8-base", true),
            (json!("MI300X:8"), "gpu-amd-base", false),
        ] {
            let subject = gpu_machine(&cloud, &gpus).await;
            Driver::new(&cloud).make(&subject).await.unwrap();
            let asked = emulator.asked().pop().unwrap();
            assert_eq!(asked["image"], image);
            assert!(asked["project_id"].is_string());
            let user_data = asked["user_data"].as_str().unwrap();
            assert_eq!(user_data.contains("docker.io"), !has_docker, "{user_data}");
        }
        // The key was added once, beside those of others.
        assert_eq!(emulator.keys().len(), 4);
    }

    /// As the backend in Rust offers it.
    #[tokio::test(start_paused = true)]
    async fn the_same_is_offered_as_by_the_backend_in_rust() {
        let (emulator, cloud) = digitalocean();
        let rust = Cloud::new(
            emulator as _,
            dstack_backend_digitalocean::kind,
            config("digitalocean", CANARY),
            Vec::new(),
        );
        let any = requirements(
            &json!({"resources": {"cpu": "1..", "memory": "1GB..", "disk": "1GB..", "gpu": "0.."}}),
        );
        let (own, theirs) = (cloud.offers(&any).await, rust.offers(&any).await);
        let told = |offers: &[dstack_model::offers::InstanceOfferWithAvailability]| {
            let of = offers.iter();
            of.map(|offer| {
                (
                    offer.instance.clone(),
                    offer.region.to_string(),
                    offer.price.to_string(),
                )
            })
            .collect::<Vec<_>>()
        };
        assert_eq!(told(&own), told(&theirs));
        assert_eq!(own.len(), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_project_none_is_named() {
        let (emulator, mut cloud) = digitalocean();
        cloud.config = config(KIND, CANARY);
        let subject = machine(&cloud).await;
        Driver::new(&cloud).make(&subject).await.unwrap();
        assert_eq!(emulator.asked()[0].get("project_id"), None);
        cloud.config = with_project(CANARY, "none");
        let error = Driver::new(&cloud)
            .make(&machine(&cloud).await)
            .await
            .unwrap_err();
        assert!(
            matches!(&error, ComputeError::Configuration(text) if text.contains("no project `none`")),
            "{error:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_account_may_have_so_many() {
        let (emulator, cloud) = digitalocean();
        emulator.limit(0);
        let made = Driver::new(&cloud).make(&machine(&cloud).await).await;
        assert!(matches!(made, Err(ComputeError::NoQuota(_))), "{made:?}");
    }
}
