//! Plays CloudRift by its API description (OpenAPI of rift-server 0.61.0), for tests.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::missing_panics_doc)] // tests

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use dstack_backend_kit::{Emulator, Ledger};
use serde_json::{Value, json};
use tokio::time::Instant;

/// Where a machine is reached: host and SSH port.
pub type Address = (String, u16);

/// Gives each machine that is rented, with the keys that may log in, a real one; `None`: there is none left.
pub type GiveMachine = Box<dyn Fn(&[String]) -> Option<Address> + Send + Sync>;

/// How long things take.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Until a machine is ready.
    pub starts: Duration,
    /// Until a machine that is ended is gone.
    pub ends: Duration,
}

const USUAL: Times = Times {
    starts: Duration::from_secs(40),
    ends: Duration::from_secs(15),
};

/// The vendor's cloud, with one account.
#[derive(Debug, Clone)]
pub struct CloudRift(Arc<Shared>);

struct Shared {
    api_key: String,
    times: Times,
    give_machine: GiveMachine,
    /// Sizes and the data centers that have them.
    sizes: Vec<(String, String)>,
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
    machines: Vec<Machine>,
    sold_out: bool,
    lag: Duration,
}

#[derive(Debug)]
struct Machine {
    id: String,
    name: String,
    address: Address,
    times: Times,
    made_at: Instant,
    listed_at: Instant,
    ended_at: Option<Instant>,
    is_failed: bool,
}

impl Machine {
    fn status(&self) -> &'static str {
        match self.ended_at {
            _ if self.is_failed => "Failed",
            Some(at) if at.elapsed() >= self.times.ends => "Inactive",
            Some(_) => "Deactivating",
            None if self.made_at.elapsed() >= self.times.starts => "Active",
            None => "Initializing",
        }
    }

    fn to_json(&self) -> Value {
        let status = self.status();
        json!({
            "id": self.id,
            "created_at": "2026-10-01T12:00:00Z",
            "status": status,
            "node_id": "f8c403e6-7101-11ee-b00d-63f746883a19",
            "node_mode": "VirtualMachine",
            "node_status": "Ready",
            "host_address": self.address.0,
            "port_mappings": [[22, self.address.1]],
            "internal_host_address": "172.154.10.38",
            "ssh_key_auth": true,
            "containers": [],
            "virtual_machines": [{
                "name": "vm-1",
                "vmid": 1,
                "ready": status == "Active",
                "state": if status == "Active" { "Running" } else { "NoState" },
            }],
            "instance_name": self.name,
        })
    }
}

impl CloudRift {
    /// A cloud whose account has this key, with machines of these sizes in these data centers.
    pub fn new(api_key: &str, sizes: Vec<(String, String)>) -> Self {
        let nowhere = |_: &[String]| Some(("192.0.2.41".to_owned(), 22));
        Self::with_machines(api_key, sizes, USUAL, Box::new(nowhere))
    }

