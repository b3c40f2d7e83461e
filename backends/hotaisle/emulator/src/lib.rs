//! Plays Hot Aisle by its API description (Swagger, version 1.0.0, of 2026-06-25, with the `deployment_id` that reservations have since), for
//! tests.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::missing_panics_doc)] // tests

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use dstack_backend_kit::{Emulator, Ledger};
use serde_json::{Value, json};
use tokio::time::Instant;

/// The team of the account.
pub const TEAM: &str = "acme";

/// A team that has invited the user, who has not accepted.
pub const INVITING_TEAM: &str = "umbrella";

/// A key that may only look.
pub const VIEWING_KEY: &str = "looks-only";

const VIRTUAL: &str = "virtual_machines";
const BARE_METAL: &str = "bare_metal";

/// How long things take.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Until a virtual machine runs.
    pub starts: Duration,
    /// Until the operating system of a server is installed.
    pub installs: Duration,
    /// How long a server is kept at least.
    pub minimum: Duration,
}

/// Shorter than the vendor's eight hours for servers, which the checks do not wait for.
pub const USUAL: Times = Times {
    starts: Duration::from_secs(60),
    installs: Duration::from_secs(240),
    minimum: Duration::from_secs(300),
};

/// Machines of one size that the cloud has.
#[derive(Debug, Clone)]
pub struct Size {
    /// Whether these are whole servers, and not virtual machines.
    pub is_bare_metal: bool,
    /// How many are free when nothing is made yet.
    pub quantity: usize,
    /// In cents an hour.
    pub price: i64,
    /// As they are listed, and asked for.
    pub specs: Value,
}

/// Virtual machines with so many GPUs.
pub fn virtual_size(gpus: i64, quantity: usize) -> Size {
    Size {
        is_bare_metal: false,
        quantity,
        price: 199 * gpus,
        specs: json!({
            "cpu_cores": 13 * gpus,
            "cpus": {"count": 1, "manufacturer": "Intel", "model": "Xeon Platinum 8470", "cores": 13 * gpus,
                "frequency": 2_000_000_000_u64},
            "disk_capacity": 13_194_139_533_312_u64,
            "gpus": [{"count": gpus, "manufacturer": "AMD", "model": "MI300X"}],
            "ram_capacity": 240_518_168_576_i64 * gpus,
        }),
    }
}

/// So many servers with eight GPUs.
pub fn server_size(quantity: usize) -> Size {
    Size {
        is_bare_metal: true,
        quantity,
        price: 1592,
        specs: json!({
            "cpu_cores": 104,
            "cpus": [{"count": 2, "manufacturer": "Intel", "model": "Xeon Platinum 8470", "cores": 52,
                "frequency": 2_000_000_000_u64}],
            "disk_capacity": 123_145_302_310_912_u64,
            "disks": [{"count": 8, "manufacturer": "Samsung", "model": "PM9A3", "capacity": 15_393_162_788_864_u64, "type": "NVMe"}],
            "gpus": [{"count": 8, "manufacturer": "AMD", "model": "MI300X"}],
            "memory_modules": [{"count": 32, "manufacturer": "Samsung", "model": "M321", "capacity": 68_719_476_736_u64}],
            "ram_capacity": 2_199_023_255_552_u64,
        }),
    }
}

/// The vendor's cloud, with one account.
#[derive(Debug, Clone)]
pub struct HotAisle(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    api_key: String,
    times: Times,
    sizes: Vec<Size>,
    ledger: Ledger,
    state: Mutex<Cloud>,
}

#[derive(Debug, Default)]
struct Cloud {
    hosts: Vec<Host>,
    /// Type and key, without comments.
    keys: Vec<String>,
    sold_out: bool,
    lag: Duration,
    reservations: usize,
    /// What making is refused with.
    refusal: Option<(u16, &'static str)>,
    /// Whether installations of servers fail.
    fails: bool,
    /// Lists of what is free fail, of this kind.
    away: Option<&'static str>,
    /// Reservations have no ids, as in the description of the API.
    without_ids: bool,
    /// Nothing is found by its name or id: a gateway answers.
    mislaid: bool,
    /// Lists of what is free have a row that is no size.
    odd: bool,
}

/// One that is there.
#[derive(Debug)]
struct Host {
    size: Size,
    name: String,
    deployment_id: Option<String>,
    description: String,
    made_at: Instant,
    listed_at: Instant,
}

impl Host {
    const fn kind(&self) -> &'static str {
        match self.size.is_bare_metal {
            true => BARE_METAL,
            false => VIRTUAL,
        }
    }

