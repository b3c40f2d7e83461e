//! Backends of config.yml, with clouds that are slow, or away for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use dstack_compute::config::{BackendConfig, SplitConfig};
use dstack_compute::{Backend, BackendKind, Capabilities, ComputeError, ConfigureError, Registry};
use dstack_model::backends::BackendType;
use dstack_server::{ConfigWaits, ServerOptions, Settings, serve};
use dstack_system::task;
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

/// A key that is accepted without a permit.
const AT_ONCE: &str = "at-once";

/// Answers once for each permit: first as often as it is away, then that all is right.
#[derive(Debug)]
struct Cloud {
    kind: BackendType,
    answers: Semaphore,
    away: AtomicUsize,
    asked: Semaphore,
}

impl Cloud {
    fn new(kind: BackendType, answers: usize, away: usize) -> Arc<Self> {
        Arc::new(Self {
            kind,
            answers: Semaphore::new(answers),
            away: AtomicUsize::new(away),
            asked: Semaphore::new(0),
        })
    }

    /// Returns when it has been asked so often.
    async fn asked(&self, times: u32) {
        self.asked.acquire_many(times).await.unwrap().forget();
    }
}

#[async_trait]
impl BackendKind for Cloud {
    fn kind(&self) -> BackendType {
        self.kind
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    async fn configure(&self, _: &str, config: &BackendConfig) -> Result<SplitConfig, ConfigureError> {
        if matches!(config, BackendConfig::Runpod(config) if config.creds.api_key.expose() == AT_ONCE) {
            return Ok(config.split());
        }
        self.asked.add_permits(1);
        self.answers.acquire().await.unwrap().forget();
        let is_away = self
            .away
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |away| away.checked_sub(1));
        match is_away {
            Ok(_) => Err(ConfigureError::Invalid("the cloud is away".to_owned())),
            Err(_) => Ok(config.split()),
        }
    }

    fn open(&self, _: &SplitConfig) -> Result<Arc<dyn Backend>, ComputeError> {
        Err(ComputeError::Unsupported("opening"))
    }
}

/// A server whose file lists RunPod and Vast.ai. Stops when it is dropped.
struct Started {
    address: std::net::SocketAddr,
    stop: CancellationToken,
    _dir: TempDir,
}

impl Drop for Started {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Started {
    async fn with(clouds: [&Arc<Cloud>; 2]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = "projects:\n- name: main\n  backends:\n\
                      \x20 - {type: runpod, creds: {type: api_key, api_key: k}}\n\
                      \x20 - {type: vastai, creds: {type: api_key, api_key: k}}\n";
        fs_err::write(dir.path().join("config.yml"), config).unwrap();
        let (ready, address) = oneshot::channel();
        let stop = CancellationToken::new();
        let options = ServerOptions {
            settings: Settings {
                dir: dir.path().to_owned(),
                port: 0,
                url: None,
                admin_token: Some("token".to_owned()),
                database_url: None,
                ..Settings::from_env()
            },
            home: None,
            registry: Registry::new(clouds.map(|cloud| Arc::clone(cloud) as Arc<dyn BackendKind>)),
            config_waits: ConfigWaits {
                start: Duration::from_millis(100),
                retry_interval: Duration::from_millis(1),
            },
            ready: Some(ready),
            stop: stop.clone(),
            ..ServerOptions::from_env()
        };
        task::spawn("server", serve(options));
        Self {
            address: address.await.unwrap(),
            stop,
            _dir: dir,
        }
    }

    async fn post(&self, path: &str, body: &str) -> Value {
        let answer = super::startup::http(self.address, &format!("POST {path}"), "token", body).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap_or_default()
    }

    /// In their order.
    async fn backends(&self) -> Vec<String> {
        let project = self.post("/api/projects/main/get", "").await;
        let backends = project["backends"].as_array().unwrap().iter();
        let names = backends.map(|backend| backend["name"].as_str().unwrap().to_owned());
        names.collect()
    }

    /// Asks again and again until the project has these.
    async fn until_backends(&self, expected: &[&str]) {
        let all = async {
            while self.backends().await != expected {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), all).await.unwrap();
    }
}

#[tokio::test]
async fn a_cloud_that_does_not_answer_holds_up_neither_the_server_nor_other_backends() {
    let slow = Cloud::new(BackendType::Runpod, 0, 0);
    let quick = Cloud::new(BackendType::VastAi, 1, 0);
    let server = Started::with([&slow, &quick]).await;
    slow.asked(1).await;
    server.until_backends(&["vastai"]).await;
    slow.answers.add_permits(1);
    server.until_backends(&["runpod", "vastai"]).await;
}

#[tokio::test]
async fn a_cloud_that_is_away_when_the_server_starts_is_asked_again() {
    let away = Cloud::new(BackendType::Runpod, 100, 3);
    let here = Cloud::new(BackendType::VastAi, 1, 0);
    let server = Started::with([&away, &here]).await;
    away.asked(4).await;
    server.until_backends(&["runpod", "vastai"]).await;
}

#[tokio::test]
async fn what_somebody_has_changed_meanwhile_stays() {
    let away = Cloud::new(BackendType::Runpod, 1, 2);
    let here = Cloud::new(BackendType::VastAi, 1, 0);
    let server = Started::with([&away, &here]).await;
    // It was away, and is asked again.
    away.asked(2).await;
    let create = format!(r#"{{"type": "runpod", "creds": {{"type": "api_key", "api_key": "{AT_ONCE}"}}}}"#);
    server.post("/api/project/main/backends/create", &create).await;
    // It is away once more; whoever asked again would be accepted.
    away.answers.add_permits(2);
    let answered = async {
        while away.away.load(Ordering::SeqCst) > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), answered)
        .await
        .unwrap();
    for _ in 0..20 {
        let shown = server
            .post("/api/project/main/backends/runpod/config_info", "null")
            .await;
        assert_eq!(shown["creds"]["api_key"], AT_ONCE);
    }
}
