//! What the tests share.

pub(crate) mod app;
pub(crate) mod authority;
pub(crate) mod client;
pub(crate) mod server;
pub(crate) mod ssh;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser as _;
use dstack_gateway::{Gateway, Settings};
use dstack_system::clock::SharedClock;
use dstack_system::{Random, SystemClock};
use http::{Method, Request};
use serde_json::{Value, json};
use tempfile::TempDir;

use client::{Answer, ask};
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

/// Waits until something is so.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..600 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("never: {what}");
}
