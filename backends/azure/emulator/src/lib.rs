//! Plays Microsoft Azure by its API description (as Azure's SDKs for Python have it), for tests: Entra's tokens, and of Azure Resource
//! Manager what machines need.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::missing_panics_doc)] // tests

mod login;
mod machines;
mod network;
mod pieces;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::header::{HOST, RETRY_AFTER};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use bytes::Bytes;
use dstack_backend_kit::{Emulator, Ledger};
use serde_json::{Value, json};
use tokio::time::Instant;

use machines::Machine;
use pieces::Piece;

/// The tenant of the account.
pub const TENANT: &str = "11111111-aaaa-4aaa-8aaa-111111111111";

/// The subscription of the account.
pub const SUBSCRIPTION: &str = "22222222-bbbb-4bbb-8bbb-222222222222";

/// The application of the account. Its secret is the kit's canary.
pub const CLIENT: &str = "33333333-cccc-4ccc-8ccc-333333333333";

/// A resource group that is there.
pub const GROUP: &str = "dstack-main";

/// A region in which all sizes are sold.
pub const HOME: &str = "eastus";

/// A region in which the subscription may not have some of the sizes.
pub const OTHER: &str = "westeurope";

/// The most that a page has, and one of sizes.
const PAGE: usize = 2;
const PAGE_OF_SKUS: usize = 8;

/// Sizes, with the families whose quota they count against, their CPUs, and how they are restricted in [`OTHER`].
const SIZES: &[(&str, &str, u32, Option<&str>)] = &[
    ("Standard_B1ms", "standardBSFamily", 1, None),
    ("Standard_D2s_v6", "StandardDsv6Family", 2, None),
    ("Standard_D4s_v6", "StandardDsv6Family", 4, None),
    ("Standard_D96s_v6", "StandardDsv6Family", 96, None),
    ("Standard_E2s_v6", "StandardEsv6Family", 2, None),
    ("Standard_E4s_v6", "StandardEsv6Family", 4, Some("Zone")),
    ("Standard_F2s_v2", "standardFSv2Family", 2, None),
    ("Standard_NC6s_v3", "standardNCSv3Family", 6, None),
    (
        "Standard_NC4as_T4_v3",
        "Standard NCASv3_T4 Family",
        4,
        Some("Location"),
    ),
    ("Standard_NV6ads_A10_v5", "StandardNVADSA10v5Family", 6, None),
    ("Standard_NC24ads_A100_v4", "StandardNCADSA100v4Family", 24, None),
    ("Standard_NC40ads_H100_v5", "StandardNCadsH100v5Family", 40, None),
];

/// CPUs that may be had and that are in use.
const QUOTAS: &[(&str, i64, i64)] = &[
    ("availabilitySets", 2500, 0),
    ("cores", 60, 10),
    ("lowPriorityCores", 32, 0),
    ("standardDSv6Family", 100, 10),
    ("standardNCADSA100v4Family", 24, 0),
    ("standardNCadsH100v5Family", 0, 0),
];

/// How long things take.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Until a machine runs.
    pub starts: Duration,
    /// Until a machine that is ended is gone.
    pub ends: Duration,
    /// Until a network is there, and until what was made with a machine is gone after it.
    pub else_takes: Duration,
}

const USUAL: Times = Times {
    starts: Duration::from_secs(25),
    ends: Duration::from_secs(15),
    else_takes: Duration::from_secs(4),
};

/// The vendor's cloud, with one subscription.
#[derive(Debug, Clone)]
pub struct Azure(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    times: Times,
    ledger: Ledger,
    state: Mutex<Cloud>,
}

