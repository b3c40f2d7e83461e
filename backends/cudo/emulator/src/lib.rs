//! Plays Cudo Compute by its API description (Swagger, version 1.0.0), for tests.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::missing_panics_doc)] // tests

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router};
use dstack_backend_kit::{Emulator, Ledger};
use serde_json::{Value, json};
use tokio::time::Instant;

/// The project that the key may use.
pub const PROJECT: &str = "my-project";

/// The image with drivers for GPUs.
pub const GPU_IMAGE: &str = "ubuntu-2204-nvidia-535-docker-v20241017";

/// How long things take.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Until a machine is active.
    pub starts: Duration,
    /// Until a machine that is terminated is gone.
    pub ends: Duration,
}

const USUAL: Pace = Pace {
    starts: Duration::from_secs(60),
    ends: Duration::from_secs(15),
};

/// The vendor's cloud, with one project.
#[derive(Debug, Clone)]
pub struct Cudo(Arc<Shared>);

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
    machines: Vec<Machine>,
    made: usize,
    sold_out: bool,
    refusal: Option<(StatusCode, i64, &'static str)>,
    lag: Duration,
}

#[derive(Debug)]
struct Machine {
    /// In the ledger: ids of machines that are gone may be used again.
    number: usize,
    id: String,
    asked: Value,
    listed_at: Instant,
    active_at: Instant,
    ended_at: Option<Instant>,
    is_failed: bool,
}

impl Machine {
    fn is_gone(&self, pace: Pace) -> bool {
        self.ended_at.is_some_and(|at| at + pace.ends <= Instant::now())
    }

    fn state(&self) -> &'static str {
        match self.ended_at {
            Some(_) => "DELETING",
            None if self.is_failed => "FAILED",
            None if self.active_at <= Instant::now() => "ACTIVE",
            None => "PENDING",
        }
    }

    fn to_json(&self) -> Value {
        let state = self.state();
        let address = match state {
            "ACTIVE" => format!("203.0.113.{}", self.number),
            _ => String::new(),
        };
        json!({
            "id": self.id,
            "datacenterId": self.asked["dataCenterId"],
            "machineType": self.asked["machineType"],
            "state": state,
            "shortState": "runn",
            "publicIpAddress": address,
            "externalIpAddress": address,
            "internalIpAddress": "10.0.0.7",
            "vcpus": self.asked["vcpus"],
            "memory": self.asked["memoryGib"],
            "gpuQuantity": self.asked["gpus"],
            "bootDiskSizeGib": self.asked["bootDisk"]["sizeGib"],
            "publicImageId": self.asked["bootDiskImageId"],
            "nics": [],
            "storageDisks": [],
            "metadata": {},
            "createTime": "2026-10-01T12:00:00Z",
        })
    }
}

impl Cudo {
    /// A cloud whose project has this key.
    pub fn new(api_key: &str) -> Self {
        Self::with_pace(api_key, USUAL)
    }

    /// As [`Cudo::new`], otherwise fast or slow.
    pub fn with_pace(api_key: &str, pace: Pace) -> Self {
        Self(Arc::new(Shared {
            api_key: api_key.to_owned(),
            pace,
            ledger: Ledger::default(),
            state: Mutex::default(),
        }))
    }

    /// Machines are refused from now on: by this status, code and message.
    pub fn refuse(&self, status: u16, code: i64, message: &'static str) {
        self.lock().refusal = Some((StatusCode::from_u16(status).unwrap(), code, message));
    }

    /// Machines do not start, and the vendor says so.
    pub fn fail_all(&self) {
        for machine in &mut self.lock().machines {
            machine.is_failed = true;
        }
    }

