//! The REST plugin, with a service that is really asked.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use dstack_compute::{BackendKind, Registry};
use dstack_system::task;
use serde_json::{Value, json};

use super::reload::OLD;
use super::{Server, TestServer, backends};

/// What the service does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    /// Hands back what it gets.
    Calm,
    /// Changes what it gets.
    Busy,
    /// Refuses, without a change.
    Strict,
    /// Answers 500.
    Broken,
    /// Answers with a web page.
    Odd,
    /// Answers with a specification that nobody could have written.
    Wrong,
    /// Never answers.
    Silent,
}

/// A service with what it was asked.
#[derive(Debug, Clone)]
struct Service {
    url: String,
    mood: Arc<Mutex<Mood>>,
    asked: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Service {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let service = Self {
            url: format!("http://{}", listener.local_addr().unwrap()),
            mood: Arc::new(Mutex::new(Mood::Calm)),
            asked: Arc::default(),
        };
        let app = Router::new()
            .route("/apply_policies/{policy}", post(answer))
            .with_state(service.clone());
        task::spawn("plugin-service", async move {
            axum::serve(listener, app).await.unwrap();
        });
        service
    }

    fn mood(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    /// Policies that were asked since the last question, with the specifications.
    fn asked(&self) -> Vec<(String, Value)> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

async fn answer(State(service): State<Service>, Path(policy): Path<String>, body: String) -> Response {
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (&body["user"], &body["project"]),
        (&json!("admin"), &json!("main"))
    );
    service
        .asked
        .lock()
        .unwrap()
        .push((policy.clone(), body["spec"].clone()));
    let mut spec = body["spec"].clone();
    let mood = *service.mood.lock().unwrap();
    match mood {
        Mood::Calm => {}
        Mood::Busy => match policy.as_str() {
            "on_run_apply" => spec["configuration"]["priority"] = json!(7),
            "on_fleet_apply" => spec["configuration"]["env"] = json!({"TEAM": "red"}),
            "on_volume_apply" => spec["configuration"]["tags"] = json!({"team": "red"}),
            _ => spec["configuration"]["domain"] = json!("red.example"),
        },
        Mood::Strict => {
            let reason = json!({"spec": spec, "error": "no GPUs on Sundays"});
            return axum::Json(reason).into_response();
        }
        Mood::Broken => return (StatusCode::INTERNAL_SERVER_ERROR, "sorry").into_response(),
        Mood::Odd => return "<h1>Hello</h1>".into_response(),
        Mood::Wrong => spec["configuration"]["colour"] = json!("red"),
        Mood::Silent => std::future::pending().await,
    }
    axum::Json(json!({"spec": spec, "error": null})).into_response()
}

async fn server(service: Option<&Service>, timeout: u64) -> Server {
    let kinds = Registry::new([Arc::new(backends::Picky) as Arc<dyn BackendKind>]);
    let server = TestServer::new().kinds(kinds).settings(|settings| {
        settings.plugin_service = service.map(|service| service.url.clone());
        settings.plugin_timeout = timeout;
    });
    let server = server.start().await;
    let keys = format!("encryption:\n  keys:\n  - {OLD}\n");
    let changes = server
        .reload(&format!("{keys}plugins: [rest_plugin, my_python_plugin]\n"))
        .await;
    assert_eq!(changes.unwrap(), ["plugins: rest_plugin (was none)"]);
    server
}

fn run_spec() -> Value {
    json!({"run_name": "hello", "configuration": {"type": "task", "commands": ["echo hello"], "priority": 1}})
}

fn fleet_spec() -> Value {
    json!({"profile": {"name": ""}, "configuration": {"type": "fleet", "name": "cloud", "nodes": "0..2"}})
}

fn volume() -> Value {
    json!({"configuration": {
        "type": "volume", "name": "data", "backend": "runpod", "region": "EU-RO-1", "size": "50GB",
    }})
}

fn gateway_spec() -> Value {
    json!({"configuration": {
        "type": "gateway", "name": "one", "backend": "runpod", "region": "EU-RO-1", "domain": "a.example",
    }})
}

#[tokio::test]
async fn plans_and_what_is_applied_are_as_the_service_wants_them() {
    let service = Service::start().await;
    let server = server(Some(&service), 8).await;
    service.mood(Mood::Busy);
    let plan = server
        .main("runs/get_plan", json!({"run_spec": run_spec()}))
        .await
        .ok();
    assert_eq!(plan["run_spec"]["configuration"]["priority"], 1);
    assert_eq!(plan["effective_run_spec"]["configuration"]["priority"], 7);
    let apply = json!({"plan": {"run_spec": run_spec()}, "force": true});
    let run = server.main("runs/apply", apply).await.ok();
    assert_eq!(run["run_spec"]["configuration"]["priority"], 7);
    let asked = service.asked();
    assert_eq!(asked.len(), 2);
    for (policy, spec) in asked {
        assert_eq!(policy, "on_run_apply");
        assert_eq!(spec["configuration"]["priority"], 1, "always what the user wrote");
        assert!(spec["configuration"].get("groups").is_none());
    }

    let volume = server.main("volumes/create", volume()).await.ok();
    assert_eq!(volume["configuration"]["tags"], json!({"team": "red"}));
    let key = json!({"type": "runpod", "creds": {"type": "api_key", "api_key": "k"}});
    server.main("backends/create", key).await.ok();
    let plan = server
        .main("gateways/get_plan", json!({"spec": gateway_spec()}))
        .await
        .ok();
    assert_eq!(plan["spec"]["configuration"]["domain"], "a.example");
    assert_eq!(plan["effective_spec"]["configuration"]["domain"], "red.example");
    let apply = json!({"plan": {"spec": gateway_spec()}, "force": true});
    let gateway = server.main("gateways/apply", apply).await.ok();
    assert_eq!(gateway["wildcard_domain"], "red.example");
    let mut two = gateway_spec();
    two["configuration"]["name"] = json!("two");
    let gateway = server.main("gateways/create", two).await.ok();
    assert_eq!(gateway["wildcard_domain"], "red.example");
    let policies: Vec<String> = service.asked().into_iter().map(|(policy, _)| policy).collect();
    assert_eq!(
        policies,
        [
            "on_volume_apply",
            "on_gateway_apply",
            "on_gateway_apply",
            "on_gateway_apply"
        ]
    );

    // What comes back is looked at as if a user had written it: `env` is for fleets of hosts.
    for (path, body) in [
        ("fleets/get_plan", json!({"spec": fleet_spec()})),
        (
            "fleets/apply",
            json!({"plan": {"spec": fleet_spec()}, "force": true}),
        ),
    ] {
        let refused = server.main(path, body).await;
        assert!(refused.refused().0.contains("env"), "{}", refused.body);
    }
    service.mood(Mood::Calm);
    service.asked();
    let apply = json!({"plan": {"spec": fleet_spec()}, "force": true});
    server.main("fleets/apply", apply).await.ok();
    let (policy, spec) = service.asked().remove(0);
    assert_eq!(
        (policy.as_str(), spec.get("autocreated")),
        ("on_fleet_apply", None)
    );
}

#[tokio::test]
async fn whatever_the_service_does_is_said_and_nothing_is_applied() {
    let service = Service::start().await;
    let server = server(Some(&service), 8).await;
    let texts = [
        (Mood::Strict, "Apply request rejected: no GPUs on Sundays"),
        (Mood::Broken, "Request to the plugin service failed"),
        (Mood::Odd, "Plugin service returned an invalid response"),
        (Mood::Wrong, "Plugin service returned an invalid response"),
    ];
    for (mood, says) in texts {
        service.mood(mood);
        for (path, body) in [
            ("runs/get_plan", json!({"run_spec": run_spec()})),
            (
                "runs/apply",
                json!({"plan": {"run_spec": run_spec()}, "force": true}),
            ),
            ("fleets/get_plan", json!({"spec": fleet_spec()})),
            (
                "fleets/apply",
                json!({"plan": {"spec": fleet_spec()}, "force": true}),
            ),
            ("volumes/create", volume()),
            ("gateways/get_plan", json!({"spec": gateway_spec()})),
            (
                "gateways/apply",
                json!({"plan": {"spec": gateway_spec()}, "force": true}),
            ),
            ("gateways/create", gateway_spec()),
        ] {
            let answer = server.main(path, body).await;
            assert_eq!(answer.refused(), (says, Some("error")), "{mood:?} {path}");
        }
    }
    assert_eq!(server.main("volumes/list", json!(null)).await.ok(), json!([]));
    assert_eq!(server.main("fleets/list", json!({})).await.ok(), json!([]));
    // A plugin that is not enabled any more is not asked.
    service.asked();
    let keys = format!("encryption:\n  keys:\n  - {OLD}\n");
    assert_eq!(
        server.reload(&keys).await.unwrap(),
        ["plugins: none (was rest_plugin)"]
    );
    server.main("volumes/create", volume()).await.ok();
    assert_eq!(service.asked(), vec![]);
}

#[tokio::test]
async fn a_service_that_is_slow_down_or_not_named() {
    let mut service = Service::start().await;
    let slow = server(Some(&service), 0).await;
    service.mood(Mood::Silent);
    let answer = slow.main("volumes/create", volume()).await;
    assert_eq!(answer.refused().0, "Request to the plugin service failed");
    // Nobody listens there.
    service.url = "http://127.0.0.1:1".to_owned();
    let down = server(Some(&service), 8).await;
    let answer = down.main("volumes/create", volume()).await;
    assert_eq!(
        answer.refused().0,
        "Could not connect to plugin service at http://127.0.0.1:1"
    );
    let unnamed = server(None, 8).await;
    let answer = unnamed.main("volumes/create", volume()).await;
    assert_eq!(answer.refused().0, "DSTACK_PLUGIN_SERVICE_URI is not set");
}