#[derive(Debug, Default)]
struct Cloud {
    groups: Vec<Value>,
    /// Networks and security groups: path of the type, resource.
    shared: Vec<network::Part>,
    /// Networks that are connected to another one.
    peered: BTreeSet<String>,
    machines: Vec<Machine>,
    pieces: Vec<Piece>,
    /// Tokens, and when they end.
    tokens: BTreeMap<String, Instant>,
    logins: usize,
    has_no_identity: bool,
    made: usize,
    sold_out: bool,
    refused: BTreeMap<String, (u16, &'static str, &'static str)>,
    failing: BTreeMap<String, &'static str>,
    /// What is begun of these sizes is refused all the same.
    begun: BTreeMap<String, (u16, &'static str)>,
    forbidden: BTreeSet<&'static str>,
    /// Calls that are left of each kind.
    buckets: BTreeMap<&'static str, login::Bucket>,
    /// Until when each call is one too many, and how many were.
    busy_until: Option<Instant>,
    held_off: usize,
    lag: Duration,
    has_long_pages: bool,
    /// Credentials see single resource groups only.
    only_groups: bool,
}

/// Status, code and message.
type Refusal = (StatusCode, String, String);

/// What a call does.
struct Done {
    status: StatusCode,
    body: Value,
    /// Address of an operation that goes on.
    operation: Option<String>,
}

type Answer = Result<Done, Refusal>;

const fn ok(body: Value) -> Done {
    Done {
        status: StatusCode::OK,
        body,
        operation: None,
    }
}

fn bad(code: &str, message: impl Into<String>) -> Refusal {
    (StatusCode::BAD_REQUEST, code.to_owned(), message.into())
}

fn conflict(code: &str, message: &str) -> Refusal {
    (StatusCode::CONFLICT, code.to_owned(), message.to_owned())
}

fn missing(what: &str) -> Refusal {
    (
        StatusCode::NOT_FOUND,
        "ResourceNotFound".to_owned(),
        format!("The Resource '{what}' was not found."),
    )
}

fn forbidden(action: &str) -> Refusal {
    (
        StatusCode::FORBIDDEN,
        "AuthorizationFailed".to_owned(),
        format!(
            "The client '{CLIENT}' with object id '{CLIENT}' does not have authorization to perform action '{action}' over scope \
             '/subscriptions/{SUBSCRIPTION}' or the scope is invalid."
        ),
    )
}

/// The fields of an object are those that the description has.
fn fields(value: &Value, known: &[&str], required: &[&str]) -> Result<(), Refusal> {
    let object = value
        .as_object()
        .ok_or(bad("InvalidRequestContent", format!("{value} is no object")))?;
    if let Some(unknown) = object.keys().find(|field| !known.contains(&field.as_str())) {
        return Err(bad(
            "InvalidRequestContent",
            format!("Could not find member '{unknown}'"),
        ));
    }
    match required.iter().find(|field| value[**field].is_null()) {
        Some(field) => Err(bad(
            "InvalidParameter",
            format!("Required parameter '{field}' is missing"),
        )),
        None => Ok(()),
    }
}

fn one_of(value: &Value, allowed: &[&str]) -> Result<(), Refusal> {
    match value.as_str().is_none_or(|text| allowed.contains(&text)) && (value.is_null() || value.is_string())
    {
        true => Ok(()),
        false => Err(bad("InvalidParameter", format!("{value} is none of {allowed:?}"))),
    }
}

fn check_tags(tags: &Value) -> Result<(), Refusal> {
    let Some(tags) = tags.as_object() else {
        return Ok(());
    };
    let mut keys: Vec<String> = tags.keys().map(|key| key.to_lowercase()).collect();
    keys.sort_unstable();
    keys.dedup();
    let is_key =
        |key: &String| (1..=512).contains(&key.len()) && !key.contains(['<', '>', '%', '&', '\\', '?', '/']);
    let is_value = |value: &Value| value.as_str().is_some_and(|text| text.chars().count() <= 256);
    let are_good = tags.len() <= 50
        && keys.len() == tags.len()
        && tags.iter().all(|(key, value)| is_key(key) && is_value(value));
    match are_good {
        true => Ok(()),
        false => Err(bad("InvalidTagName", "a tag is not allowed")),
    }
}

/// A request, as far as calls need it.
struct Ask<'a> {
    method: &'a str,
    /// As it was sent.
    path: &'a str,
    /// What follows the subscription; types in lower case, as Azure does not tell cases apart.
    parts: Vec<String>,
    query: BTreeMap<String, String>,
    body: Value,
    /// Where addresses lead that are told.
    base: String,
}

