//! The API: REST v2, and of GraphQL the one call that knows countries.
//!
//! All lists come whole: the description of the API (OpenAPI 3.1, version 2.0.0) knows no pages.

use std::time::Duration;

use dstack_backend::Env;
use dstack_http::{ApiClient, ApiError, ApiLimits};
use dstack_model::backends::BackendType;
use dstack_units::Time;
use http::header::AUTHORIZATION;
use reqwest::StatusCode;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::errors::readable;

const BASE: &str = "https://api.runpod.io";

/// Creates a pod in the community cloud: REST v2 has no countries.
const DEPLOY: &str = "mutation ($input: PodFindAndDeployOnDemandInput!) \
    { podFindAndDeployOnDemand(input: $input) { id } }";

/// The API as one account.
#[derive(Debug)]
pub(crate) struct Client(ApiClient);

/// A container, with all of its kind (`Pod`).
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Pod {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) name: String,
    pub(crate) status: PodStatus,
    /// `None` until the container runs.
    #[serde(default)]
    pub(crate) runtime: Option<Runtime>,
    /// The cluster whose member it is.
    #[serde(default)]
    pub(crate) cluster: Option<Membership>,
    #[serde(default)]
    pub(crate) data_center_id: Option<String>,
    /// Dollars an hour.
    #[serde(default)]
    pub(crate) cost: Option<f64>,
    #[serde(default)]
    pub(crate) created_at: Option<Time>,
}

/// Of a pod (`PodStatus`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum PodStatus {
    Provisioning,
    Starting,
    Running,
    /// The container has ended; the pod still costs money.
    Exited,
    /// The container will never work again.
    Error,
    /// The pod was deleted.
    Terminated,
    /// One that came after this version.
    #[serde(other)]
    Other,
}

/// What a running pod has (`PodRuntime`).
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Runtime {
    #[serde(default)]
    pub(crate) ports: Option<Vec<Port>>,
}

/// How a port of a pod is reached (`PodRuntimePort`).
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Port {
    #[serde(default)]
    pub(crate) private: Option<i64>,
    #[serde(default)]
    pub(crate) public: Option<i64>,
    #[serde(default)]
    pub(crate) ip: Option<String>,
}

/// Of a pod in a cluster (`PodCluster`).
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Membership {
    /// Of the cluster.
    pub(crate) id: String,
    /// Number of the node; `None`: it has none yet.
    #[serde(default)]
    pub(crate) rank: Option<i64>,
    /// Address in the network of the cluster.
    #[serde(default)]
    pub(crate) ip: Option<String>,
}

/// Pods that are made and removed as one.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Cluster {
    pub(crate) id: String,
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) data_center_id: Option<String>,
    #[serde(default)]
    pub(crate) created_at: Option<Time>,
}

/// A disk that outlives pods.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NetworkVolume {
    pub(crate) id: String,
    pub(crate) name: String,
    /// In GB.
    pub(crate) size: i64,
    pub(crate) data_center: String,
}

/// A login to an image registry (`Registry`). Its secrets are never told.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct RegistryRecord {
    pub(crate) id: String,
    pub(crate) name: String,
}

/// What is in stock in a data center (`DataCenter`).
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DataCenter {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) gpu_availability: Vec<Stock>,
    #[serde(default)]
    pub(crate) cpu_availability: Vec<Stock>,
}

/// How much there is of a type of GPUs or of a flavor of CPUs (`CatalogResourceAvailability`).
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Stock {
    pub(crate) id: String,
    /// `NONE`, `LOW`, `MEDIUM` or `HIGH`.
    pub(crate) availability: String,
}

