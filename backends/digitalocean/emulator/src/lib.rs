//! Plays DigitalOcean, and AMD Developer Cloud, by the API description (OpenAPI v2 of 2026-08), for tests.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::missing_panics_doc)] // tests

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use dstack_backend_kit::{Emulator, Ledger};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

/// How long things take.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Until a machine is active.
    pub starts: Duration,
    /// Until a machine that is deleted is gone.
    pub ends: Duration,
}

const USUAL: Times = Times {
    starts: Duration::from_secs(45),
    ends: Duration::from_secs(10),
};

/// The most on a page, by the description.
const LARGEST_PAGE: usize = 200;

const USUAL_PAGE: usize = 20;

const LONGEST_USER_DATA: usize = 64 * 1024;

/// Machines that a new account may have.
const USUAL_LIMIT: usize = 25;

const IMAGES: &[&str] = &[
    "ubuntu-24-04-x64",
    "gpu-h100x1-base",
    "gpu-h100x8-base",
    "gpu-amd-base",
];

/// The project that the account has besides its default.
pub const PROJECT: &str = "my-web-api";

/// The vendor's cloud, with one account.
#[derive(Debug, Clone)]
pub struct DigitalOcean(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    api_key: String,
    times: Times,
    largest_page: usize,
    sizes: Vec<Value>,
    ledger: Ledger,
    state: Mutex<Cloud>,
}

#[derive(Debug)]
struct Cloud {
    machines: Vec<Machine>,
    keys: Vec<Value>,
    limit: usize,
    sold_out: bool,
    lag: Duration,
}

#[derive(Debug)]
struct Machine {
    id: u64,
    asked: Value,
    size: Value,
    times: Times,
    made_at: Instant,
    listed_at: Instant,
    ended_at: Option<Instant>,
    is_off: bool,
}

impl Machine {
    fn is_gone(&self) -> bool {
        self.ended_at.is_some_and(|at| at.elapsed() >= self.times.ends)
    }

    fn is_listed(&self) -> bool {
        self.listed_at <= Instant::now() && !self.is_gone()
    }

    fn status(&self) -> &'static str {
        match self.made_at.elapsed() >= self.times.starts {
            _ if self.is_off => "off",
            true => "active",
            false => "new",
        }
    }

    /// Something is being done to it.
    fn is_locked(&self) -> bool {
        self.status() == "new" || self.ended_at.is_some()
    }

    fn has_gpus(&self) -> bool {
        self.size["gpu_info"].is_object()
    }

    fn to_json(&self) -> Value {
        let network = |kind: &str, address: &str| json!({"ip_address": address, "netmask": "255.255.240.0", "gateway": "192.0.2.1", "type": kind});
        let networks = match self.status() {
            "new" => vec![],
            _ => vec![network("private", "10.137.0.2"), network("public", "192.0.2.41")],
        };
        let region = &self.asked["region"];
        json!({
            "id": self.id, "name": self.asked["name"], "memory": self.size["memory"], "vcpus": self.size["vcpus"],
            "disk": self.size["disk"], "disk_info": self.size["disk_info"], "locked": self.is_locked(),
            "status": self.status(), "kernel": null, "created_at": "2026-10-01T12:00:00Z", "features": ["droplet_agent"],
            "backup_ids": [], "next_backup_window": null, "snapshot_ids": [], "volume_ids": [], "tags": [],
            "image": {"id": 63_663_980, "name": self.asked["image"], "distribution": "Ubuntu", "slug": self.asked["image"],
                "public": true, "regions": [region], "created_at": "2026-05-15T05:47:50Z", "status": "available",
                "min_disk_size": 20, "type": "snapshot", "size_gigabytes": 2.5, "description": "", "tags": [],
                "error_message": ""},
            "size": self.size, "size_slug": self.size["slug"], "networks": {"v4": networks, "v6": []},
            "region": {"name": region, "slug": region, "features": ["backups"], "available": true,
                "sizes": [self.size["slug"]]},
            "vpc_uuid": "760e09ef-dc84-11e8-981e-3cfdfeaae000",
        })
    }
}