    /// What was asked for, of each machine that there is.
    pub fn asked(&self) -> Vec<Value> {
        let state = self.lock();
        state
            .machines
            .iter()
            .map(|machine| machine.asked.clone())
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Cloud> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is over is forgotten, and costs nothing any more.
    fn settle(&self) {
        self.lock().machines.retain(|machine| {
            let is_gone = machine.is_gone(self.0.pace);
            if is_gone {
                self.0.ledger.removed(&machine.id);
            }
            !is_gone
        });
    }
}

/// A refusal: the status, the code of gRPC and the message.
type Answer = Result<Value, (StatusCode, i64, String)>;

fn bad(message: impl Into<String>) -> Answer {
    Err((StatusCode::BAD_REQUEST, 3, message.into()))
}

fn unknown(what: &str) -> Answer {
    Err((StatusCode::NOT_FOUND, 5, format!("{what} not found")))
}

struct Asked {
    path: BTreeMap<String, String>,
    body: Value,
}

fn decimal(value: &str) -> Value {
    json!({"value": value})
}

/// What the types have in common; the rest says more.
fn machine_type(center: &str, name: &str, more: &Value) -> Value {
    let mut of = json!({
        "dataCenterId": center, "machineType": name, "cpuModel": "Milan", "gpuModel": "", "gpuModelId": "",
        "minVcpuPerMemoryGib": 0.25, "maxVcpuPerMemoryGib": 1.0, "minVcpuPerGpu": 0.0, "maxVcpuPerGpu": 0.0,
        "vcpuPriceHr": decimal("0.0018"), "memoryGibPriceHr": decimal("0.0024"), "gpuPriceHr": decimal("0"),
        "minStorageGibPriceHr": decimal("0.00013"), "ipv4PriceHr": decimal("0.004"), "renewableEnergy": true,
        "maxVcpuFree": 48, "totalVcpuFree": 120, "maxMemoryGibFree": 180, "totalMemoryGibFree": 420,
        "maxGpuFree": 0, "totalGpuFree": 0, "maxStorageGibFree": 2000, "totalStorageGibFree": 8000,
        "minVcpu": 1.0, "minMemoryGib": 1.0,
    });
    let more = more.as_object().unwrap().clone();
    of.as_object_mut().unwrap().extend(more);
    of
}

fn machine_types() -> Vec<Value> {
    let gpu = json!({"gpuModel": "RTX A4000", "gpuModelId": "nvidia-rtx-a4000", "gpuPriceHr": decimal("0.2139"),
        "minVcpuPerGpu": 1.0, "maxVcpuPerGpu": 13.0, "maxGpuFree": 4, "totalGpuFree": 7});
    let mut taken = gpu.clone();
    taken["maxGpuFree"] = 0.into();
    let amd = json!({"gpuModel": "MI250/300", "gpuModelId": "amd-mi300", "gpuPriceHr": decimal("1"),
        "minVcpuPerGpu": 1.0, "maxVcpuPerGpu": 13.0, "maxGpuFree": 4, "totalGpuFree": 4});
    vec![
        machine_type("se-smedjebacken-1", "epyc-milan", &json!({})),
        machine_type("se-smedjebacken-1", "epyc-milan-rtx-a4000", &gpu),
        machine_type("no-luster-1", "epyc-milan-rtx-a4000", &taken),
        machine_type(
            "no-luster-1",
            "sapphire-rapids",
            &json!({"vcpuPriceHr": decimal("0.0030")}),
        ),
        machine_type("us-newyork-1", "epyc-genoa-mi300", &amd),
        machine_type("in-hyderabad-1", "epyc-milan", &json!({})),
        // Not as the description has it.
        json!({"dataCenterId": "no-luster-1", "machineType": "odd", "vcpuPriceHr": 7}),
    ]
}

const IMAGES: [&str; 4] = [
    "alma-linux-9",
    "ubuntu-2204",
    "ubuntu-2204-nvidia-535-docker-v20240214",
    GPU_IMAGE,
];

#[derive(Clone, Copy)]
enum Type {
    Text,
    Texts,
    Number,
    Bool,
    Object,
    Objects,
}

impl Type {
    fn is_of(self, value: &Value) -> bool {
        let all = |is: fn(&Value) -> bool| value.as_array().is_some_and(|all| all.iter().all(is));
        match self {
            Self::Text => value.is_string(),
            Self::Texts => all(Value::is_string),
            Self::Number => value.is_i64(),
            Self::Bool => value.is_boolean(),
            Self::Object => value.is_object(),
            Self::Objects => all(Value::is_object),
        }
    }
}

/// What is wrong with an object: a field that there is not, of another type, or missing. As in JSON of gRPC, `null` is not there.
fn problem(of: &Value, known: &[(&str, Type)], required: &[&str]) -> Option<String> {
    let Some(fields) = of.as_object() else {
        return Some("not an object".to_owned());
    };
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        match known.iter().find(|(known, _)| known == name) {
            None => return Some(format!("unknown field \"{name}\"")),
            Some((_, kind)) if !kind.is_of(value) => return Some(format!("invalid value for {name}")),
            Some(_) => {}
        }
    }
    let missing = required.iter().find(|name| of[**name].is_null());
    missing.map(|name| format!("{name} is required"))
}

