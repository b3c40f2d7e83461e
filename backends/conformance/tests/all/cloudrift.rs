use std::sync::Arc;

use dstack_backend_kit::{CANARY, Cloud, checks, machine, soak};
use dstack_catalog::{Filter, builtin};
use dstack_emulator_cloudrift::CloudRift;
use serde_json::json;

/// A cloud that has all sizes of the catalogue.
fn cloud() -> Cloud {
    let filter = Filter {
        provider: Some(vec!["cloudrift".to_owned()]),
        ..Filter::default()
    };
    let catalog = builtin();
    let sizes = catalog.query(&filter).unwrap();
    let sizes = sizes.map(|row| (row.instance_name().to_owned(), row.location().to_owned()));
    let emulator = Arc::new(CloudRift::new(CANARY, sizes.collect()));
    let config = |key: &str| json!({"type": "cloudrift", "creds": {"type": "api_key", "api_key": key}});
    let refused = vec![(config("wrong"), &["creds.api_key"][..])];
    Cloud::new(emulator, dstack_backend_cloudrift::kind, config(CANARY), refused)
}

#[tokio::test(start_paused = true)]
async fn credentials() {
    checks::credentials(&cloud()).await;
}

#[tokio::test(start_paused = true)]
async fn offers() {
    checks::offers(&cloud()).await;
}

#[tokio::test(start_paused = true)]
async fn a_machine_lives_and_ends() {
    let cloud = cloud();
    checks::whole_life(&cloud, &machine(&cloud).await).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_to_be_had() {
    let cloud = cloud();
    checks::sold_out(&cloud, &machine(&cloud).await).await;
}

#[tokio::test(start_paused = true)]
async fn what_breaks_is_seen() {
    let cloud = cloud();
    checks::loss(&cloud, &machine(&cloud).await).await;
}

#[tokio::test(start_paused = true)]
async fn whatever_happens_nothing_is_made_twice_or_left() {
    checks::any_fault_anywhere(async || {
        let cloud = cloud();
        let subject = machine(&cloud).await;
        (cloud, subject)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn another_attempt_makes_another_machine() {
    checks::another_attempt(async || {
        let cloud = cloud();
        let subject = machine(&cloud).await;
        (cloud, subject)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn machines_of_others_are_neither_taken_nor_ended() {
    checks::neighbours(async || {
        let cloud = cloud();
        let subjects = vec![machine(&cloud).await, machine(&cloud).await];
        (cloud, subjects)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_was_left_behind_is_found_and_ended() {
    checks::left_behind(async || {
        let cloud = cloud();
        let subject = machine(&cloud).await;
        (cloud, subject)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_is_removed_before_it_is_listed_is_not_left() {
    checks::removed_before_listed(async || {
        let cloud = cloud();
        let subject = machine(&cloud).await;
        (cloud, subject)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn many_lives_of_machines() {
    let cloud = cloud();
    soak(&cloud, &machine(&cloud).await).await;
}