impl Ask<'_> {
    fn version(&self, allowed: &[&str]) -> Result<(), Refusal> {
        match self.query.get("api-version") {
            None => Err(bad(
                "MissingApiVersionParameter",
                "The api-version query parameter (?api-version=) is required for all requests.",
            )),
            Some(version) if allowed.contains(&version.as_str()) => Ok(()),
            Some(version) => Err(bad(
                "InvalidResourceType",
                format!("The resource type could not be found for api version '{version}'."),
            )),
        }
    }

    /// A page of a list; the first of some has nothing.
    fn page(&self, all: Vec<Value>, most: usize, begins_empty: bool) -> Answer {
        let at = self.query.get("$skiptoken").map(|token| token.parse::<usize>());
        let link = |at: usize| {
            let mut query = url::form_urlencoded::Serializer::new(String::new());
            for (name, value) in self.query.iter().filter(|(name, _)| *name != "$skiptoken") {
                query.append_pair(name, value);
            }
            query.append_pair("$skiptoken", &at.to_string());
            format!("{}{}?{}", self.base, self.path, query.finish())
        };
        let at = match at {
            None if begins_empty => return Ok(ok(json!({"value": [], "nextLink": link(0)}))),
            None => 0,
            Some(at) => at.map_err(|_| bad("InvalidSkipToken", "$skiptoken"))?,
        };
        let end = at + most;
        let next = (all.len() > end).then(|| link(end));
        let value: Vec<Value> = all.into_iter().skip(at).take(most).collect();
        let mut told = json!({"value": value});
        if let Some(next) = next {
            told["nextLink"] = next.into();
        }
        Ok(ok(told))
    }
}

impl Default for Azure {
    fn default() -> Self {
        Self::with_times(USUAL)
    }
}