const VM_FIELDS: [(&str, Type); 24] = [
    ("dataCenterId", Type::Text),
    ("machineType", Type::Text),
    ("vmId", Type::Text),
    ("startScript", Type::Text),
    ("sshKeySource", Type::Text),
    ("customSshKeys", Type::Texts),
    ("password", Type::Text),
    ("bootDisk", Type::Object),
    ("bootDiskImageId", Type::Text),
    ("vcpus", Type::Number),
    ("memoryGib", Type::Number),
    ("gpus", Type::Number),
    ("cpuModel", Type::Text),
    ("gpuModel", Type::Text),
    ("gpuModelId", Type::Text),
    ("nics", Type::Objects),
    ("securityGroupIds", Type::Texts),
    ("storageDiskIds", Type::Texts),
    ("metadata", Type::Object),
    ("topology", Type::Object),
    ("validateOnly", Type::Bool),
    ("expireTime", Type::Text),
    ("ttl", Type::Text),
    ("commitmentTerm", Type::Text),
];

const VM_REQUIRED: [&str; 7] = [
    "dataCenterId",
    "machineType",
    "vmId",
    "bootDiskImageId",
    "vcpus",
    "memoryGib",
    "gpus",
];

const STORAGE_CLASSES: [&str; 3] = [
    "STORAGE_CLASS_UNKNOWN",
    "STORAGE_CLASS_LOCAL",
    "STORAGE_CLASS_NETWORK",
];

/// Whether so many CPUs, GiB and GPUs are a machine of the type, and free.
fn is_offered(of: &Value, body: &Value) -> bool {
    let number = |value: &Value| value.as_f64().unwrap();
    let [cpus, memory, gpus] = ["vcpus", "memoryGib", "gpus"].map(|name| number(&body[name]));
    let is_within =
        |value: f64, least: &str, most: &str| (number(&of[least])..=number(&of[most])).contains(&value);
    let fits_gpus = match of["gpuModelId"] == "" {
        true => gpus == 0.0,
        false => gpus >= 1.0 && is_within(cpus / gpus, "minVcpuPerGpu", "maxVcpuPerGpu"),
    };
    fits_gpus
        && is_within(cpus / memory, "minVcpuPerMemoryGib", "maxVcpuPerMemoryGib")
        && is_within(cpus, "minVcpu", "maxVcpuFree")
        && is_within(memory, "minMemoryGib", "maxMemoryGibFree")
        && gpus <= number(&of["maxGpuFree"])
}

impl Cudo {
    fn auth(&self, _: &Asked) -> Answer {
        Ok(json!({"emailAddress": "jdoe@example.com", "firstName": "J", "lastName": "Doe", "picture": ""}))
    }

    fn project(&self, _: &Asked) -> Answer {
        Ok(
            json!({"id": PROJECT, "billingAccountId": "billing-1", "resourceCount": self.lock().machines.len(),
            "createBy": "jdoe"}),
        )
    }

