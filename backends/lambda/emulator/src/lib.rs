//! Plays Lambda by its API description (OpenAPI, version 1.10.0), for tests.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::missing_panics_doc)] // tests

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use dstack_backend_kit::{Emulator, Ledger};
use serde_json::{Value, json};
use tokio::time::Instant;

/// How long things take.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Until a machine is active.
    pub boots: Duration,
    /// Until a machine that is terminated is gone.
    pub ends: Duration,
    /// How long what is over is still listed.
    pub shown: Duration,
    /// From one launch to the next.
    pub launch_interval: Duration,
    /// From one request to the next.
    pub request_interval: Duration,
}

/// Those of the vendor, but for the boot, which takes 5 to 15 minutes, and the limit of requests: tests open several clients at the same
/// moment.
pub const USUAL: Times = Times {
    boots: Duration::from_secs(90),
    ends: Duration::from_secs(40),
    shown: Duration::from_secs(60),
    launch_interval: Duration::from_secs(12),
    request_interval: Duration::ZERO,
};

/// A size of machines.
#[derive(Debug, Clone)]
pub struct Size {
    /// Name of the type.
    pub name: String,
    /// Region that has it.
    pub region: String,
}

/// What a machine is told to do at its first start leads to its address; `None`: there is no machine left.
pub type Machines = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// The vendor's cloud, with one account.
#[derive(Debug, Clone)]
pub struct Lambda(Arc<Shared>);

struct Shared {
    api_key: String,
    give_machine: Machines,
    times: Times,
    sizes: Vec<Size>,
    ledger: Ledger,
    state: Mutex<Cloud>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Cloud {
    machines: Vec<Machine>,
    keys: Vec<(String, String)>,
    sold_out: bool,
    lag: Duration,
    /// What launches are refused with: status and code.
    refusal: Option<(u16, &'static str)>,
    last_request: Option<Instant>,
    last_launch: Option<Instant>,
}

#[derive(Debug)]
struct Machine {
    id: String,
    name: Option<String>,
    key: String,
    size: Size,
    user_data: String,
    address: String,
    made_at: Instant,
    listed_at: Instant,
    ended_at: Option<Instant>,
    /// Taken away, or unwell.
    told: Option<&'static str>,
}

impl Machine {
    fn is_over(&self, times: &Times) -> bool {
        self.ended_at.is_some_and(|at| at.elapsed() >= times.ends)
    }

    fn status(&self, times: &Times) -> &'static str {
        match (self.ended_at, self.told) {
            (Some(_), _) if self.is_over(times) => "terminated",
            (Some(_), _) => "terminating",
            (None, Some(told)) => told,
            (None, None) if self.made_at.elapsed() >= times.boots => "active",
            (None, None) => "booting",
        }
    }

    fn is_listed(&self, times: &Times) -> bool {
        let is_forgotten = self
            .ended_at
            .is_some_and(|at| at.elapsed() >= times.ends + times.shown);
        self.listed_at <= Instant::now() && !is_forgotten
    }

    fn to_json(&self, times: &Times) -> Value {
        let status = self.status(times);
        let action = match status {
            "active" => json!({"available": true}),
            _ => json!({"available": false, "reason_code": "vm-has-not-launched"}),
        };
        let mut instance = json!({
            "id": self.id,
            "status": status,
            "ssh_key_names": [self.key],
            "file_system_names": [],
            "region": {"name": self.size.region, "description": "Somewhere"},
            "instance_type": instance_type(&self.size.name),
            "actions": {"migrate": action, "rebuild": action, "restart": action, "cold_reboot": action,
                "terminate": {"available": self.ended_at.is_none()}},
        });
        if let Some(name) = &self.name {
            instance["name"] = json!(name);
        }
        if status != "booting" {
            instance["ip"] = json!(self.address);
            instance["private_ip"] = json!("10.19.2.100");
            instance["hostname"] = json!("192-0-2-41");
        }
        instance
    }
}

fn instance_type(name: &str) -> Value {
    json!({
        "name": name,
        "description": "1x A10 (24 GB PCIe)",
        "gpu_description": "A10 (24 GB PCIe)",
        "price_cents_per_hour": 129,
        "specs": {"vcpus": 30, "memory_gib": 200, "storage_gib": 1400, "gpus": 1},
    })
}

impl Lambda {
    /// A cloud whose account has this key, with machines of these sizes.
    pub fn new(api_key: &str, sizes: Vec<Size>) -> Self {
        Self::with_times(api_key, sizes, USUAL)
    }