impl Azure {
    /// A cloud with another pace.
    pub fn with_times(times: Times) -> Self {
        let group = json!({"id": format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}"), "name": GROUP,
            "type": "Microsoft.Resources/resourceGroups", "location": "eastus", "properties": {"provisioningState": "Succeeded"}});
        let state = Cloud {
            groups: vec![group],
            ..Cloud::default()
        };
        Self(Arc::new(Shared {
            times,
            ledger: Ledger::default(),
            state: Mutex::new(state),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Cloud> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resource groups are none but this one.
    pub fn only_group(&self, name: &str) {
        let mut state = self.lock();
        state.groups.truncate(1);
        state.groups[0]["name"] = name.into();
        state.groups[0]["id"] = format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/{name}").into();
    }

    /// Names of the resource groups.
    pub fn groups(&self) -> Vec<String> {
        let state = self.lock();
        state
            .groups
            .iter()
            .map(|group| group["name"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Machines of a size are refused with this answer.
    pub fn refuse(&self, size: &str, status: u16, code: &'static str, message: &'static str) {
        self.lock()
            .refused
            .insert(size.to_owned(), (status, code, message));
    }

    /// Machines of a size are taken, and fail afterwards, with this code.
    pub fn fail(&self, size: &str, code: &'static str) {
        self.lock().failing.insert(size.to_owned(), code);
    }

    /// Machines of a size fail, with this code, and are refused with this answer, but not before they are begun.
    pub fn refuse_late(&self, size: &str, status: u16, code: &'static str) {
        self.fail(size, code);
        self.lock().begun.insert(size.to_owned(), (status, code));
    }

    /// There is another resource group.
    pub fn add_group(&self, name: &str) {
        self.lock()
            .groups
            .push(json!({"name": name, "location": HOME, "properties": {}}));
    }

    /// What is in the subscription is shown of single resource groups only.
    pub fn show_groups_only(&self) {
        self.lock().only_groups = true;
    }

    /// The account may not do this (an action, such as `Microsoft.Compute/virtualMachines/write`).
    pub fn forbid(&self, action: &'static str) {
        self.lock().forbidden.insert(action);
    }

    /// The machine that the server runs on has no identity.
    pub fn without_identity(&self) {
        self.lock().has_no_identity = true;
    }

    /// Tokens end now.
    pub fn end_tokens(&self) {
        let now = Instant::now();
        self.lock().tokens.values_mut().for_each(|end| *end = now);
    }

    /// How many tokens were asked for.
    pub fn logins(&self) -> usize {
        self.lock().logins
    }

    /// For so long, each call is one too many.
    pub fn be_busy(&self, pause: Duration) {
        self.lock().busy_until = Some(Instant::now() + pause);
    }

    /// A region has the network of its machines already.
    pub fn prepare(&self, region: &str) {
        let name = |what: &str| format!("{GROUP}-{region}-{what}");
        self.add_network(
            GROUP,
            &name("default-network"),
            region,
            &[&name("default-subnet")],
            &[],
        );
        self.add_security_group(&name("default-security-group"), region);
        self.add_security_group(&name("gateway-security-group"), region);
    }

    /// Pages are as long as Azure's, and not so short that each list has several.
    pub fn with_long_pages(&self) {
        self.lock().has_long_pages = true;
    }

    /// Most that a page of things in a resource group has.
    fn page(state: &Cloud) -> usize {
        if state.has_long_pages { 100 } else { PAGE }
    }

    /// How many calls were one too many.
    pub fn held_off(&self) -> usize {
        self.lock().held_off
    }

    /// What was asked for with the machine of this name.
    pub fn asked(&self, name: &str) -> Option<Value> {
        let state = self.lock();
        let found = state.machines.iter().rev().find(|machine| machine.name == name);
        found.map(|machine| machine.asked.clone())
    }

    /// What is gone costs nothing any more.
    fn settle(&self) {
        let mut state = self.lock();
        let (now, after) = (Instant::now(), self.0.times.else_takes);
        let Cloud { machines, pieces, .. } = &mut *state;
        machines.retain(|machine| {
            let Some(gone_at) = machine.gone_at.filter(|at| *at <= now) else {
                return true;
            };
            self.0.ledger.removed(&machine.id());
            for piece in pieces.iter_mut().filter(|piece| piece.machine == machine.name) {
                piece.machine.clear();
                if piece.ends_with_it {
                    piece.gone_at.get_or_insert(gone_at + after);
                }
            }
            false
        });
        pieces.retain(|piece| {
            let is_gone = piece.gone_at.is_some_and(|at| at <= now);
            if is_gone {
                self.0.ledger.removed(&piece.id());
            }
            !is_gone
        });
    }

    fn arm(&self, ask: &Ask<'_>) -> Answer {
        if ask.path == "/subscriptions" {
            ask.version(&["2016-06-01", "2022-12-01"])?;
            let own = json!({"id": format!("/subscriptions/{SUBSCRIPTION}"), "subscriptionId": SUBSCRIPTION,
                "displayName": "own", "state": "Enabled"});
            let others = ["44444444", "55555555"]
                .map(|id| json!({"id": format!("/subscriptions/{id}"), "subscriptionId": id}));
            return ask.page([&others[..], &[own]].concat(), PAGE, false);
        }
        if ask.path == "/tenants" {
            ask.version(&["2016-06-01", "2022-12-01"])?;
            let tenant = json!({"id": format!("/tenants/{TENANT}"), "tenantId": TENANT});
            return ask.page(vec![tenant], PAGE, false);
        }
        let parts: Vec<&str> = ask.parts.iter().map(String::as_str).collect();
        match (ask.method, parts.as_slice()) {
            ("GET", ["providers", "microsoft.compute", "skus"]) => {
                ask.version(&["2021-07-01"])?;
                self.allowed("Microsoft.Compute/skus/read")?;
                let filter = ask.query.get("$filter").map(String::as_str).unwrap_or_default();
                let location = filter
                    .strip_prefix("location eq '")
                    .and_then(|rest| rest.strip_suffix('\''));
                let location = location.ok_or(bad("InvalidFilter", "$filter"))?;
                ask.page(skus(location), PAGE_OF_SKUS, true)
            }
            ("GET", ["providers", "microsoft.compute", "locations", _, "usages"]) => {
                ask.version(&["2026-04-01"])?;
                self.allowed("Microsoft.Compute/locations/usages/read")?;
                let usage = |(name, limit, used): &(&str, i64, i64)| {
                    json!({"unit": "Count", "currentValue": used, "limit": limit,
                        "name": {"value": name, "localizedValue": name}})
                };
                ask.page(QUOTAS.iter().map(usage).collect(), PAGE, false)
            }
            ("GET", ["providers", _, "locations", _, "operations", id]) => self.operation(id),
            (
                "GET",
                [
                    "providers",
                    provider @ ("microsoft.compute" | "microsoft.network"),
                    collection,
                ],
            ) => {
                if self.lock().only_groups {
                    return Err(forbidden(&format!("{provider}/{collection}/read")));
                }
                match *collection {
                    "virtualmachines" => self.machines(ask, "", &[]),
                    collection => self.pieces(ask, "", collection, &[]),
                }
            }
            (_, ["resourcegroups", group]) => self.group(ask, group),
            (_, ["resourcegroups", group, "providers", provider, rest @ ..]) => {
                if !self.has_group(group) {
                    return Err((
                        StatusCode::NOT_FOUND,
                        "ResourceGroupNotFound".to_owned(),
                        format!("Resource group '{group}' could not be found."),
                    ));
                }
                match (*provider, rest) {
                    ("microsoft.compute", ["virtualmachines", rest @ ..]) => self.machines(ask, group, rest),
                    ("microsoft.authorization", ["permissions"]) => {
                        ask.version(&["2022-04-01"])?;
                        self.allowed("Microsoft.Authorization/permissions/read")?;
                        let forbidden: Vec<&str> = self.lock().forbidden.iter().copied().collect();
                        let reader = json!({"actions": ["*/read"], "notActions": [], "dataActions": []});
                        let own = json!({"actions": ["*"], "notActions": forbidden});
                        ask.page(vec![reader, own], PAGE, false)
                    }
                    ("microsoft.managedidentity", ["userassignedidentities", name]) => {
                        ask.version(&["2024-11-30"])?;
                        if *name != "runners" {
                            return Err(missing(ask.path));
                        }
                        Ok(ok(json!({"id": ask.path, "name": "runners", "location": HOME})))
                    }
                    ("microsoft.network", ["virtualnetworks" | "networksecuritygroups", ..]) => {
                        self.network(ask, group, rest)
                    }
                    (_, [collection, rest @ ..]) => self.pieces(ask, group, collection, rest),
                    _ => Err(missing(ask.path)),
                }
            }
            _ => Err(missing(ask.path)),
        }
    }

    fn allowed(&self, action: &str) -> Result<(), Refusal> {
        match self.lock().forbidden.contains(action) {
            false => Ok(()),
            true => Err(forbidden(action)),
        }
    }

    fn has_group(&self, name: &str) -> bool {
        let state = self.lock();
        let mut groups = state.groups.iter().filter_map(|group| group["name"].as_str());
        groups.any(|group| group.eq_ignore_ascii_case(name))
    }

    fn group(&self, ask: &Ask<'_>, name: &str) -> Answer {
        ask.version(&["2025-04-01"])?;
        let mut state = self.lock();
        let found = state
            .groups
            .iter()
            .find(|group| group["name"].as_str().unwrap().eq_ignore_ascii_case(name))
            .cloned();
        match (ask.method, found) {
            ("GET", Some(found)) => Ok(ok(found)),
            ("GET", None) => Err((
                StatusCode::NOT_FOUND,
                "ResourceGroupNotFound".to_owned(),
                format!("Resource group '{name}' could not be found."),
            )),
            ("PUT", found) => {
                fields(
                    &ask.body,
                    &["location", "managedBy", "tags", "properties"],
                    &["location"],
                )?;
                check_tags(&ask.body["tags"])?;
                if found.is_some_and(|found| found["location"] != ask.body["location"]) {
                    return Err(conflict("InvalidResourceGroupLocation", "the group is elsewhere"));
                }
                let mut made = ask.body.clone();
                made["id"] = ask.path.into();
                made["name"] = name.into();
                made["properties"] = json!({"provisioningState": "Succeeded"});
                state.groups.retain(|group| group["name"] != name);
                state.groups.push(made.clone());
                Ok(Done {
                    status: StatusCode::CREATED,
                    ..ok(made)
                })
            }
            _ => Err(missing(ask.path)),
        }
    }
}

/// Sizes of a region, among other things that are sold there; one is odd.
fn skus(location: &str) -> Vec<Value> {
    let sizes = SIZES.iter().map(|(name, family, cpus, restricted)| {
        let restrictions: Vec<Value> = restricted
            .filter(|_| location == OTHER)
            .iter()
            .map(|kind| {
                json!({"type": kind, "values": [location], "reasonCode": "NotAvailableForSubscription",
                    "restrictionInfo": {"locations": [location]}})
            })
            .collect();
        json!({"resourceType": "virtualMachines", "name": name, "tier": "Standard", "size": name, "family": family,
            "locations": [location], "restrictions": restrictions,
            "capabilities": [{"name": "vCPUs", "value": cpus.to_string()}]})
    });
    let disk = json!({"resourceType": "disks", "name": "StandardSSD_LRS", "locations": [location], "restrictions": []});
    [disk, json!({"resourceType": "snapshots"})]
        .into_iter()
        .chain(sizes)
        .collect()
}

async fn serve(
    State(cloud): State<Azure>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let query = url::form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    let query: BTreeMap<String, String> = query.into_owned().collect();
    let path = uri.path();
    cloud.settle();
    if let Some(answer) = cloud.login(&method, path, &query, &headers, &body) {
        return answer;
    }
    let refused = |(status, code, message): Refusal| {
        (status, Json(json!({"error": {"code": code, "message": message}}))).into_response()
    };
    if let Err(refusal) = cloud.is_logged_in(&headers) {
        return refused(refusal);
    }
    if let Some(pause) = cloud.is_busy(&method) {
        let body =
            json!({"error": {"code": "SubscriptionRequestsThrottled", "message": "too many requests"}});
        return (
            StatusCode::TOO_MANY_REQUESTS,
            [(RETRY_AFTER, pause.to_string())],
            Json(body),
        )
            .into_response();
    }
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let base = host.map_or_else(
        || "https://management.azure.com".to_owned(),
        |host| format!("http://{host}"),
    );
    let body = match body.is_empty() {
        true => Value::Null,
        false => match serde_json::from_slice(&body) {
            Ok(body) => body,
            Err(_) => return refused(bad("InvalidRequestContent", "The request content was invalid")),
        },
    };
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let is_own = parts
        .get(1)
        .is_some_and(|id| id.eq_ignore_ascii_case(SUBSCRIPTION));
    if parts[0] == "subscriptions" && parts.len() > 1 && !is_own {
        let code = "SubscriptionNotFound".to_owned();
        return refused((
            StatusCode::NOT_FOUND,
            code,
            "The subscription could not be found.".to_owned(),
        ));
    }
    // Names stand at these places.
    let rest = parts.get(2..).unwrap_or_default().iter().enumerate();
    let is_name = |at: usize| matches!(at, 1 | 5 | 7);
    let is_in_group = parts
        .get(2)
        .is_some_and(|part| part.eq_ignore_ascii_case("resourcegroups"));
    let parts = rest.map(|(at, part)| match is_in_group && is_name(at) {
        true => (*part).to_owned(),
        false => part.to_lowercase(),
    });
    let ask = Ask {
        method: method.as_str(),
        path,
        parts: parts.collect(),
        query,
        body,
        base,
    };
    let answer = cloud.arm(&ask);
    cloud.settle();
    match answer {
        Ok(Done {
            status,
            body,
            operation,
        }) => {
            let mut response = match body.is_null() {
                true => status.into_response(),
                false => (status, Json(body)).into_response(),
            };
            if let Some(operation) = operation {
                let link = format!("{}{operation}", ask.base);
                response
                    .headers_mut()
                    .insert("azure-asyncoperation", link.parse().unwrap());
                response.headers_mut().insert(RETRY_AFTER, "1".parse().unwrap());
            }
            response
        }
        Err(refusal) => refused(refusal),
    }
}

impl Emulator for Azure {
    fn router(&self) -> Router {
        Router::new().fallback(serve).with_state(self.clone())
    }

    fn ledger(&self) -> &Ledger {
        self.settle();
        &self.0.ledger
    }

    fn sell_out(&self, sold_out: bool) {
        self.lock().sold_out = sold_out;
    }

    fn lag(&self, lag: Duration) {
        self.lock().lag = lag;
    }

    fn lose_all(&self) {
        let now = Instant::now();
        for machine in &mut self.lock().machines {
            machine.gone_at = Some(now);
        }
        self.settle();
    }
}
