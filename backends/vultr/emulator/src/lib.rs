//! Plays Vultr by its API description (version 2.0, with the fields that live answers have besides), for tests.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::missing_panics_doc)] // tests

mod plans;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dstack_backend_kit::{Emulator, Ledger};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

pub use plans::{REGIONS, metal_plans, plans};

/// The vendor's cloud, with one account.
#[derive(Debug, Clone)]
pub struct Vultr(Arc<Shared>);

/// How the cloud behaves.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Until a machine is active.
    pub starts: Duration,
    /// Until one of bare metal is.
    pub metal_starts: Duration,
    /// Until a machine that is deleted is gone.
    pub ends: Duration,
    /// The largest page of a list.
    pub page: usize,
}

/// Short pages, so that all lists have several.
const USUAL: Pace = Pace {
    starts: Duration::from_secs(90),
    metal_starts: Duration::from_secs(300),
    ends: Duration::from_secs(12),
    page: 2,
};

/// Where machines have their addresses in the VPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Addresses {
    /// Virtual machines themselves, bare metal in a call of its own; both as soon as they are active.
    #[default]
    Usual,
    /// The other way round, and later.
    Late,
    /// There is neither the field nor the call.
    Untold,
}

/// How much later.
const LATE: Duration = Duration::from_secs(40);

struct Shared {
    api_key: String,
    pace: Pace,
    ledger: Ledger,
    state: Mutex<Cloud>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Cloud {
    servers: Vec<Server>,
    vpcs: Vec<Vpc>,
    made: usize,
    sold_out: bool,
    limit: Option<usize>,
    lag: Duration,
    addresses: Addresses,
    misses_one: bool,
    is_endless: bool,
    vpcs_listed: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Vm,
    Metal,
}

#[derive(Debug)]
struct Server {
    kind: Kind,
    number: usize,
    id: String,
    asked: Map<String, Value>,
    listed_at: Instant,
    active_at: Instant,
    /// When it is gone.
    gone_at: Option<Instant>,
    is_failed: bool,
}

#[derive(Debug)]
struct Vpc {
    listed_at: Instant,
    fields: Value,
}

impl Server {
    fn status(&self) -> &'static str {
        match self.active_at <= Instant::now() {
            _ if self.is_failed => "failed",
            true => "active",
            false => "pending",
        }
    }

    fn internal_ip(&self) -> String {
        format!("10.1.96.{}", 3 + self.number)
    }

    fn has_address(&self, addresses: Addresses) -> bool {
        self.status() == "active"
            && match addresses {
                Addresses::Usual => true,
                Addresses::Late => self.active_at + LATE <= Instant::now(),
                Addresses::Untold => false,
            }
    }

    fn to_json(&self, addresses: Addresses) -> Value {
        let is_active = self.status() == "active";
        let asked = |name: &str| self.asked.get(name).cloned();
        let mut fields = json!({
            "id": self.id,
            "date_created": "2026-10-01T12:00:00+00:00",
            "region": asked("region"),
            "plan": asked("plan"),
            "label": asked("label").unwrap_or_else(|| "".into()),
            "status": self.status(),
            "default_password": "",
            "tag": "",
            "tags": [],
            "features": [],
            "os_id": asked("os_id").unwrap_or_else(|| 0.into()),
            "app_id": 0,
            "image_id": asked("image_id").unwrap_or_else(|| "".into()),
        });
        let address = format!("203.0.113.{}", self.number);
        let internal = match self.has_address(addresses) {
            true => self.internal_ip(),
            false => String::new(),
        };
        let mut more = match self.kind {
            Kind::Vm => json!({
                "os": "Ubuntu 22.04 LTS x64",
                "ram": 1024,
                "disk": 25,
                "vcpu_count": 1,
                "main_ip": if is_active { &address } else { "0.0.0.0" },
                "power_status": "running",
                "server_status": if is_active { "ok" } else { "none" },
                "allowed_bandwidth": 1,
                "netmask_v4": "",
                "gateway_v4": "0.0.0.0",
                "v6_networks": [],
                "hostname": "vultr",
                "kvm": "",
                "firewall_group_id": "",
            }),
            Kind::Metal => json!({
                "os": "Docker on Ubuntu 22.04 x64",
                "ram": "2097152 MB",
                "disk": "2x 480 GB SSD",
                "cpu_count": 112,
                "main_ip": if is_active { &address } else { "" },
                "netmask_v4": "255.255.254.0",
                "gateway_v4": "203.0.113.1",
                "v6_network": "",
                "v6_main_ip": "",
                "v6_network_size": 0,
                "mac_address": 2_199_756_823_533_u64,
            }),
        };
        let is_usual = addresses == Addresses::Usual;
        if addresses != Addresses::Untold && is_usual == (self.kind == Kind::Vm) {
            more["internal_ip"] = internal.into();
        }
        let more = more.as_object().unwrap().clone();
        fields.as_object_mut().unwrap().extend(more);
        fields
    }
}