    /// As [`Lambda::new`], with another pace.
    pub fn with_times(api_key: &str, sizes: Vec<Size>, times: Times) -> Self {
        let give = |_: &str| Some("192.0.2.41".to_owned());
        Self::with_machines(api_key, sizes, times, Box::new(give))
    }

    /// As [`Lambda::with_times`], with machines that are real.
    pub fn with_machines(api_key: &str, sizes: Vec<Size>, times: Times, give_machine: Machines) -> Self {
        Self(Arc::new(Shared {
            api_key: api_key.to_owned(),
            give_machine,
            times,
            sizes,
            ledger: Ledger::default(),
            state: Mutex::default(),
        }))
    }

    /// Launches are refused with this status and this code.
    pub fn refuse_launches(&self, status: u16, code: &'static str) {
        self.lock().refusal = Some((status, code));
    }

    /// Machines that run have this status from now on: `unhealthy`, `preempted`; `None`: they are well again.
    pub fn tell_all(&self, status: Option<&'static str>) {
        for machine in &mut self.lock().machines {
            machine.told = status;
        }
        self.settle();
    }

    /// Somebody registers a key.
    pub fn add_key(&self, name: &str, public_key: &str) {
        self.lock().keys.push((name.to_owned(), public_key.to_owned()));
    }

    /// Names of the keys of the account.
    pub fn key_names(&self) -> Vec<String> {
        self.lock().keys.iter().map(|(name, _)| name.clone()).collect()
    }

    /// What the machines were told to do at their first start.
    pub fn user_data(&self) -> Vec<String> {
        let state = self.lock();
        state
            .machines
            .iter()
            .map(|machine| machine.user_data.clone())
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Cloud> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is over costs nothing any more.
    fn settle(&self) {
        for machine in &self.lock().machines {
            if machine.is_over(&self.0.times) {
                self.0.ledger.removed(&machine.id);
            }
        }
    }
}

struct Refusal(u16, String, String);

type Answer = Result<Json<Value>, Refusal>;

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self(status, code, message) = self;
        let error =
            json!({"error": {"code": code, "message": message, "suggestion": "Read the description."}});
        (StatusCode::from_u16(status).unwrap(), Json(error)).into_response()
    }
}

fn refusal(status: u16, code: &str, message: &str) -> Refusal {
    Refusal(status, code.to_owned(), message.to_owned())
}

fn invalid(message: &str) -> Refusal {
    refusal(400, "global/invalid-parameters", message)
}

fn missing(message: &str) -> Refusal {
    refusal(404, "global/object-does-not-exist", message)
}

fn data(data: &Value) -> Json<Value> {
    Json(json!({"data": data}))
}

/// Whether a request that comes now is the first within this time.
fn is_due(last: &mut Option<Instant>, interval: Duration) -> bool {
    let is_due = last.is_none_or(|at| at.elapsed() >= interval);
    if is_due {
        *last = Some(Instant::now());
    }
    is_due
}

/// Who asks, and not too often.
async fn guard(State(cloud): State<Lambda>, headers: HeaderMap, request: Request, next: Next) -> Response {
    let expected = format!("Bearer {}", cloud.0.api_key);
    let given = headers.get("authorization");
    if given.is_none_or(|given| given.as_bytes() != expected.as_bytes()) {
        return refusal(
            401,
            "global/invalid-api-key",
            "API key was invalid, expired, or deleted.",
        )
        .into_response();
    }
    if !is_due(&mut cloud.lock().last_request, cloud.0.times.request_interval) {
        return refusal(429, "global/too-many-requests", "Slow down.").into_response();
    }
    cloud.settle();
    let answer = next.run(request).await;
    cloud.settle();
    answer
}