/// A size as the API describes it; `gpus`: model, number, GiB of all.
pub fn size(slug: &str, shape: (u64, u64, f64), gpus: Option<(&str, u64, u64)>, regions: &[&str]) -> Value {
    let (cpus, gib, price) = shape;
    let amount = |amount: u64| json!({"amount": amount, "unit": "gib"});
    let mut size = json!({
        "slug": slug, "memory": gib * 1024, "vcpus": cpus, "disk": 160, "transfer": 4.0, "price_hourly": price,
        "price_monthly": price * 672.0, "regions": regions, "available": true, "description": "Basic",
        "disk_info": [{"type": "local", "size": amount(160)}],
    });
    if let Some((model, count, memory)) = gpus {
        size["gpu_info"] = json!({"count": count, "vram": amount(memory), "model": model});
        size["disk_info"] =
            json!([{"type": "boot", "size": amount(720)}, {"type": "scratch", "size": amount(5120)}]);
    }
    size
}

impl DigitalOcean {
    /// A cloud whose account has this key, with machines of these sizes.
    pub fn new(api_key: &str, sizes: Vec<Value>) -> Self {
        Self::with(api_key, sizes, USUAL, LARGEST_PAGE)
    }

    /// As [`DigitalOcean::new`], with times, and with lists whose pages have so many entries at most.
    pub fn with(api_key: &str, sizes: Vec<Value>, times: Times, largest_page: usize) -> Self {
        let state = Cloud {
            machines: Vec::new(),
            keys: Vec::new(),
            limit: USUAL_LIMIT,
            sold_out: false,
            lag: Duration::ZERO,
        };
        let cloud = Self(Arc::new(Shared {
            api_key: api_key.to_owned(),
            times,
            largest_page,
            sizes,
            ledger: Ledger::default(),
            state: Mutex::new(state),
        }));
        for owner in ["alice", "bob", "carol"] {
            let key = format!("ssh-ed25519 AAAAC3Nza{owner} {owner}");
            cloud
                .lock()
                .keys
                .push(account_key(owner.len() as u64, owner, &key));
        }
        cloud
    }

    /// How many machines the account may have.
    pub fn limit(&self, limit: usize) {
        self.lock().limit = limit;
    }

    /// Public keys of the account.
    pub fn keys(&self) -> Vec<String> {
        let state = self.lock();
        let keys = state.keys.iter();
        keys.map(|key| key["public_key"].as_str().unwrap().to_owned())
            .collect()
    }

    /// What machines were asked for, the first first.
    pub fn asked(&self) -> Vec<Value> {
        let state = self.lock();
        state
            .machines
            .iter()
            .map(|machine| machine.asked.clone())
            .collect()
    }

