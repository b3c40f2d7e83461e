//! Plays Seeweb's ECS API v2 by its SDK (`ecsapi` 0.4.0), for tests.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::missing_panics_doc)] // tests

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use dstack_backend_kit::{Emulator, Ledger};
use serde_json::{Value, json};
use tokio::time::Instant;

/// How long things take.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Until a machine is made.
    pub starts: Duration,
    /// Until a machine that is deleted is gone.
    pub ends: Duration,
    /// How long it is shown as deleted after that.
    pub shown: Duration,
}

const USUAL: Times = Times {
    starts: Duration::from_secs(150),
    ends: Duration::from_secs(15),
    shown: Duration::from_secs(120),
};

/// A plan with GPUs: name, label, number of GPUs, price, regions that have it.
pub type Plan = (&'static str, &'static str, u64, f64, &'static [&'static str]);

/// The vendor's cloud, with one account.
#[derive(Debug, Clone)]
pub struct Seeweb(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    api_token: String,
    times: Times,
    plans: Vec<Plan>,
    ledger: Ledger,
    state: Mutex<Cloud>,
}

#[derive(Debug, Default)]
struct Cloud {
    machines: Vec<Machine>,
    keys: Vec<Value>,
    limit: Option<usize>,
    actions_are_unknown: bool,
    actions_fail: bool,
    sold_out: bool,
    lag: Duration,
}

#[derive(Debug)]
struct Machine {
    name: String,
    asked: Value,
    times: Times,
    made_at: Instant,
    listed_at: Instant,
    ended_at: Option<Instant>,
    has_failed: bool,
}

impl Machine {
    fn status(&self) -> &'static str {
        match self.ended_at {
            Some(at) if at.elapsed() >= self.times.ends => "Deleted",
            Some(_) => "Deleting",
            None if self.has_failed => "Fail",
            None if self.made_at.elapsed() >= self.times.starts => "Booted",
            None => "Booting",
        }
    }

    fn is_shown(&self) -> bool {
        let is_over = |at: Instant| at.elapsed() >= self.times.ends + self.times.shown;
        self.listed_at <= Instant::now() && !self.ended_at.is_some_and(is_over)
    }

    fn to_json(&self) -> Value {
        // It has an address before it is made.
        let has_address = self.made_at.elapsed() >= self.times.starts / 2;
        json!({
            "name": self.name, "ipv4": if has_address { "203.0.113.80" } else { "" }, "ipv6": "", "group": null,
            "plan": self.asked["plan"], "plan_size": {"core": "16", "ram": "122880", "disk": "1000", "gpu": "1",
                "gpu_label": "H100 80GB", "host_type": "ENTERPRISE"},
            "reserved_plans": [], "is_reserved": false, "reserved_until": "", "support": null,
            "location": self.asked["location"], "location_label": self.asked["location"],
            "notes": self.asked["notes"].as_str().unwrap_or_default(), "so": self.asked["image"],
            "so_label": "Ubuntu 22.04", "creation_date": "2026-10-01T12:00:00.000000+00:00", "deletion_date": null,
            "active_flag": self.status() == "Booted", "status": self.status(), "progress": 100, "api_version": "v4",
            "api_version_value": 4, "user": "admin", "virttype": "KVM",
        })
    }
}

impl Seeweb {
    /// A cloud whose account has this token, with machines of these plans.
    pub fn new(api_token: &str, plans: Vec<Plan>) -> Self {
        Self::with_times(api_token, plans, USUAL)
    }

    /// As [`Seeweb::new`], at another pace.
    pub fn with_times(api_token: &str, plans: Vec<Plan>, times: Times) -> Self {
        let laptop = json!({"id": 7, "key": "ssh-rsa AAAAB3Nza other", "label": "laptop",
            "created_at": "2026-01-01T10:00:00+00:00"});
        Self(Arc::new(Shared {
            api_token: api_token.to_owned(),
            times,
            plans,
            ledger: Ledger::default(),
            state: Mutex::new(Cloud {
                keys: vec![laptop],
                ..Cloud::default()
            }),
        }))
    }

    /// The account may have so many machines.
    pub fn limit(&self, limit: usize) {
        self.lock().limit = Some(limit);
    }

