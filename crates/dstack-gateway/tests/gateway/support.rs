//! What the tests share.

pub(crate) mod app;
pub(crate) mod authority;
pub(crate) mod client;
pub(crate) mod frames;
pub(crate) mod held;
pub(crate) mod process;
pub(crate) mod server;
pub(crate) mod ssh;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Parser as _;
use dstack_gateway::{Gateway, Settings};
use dstack_system::clock::SharedClock;
use dstack_system::{Random, SystemClock};
use http::{Method, Request};
use hyper::body::Incoming;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;

use app::App;
use client::{Answer, ask, send};
use ssh::Ssh;

/// A gateway in a directory of its own.
pub(crate) struct Setup {
    pub(crate) gateway: Gateway,
    pub(crate) settings: Settings,
    pub(crate) dir: TempDir,
}

/// Ports that are free, and all else in this directory.
pub(crate) fn settings(dir: &Path) -> Settings {
    let mut settings = Settings::try_parse_from(["gateway"]).unwrap();
    let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
    settings.dir = dir.join("state");
    (settings.http, settings.https, settings.api) = (([0, 0, 0, 0], 0).into(), anywhere, anywhere);
    settings.server_connections = dir.join("server-connections");
    settings.certbot = dir.join("certbot");
    settings.acme_server = "https://127.0.0.1:1/directory".to_owned();
    std::fs::create_dir_all(&settings.server_connections).unwrap();
    settings
}

/// Has a certificate of the user's own.
pub(crate) fn own_certificate(settings: &Settings, name: &str, chain: &str, key: &str) {
    let dir = settings.dir.join("certificates").join(name);
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("tls.pem"), format!("{chain}{key}")).unwrap();
}

/// Has a certificate of certbot.
pub(crate) fn certbots_certificate(settings: &Settings, name: &str, chain: &str, key: &str) {
    let dir = settings.certbot.join(name);
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("fullchain.pem"), chain).unwrap();
    std::fs::write(dir.join("privkey.pem"), key).unwrap();
}

/// The state of a gateway of dstack 0.22.5, as `--import` reads it: a service `web` with these replicas, of a project with this key.
pub(crate) fn old_state(dir: &Path, https: bool, replicas: &Value, key: &str) -> PathBuf {
    let old = json!({
        "services": {"main": {"web": {
            "id": "5a3c", "project_name": "main", "run_name": "web", "domain": "web.example.com", "https": https,
            "rate_limits": [], "auth": false, "client_max_body_size": 1024, "strip_prefix": true, "replicas": replicas,
            "has_router_replica": false, "cors_enabled": false, "proxy_buffering": true, "read_timeout": 300
        }}},
        "models": {}, "entrypoints": {}, "projects": {"main": {"name": "main", "ssh_private_key": key}},
        "config": {"acme_settings": {"server": null, "eab_kid": null, "eab_hmac_key": null}}
    });
    let path = dir.join("state-v2.json");
    std::fs::write(&path, old.to_string()).unwrap();
    path
}

/// A replica on a port of this host, as it stands in [`old_state`].
pub(crate) fn old_replica(number: u128, app_port: u16, ssh: SocketAddr) -> Value {
    json!({
        "id": job(number), "app_port": app_port, "ssh_destination": format!("root@{}", ssh.ip()), "ssh_port": ssh.port(),
        "ssh_proxy": null, "ssh_proxy_private_key": null, "ssh_head_proxy": null,
        "ssh_head_proxy_private_key": null, "internal_ip": null
    })
}

impl Setup {
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub(crate) async fn start_with(change: impl FnOnce(&mut Settings)) -> Self {
        Self::start_at(Arc::new(SystemClock), change).await
    }

    pub(crate) async fn start_at(clock: SharedClock, change: impl FnOnce(&mut Settings)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = settings(dir.path());
        change(&mut settings);
        let gateway = Gateway::start_with(settings.clone(), clock, Random::system())
            .await
            .unwrap();
        Self {
            gateway,
            settings,
            dir,
        }
    }

    /// Ends it without a word, as a kill does, and starts it again.
    pub(crate) async fn killed_and_started(self) -> Self {
        let Self {
            gateway,
            settings,
            dir,
        } = self;
        drop(gateway);
        let gateway = Gateway::start(settings.clone()).await.unwrap();
        Self {
            gateway,
            settings,
            dir,
        }
    }

    /// A service `web` that differs from [`service`] in these, with one replica.
    pub(crate) async fn serving(differences: Value) -> (Self, Ssh, App) {
        let (setup, ssh, app) = (Self::start().await, Ssh::start().await, App::start("one").await);
        setup.serve(differences, &ssh, &app).await;
        (setup, ssh, app)
    }

    /// Registers a service `web` that differs from [`service`] in these, and its replica 1.
    pub(crate) async fn serve(&self, differences: Value, ssh: &Ssh, app: &App) {
        self.register("web", differences, ssh).await;
        self.register_replica("web", 1, app.port, ssh).await;
    }

