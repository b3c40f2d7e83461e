//! The API of one cluster, as far as it is used. See
//! <https://kubernetes.io/docs/reference/kubernetes-api/> and, for what a read sees,
//! <https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions>: without a version, the latest.

use std::sync::Arc;
use std::time::Duration;

use dstack_backend::Env;
use dstack_compute::{ComputeError, Marks, Removal};
use dstack_http::{ApiClient, ApiError, ApiLimits};
use dstack_model::backends::BackendType;
use http::StatusCode;
use http::header::AUTHORIZATION;
use reqwest::Url;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::errors::{is_taken, not_made, told};
use crate::kubeconfig::Access;
use crate::labels::{MANAGED_SELECTOR, is_for};
use crate::objects::{List, Metadata, Object};
use crate::rights::Right;

/// Pause while something is being taken away: pods have half a minute to end.
pub(crate) const ENDS_INTERVAL: Duration = Duration::from_secs(5);

/// So many objects are asked for at once.
const PAGE: &str = "500";

/// A list whose rest has expired is begun anew so often at most.
const MOST_STARTS: u32 = 3;

/// More pages than any list has: an API that always has another one is broken.
const MOST_PAGES: u32 = 1000;

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
#[derive(Debug, Clone)]
pub(crate) struct Cluster {
    pub(crate) access: Arc<Access>,
    /// Where everything is made.
    pub(crate) namespace: String,
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
        Ok(Self {
            namespace: access.namespace.clone(),
            access: Arc::new(access),
            api,
        })
    }

    /// The same cluster in another namespace.
    pub(crate) fn in_namespace(&self, namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            ..self.clone()
        }
    }

    fn path(&self, kind: Kind, name: &str) -> String {
        let namespace = &self.namespace;
        format!("api/v1/namespaces/{namespace}/{}/{name}", kind.path())
    }

    /// Its version: whether it answers at all, and to whom.
    pub(crate) async fn version(&self) -> Result<Value, ApiError> {
        self.api.get("version").send().await
    }

    /// Whether the user of the kubeconfig has a right, see
    /// <https://kubernetes.io/docs/reference/kubernetes-api/authorization-resources/self-subject-access-review-v1/>.
    pub(crate) async fn may(&self, right: &Right, verb: &str) -> Result<bool, ApiError> {
        let mut of = json!({"verb": verb, "resource": right.resource});
        if let (false, Some(of)) = (right.is_of_cluster, of.as_object_mut()) {
            of.insert("namespace".to_owned(), json!(self.namespace));
        }
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": of}});
        let path = "apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let answer: Value = self.api.post(path).json(&review).repeatable().send().await?;
        Ok(answer.pointer("/status/allowed") == Some(&Value::Bool(true)))
    }

    /// All nodes of the cluster, page by page; they belong to no namespace.
    pub(crate) async fn nodes<T: DeserializeOwned>(&self) -> Result<Vec<T>, ComputeError> {
        self.list_all("api/v1/nodes", &[]).await
    }

    /// Pods of all namespaces that are not over.
    pub(crate) async fn all_pods<T: DeserializeOwned>(&self) -> Result<Vec<T>, ComputeError> {
        let not_over = ("fieldSelector", "status.phase!=Succeeded,status.phase!=Failed");
        self.list_all("api/v1/pods", &[not_over]).await
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
        let path = self.path(kind, "");
        self.list_all(path.trim_end_matches('/'), &[("labelSelector", &selector)])
            .await
    }

    /// A whole list. Its rest expires after some minutes (410): then it is begun anew.
    async fn list_all<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<Vec<T>, ComputeError> {
        for _ in 1..MOST_STARTS {
            match self.all_pages(path, query).await {
                Err(error) if error.status() == Some(StatusCode::GONE) => {}
                answer => return answer.map_err(|error| told(&error)),
            }
        }
        let last = self.all_pages(path, query).await;
        last.map_err(|error| told(&error))
    }

    async fn all_pages<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<Vec<T>, ApiError> {
        let mut all = Vec::new();
        let mut next = None::<String>;
        for _ in 0..MOST_PAGES {
            let mut request = self.api.get(path).query("limit", PAGE);
            for (name, value) in query {
                request = request.query(name, value);
            }
            if let Some(next) = &next {
                request = request.query("continue", next);
            }
            let page: List<T> = request.send().await?;
            all.extend(page.items);
            next = page.metadata.next.filter(|next| !next.is_empty());
            if next.is_none() {
                return Ok(all);
            }
        }
        Err(ApiError::Malformed {
            api: path.to_owned(),
            details: format!("a list of more than {MOST_PAGES} pages"),
        })
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

    /// The id of a namespace, if it may be seen.
    pub(crate) async fn namespace_uid(&self, name: &str) -> Result<NamespaceUid, ComputeError> {
        let found: Result<Object, ApiError> = self.api.get(&format!("api/v1/namespaces/{name}")).send().await;
        match found {
            Err(error) if error.status() == Some(StatusCode::FORBIDDEN) => Ok(NamespaceUid::Hidden),
            found => Ok(match absent(found)? {
                Some(found) => NamespaceUid::Is(found.metadata.uid),
                None => NamespaceUid::Absent,
            }),
        }
    }

    /// Makes the namespace, unless it is there.
    pub(crate) async fn ensure_namespace(&self) -> Result<(), ComputeError> {
        let namespace = &self.namespace;
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
            Err(error) if is_taken(&error) => Ok(()),
            Err(error) => Err(not_made(&error)),
        }
    }

    /// Makes an object. Names are unique: one that is there is the one, if it carries these marks.
    pub(crate) async fn create(
        &self,
        kind: Kind,
        object: &Value,
        marks: &Marks,
    ) -> Result<Metadata, ComputeError> {
        let path = self.path(kind, "");
        let request = self.api.post(path.trim_end_matches('/')).json(object);
        let error = match request.send::<Object>().await {
            Ok(made) => return Ok(made.metadata),
            Err(error) => error,
        };
        if !is_taken(&error) {
            return Err(not_made(&error));
        }
        let name = object.pointer("/metadata/name").and_then(Value::as_str);
        let name = name.unwrap_or_default();
        let before = || ComputeError::Throttled {
            after: ENDS_INTERVAL,
            details: format!("{name} of an attempt before is still being removed"),
        };
        let found = self.get::<Object>(kind, name).await?.ok_or_else(before)?.metadata;
        if !is_for(marks, &found) {
            return Err(ComputeError::Refused(format!(
                "{name} exists in the namespace {}, and is not of this installation: remove it",
                self.namespace
            )));
        }
        match found.deletion_timestamp {
            Some(_) => Err(before()),
            None => Ok(found),
        }
    }

    /// Changes an object; whether it is there.
    pub(crate) async fn patch(&self, kind: Kind, name: &str, patch: &Value) -> Result<bool, ComputeError> {
        let request = self
            .api
            .patch(&self.path(kind, name))
            .merge_patch(patch)
            .repeatable();
        Ok(absent(request.send::<Object>().await)?.is_some())
    }

    /// Changes an object that is as it was when it was read: the patch has its version. Whether it was.
    pub(crate) async fn patch_unchanged(
        &self,
        kind: Kind,
        name: &str,
        patch: &Value,
    ) -> Result<bool, ComputeError> {
        let request = self.api.patch(&self.path(kind, name)).merge_patch(patch);
        match request.send::<Object>().await {
            Err(error) if error.status() == Some(StatusCode::CONFLICT) => Ok(false),
            patched => Ok(absent(patched)?.is_some()),
        }
    }

    /// Removes the object of this uid, and looks whether it is gone.
    pub(crate) async fn delete(&self, kind: Kind, name: &str, uid: &str) -> Result<Removal, ComputeError> {
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}});
        let deleted: Result<Value, ApiError> = self
            .api
            .delete(&self.path(kind, name))
            .json(&options)
            .repeatable()
            .send()
            .await;
        match deleted {
            // Another one may have the name now.
            Err(error) if error.status() == Some(StatusCode::CONFLICT) => {}
            deleted => {
                if absent(deleted)?.is_none() {
                    return Ok(Removal::Gone);
                }
            }
        }
        Ok(match self.get::<Object>(kind, name).await? {
            Some(found) if found.metadata.uid == uid => Removal::Underway { again: ENDS_INTERVAL },
            _ => Removal::Gone,
        })
    }
}

/// What a cluster says of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NamespaceUid {
    /// It is there, with this id.
    Is(String),
    /// It is not there.
    Absent,
    /// The user of the kubeconfig may not see it.
    Hidden,
}

/// What is not there is no error.
fn absent<T>(answer: Result<T, ApiError>) -> Result<Option<T>, ComputeError> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.status() == Some(StatusCode::NOT_FOUND) => Ok(None),
        Err(error) => Err(told(&error)),
    }
}
