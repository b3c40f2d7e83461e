use std::sync::Arc;

use dstack_backend_kit::{
    CANARY, Cloud, Subject, checks, checks_of, sizes_of_catalog, with_machine, with_machines,
};
use dstack_compute::Machine;
use dstack_emulator_cloudrift::CloudRift;
use serde_json::json;

/// A cloud that has all sizes of the catalogue.
fn cloud() -> Cloud {
    let sizes = sizes_of_catalog("cloudrift", &[], |row| {
        (row.instance_name().to_owned(), row.location().to_owned())
    });
    let emulator = Arc::new(CloudRift::new(CANARY, sizes));
    let config = |key: &str| json!({"type": "cloudrift", "creds": {"type": "api_key", "api_key": key}});
    let refused = vec![(config("wrong"), &["creds.api_key"][..])];
    Cloud::new(emulator, dstack_backend_cloudrift::kind, config(CANARY), refused)
}

pub(crate) async fn one_machine() -> (Cloud, Subject<Machine>) {
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
