//! Configuring backends, with a kind that accepts one key only.

use std::sync::Arc;

use async_trait::async_trait;
use dstack_compute::config::{BackendConfig, SplitConfig};
use dstack_compute::{
    Backend, BackendKind, Backends as _, Capabilities, ComputeError, ConfigureError, Registry,
};
use dstack_model::backends::BackendType;
use dstack_server::backends::StoredBackends;
use dstack_store::raw;
use serde_json::{Value, json};

use super::effects::ssh_fleet;
use super::reload::OLD;
use super::{ADMIN, Server, TestServer, request};

#[derive(Debug)]
pub(super) struct Picky;

#[async_trait]
impl BackendKind for Picky {
    fn kind(&self) -> BackendType {
        BackendType::Runpod
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            volumes: true,
            gateways: true,
            ..Capabilities::default()
        }
    }

    async fn configure(&self, _: &str, config: &BackendConfig) -> Result<SplitConfig, ConfigureError> {
        match config {
            BackendConfig::Runpod(config) if config.creds.api_key.expose() == "wrong" => {
                Err(ConfigureError::Credentials {
                    fields: vec![vec!["creds".to_owned(), "api_key".to_owned()]],
                    details: None,
                })
            }
            config => Ok(config.split()),
        }
    }

    fn open(&self, _: &SplitConfig) -> Result<Arc<dyn Backend>, ComputeError> {
        Err(ComputeError::Unsupported("opening"))
    }
}

pub(super) async fn server() -> Server {
    let kinds = Registry::new([Arc::new(Picky) as Arc<dyn BackendKind>]);
    TestServer::new().kinds(kinds).start().await
}

fn runpod(key: &str) -> Value {
    json!({"type": "runpod", "creds": {"type": "api_key", "api_key": key}})
}

#[tokio::test]
async fn a_backends_life() {
    let server = server().await;
    let at = |what: &str| format!("/api/project/main/backends/{what}");
    server.post(ADMIN, &at("create"), runpod("canary-1")).await.ok();
    let again = server.post(ADMIN, &at("create"), runpod("canary-1")).await;
    assert_eq!(again.refused(), ("Resource exists", Some("resource_exists")));

    let shown = server
        .post(ADMIN, "/api/projects/main/get", Value::Null)
        .await
        .ok();
    assert_eq!(shown["backends"][0]["name"], "runpod");
    assert!(!shown.to_string().contains("canary"), "{shown}");

    let yaml = json!({"config_yaml": "type: runpod\ncreds:\n  type: api_key\n  api_key: canary-2\nregions: [A, B]\n"});
    server.post(ADMIN, &at("update_yaml"), yaml).await.ok();
    let info = server
        .post(ADMIN, &at("runpod/config_info"), Value::Null)
        .await
        .ok();
    assert_eq!(
        (&info["creds"]["api_key"], &info["regions"]),
        (&json!("canary-2"), &json!(["A", "B"]))
    );
    let text = server.post(ADMIN, &at("runpod/get_yaml"), Value::Null).await.ok();
    assert_eq!(
        text["config_yaml"],
        "type: runpod\nregions: [A, B]\ncreds:\n  type: api_key\n  api_key: canary-2\n"
    );

    server
        .post(ADMIN, &at("delete"), json!({"backends_names": ["runpod", "aws"]}))
        .await
        .ok();
    let gone = server.post(ADMIN, &at("runpod/config_info"), Value::Null).await;
    assert_eq!(gone.refused().1, Some("resource_not_exists"));
}

#[tokio::test]
async fn credentials_are_encrypted_at_rest() {
    let server = server().await;
    server
        .post(ADMIN, "/api/project/main/backends/create", runpod("canary-key"))
        .await
        .ok();
    let project = server.main_project().await;
    let rows = server.state.data.database.backends().list(project).await.unwrap();
    assert_eq!(rows.len(), 1);
    assert!(!format!("{rows:?}").contains("canary"), "{rows:?}");
}