    fn machine_types(&self, _: &Asked) -> Answer {
        Ok(json!({"machineTypes": machine_types()}))
    }

    fn gpu_models(&self, _: &Asked) -> Answer {
        Ok(json!({"gpuModels": [
            {"id": "nvidia-rtx-a4000", "vendorName": "NVIDIA", "modelName": "RTX A4000", "memoryGib": 16},
            {"id": "amd-mi300", "vendorName": "AMD", "modelName": "MI250/300", "memoryGib": 192},
            {"id": "odd", "memoryGib": "many"},
        ]}))
    }

    fn images(&self, _: &Asked) -> Answer {
        let image = |id: &str| {
            json!({"id": id, "name": id, "description": "", "displayName": id, "platform": "linux",
            "sizeGib": if id.contains("nvidia") { 40 } else { 10 }, "installedPackages": []})
        };
        let mut images = IMAGES.map(image).to_vec();
        images.push(json!({"id": "ubuntu-9999-docker"}));
        Ok(json!({"images": images}))
    }

    fn create(&self, asked: &Asked) -> Answer {
        let body = &asked.body;
        if let Some(problem) = problem(body, &VM_FIELDS, &VM_REQUIRED) {
            return bad(problem);
        }
        let disk = &body["bootDisk"];
        let disk_fields = [
            ("id", Type::Text),
            ("sizeGib", Type::Number),
            ("storageClass", Type::Text),
        ];
        if !disk.is_null() {
            if let Some(problem) = problem(disk, &disk_fields, &["id", "sizeGib"]) {
                return bad(format!("bootDisk: {problem}"));
            }
            if !STORAGE_CLASSES.iter().any(|class| disk["storageClass"] == *class) {
                return bad("bootDisk: invalid storageClass");
            }
        }
        let id = body["vmId"].as_str().unwrap();
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if id.is_empty() || id.len() > 30 || !id.chars().all(fits) {
            return bad("invalid vmId");
        }
        let image = body["bootDiskImageId"].as_str().unwrap();
        if !IMAGES.contains(&image) {
            return bad("invalid image id");
        }
        if disk["sizeGib"]
            .as_i64()
            .is_some_and(|size| image.contains("nvidia") && size < 40)
        {
            return bad("the boot disk is smaller than the image");
        }
        let mut state = self.lock();
        if let Some((status, code, message)) = state.refusal {
            return Err((status, code, message.to_owned()));
        }
        if state.machines.iter().any(|machine| machine.id == id) {
            return Err((
                StatusCode::CONFLICT,
                6,
                "a disk with this id already exists".to_owned(),
            ));
        }
        let types = machine_types();
        let is_it = |of: &&Value| {
            of["dataCenterId"] == body["dataCenterId"] && of["machineType"] == body["machineType"]
        };
        let of = types.iter().find(is_it);
        if state.sold_out || !of.is_some_and(|of| is_offered(of, body)) {
            return bad("no hosts available for this configuration");
        }
        state.made += 1;
        self.0.ledger.made("machine", id, id);
        let now = Instant::now();
        let machine = Machine {
            number: state.made,
            id: id.to_owned(),
            asked: body.clone(),
            listed_at: now + state.lag,
            active_at: now + self.0.pace.starts,
            ended_at: None,
            is_failed: false,
        };
        let answer = json!({"id": id, "vm": machine.to_json()});
        state.machines.push(machine);
        Ok(answer)
    }

    fn list(&self, _: &Asked) -> Answer {
        let state = self.lock();
        let listed = state
            .machines
            .iter()
            .filter(|machine| machine.listed_at <= Instant::now());
        let all: Vec<Value> = listed.map(Machine::to_json).collect();
        // As in JSON of gRPC, what is empty may be left out.
        Ok(match all.is_empty() {
            true => json!({}),
            false => json!({"VMs": all}),
        })
    }

