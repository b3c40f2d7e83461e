//! Plays JarvisLabs as the vendor's SDK (`jarvislabs` 0.2.19) and dstack 0.22.5 use it, for tests: there is no description by the vendor. All
//! its hosts answer alike.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::missing_panics_doc)] // tests

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use dstack_backend_kit::{Emulator, Ledger};
use serde_json::{Value, json};
use tokio::time::Instant;

/// How long things take.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Until a machine is listed.
    pub creates: Duration,
    /// Until a machine that is listed runs.
    pub starts: Duration,
    /// Until a machine that is destroyed is gone.
    pub ends: Duration,
}

/// Those of the vendor.
pub const USUAL: Times = Times {
    creates: Duration::from_secs(12),
    starts: Duration::from_secs(40),
    ends: Duration::from_secs(15),
};

/// Keys that an account may have.
const MOST_KEYS: usize = 10;

/// A type of GPUs in a region, of which eight are free; or machines without, of 4 CPUs and 16 GB.
#[derive(Debug, Clone)]
pub struct Size {
    /// As the vendor calls it; `None`: machines without GPUs.
    pub gpu_type: Option<&'static str>,
    /// Region that has it.
    pub region: &'static str,
    /// Dollars an hour.
    pub price: f64,
}

/// The vendor's cloud, with one account.
#[derive(Debug, Clone)]
pub struct JarvisLabs(Arc<Shared>);

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
    machines: Vec<Machine>,
    keys: Vec<Key>,
    keys_made: usize,
    made: u64,
    sold_out: bool,
    lag: Duration,
    /// Machines that are not listed yet cannot be destroyed, as if there were none.
    hides_unlisted: bool,
    /// Machines fail while they are created, or later.
    fails: Option<Failing>,
    /// Reads are answered with success that they have not succeeded.
    tells_nothing: bool,
}

/// When machines fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failing {
    /// They are never listed.
    BeforeListed,
    /// They are listed as failed.
    Listed,
}

#[derive(Debug)]
struct Key {
    id: usize,
    name: String,
    key: String,
}

#[derive(Debug)]
struct Machine {
    id: u64,
    name: String,
    /// What was asked for.
    body: Value,
    is_cpu: bool,
    made_at: Instant,
    listed_at: Instant,
    ended_at: Option<Instant>,
}

impl Machine {
    fn is_gone(&self, times: &Times) -> bool {
        self.ended_at.is_some_and(|at| at.elapsed() >= times.ends)
    }

    fn is_known(&self, state: &Cloud, times: &Times) -> bool {
        let is_listed = self.listed_at <= Instant::now() && state.fails != Some(Failing::BeforeListed);
        is_listed && !self.is_gone(times)
    }

    fn to_json(&self, state: &Cloud, times: &Times) -> Value {
        let is_up = self.listed_at.elapsed() >= times.starts;
        let status = match self.ended_at {
            Some(_) => "Destroying",
            None if state.fails == Some(Failing::Listed) => "Failed",
            None if is_up => "Running",
            None => "Creating",
        };
        let region = self.body["region"].as_str().unwrap();
        let has_network = region != "europe-01";
        let mut instance = json!({
            "machine_id": self.id, "status": status, "template": "vm", "framework": "vm", "instance_name": self.name,
            "gpu_type": if self.is_cpu { json!("CPU") } else { self.body["gpu_type"].clone() },
            "num_gpus": self.body["num_gpus"], "region": region, "hdd": self.body["hdd"], "is_spot": false, "cost": 2.69,
            "public_ip": null, "private_ip": null, "vpc_id": null, "ssh_str": null,
        });
        if is_up {
            instance["public_ip"] = json!("192.0.2.61");
            instance["private_ip"] = json!(format!("10.20.0.{}", self.id % 250));
            instance["vpc_id"] = if has_network { json!("vpc-11") } else { Value::Null };
            instance["ssh_str"] = json!("ssh -o StrictHostKeyChecking=no ubuntu@192.0.2.61");
        }
        instance
    }
}

impl JarvisLabs {
    /// A cloud whose account has this key, with these sizes.
    pub fn new(api_key: &str, sizes: Vec<Size>) -> Self {
        Self::with_times(api_key, sizes, USUAL)
    }

    /// As [`JarvisLabs::new`], with another pace.
    pub fn with_times(api_key: &str, sizes: Vec<Size>, times: Times) -> Self {
        Self(Arc::new(Shared {
            api_key: api_key.to_owned(),
            times,
            sizes,
            ledger: Ledger::default(),
            state: Mutex::default(),
        }))
    }

    /// Machines fail from now on; `None`: they do not.
    pub fn fail(&self, fails: Option<Failing>) {
        self.lock().fails = fails;
    }

