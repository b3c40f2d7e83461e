//! Credentials of AWS that assume a role.

use std::time::Duration;

use dstack_backend_kit::{CANARY, Cloud, Driver, Fault, checks, extended, installation, machine};
use dstack_compute::{ComputeError, ConfigureError};
use dstack_emulator_aws::Aws;
use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::aws::{KEY_ID, cloud_with, config_with, key};

pub(crate) const ROLE: &str = "arn:aws:iam::210987654321:role/teams/dstack";

const EXTERNAL_ID: &str = "an/external-id:1";

const MINUTE: Duration = Duration::from_secs(60);

/// The one of the page for users, for the emulated account. Without an external id, there is no condition for one.
pub(crate) fn trust_policy(external_id: Option<&str>) -> Value {
    let page = include_str!("../../../../docs/backends/aws.md");
    let (_, after) = page.split_once("### Trust policy").unwrap();
    let policy = after.split("```").find_map(|part| part.strip_prefix("json"));
    let policy = policy.unwrap().replace(
        "arn:aws:iam::111111111111:user/server",
        "arn:aws:iam::123456789012:user/dstack",
    );
    let mut policy: Value = serde_json::from_str(&policy).unwrap();
    let statement = policy["Statement"][0].as_object_mut().unwrap();
    assert!(statement["Condition"]["StringEquals"]["sts:ExternalId"].is_string());
    match external_id {
        Some(id) => statement["Condition"]["StringEquals"]["sts:ExternalId"] = id.into(),
        None => drop(statement.remove("Condition")),
    }
    policy
}

/// Fields of a configuration whose key assumes the role.
fn in_role(more: &Value) -> Value {
    let creds = extended(key(KEY_ID, CANARY), &json!({"role_arn": ROLE}));
    json!({"creds": extended(creds, more)})
}

/// The key may do nothing but assume the role.
fn cloud_in_role() -> (Cloud, Aws) {
    let (cloud, emulator) = cloud_with(&in_role(&json!({"external_id": EXTERNAL_ID})));
    emulator.add_role(ROLE, trust_policy(Some(EXTERNAL_ID)));
    emulator.set_roles_only();
    (cloud, emulator)
}

