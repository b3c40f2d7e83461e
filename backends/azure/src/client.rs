//! Azure Resource Manager as far as it is used: Compute (2026-04-01, disks 2026-03-02, SKUs 2021-07-01), Network (2024-03-01),
//! Resources (2025-04-01), Subscription (2016-06-01), ManagedIdentity (2024-11-30), Authorization (2022-04-01). Field names are those of Azure's SDKs for Python.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use dstack_backend::Env;
use dstack_compute::config::AzureConfig;
use dstack_http::{ApiClient, ApiError, ApiLimits};
use dstack_model::backends::BackendType;
use http::header::AUTHORIZATION;
use http::{Method, Response};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;
use url::Url;

use crate::auth::Tokens;
use crate::errors::AzureError;
use crate::names;

const BASE: &str = "https://management.azure.com";

/// More pages than any list has.
const MAX_PAGES: usize = 1000;

/// The longest pause that is kept to for all calls.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// Versions of the APIs.
pub(crate) const COMPUTE: &str = "2026-04-01";
pub(crate) const DISKS: &str = "2026-03-02";
pub(crate) const SKUS: &str = "2021-07-01";
pub(crate) const NETWORK: &str = "2024-03-01";
pub(crate) const RESOURCES: &str = "2025-04-01";
pub(crate) const SUBSCRIPTIONS: &str = "2016-06-01";
pub(crate) const IDENTITIES: &str = "2024-11-30";
pub(crate) const PERMISSIONS: &str = "2022-04-01";

/// Azure Resource Manager, in one subscription.
#[derive(Debug)]
pub(crate) struct Client {
    arm: ApiClient,
    tokens: Tokens,
    subscription: String,
    /// Until when Azure does not want to be asked. Its limits are those of the subscription.
    paused_until: Mutex<Option<Instant>>,
}

/// A request, without the host and the token, so that it can be sent again with another token.
#[derive(Debug, Clone)]
struct Ask<'a> {
    method: Method,
    path: String,
    query: Vec<(String, String)>,
    body: Option<&'a Value>,
}

/// A reference to something else.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub(crate) struct Reference {
    pub(crate) id: String,
}

/// What everything has.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Thing<P> {
    /// Its path; Azure writes the names of groups in it in any case.
    #[serde(default)]
    pub(crate) id: String,
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) location: String,
    #[serde(default)]
    pub(crate) tags: Option<HashMap<String, String>>,
    #[serde(default = "Option::default")]
    pub(crate) properties: Option<P>,
}

impl<P> Thing<P> {
    /// The resource group in which it is.
    pub(crate) fn group(&self) -> Option<&str> {
        names::of_id(&self.id).map(|[group, ..]| group)
    }
}