    /// Machines are not told of, with success.
    pub fn tell_nothing(&self, tells_nothing: bool) {
        self.lock().tells_nothing = tells_nothing;
    }

    /// Machines that are not listed yet cannot be destroyed, as if there were none; otherwise, as they are not ready.
    pub fn hide_unlisted(&self, hides: bool) {
        self.lock().hides_unlisted = hides;
    }

    /// Somebody registers a key; its id.
    pub fn add_key(&self, name: &str, key: &str) -> String {
        self.lock().add_key(name, key).to_string()
    }

    /// Names of the keys of the account.
    pub fn key_names(&self) -> Vec<String> {
        self.lock().keys.iter().map(|key| key.name.clone()).collect()
    }

    /// What the machines that are there were asked for with.
    pub fn bodies(&self) -> Vec<Value> {
        self.lock()
            .machines
            .iter()
            .map(|machine| machine.body.clone())
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Cloud> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is gone costs nothing any more.
    fn settle(&self) {
        let times = &self.0.times;
        let mut state = self.lock();
        for machine in state.machines.iter().filter(|machine| machine.is_gone(times)) {
            self.0.ledger.removed(&machine.id.to_string());
        }
        state.machines.retain(|machine| !machine.is_gone(times));
    }
}

impl Cloud {
    fn add_key(&mut self, name: &str, key: &str) -> usize {
        self.keys_made += 1;
        let id = 4710 + self.keys_made;
        self.keys.push(Key {
            id,
            name: name.to_owned(),
            key: key.to_owned(),
        });
        id
    }
}

type Answer = Result<Json<Value>, (StatusCode, Json<Value>)>;

fn refusal(status: u16, detail: &str) -> (StatusCode, Json<Value>) {
    (
        StatusCode::from_u16(status).unwrap(),
        Json(json!({"detail": detail})),
    )
}

fn ok(value: Value) -> Answer {
    Ok(Json(value))
}

async fn guard(
    State(cloud): State<JarvisLabs>,
    headers: HeaderMap,
    request: Request,
    next: Next,
) -> Response {
    let expected = format!("Bearer {}", cloud.0.api_key);
    let given = headers.get("authorization");
    if given.is_none_or(|given| given.as_bytes() != expected.as_bytes()) {
        return refusal(401, "Invalid authentication credentials").into_response();
    }
    cloud.settle();
    let answer = next.run(request).await;
    cloud.settle();
    answer
}

async fn user_info() -> Answer {
    ok(json!({"user_id": "dev@example.com", "name": "Dev", "country": "IN"}))
}

async fn server_meta(State(cloud): State<JarvisLabs>) -> Answer {
    let is_free = !cloud.lock().sold_out;
    let sizes = cloud.0.sizes.iter();
    let gpu = |size: &Size| {
        Some(
            json!({"gpu_type": size.gpu_type?, "region": size.region, "workload_type": "vm",
            "num_free_devices": "9", "effective_num_free_devices": if is_free { 8 } else { 0 }, "price_per_hour": size.price,
            "spot_price": null, "vram": "80", "arc": "Hopper", "cpus_per_gpu": 16, "ram_per_gpu": 200, "num_gpus": "8"}),
        )
    };
    let cpu = |size: &Size| json!({"vcpus": 4, "ram_gb": 16, "price": size.price, "available": is_free, "regions": {size.region: is_free}});
    let rows: Vec<Value> = sizes.clone().filter_map(gpu).collect();
    let combinations: Vec<Value> = sizes.filter(|size| size.gpu_type.is_none()).map(cpu).collect();
    ok(json!({"server_meta": rows, "cpu_meta": {"workload_type": "vm", "combinations": combinations}}))
}

async fn list_keys(State(cloud): State<JarvisLabs>) -> Answer {
    let key = |key: &Key| json!({"ssh_key": key.key, "key_name": key.name, "key_id": key.id.to_string(), "user_id": "dev@example.com"});
    ok(cloud.lock().keys.iter().map(key).collect())
}

/// The fields of a body, of which no others may be there, and these have to be.
fn fields(body: &[u8], known: &[&str], required: &[&str]) -> Result<Value, (StatusCode, Json<Value>)> {
    let unprocessable = |text: &str| {
        let detail = json!({"detail": [{"loc": ["body"], "msg": text}]});
        (StatusCode::UNPROCESSABLE_ENTITY, Json(detail))
    };
    let body: Value = serde_json::from_slice(body).map_err(|_| unprocessable("no JSON"))?;
    let fields = body.as_object().ok_or_else(|| unprocessable("no object"))?;
    if let Some(unknown) = fields.keys().find(|name| !known.contains(&name.as_str())) {
        return Err(unprocessable(&format!("unknown field {unknown}")));
    }
    match required.iter().find(|name| !fields.contains_key(**name)) {
        Some(missing) => Err(unprocessable(&format!("field {missing} is required"))),
        None => Ok(body),
    }
}

async fn add_key(State(cloud): State<JarvisLabs>, body: Bytes) -> Answer {
    let names = &["ssh_key", "key_name"];
    let body = fields(&body, names, names)?;
    let (key, name) = (body["ssh_key"].as_str(), body["key_name"].as_str());
    let (Some(key), Some(name)) = (key.filter(|key| key.contains(' ')), name) else {
        return Err(refusal(400, "Invalid SSH key"));
    };
    // Others may look for it meanwhile.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut state = cloud.lock();
    if state.keys.len() >= MOST_KEYS {
        return Err(refusal(400, "SSH key limit reached"));
    }
    state.add_key(name, key);
    ok(json!({"success": "true"}))
}

async fn delete_key(State(cloud): State<JarvisLabs>, Path(id): Path<String>) -> Answer {
    let mut state = cloud.lock();
    let at = state.keys.iter().position(|key| key.id.to_string() == id);
    state
        .keys
        .remove(at.ok_or_else(|| refusal(404, "SSH key not found"))?);
    ok(json!({"sucess": "true"}))
}

const GPU_FIELDS: &[&str] = &[
    "gpu_type",
    "num_gpus",
    "hdd",
    "region",
    "name",
    "is_spot",
    "duration",
    "disk_type",
    "http_ports",
    "script_id",
    "script_args",
    "fs_id",
    "arguments",
];

const CPU_FIELDS: &[&str] = &[
    "num_cpus",
    "vcpus",
    "ram_gb",
    "hdd",
    "region",
    "name",
    "duration",
    "disk_type",
];

async fn create_gpu(State(cloud): State<JarvisLabs>, body: Bytes) -> Answer {
    let body = fields(
        &body,
        GPU_FIELDS,
        &["gpu_type", "num_gpus", "hdd", "region", "name"],
    )?;
    let is_whole = body["num_gpus"]
        .as_u64()
        .is_some_and(|count| (1..=8).contains(&count))
        && body["is_spot"] == false;
    let of_type = |size: &Size| size.gpu_type.is_some() && size.gpu_type == body["gpu_type"].as_str();
    match is_whole {
        true => create(&cloud, &body, false, of_type),
        false => Err(refusal(400, "Invalid number of GPUs, or spot")),
    }
}

async fn create_cpu(State(cloud): State<JarvisLabs>, body: Bytes) -> Answer {
    let body = fields(&body, CPU_FIELDS, CPU_FIELDS)?;
    let is_whole = body["num_cpus"] == 1 && body["vcpus"] == 4 && body["ram_gb"] == 16;
    match is_whole {
        true => create(&cloud, &body, true, |size: &Size| size.gpu_type.is_none()),
        false => Err(refusal(400, "Invalid size")),
    }
}

fn create(cloud: &JarvisLabs, body: &Value, is_cpu: bool, fits: impl Fn(&Size) -> bool) -> Answer {
    let is_letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, ' ' | '_' | '-');
    let name = body["name"].as_str().unwrap_or_default();
    let is_whole = (1..=40).contains(&name.len())
        && name.chars().all(is_letter)
        && body["hdd"].as_u64().is_some_and(|disk| disk >= 100)
        && body["duration"] == "hour"
        && body["disk_type"] == "ssd";
    let mut state = cloud.lock();
    if !is_whole {
        return Err(refusal(400, "Invalid request"));
    }
    if state.keys.is_empty() {
        return Err(refusal(400, "VM instances require at least one SSH key"));
    }
    let is_there = |size: &Size| fits(size) && body["region"] == size.region;
    if state.sold_out || !cloud.0.sizes.iter().any(is_there) {
        // The vendor says it in both ways.
        return match is_cpu {
            true => Err(refusal(409, "CPU VM is out of stock")),
            false => {
                ok(json!({"success": false, "message": "Requested GPU is not available in this region"}))
            }
        };
    }
    state.made += 1;
    let id = 398_122 + state.made;
    let now = Instant::now();
    cloud.0.ledger.made("machine", id.to_string(), name);
    let listed_at = now + state.lag.max(cloud.0.times.creates);
    state.machines.push(Machine {
        id,
        name: name.to_owned(),
        body: body.clone(),
        is_cpu,
        made_at: now,
        listed_at,
        ended_at: None,
    });
    match is_cpu {
        true => ok(json!({"machine_id": id.to_string()})),
        false => ok(json!({"machine_id": id, "success": true})),
    }
}

