//! Plays TensorDock's marketplace API v0 by its description and by the examples of its SDKs (`tensordock` 0.1.13), for tests.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::missing_panics_doc)] // tests

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use dstack_backend_kit::{Emulator, Ledger};
use serde_json::{Value, json};
use tokio::time::Instant;

/// A host: its id, country, GPUs (model and number), CPUs, GB of memory, and of disk.
#[derive(Debug, Clone, Copy)]
pub struct Host {
    /// Its id.
    pub id: &'static str,
    /// As people write it.
    pub country: &'static str,
    /// Model, number, GB of one.
    pub gpus: (&'static str, u64, u64),
    /// Number of CPUs, GB of memory, GB of disk.
    pub shape: (u64, u64, u64),
}

/// How long things take.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Until a machine runs.
    pub starts: Duration,
    /// Until a machine that is deleted is gone.
    pub ends: Duration,
}

const USUAL: Times = Times {
    starts: Duration::from_secs(40),
    ends: Duration::from_secs(10),
};

/// Ports of a host that may lead to machines.
const PORTS: std::ops::RangeInclusive<u64> = 20_001..=20_040;

const IMAGES: &[&str] = &["Ubuntu 20.04 LTS", "Ubuntu 22.04 LTS", "Windows 10"];

/// The vendor's cloud, with one account.
#[derive(Debug, Clone)]
pub struct TensorDock(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    api_key: String,
    api_token: String,
    times: Times,
    hosts: Vec<Host>,
    ledger: Ledger,
    state: Mutex<Cloud>,
}

#[derive(Debug)]
struct Cloud {
    machines: Vec<Machine>,
    balance: f64,
    as_described: bool,
    sold_out: bool,
    lag: Duration,
}

#[derive(Debug)]
struct Machine {
    id: String,
    asked: BTreeMap<String, String>,
    times: Times,
    made_at: Instant,
    listed_at: Instant,
    ended_at: Option<Instant>,
    is_stopped: bool,
}

impl Machine {
    fn number(&self, name: &str) -> u64 {
        self.asked[name].parse().unwrap()
    }

    fn port(&self) -> u64 {
        port(&self.asked["external_ports"]).unwrap()
    }

    fn is_gone(&self) -> bool {
        self.ended_at.is_some_and(|at| at.elapsed() >= self.times.ends)
    }

    fn is_listed(&self) -> bool {
        self.listed_at <= Instant::now() && !self.is_gone()
    }

    fn status(&self) -> &'static str {
        match self.ended_at {
            Some(_) => "Deleting",
            None if self.is_stopped => "StoppedDisassociated",
            None if self.made_at.elapsed() >= self.times.starts => "Running",
            None => "Deploying",
        }
    }

    /// As lists have it, with no address.
    fn to_json(&self) -> Value {
        json!({"cost": 0.238, "location": "edffaa9d-c4d3-46eb-bdf6-fad125dbeae7", "hostnode": self.asked["hostnode"],
            "name": self.asked["name"], "operating_system": self.asked["operating_system"],
            "port_forwards": {self.port().to_string(): "22"},
            "specs": {"gpu": {"amount": self.number("gpu_count"), "type": self.asked["gpu_model"]},
                "ram": self.number("ram"), "vcpus": self.number("vcpus")},
            "status": self.status(), "timestamp_creation": "Sat, 10 Dec 2022 21:38:19 GMT"})
    }
}

/// That of `{20003}`.
fn port(list: &str) -> Option<u64> {
    let inner = list.strip_prefix('{')?.strip_suffix('}')?;
    inner.split(", ").next()?.parse().ok()
}

impl TensorDock {
    /// A cloud whose account has this key and token, with these hosts.
    pub fn new(api_key: &str, api_token: &str, hosts: Vec<Host>) -> Self {
        Self::with_times(api_key, api_token, hosts, USUAL)
    }

