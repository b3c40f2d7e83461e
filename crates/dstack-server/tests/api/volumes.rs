//! Network volumes as the API shows them while instances have them.

use dstack_model::volumes::VolumeAttachmentData;
use dstack_store::rows::AttachmentRow;
use dstack_store::{Commit, EngineStore, Json, Put, raw};
use dstack_units::InstanceId;
use serde_json::{Value, json};
use uuid::Uuid;

use super::backends::server;
use super::effects::ssh_fleet;
use super::{ADMIN, Server};

/// An instance of a fleet of hosts.
async fn instance(server: &Server) -> InstanceId {
    let plan = json!({"plan": {"spec": ssh_fleet(&["192.0.2.1"])}, "force": true});
    let fleet = server.main("fleets/apply", plan).await.ok();
    fleet["instances"][0]["id"].as_str().unwrap().parse().unwrap()
}

async fn get(server: &Server) -> Value {
    server.main("volumes/get", json!({"name": "data"})).await.ok()
}

#[tokio::test]
async fn a_volume_says_which_instances_have_it_and_is_not_deleted_meanwhile() {
    let server = server().await;
    let volume = json!({"type": "volume", "name": "data", "backend": "runpod", "region": "EU-1", "size": 10});
    server
        .main("volumes/create", json!({"configuration": volume}))
        .await
        .ok();
    assert_eq!(get(&server).await["attachments"], json!([]));
    let made = json!({"backend": "runpod", "volume_id": "v1", "size_gb": 10});
    let update = format!("UPDATE volumes SET status = 'active', provisioning_data = '{made}'");
    raw::execute(&server.state.data.database, &update).await.unwrap();
    let id = instance(&server).await;
    let store = server.state.data.store();
    let instance = store.instance(id).await.unwrap().unwrap().instance;
    let volumes = store.volumes(instance.project_id).await.unwrap();
    let made = volumes[0].provisioning_data.as_deref().unwrap();
    let (attachment, job) = (Uuid::from_u128(7).into(), Uuid::from_u128(8).into());
    let now = instance.created_at;
    let mut row = AttachmentRow::wanted(attachment, (&volumes[0], made), (&instance, job), false, now);
    let device = VolumeAttachmentData {
        device_name: Some("/dev/sdf".to_owned()),
    };
    row.data = Some(Json::new(device));
    let commit = Commit::unchecked(vec![Put::Attachment(row)], Vec::new());
    store.commit(commit).await.unwrap();

    let shown = get(&server).await;
    let place = instance.job_provisioning_data.as_ref().unwrap();
    let expected = json!([{
        "instance": {"name": instance.name, "fleet_name": "onprem", "instance_num": 0, "instance_id": place.instance_id},
        "attachment_data": {"device_name": "/dev/sdf"},
    }]);
    assert_eq!(shown["attachments"], expected);
    assert_eq!(shown["attachment_data"], Value::Null);
    for list in ["/api/volumes/list", "/api/project/main/volumes/list"] {
        let listed = server.post(ADMIN, list, json!({})).await.ok();
        assert_eq!(listed[0]["attachments"], expected, "{list}");
    }
    let refused = server
        .main("volumes/delete", json!({"names": ["none", "data"]}))
        .await;
    assert_eq!(
        refused.refused(),
        ("Failed to delete volume data. Volume is in use.", Some("error"))
    );
    raw::execute(&server.state.data.database, "DELETE FROM attachments")
        .await
        .unwrap();
    server
        .main("volumes/delete", json!({"names": ["data"]}))
        .await
        .ok();
}