    /// Nothing is known of actions, as of those of long ago.
    pub fn forget_actions(&self) {
        self.lock().actions_are_unknown = true;
    }

    /// Machines are not made, though they were accepted.
    pub fn fail_actions(&self) {
        self.lock().actions_fail = true;
    }

    /// Labels of the account's public keys.
    pub fn labels(&self) -> Vec<String> {
        let state = self.lock();
        let labels = state
            .keys
            .iter()
            .map(|key| key["label"].as_str().unwrap().to_owned());
        labels.collect()
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
        for machine in &self.lock().machines {
            if machine.status() == "Deleted" {
                self.0.ledger.removed(&machine.name);
            }
        }
    }

    fn is_known(&self, headers: &HeaderMap) -> bool {
        headers
            .get("x-apitoken")
            .is_some_and(|token| token.as_bytes() == self.0.api_token.as_bytes())
    }
}

type Answer = Result<Value, (StatusCode, String)>;

/// What a call does, from what stands in its path and its body.
type Work = fn(&Seeweb, &str, &Value) -> Answer;

/// A call of the account.
async fn call(
    State((cloud, work)): State<(Seeweb, Work)>,
    name: Option<Path<String>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    cloud.settle();
    let name = name.map(|Path(name)| name).unwrap_or_default();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let answer = match cloud.is_known(&headers) {
        true => work(&cloud, &name, &body),
        false => Err((StatusCode::UNAUTHORIZED, "Unauthorized".to_owned())),
    };
    cloud.settle();
    match answer {
        Ok(mut answer) => {
            answer["status"] = "ok".into();
            axum::Json(answer).into_response()
        }
        Err((status, message)) => {
            (status, axum::Json(json!({"status": "error", "message": message}))).into_response()
        }
    }
}

fn refused(message: impl Into<String>) -> Answer {
    Err((StatusCode::BAD_REQUEST, message.into()))
}

fn regions(cloud: &Seeweb, _: &str, _: &Value) -> Answer {
    let mut names: Vec<&str> = cloud
        .0
        .plans
        .iter()
        .flat_map(|plan| plan.4.iter().copied())
        .collect();
    names.sort_unstable();
    names.dedup();
    Ok(json!({"regions": names.iter().enumerate().map(region).collect::<Vec<_>>()}))
}

fn region((at, name): (usize, &&str)) -> Value {
    json!({"id": at + 1, "location": name, "description": name})
}

/// What both lists of plans say of one. The price of a month is misspelt by the vendor.
fn plan((at, plan): (usize, &Plan)) -> Value {
    let (name, label, count, price, _) = plan;
    json!({"id": at + 100, "name": name, "cpu": (count * 16).to_string(), "ram": (count * 122_880).to_string(),
        "disk": "1000", "gpu": count.to_string(), "gpu_label": label, "hourly_price": price, "montly_price": price * 650.0,
        "windows": false, "host_type": "ENTERPRISE", "available": true, "default_image": null})
}

/// With one that has no GPUs.
fn plans(cloud: &Seeweb, _: &str, _: &Value) -> Answer {
    let with_regions = |(at, one): (usize, &Plan)| {
        let mut plan = plan((at, one));
        plan["available_regions"] = one.4.iter().enumerate().map(region).collect();
        plan
    };
    let mut all: Vec<Value> = cloud.0.plans.iter().enumerate().map(with_regions).collect();
    all.push(json!({"id": 1, "name": "ECS1", "cpu": "1", "ram": "1024", "disk": "20", "gpu": null, "gpu_label": null,
        "hourly_price": 0.017, "montly_price": 12, "windows": false, "host_type": "STANDARD", "available": true,
        "available_regions": [region((0, &"it-fr2"))]}));
    Ok(json!({"plans": all}))
}

/// Images that a plan may have: of the smaller ones, without UEFI.
fn images(count: u64) -> &'static [(&'static str, bool)] {
    match count {
        1 => &[
            ("ubuntu-2204", true),
            ("ubuntu-2204-uefi-nvidia-driver", false),
            ("ubuntu-2204-nvidia-driver", true),
        ],
        _ => &[
            ("ubuntu-2204-nvidia-driver", true),
            ("ubuntu-2204-uefi-nvidia-driver", true),
        ],
    }
}