    /// As [`TensorDock::new`], at another pace.
    pub fn with_times(api_key: &str, api_token: &str, hosts: Vec<Host>, times: Times) -> Self {
        Self(Arc::new(Shared {
            api_key: api_key.to_owned(),
            api_token: api_token.to_owned(),
            times,
            hosts,
            ledger: Ledger::default(),
            state: Mutex::new(Cloud {
                machines: Vec::new(),
                balance: 999.987,
                as_described: false,
                sold_out: false,
                lag: Duration::ZERO,
            }),
        }))
    }

    /// Answers have the form of the description, and not that of the SDK's examples.
    pub fn answer_as_described(&self) {
        self.lock().as_described = true;
    }

    /// Dollars that the account has.
    pub fn balance(&self, balance: f64) {
        self.lock().balance = balance;
    }

    /// What machines were asked for, the first first.
    pub fn asked(&self) -> Vec<BTreeMap<String, String>> {
        let state = self.lock();
        state
            .machines
            .iter()
            .map(|machine| machine.asked.clone())
            .collect()
    }

    /// The account has nothing left: its machines are deleted.
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
            self.0.ledger.removed(&machine.id);
        }
    }
}

impl Cloud {
    /// What is free of a host.
    fn hostnode(&self, host: &Host) -> Value {
        let machines = self.machines.iter().filter(|machine| !machine.is_gone());
        let there: Vec<&Machine> = machines
            .filter(|machine| machine.asked["hostnode"] == host.id)
            .collect();
        let free = |all: u64, name: &str| all - there.iter().map(|machine| machine.number(name)).sum::<u64>();
        let (model, count, vram) = host.gpus;
        let mut gpus = free(count, "gpu_count");
        if self.sold_out {
            gpus = 0;
        }
        let is_free = |port: &u64| there.iter().all(|machine| machine.port() != *port);
        let (cpus, memory, disk) = host.shape;
        json!({
            "location": {"city": "Winnipeg", "country": host.country, "dc": null,
                "id": "50cf200c-be1b-4983-a316-369d2eea10ec", "region": "Manitoba"},
            "networking": {"ports": PORTS.filter(is_free).collect::<Vec<_>>(), "receive": 1000, "send": 1000},
            "specs": {
                "cpu": {"amount": free(cpus, "vcpus"), "price": 0.003, "type": "AMD Ryzen 9 5950X"},
                "gpu": {model: {"amount": gpus, "price": 0.37, "vram": vram}},
                "ram": {"amount": free(memory, "ram"), "price": 0.002},
                "storage": {"amount": free(disk, "storage"), "price": 0.000_05},
            },
            "status": {"listed": true, "online": true, "uptime": 0.9999},
        })
    }
}

type Answer = Result<Value, String>;

type Fields = BTreeMap<String, String>;

/// What a call does.
type Work = fn(&TensorDock, &Fields) -> Answer;

/// A call of the account: all are forms.
async fn call(State((cloud, work)): State<(TensorDock, Work)>, headers: HeaderMap, body: Bytes) -> Response {
    cloud.settle();
    let is_form = headers
        .get("content-type")
        .is_some_and(|kind| kind == "application/x-www-form-urlencoded");
    if !is_form {
        return StatusCode::UNSUPPORTED_MEDIA_TYPE.into_response();
    }
    let fields: Fields = url::form_urlencoded::parse(&body).into_owned().collect();
    let is = |name: &str, value: &str| fields.get(name).is_some_and(|told| told == value);
    let is_known = is("api_key", &cloud.0.api_key) && is("api_token", &cloud.0.api_token);
    let answer = match is_known {
        true => work(&cloud, &fields),
        false => Err("Invalid authorization".to_owned()),
    };
    cloud.settle();
    respond(answer)
}

fn respond(answer: Answer) -> Response {
    let body = match answer {
        Ok(mut answer) => {
            answer["success"] = true.into();
            answer
        }
        Err(error) => json!({"success": false, "error": error}),
    };
    (StatusCode::OK, Json(body)).into_response()
}