#[tokio::test]
async fn what_a_cloud_refuses_is_told_by_field() {
    let server = server().await;
    let answer = server
        .post(ADMIN, "/api/project/main/backends/create", runpod("wrong"))
        .await;
    assert_eq!(answer.status, 400);
    assert_eq!(
        answer.body["detail"],
        json!([{"msg": "Invalid credentials", "code": "invalid_credentials", "fields": ["creds", "api_key"]}])
    );
}

#[tokio::test]
async fn a_kind_that_the_build_lacks_is_not_available() {
    let server = server().await;
    let body = json!({"type": "vastai", "creds": {"type": "api_key", "api_key": "k"}});
    let answer = server
        .post(ADMIN, "/api/project/main/backends/create", body)
        .await;
    assert_eq!(
        answer.refused(),
        ("Backend not available", Some("backend_not_available"))
    );
    let types = server
        .post(ADMIN, "/api/backends/list_types", Value::Null)
        .await
        .ok();
    assert_eq!(types, json!(["runpod"]));
}

async fn execute(server: &Server, sql: &str) {
    raw::execute(&server.state.data.database, sql).await.unwrap();
}

/// Its file is gone: the backend goes as others do, once nothing is there that only it can end.
#[tokio::test]
async fn a_backend_whose_type_nobody_knows_is_deleted_as_others_are() {
    let server = server().await;
    server.main("backends/create", runpod("canary-1")).await.ok();
    execute(&server, "UPDATE backends SET type = 'nimbus'").await;
    let delete = async |names: Value| {
        let request = json!({ "backends_names": names });
        server.main("backends/delete", request).await
    };
    let has_it = async || {
        let project = server
            .post(ADMIN, "/api/projects/main/get", Value::Null)
            .await
            .ok();
        project["backends"][0]["name"] == "nimbus"
    };

    // Of names that neither the server knows nor the project has, the request is wrong, as it is in dstack 0.22.5.
    for (names, index) in [
        (json!(["cumulus"]), 0),
        (json!(["nimbus", "cumulus"]), 1),
        (json!(["Nimbus"]), 0),
    ] {
        let answer = delete(names.clone()).await;
        assert_eq!(answer.status, 422, "{names}: {}", answer.body);
        let detail = &answer.body["detail"];
        assert_eq!(detail.as_array().unwrap().len(), 1);
        assert_eq!(
            (&detail[0]["type"], &detail[0]["loc"], &detail[0]["input"]),
            (
                &json!("enum"),
                &json!(["body", "backends_names", index]),
                &names[index]
            )
        );
    }
    assert!(has_it().await);

    let fleet = json!({"plan": {"spec": ssh_fleet(&["192.0.2.1"])}, "force": true});
    server.main("fleets/apply", fleet).await.ok();
    execute(&server, "UPDATE instances SET backend = 'nimbus'").await;
    let refused = delete(json!(["nimbus"])).await;
    let (text, _) = refused.refused();
    assert!(
        text.starts_with(
            "Backend nimbus has active instances, and this server does not know its type any more"
        ) && text.contains("DSTACK_SERVER_BACKENDS_DIR"),
        "{text}"
    );
    assert!(has_it().await);

    execute(&server, "UPDATE instances SET status = 'terminated'").await;
    delete(json!(["nimbus", "aws"])).await.ok();
    assert!(!has_it().await);
    let events = server.post(ADMIN, "/api/events/list", json!({})).await.ok();
    assert_eq!(events[0]["message"], "Backend deleted. Type: nimbus");
    assert_eq!(delete(json!(["nimbus"])).await.status, 422);
}

/// Whether or not somebody knows their types: what is listed is kept, and nothing else.
#[tokio::test]
async fn backends_that_config_yml_does_not_list_any_more_are_deleted() {
    let server = server().await;
    server.main("backends/create", runpod("canary-1")).await.ok();
    execute(&server, "UPDATE backends SET type = 'nimbus'").await;
    let project = server.main_project().await;
    let configured = async || {
        let names = server.state.data.database.backends().list(project).await.unwrap();
        names.into_iter().map(|row| row.kind).collect::<Vec<_>>()
    };
    let listing = |backends: &str| {
        let keys = format!("encryption:\n  keys:\n  - {OLD}\n");
        format!("{keys}projects:\n- name: main\n  backends: {backends}\n")
    };
    server
        .reload(&listing("[{type: nimbus, creds: {key: k}}]"))
        .await
        .unwrap();
    assert_eq!(configured().await, ["nimbus"]);
    server.reload(&listing("[]")).await.unwrap();
    assert_eq!(configured().await, [""; 0]);
}