const NOTHING: &str = "Something went wrong";

async fn list(State(cloud): State<JarvisLabs>) -> Answer {
    let (state, times) = (cloud.lock(), &cloud.0.times);
    if state.tells_nothing {
        return ok(json!({"success": "false", "message": NOTHING, "instances": []}));
    }
    let known = state
        .machines
        .iter()
        .filter(|machine| machine.is_known(&state, times));
    let instances: Vec<Value> = known.map(|machine| machine.to_json(&state, times)).collect();
    ok(json!({"success": "true", "instances": instances}))
}

async fn fetch(State(cloud): State<JarvisLabs>, Path(id): Path<String>) -> Answer {
    let (state, times) = (cloud.lock(), &cloud.0.times);
    if state.tells_nothing {
        return ok(json!({"success": false, "message": NOTHING}));
    }
    let mut known = state
        .machines
        .iter()
        .filter(|machine| machine.is_known(&state, times));
    let machine = known.find(|machine| machine.id.to_string() == id);
    let machine = machine.ok_or_else(|| refusal(404, "Instance not found"))?;
    ok(json!({"success": true, "instance": machine.to_json(&state, times)}))
}

type Asked = Query<HashMap<String, String>>;

fn asked_id(query: &HashMap<String, String>) -> &str {
    query.get("machine_id").map_or("", String::as_str)
}

