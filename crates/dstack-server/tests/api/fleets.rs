//! Fleets in clouds: what is stored of them when they are applied, changed and deleted. Their instances are made by the
//! engine, which is not here.

use serde_json::{Value, json};

use super::{ADMIN, Answer, Server};

fn spec(nodes: &Value) -> Value {
    json!({"configuration": {"type": "fleet", "name": "cloud", "nodes": nodes}, "profile": {"name": "default"}})
}

async fn apply(server: &Server, nodes: Value, seen: Option<&Value>) -> Answer {
    let plan = json!({"plan": {"spec": spec(&nodes), "current_resource": seen}, "force": false});
    server.main("fleets/apply", plan).await
}

async fn get(server: &Server) -> Value {
    server.main("fleets/get", json!({"name": "cloud"})).await.ok()
}

/// Number, name and status of each instance.
fn instances(fleet: &Value) -> Vec<(i64, &str, &str)> {
    let all = fleet["instances"].as_array().unwrap().iter();
    all.map(|instance| {
        (
            instance["instance_num"].as_i64().unwrap(),
            instance["name"].as_str().unwrap(),
            instance["status"].as_str().unwrap(),
        )
    })
    .collect()
}

/// Who did what, oldest first.
async fn trail(server: &Server) -> Vec<(Option<String>, String)> {
    let types = json!({"include_target_types": ["fleet", "instance"], "ascending": true});
    let events = server.post(ADMIN, "/api/events/list", types).await.ok();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let all = events.as_array().unwrap().iter();
    all.map(|event| (text(&event["actor_user"]), text(&event["message"]).unwrap()))
        .collect()
}

#[tokio::test]
async fn a_fleet_begins_with_the_instances_that_it_wants() {
    let server = Server::new().await;
    let made = apply(&server, json!({"min": 1, "target": 2, "max": 3}), None)
        .await
        .ok();
    assert_eq!(made["status"], "active");
    assert_eq!(
        made["spec"]["configuration"]["nodes"],
        json!({"min": 1, "target": 2, "max": 3})
    );
    assert_eq!(
        instances(&made),
        [(0, "cloud-0", "pending"), (1, "cloud-1", "pending")]
    );
    assert_eq!(get(&server).await, made);
    let (admin, system) = (Some("admin".to_owned()), None);
    let pending = "Instance created on fleet submission. Status: PENDING".to_owned();
    assert_eq!(
        trail(&server).await,
        [
            (admin, "Fleet created. Status: ACTIVE".to_owned()),
            (system.clone(), pending.clone()),
            (system, pending)
        ]
    );
}

#[tokio::test]
async fn its_size_is_changed_in_place() {
    let server = Server::new().await;
    let made = apply(&server, json!({"min": 0, "target": 1, "max": 1}), None)
        .await
        .ok();
    let changed = apply(&server, json!({"min": 2, "target": 2, "max": 4}), Some(&made))
        .await
        .ok();
    assert_eq!(changed["id"], made["id"]);
    // A target that is the minimum is left out, as by dstack 0.22.5.
    assert_eq!(
        changed["spec"]["configuration"]["nodes"],
        json!({"min": 2, "max": 4})
    );
    // More are made by the engine, as it makes those that are lost.
    assert_eq!(changed["instances"], made["instances"]);
    // Somebody else has changed it since it was looked at.
    let stale = apply(&server, json!(5), Some(&made)).await;
    assert!(
        stale.refused().0.contains("Resource has been changed"),
        "{}",
        stale.body
    );
    assert_eq!(get(&server).await, changed);
}

#[tokio::test]
async fn sizes_that_cannot_be_are_refused_and_leave_nothing() {
    let server = Server::new().await;
    for nodes in [
        json!("3..1"),
        json!({"min": 3, "target": 2, "max": 4}),
        json!(-1),
        json!({"min": 1, "target": 5, "max": 4}),
    ] {
        let answer = apply(&server, nodes.clone(), None).await;
        assert_eq!(answer.status, 422, "{nodes}: {}", answer.body);
        assert!(
            answer.body["detail"][0]["loc"].to_string().contains("nodes"),
            "{}",
            answer.body
        );
    }
    assert_eq!(server.main("fleets/list", json!({})).await.ok(), json!([]));
}

#[tokio::test]
async fn instances_are_deleted_by_number_and_with_their_fleet() {
    let server = Server::new().await;
    apply(&server, json!(3), None).await.ok();
    let some = json!({"name": "cloud", "instance_nums": [0, 2]});
    server.main("fleets/delete_instances", some).await.ok();
    let fleet = get(&server).await;
    assert_eq!(fleet["status"], "active");
    assert_eq!(
        instances(&fleet),
        [
            (0, "cloud-0", "terminating"),
            (1, "cloud-1", "pending"),
            (2, "cloud-2", "terminating")
        ]
    );
    server
        .main("fleets/delete", json!({"names": ["cloud"]}))
        .await
        .ok();
    let fleet = get(&server).await;
    assert_eq!(fleet["status"], "terminating");
    let all = instances(&fleet);
    assert!(
        all.iter().all(|(_, _, status)| *status == "terminating"),
        "{all:?}"
    );
    let ended: Vec<String> = trail(&server).await.into_iter().map(|(_, text)| text).collect();
    let of_instances = ended
        .iter()
        .filter(|text| text.starts_with("Instance status changed PENDING -> TERMINATING"));
    assert_eq!(of_instances.count(), 3, "{ended:?}");
}
