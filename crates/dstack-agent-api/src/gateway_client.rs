//! Calls the API of a gateway.

use std::sync::Arc;
use std::time::Duration;

use dstack_system::Secret;
use serde::Serialize;

use crate::gateway::{
    AcmeSettings, Drain, GatewayHealth, RegisterEntrypoint, RegisterReplica, RegisterService, Registered,
    ServiceCounts, ServiceStatistics, SetSplit, Split,
};
use crate::http::{AgentHttp, Call, CallError, Connector};

/// A registration may wait for a certificate (40 s) and for a connection to a replica (15 s); dstack 0.22.5 gives it this long.
const REGISTRATION_LIMIT: Duration = Duration::from_secs(120);

/// Beyond the time that requests under way are given.
const DRAIN_MARGIN: Duration = Duration::from_secs(15);

/// Numbers for metrics, which nobody waits for long.
const COUNTS_LIMIT: Duration = Duration::from_secs(3);

/// As much of an answer is read: a hundred bytes for each of many thousand replicas.
const MAX_ANSWER_BYTES: usize = 16 * 1024 * 1024;

/// Client of one gateway.
#[derive(Debug, Clone)]
pub struct GatewayClient {
    http: AgentHttp,
}

impl GatewayClient {
    /// Through this connector, to a gateway that was started with this token.
    pub fn new(connector: Arc<dyn Connector>, token: Secret) -> Self {
        Self {
            http: AgentHttp::new(connector).with_token(token),
        }
    }

    /// How it is.
    pub async fn health(&self) -> Result<GatewayHealth, CallError> {
        self.http.send(get("/api/v2/health")).await?.json()
    }

    /// Which certificate authority it asks.
    pub async fn configure(&self, acme: &AcmeSettings) -> Result<(), CallError> {
        self.post("/api/config".to_owned(), acme).await
    }

    /// All that is registered.
    pub async fn registered(&self) -> Result<Registered, CallError> {
        self.http.send(get("/api/services/list")).await?.json()
    }

    /// Registers a service. `Refused` 400: it cannot be had, or is registered.
    pub async fn register_service(&self, project: &str, service: &RegisterService) -> Result<(), CallError> {
        self.post(format!("/api/registry/{project}/services/register"), service)
            .await
    }

    /// Takes a service away, with its replicas. `Refused` 400: there is none.
    pub async fn unregister_service(&self, project: &str, run: &str) -> Result<(), CallError> {
        self.post(
            format!("/api/registry/{project}/services/{run}/unregister"),
            &serde_json::Map::new(),
        )
        .await
    }

    /// Registers a replica of a service. `Refused` 400: it is not reached, or is registered.
    pub async fn register_replica(
        &self,
        project: &str,
        run: &str,
        replica: &RegisterReplica,
    ) -> Result<(), CallError> {
        self.post(
            format!("/api/registry/{project}/services/{run}/replicas/register"),
            replica,
        )
        .await
    }

    /// Takes a replica away, and waits for the requests under way there, at most for so long. `Refused` 400: there is none.
    pub async fn drain_replica(
        &self,
        project: &str,
        run: &str,
        job: &str,
        limit: Duration,
    ) -> Result<(), CallError> {
        let drain = Drain {
            timeout: u32::try_from(limit.as_secs()).unwrap_or(u32::MAX),
        };
        let path = format!("/api/v2/registry/{project}/services/{run}/replicas/{job}/drain");
        let call = Call::post(path).json(&drain)?.within(limit + DRAIN_MARGIN);
        self.http.send(call).await.map(drop)
    }

    /// How the requests to a service are split. `Refused` 404: the gateway cannot split any.
    pub async fn split(&self, project: &str, run: &str, split: Option<&Split>) -> Result<(), CallError> {
        let body = SetSplit {
            split: split.cloned(),
        };
        self.post(format!("/api/v2/registry/{project}/services/{run}/split"), &body)
            .await
    }

    /// Where the models of a project are answered.
    pub async fn register_entrypoint(
        &self,
        project: &str,
        entrypoint: &RegisterEntrypoint,
    ) -> Result<(), CallError> {
        self.post(
            format!("/api/registry/{project}/entrypoints/register"),
            entrypoint,
        )
        .await
    }

    /// Requests to all services.
    pub async fn statistics(&self) -> Result<Vec<ServiceStatistics>, CallError> {
        self.http.send(get("/api/stats/collect")).await?.json()
    }

    /// What was counted of the requests to each service since the gateway was started; of those without requests, nothing.
    ///
    /// # Errors
    /// Also those of gateways of dstack 0.22.5, which do not know it.
    pub async fn counts(&self) -> Result<Vec<ServiceCounts>, CallError> {
        self.http
            .send(get("/api/v2/stats").within(COUNTS_LIMIT))
            .await?
            .json()
    }

    async fn post<T: Serialize + Sync>(&self, path: String, body: &T) -> Result<(), CallError> {
        let call = Call::post(path).json(body)?.within(REGISTRATION_LIMIT);
        self.http.send(call).await.map(drop)
    }
}

fn get(path: &str) -> Call {
    Call::get(path).at_most(MAX_ANSWER_BYTES)
}