/// Of network interfaces and addresses.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PieceProperties {
    pub(crate) ip_configurations: Vec<IpConfiguration>,
    pub(crate) ip_address: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct IpConfiguration {
    pub(crate) properties: IpProperties,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct IpProperties {
    #[serde(rename = "privateIPAddress")]
    pub(crate) private_address: Option<String>,
    #[serde(rename = "publicIPAddress")]
    pub(crate) public_address: Option<Reference>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Machine {
    pub(crate) provisioning_state: String,
    pub(crate) network_profile: NetworkProfile,
    pub(crate) instance_view: InstanceView,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NetworkProfile {
    pub(crate) network_interfaces: Vec<Reference>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct InstanceView {
    pub(crate) statuses: Vec<Status>,
}

/// Such as `PowerState/running` and `ProvisioningState/failed/AllocationFailed`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Status {
    pub(crate) code: String,
    pub(crate) message: Option<String>,
}

impl Client {
    /// # Errors
    /// What the configuration names cannot be part of an address, or this machine has no whole set of credentials.
    pub(crate) fn new(env: &Env, config: &AzureConfig) -> Result<Self, String> {
        Ok(Self {
            arm: env.api(BackendType::Azure, BASE, ApiLimits::default())?,
            tokens: Tokens::new(env, config)?,
            subscription: config.subscription_id.clone(),
            paused_until: Mutex::default(),
        })
    }

    /// Path of something of the subscription.
    pub(crate) fn path(&self, rest: impl fmt::Display) -> String {
        format!("/subscriptions/{}/{rest}", self.subscription)
    }

    /// Path, which is the id as well, of something in a resource group: its type and its name, or a list.
    pub(crate) fn in_group(&self, group: &str, rest: impl fmt::Display) -> String {
        self.path(format_args!("resourceGroups/{group}/providers/Microsoft.{rest}"))
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str, version: &str) -> Result<T, AzureError> {
        let answer = self.send(&Ask::new(Method::GET, path, version)).await?;
        read(answer.body())
    }

    /// `None`: Azure says that it is not there.
    pub(crate) async fn find<T: DeserializeOwned>(
        &self,
        path: &str,
        version: &str,
    ) -> Result<Option<T>, AzureError> {
        known(self.get(path, version).await)
    }

    /// As [`Client::find`], of a machine with how it is.
    pub(crate) async fn find_machine(&self, path: &str) -> Result<Option<Thing<Machine>>, AzureError> {
        let mut ask = Ask::new(Method::GET, path, COMPUTE);
        ask.query.push(("$expand".to_owned(), "instanceView".to_owned()));
        let answer = self.send(&ask).await.and_then(|answer| read(answer.body()));
        known(answer)
    }

    /// All pages of a list. What is not understood of it is left out. `filter`: as OData.
    pub(crate) async fn list<T: DeserializeOwned>(
        &self,
        path: &str,
        version: &str,
        filter: Option<&str>,
    ) -> Result<Vec<T>, AzureError> {
        #[derive(Deserialize)]
        struct Page {
            value: Vec<Value>,
            #[serde(rename = "nextLink", default)]
            next_link: Option<String>,
        }
        let mut ask = Ask::new(Method::GET, path, version);
        ask.query
            .extend(filter.map(|filter| ("$filter".to_owned(), filter.to_owned())));
        let mut all = Vec::new();
        for _ in 0..MAX_PAGES {
            let page: Page = read(self.send(&ask).await?.body())?;
            for entry in page.value {
                match serde_json::from_value(entry) {
                    Ok(entry) => all.push(entry),
                    Err(error) => {
                        tracing::debug!(path, %error, "an entry of a list of Azure is not understood");
                    }
                }
            }
            // Pages may be empty, and more may follow.
            match page.next_link.filter(|link| !link.is_empty()) {
                Some(link) => ask = Ask::of_link(&link)?,
                None => return Ok(all),
            }
        }
        Err(AzureError::malformed("a list has no end".to_owned()))
    }

    /// As [`Client::list`], of a resource group that may be gone with all that was in it.
    pub(crate) async fn list_in_group<T: DeserializeOwned>(
        &self,
        path: &str,
        version: &str,
    ) -> Result<Vec<T>, AzureError> {
        Ok(known(self.list(path, version, None).await)?.unwrap_or_default())
    }

    /// Makes something, or begins to; the address of the operation, of those that go on.
    pub(crate) async fn put(
        &self,
        path: &str,
        version: &str,
        body: &Value,
    ) -> Result<Option<String>, AzureError> {
        let ask = Ask {
            body: Some(body),
            ..Ask::new(Method::PUT, path, version)
        };
        let answer = self.send(&ask).await?;
        // That it was made is said only by a whole answer.
        read::<Value>(answer.body())?;
        let operation = answer.headers().get("azure-asyncoperation");
        Ok(operation.and_then(|link| link.to_str().ok()).map(str::to_owned))
    }

    /// Begins to remove something. What is not there is no error.
    pub(crate) async fn delete(&self, path: &str, version: &str) -> Result<(), AzureError> {
        let removed = self.send(&Ask::new(Method::DELETE, path, version)).await;
        known(removed).map(drop)
    }

    /// An operation that was begun, by its address.
    pub(crate) async fn operation<T: DeserializeOwned>(&self, link: &str) -> Result<T, AzureError> {
        read(self.send(&Ask::of_link(link)?).await?.body())
    }

    async fn send(&self, ask: &Ask<'_>) -> Result<Response<Bytes>, AzureError> {
        if let Some(after) = self.pause() {
            return Err(AzureError::of_pause(after));
        }
        let token = self.tokens.current().await?;
        let mut answer = self.send_with(ask, token.expose()).await;
        if answer.as_ref().is_err_and(AzureError::is_stale_token) {
            self.tokens.forget(&token).await;
            let token = self.tokens.current().await?;
            answer = self.send_with(ask, token.expose()).await;
        }
        if let Some(pause) = answer.as_ref().err().and_then(AzureError::wanted_pause) {
            *self.paused_until.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(Instant::now() + pause.min(LONGEST_PAUSE));
        }
        answer
    }

    async fn send_with(&self, ask: &Ask<'_>, token: &str) -> Result<Response<Bytes>, AzureError> {
        let api = self.arm.clone();
        let api = api.with_secret_header(AUTHORIZATION, &format!("Bearer {token}"));
        let api = api.map_err(|_| {
            AzureError::without_credentials("the token has characters that no token has".to_owned())
        })?;
        let path = ask.path.as_str();
        let mut request = match ask.method {
            Method::PUT => api.put(path),
            Method::DELETE => api.delete(path),
            _ => api.get(path),
        };
        for (name, value) in &ask.query {
            request = request.query(name, value);
        }
        if let Some(body) = ask.body {
            request = request.json(body);
        }
        request.send_raw().await.map_err(AzureError::of_answer)
    }

    /// What is left of a pause that Azure has asked for.
    fn pause(&self) -> Option<Duration> {
        let until = *self.paused_until.lock().unwrap_or_else(PoisonError::into_inner);
        let left = until?.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }
}

impl Ask<'_> {
    fn new(method: Method, path: &str, version: &str) -> Self {
        Self {
            method,
            path: path.to_owned(),
            query: vec![("api-version".to_owned(), version.to_owned())],
            body: None,
        }
    }

    /// Of an address that Azure has named. Its host is not taken: what proves who asks goes to Azure only.
    fn of_link(link: &str) -> Result<Self, AzureError> {
        let link = Url::parse(link).map_err(|error| AzureError::malformed(format!("a link: {error}")))?;
        Ok(Self {
            method: Method::GET,
            path: link.path().to_owned(),
            query: link.query_pairs().into_owned().collect(),
            body: None,
        })
    }
}

/// `None`: Azure says that it is not there.
fn known<T>(answer: Result<T, AzureError>) -> Result<Option<T>, AzureError> {
    match answer {
        Err(error) if error.is_missing() => Ok(None),
        answer => answer.map(Some),
    }
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, AzureError> {
    serde_json::from_slice(body).map_err(|error| {
        AzureError::of_answer(ApiError::Malformed {
            api: "Azure".to_owned(),
            details: error.to_string(),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_azure_only() {
        let ask =
            Ask::of_link("https://elsewhere.example/subscriptions/s/skus?api-version=1&%24skiptoken=a%2Bb");
        let ask = ask.unwrap();
        assert_eq!(ask.path, "/subscriptions/s/skus");
        assert_eq!(ask.query[1], ("$skiptoken".to_owned(), "a+b".to_owned()));
        Ask::of_link("no link").unwrap_err();
    }

    #[test]
    fn what_is_read_may_lack_everything_but_its_name() {
        let machine: Thing<Machine> = serde_json::from_str(r#"{"name": "m"}"#).unwrap();
        assert!(machine.properties.is_none());
        let text =
            r#"{"name": "m", "properties": {"networkProfile": {"networkInterfaces": [{"id": "/a/b/nic"}]}}}"#;
        let machine: Thing<Machine> = serde_json::from_str(text).unwrap();
        let profile = machine.properties.unwrap().network_profile;
        assert_eq!(profile.network_interfaces[0].id, "/a/b/nic");
    }
}