/// Anybody may ask for these.
async fn hostnodes(State(cloud): State<TensorDock>) -> Response {
    cloud.settle();
    let state = cloud.lock();
    let all: BTreeMap<&str, Value> = cloud
        .0
        .hosts
        .iter()
        .map(|host| (host.id, state.hostnode(host)))
        .collect();
    respond(Ok(json!({"hostnodes": all})))
}

/// Under its id in the SDK's example, and as dstack 0.19 read it.
async fn hostnode(State(cloud): State<TensorDock>, Path(id): Path<String>) -> Response {
    cloud.settle();
    let host = cloud.0.hosts.iter().find(|host| host.id == id);
    let answer = host.ok_or_else(|| "Hostnode not found".to_owned());
    respond(answer.map(|host| {
        let node = cloud.lock().hostnode(host);
        json!({host.id: node.clone(), "hostnode": node})
    }))
}

fn test(_: &TensorDock, _: &Fields) -> Answer {
    Ok(json!({}))
}

fn list(cloud: &TensorDock, _: &Fields) -> Answer {
    let state = cloud.lock();
    let listed = state.machines.iter().filter(|machine| machine.is_listed());
    if state.as_described {
        let all = listed.map(|machine| {
            json!({"id": machine.id, "name": machine.asked["name"], "status": machine.status().to_lowercase(),
                "hostnode": machine.asked["hostnode"], "ip": "203.0.113.12",
                "port_forwards": {machine.port().to_string(): 22}, "rate_hourly": 0.41})
        });
        return Ok(json!({"virtualmachines": all.collect::<Vec<_>>()}));
    }
    let all: BTreeMap<&str, Value> = listed
        .map(|machine| (machine.id.as_str(), machine.to_json()))
        .collect();
    Ok(json!({"virtualmachines": all}))
}

fn show(cloud: &TensorDock, fields: &Fields) -> Answer {
    let state = cloud.lock();
    let mut listed = state.machines.iter().filter(|machine| machine.is_listed());
    let machine = listed.find(|machine| Some(&machine.id) == fields.get("server"));
    let machine = machine.ok_or("Server not found")?;
    if state.as_described {
        return Ok(
            json!({"id": machine.id, "name": machine.asked["name"], "status": machine.status(),
            "ip": "203.0.113.12", "port_forwards": {machine.port().to_string(): 22}}),
        );
    }
    let mut shown = machine.to_json();
    shown["hostname"] = "203.0.113.12".into();
    shown["type"] = "on-demand".into();
    Ok(json!({"virtualmachine": shown}))
}

/// Fields of a request for a machine: those that are required come first.
const FIELDS: [&str; 19] = [
    "name",
    "hostnode",
    "operating_system",
    "gpu_count",
    "gpu_model",
    "vcpus",
    "ram",
    "storage",
    "password",
    "external_ports",
    "internal_ports",
    "api_key",
    "api_token",
    "cloudinit_script",
    "ssh_key",
    "deployment_type",
    "price_type",
    "price",
    "ipv4",
];

const REQUIRED: usize = 11;