fn availables(cloud: &Seeweb, _: &str, _: &Value) -> Answer {
    let sold_out = cloud.lock().sold_out;
    let with_hosts = |(at, one): (usize, &Plan)| {
        let mut plan = plan((at, one));
        let free = |region: &&str| json!({"region": region, "hosts": [{"host": "h1", "servers": []}]});
        let image = |(at, (name, is_active)): (usize, &(&str, bool))| {
            json!({"id": at, "name": name, "creation_date": "2026-01-01T10:00:00+00:00", "active_flag": is_active,
                "status": "CD", "uuid": name, "description": name, "notes": "", "public": true, "cloud_image": true,
                "so_base": "linux", "required_disk": 10, "api_version": "v4", "api_version_value": 4, "version": "1"})
        };
        plan["os_availables"] = images(one.2).iter().enumerate().map(image).collect();
        plan["region_availables"] = one.4.iter().filter(|_| !sold_out).map(free).collect();
        plan["runtimeclass"] = Value::Null;
        plan
    };
    let all: Vec<Value> = cloud.0.plans.iter().enumerate().map(with_hosts).collect();
    Ok(json!({"plans": all}))
}

fn list_keys(cloud: &Seeweb, _: &str, _: &Value) -> Answer {
    Ok(json!({"pubkeys": cloud.lock().keys}))
}

fn add_key(cloud: &Seeweb, _: &str, body: &Value) -> Answer {
    let (Some(key), Some(label)) = (body["key"].as_str(), body["label"].as_str()) else {
        return refused("key and label are required");
    };
    if !key.starts_with("ssh-") && !key.starts_with("ecdsa-") {
        return refused("key is no public key");
    }
    let mut state = cloud.lock();
    if state.keys.iter().any(|known| known["label"] == label) {
        return refused("label is already in use");
    }
    let id = state.keys.len() + 7;
    state
        .keys
        .push(json!({"id": id, "key": key, "label": label, "created_at": "2026-10-01T12:00:00+00:00"}));
    Ok(json!({}))
}

type IsRight = fn(&Value) -> bool;

/// Fields of a request for a machine, and their types.
const FIELDS: &[(&str, IsRight)] = &[
    ("plan", Value::is_string),
    ("image", Value::is_string),
    ("location", Value::is_string),
    ("notes", Value::is_string),
    ("password", Value::is_string),
    ("reserved_plan", Value::is_string),
    ("support", Value::is_string),
    ("group", Value::is_string),
    ("user_customize", |value| value.is_string() || value.is_i64()),
    ("user_customize_env", Value::is_string),
    ("ssh_key", Value::is_string),
    ("networks", Value::is_array),
    ("isolate_from", Value::is_array),
];

fn create(cloud: &Seeweb, _: &str, body: &Value) -> Answer {
    let Some(fields) = body.as_object() else {
        return refused("a body is required");
    };
    for (name, value) in fields {
        let known = FIELDS.iter().find(|(known, _)| known == name);
        if !known.is_some_and(|(_, is_right)| is_right(value)) {
            return refused(format!("{name} is unknown, or of the wrong type"));
        }
    }
    let field = |name: &str| body[name].as_str();
    let (Some(plan), Some(image), Some(location)) = (field("plan"), field("image"), field("location")) else {
        return refused("plan, image and location are required");
    };
    let Some(known) = cloud.0.plans.iter().find(|known| known.0 == plan) else {
        return refused(format!("plan {plan} is unknown"));
    };
    if !images(known.2).contains(&(image, true)) {
        return refused(format!("image {image} is not for plan {plan}"));
    }
    let mut state = cloud.lock();
    let is_labeled = |label: &str| state.keys.iter().any(|key| key["label"] == label);
    if field("ssh_key").is_some_and(|label| !is_labeled(label)) {
        return refused("ssh_key is unknown");
    }
    if !known.4.contains(&location) {
        return refused(format!(
            "Plan {plan} is not available in location {location}: lack of resources"
        ));
    }
    if state.sold_out {
        // Errors may come with this status.
        return Err((
            StatusCode::OK,
            format!("Plan {plan} is not activatable in location {location}"),
        ));
    }
    let alive = state.machines.iter().filter(|machine| machine.ended_at.is_none());
    if state.limit.is_some_and(|limit| alive.count() >= limit) {
        return refused("Server limit reached");
    }
    let now = Instant::now();
    let machine = Machine {
        name: format!("ec2{:05}", state.machines.len() + 16),
        asked: body.clone(),
        times: cloud.0.times,
        made_at: now,
        listed_at: now + state.lag,
        ended_at: None,
        has_failed: false,
    };
    cloud
        .0
        .ledger
        .made("machine", &*machine.name, field("notes").unwrap_or_default());
    let action = state.machines.len() + FIRST_ACTION;
    let server = machine.to_json();
    state.machines.push(machine);
    Ok(json!({"action_id": action, "server": server}))
}

