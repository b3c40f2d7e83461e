//! Backends that a file describes, against the same emulators as those in Rust.

use std::sync::Arc;
use std::time::Duration;

use dstack_backend_kit::{
    CANARY, Cloud, Driver, Emulator as _, Subject, checks, checks_of, machine, with_machine,
};
use dstack_backend_manifest::{Choice, Finding, Manifest, check_life, kind, read};
use dstack_compute::Machine;
use serde_json::{Value, json};

use crate::{digitalocean_checks, lambda_checks, with_key};

pub(crate) const LAMBDA: &str = include_str!("../../../manifest/examples/lambda.yml");

const DIGITALOCEAN: &str = include_str!("../../../manifest/examples/digitalocean.yml");

pub(crate) fn manifest(text: &str) -> Manifest {
    read(text, "example.yml").unwrap_or_else(|errors| panic!("{errors}"))
}

mod lambda {
    use dstack_emulator_lambda::Lambda;

    use super::*;
    use crate::lambda_checks::emulator;

    const KIND: &str = "lambda-manifest";

    fn cloud_of(emulator: Lambda) -> Cloud {
        lambda_checks::cloud_of(emulator, KIND, |env| kind(env, manifest(LAMBDA)).unwrap())
    }

    fn cloud() -> Cloud {
        cloud_of(emulator())
    }

    async fn one_machine() -> (Cloud, Subject<Machine>) {
        with_machine(cloud()).await
    }

    async fn two_machines() -> (Cloud, Vec<Subject<Machine>>) {
        lambda_checks::two_machines(cloud_of).await
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
        lambda_checks::what_is_free_is_told_for_each_region(cloud_of).await;
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_are_told_apart() {
        lambda_checks::refusals_are_told_apart(cloud_of).await;
    }

    #[tokio::test(start_paused = true)]
    async fn requests_and_launches_are_as_far_apart_as_the_api_wants() {
        lambda_checks::requests_and_launches_are_as_far_apart_as_the_api_wants(cloud_of).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_is_told_the_same_as_by_the_backend_in_rust() {
        let emulator = emulator();
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
        let emulator = emulator();
        let cloud = cloud_of(emulator.clone());
        let fields = [("api_key".to_owned(), key.to_owned())];
        let mut found = Vec::new();
        let mut tell = |finding: &Finding| found.push(finding.clone());
        let (manifest, never) = (manifest(text), async || std::future::pending().await);
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

    /// A life that somebody wants to end after these times, counted from its beginning or from the time before.
    async fn interrupted(after: &[Duration]) -> (Vec<Finding>, Lambda) {
        let emulator = emulator();
        let cloud = cloud_of(emulator.clone());
        let fields = [("api_key".to_owned(), CANARY.to_owned())];
        let mut found = Vec::new();
        let mut tell = |finding: &Finding| found.push(finding.clone());
        let mut after = after.iter();
        let stop = async || match after.next() {
            Some(after) => tokio::time::sleep(*after).await,
            None => std::future::pending().await,
        };
        let (manifest, choice) = (manifest(LAMBDA), Choice::default());
        let is_right = check_life(&cloud.env, &manifest, &fields, &choice, stop, &mut tell).await;
        assert!(!is_right);
        (found, emulator)
    }

    #[tokio::test(start_paused = true)]
    async fn who_interrupts_the_removal_too_is_told_what_to_look_for() {
        let (found, emulator) = interrupted(&[Duration::from_secs(30), Duration::ZERO]).await;
        result(&found, "interrupted").as_ref().unwrap_err();
        let last = found.last().unwrap();
        assert_eq!(last.step, "removal interrupted");
        let text = last.result.as_ref().unwrap_err();
        assert!(
            text.starts_with("look for dstack-") && text.contains(" at Lambda"),
            "{text}"
        );
        assert_eq!(emulator.ledger().alive().len(), 1, "{found:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_made_is_ended_when_it_is_interrupted() {
        let (found, emulator) = interrupted(&[Duration::from_secs(30)]).await;
        result(&found, "interrupted").as_ref().unwrap_err();
        assert_eq!(
            (emulator.ledger().count(), emulator.ledger().alive()),
            (1, Vec::new())
        );
    }
}

mod digitalocean {
    use dstack_backend_kit::requirements;
    use dstack_emulator_digitalocean::DigitalOcean;

    use super::*;
    use crate::digitalocean_checks::SMALL_PAGE;

    const KIND: &str = "digitalocean-manifest";

    fn digitalocean() -> (Arc<DigitalOcean>, Cloud) {
        let make = |env| kind(env, manifest(DIGITALOCEAN)).unwrap();
        digitalocean_checks::cloud_of(KIND, make, SMALL_PAGE)
    }

    fn cloud() -> Cloud {
        digitalocean().1
    }

    async fn one_machine() -> (Cloud, Subject<Machine>) {
        with_machine(cloud()).await
    }

    async fn machines_of_both_lists() -> (Cloud, Vec<Subject<Machine>>) {
        digitalocean_checks::machines_of_both_lists(cloud()).await
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
        digitalocean_checks::each_gpu_has_its_image_and_docker_is_installed_where_it_lacks(digitalocean())
            .await;
    }

    /// As the backend in Rust offers it.
    #[tokio::test(start_paused = true)]
    async fn the_same_is_offered_as_by_the_backend_in_rust() {
        let (emulator, cloud) = digitalocean();
        let rust = Cloud::new(
            emulator as _,
            dstack_backend_digitalocean::kind,
            with_key("digitalocean", CANARY),
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
        cloud.config = with_key(KIND, CANARY);
        let subject = machine(&cloud).await;
        Driver::new(&cloud).make(&subject).await.unwrap();
        assert_eq!(emulator.asked()[0].get("project_id"), None);
        digitalocean_checks::a_project_that_is_gone_is_told(cloud, KIND, "no project `none`").await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_account_may_have_so_many() {
        digitalocean_checks::an_account_may_have_so_many(digitalocean()).await;
    }
}