async fn status(State(cloud): State<JarvisLabs>, Query(query): Asked) -> Answer {
    let state = cloud.lock();
    let mut machines = state.machines.iter();
    let found = machines.find(|machine| machine.id.to_string() == asked_id(&query));
    let is_young = |machine: &&Machine| machine.made_at.elapsed() < cloud.0.times.creates / 2;
    let machine = found.filter(|machine| !is_young(machine));
    let machine = machine.ok_or_else(|| refusal(404, "Not found"))?;
    let is_up = machine.listed_at.elapsed() >= cloud.0.times.starts;
    match state.fails {
        Some(_) => ok(json!({"status": "Failed", "error": "No capacity on node", "code": 507})),
        None if is_up => ok(json!({"status": "Running", "error": null, "code": null})),
        None => ok(json!({"status": "Creating", "error": null, "code": null})),
    }
}

fn destroy(cloud: &JarvisLabs, query: &HashMap<String, String>, is_right: fn(&Machine) -> bool) -> Answer {
    let mut state = cloud.lock();
    let (fails, hides_unlisted) = (state.fails.is_some(), state.hides_unlisted);
    let now = Instant::now();
    // Those that failed before they were listed can be destroyed all the same.
    let is_ready = |machine: &Machine| fails || machine.listed_at <= now;
    let is_it = |machine: &&mut Machine| {
        machine.id.to_string() == asked_id(query) && (!hides_unlisted || is_ready(machine))
    };
    let machine = state.machines.iter_mut().find(is_it);
    let machine = machine.ok_or_else(|| refusal(404, "Instance not found"))?;
    if !is_right(machine) {
        return ok(json!({"success": false, "message": "Not a machine of this kind"}));
    }
    if !is_ready(machine) {
        return match machine.is_cpu {
            true => Err(refusal(409, "Instance is being created")),
            false => ok(json!({"success": false, "message": "Instance is being created"})),
        };
    }
    machine.ended_at.get_or_insert(now);
    ok(json!({"success": true}))
}

async fn destroy_gpu(State(cloud): State<JarvisLabs>, Query(query): Asked) -> Answer {
    destroy(&cloud, &query, |machine| !machine.is_cpu)
}

async fn destroy_cpu(State(cloud): State<JarvisLabs>, Query(query): Asked) -> Answer {
    destroy(&cloud, &query, |machine| machine.is_cpu)
}

async fn destroy_other(State(cloud): State<JarvisLabs>, Query(query): Asked) -> Answer {
    destroy(&cloud, &query, |_| false)
}

impl Emulator for JarvisLabs {
    fn router(&self) -> Router {
        Router::new()
            .route("/users/user_info", get(user_info))
            .route("/misc/server_meta", get(server_meta))
            .route("/ssh/", get(list_keys).post(add_key))
            .route("/ssh/{id}", delete(delete_key))
            .route("/templates/vm/create", post(create_gpu))
            .route("/templates/vm/cpu/create", post(create_cpu))
            .route("/users/fetch", get(list))
            .route("/users/fetch/{id}", get(fetch))
            .route("/misc/status", get(status))
            .route("/templates/vm/destroy", post(destroy_gpu))
            .route("/templates/vm/cpu/destroy", post(destroy_cpu))
            .route("/misc/destroy", post(destroy_other))
            .layer(from_fn_with_state(self.clone(), guard))
            .with_state(self.clone())
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
        for machine in self.lock().machines.drain(..) {
            self.0.ledger.removed(&machine.id.to_string());
        }
    }
}
