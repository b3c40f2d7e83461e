//! What agents said of the GPUs of instances, as it is listed, shown and forgotten.

use std::time::Duration;

use dstack_agent_api::shim::{DcgmHealth, DcgmIncident, InstanceHealth};
use dstack_model::health::HealthStatus;
use dstack_server::retention;
use dstack_store::queries::health::StoredCheck;
use dstack_store::{Commit, EngineStore, Put};
use dstack_units::{InstanceId, Time};
use serde_json::{Value, json};

use super::effects::ssh_fleet;
use super::{ADMIN, HandClock, Server, TestServer};

/// 2026-09-21T14:13:20Z.
const NOW: Time = Time::from_millis(1_790_000_000_000);

fn minutes(count: u64) -> Duration {
    Duration::from_secs(60 * count)
}

/// Fleet `onprem` with instances 0 and 1; the id of the first.
async fn fleet(server: &Server) -> InstanceId {
    let plan = json!({"plan": {"spec": ssh_fleet(&["192.0.2.1", "192.0.2.2"])}, "force": true});
    let fleet = server.main("fleets/apply", plan).await.ok();
    fleet["instances"][0]["id"].as_str().unwrap().parse().unwrap()
}

async fn add(server: &Server, instance: InstanceId, at: Time, code: i64, incidents: &[(i64, &str)]) {
    let incident = |(health, message): &(i64, &str)| DcgmIncident {
        health: *health,
        error_message: (*message).to_owned(),
        error_code: 29,
        entity_group_id: 1,
        ..DcgmIncident::default()
    };
    let answer = InstanceHealth {
        dcgm: Some(DcgmHealth {
            overall_health: code,
            incidents: incidents.iter().map(incident).collect(),
        }),
    };
    let check = StoredCheck {
        collected_at: at,
        status: dstack_engine::health::status(&answer).unwrap(),
        response: serde_json::to_string(&answer).unwrap(),
    };
    let id = server.state.data.random.uuid();
    let store = &server.state.data.store();
    store.add_health_check(id, instance, check).await.unwrap();
}

async fn list(server: &Server, more: Value) -> Value {
    let mut request = json!({"fleet_name": "onprem", "instance_num": 0});
    request
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let answer = server.main("instances/get_instance_health_checks", request).await;
    answer.ok()["health_checks"].clone()
}

#[tokio::test]
async fn checks_are_listed_newest_first_with_an_event_for_each_incident() {
    let server = Server::new().await;
    let instance = fleet(&server).await;
    assert_eq!(list(&server, json!({})).await, json!([]));
    add(&server, instance, NOW, 0, &[]).await;
    let incidents = [(10, "PCIe replay rate too high"), (20, "XID 79")];
    add(&server, instance, NOW + minutes(1), 20, &incidents).await;
    add(&server, instance, NOW + minutes(2), 10, &incidents[..1]).await;
    let event = |at: &str, status: &str, message: &str| json!({"timestamp": at, "status": status, "message": message});
    let all = json!([
        {"collected_at": "2026-09-21T14:15:20Z", "status": "warning", "events": [
            event("2026-09-21T14:15:20Z", "warning", "PCIe replay rate too high"),
        ]},
        {"collected_at": "2026-09-21T14:14:20Z", "status": "failure", "events": [
            event("2026-09-21T14:14:20Z", "warning", "PCIe replay rate too high"),
            event("2026-09-21T14:14:20Z", "failure", "XID 79"),
        ]},
        {"collected_at": "2026-09-21T14:13:20Z", "status": "healthy", "events": []},
    ]);
    assert_eq!(list(&server, json!({})).await, all);
    for (filter, expected) in [
        (json!({"limit": 2}), vec![0, 1]),
        (json!({"limit": 0}), vec![]),
        (json!({"after": "2026-09-21T14:14:20Z"}), vec![0]),
        (json!({"before": "2026-09-21T14:14:20Z"}), vec![2]),
        (json!({"before": "2026-09-21T14:15:20Z", "limit": 1}), vec![1]),
        (
            json!({"after": "2026-09-21T14:13:20Z", "before": "2026-09-21T14:15:20Z"}),
            vec![1],
        ),
    ] {
        let expected: Vec<Value> = expected
            .into_iter()
            .map(|place: usize| all[place].clone())
            .collect();
        assert_eq!(list(&server, filter.clone()).await, json!(expected), "{filter}");
    }
    // Those of another instance are its own.
    assert_eq!(list(&server, json!({"instance_num": 1})).await, json!([]));
}

#[tokio::test]
async fn of_what_is_not_there_nothing_is_listed() {
    let server = Server::new().await;
    fleet(&server).await;
    for (fleet, num) in [("other", 0), ("onprem", 7)] {
        let request = json!({"fleet_name": fleet, "instance_num": num});
        let answer = server.main("instances/get_instance_health_checks", request).await;
        assert_eq!(
            answer.refused(),
            ("Resource not found", Some("resource_not_exists"))
        );
    }
}

#[tokio::test]
async fn instances_are_shown_with_their_health() {
    let server = Server::new().await;
    let id = fleet(&server).await;
    let project = server.main_project().await;
    let listed = server
        .state
        .data
        .database
        .views()
        .instance_by_id(project, id)
        .await;
    let mut row = listed.unwrap().unwrap().instance;
    row.health = HealthStatus::Failure;
    let commit = Commit::unchecked(vec![Put::Instance(row)], Vec::new());
    server.state.data.store().commit(commit).await.unwrap();
    let fleet = server.main("fleets/get", json!({"name": "onprem"})).await.ok();
    let of_fleet: Vec<&Value> = fleet["instances"]
        .as_array()
        .unwrap()
        .iter()
        .map(|instance| &instance["health_status"])
        .collect();
    assert_eq!(of_fleet, ["failure", "healthy"]);
    let all = server.post(ADMIN, "/api/instances/list", json!({})).await.ok();
    let failed = |instance: &&Value| instance["health_status"] == "failure";
    assert_eq!(all.as_array().unwrap().iter().filter(failed).count(), 1);
}

#[tokio::test]
async fn old_checks_are_forgotten() {
    let clock = HandClock::at(NOW);
    let server = TestServer::new().clock(&clock);
    let server = server
        .settings(|settings| settings.health_ttl = 600)
        .start()
        .await;
    let instance = fleet(&server).await;
    add(&server, instance, NOW, 0, &[]).await;
    add(&server, instance, NOW + minutes(5), 10, &[(10, "x")]).await;
    let statuses = || async {
        let found = list(&server, json!({})).await;
        let status = |check: &Value| check["status"].as_str().unwrap().to_owned();
        found.as_array().unwrap().iter().map(status).collect::<Vec<_>>()
    };
    clock.advance(599);
    retention::forget(&server.state.data, &server.state.edge.settings)
        .await
        .unwrap();
    assert_eq!(statuses().await, ["warning", "healthy"]);
    clock.advance(2);
    retention::forget(&server.state.data, &server.state.edge.settings)
        .await
        .unwrap();
    assert_eq!(statuses().await, ["warning"]);
}
