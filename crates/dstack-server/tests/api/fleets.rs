//! Fleets in clouds: what is stored of them when they are applied, changed and deleted. Their instances are made by the
//! engine, which is not here.

use dstack_hosts::pool::Keyring as _;
use dstack_model::reach::KeyRef;
use dstack_server::wiring::DatabaseKeyring;
use dstack_store::queries::Page;
use dstack_store::rows::OperationState;
use dstack_store::{Changes, EngineStore as _, EventMaker};
use dstack_units::FleetId;
use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{ADMIN, Answer, Server, TestServer, effects, redacted};

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
    insta::assert_json_snapshot!("fleet", redacted(&made));
    assert_eq!(get(&server).await, made);
    insta::assert_json_snapshot!("trail_of_a_fleet", trail(&server).await);
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

/// A server on which project `team` imports fleet `onprem` of project `main`, with instances 0 (idle), 1 (pending) and 2
/// (terminated).
async fn sharing() -> Server {
    use dstack_model::instances::{InstanceStatus, InstanceTerminationReason};
    use dstack_store::queries::views::InstanceFilter;
    use dstack_store::{Commit, EngineStore, Put};
    let server = TestServer::new().settings(|settings| settings.exports_enabled = true);
    let server = server.start().await;
    let alice = server.user("alice").await;
    let hosts = effects::ssh_fleet(&["192.0.2.1", "192.0.2.2", "192.0.2.3"]);
    let plan = json!({"plan": {"spec": hosts}, "force": true});
    server.main("fleets/apply", plan).await.ok();
    let team = json!({"project_name": "team"});
    server.post(&alice, "/api/projects/create", team).await.ok();
    let alice = json!({"members": [{"username": "alice", "project_role": "user"}]});
    server
        .post(ADMIN, "/api/projects/team/add_members", alice)
        .await
        .ok();
    let export = json!({"name": "shared", "importer_projects": ["team"], "exported_fleets": ["onprem"]});
    server.main("exports/create", export).await.ok();
    let database = &server.state.data.database;
    let all = database
        .views()
        .instances(&InstanceFilter::default(), &Page::newest(10))
        .await
        .unwrap();
    let puts = all.into_iter().map(|listed| {
        let mut row = listed.instance;
        match row.instance_num {
            0 => {
                row.provision(server.state.data.clock.now()).unwrap();
                row.make_ready(InstanceStatus::Idle).unwrap();
            }
            2 => row
                .give_up(InstanceTerminationReason::NoOffers, String::new())
                .unwrap(),
            _ => {}
        }
        Put::Instance(row)
    });
    let commit = Commit::unchecked(puts.collect(), Vec::new());
    server.state.data.store().commit(commit).await.unwrap();
    server
}

async fn listed(server: &Server, token: &str, more: Value) -> Vec<(String, String)> {
    let found = server.post(token, "/api/instances/list", more).await.ok();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let all = found.as_array().unwrap().iter();
    let mut all: Vec<_> = all
        .map(|one| (text(&one["name"]), text(&one["status"])))
        .collect();
    all.sort();
    all
}

fn texts(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter()
        .map(|(name, status)| ((*name).to_owned(), (*status).to_owned()))
        .collect()
}

#[tokio::test]
async fn active_instances_are_those_that_can_take_jobs() {
    let server = sharing().await;
    let all = texts(&[
        ("onprem-0", "idle"),
        ("onprem-1", "pending"),
        ("onprem-2", "terminated"),
    ]);
    assert_eq!(listed(&server, ADMIN, json!({})).await, all);
    let active = listed(&server, ADMIN, json!({"only_active": true})).await;
    assert_eq!(active, all[..1]);
}