async fn instance_types(State(cloud): State<Lambda>) -> Answer {
    let is_free = !cloud.lock().sold_out;
    let mut types = serde_json::Map::new();
    for size in &cloud.0.sizes {
        let entry = types.entry(size.name.clone()).or_insert_with(
            || json!({"instance_type": instance_type(&size.name), "regions_with_capacity_available": []}),
        );
        if is_free {
            let regions = entry["regions_with_capacity_available"].as_array_mut().unwrap();
            regions.push(json!({"name": size.region, "description": "Somewhere"}));
        }
    }
    Ok(data(&Value::Object(types)))
}

async fn list_keys(State(cloud): State<Lambda>) -> Answer {
    let state = cloud.lock();
    let key = |(name, key): &(String, String)| json!({"id": format!("id-of-{name}"), "name": name, "public_key": key});
    Ok(data(&state.keys.iter().map(key).collect()))
}

/// The fields of a body, of which no others may be there.
fn fields(body: &[u8], known: &[&str]) -> Result<Value, Refusal> {
    let body: Value = serde_json::from_slice(body).map_err(|_| invalid("The body is no JSON."))?;
    let fields = body
        .as_object()
        .ok_or_else(|| invalid("The body is no object."))?;
    match fields.keys().find(|name| !known.contains(&name.as_str())) {
        Some(unknown) => Err(invalid(&format!("Unknown field {unknown}."))),
        None => Ok(body),
    }
}

fn text<'a>(body: &'a Value, name: &str, longest: usize) -> Result<&'a str, Refusal> {
    let text = body[name].as_str().filter(|text| text.len() <= longest);
    text.ok_or_else(|| invalid(&format!("{name} is not a text of at most {longest} characters.")))
}

async fn add_key(State(cloud): State<Lambda>, body: Bytes) -> Answer {
    let body = fields(&body, &["name", "public_key"])?;
    let name = text(&body, "name", 64)?.to_owned();
    let key = text(&body, "public_key", 4096)?.to_owned();
    let mut state = cloud.lock();
    if name.is_empty() || key.split_whitespace().count() < 2 {
        return Err(invalid("That is no key."));
    }
    if state.keys.iter().any(|(other, _)| *other == name) {
        return Err(refusal(400, "global/duplicate", "The name is in use."));
    }
    let answer = json!({"id": format!("id-of-{name}"), "name": name, "public_key": key});
    state.keys.push((name, key));
    Ok(data(&answer))
}

/// `quantity` is not in the description any more, and ignored: dstack 0.22.5 sends it.
const LAUNCH_FIELDS: &[&str] = &[
    "region_name",
    "instance_type_name",
    "ssh_key_names",
    "file_system_names",
    "file_system_mounts",
    "hostname",
    "name",
    "image",
    "user_data",
    "tags",
    "firewall_rulesets",
    "quantity",
];