    fn is_called(&self, id: &str) -> bool {
        self.name == id || self.deployment_id.as_deref() == Some(id)
    }

    fn to_json(&self, times: &Times, fails: bool) -> Value {
        let mut host = self.size.specs.clone();
        host["name"] = json!(self.name);
        host["description"] = match self.description.as_str() {
            "" => Value::Null,
            description => json!(description),
        };
        if self.size.is_bare_metal {
            let status = match self.made_at.elapsed() >= times.installs {
                true if fails => "failed",
                true => "installed",
                false => "installing_os",
            };
            host["ip_address"] = json!("192.168.1.100");
            host["manufacturer"] = json!("Dell");
            host["model"] = json!("PowerEdge XE9680");
            host["support_access_enabled"] = json!(false);
            host["ssh_access"] = json!({"ip_address": "192.0.2.20", "port": 2201});
            host["os_status"] = json!({"last_imaging_update": "2026-10-01T12:05:00Z", "os_install_status": status,
                "os_selection": "ubuntu-2404.4"});
        } else {
            host["ip_address"] = json!("192.0.2.10");
            host["ssh_access"] = json!({"ip_address": "192.0.2.10", "port": 22});
        }
        host
    }
}

impl HotAisle {
    /// A cloud whose user has this key, with machines of these sizes.
    pub fn new(api_key: &str, sizes: Vec<Size>) -> Self {
        Self::with_times(api_key, sizes, USUAL)
    }

    /// As [`HotAisle::new`], with another pace.
    pub fn with_times(api_key: &str, sizes: Vec<Size>, times: Times) -> Self {
        Self(Arc::new(Shared {
            api_key: api_key.to_owned(),
            times,
            sizes,
            ledger: Ledger::default(),
            state: Mutex::default(),
        }))
    }

    /// Machines are not made, with this status and text.
    pub fn refuse(&self, status: u16, text: &'static str) {
        self.lock().refusal = Some((status, text));
    }

    /// Installations of operating systems fail.
    pub fn fail_installations(&self) {
        self.lock().fails = true;
    }

    /// It is not told what is free of `virtual_machines` or `bare_metal`.
    pub fn hide(&self, kind: Option<&'static str>) {
        self.lock().away = kind;
    }

    /// Reservations have no ids, as in the description of the API.
    pub fn give_no_ids(&self) {
        self.lock().without_ids = true;
    }

    /// A gateway says of each machine and server that it is not found; lists have them.
    pub fn mislay(&self, mislaid: bool) {
        self.lock().mislaid = mislaid;
    }

    /// Lists of what is free have a row that is no size.
    pub fn list_oddly(&self) {
        self.lock().odd = true;
    }

    /// Somebody else of the team makes a virtual machine with so many GPUs by hand; its name.
    pub fn make_by_hand(&self, gpus: i64) -> String {
        let mut sizes = self.0.sizes.iter();
        let is_it = |size: &&Size| !size.is_bare_metal && size.specs["gpus"][0]["count"] == gpus;
        self.make(sizes.find(is_it).unwrap(), "").name
    }

    /// Somebody else of the team reserves a server by hand; its name.
    pub fn reserve_by_hand(&self) -> String {
        let size = self.0.sizes.iter().find(|size| size.is_bare_metal).unwrap();
        self.make(size, "mine").name
    }

    /// Descriptions of all that are there.
    pub fn descriptions(&self) -> Vec<String> {
        let state = self.lock();
        let hosts = state.hosts.iter();
        hosts.map(|host| host.description.clone()).collect()
    }

    /// Somebody describes one.
    pub fn describe(&self, name: &str, description: &str) {
        let mut state = self.lock();
        let host = state.hosts.iter_mut().find(|host| host.name == name);
        description.clone_into(&mut host.unwrap().description);
    }