/// That of the first machine's making.
const FIRST_ACTION: usize = 38;

fn list(cloud: &Seeweb, _: &str, _: &Value) -> Answer {
    let state = cloud.lock();
    let shown = state.machines.iter().filter(|machine| machine.is_shown());
    let all: Vec<Value> = shown.map(Machine::to_json).collect();
    Ok(json!({"count": all.len(), "server": all}))
}

fn not_found(what: &str) -> Answer {
    Err((StatusCode::NOT_FOUND, format!("{what} not found")))
}

fn show(cloud: &Seeweb, name: &str, _: &Value) -> Answer {
    let state = cloud.lock();
    let mut shown = state.machines.iter().filter(|machine| machine.is_shown());
    match shown.find(|machine| machine.name == name) {
        Some(machine) => Ok(json!({"server": machine.to_json()})),
        None => not_found("Server"),
    }
}

fn action(id: usize, status: &str, kind: &str, resource: &str) -> Value {
    json!({"action": {"id": id, "status": status, "user": "admin", "created_at": "2026-10-01T12:00:00.539503+00:00",
        "started_at": "2026-10-01T12:00:00.534100+00:00", "completed_at": null, "resource": resource,
        "resource_type": "ECS", "type": kind, "progress": 40}})
}

fn end(cloud: &Seeweb, name: &str, _: &Value) -> Answer {
    let mut state = cloud.lock();
    let mut shown = state.machines.iter_mut().filter(|machine| machine.is_shown());
    match shown.find(|machine| machine.name == name) {
        None => not_found("Server"),
        Some(machine) if machine.ended_at.is_some() => refused("Server is being deleted"),
        Some(machine) => {
            machine.ended_at = Some(Instant::now());
            Ok(action(1, "in-progress", "delete_server", name))
        }
    }
}

/// The making of a machine.
fn show_action(cloud: &Seeweb, id: &str, _: &Value) -> Answer {
    let state = cloud.lock();
    let at = id
        .parse::<usize>()
        .ok()
        .and_then(|id| id.checked_sub(FIRST_ACTION));
    let machine = at.and_then(|at| state.machines.get(at));
    let Some(machine) =
        machine.filter(|machine| machine.listed_at <= Instant::now() && !state.actions_are_unknown)
    else {
        return not_found("Action");
    };
    let status = match machine.status() {
        _ if state.actions_fail => "failed",
        "Booting" => "in-progress",
        "Fail" => "failed",
        _ => "completed",
    };
    Ok(action(
        id.parse().unwrap(),
        status,
        "create_server",
        &machine.name,
    ))
}

impl Emulator for Seeweb {
    fn router(&self) -> Router {
        let of = |work: Work| (self.clone(), work);
        Router::new()
            .route("/ecs/v2/regions", get(call).with_state(of(regions)))
            .route("/ecs/v2/plans", get(call).with_state(of(plans)))
            .route("/ecs/v2/plans/availables", get(call).with_state(of(availables)))
            .route("/ecs/v2/sshkeys", get(call).with_state(of(list_keys)))
            .route("/ecs/v2/sshkeys", post(call).with_state(of(add_key)))
            .route("/ecs/v2/servers", get(call).with_state(of(list)))
            .route("/ecs/v2/servers", post(call).with_state(of(create)))
            .route("/ecs/v2/servers/{name}", get(call).with_state(of(show)))
            .route("/ecs/v2/servers/{name}", delete(call).with_state(of(end)))
            .route("/ecs/v2/actions/{name}", get(call).with_state(of(show_action)))
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
        for machine in &mut self.lock().machines {
            machine.has_failed |= machine.ended_at.is_none();
        }
    }
}