    /// Somebody deletes all machines.
    pub fn delete_all(&self) {
        for machine in &mut self.lock().machines {
            machine.ended_at = machine.ended_at.or_else(|| Some(Instant::now()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Cloud> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is over costs nothing any more.
    fn settle(&self) {
        for machine in self.lock().machines.iter().filter(|machine| machine.is_gone()) {
            self.0.ledger.removed(&machine.id.to_string());
        }
    }

    fn is_known(&self, headers: &HeaderMap) -> bool {
        let expected = format!("Bearer {}", self.0.api_key);
        headers
            .get("authorization")
            .is_some_and(|value| value.as_bytes() == expected.as_bytes())
    }
}

fn account_key(id: u64, name: &str, public_key: &str) -> Value {
    json!({"id": id, "fingerprint": format!("3b:16:bf:e4:8b:00:8b:b8:59:8c:a9:d3:f0:19:45:{id:02x}"),
        "public_key": public_key, "name": name})
}

type Answer = Result<(StatusCode, Value), (StatusCode, String)>;

/// What came with a request.
struct Ask {
    /// What stands in the path after the collection.
    id: String,
    query: BTreeMap<String, String>,
    body: Value,
}

/// What a call does.
type Work = fn(&DigitalOcean, &Ask) -> Answer;

/// A call of the account.
async fn call(
    State((cloud, work)): State<(DigitalOcean, Work)>,
    id: Option<Path<String>>,
    Query(query): Query<BTreeMap<String, String>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    cloud.settle();
    let ask = Ask {
        id: id.map(|Path(id)| id).unwrap_or_default(),
        query,
        body: serde_json::from_slice(&body).unwrap_or_default(),
    };
    let answer = match cloud.is_known(&headers) {
        true => work(&cloud, &ask),
        false => Err((StatusCode::UNAUTHORIZED, "Unable to authenticate you.".to_owned())),
    };
    cloud.settle();
    match answer {
        Ok((status, Value::Null)) => status.into_response(),
        Ok((status, body)) => (status, axum::Json(body)).into_response(),
        Err((status, message)) => {
            let id = status
                .canonical_reason()
                .unwrap()
                .to_lowercase()
                .replace(' ', "_");
            let body =
                json!({"id": id, "message": message, "request_id": "4d9d8375-3c56-4925-a3e7-eb137fed17e9"});
            (status, axum::Json(body)).into_response()
        }
    }
}

fn refused(message: &str) -> Answer {
    Err((StatusCode::UNPROCESSABLE_ENTITY, message.to_owned()))
}

fn not_found() -> Answer {
    let text = "The resource you were accessing could not be found.";
    Err((StatusCode::NOT_FOUND, text.to_owned()))
}

fn account(cloud: &DigitalOcean, _: &Ask) -> Answer {
    let limit = cloud.lock().limit;
    let account = json!({"droplet_limit": limit, "floating_ip_limit": 5, "email": "sammy@digitalocean.com",
        "name": "Sammy the Shark", "uuid": "b6fr89dbf6d9156cace5f3c78dc9851d957381ef", "email_verified": true,
        "status": "active", "status_message": " "});
    Ok((StatusCode::OK, json!({"account": account})))
}

/// A page of a list: `per_page` is cut to the largest that there is, as the vendor does.
fn page(cloud: &DigitalOcean, ask: &Ask, field: &str, all: &[Value]) -> Answer {
    let number = |name: &str, usual: usize| match ask.query.get(name) {
        None => Some(usual),
        Some(text) => text.parse().ok().filter(|number| *number > 0),
    };
    let (Some(size), Some(at)) = (number("per_page", USUAL_PAGE), number("page", 1)) else {
        return refused("page and per_page are numbers from 1 on");
    };
    let size = size.min(cloud.0.largest_page);
    let entries: Vec<&Value> = all.iter().skip((at - 1) * size).take(size).collect();
    let mut pages = Map::new();
    if at * size < all.len() {
        let next = format!(
            "https://api.digitalocean.com/v2/{field}?page={}&per_page={size}",
            at + 1
        );
        pages.insert("next".to_owned(), next.into());
    }
    let links = if pages.is_empty() {
        json!({})
    } else {
        json!({"pages": pages})
    };
    Ok((
        StatusCode::OK,
        json!({field: entries, "links": links, "meta": {"total": all.len()}}),
    ))
}

fn projects(cloud: &DigitalOcean, ask: &Ask) -> Answer {
    let project = |id: &str, name: &str, is_default: bool| {
        json!({"id": id, "owner_uuid": "99525febec065ca37b2ffe4f852fd2b2581895e7", "owner_id": 258_992, "name": name,
            "description": name, "purpose": "Service or API", "environment": "Production",
            "created_at": "2018-09-27T20:10:35Z", "updated_at": "2018-09-27T20:10:35Z", "is_default": is_default})
    };
    let all = [
        project("8d3c1e6a-7d4e-11ee-8b12-2b1c2a3d4e5f", "first", true),
        project(PROJECT_ID, PROJECT, false),
    ];
    page(cloud, ask, "projects", &all)
}

const PROJECT_ID: &str = "4e1bfbc3-dc3e-41f2-a18f-1b4d7ba71679";

fn sizes(cloud: &DigitalOcean, ask: &Ask) -> Answer {
    page(cloud, ask, "sizes", &cloud.0.sizes)
}

fn list_keys(cloud: &DigitalOcean, ask: &Ask) -> Answer {
    let keys = cloud.lock().keys.clone();
    page(cloud, ask, "ssh_keys", &keys)
}

fn add_key(cloud: &DigitalOcean, ask: &Ask) -> Answer {
    let (Some(name), Some(key)) = (ask.body["name"].as_str(), ask.body["public_key"].as_str()) else {
        return refused("name and public_key are required");
    };
    if let Some(field) = unknown_field(&ask.body, &["name", "public_key"]) {
        return refused(&format!("{field} is no field of a key"));
    }
    let words: Vec<&str> = key.split_whitespace().collect();
    if words.len() < 2 || !words[0].starts_with("ssh-") && !words[0].starts_with("ecdsa-") {
        return refused("Key invalid, key should be of the format `type key [comment]`");
    }
    let mut state = cloud.lock();
    let is_same = |known: &Value| {
        let known = known["public_key"].as_str().unwrap();
        known.split_whitespace().take(2).eq(words.iter().take(2).copied())
    };
    if state.keys.iter().any(is_same) {
        return refused("SSH Key is already in use on your account");
    }
    let added = account_key(512_190 + state.keys.len() as u64, name, key);
    state.keys.push(added.clone());
    Ok((StatusCode::CREATED, json!({"ssh_key": added})))
}

fn unknown_field<'a>(body: &'a Value, known: &[&str]) -> Option<&'a str> {
    let mut fields = body.as_object()?.keys().map(String::as_str);
    fields.find(|field| !known.contains(field))
}

fn list(cloud: &DigitalOcean, ask: &Ask) -> Answer {
    let query = |name: &str| ask.query.get(name).map(String::as_str);
    if query("tag_name").is_some() && (query("name").is_some() || query("type").is_some()) {
        return refused("tag_name can not be combined with name or type");
    }
    let has_gpus = match query("type") {
        None | Some("droplets") => false,
        Some("gpus") => true,
        Some(_) => return refused("type is droplets or gpus"),
    };
    let is_named = |machine: &Machine| {
        query("name").is_none_or(|name| machine.asked["name"].as_str().unwrap().eq_ignore_ascii_case(name))
    };
    let state = cloud.lock();
    let machines = state.machines.iter().filter(|machine| machine.is_listed());
    let wanted = machines.filter(|machine| machine.has_gpus() == has_gpus && is_named(machine));
    let all: Vec<Value> = wanted.map(Machine::to_json).collect();
    drop(state);
    page(cloud, ask, "droplets", &all)
}

type IsRight = fn(&Value) -> bool;

/// Fields of a request for one machine, and their types.
const FIELDS: &[(&str, IsRight)] = &[
    ("name", Value::is_string),
    ("region", Value::is_string),
    ("size", Value::is_string),
    ("image", |value| value.is_string() || value.is_u64()),
    ("ssh_keys", Value::is_array),
    ("backups", Value::is_boolean),
    ("backup_policy", Value::is_object),
    ("ipv6", Value::is_boolean),
    ("monitoring", Value::is_boolean),
    ("tags", |value| value.is_array() || value.is_null()),
    ("user_data", Value::is_string),
    ("volumes", Value::is_array),
    ("vpc_uuid", Value::is_string),
    ("with_droplet_agent", Value::is_boolean),
    ("public_networking", Value::is_boolean),
    // Not in the description; dstack 0.22.5 sends it.
    ("project_id", Value::is_string),
];

/// Why what is asked for is refused, before it is asked whether it is to be had.
fn wrong(cloud: &DigitalOcean, body: &Value) -> Option<String> {
    let names: Vec<&str> = FIELDS.iter().map(|(name, _)| *name).collect();
    if let Some(field) = unknown_field(body, &names) {
        return Some(format!("{field} is no field of a Droplet"));
    }
    for (field, is_right) in FIELDS {
        if body.get(field).is_some_and(|value| !is_right(value)) {
            return Some(format!("{field} has the wrong type"));
        }
    }
    let (Some(name), Some(image), true) = (
        body["name"].as_str(),
        body["image"].as_str(),
        body["size"].is_string(),
    ) else {
        return Some("name, size and image are required".to_owned());
    };
    let may_stand = |letter: char| letter.is_ascii_alphanumeric() || ".-".contains(letter);
    let last = name
        .chars()
        .last()
        .is_some_and(|last| last.is_ascii_alphanumeric());
    if !last || name.len() > 255 || !name.chars().all(may_stand) {
        return Some("Only valid hostname characters are allowed. (a-z, A-Z, 0-9, . and -)".to_owned());
    }
    if !IMAGES.contains(&image) {
        return Some("You specified an invalid image for Droplet creation.".to_owned());
    }
    if body["user_data"].as_str().unwrap_or_default().len() > LONGEST_USER_DATA {
        return Some("user_data may not exceed 64 KiB".to_owned());
    }
    if body.get("project_id").is_some_and(|id| id != PROJECT_ID) {
        return Some("project_id is invalid".to_owned());
    }
    let state = cloud.lock();
    let keys = body["ssh_keys"].as_array().cloned().unwrap_or_default();
    let is_key = |key: &Value| {
        state
            .keys
            .iter()
            .any(|known| known["id"] == *key || known["fingerprint"] == *key)
    };
    let strange = keys.iter().find(|key| !is_key(key))?;
    Some(format!(
        "{strange} are invalid key identifiers for Droplet creation."
    ))
}

fn create(cloud: &DigitalOcean, ask: &Ask) -> Answer {
    if let Some(message) = wrong(cloud, &ask.body) {
        return refused(&message);
    }
    let asked = &ask.body;
    let mut state = cloud.lock();
    let size = cloud.0.sizes.iter().find(|size| size["slug"] == asked["size"]);
    let Some(size) = size else {
        return refused("You specified an invalid size for Droplet creation.");
    };
    let model = size["gpu_info"]["model"].as_str().unwrap_or_default();
    let image = asked["image"].as_str().unwrap();
    if model.starts_with("amd") != image.starts_with("gpu-amd")
        || model.starts_with("nvidia") != image.starts_with("gpu-h100")
    {
        return refused("The image you specified is not compatible with the size.");
    }
    let alive = state.machines.iter().filter(|machine| !machine.is_gone());
    if alive.count() >= state.limit {
        return refused("creating this/these droplet(s) will exceed your droplet limit");
    }
    if state.sold_out || !size["regions"].as_array().unwrap().contains(&asked["region"]) {
        return refused("Size is not available in this region.");
    }
    let id = 3_164_494 + state.machines.len() as u64;
    let now = Instant::now();
    let machine = Machine {
        id,
        asked: asked.clone(),
        size: size.clone(),
        times: cloud.0.times,
        made_at: now,
        listed_at: now + state.lag,
        ended_at: None,
        is_off: false,
    };
    let name = asked["name"].as_str().unwrap();
    cloud.0.ledger.made("machine", id.to_string(), name);
    let href = "https://api.digitalocean.com/v2/actions/7515";
    let made = json!({"droplet": machine.to_json(), "links": {"actions": [{"id": 7515, "rel": "create", "href": href}]}});
    state.machines.push(machine);
    Ok((StatusCode::ACCEPTED, made))
}

fn show(cloud: &DigitalOcean, ask: &Ask) -> Answer {
    let state = cloud.lock();
    let mut machines = state.machines.iter().filter(|machine| machine.is_listed());
    match machines.find(|machine| machine.id.to_string() == ask.id) {
        Some(machine) => Ok((StatusCode::OK, json!({"droplet": machine.to_json()}))),
        None => not_found(),
    }
}

fn delete(cloud: &DigitalOcean, ask: &Ask) -> Answer {
    let mut state = cloud.lock();
    let mut machines = state.machines.iter_mut().filter(|machine| machine.is_listed());
    let Some(machine) = machines.find(|machine| machine.id.to_string() == ask.id) else {
        return not_found();
    };
    if machine.is_locked() {
        return refused("Droplet already has a pending event.");
    }
    machine.ended_at = Some(Instant::now());
    Ok((StatusCode::NO_CONTENT, Value::Null))
}

impl Emulator for DigitalOcean {
    fn router(&self) -> Router {
        let of = |work: Work| (self.clone(), work);
        Router::new()
            .route("/v2/account", get(call).with_state(of(account)))
            .route("/v2/projects", get(call).with_state(of(projects)))
            .route("/v2/sizes", get(call).with_state(of(sizes)))
            .route("/v2/account/keys", get(call).with_state(of(list_keys)))
            .route(
                "/v2/account/keys",
                axum::routing::post(call).with_state(of(add_key)),
            )
            .route("/v2/droplets", get(call).with_state(of(list)))
            .route("/v2/droplets", axum::routing::post(call).with_state(of(create)))
            .route("/v2/droplets/{id}", get(call).with_state(of(show)))
            .route(
                "/v2/droplets/{id}",
                axum::routing::delete(call).with_state(of(delete)),
            )
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

    /// A machine that is off costs as much as before.
    fn lose_all(&self) {
        for machine in &mut self.lock().machines {
            machine.is_off = true;
        }
    }
}
