//! The API of one cluster, as far as it is used. See
//! <https://kubernetes.io/docs/reference/kubernetes-api/> and, for what a read sees,
//! <https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions>: without a version, the latest.

use std::sync::Arc;
use std::time::Duration;

use dstack_backend::{Env, compute_error};
use dstack_compute::{ComputeError, Removal};
use dstack_http::{ApiClient, ApiError, ApiLimits};
use dstack_model::backends::BackendType;
use http::StatusCode;
use http::header::AUTHORIZATION;
use reqwest::Url;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::kubeconfig::Access;
use crate::labels::MANAGED_SELECTOR;
use crate::objects::{List, Object};

/// Pause while something is being taken away: pods have half a minute to end.
const ENDS_INTERVAL: Duration = Duration::from_secs(5);

/// Kinds of objects in a namespace, by their names in paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Pod,
    Service,
    Secret,
    Claim,
}

impl Kind {
    const fn path(self) -> &'static str {
        match self {
            Self::Pod => "pods",
            Self::Service => "services",
            Self::Secret => "secrets",
            Self::Claim => "persistentvolumeclaims",
        }
    }
}

/// One cluster, in one namespace.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) access: Access,
    api: ApiClient,
}

impl Cluster {
    pub(crate) fn new(env: &Env, access: Access) -> Result<Self, String> {
        let region = &access.region;
        let url = match env.endpoints.get(&BackendType::Kubernetes) {
            Some(url) => url.clone(),
            None => Url::parse(&access.server)
                .map_err(|_| format!("kubeconfig, context {region}: the server is no URL"))?,
        };
        let transport = env.transport.with_tls(&access.tls);
        let transport = transport.unwrap_or_else(|| Arc::clone(&env.transport));
        let mut api = ApiClient::new(transport, url, ApiLimits::default());
        if let Some(value) = &access.authorization {
            api = api
                .with_secret_header(AUTHORIZATION, value.expose())
                .map_err(|_| {
                    format!("kubeconfig, context {region}: the token has characters that no token has")
                })?;
        }
        Ok(Self { access, api })
    }

    fn path(&self, kind: Kind, name: &str) -> String {
        let namespace = &self.access.namespace;
        format!("api/v1/namespaces/{namespace}/{}/{name}", kind.path())
    }

    /// Whether the cluster answers, and lets us see its nodes.
    pub(crate) async fn check(&self) -> Result<(), ApiError> {
        self.api.get("version").send::<Value>().await?;
        self.api
            .get("api/v1/nodes")
            .query("limit", "1")
            .send::<Value>()
            .await
            .map(drop)
    }

    /// All nodes, or pods of all namespaces.
    pub(crate) async fn list_all<T: DeserializeOwned>(&self, what: &str) -> Result<Vec<T>, ComputeError> {
        let list: Result<List<T>, ApiError> = self.api.get(&format!("api/v1/{what}")).send().await;
        list.map(|list| list.items).map_err(|error| compute_error(&error))
    }

    /// Those of the namespace that dstack made, of these labels besides.
    pub(crate) async fn list<T: DeserializeOwned>(
        &self,
        kind: Kind,
        labels: &str,
    ) -> Result<Vec<T>, ComputeError> {
        let selector = match labels {
            "" => MANAGED_SELECTOR.to_owned(),
            labels => format!("{MANAGED_SELECTOR},{labels}"),
        };
        let request = self.api.get(self.path(kind, "").trim_end_matches('/'));
        let list: Result<List<T>, ApiError> = request.query("labelSelector", &selector).send().await;
        list.map(|list| list.items).map_err(|error| compute_error(&error))
    }