#[tokio::test]
async fn volumes_wait_for_their_cloud_and_are_marked_for_deletion() {
    let server = server().await;
    let at = |what: &str| format!("/api/project/main/volumes/{what}");
    let volume = json!({"configuration": {"type": "volume", "name": "data", "backend": "runpod", "region": "A", "size": 10}});
    let made = server.post(ADMIN, &at("create"), volume.clone()).await.ok();
    assert_eq!(
        (&made["status"], &made["cost"]),
        (&json!("submitted"), &json!(0.0))
    );
    let again = server.post(ADMIN, &at("create"), volume).await;
    assert_eq!(again.refused().1, Some("resource_exists"));
    server
        .post(ADMIN, &at("delete"), json!({"names": ["data", "nope"]}))
        .await
        .ok();
    // It is there until its cloud says otherwise.
    assert_eq!(
        server.post(ADMIN, &at("list"), Value::Null).await.ok()[0]["name"],
        "data"
    );
    let events = server.post(ADMIN, "/api/events/list", json!({})).await.ok();
    assert_eq!(events[0]["message"], "Volume marked for deletion");
}

#[tokio::test]
async fn volumes_that_a_run_cannot_mount_together_are_refused() {
    let server = server().await;
    for (name, region, state) in [
        ("one", "A", "status = 'active'"),
        ("two-0", "A", "status = 'active'"),
        ("two-1", "A", "status = 'active', to_be_deleted = 1"),
        ("far", "B", "status = 'active'"),
        ("new", "A", "status = 'submitted'"),
    ] {
        let volume =
            json!({"type": "volume", "name": name, "backend": "runpod", "region": region, "size": 10});
        server
            .main("volumes/create", json!({"configuration": volume}))
            .await
            .ok();
        let made = format!("UPDATE volumes SET {state} WHERE name = '{name}'");
        raw::execute(&server.state.data.database, &made).await.unwrap();
    }
    for (volumes, nodes, text) in [
        (json!(["none:/a"]), 1, "Volume ['none'] not found"),
        (
            json!(["new:/a"]),
            1,
            "Cannot mount volumes that are not active: new",
        ),
        (
            json!(["one:/a", "one:/b"]),
            1,
            "Cannot attach the same volume at different mount points",
        ),
        (
            json!(["one:/a", "far:/b"]),
            1,
            "Volumes from different locations specified for different mount points",
        ),
        (
            json!(["two-1:/a"]),
            1,
            "Volume ['two-1'] is marked for deletion and cannot be attached",
        ),
        // Of the second node.
        (
            json!(["two-${{ dstack.node_rank }}:/a"]),
            2,
            "Volume ['two-1'] is marked for deletion and cannot be attached",
        ),
    ] {
        let task = json!({"type": "task", "commands": ["x"], "volumes": volumes, "nodes": nodes});
        let plan = json!({"plan": {"run_spec": {"run_name": "rr", "configuration": task}}, "force": true});
        let answer = server.main("runs/apply", plan).await;
        assert!(answer.refused().0.starts_with(text), "{volumes}: {}", answer.body);
    }
}

