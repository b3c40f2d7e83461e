//! The checks of the kit, proven on a toy cloud: its backend passes all of them, and with one mistake planted in it, those that are
//! named here fail, and no others.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // tests

mod backend;
mod vendor;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use dstack_backend_kit::{CANARY, Cloud, Subject, checks, machine};
use dstack_compute::Machine;
use futures_util::FutureExt as _;
use serde_json::json;

use backend::{Planted, kind};
use vendor::Vendor;

fn cloud(planted: Planted) -> Cloud {
    let config =
        |key: &str| json!({"type": "cudo", "project_id": "p", "creds": {"type": "api_key", "api_key": key}});
    let refused = vec![(config("wrong"), &["creds.api_key"][..])];
    let mut cloud = Cloud::new(Arc::new(Vendor::new(CANARY)), correct, config(CANARY), refused);
    cloud.kind = kind(cloud.env.clone(), planted);
    cloud
}

fn correct(env: dstack_backend::Env) -> Arc<dyn dstack_compute::BackendKind> {
    kind(env, Planted::Nothing)
}

async fn one(planted: Planted) -> (Cloud, Subject<Machine>) {
    let cloud = cloud(planted);
    let subject = machine(&cloud).await;
    (cloud, subject)
}

async fn several(planted: Planted) -> (Cloud, Vec<Subject<Machine>>) {
    let (mut cloud, subject) = one(planted).await;
    cloud.region = Some(vendor::REGIONS[1]);
    let elsewhere = machine(&cloud).await;
    (cloud, vec![subject, elsewhere])
}

/// The names of the checks that fail.
async fn found_by(planted: Planted) -> Vec<&'static str> {
    let mut found = Vec::new();
    let mut note = |name, outcome: Result<(), _>| {
        if outcome.is_err() {
            found.push(name);
        }
    };
    macro_rules! check {
        ($name:ident, $work:expr) => {
            note(
                stringify!($name),
                AssertUnwindSafe($work).catch_unwind().await,
            )
        };
    }
    check!(credentials, async { checks::credentials(&cloud(planted)).await });
    check!(offers, async { checks::offers(&cloud(planted)).await });
    check!(whole_life, async {
        let (cloud, subject) = one(planted).await;
        checks::whole_life(&cloud, &subject).await;
    });
    check!(sold_out, async {
        let (cloud, subject) = one(planted).await;
        checks::sold_out(&cloud, &subject).await;
    });
    check!(loss, async {
        let (cloud, subject) = one(planted).await;
        checks::loss(&cloud, &subject).await;
    });
    check!(a_place_away, async {
        let (cloud, subjects) = several(planted).await;
        let [one, other] = subjects.try_into().map_err(|_| "two").unwrap();
        checks::a_place_away(&cloud, &[one, other], "region=south").await;
    });
    check!(
        removed_before_listed,
        checks::removed_before_listed(async || one(planted).await)
    );
    check!(
        another_attempt,
        checks::another_attempt(async || one(planted).await)
    );
    check!(neighbours, checks::neighbours(async || several(planted).await));
    check!(left_behind, checks::left_behind(async || one(planted).await));
    check!(
        any_fault_anywhere,
        checks::any_fault_anywhere(async || one(planted).await)
    );
    found
}

/// A test for each mistake: these checks find it, and no others.
macro_rules! planted {
    ($($name:ident: $planted:ident, $($check:ident),*;)*) => {$(
        #[tokio::test(start_paused = true)]
        async fn $name() {
            let found = found_by(Planted::$planted).await;
            let expected: &[&str] = &[$(stringify!($check)),*];
            assert_eq!(found, expected);
        }
    )*};
}

#[tokio::test(start_paused = true)]
async fn a_backend_without_a_mistake_passes_all_checks() {
    assert_eq!(found_by(Planted::Nothing).await, Vec::<&str>::new());
}

planted! {
    what_is_asked_for_without_a_note_is_made_twice: NotNoted, removed_before_listed, neighbours, any_fault_anywhere;
    what_is_not_looked_for_is_made_twice: NoFind, another_attempt, neighbours, any_fault_anywhere;
    what_is_listed_late_is_made_twice: LagIgnored, any_fault_anywhere;
    a_token_of_the_attempt_before: SameToken, another_attempt, neighbours;
    what_is_over_is_taken_for_what_is_new: OverIsFound, removed_before_listed, another_attempt, neighbours;
    a_lost_answer_taken_for_a_refusal: AllIsDefinite, another_attempt, neighbours, any_fault_anywhere;
    a_machine_without_an_address_is_ready: ReadyTooSoon, whole_life, a_place_away;
    a_call_waits_for_the_machine: Waits, whole_life;
    what_ends_is_gone_at_once: GoneAtOnce, whole_life, loss, removed_before_listed, another_attempt, neighbours, any_fault_anywhere;
    an_error_means_gone: ErrorIsGone, removed_before_listed, another_attempt, neighbours, any_fault_anywhere;
    the_disk_of_a_machine_stays: DiskStays, whole_life, sold_out, loss, removed_before_listed, another_attempt, neighbours, any_fault_anywhere;
    sold_out_is_told_as_no_answer: SoldOutIsUnclear, sold_out;
    a_loss_is_not_seen: LossUnseen, loss, a_place_away;
    a_cloud_that_is_away_has_lost_the_machine: AwayIsLost, loss, a_place_away;
    an_error_shows_the_key: KeyInErrors, credentials;
    the_backend_shows_the_key: KeyInDebug, offers;
    a_cloud_that_is_away_refuses_the_key: AwayIsWrongKey, credentials;
    an_inventory_of_one_region: OneRegion, neighbours;
    an_inventory_of_one_page: OnePage, another_attempt, neighbours;
    an_inventory_without_what_is_half_made: NoHalfMade, left_behind;
    an_inventory_of_what_the_cloud_tells: PartOfInventory, neighbours;
    a_machine_of_another_installation_is_taken: KeyAlone, neighbours;
    a_removal_takes_what_is_of_another_installation: KeyAloneInRemoval, neighbours;
    what_is_not_listed_yet_is_gone: NewIsGone, removed_before_listed;
    a_cloud_that_is_away_is_well: AwayIsWell, loss, a_place_away;
    one_region_that_is_away_hides_the_others: OneAwayAllAway, a_place_away;
    orphans_that_are_disks_stay: OrphanDisksStay, left_behind;
}