fn deploy(cloud: &TensorDock, fields: &Fields) -> Answer {
    if let Some(strange) = fields.keys().find(|name| !FIELDS.contains(&name.as_str())) {
        return Err(format!("Invalid field {strange}"));
    }
    if let Some(missing) = FIELDS[..REQUIRED]
        .iter()
        .find(|name| !fields.contains_key(**name))
    {
        return Err(format!("{missing} is required"));
    }
    let number = |name: &str| {
        fields[name]
            .parse::<u64>()
            .map_err(|_| format!("{name} must be a number"))
    };
    let (gpus, cpus, memory, disk) = (
        number("gpu_count")?,
        number("vcpus")?,
        number("ram")?,
        number("storage")?,
    );
    if cpus % 2 != 0 || memory % 2 != 0 || cpus == 0 || memory == 0 {
        return Err("vcpus and ram must be even".to_owned());
    }
    if !IMAGES.contains(&fields["operating_system"].as_str()) {
        return Err("Invalid operating system".to_owned());
    }
    if fields
        .get("cloudinit_script")
        .is_some_and(|script| script.contains('\n'))
    {
        return Err("Invalid cloudinit_script: lines end with a backslash and an n".to_owned());
    }
    let outer = port(&fields["external_ports"]);
    if fields["internal_ports"] != "{22}" {
        return Err("Invalid internal_ports".to_owned());
    }
    let host = cloud.0.hosts.iter().find(|host| host.id == fields["hostnode"]);
    let host = host.ok_or("Hostnode is not available any more")?;
    let mut state = cloud.lock();
    if state.balance < 1.0 {
        return Err("Your balance must be at least $1".to_owned());
    }
    let node = state.hostnode(host);
    if !outer.is_some_and(|outer| {
        node["networking"]["ports"]
            .as_array()
            .unwrap()
            .contains(&outer.into())
    }) {
        return Err("The requested ports are in use".to_owned());
    }
    let specs = &node["specs"];
    let Some(free) = specs["gpu"][&fields["gpu_model"]]["amount"]
        .as_u64()
        .filter(|free| *free >= gpus)
    else {
        return Err("There are not enough GPUs on this hostnode".to_owned());
    };
    // Of what goes with some of the GPUs, a quarter is left for the others.
    let part = |resource: &str| {
        let amount = specs[resource]["amount"].as_u64().unwrap();
        if gpus < free { amount * 3 / 4 } else { amount }
    };
    if cpus > part("cpu") || memory > part("ram") || disk > part("storage") || gpus == 0 {
        return Err("There are not enough resources on this hostnode".to_owned());
    }
    let now = Instant::now();
    let machine = Machine {
        id: format!("5e6f7a8b-1111-4222-8333-{:012x}", state.machines.len()),
        asked: fields.clone(),
        times: cloud.0.times,
        made_at: now,
        listed_at: now + state.lag,
        ended_at: None,
        is_stopped: false,
    };
    cloud.0.ledger.made("machine", &*machine.id, &*fields["name"]);
    let answer = json!({"server": machine.id, "ip": "203.0.113.12", "cost": 0.41,
        "port_forwards": {machine.port().to_string(): "22"}});
    state.machines.push(machine);
    Ok(answer)
}

fn delete(cloud: &TensorDock, fields: &Fields) -> Answer {
    let mut state = cloud.lock();
    let mut listed = state
        .machines
        .iter_mut()
        .filter(|machine| machine.listed_at <= Instant::now());
    let machine = listed.find(|machine| Some(&machine.id) == fields.get("server"));
    let machine = machine.ok_or("Server not found")?;
    if machine.ended_at.is_some() {
        return Err("Server already terminated".to_owned());
    }
    machine.ended_at = Some(Instant::now());
    Ok(json!({}))
}

impl Emulator for TensorDock {
    fn router(&self) -> Router {
        let of = |work: Work| post(call).with_state((self.clone(), work));
        Router::new()
            .route("/api/v0/auth/test", of(test))
            .route(
                "/api/v0/client/deploy/hostnodes",
                get(hostnodes).with_state(self.clone()),
            )
            .route(
                "/api/v0/client/deploy/hostnodes/{id}",
                get(hostnode).with_state(self.clone()),
            )
            .route("/api/v0/client/deploy/single", of(deploy))
            .route("/api/v0/client/list", of(list))
            .route("/api/v0/client/get/single", of(show))
            .route("/api/v0/client/delete/single", of(delete))
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

    /// Machines that are stopped cost as long as they are there.
    fn lose_all(&self) {
        for machine in &mut self.lock().machines {
            machine.is_stopped = true;
        }
    }
}