#[tokio::test]
async fn secrets_of_fleets_are_encrypted_at_rest() {
    let server = server().await;
    let key = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW\nQyNTUxOQAAACCAYJGQjq5u1c2IwjF4YzxBzVze4M2A3AcicFR+ERNjqgAAAJhuS3FYbktx\nWAAAAAtzc2gtZWQyNTUxOQAAACCAYJGQjq5u1c2IwjF4YzxBzVze4M2A3AcicFR+ERNjqg\nAAAEDmVlpYEvdD8MKbu75eojRn506VMf1omj9SOoqm9W4cgoBgkZCOrm7VzYjCMXhjPEHN\nXN7gzYDcByJwVH4RE2OqAAAAFGdvbGRlbkBleGFtcGxlLmxvY2FsAQ==\n-----END OPENSSH PRIVATE KEY-----\n";
    let spec = json!({
        "configuration": {"type": "fleet", "name": "onprem", "env": {"TOKEN": "s3cret-env"}, "ssh_config": {
            "user": "u", "ssh_key": {"public": "", "private": key}, "hosts": ["192.0.2.1"]}},
        "profile": {"name": ""},
    });
    let body = json!({"plan": {"spec": spec}, "force": false});
    let made = server
        .post(ADMIN, "/api/project/main/fleets/apply", body)
        .await
        .ok();
    assert_eq!(made["instances"][0]["hostname"], "192.0.2.1");
    let project = server.main_project().await;
    let stored = server
        .state
        .data
        .database
        .views()
        .fleet_by_name(project, "onprem")
        .await
        .unwrap()
        .unwrap();
    let text = serde_json::to_string(&*stored.fleet.spec).unwrap();
    assert!(text.contains("enc:aes:") && !text.contains("OPENSSH"), "{text}");
    // As a whole once more, because of `env`.
    let rows = raw::fetch(&server.state.data.database, "SELECT spec FROM fleets").await;
    let column = rows.unwrap()[0][0].clone().unwrap();
    assert!(
        column.starts_with("enc:aes:") && !column.contains("s3cret-env"),
        "{column}"
    );
    let taken = json!({"spec": spec.as_object().map(|spec| {
        let mut spec = spec.clone();
        spec["configuration"]["name"] = json!("other");
        spec
    })});
    let answer = server
        .post(ADMIN, "/api/project/main/fleets/get_plan", taken)
        .await;
    assert_eq!(
        answer.refused().0,
        "Instances [192.0.2.1] are already assigned to a fleet."
    );
}

#[tokio::test]
async fn metrics_are_off_unless_switched_on() {
    let server = server().await;
    assert_eq!(
        server.send(request("GET", "/metrics", None, None)).await.status,
        404
    );
}

#[tokio::test]
async fn projects_with_the_same_configuration_share_an_account() {
    let server = server().await;
    for project in ["second", "third", "gone"] {
        server.project(ADMIN, project).await;
    }
    for (project, key) in [
        ("main", "canary-1"),
        ("second", "canary-2"),
        ("third", "canary-1"),
        ("gone", "canary-3"),
    ] {
        let path = format!("/api/project/{project}/backends/create");
        server.post(ADMIN, &path, runpod(key)).await.ok();
    }
    let gone = json!({"projects_names": ["gone"]});
    server.post(ADMIN, "/api/projects/delete", gone).await.ok();
    let data = &server.state.data;
    let kinds = Registry::new([Arc::new(Picky) as Arc<dyn BackendKind>]);
    for (registry, error) in [
        (kinds, "opening is not supported"),
        (Registry::default(), "this type of backend is not supported"),
    ] {
        let stored = StoredBackends::new(data.database.clone(), data.encryption.clone(), registry);
        let accounts = stored.accounts().await.unwrap();
        let projects: Vec<Vec<&str>> = accounts
            .iter()
            .map(|account| {
                account
                    .projects
                    .iter()
                    .map(|project| project.name.as_str())
                    .collect()
            })
            .collect();
        assert_eq!(projects, [vec!["main", "third"], vec!["second"]]);
        for account in accounts {
            let refused = account.backend.unwrap_err().to_string();
            assert!(
                account.kind == "runpod" && refused.starts_with(error),
                "{refused}"
            );
        }
    }
    // It keeps its name while the project that has had it longest has it.
    let stored = StoredBackends::new(
        data.database.clone(),
        data.encryption.clone(),
        Registry::default(),
    );
    let before = stored.accounts().await.unwrap();
    let third = "/api/project/third/backends/delete";
    server
        .post(ADMIN, third, json!({"backends_names": ["runpod"]}))
        .await
        .ok();
    let after = stored.accounts().await.unwrap();
    assert_eq!((&after[0].id, after[0].projects.len()), (&before[0].id, 1));
}