impl Vultr {
    /// A cloud whose account has this key.
    pub fn new(api_key: &str) -> Self {
        Self::with_pace(api_key, USUAL)
    }

    /// As [`Vultr::new`], otherwise fast or slow.
    pub fn with_pace(api_key: &str, pace: Pace) -> Self {
        Self(Arc::new(Shared {
            api_key: api_key.to_owned(),
            pace,
            ledger: Ledger::default(),
            state: Mutex::default(),
        }))
    }

    /// The account may have no more machines than this.
    pub fn set_limit(&self, limit: usize) {
        self.lock().limit = Some(limit);
    }

    /// Machines do not start, and the vendor says so.
    pub fn fail_all(&self) {
        for server in &mut self.lock().servers {
            server.is_failed = true;
        }
    }

    /// Where machines have their addresses from now on.
    pub fn addresses(&self, addresses: Addresses) {
        self.lock().addresses = addresses;
    }

    /// Lists of machines leave out the first, as it may happen between pages.
    pub fn miss_one(&self) {
        self.lock().misses_one = true;
    }

    /// No page says that it is the last.
    pub fn page_on_and_on(&self) {
        self.lock().is_endless = true;
    }

    /// How often the private networks were asked for.
    pub fn vpcs_listed(&self) -> usize {
        self.lock().vpcs_listed
    }

    /// What is gone costs nothing any more.
    fn settle(&self) {
        let now = Instant::now();
        self.lock().servers.retain(|server| {
            let is_there = server.gone_at.is_none_or(|at| at > now);
            if !is_there {
                self.0.ledger.removed(&server.id);
            }
            is_there
        });
    }

    /// Descriptions of the private networks.
    pub fn networks(&self) -> Vec<String> {
        let state = self.lock();
        let names = state.vpcs.iter().map(|vpc| &vpc.fields["description"]);
        names.map(|name| name.as_str().unwrap().to_owned()).collect()
    }