    fn one(&self, asked: &Asked) -> Answer {
        let state = self.lock();
        let is_it =
            |machine: &&Machine| machine.id == asked.path["id"] && machine.listed_at <= Instant::now();
        let Some(machine) = state.machines.iter().find(is_it) else {
            return unknown("VM");
        };
        let mut answer = json!({"VM": machine.to_json()});
        for price in [
            "vcpuPriceHr",
            "totalVcpuPriceHr",
            "memoryGibPriceHr",
            "totalMemoryPriceHr",
            "gpuPriceHr",
            "totalGpuPriceHr",
            "storageGibPriceHr",
            "totalStoragePriceHr",
            "ipv4PriceHr",
            "totalPriceHr",
        ] {
            answer[price] = decimal("0.01");
        }
        Ok(answer)
    }

    fn terminate(&self, asked: &Asked) -> Answer {
        let mut state = self.lock();
        let is_it =
            |machine: &&mut Machine| machine.id == asked.path["id"] && machine.listed_at <= Instant::now();
        let Some(machine) = state.machines.iter_mut().find(is_it) else {
            return unknown("VM");
        };
        if machine.ended_at.is_some() {
            return Err((StatusCode::BAD_REQUEST, 9, "the VM is being deleted".to_owned()));
        }
        machine.ended_at = Some(Instant::now());
        Ok(json!({}))
    }
}

/// Who may make a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Anybody,
    /// With the key.
    User,
    /// With the key, of the project in the path.
    Member,
}

type Work = fn(&Cudo, &Asked) -> Answer;

async fn call(
    State((cloud, work, who)): State<(Cudo, Work, Who)>,
    Path(path): Path<BTreeMap<String, String>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    cloud.settle();
    let refused = |(status, code, message): (StatusCode, i64, String)| {
        let error = json!({"code": code, "message": message, "details": []});
        (status, Json(error)).into_response()
    };
    let expected = format!("Bearer {}", cloud.0.api_key);
    let given = headers.get("authorization").map(HeaderValue::as_bytes);
    if who != Who::Anybody && given != Some(expected.as_bytes()) {
        return refused((StatusCode::UNAUTHORIZED, 16, "invalid authentication".to_owned()));
    }
    if who == Who::Member && path["project"] != PROJECT {
        return refused((StatusCode::NOT_FOUND, 5, "project not found".to_owned()));
    }
    let body = match body.as_ref() {
        b"" => Value::Null,
        text => match serde_json::from_slice(text) {
            Ok(body) => body,
            Err(_) => return refused((StatusCode::BAD_REQUEST, 3, "invalid JSON".to_owned())),
        },
    };
    match work(&cloud, &Asked { path, body }) {
        Ok(answer) => Json(answer).into_response(),
        Err(error) => refused(error),
    }
}

impl Emulator for Cudo {
    fn router(&self) -> Router {
        let read = |work: Work, who: Who| -> MethodRouter { get(call).with_state((self.clone(), work, who)) };
        let write = |work: Work| -> MethodRouter { post(call).with_state((self.clone(), work, Who::Member)) };
        Router::new()
            .route("/v1/auth", read(Cudo::auth, Who::User))
            .route("/v1/projects/{project}", read(Cudo::project, Who::Member))
            .route("/v1/vms/machine-types-2", read(Cudo::machine_types, Who::Anybody))
            .route("/v1/vms/gpu-models", read(Cudo::gpu_models, Who::Anybody))
            .route("/v1/vms/public-images", read(Cudo::images, Who::Anybody))
            .route("/v1/projects/{project}/vm", write(Cudo::create))
            .route("/v1/projects/{project}/vms", read(Cudo::list, Who::Member))
            .route("/v1/projects/{project}/vms/{id}", read(Cudo::one, Who::Member))
            .route(
                "/v1/projects/{project}/vms/{id}/terminate",
                write(Cudo::terminate),
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

    fn lose_all(&self) {
        let now = Instant::now();
        for machine in &mut self.lock().machines {
            machine.ended_at.get_or_insert(now);
        }
    }
}