#[tokio::test(start_paused = true)]
async fn all_is_done_in_the_role() {
    let (cloud, emulator) = cloud_in_role();
    let stored = cloud.configure(&cloud.config).await.unwrap();
    assert!(!stored.to_string().contains("canary"), "{stored}");
    let name = format!("dstack-{}", installation());
    assert_eq!(emulator.sessions(), [(ROLE.to_owned(), name)]);
    checks::whole_life(&cloud, &machine(&cloud).await).await;
    let backend = cloud.open();
    backend.inventory().await.unwrap();
    assert!(!format!("{backend:?}").contains("canary"), "{backend:?}");
    // The key itself may do nothing of it.
    let error = cloud.configure(&config_with(&json!({}))).await.unwrap_err();
    assert!(error.to_string().contains("AWS does not allow"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_role_that_may_not_be_assumed_is_refused_with_what_its_trust_policy_needs() {
    let (cloud, emulator) = cloud_in_role();
    emulator.add_role("arn:aws:iam::210987654321:role/open", trust_policy(None));
    let role_arn = ["creds", "role_arn"];
    let external_id = ["creds", "external_id"];
    for (creds, expected, part) in [
        (json!({}), vec![role_arn], "set `external_id` to what it asks for"),
        (
            json!({"external_id": "another"}),
            vec![role_arn, external_id],
            "that `sts:ExternalId` is this `external_id`",
        ),
        (
            json!({"role_arn": "arn:aws:iam::210987654321:role/none"}),
            vec![role_arn],
            "has to allow arn:aws:iam::123456789012:user/dstack the action `sts:AssumeRole`",
        ),
        (
            json!({"role_arn": null, "external_id": "of-none"}),
            vec![external_id],
            "set `role_arn`, or leave both out",
        ),
        // Wrong keys are told as without a role.
        (
            json!({"access_key": "AKIAI44QH8DHBEXAMPLE"}),
            vec![["creds", "access_key"]],
            "InvalidClientTokenId",
        ),
        (
            json!({"secret_key": "wrong"}),
            vec![["creds", "secret_key"]],
            "SignatureDoesNotMatch",
        ),
    ] {
        let error = cloud.configure(&config_with(&in_role(&creds))).await.unwrap_err();
        let ConfigureError::Credentials { fields, details } = &error else {
            panic!("{creds}: {error:?}");
        };
        assert_eq!(*fields, expected, "{creds}");
        let details = details.as_deref().unwrap();
        assert!(
            details.contains(part) && !details.contains(CANARY),
            "{creds}: {details}"
        );
    }
    for good in [
        json!({"external_id": EXTERNAL_ID}),
        json!({"role_arn": "arn:aws:iam::210987654321:role/open"}),
    ] {
        let in_other = cloud.configure(&config_with(&in_role(&good))).await;
        in_other.unwrap();
    }
    emulator.deny("sts:AssumeRole");
    let error = cloud.configure(&cloud.config).await.unwrap_err();
    let ConfigureError::Credentials { fields, .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(*fields, [role_arn, external_id]);
}

#[tokio::test(start_paused = true)]
async fn a_session_is_asked_for_once_by_many_and_renewed_before_its_end() {
    let (cloud, emulator) = cloud_in_role();
    let backend = cloud.open();
    let fifty = async || {
        let all = (0..50).map(|_| backend.inventory());
        for told in join_all(all).await {
            told.unwrap();
        }
    };
    // Minutes after the one before, and sessions by then.
    for (pause, sessions) in [(0_u32, 1), (45, 1), (8, 2), (45, 2), (8, 3), (24 * 60, 4)] {
        tokio::time::sleep(pause * MINUTE).await;
        // While it is under way, all others come.
        cloud.faults().at(1, Fault::SlowAnswer(Duration::from_secs(5)));
        fifty().await;
        assert_eq!(emulator.sessions().len(), sessions, "after {pause} minutes more");
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_ends_early_is_renewed_once_and_the_call_made_again() {
    let (cloud, emulator) = cloud_in_role();
    for call in [
        "ec2:DescribeInstances",
        "ec2:CreateSecurityGroup",
        "ec2:RunInstances",
        "ec2:TerminateInstances",
        "servicequotas:GetServiceQuota",
        "elasticloadbalancing:DescribeTargetGroups",
    ] {
        emulator.delete_security_groups();
        emulator.end_sessions_at(call);
        let subject = machine(&cloud).await;
        let driver = Driver::new(&cloud);
        let place = driver.make(&subject).await.unwrap();
        cloud.open().inventory().await.unwrap();
        driver.remove(&subject.known(Some(place)), &subject).await;
        assert!(emulator.sessions_have_ended(), "{call} was not made");
        assert_eq!(cloud.emulator.ledger().alive(), [], "{call}");
    }
}

/// What a session allows goes on until its end; then nothing is known, and above all not that nothing is there.
#[tokio::test(start_paused = true)]
async fn a_role_that_is_taken_away_hides_what_is_there() {
    let (cloud, emulator) = cloud_in_role();
    let subject = machine(&cloud).await;
    Driver::new(&cloud).make(&subject).await.unwrap();
    let backend = cloud.open();
    assert_eq!(backend.inventory().await.unwrap().len(), 1);
    emulator.remove_role(ROLE);
    tokio::time::sleep(55 * MINUTE).await;
    assert_eq!(
        backend.inventory().await.unwrap().len(),
        1,
        "the session still is good"
    );
    tokio::time::sleep(5 * MINUTE).await;
    let error = backend.inventory().await.unwrap_err();
    assert!(
        matches!(&error, ComputeError::Credentials(text) if text.contains(ROLE) && text.contains("trust policy")),
        "{error:?}"
    );
    emulator.add_role(ROLE, trust_policy(Some(EXTERNAL_ID)));
    assert_eq!(backend.inventory().await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn whatever_happens_to_a_request_nothing_is_left_and_nothing_made_twice_in_a_role() {
    checks::any_fault_anywhere(async || {
        let (cloud, _) = cloud_in_role();
        let subject = machine(&cloud).await;
        (cloud, subject)
    })
    .await;
}