    pub(crate) fn http(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.gateway.addresses().http.port()))
    }

    pub(crate) fn https(&self) -> SocketAddr {
        self.gateway.addresses().https
    }

    /// What the API says.
    pub(crate) async fn call(&self, method: Method, path: &str, body: &Value) -> (u16, Value) {
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        let request = Request::builder().method(method).uri(path).body(body).unwrap();
        let answer = ask(self.gateway.addresses().api, request).await;
        let json = serde_json::from_str(&answer.body).unwrap_or(Value::String(answer.body));
        (answer.status, json)
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.call(Method::POST, path, body).await
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        self.call(Method::GET, path, &Value::Null).await
    }

    /// Registers a service of project `main` that differs from [`service`] in these.
    pub(crate) async fn register(&self, run: &str, differences: Value, ssh: &Ssh) {
        let mut body = service(run, ssh.key());
        body.as_object_mut()
            .unwrap()
            .extend(differences.as_object().unwrap().clone());
        let answer = self.post("/api/registry/main/services/register", &body).await;
        assert_eq!(answer, ok(), "{run}");
    }

    /// Registers a replica on this port of this host.
    pub(crate) async fn register_replica(&self, run: &str, number: u128, port: u16, ssh: &Ssh) {
        let path = format!("/api/registry/main/services/{run}/replicas/register");
        assert_eq!(self.post(&path, &ssh.replica(number, port)).await, ok());
    }

    pub(crate) async fn unregister(&self, run: &str) {
        let path = format!("/api/registry/main/services/{run}/unregister");
        assert_eq!(self.post(&path, &Value::Null).await, ok());
    }

    pub(crate) async fn unregister_replica(&self, run: &str, number: u128) {
        let path = format!("{}/unregister", replica_path(run, number));
        assert_eq!(self.post(&path, &Value::Null).await, ok());
    }

    /// Registers where the models of a project are asked.
    pub(crate) async fn register_entrypoint(&self, project: &str, domain: &str) -> (u16, Value) {
        let entrypoint = json!({"domain": domain, "https": false, "read_timeout": 60});
        let path = format!("/api/registry/{project}/entrypoints/register");
        self.post(&path, &entrypoint).await
    }

    /// The jobs of the replicas of a service of project `main`.
    pub(crate) async fn replicas(&self, run: &str) -> Vec<String> {
        let state = self.gateway.registry().state().await;
        let service = state.service("main", run).unwrap();
        service
            .replicas
            .iter()
            .map(|replica| replica.job_id.clone())
            .collect()
    }

    /// An answer of `web` that [`App::pieces`] lets go on, after its head.
    pub(crate) async fn stream(&self) -> Incoming {
        stream_at(self.http()).await
    }

    /// What a service says to a request of its host.
    pub(crate) async fn ask(&self, host: &str, path: &str) -> Answer {
        self.send(host, Request::get(path)).await
    }

    pub(crate) async fn send(&self, host: &str, request: http::request::Builder) -> Answer {
        let request = request.header("host", host).body(String::new()).unwrap();
        ask(self.http(), request).await
    }
}

/// What a service is registered with: over HTTP, for everybody.
pub(crate) fn service(run: &str, key: &str) -> Value {
    json!({
        "run_name": run, "domain": format!("{run}.example.com"), "https": false, "auth": false,
        "client_max_body_size": 1024, "read_timeout": 30, "options": {}, "ssh_private_key": key,
        "rate_limits": [], "has_router_replica": false
    })
}

pub(crate) fn ok() -> (u16, Value) {
    (200, json!({ "status": "ok" }))
}

pub(crate) fn detail(text: &str) -> (u16, Value) {
    (400, json!({ "detail": text }))
}

/// The path of a replica in the API.
pub(crate) fn replica_path(run: &str, number: u128) -> String {
    format!("/api/registry/main/services/{run}/replicas/{}", job(number))
}

/// The id of a job.
pub(crate) fn job(number: u128) -> String {
    uuid::Uuid::from_u128(number).simple().to_string()
}

/// A model that answers chats.
pub(crate) fn model() -> Value {
    json!({"openai": {"model": {"type": "chat", "name": "m", "format": "openai", "prefix": "/v1"}}})
}

/// As [`Setup::stream`], of a gateway at this address.
pub(crate) async fn stream_at(gateway: SocketAddr) -> Incoming {
    let stream = TcpStream::connect(gateway).await.unwrap();
    let request = Request::get("/stream").header("host", "web.example.com");
    send(stream, request.body(String::new()).unwrap())
        .await
        .into_body()
}

/// Time for what comes soon, on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(60);

/// What comes soon.
pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("never")
}

/// Asks again and again until something is so. What is asked takes its time: nothing is waited for besides.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let asked = async {
        while !is_so().await {
            tokio::task::yield_now().await;
        }
    };
    let asked = tokio::time::timeout(PATIENCE, asked).await;
    asked.unwrap_or_else(|_| panic!("never: {what}"));
}