    /// What was asked for, of each machine that there is.
    pub fn asked(&self) -> Vec<Value> {
        let state = self.lock();
        let all = state.servers.iter().map(|server| &server.asked);
        all.map(|asked| Value::Object(asked.clone())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Cloud> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A refusal: the status and the text.
type Refused = (StatusCode, String);

type Answer = Result<(StatusCode, Value), Refused>;

fn refused<T>(status: StatusCode, text: impl Into<String>) -> Result<T, Refused> {
    Err((status, text.into()))
}

fn bad<T>(text: impl Into<String>) -> Result<T, Refused> {
    refused(StatusCode::BAD_REQUEST, text)
}

fn answered(answer: Answer) -> Response {
    match answer {
        Ok((StatusCode::NO_CONTENT, _)) => StatusCode::NO_CONTENT.into_response(),
        Ok((status, body)) => (status, Json(body)).into_response(),
        Err((status, text)) => {
            (status, Json(json!({"error": text, "status": status.as_u16()}))).into_response()
        }
    }
}

/// What a call needs.
struct Asked {
    path: BTreeMap<String, String>,
    query: BTreeMap<String, String>,
    body: Bytes,
    /// A list never ends.
    is_endless: bool,
}

impl Asked {
    fn id(&self) -> &str {
        &self.path["id"]
    }

    /// The body, with fields of these names and types only.
    fn fields(&self, known: &[(&str, Type)], required: &[&str]) -> Result<Map<String, Value>, Refused> {
        let Ok(Value::Object(fields)) = serde_json::from_slice(&self.body) else {
            return bad("Invalid JSON.");
        };
        for (name, value) in &fields {
            let Some((_, kind)) = known.iter().find(|(known, _)| known == name) else {
                return bad(format!("Unknown parameter {name}."));
            };
            if !kind.is_of(value) {
                return bad(format!("Invalid {name}."));
            }
        }
        match required.iter().find(|name| !fields.contains_key(**name)) {
            Some(missing) => bad(format!("{missing} is required.")),
            None => Ok(fields),
        }
    }

    /// A page of a list.
    fn page(&self, name: &str, all: Vec<Value>, largest: usize) -> Answer {
        let Ok(size) = self
            .query
            .get("per_page")
            .map_or(Ok(100), |size| size.parse::<usize>())
        else {
            return bad("Invalid per_page.");
        };
        if !(1..=500).contains(&size) {
            return bad("Invalid per_page.");
        }
        let from = match self.query.get("cursor") {
            None => 0,
            Some(cursor) => match cursor.strip_prefix("bmV4dF9f").and_then(|at| at.parse().ok()) {
                Some(from) => from,
                None => return bad("Invalid cursor."),
            },
        };
        let (size, total) = (size.min(largest), all.len());
        let next = match from + size < total || self.is_endless {
            true => format!("bmV4dF9f{}", from + size),
            false => String::new(),
        };
        let part: Vec<Value> = all.into_iter().skip(from).take(size).collect();
        let meta = json!({"total": total, "links": {"next": next, "prev": ""}});
        Ok((StatusCode::OK, json!({name: part, "meta": meta})))
    }
}

#[derive(Clone, Copy)]
enum Type {
    Text,
    Number,
    Bool,
    Texts,
}

impl Type {
    fn is_of(self, value: &Value) -> bool {
        match self {
            Self::Text => value.is_string(),
            Self::Number => value.is_i64(),
            Self::Bool => value.is_boolean(),
            Self::Texts => value
                .as_array()
                .is_some_and(|all| all.iter().all(Value::is_string)),
        }
    }
}

/// Fields of both kinds of machines.
const COMMON: [(&str, Type); 15] = [
    ("region", Type::Text),
    ("plan", Type::Text),
    ("label", Type::Text),
    ("hostname", Type::Text),
    ("user_data", Type::Text),
    ("script_id", Type::Text),
    ("sshkey_id", Type::Texts),
    ("enable_ipv6", Type::Bool),
    ("activation_email", Type::Bool),
    ("tags", Type::Texts),
    ("attach_vpc", Type::Texts),
    ("os_id", Type::Number),
    ("snapshot_id", Type::Text),
    ("app_id", Type::Number),
    ("image_id", Type::Text),
];

/// Those of which a machine needs exactly one.
const SYSTEMS: [&str; 4] = ["os_id", "snapshot_id", "app_id", "image_id"];

impl Vultr {
    fn create_server(&self, kind: Kind, asked: &Asked) -> Answer {
        let mut known = COMMON.to_vec();
        if kind == Kind::Vm {
            known.extend([("backups", Type::Text), ("ddos_protection", Type::Bool)]);
        }
        let fields = asked.fields(&known, &["region", "plan"])?;
        if SYSTEMS.iter().filter(|name| fields.contains_key(**name)).count() != 1 {
            return bad("Choose one of os_id, snapshot_id, app_id, image_id.");
        }
        if fields
            .get("image_id")
            .is_some_and(|id| !["docker", "ubuntu"].contains(&id.as_str().unwrap()))
        {
            return bad("Invalid image_id.");
        }
        let is_base64 = |data: &Value| STANDARD.decode(data.as_str().unwrap()).is_ok();
        if !fields.get("user_data").is_none_or(is_base64) {
            return bad("Invalid user_data.");
        }
        let text = |name: &str| fields[name].as_str().unwrap();
        let plan = match kind {
            Kind::Vm => plans(),
            Kind::Metal => metal_plans(),
        };
        let Some(plan) = plan.into_iter().find(|plan| plan["id"] == fields["plan"]) else {
            return bad("Invalid plan chosen.");
        };
        let region = text("region").to_owned();
        if !REGIONS.contains(&region.as_str()) {
            return bad("Invalid location chosen.");
        }
        let is_there = plans::is_sold(&plan, &region);
        let mut state = self.lock();
        let vpcs: Vec<&str> = fields
            .get("attach_vpc")
            .and_then(Value::as_array)
            .map(|all| all.iter().filter_map(Value::as_str).collect())
            .unwrap_or_default();
        let in_region = |id: &str| {
            let mut all = state.vpcs.iter();
            all.any(|vpc| vpc.fields["id"] == id && vpc.fields["region"] == region.as_str())
        };
        if !vpcs.iter().all(|id| in_region(id)) {
            return bad("Invalid VPC.");
        }
        if !vpcs.is_empty() && plan["id"] == "vbm-4c-32gb" {
            return bad("This plan does not support VPC.");
        }
        if state.sold_out || !is_there {
            return bad("Server add failed: The selected plan is not available in the selected region");
        }
        if state.limit.is_some_and(|limit| state.servers.len() >= limit) {
            return bad(
                "Server add failed: You have reached the maximum number of active virtual machines for this account.",
            );
        }
        state.made += 1;
        let number = state.made;
        let id = format!("4f0f12e5-1f84-404f-aa84-{number:012x}");
        let now = Instant::now();
        let pace = self.0.pace;
        let label = fields.get("label").and_then(Value::as_str).unwrap_or_default();
        self.0.ledger.made("machine", &id, label);
        let server = Server {
            kind,
            number,
            id,
            asked: fields,
            listed_at: now + state.lag,
            active_at: now
                + match kind {
                    Kind::Vm => pace.starts,
                    Kind::Metal => pace.metal_starts,
                },
            gone_at: None,
            is_failed: false,
        };
        let answer = server.to_json(state.addresses);
        state.servers.push(server);
        Ok((StatusCode::ACCEPTED, json!({one(kind): answer})))
    }

    fn list_servers(&self, kind: Kind, asked: &Asked) -> Answer {
        let state = self.lock();
        let listed = |server: &&Server| server.kind == kind && server.listed_at <= Instant::now();
        let missed = usize::from(state.misses_one);
        let all = state.servers.iter().filter(listed).skip(missed);
        let all = all.map(|server| server.to_json(state.addresses));
        let name = match kind {
            Kind::Vm => "instances",
            Kind::Metal => "bare_metals",
        };
        asked.page(name, all.collect(), self.0.pace.page)
    }

    /// What is not listed yet is not found either.
    fn at(&self, state: &Cloud, kind: Kind, id: &str) -> Result<usize, Refused> {
        let is_it =
            |server: &Server| server.kind == kind && server.id == id && server.listed_at <= Instant::now();
        let found = state.servers.iter().position(is_it);
        found.ok_or_else(|| (StatusCode::NOT_FOUND, format!("{} not found", one(kind))))
    }

    fn server(&self, kind: Kind, asked: &Asked) -> Answer {
        let state = self.lock();
        let server = &state.servers[self.at(&state, kind, asked.id())?];
        Ok((
            StatusCode::OK,
            json!({one(kind): server.to_json(state.addresses)}),
        ))
    }

    fn delete_server(&self, kind: Kind, asked: &Asked) -> Answer {
        let mut state = self.lock();
        let at = self.at(&state, kind, asked.id())?;
        let gone_at = Instant::now() + self.0.pace.ends;
        state.servers[at].gone_at.get_or_insert(gone_at);
        Ok((StatusCode::NO_CONTENT, Value::Null))
    }

    fn vpcs_of(&self, kind: Kind, asked: &Asked) -> Answer {
        let state = self.lock();
        if state.addresses == Addresses::Untold {
            return refused(StatusCode::NOT_FOUND, "Not found.");
        }
        let server = &state.servers[self.at(&state, kind, asked.id())?];
        let attached = server.asked.get("attach_vpc").and_then(Value::as_array);
        let ids = attached.into_iter().flatten();
        let of = |id: &Value| json!({"id": id, "mac_address": "00:00:5e:00:53:5e", "ip_address": server.internal_ip()});
        let all = match server.has_address(state.addresses) {
            true => ids.map(of).collect(),
            false => Vec::new(),
        };
        asked.page("vpcs", all, self.0.pace.page)
    }

    fn list_vpcs(&self, asked: &Asked) -> Answer {
        let mut state = self.lock();
        state.vpcs_listed += 1;
        let listed = state.vpcs.iter().filter(|vpc| vpc.listed_at <= Instant::now());
        let all = listed.map(|vpc| vpc.fields.clone()).collect();
        asked.page("vpcs", all, self.0.pace.page)
    }

    fn create_vpc(&self, asked: &Asked) -> Answer {
        let known = [
            ("region", Type::Text),
            ("description", Type::Text),
            ("v4_subnet", Type::Text),
            ("v4_subnet_mask", Type::Number),
        ];
        let fields = asked.fields(&known, &["region"])?;
        if !REGIONS.contains(&fields["region"].as_str().unwrap()) {
            return bad("Invalid location chosen.");
        }
        let mut state = self.lock();
        let number = state.vpcs.len();
        let vpc = json!({
            "id": format!("3f784ad9-f55d-4abb-9b8a-{number:012x}"),
            "region": fields["region"],
            "date_created": format!("2026-10-01T12:00:{:02}+00:00", number % 60),
            "description": fields.get("description").cloned().unwrap_or_else(|| "".into()),
            "v4_subnet": "10.1.96.0",
            "v4_subnet_mask": 20,
        });
        let listed_at = Instant::now() + state.lag;
        state.vpcs.push(Vpc {
            listed_at,
            fields: vpc.clone(),
        });
        Ok((StatusCode::CREATED, json!({"vpc": vpc})))
    }

    fn regions(&self, asked: &Asked) -> Answer {
        let region = |id: &&str| json!({"id": id, "city": id, "country": "US", "continent": "North America", "options": []});
        let all = REGIONS.iter().map(region).collect();
        asked.page("regions", all, self.0.pace.page)
    }

    fn availability(&self, asked: &Asked) -> Answer {
        let region = asked.id();
        if !REGIONS.contains(&region) {
            return refused(StatusCode::NOT_FOUND, "Invalid region.");
        }
        let wanted = asked.query.get("type").map_or("all", String::as_str);
        let is_wanted = |plan: &Value| {
            (wanted == "all" || plan["type"] == wanted)
                && plans::is_sold(plan, region)
                && !self.lock().sold_out
        };
        let all = plans().into_iter().filter(is_wanted);
        let ids: Vec<Value> = all.map(|plan| plan["id"].clone()).collect();
        Ok((StatusCode::OK, json!({"available_plans": ids})))
    }

    fn plans(&self, asked: &Asked) -> Answer {
        let wanted = asked.query.get("type").map_or("all", String::as_str);
        let is_wanted = |plan: &Value| wanted == "all" || plan["type"] == wanted;
        let all = plans().into_iter().filter(is_wanted).collect();
        asked.page("plans", all, self.0.pace.page)
    }

    fn metal_plans(&self, asked: &Asked) -> Answer {
        asked.page("plans_metal", metal_plans(), self.0.pace.page)
    }

    fn ssh_keys(&self, asked: &Asked) -> Answer {
        asked.page("ssh_keys", Vec::new(), self.0.pace.page)
    }
}

const fn one(kind: Kind) -> &'static str {
    match kind {
        Kind::Vm => "instance",
        Kind::Metal => "bare_metal",
    }
}

type Work = Arc<dyn Fn(&Vultr, &Asked) -> Answer + Send + Sync>;

/// A call, which needs the key unless it is public.
async fn call(
    State((cloud, work, is_public)): State<(Vultr, Work, bool)>,
    Path(path): Path<BTreeMap<String, String>>,
    Query(query): Query<BTreeMap<String, String>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let expected = format!("Bearer {}", cloud.0.api_key);
    let given = |name: &str| headers.get(name).map(HeaderValue::as_bytes);
    if !is_public && given("authorization") != Some(expected.as_bytes()) {
        return answered(refused(StatusCode::UNAUTHORIZED, "Invalid API token."));
    }
    if !body.is_empty() && given("content-type") != Some(b"application/json".as_slice()) {
        return answered(bad("The content type is application/json."));
    }
    cloud.settle();
    let asked = Asked {
        path,
        query,
        body,
        is_endless: cloud.lock().is_endless,
    };
    let answer = work(&cloud, &asked);
    cloud.settle();
    answered(answer)
}

impl Emulator for Vultr {
    fn router(&self) -> Router {
        type Plain = fn(&Vultr, &Asked) -> Answer;
        let state = |work: Plain, is_public: bool| {
            let work: Work = Arc::new(work);
            (self.clone(), work, is_public)
        };
        let of = |kind: Kind, work: fn(&Vultr, Kind, &Asked) -> Answer| {
            let work: Work = Arc::new(move |cloud: &Vultr, asked: &Asked| work(cloud, kind, asked));
            (self.clone(), work, false)
        };
        let mut router = Router::new()
            .route(
                "/v2/ssh-keys",
                get(call).with_state(state(Vultr::ssh_keys, false)),
            )
            .route("/v2/plans", get(call).with_state(state(Vultr::plans, true)))
            .route(
                "/v2/plans-metal",
                get(call).with_state(state(Vultr::metal_plans, true)),
            )
            .route("/v2/regions", get(call).with_state(state(Vultr::regions, true)))
            .route(
                "/v2/regions/{id}/availability",
                get(call).with_state(state(Vultr::availability, false)),
            )
            .route(
                "/v2/vpcs",
                get(call)
                    .with_state(state(Vultr::list_vpcs, false))
                    .merge(axum::routing::post(call).with_state(state(Vultr::create_vpc, false))),
            );
        for (kind, path) in [(Kind::Vm, "/v2/instances"), (Kind::Metal, "/v2/bare-metals")] {
            let all = get(call).with_state(of(kind, Vultr::list_servers));
            let make = axum::routing::post(call).with_state(of(kind, Vultr::create_server));
            let one = get(call).with_state(of(kind, Vultr::server));
            let delete = axum::routing::delete(call).with_state(of(kind, Vultr::delete_server));
            router = router
                .route(path, all.merge(make))
                .route(&format!("{path}/{{id}}"), one.merge(delete))
                .route(
                    &format!("{path}/{{id}}/vpcs"),
                    get(call).with_state(of(kind, Vultr::vpcs_of)),
                );
        }
        router
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

    /// As if somebody had deleted them in the console.
    fn lose_all(&self) {
        for server in self.lock().servers.drain(..) {
            self.0.ledger.removed(&server.id);
        }
    }
}