    pub(crate) async fn node<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, ComputeError> {
        absent(self.api.get(&format!("api/v1/nodes/{name}")).send().await)
    }

    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        kind: Kind,
        name: &str,
    ) -> Result<Option<T>, ComputeError> {
        absent(self.api.get(&self.path(kind, name)).send().await)
    }

    /// Makes the namespace, unless it is there.
    pub(crate) async fn ensure_namespace(&self) -> Result<(), ComputeError> {
        let namespace = &self.access.namespace;
        let found: Result<Value, ApiError> = self
            .api
            .get(&format!("api/v1/namespaces/{namespace}"))
            .send()
            .await;
        match found {
            // Who may not see namespaces has one.
            Err(error) if error.status() == Some(StatusCode::FORBIDDEN) => return Ok(()),
            found if absent(found.clone())?.is_some() => return Ok(()),
            _ => {}
        }
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        match self
            .api
            .post("api/v1/namespaces")
            .json(&body)
            .send::<Value>()
            .await
        {
            Ok(_) => Ok(()),
            Err(error) if error.status() == Some(StatusCode::CONFLICT) => Ok(()),
            Err(error) => Err(not_made(&error)),
        }
    }

    /// Makes an object. Names are unique: one that is there is the one, if it carries our labels.
    pub(crate) async fn create(&self, kind: Kind, object: &Value) -> Result<(), ComputeError> {
        let path = self.path(kind, "");
        let request = self.api.post(path.trim_end_matches('/')).json(object);
        let error = match request.send::<Object>().await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        if error.status() != Some(StatusCode::CONFLICT) || !error.body().contains("AlreadyExists") {
            return Err(not_made(&error));
        }
        let name = object
            .pointer("/metadata/name")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let found: Option<Object> = self.get(kind, name).await?;
        let is_ours = |label: &str, value: &str| {
            found
                .as_ref()
                .is_some_and(|found| found.metadata.labels.get(label).is_some_and(|of| of == value))
        };
        let wanted = object.pointer("/metadata/labels").and_then(Value::as_object);
        let marks = wanted
            .into_iter()
            .flatten()
            .filter(|(label, _)| label.starts_with("dstack_"));
        match marks
            .into_iter()
            .all(|(label, value)| is_ours(label, value.as_str().unwrap_or_default()))
        {
            true => Ok(()),
            false => Err(ComputeError::Refused(format!(
                "{name} exists in the namespace {}, and is not of this installation: remove it",
                self.access.namespace
            ))),
        }
    }

    /// Adds to an object; whether it is there.
    pub(crate) async fn patch(&self, kind: Kind, name: &str, patch: &Value) -> Result<bool, ComputeError> {
        let request = self
            .api
            .patch(&self.path(kind, name))
            .merge_patch(patch)
            .repeatable();
        Ok(absent(request.send::<Object>().await)?.is_some())
    }

    /// Removes an object (the one of this uid, if one is named), and looks whether it is gone.
    pub(crate) async fn delete(
        &self,
        kind: Kind,
        name: &str,
        uid: Option<&str>,
    ) -> Result<Removal, ComputeError> {
        let mut options = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
        if let (Some(uid), Some(options)) = (uid, options.as_object_mut()) {
            options.insert("preconditions".to_owned(), json!({"uid": uid}));
        }
        let deleted: Result<Value, ApiError> = self
            .api
            .delete(&self.path(kind, name))
            .json(&options)
            .repeatable()
            .send()
            .await;
        match deleted {
            // Another one has the name now.
            Err(error) if error.status() == Some(StatusCode::CONFLICT) && uid.is_some() => {
                return Ok(Removal::Gone);
            }
            deleted => {
                if absent(deleted)?.is_none() {
                    return Ok(Removal::Gone);
                }
            }
        }
        Ok(match self.get::<Object>(kind, name).await? {
            Some(_) => Removal::Underway { again: ENDS_INTERVAL },
            None => Removal::Gone,
        })
    }
}

/// What is not there is no error.
fn absent<T>(answer: Result<T, ApiError>) -> Result<Option<T>, ComputeError> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.status() == Some(StatusCode::NOT_FOUND) => Ok(None),
        Err(error) => Err(compute_error(&error)),
    }
}

/// Admission tells in words that a quota is used up (403, see <https://kubernetes.io/docs/concepts/policy/resource-quotas/>).
fn not_made(error: &ApiError) -> ComputeError {
    match error.status() {
        Some(StatusCode::FORBIDDEN) if error.body().contains("exceeded quota") => {
            ComputeError::NoQuota(error.to_string())
        }
        _ => compute_error(error),
    }
}