    /// As [`CloudRift::new`], with machines that somebody gives.
    pub fn with_machines(
        api_key: &str,
        sizes: Vec<(String, String)>,
        times: Times,
        give_machine: GiveMachine,
    ) -> Self {
        Self(Arc::new(Shared {
            api_key: api_key.to_owned(),
            times,
            give_machine,
            sizes,
            ledger: Ledger::default(),
            state: Mutex::default(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Cloud> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_known(&self, headers: &HeaderMap) -> bool {
        headers
            .get("x-api-key")
            .is_some_and(|key| key.as_bytes() == self.0.api_key.as_bytes())
    }

    /// What is over costs nothing any more.
    fn settle(&self) {
        for machine in &self.lock().machines {
            if matches!(machine.status(), "Inactive" | "Failed") {
                self.0.ledger.removed(&machine.id);
            }
        }
    }
}

type Answer = Result<Value, (StatusCode, &'static str)>;

/// What a call does, from its data to the answer's.
type Work = fn(&CloudRift, &Value) -> Answer;

/// A call of the account.
async fn call(
    State((cloud, work)): State<(CloudRift, Work)>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Response {
    if !cloud.is_known(&headers) {
        return (StatusCode::UNAUTHORIZED, "Unauthorized").into_response();
    }
    let (Some(version), Some(data)) = (body["version"].as_str(), body.get("data")) else {
        return (StatusCode::BAD_REQUEST, "version and data are required").into_response();
    };
    cloud.settle();
    let answer = work(&cloud, data);
    cloud.settle();
    match answer {
        Ok(data) => (
            StatusCode::CREATED,
            Json(json!({"version": version, "data": data})),
        )
            .into_response(),
        // Errors are JSON texts.
        Err((status, text)) => (status, format!("\"{text}\"")).into_response(),
    }
}

fn account(_: &CloudRift, _: &Value) -> Answer {
    Ok(
        json!({"id": "7c6f0d5e-2f5e-11ef-9a38-9f4a5a0a7a01", "email": "jdoe@example.com", "name": "John Doe",
        "provider": "email", "totp_enabled": false}),
    )
}

fn instance_types(cloud: &CloudRift, _: &Value) -> Answer {
    let free = i64::from(!cloud.lock().sold_out);
    let variant = |(name, region): &(String, String)| {
        json!({"name": name, "cost_per_hour": 39, "cpu_count": 16, "logical_cpu_count": 32, "dram": 51_539_607_552_u64,
            "disk": 536_870_912_000_u64, "gpu_count": 1, "vram": 25_769_803_776_u64, "nodes": 6, "available_nodes": free,
            "nodes_per_dc": {region: 6}, "available_nodes_per_dc": {region: free}})
    };
    let variants: Vec<Value> = cloud.0.sizes.iter().map(variant).collect();
    Ok(
        json!({"instance_types": [{"name": "all", "brand_short": "RTX 4090", "manufacturer": "Nvidia", "cost_per_hour": 39,
        "datacenters": [], "variants": variants}]}),
    )
}

fn recipes(_: &CloudRift, _: &Value) -> Answer {
    let recipe = |name: &str, url: &str, tag: &str| {
        json!({"name": name, "description": name, "tags": [tag],
            "details": {"VirtualMachine": {"image_url": url, "cloudinit_url": "https://storage.example.com/base"}}})
    };
    Ok(
        json!({"groups": [{"name": "Linux", "description": "VM images", "tags": ["vm"], "recipes": [
            recipe("Ubuntu 22.04 Server (NVidia)", "https://storage.example.com/jammy-nvidia.img", "nvidia-driver"),
            recipe("Ubuntu 24.04 Server (NVidia)", "https://storage.example.com/noble-nvidia.img", "nvidia-driver"),
            recipe("Ubuntu 24.04 Server (AMD)", "https://storage.example.com/noble-amd.img", "amd-driver"),
        ]}]}),
    )
}

fn rent(cloud: &CloudRift, data: &Value) -> Answer {
    let place = &data["selector"]["ByInstanceTypeAndLocation"];
    let machine = &data["config"]["VirtualMachine"];
    let (size, region) = (place["instance_type"].as_str(), place["datacenters"][0].as_str());
    let is_whole = data["with_public_ip"].is_boolean()
        && machine["image_url"].is_string()
        && machine["ssh_key"]["PublicKeys"].is_array()
        && machine["cloudinit_commands"].is_string();
    if !is_whole {
        return Err((
            StatusCode::BAD_REQUEST,
            "selector, config and with_public_ip are required",
        ));
    }
    let is_there = |(name, at): &(String, String)| Some(name.as_str()) == size && Some(at.as_str()) == region;
    let keys = texts(&machine["ssh_key"]["PublicKeys"]).unwrap_or_default();
    let is_free = !cloud.lock().sold_out && cloud.0.sizes.iter().any(is_there);
    let Some(address) = is_free.then(|| (cloud.0.give_machine)(&keys)).flatten() else {
        return Err((
            StatusCode::BAD_REQUEST,
            "No nodes available for the requested instance type",
        ));
    };
    let mut state = cloud.lock();
    let id = format!("8b1e9f5c-2f5e-11ef-9a38-{:012x}", state.machines.len());
    let name = data["name"].as_str().unwrap_or("bright-falcon").to_owned();
    let now = Instant::now();
    let listed_at = now + state.lag;
    cloud.0.ledger.made("machine", &id, &name);
    state.machines.push(Machine {
        id: id.clone(),
        name,
        address,
        times: cloud.0.times,
        made_at: now,
        listed_at,
        ended_at: None,
        is_failed: false,
    });
    Ok(json!({"instance_ids": [id]}))
}

fn texts(value: &Value) -> Option<Vec<String>> {
    let all = value.as_array()?.iter();
    all.map(|one| one.as_str().map(str::to_owned)).collect()
}

fn list(cloud: &CloudRift, data: &Value) -> Answer {
    let selector = &data["selector"];
    let (ids, statuses) = (texts(&selector["ById"]), texts(&selector["ByStatus"]["statuses"]));
    if ids.is_none() == statuses.is_none() {
        return Err((StatusCode::BAD_REQUEST, "unknown selector"));
    }
    let state = cloud.lock();
    let wanted = state.machines.iter().filter(|machine| {
        let of_ids = ids.as_ref().is_none_or(|ids| ids.contains(&machine.id));
        let of_statuses = statuses
            .as_ref()
            .is_none_or(|all| all.iter().any(|status| status == machine.status()));
        of_ids && of_statuses && machine.listed_at <= Instant::now()
    });
    let instances: Vec<Value> = wanted.map(Machine::to_json).collect();
    Ok(json!({"instances": instances}))
}

fn terminate(cloud: &CloudRift, data: &Value) -> Answer {
    let Some(ids) = data["selector"]["ById"].as_array() else {
        return Err((StatusCode::BAD_REQUEST, "unknown selector"));
    };
    let mut state = cloud.lock();
    let mut terminated = Vec::new();
    for machine in &mut state.machines {
        let is_wanted = ids.iter().any(|id| id.as_str() == Some(&machine.id));
        if is_wanted && machine.ended_at.is_none() && !machine.is_failed {
            machine.ended_at = Some(Instant::now());
            terminated.push(json!({"id": machine.id}));
        }
    }
    Ok(json!({"terminated": terminated}))
}

impl Emulator for CloudRift {
    fn router(&self) -> Router {
        let route = |work: Work| post(call).with_state((self.clone(), work));
        Router::new()
            .route("/api/v1/auth/me", route(account))
            .route("/api/v1/instance-types/list", route(instance_types))
            .route("/api/v1/recipes/list", route(recipes))
            .route("/api/v1/instances/rent", route(rent))
            .route("/api/v1/instances/list", route(list))
            .route("/api/v1/instances/terminate", route(terminate))
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
            machine.is_failed |= machine.ended_at.is_none();
        }
        self.settle();
    }
}