/// An answer of GraphQL: errors come with HTTP status 200.
#[derive(Debug, Deserialize)]
pub(crate) struct Deployed {
    #[serde(default)]
    pub(crate) data: Option<DeployedData>,
    #[serde(default)]
    pub(crate) errors: Option<Vec<GraphqlError>>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct DeployedData {
    #[serde(default, rename = "podFindAndDeployOnDemand")]
    pub(crate) pod: Option<Id>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct GraphqlError {
    #[serde(default)]
    pub(crate) message: String,
    #[serde(default)]
    pub(crate) extensions: Option<GraphqlExtensions>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct GraphqlExtensions {
    #[serde(default)]
    pub(crate) code: Option<String>,
}

/// Whatever has an id.
#[derive(Debug, Deserialize)]
pub(crate) struct Id {
    pub(crate) id: String,
}

impl Client {
    pub(crate) fn new(env: &Env, api_key: &str) -> Result<Self, String> {
        // A pod is placed before the answer comes.
        let limits = ApiLimits {
            timeout: Duration::from_secs(45),
            ..ApiLimits::default()
        };
        let client = env.api_with_key(
            BackendType::Runpod,
            BASE,
            limits,
            AUTHORIZATION,
            &format!("Bearer {api_key}"),
        )?;
        Ok(Self(client))
    }

    async fn read<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        self.0.get(path).send().await.map_err(readable)
    }

    /// `None`: there is no such thing.
    async fn read_one<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, ApiError> {
        match self.read(path).await {
            Err(error) if error.status() == Some(StatusCode::NOT_FOUND) => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// The id of what was made.
    async fn create(&self, path: &str, body: &Value) -> Result<String, ApiError> {
        let made: Id = self.0.post(path).json(body).send().await.map_err(readable)?;
        Ok(made.id)
    }

    /// Whether there was such a thing.
    async fn delete(&self, path: &str) -> Result<bool, ApiError> {
        let answer = self.0.delete(path).repeatable().send_raw().await;
        match answer.map_err(readable) {
            Ok(_) => Ok(true),
            Err(error) if error.status() == Some(StatusCode::NOT_FOUND) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether the key is one (`getSshKeys`).
    pub(crate) async fn check_account(&self) -> Result<(), ApiError> {
        self.read::<Value>("v2/account/ssh-keys").await.map(drop)
    }

    /// All data centers with their stock (`listDataCenters`).
    pub(crate) async fn data_centers(&self) -> Result<Vec<DataCenter>, ApiError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Found {
            data_centers: Vec<DataCenter>,
        }
        let request = self
            .0
            .get("v2/catalog/datacenters")
            .query("include", "GPU_AVAILABILITY,CPU_AVAILABILITY");
        let found: Found = request.send().await.map_err(readable)?;
        Ok(found.data_centers)
    }

    /// All pods that are no members of clusters (`listPods`).
    pub(crate) async fn single_pods(&self) -> Result<Vec<Pod>, ApiError> {
        self.list_pods(false).await
    }

    /// All pods, those of clusters among them (`listPods`).
    pub(crate) async fn all_pods(&self) -> Result<Vec<Pod>, ApiError> {
        self.list_pods(true).await
    }

    async fn list_pods(&self, with_members: bool) -> Result<Vec<Pod>, ApiError> {
        let request = self.0.get("v2/pods");
        let request = match with_members {
            true => request.query("includeClusterPods", "true"),
            false => request,
        };
        let found: Pods = request.send().await.map_err(readable)?;
        Ok(found.pods)
    }

    /// One pod, if it exists (`getPod`).
    pub(crate) async fn pod(&self, id: &str) -> Result<Option<Pod>, ApiError> {
        self.read_one(&format!("v2/pods/{id}")).await
    }

    /// The id of the pod (`createPod`).
    pub(crate) async fn create_pod(&self, body: &Value) -> Result<String, ApiError> {
        self.create("v2/pods", body).await
    }

    /// Creates a pod at a host of the community (`podFindAndDeployOnDemand`).
    pub(crate) async fn deploy_pod(&self, input: &Value) -> Result<Deployed, ApiError> {
        let body = json!({"query": DEPLOY, "variables": {"input": input}});
        self.0.post("graphql").json(&body).send().await.map_err(readable)
    }

    /// Whether there was such a pod (`deletePod`).
    pub(crate) async fn delete_pod(&self, id: &str) -> Result<bool, ApiError> {
        self.delete(&format!("v2/pods/{id}")).await
    }

    /// All clusters (`listClusters`).
    pub(crate) async fn clusters(&self) -> Result<Vec<Cluster>, ApiError> {
        #[derive(Deserialize)]
        struct Found {
            clusters: Vec<Cluster>,
        }
        Ok(self.read::<Found>("v2/clusters").await?.clusters)
    }

    /// One cluster, if it exists (`getCluster`).
    pub(crate) async fn cluster(&self, id: &str) -> Result<Option<Cluster>, ApiError> {
        self.read_one(&format!("v2/clusters/{id}")).await
    }

    /// The pods of a cluster, if it exists (`listClusterPods`).
    pub(crate) async fn cluster_pods(&self, id: &str) -> Result<Option<Vec<Pod>>, ApiError> {
        let found: Option<Pods> = self.read_one(&format!("v2/clusters/{id}/pods")).await?;
        Ok(found.map(|found| found.pods))
    }

    /// The id of the cluster (`createCluster`).
    pub(crate) async fn create_cluster(&self, body: &Value) -> Result<String, ApiError> {
        self.create("v2/clusters", body).await
    }

    /// Whether there was such a cluster; its pods go with it (`deleteCluster`).
    pub(crate) async fn delete_cluster(&self, id: &str) -> Result<bool, ApiError> {
        self.delete(&format!("v2/clusters/{id}")).await
    }

    /// All volumes (`listNetworkVolumes`).
    pub(crate) async fn network_volumes(&self) -> Result<Vec<NetworkVolume>, ApiError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Found {
            network_volumes: Vec<NetworkVolume>,
        }
        Ok(self.read::<Found>("v2/network-volumes").await?.network_volumes)
    }

    /// One volume, if it exists (`getNetworkVolume`).
    pub(crate) async fn network_volume(&self, id: &str) -> Result<Option<NetworkVolume>, ApiError> {
        self.read_one(&format!("v2/network-volumes/{id}")).await
    }

    /// The id of the volume (`createNetworkVolume`).
    pub(crate) async fn create_network_volume(&self, body: &Value) -> Result<String, ApiError> {
        self.create("v2/network-volumes", body).await
    }

    /// Whether there was such a volume (`deleteNetworkVolume`).
    pub(crate) async fn delete_network_volume(&self, id: &str) -> Result<bool, ApiError> {
        self.delete(&format!("v2/network-volumes/{id}")).await
    }

    /// All logins to image registries (`listRegistries`).
    pub(crate) async fn registry_records(&self) -> Result<Vec<RegistryRecord>, ApiError> {
        #[derive(Deserialize)]
        struct Found {
            registries: Vec<RegistryRecord>,
        }
        Ok(self.read::<Found>("v2/registries").await?.registries)
    }

    /// The id of the login (`createRegistry`).
    pub(crate) async fn create_registry_record(&self, body: &Value) -> Result<String, ApiError> {
        self.create("v2/registries", body).await
    }

    /// Whether there was such a login (`deleteRegistry`).
    pub(crate) async fn delete_registry_record(&self, id: &str) -> Result<bool, ApiError> {
        self.delete(&format!("v2/registries/{id}")).await
    }
}

#[derive(Deserialize)]
struct Pods {
    pods: Vec<Pod>,
}