async fn launch(State(cloud): State<Lambda>, body: Bytes) -> Answer {
    if !is_due(&mut cloud.lock().last_launch, cloud.0.times.launch_interval) {
        return Err(refusal(429, "global/too-many-requests", "Slow down."));
    }
    let body = fields(&body, LAUNCH_FIELDS)?;
    let (region, size) = (
        text(&body, "region_name", 64)?,
        text(&body, "instance_type_name", 64)?,
    );
    let name = match body.get("name") {
        Some(_) => Some(text(&body, "name", 64)?.to_owned()),
        None => None,
    };
    let user_data = match body.get("user_data") {
        Some(_) => text(&body, "user_data", 1 << 20)?,
        None => "",
    };
    let is_cloud_init = user_data.is_empty() || user_data.starts_with("#cloud-config\n");
    let keys = body["ssh_key_names"].as_array().map(Vec::as_slice);
    let Some([Value::String(key)]) = keys.filter(|_| is_cloud_init) else {
        return Err(invalid("Exactly one SSH key must be specified."));
    };
    let mut state = cloud.lock();
    if !state.keys.iter().any(|(name, _)| name == key) {
        return Err(missing("SSH key"));
    }
    let sizes = cloud.0.sizes.iter();
    let size = sizes.clone().find(|one| one.name == size && one.region == region);
    let size = size.ok_or_else(|| missing("Instance type"))?;
    if let Some((status, code)) = state.refusal {
        return Err(refusal(status, code, "It is refused."));
    }
    let address = (cloud.0.give_machine)(user_data);
    let Some(address) = address.filter(|_| !state.sold_out) else {
        let code = "instance-operations/launch/insufficient-capacity";
        return Err(refusal(
            400,
            code,
            "Not enough capacity to fulfill launch request.",
        ));
    };
    let id = format!("{:032x}", 0x0920_582c_7ff0_4139_u64 + state.machines.len() as u64);
    let now = Instant::now();
    let machine = Machine {
        id: id.clone(),
        name,
        key: key.clone(),
        size: size.clone(),
        user_data: user_data.to_owned(),
        address,
        made_at: now,
        listed_at: now + state.lag,
        ended_at: None,
        told: None,
    };
    let ledger = &cloud.0.ledger;
    ledger.made("machine", &id, machine.name.clone().unwrap_or_default());
    state.machines.push(machine);
    Ok(data(&json!({"instance_ids": [id]})))
}

async fn list(State(cloud): State<Lambda>) -> Answer {
    let (state, times) = (cloud.lock(), &cloud.0.times);
    let listed = state.machines.iter().filter(|machine| machine.is_listed(times));
    Ok(data(&listed.map(|machine| machine.to_json(times)).collect()))
}

const NO_INSTANCE: &str = "Specified instance does not exist.";

async fn one(State(cloud): State<Lambda>, Path(id): Path<String>) -> Answer {
    let (state, times) = (cloud.lock(), &cloud.0.times);
    let mut listed = state.machines.iter().filter(|machine| machine.is_listed(times));
    let found = listed.find(|machine| machine.id == id);
    let machine = found.ok_or_else(|| missing(NO_INSTANCE))?;
    Ok(data(&machine.to_json(times)))
}

async fn terminate(State(cloud): State<Lambda>, body: Bytes) -> Answer {
    let body = fields(&body, &["instance_ids"])?;
    let ids = body["instance_ids"].as_array();
    let ids = ids.ok_or_else(|| invalid("instance_ids is required."))?;
    let (mut state, times) = (cloud.lock(), &cloud.0.times);
    let mut terminated = Vec::new();
    for id in ids {
        let mut machines = state.machines.iter_mut();
        let is_it = |machine: &&mut Machine| {
            Some(machine.id.as_str()) == id.as_str() && machine.is_listed(times) && !machine.is_over(times)
        };
        let machine = machines.find(is_it).ok_or_else(|| missing(NO_INSTANCE))?;
        machine.ended_at.get_or_insert_with(Instant::now);
        terminated.push(machine.to_json(times));
    }
    Ok(data(&json!({"terminated_instances": terminated})))
}

impl Emulator for Lambda {
    fn router(&self) -> Router {
        let api = Router::new()
            .route("/instance-types", get(instance_types))
            .route("/ssh-keys", get(list_keys).post(add_key))
            .route("/instance-operations/launch", post(launch))
            .route("/instance-operations/terminate", post(terminate))
            .route("/instances", get(list))
            .route("/instances/{id}", get(one))
            .layer(from_fn_with_state(self.clone(), guard))
            .with_state(self.clone());
        Router::new().nest("/api/v1", api)
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
        let times = &self.0.times;
        for machine in &mut self.lock().machines {
            if !machine.is_over(times) {
                machine.told = Some("preempted");
            }
        }
        self.settle();
    }
}