#[tokio::test]
async fn imported_fleets_and_instances_are_listed_in_whatever_state_they_are() {
    let server = sharing().await;
    let alice = "alice-token";
    let all = texts(&[
        ("onprem-0", "idle"),
        ("onprem-1", "pending"),
        ("onprem-2", "terminated"),
    ]);
    assert_eq!(listed(&server, alice, json!({})).await, []);
    assert_eq!(
        listed(&server, alice, json!({"include_imported": true})).await,
        all
    );
    let of_team = json!({"include_imported": true, "project_names": ["team"], "only_active": true});
    assert_eq!(listed(&server, alice, of_team).await, all[..1]);
    let elsewhere = json!({"include_imported": true, "project_names": ["main"]});
    assert_eq!(listed(&server, alice, elsewhere).await, []);

    let names = async |path: &str, more: Value| {
        let found = server.post(alice, path, more).await.ok();
        let all = found.as_array().unwrap().iter();
        all.map(|fleet| fleet["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    for path in ["/api/fleets/list", "/api/project/team/fleets/list"] {
        assert_eq!(names(path, json!({})).await, Vec::<String>::new(), "{path}");
        assert_eq!(
            names(path, json!({"include_imported": true})).await,
            ["onprem"],
            "{path}"
        );
    }
}

#[tokio::test]
async fn fleets_are_deleted_together_or_not_at_all() {
    use dstack_store::queries::views::InstanceFilter;
    use dstack_store::{Commit, EngineStore, Put};
    let server = sharing().await;
    apply(&server, json!(1), None).await.ok();
    let database = &server.state.data.database;
    let all = database
        .views()
        .instances(&InstanceFilter::default(), &Page::newest(10))
        .await
        .unwrap();
    let idle = all
        .into_iter()
        .find(|one| one.instance.name == "onprem-0")
        .unwrap();
    let mut busy = idle.instance;
    busy.occupy(1, server.state.data.clock.now()).unwrap();
    let commit = Commit::unchecked(vec![Put::Instance(busy)], Vec::new());
    server.state.data.store().commit(commit).await.unwrap();
    let both = json!({"names": ["cloud", "onprem"]});
    let refused = server.main("fleets/delete", both).await;
    assert_eq!(
        refused.refused().0,
        "Failed to delete fleet onprem. Fleet is in use."
    );
    assert_eq!(get(&server).await["status"], "active");
}

/// Databases take some tens of thousands of values in a statement.
#[tokio::test]
async fn lists_of_any_length_are_looked_up() {
    use dstack_store::queries::views::InstanceFilter;
    let server = sharing().await;
    let database = &server.state.data.database;
    let all = database
        .views()
        .instances(&InstanceFilter::default(), &Page::newest(10))
        .await
        .unwrap();
    let (project, fleet) = (all[0].instance.project_id, all[0].instance.fleet_id.unwrap());
    let many = || (0..70_000).map(|_| server.state.data.random.uuid());
    let filter = |fleets: Vec<_>| InstanceFilter {
        projects: Some(many().map(Into::into).chain([project]).collect()),
        fleets: Some(fleets),
        ..InstanceFilter::default()
    };
    let found = filter(many().map(Into::into).chain([fleet]).collect());
    let found = database
        .views()
        .instances(&found, &Page::newest(10))
        .await
        .unwrap();
    assert_eq!(found, all);
    let none = filter(many().map(Into::into).collect());
    let none = database
        .views()
        .instances(&none, &Page::newest(10))
        .await
        .unwrap();
    assert_eq!(none, []);
}

/// A client applies the specification that a plan gives back, so that it is there as it was sent, keys and all.
#[tokio::test]
async fn private_keys_of_hosts_are_in_no_answer_but_the_echo_of_a_plan() {
    let server = Server::new().await;
    let mut spec = effects::ssh_fleet(&["192.0.2.1"]);
    let ssh = &mut spec["configuration"]["ssh_config"];
    let key = ssh["ssh_key"].clone();
    let jump = json!({"hostname": "jump", "user": "me", "identity_file": "~/.ssh/id", "ssh_key": key});
    ssh["proxy_jump"] = jump.clone();
    ssh["hosts"] = json!([{"hostname": "192.0.2.1", "ssh_key": key, "proxy_jump": jump}]);
    let planned = server.main("fleets/get_plan", json!({"spec": spec})).await.ok();
    let applied = server
        .main("fleets/apply", json!({"plan": {"spec": spec}, "force": true}))
        .await
        .ok();
    let again = server.main("fleets/get_plan", json!({"spec": spec})).await.ok();
    let gotten = server.main("fleets/get", json!({"name": "onprem"})).await.ok();
    let listed = server.main("fleets/list", json!({})).await.ok();
    let shown = [
        &planned["effective_spec"],
        &applied["spec"],
        &again["effective_spec"],
        &again["current_resource"]["spec"],
        &gotten["spec"],
        &listed[0]["spec"],
    ];
    for spec in shown {
        let ssh = &spec["configuration"]["ssh_config"];
        let host = &ssh["hosts"][0];
        assert_eq!(host["hostname"], "192.0.2.1");
        for place in [
            &ssh["ssh_key"],
            &ssh["proxy_jump"]["ssh_key"],
            &host["ssh_key"],
            &host["proxy_jump"]["ssh_key"],
        ] {
            assert_eq!(place, &Value::Null, "{spec}");
        }
    }
    let echo = &planned["spec"]["configuration"]["ssh_config"];
    assert_eq!((&echo["ssh_key"], &echo["proxy_jump"]["ssh_key"]), (&key, &key));
}

/// The fleet does not have them any more, and the host that has left it must still be reached for its release.
#[tokio::test]
async fn keys_of_a_host_that_leaves_are_found_until_it_is_released() {
    let server = Server::new().await;
    let mut spec = effects::ssh_fleet(&["192.0.2.1"]);
    let ssh = &mut spec["configuration"]["ssh_config"];
    let key = |text: &str| json!({"public": "", "private": text});
    let jump = json!({"hostname": "jump", "user": "me", "identity_file": "~/.ssh/id", "ssh_key": key("of the jump host")});
    ssh["hosts"] = json!([{"hostname": "192.0.2.1", "proxy_jump": jump}, "192.0.2.2"]);
    let applied = server
        .main("fleets/apply", json!({"plan": {"spec": spec}, "force": true}))
        .await
        .ok();
    let data = &server.state.data;
    let keyring = DatabaseKeyring::new(data.database.clone(), data.encryption.clone(), data.keys.clone());
    let fleet: FleetId = applied["id"].as_str().unwrap().parse().unwrap();
    let hostname = "192.0.2.1".to_owned();
    let named = KeyRef::JumpHost { fleet, hostname };
    let found = async || {
        let found = keyring.private_key(&named).await.unwrap();
        found.map(|key| key.expose().to_owned())
    };
    assert_eq!(found().await.as_deref(), Some("of the jump host"));

    spec["configuration"]["ssh_config"]["hosts"] = json!(["192.0.2.2"]);
    server
        .main("fleets/apply", json!({"plan": {"spec": spec}, "force": true}))
        .await
        .ok();
    assert_eq!(found().await.as_deref(), Some("of the jump host"));

    let snapshot = data.store().fleet(fleet).await.unwrap().unwrap();
    let leaving = snapshot
        .instances
        .iter()
        .find(|row| row.instance_num == 0)
        .unwrap();
    let operations = data
        .store()
        .instance(leaving.id)
        .await
        .unwrap()
        .unwrap()
        .operations;
    let mut released = operations[0].clone();
    let text = released.notes.as_ref().unwrap().to_string();
    assert!(
        !text.contains("of the jump host"),
        "it is encrypted there as well: {text}"
    );
    (released.state, released.notes) = (OperationState::Done, None);
    let mut changes = Changes::new(EventMaker::system(data.clock.now(), data.random.clone()));
    changes.intend(released);
    data.store().commit(changes.into_commit()).await.unwrap();
    assert_ne!(found().await.as_deref(), Some("of the jump host"));
}

#[tokio::test]
async fn a_host_is_in_one_list_once_and_in_one_fleet() {
    let server = Server::new().await;
    let apply = async |name: &str, hosts: Value| {
        let mut spec = effects::ssh_fleet(&[]);
        spec["configuration"]["name"] = json!(name);
        spec["configuration"]["ssh_config"]["hosts"] = hosts;
        server
            .main("fleets/apply", json!({"plan": {"spec": spec}, "force": true}))
            .await
    };
    let refused = apply("one", json!(["other", "host.example", "Host.Example."])).await;
    assert_eq!(refused.status, 400);
    assert_eq!(
        refused.body["detail"][0]["msg"],
        "ssh_config.hosts[2]: Host.Example. is the same host as ssh_config.hosts[1]: name it once"
    );
    apply("one", json!(["host.example"])).await.ok();
    let refused = apply("two", json!(["HOST.example"])).await;
    assert_eq!(
        refused.body["detail"][0]["msg"],
        "Instances [HOST.example] are already assigned to a fleet."
    );
    let refused = apply("one", json!(["Host.Example"])).await;
    assert_eq!(
        refused.body["detail"][0]["msg"],
        "Host host.example is in the fleet, under that name. Remove it first, then add it under the other"
    );
    // However many are applied at once.
    let all = ["aa", "bb", "cc", "dd"].map(|name| apply(name, json!(["once.example"])));
    let done = join_all(all).await;
    let statuses: Vec<_> = done.iter().map(|answer| answer.status).collect();
    assert_eq!(
        statuses.iter().filter(|status| **status == 200).count(),
        1,
        "{statuses:?}"
    );
}
