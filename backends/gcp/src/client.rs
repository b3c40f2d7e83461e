//! Compute Engine v1, as far as it is used. Field names are those of Google's discovery documents.

use std::collections::{BTreeMap, HashMap};

use dstack_backend::Env;
use dstack_compute::config::GcpCreds;
use dstack_compute::{ComputeError, Removal};
use dstack_http::{ApiClient, ApiError, ApiLimits, ApiRequest};
use dstack_model::backends::BackendType;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::auth::Tokens;
use crate::errors::{GcpError, Told, known};
use crate::machines::ENDS_INTERVAL;
use crate::members::Member;
use crate::tpu::Node;

const COMPUTE: &str = "https://compute.googleapis.com";

const TPU: &str = "https://tpu.googleapis.com";

/// How links of Compute Engine begin.
const LINK: &str = "https://www.googleapis.com/compute/v1/";

/// The most that a page of Compute Engine has.
const PAGE: &str = "500";

/// Longest names that are asked for: those of operations are the longest.
const LONGEST_NAME: usize = 255;

/// More pages than any list has.
const MAX_PAGES: usize = 1000;

/// The APIs as one account, in one project.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) project: String,
    tokens: Tokens,
    compute: ApiClient,
    tpu: ApiClient,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Operation {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) status: String,
    #[serde(default)]
    pub(crate) error: Option<OperationErrors>,
    #[serde(default)]
    pub(crate) http_error_status_code: Option<u16>,
    #[serde(default)]
    pub(crate) http_error_message: Option<String>,
    /// Of Cloud TPU, which has no status.
    #[serde(default)]
    done: bool,
    /// Of Cloud TPU.
    #[serde(default)]
    metadata: OperationMetadata,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct OperationMetadata {
    /// What is changed: `projects/P/locations/ZONE/nodes/NAME`.
    target: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct OperationErrors {
    #[serde(default)]
    pub(crate) errors: Vec<OperationError>,
    /// Of Cloud TPU: a code of gRPC.
    #[serde(default)]
    pub(crate) code: Option<i64>,
    #[serde(default)]
    pub(crate) message: String,
}

impl Operation {
    fn is_done(&self) -> bool {
        self.done || self.status == "DONE"
    }
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct OperationError {
    #[serde(default)]
    pub(crate) code: String,
    #[serde(default)]
    pub(crate) message: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Instance {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) status: String,
    #[serde(default)]
    pub(crate) labels: HashMap<String, String>,
    #[serde(default)]
    pub(crate) network_interfaces: Vec<Interface>,
    #[serde(default)]
    pub(crate) scheduling: Scheduling,
    #[serde(default)]
    pub(crate) disks: Vec<AttachedDisk>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AttachedDisk {
    #[serde(default)]
    pub(crate) source: String,
    #[serde(default)]
    pub(crate) device_name: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Disk {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) status: String,
    #[serde(default)]
    pub(crate) labels: HashMap<String, String>,
    /// Numbers of 64 bits are texts.
    #[serde(default)]
    pub(crate) size_gb: String,
    #[serde(default, rename = "type")]
    pub(crate) kind: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Interface {
    #[serde(default, rename = "networkIP")]
    pub(crate) network_ip: Option<String>,
    #[serde(default)]
    pub(crate) access_configs: Vec<AccessConfig>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct AccessConfig {
    #[serde(default, rename = "natIP")]
    pub(crate) nat_ip: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Scheduling {
    #[serde(default)]
    pub(crate) provisioning_model: Option<String>,
}

/// A policy of placement, or another one.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Policy {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) status: String,
    #[serde(default)]
    pub(crate) group_placement_policy: Option<Value>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Region {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) quotas: Vec<Quota>,
    /// The quotas cannot be read now.
    #[serde(default)]
    pub(crate) quota_status_warning: Option<Value>,
    #[serde(default)]
    pub(crate) zones: Vec<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Quota {
    #[serde(default)]
    pub(crate) metric: String,
    #[serde(default)]
    pub(crate) limit: f64,
    #[serde(default)]
    pub(crate) usage: f64,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Subnet {
    pub(crate) network: String,
    pub(crate) subnetwork: String,
    #[serde(default)]
    pub(crate) purpose: Option<String>,
}

/// A subnetwork of a region, as its own list tells of it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RegionSubnet {
    #[serde(default)]
    pub(crate) network: String,
    #[serde(default)]
    pub(crate) ip_cidr_range: String,
    #[serde(default)]
    pub(crate) purpose: String,
    /// Of those of proxies.
    #[serde(default)]
    pub(crate) role: String,
}

/// What has the address of a load balancer.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ForwardingRule {
    #[serde(default, rename = "IPAddress")]
    pub(crate) address: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Router {
    #[serde(default)]
    pub(crate) network: String,
    #[serde(default)]
    pub(crate) nats: Vec<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    #[serde(default)]
    items: Vec<Value>,
    #[serde(default)]
    next_page_token: Option<String>,
    /// Of subnetworks that may be used, as `scopedWarnings`.
    #[serde(default)]
    unreachables: Vec<String>,
    #[serde(default)]
    scoped_warnings: Vec<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TpuPage {
    #[serde(default, alias = "nodes", alias = "operations")]
    entries: Vec<Value>,
    #[serde(default)]
    next_page_token: Option<String>,
    #[serde(default)]
    unreachable: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Scopes {
    #[serde(default)]
    items: BTreeMap<String, serde_json::Map<String, Value>>,
    #[serde(default)]
    next_page_token: Option<String>,
    #[serde(default)]
    unreachables: Vec<String>,
    #[serde(default)]
    warning: Option<Warning>,
}

#[derive(Debug, Deserialize)]
struct Warning {
    #[serde(default)]
    code: String,
}

impl Client {
    /// # Errors
    /// The credentials or the project cannot be used; why.
    pub(crate) fn new(env: &Env, creds: &GcpCreds, project: &str) -> Result<Self, ClientError> {
        if !is_project(project) {
            return Err(ClientError::Project);
        }
        let tokens = Tokens::new(env, creds).map_err(ClientError::Creds)?;
        let api = |base| {
            let api = env.api(BackendType::Gcp, base, ApiLimits::default());
            api.map(|api| api.with_signer(tokens.signer()))
                .map_err(ClientError::Creds)
        };
        let (compute, tpu) = (api(COMPUTE)?, api(TPU)?);
        Ok(Self {
            project: project.to_owned(),
            tokens,
            compute,
            tpu,
        })
    }

    /// Sends a request with a token. One that Google does not take any more is replaced, and the request sent once more.
    async fn send<'a, T: DeserializeOwned>(
        &self,
        request: impl Fn() -> ApiRequest<'a> + Send,
    ) -> Result<T, GcpError> {
        for is_last in [false, true] {
            let token = self.tokens.refresh().await?;
            let answer = request().send::<T>().await.map_err(GcpError::from);
            if !answer.as_ref().is_err_and(GcpError::is_unauthorized) {
                return answer;
            }
            self.tokens.forget(&token);
            if is_last {
                return answer;
            }
        }
        Err(malformed("no request was sent").into())
    }

    /// The API that has something in the project, and the path there: `locations/...` are of Cloud TPU.
    fn place(&self, rest: &str) -> (&ApiClient, String) {
        match rest.starts_with("locations/") {
            true => (&self.tpu, format!("v2/projects/{}/{rest}", self.project)),
            false => (&self.compute, path_in(&self.project, rest)),
        }
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, rest: &str) -> Result<T, GcpError> {
        let (api, path) = self.place(rest);
        self.send(|| api.get(&path)).await
    }

    /// Makes something whose name is in the body. `request_id`: the same call is carried out once.
    pub(crate) async fn insert(
        &self,
        rest: &str,
        request_id: Option<&str>,
        body: &Value,
    ) -> Result<Operation, GcpError> {
        let (api, path) = self.place(rest);
        let request = || {
            let request = api.post(&path).json(body);
            match request_id {
                Some(id) => request.query("requestId", id).repeatable(),
                None => request,
            }
        };
        self.send(request).await
    }

    /// Removes something, and tells how far that is.
    pub(crate) async fn remove(&self, rest: &str) -> Result<Removal, ComputeError> {
        let again = ENDS_INTERVAL;
        let (api, path) = self.place(rest);
        match self.send::<Operation>(|| api.delete(&path)).await {
            Err(error) if error.is_missing() => Ok(Removal::Gone),
            Err(error) if !error.is_not_ready() => Err(error.compute_error()),
            _ => Ok(Removal::Underway { again }),
        }
    }

    /// Asks something of an instance, or for a node.
    pub(crate) async fn act(
        &self,
        rest: &str,
        query: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<Operation, GcpError> {
        let (api, path) = self.place(rest);
        let request = || {
            let request = body.into_iter().fold(api.post(&path), ApiRequest::json);
            query
                .iter()
                .fold(request, |request, (name, value)| request.query(name, value))
        };
        self.send(request).await
    }

    /// Sets the disks of a node.
    pub(crate) async fn set_disks(&self, rest: &str, body: &Value) -> Result<Operation, GcpError> {
        let (api, path) = self.place(rest);
        let request = || api.patch(&path).query("updateMask", "dataDisks").json(body);
        self.send(request).await
    }

    /// All nodes of a zone, or of all (`-`).
    ///
    /// # Errors
    /// Also where a zone does not tell what it has.
    pub(crate) async fn nodes(&self, zone: &str) -> Result<Vec<Node>, GcpError> {
        self.tpu_list(&format!("locations/{zone}/nodes")).await
    }

    /// Whether something is changed about a node that is at this path in a zone: it is told of as it was until that is done.
    pub(crate) async fn is_changed(&self, zone: &str, node: &str) -> Result<bool, GcpError> {
        let operations: Vec<Operation> = self.tpu_list(&format!("locations/{zone}/operations")).await?;
        // Projects may have their numbers there.
        let is_of_node = |one: &Operation| {
            one.metadata.target.split_once("locations/").map(|(_, rest)| rest)
                == node.strip_prefix("locations/")
        };
        Ok(operations.iter().any(|one| !one.is_done() && is_of_node(one)))
    }

    async fn tpu_list<T: DeserializeOwned>(&self, rest: &str) -> Result<Vec<T>, GcpError> {
        let (api, path) = self.place(rest);
        let (mut all, mut token) = (Vec::new(), None::<String>);
        for _ in 0..MAX_PAGES {
            let request = || {
                let request = api.get(&path).query("pageSize", PAGE);
                token
                    .iter()
                    .fold(request, |request, token| request.query("pageToken", token))
            };
            let page: TpuPage = self.send(request).await?;
            if let Some(zone) = page.unreachable.first() {
                let text = format!("the list {rest} lacks {zone}, which is out of reach");
                return Err(malformed(&text).into());
            }
            all.extend(page.entries.into_iter().filter_map(entry));
            match page.next_page_token.filter(|token| !token.is_empty()) {
                Some(next) => token = Some(next),
                None => return Ok(all),
            }
        }
        Err(malformed("a list has no end").into())
    }

    /// All instances of a group, also those that do not run.
    pub(crate) async fn members(&self, rest: &str) -> Result<Vec<Member>, GcpError> {
        let (api, path) = self.place(rest);
        let body = json!({"instanceState": "ALL"});
        let (mut all, mut token) = (Vec::new(), None::<String>);
        for _ in 0..MAX_PAGES {
            let request = || paged(api.post(&path).json(&body).repeatable(), None, token.as_deref());
            let page: Page = self.send(request).await?;
            all.extend(page.items.into_iter().filter_map(entry));
            match page.next_page_token.filter(|token| !token.is_empty()) {
                Some(next) => token = Some(next),
                None => return Ok(all),
            }
        }
        Err(malformed("a list has no end").into())
    }

    /// Why what was asked for in a zone or region came to nothing; `None`: it did not, or not yet.
    pub(crate) async fn failure(&self, scope: &str, operation: &str) -> Result<Outcome, ComputeError> {
        let path = format!("{scope}/operations/{}", plain(operation)?);
        Ok(match known(self.get::<Operation>(&path).await)? {
            Some(operation) if !operation.is_done() => Outcome::Underway,
            operation => match operation.as_ref().and_then(Told::of_operation) {
                Some(told) => Outcome::Failed(told),
                None => Outcome::Over,
            },
        })
    }

    /// All of a list, of another project where that is so. An odd entry hides no other.
    pub(crate) async fn list<T: DeserializeOwned>(
        &self,
        project: Option<&str>,
        rest: &str,
        filter: Option<&str>,
    ) -> Result<Vec<T>, GcpError> {
        match self.list_reached(project, rest, filter).await? {
            (all, true) => Ok(all),
            (_, false) => Err(malformed(&format!("the list {rest} is not whole")).into()),
        }
    }

    /// As [`Self::list`], of the scopes that Google reaches, and whether these are all.
    pub(crate) async fn list_reached<T: DeserializeOwned>(
        &self,
        project: Option<&str>,
        rest: &str,
        filter: Option<&str>,
    ) -> Result<(Vec<T>, bool), GcpError> {
        let path = path_in(project.unwrap_or(&self.project), rest);
        let (mut all, mut is_whole, mut token) = (Vec::new(), true, None);
        for _ in 0..MAX_PAGES {
            let page: Page = self.send(|| self.page(&path, filter, token.as_deref())).await?;
            is_whole &= page.unreachables.is_empty() && page.scoped_warnings.is_empty();
            all.extend(page.items.into_iter().filter_map(entry));
            match page.next_page_token.filter(|token| !token.is_empty()) {
                Some(next) => token = Some(next),
                None => return Ok((all, is_whole)),
            }
        }
        Err(malformed("a list has no end").into())
    }

    /// All of a list over zones and regions, such as `zones/us-central1-a`, each with the name of its scope.
    ///
    /// # Errors
    /// Also where one of the scopes does not tell what it has.
    pub(crate) async fn aggregated<T: DeserializeOwned>(
        &self,
        project: Option<&str>,
        field: &str,
        filter: Option<&str>,
    ) -> Result<Vec<(String, T)>, GcpError> {
        let path = path_in(project.unwrap_or(&self.project), &format!("aggregated/{field}"));
        let (mut all, mut token) = (Vec::new(), None);
        for _ in 0..MAX_PAGES {
            let page: Scopes = self.send(|| self.page(&path, filter, token.as_deref())).await?;
            if let Some(scope) = page.unreachables.first() {
                return Err(malformed(&format!(
                    "the list of {field} lacks {scope}, which is out of reach"
                ))
                .into());
            }
            if page.warning.is_some_and(|warning| is_partial(&warning)) {
                return Err(malformed(&format!("the list of {field} is not whole")).into());
            }
            for (scope, mut has) in page.items {
                let warning = has
                    .remove("warning")
                    .and_then(|warning| serde_json::from_value(warning).ok());
                if warning.is_some_and(|warning| is_partial(&warning)) {
                    return Err(malformed(&format!("the list of {field} lacks {scope}")).into());
                }
                if let Some(Value::Array(items)) = has.remove(field) {
                    all.extend(
                        items
                            .into_iter()
                            .filter_map(entry)
                            .map(|item| (scope.clone(), item)),
                    );
                }
            }
            match page.next_page_token.filter(|token| !token.is_empty()) {
                Some(next) => token = Some(next),
                None => return Ok(all),
            }
        }
        Err(malformed("a list has no end").into())
    }

    fn page(&self, path: &str, filter: Option<&str>, token: Option<&str>) -> ApiRequest<'_> {
        paged(self.compute.get(path), filter, token)
    }
}

/// How far an operation is.
#[derive(Debug)]
pub(crate) enum Outcome {
    Underway,
    /// It has done what it should, or is not known any more.
    Over,
    Failed(Told),
}

/// Why there is no client.
#[derive(Debug)]
pub(crate) enum ClientError {
    /// The name of the project is none.
    Project,
    /// The credentials cannot be used; why.
    Creds(String),
}

impl std::fmt::Display for ClientError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Project => f.write_str("project_id: it is no id of a project"),
            Self::Creds(why) => write!(f, "creds.data: {why}"),
        }
    }
}

fn paged<'a>(request: ApiRequest<'a>, filter: Option<&str>, token: Option<&str>) -> ApiRequest<'a> {
    let mut request = request.query("maxResults", PAGE);
    if let Some(filter) = filter {
        request = request.query("filter", filter);
    }
    match token {
        Some(token) => request.query("pageToken", token),
        None => request,
    }
}

fn path_in(project: &str, rest: &str) -> String {
    format!("compute/v1/projects/{project}/{rest}")
        .trim_end_matches('/')
        .to_owned()
}

/// Names stand in paths: what is not one of Google's is not asked for.
///
/// # Errors
/// It is none.
pub(crate) fn plain(name: &str) -> Result<&str, ComputeError> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    match !name.is_empty() && name.len() <= LONGEST_NAME && name.bytes().all(is_plain) {
        true => Ok(name),
        false => Err(ComputeError::Refused(format!("{name:?} is no name of Google's"))),
    }
}

/// Whether a text may be the id of a project: `example.com:my-project` is one too.
pub(crate) fn is_project(id: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-.:".contains(&byte);
    let begins = id
        .bytes()
        .next()
        .is_some_and(|first| first.is_ascii_alphanumeric());
    begins && id.bytes().all(is_plain)
}

/// The last part of a link.
pub(crate) fn last(link: &str) -> &str {
    link.rsplit('/').next().unwrap_or(link)
}

/// The link of a path in a project.
pub(crate) fn full(project: &str, rest: &str) -> String {
    format!("{LINK}projects/{project}/{rest}")
}

/// A link as it stands in requests: `projects/...`.
pub(crate) fn relative(link: &str) -> &str {
    link.strip_prefix(LINK).unwrap_or(link)
}

fn entry<T: DeserializeOwned>(item: Value) -> Option<T> {
    serde_json::from_value(item)
        .inspect_err(|error| tracing::warn!(%error, "an entry of a list of Google is not understood"))
        .ok()
}

/// Whether a list lacks something. That nothing of a scope is on this page says nothing else.
fn is_partial(warning: &Warning) -> bool {
    !matches!(warning.code.as_str(), "" | "NO_RESULTS_ON_PAGE")
}

fn malformed(details: &str) -> ApiError {
    ApiError::Malformed {
        api: "Compute Engine".to_owned(),
        details: details.to_owned(),
    }
}