    /// Keys of the account.
    pub fn keys(&self) -> Vec<String> {
        self.lock().keys.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Cloud> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many of a size are free.
    fn free(&self, size: &Size) -> usize {
        let state = self.lock();
        let taken = state.hosts.iter().filter(|host| host.size.specs == size.specs);
        match state.sold_out {
            true => 0,
            false => size.quantity - taken.count(),
        }
    }

    fn make(&self, size: &Size, description: &str) -> Made {
        let mut state = self.lock();
        let prefix = if size.is_bare_metal {
            "server-"
        } else {
            "enc1-gpuvm00"
        };
        // Names are given to others afterwards.
        let is_free = |name: &String| state.hosts.iter().all(|host| host.name != *name);
        let name = (1..)
            .map(|number| format!("{prefix}{number}"))
            .find(is_free)
            .unwrap();
        state.reservations += 1;
        let deployment_id = (size.is_bare_metal && !state.without_ids)
            .then(|| format!("dep-{:08x}", 0x7f3c_1a00 + state.reservations));
        let now = Instant::now();
        let host = Host {
            size: size.clone(),
            name: name.clone(),
            deployment_id: deployment_id.clone(),
            description: description.to_owned(),
            made_at: now,
            listed_at: now + state.lag,
        };
        let kind = if size.is_bare_metal { "server" } else { "machine" };
        self.0.ledger.made(
            kind,
            &name,
            if description.is_empty() {
                &name
            } else {
                description
            },
        );
        let mut answer = host.to_json(&self.0.times, false);
        if let Some(id) = deployment_id {
            answer["deployment_id"] = json!(id);
        }
        state.hosts.push(host);
        Made { name, answer }
    }
}

struct Made {
    name: String,
    answer: Value,
}

type Refusal = (StatusCode, &'static str);
type Answer = Result<Response, Refusal>;

const NOT_FOUND: Refusal = (StatusCode::NOT_FOUND, "Not Found: Resource not found");

const fn bad(text: &'static str) -> Refusal {
    (StatusCode::BAD_REQUEST, text)
}

fn json_of(status: StatusCode, value: &Value) -> Answer {
    Ok((status, Json(value)).into_response())
}

/// Whose the key is.
fn is_key(headers: &HeaderMap, key: &str) -> bool {
    let given = headers.get("authorization");
    given.is_some_and(|given| given.as_bytes() == format!("Token {key}").as_bytes())
}

async fn guard(State(cloud): State<HotAisle>, headers: HeaderMap, request: Request, next: Next) -> Response {
    let is_viewing = is_key(&headers, VIEWING_KEY);
    if !is_viewing && !is_key(&headers, &cloud.0.api_key) {
        return (StatusCode::UNAUTHORIZED, "Unauthorized").into_response();
    }
    match is_viewing && request.method() != Method::GET {
        true => (StatusCode::FORBIDDEN, "Forbidden - insufficient permissions").into_response(),
        false => next.run(request).await,
    }
}

async fn user(headers: HeaderMap) -> Answer {
    let roles = match is_key(&headers, VIEWING_KEY) {
        true => json!(["user"]),
        false => json!(["operator", "user"]),
    };
    let team = |handle: &str, is_invited: bool| {
        let mut team = json!({"handle": handle, "name": handle, "roles": ["operator", "user"], "effective_roles": roles,
            "maximum_virtual_machines": 10, "maximum_bare_metal_servers": 4});
        if is_invited {
            team["invitation"] = json!(true);
        }
        team
    };
    let user =
        json!({"email": "john.doe@example.com", "name": "John Doe", "created": "2025-04-10T14:30:00Z"});
    let teams = [team(TEAM, false), team(INVITING_TEAM, true)];
    json_of(StatusCode::OK, &json!({"user": user, "teams": teams}))
}

/// The fields of a body, of which no others may be there.
fn fields(body: &[u8], known: &[&str]) -> Result<Value, Refusal> {
    let body: Value = serde_json::from_slice(body).map_err(|_| bad("Bad Request: no JSON"))?;
    let fields = body.as_object().ok_or_else(|| bad("Bad Request: no object"))?;
    match fields.keys().all(|name| known.contains(&name.as_str())) {
        true => Ok(body),
        false => Err(bad("Bad Request: unknown field")),
    }
}

async fn add_key(State(cloud): State<HotAisle>, body: Bytes) -> Answer {
    let body = fields(&body, &["authorized_key"])?;
    let key = body["authorized_key"].as_str().unwrap_or_default();
    let parts: Vec<&str> = key.split_whitespace().collect();
    let [kind, public_key, comment @ ..] = parts.as_slice() else {
        return Err((StatusCode::UNPROCESSABLE_ENTITY, "invalid SSH key format"));
    };
    let key = format!("{kind} {public_key}");
    let mut state = cloud.lock();
    if state.keys.contains(&key) {
        return Err((StatusCode::CONFLICT, "Conflict - key already registered"));
    }
    state.keys.push(key);
    json_of(
        StatusCode::OK,
        &json!({"type": kind, "public_key": public_key, "comment": comment.join(" "), "fingerprint": "SHA256:AbCd"}),
    )
}

/// Of the user's team, and of a kind.
fn of_team(team: &str, kind: &str) -> Result<&'static str, Refusal> {
    match (team, kind) {
        (TEAM, VIRTUAL) => Ok(VIRTUAL),
        (TEAM, BARE_METAL) => Ok(BARE_METAL),
        (TEAM, _) => Err(NOT_FOUND),
        _ => Err((StatusCode::FORBIDDEN, "Forbidden")),
    }
}

async fn available(State(cloud): State<HotAisle>, Path((team, kind)): Path<(String, String)>) -> Answer {
    let kind = of_team(&team, &kind)?;
    if cloud.lock().away == Some(kind) {
        return Err((StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error"));
    }
    let sizes = cloud
        .0
        .sizes
        .iter()
        .filter(|size| size.is_bare_metal == (kind == BARE_METAL));
    let mut listed: Vec<Value> = sizes
        .map(|size| (size, cloud.free(size)))
        .filter(|(_, free)| *free > 0)
        .map(|(size, free)| {
            json!({"OnDemandPrice": size.price, "MinimumReservationMinutes": if size.is_bare_metal { 480 } else { 0 },
                "Quantity": free, "Specs": size.specs})
        })
        .collect();
    if cloud.lock().odd {
        listed.push(json!({"MinimumReservationMinutes": 0, "Quantity": null}));
    }
    match listed.is_empty() {
        true => json_of(StatusCode::OK, &Value::Null),
        false => json_of(StatusCode::OK, &json!(listed)),
    }
}

async fn list(State(cloud): State<HotAisle>, Path((team, kind)): Path<(String, String)>) -> Answer {
    let kind = of_team(&team, &kind)?;
    let (state, times) = (cloud.lock(), &cloud.0.times);
    let now = Instant::now();
    let hosts = state
        .hosts
        .iter()
        .filter(|host| host.kind() == kind && host.listed_at <= now);
    let listed: Vec<Value> = hosts.map(|host| host.to_json(times, state.fails)).collect();
    json_of(StatusCode::OK, &json!(listed))
}

const SPECS: &[&str] = &[
    "cpu_cores",
    "cpus",
    "disk_capacity",
    "disks",
    "gpus",
    "memory_modules",
    "ram_capacity",
];

const VIRTUAL_SPECS: &[&str] = &[
    "cpu_cores",
    "cpus",
    "disk_capacity",
    "gpus",
    "ram_capacity",
    "user_data_url",
];

async fn make(
    State(cloud): State<HotAisle>,
    Path((team, kind)): Path<(String, String)>,
    body: Bytes,
) -> Answer {
    let is_bare_metal = of_team(&team, &kind)? == BARE_METAL;
    let (specs, description) = match is_bare_metal {
        true => {
            let body = fields(&body, &["specs", "description"])?;
            let specs = fields(&serde_json::to_vec(&body["specs"]).unwrap(), SPECS)?;
            (specs, body["description"].as_str().unwrap_or_default().to_owned())
        }
        false => (fields(&body, VIRTUAL_SPECS)?, String::new()),
    };
    let is_number = |field: &&str| specs[*field].is_u64();
    if !["cpu_cores", "ram_capacity", "disk_capacity"]
        .iter()
        .all(is_number)
    {
        return Err(bad("Bad Request: invalid specifications"));
    }
    let refusal = cloud.lock().refusal;
    if let Some((status, text)) = refusal {
        return Err((StatusCode::from_u16(status).unwrap(), text));
    }
    let mut sizes = cloud.0.sizes.iter();
    let size = sizes.find(|size| size.is_bare_metal == is_bare_metal && size.specs == specs);
    let size = size
        .filter(|size| cloud.free(size) > 0)
        .ok_or(match is_bare_metal {
            true => (
                StatusCode::NOT_FOUND,
                "No available servers matching specifications",
            ),
            false => (
                StatusCode::NOT_FOUND,
                "No available virtual machine matching requested specifications",
            ),
        })?;
    let status = if is_bare_metal {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    json_of(status, &cloud.make(size, &description).answer)
}

type HostPath = Path<(String, String, String)>;

/// Where one stands among those that are known.
fn index(state: &Cloud, kind: &str, id: &str) -> Result<usize, Refusal> {
    if state.mislaid {
        return Err((StatusCode::NOT_FOUND, "404 page not found"));
    }
    let now = Instant::now();
    let is_it = |host: &Host| host.kind() == kind && host.is_called(id) && host.listed_at <= now;
    state.hosts.iter().position(is_it).ok_or(NOT_FOUND)
}

async fn one(State(cloud): State<HotAisle>, Path((team, kind, id)): HostPath) -> Answer {
    let kind = of_team(&team, &kind)?;
    let state = cloud.lock();
    let host = &state.hosts[index(&state, kind, &id)?];
    json_of(StatusCode::OK, &host.to_json(&cloud.0.times, state.fails))
}

async fn update(State(cloud): State<HotAisle>, Path((team, kind, id)): HostPath, body: Bytes) -> Answer {
    let kind = of_team(&team, &kind)?;
    let body = fields(&body, &["description"])?;
    let mut state = cloud.lock();
    let at = index(&state, kind, &id)?;
    let description = body["description"].as_str().ok_or_else(|| bad("Bad Request"))?;
    description.clone_into(&mut state.hosts[at].description);
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn power(State(cloud): State<HotAisle>, Path((team, id)): Path<(String, String)>) -> Answer {
    let kind = of_team(&team, VIRTUAL)?;
    let state = cloud.lock();
    let host = &state.hosts[index(&state, kind, &id)?];
    let is_up = host.made_at.elapsed() >= cloud.0.times.starts;
    let power = if is_up { "running" } else { "shut off" };
    json_of(StatusCode::OK, &json!({"state": power, "host": "vm-host-01"}))
}

async fn remove(
    State(cloud): State<HotAisle>,
    Path((team, kind, id)): HostPath,
    Query(query): Query<HashMap<String, String>>,
) -> Answer {
    let kind = of_team(&team, &kind)?;
    let mut state = cloud.lock();
    let at = index(&state, kind, &id)?;
    let is_forced = query.get("force").is_some_and(|force| force == "true");
    let is_early = kind == BARE_METAL && state.hosts[at].made_at.elapsed() < cloud.0.times.minimum;
    if is_early && !is_forced {
        return Err(bad("Bad Request: minimum reservation time not met"));
    }
    let host = state.hosts.remove(at);
    cloud.0.ledger.removed(&host.name);
    Ok(StatusCode::NO_CONTENT.into_response())
}

impl Emulator for HotAisle {
    fn router(&self) -> Router {
        let api = Router::new()
            .route("/user/", get(user))
            .route("/user/ssh_keys/", post(add_key))
            .route("/teams/{team}/{kind}/available/", get(available))
            .route("/teams/{team}/{kind}/", get(list).post(make))
            .route(
                "/teams/{team}/{kind}/{id}/",
                get(one).patch(update).delete(remove),
            )
            .route("/teams/{team}/virtual_machines/{id}/state/", get(power))
            .layer(from_fn_with_state(self.clone(), guard))
            .with_state(self.clone());
        Router::new().nest("/api", api)
    }

    fn ledger(&self) -> &Ledger {
        &self.0.ledger
    }

    fn sell_out(&self, sold_out: bool) {
        self.lock().sold_out = sold_out;
    }

    fn lag(&self, lag: Duration) {
        self.lock().lag = lag;
    }

    fn lose_all(&self) {
        for host in self.lock().hosts.drain(..) {
            self.0.ledger.removed(&host.name);
        }
    }
}
