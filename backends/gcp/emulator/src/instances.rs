//! Machines.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::disks::Attached;
use crate::lists::list_by_zone;
use crate::networks::{self, is_name};
use crate::policies;
use crate::{Answer, Ask, Cloud, Gcp, PROJECT, Times, invalid, missing, refuse};

/// Images that there are.
const IMAGES: &[&str] = &[
    "projects/dstack/global/images/dstack-0-14",
    "projects/dstack/global/images/dstack-cuda-0-14",
    "projects/dstack/global/images/dstack-cuda-0-10",
    "projects/dstack/global/images/dstack-a3mega-5",
    "projects/cos-cloud/global/images/family/cos-121-lts",
    "projects/ubuntu-os-cloud/global/images/ubuntu-2204-jammy-v20230714",
    "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts",
];

/// Types that have no other disks ("Hyperdisk" in Google's list of machine families).
pub(crate) const HYPERDISK_ONLY: &[&str] = &[
    "m4-", "c4-", "c4a-", "c4d-", "n4-", "n4a-", "n4d-", "x4-", "h3-", "h4d-", "a4-", "a4x-", "g4-",
];

/// Types with GPUs, which are not named apart.
const WITH_GPUS: &[&str] = &["a2-", "a3-", "a4-", "g2-", "g4-"];

#[derive(Debug, Clone)]
pub(crate) struct Machine {
    pub(crate) zone: String,
    pub(crate) asked: Value,
    pub(crate) made_at: Instant,
    pub(crate) listed_at: Instant,
    pub(crate) stopped_at: Option<Instant>,
    /// When it is gone.
    pub(crate) gone_at: Option<Instant>,
    /// The books have it no more.
    pub(crate) is_settled: bool,
    /// It comes to nothing: it is only listed for some seconds.
    pub(crate) is_doomed: bool,
    pub(crate) attached: Vec<Attached>,
}

impl Machine {
    pub(crate) fn name(&self) -> &str {
        self.asked["name"].as_str().unwrap()
    }

    pub(crate) fn id(&self) -> String {
        format!("zones/{}/instances/{}", self.zone, self.name())
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone_at.is_some_and(|at| at <= Instant::now())
    }

    pub(crate) fn is_listed(&self) -> bool {
        self.listed_at <= Instant::now() && !self.is_gone()
    }

    fn status(&self, times: Times) -> &'static str {
        let age = self.made_at.elapsed();
        match () {
            () if self.gone_at.is_some() => "STOPPING",
            () if self.stopped_at.is_some_and(|at| at.elapsed() >= times.ends) => "TERMINATED",
            () if self.stopped_at.is_some() => "STOPPING",
            () if age >= times.starts => "RUNNING",
            () if age >= times.starts / 4 => "STAGING",
            () => "PROVISIONING",
        }
    }

    fn to_json(&self, times: Times) -> Value {
        let mut told = self.asked.clone();
        let zone = format!(
            "https://www.googleapis.com/compute/v1/projects/{PROJECT}/zones/{}",
            self.zone
        );
        told["id"] = "1".into();
        told["kind"] = "compute#instance".into();
        told["status"] = self.status(times).into();
        told["selfLink"] = format!("{zone}/instances/{}", self.name()).into();
        told["creationTimestamp"] = "2026-10-01T05:00:00.000-07:00".into();
        told["zone"] = zone.into();
        let now = Instant::now();
        for one in self
            .attached
            .iter()
            .filter(|one| one.since <= now && !one.is_over())
        {
            let source = format!(
                "https://www.googleapis.com/compute/v1/projects/{PROJECT}/{}",
                one.source
            );
            let disk =
                json!({"source": source, "deviceName": one.device, "boot": false, "autoDelete": false});
            told["disks"].as_array_mut().unwrap().push(disk);
        }
        let is_reached = self.made_at.elapsed() >= times.starts / 2;
        for (at, interface) in told["networkInterfaces"]
            .as_array_mut()
            .unwrap()
            .iter_mut()
            .enumerate()
        {
            interface["name"] = format!("nic{at}").into();
            if is_reached {
                interface["networkIP"] = format!("10.128.0.{}", at + 2).into();
                let configs = interface.get_mut("accessConfigs").and_then(Value::as_array_mut);
                for config in configs.into_iter().flatten() {
                    config["natIP"] = "203.0.113.70".into();
                }
            }
        }
        told
    }
}

impl Gcp {
    pub(crate) fn instances(&self, state: &mut Cloud, ask: &Ask) -> Answer {
        let times = self.0.times;
        let listed = || {
            let all = state.machines.iter().filter(|one| one.is_listed());
            all.map(|one| (one.zone.clone(), one.to_json(times))).collect()
        };
        if let Some(answer) = list_by_zone(ask, "instances", &state.unreachable, listed) {
            return answer;
        }
        let zone = ask.at(1);
        if ask.called.name == "instances.insert" {
            return self.insert(state, ask, zone);
        }
        let name = ask.at(2);
        let mut all = state.machines.iter();
        let at = all.position(|one| one.is_listed() && one.zone == zone && one.name() == name);
        let target = format!("zones/{zone}/instances/{name}");
        let at = at.ok_or_else(|| missing(&format!("projects/{PROJECT}/{target}")))?;
        match ask.called.name {
            "instances.get" => Ok(state.machines[at].to_json(times)),
            "instances.attachDisk" => self.attach(state, ask, at),
            "instances.detachDisk" => self.detach(state, ask, at),
            "instances.delete" => {
                state.machines[at]
                    .gone_at
                    .get_or_insert(Instant::now() + times.ends);
                Ok(self.begin(state, ask, &format!("zones/{zone}"), target, times.ends, None))
            }
            other => Err(missing(other)),
        }
    }

    fn insert(&self, state: &mut Cloud, ask: &Ask, zone: &str) -> Answer {
        let body = &ask.body;
        let name = body["name"].as_str().unwrap_or_default();
        let type_name = check(state, zone, body)?;
        policies::check(state, zone, &type_name, body)?;
        let is_it = |one: &&Machine| !one.is_gone() && one.zone == zone && one.name() == name;
        let target = format!("zones/{zone}/instances/{name}");
        if state.machines.iter().any(|one| is_it(&one)) {
            let message = format!("The resource 'projects/{PROJECT}/{target}' already exists");
            return Err(refuse(409, "alreadyExists", message));
        }
        let scope = format!("zones/{zone}");
        let failure = match state.failing.get(type_name.as_str()) {
            Some((status, code)) => Some(refuse(
                *status,
                code,
                "Quota 'GPUS' exceeded.  Limit: 0.0 globally.",
            )),
            None if state.sold_out || state.full.contains(zone) => Some(refuse(
                503,
                "ZONE_RESOURCE_POOL_EXHAUSTED",
                format!(
                    "The zone 'projects/{PROJECT}/zones/{zone}' does not have enough resources available to fulfill the request."
                ),
            )),
            None => None,
        };
        let now = Instant::now();
        let refuses = self.0.times.refuses;
        let is_doomed = failure.is_some();
        let machine = Machine {
            zone: zone.to_owned(),
            asked: body.clone(),
            made_at: now,
            listed_at: now + state.lag,
            stopped_at: None,
            // It is listed as one that stops before the operation fails, and after that.
            gone_at: is_doomed.then(|| now + refuses * 2),
            is_settled: is_doomed,
            is_doomed,
            attached: Vec::new(),
        };
        if failure.is_some() {
            state.machines.push(machine);
            return Ok(self.begin(state, ask, &scope, target, refuses, failure));
        }
        self.0.ledger.made("machine", machine.id(), name);
        state.machines.push(machine);
        Ok(self.begin(state, ask, &scope, target, self.0.times.starts / 2, None))
    }
}

/// The type of a machine that may be asked for.
fn check(state: &Cloud, zone: &str, body: &Value) -> Result<String, crate::Refusal> {
    let field =
        |name: &str, problem: &str| invalid(format!("Invalid value for field 'resource.{name}': {problem}"));
    if !is_name(body["name"].as_str().unwrap_or_default()) {
        return Err(field("name", "Must be a match of regex"));
    }
    let machine_type = body["machineType"].as_str().unwrap_or_default();
    let type_name = machine_type.strip_prefix(&format!("zones/{zone}/machineTypes/"));
    let type_name = type_name.ok_or_else(|| field("machineType", machine_type))?;
    if state.lacking.contains(&(zone.to_owned(), type_name.to_owned())) {
        return Err(field(
            "machineType",
            &format!(
                "'{machine_type}'. Machine type with name '{type_name}' does not exist in zone '{zone}'."
            ),
        ));
    }
    let interfaces = body["networkInterfaces"].as_array().cloned().unwrap_or_default();
    if let Some(problem) = networks::problem(state, zone, &interfaces) {
        return Err(invalid(problem));
    }
    let disks = body["disks"].as_array().cloned().unwrap_or_default();
    let boot = disks
        .first()
        .filter(|disk| disk["boot"] == true && disk["autoDelete"] == true);
    let boot = boot.ok_or_else(|| field("disks[0]", "a boot disk that goes with the machine is expected"))?;
    let made_of = &boot["initializeParams"];
    if !IMAGES.iter().any(|image| made_of["sourceImage"] == *image) {
        return Err(missing(made_of["sourceImage"].as_str().unwrap_or_default()));
    }
    let size = &made_of["diskSizeGb"];
    let size = size
        .as_str()
        .map_or_else(|| size.as_i64(), |text| text.parse().ok());
    let is_plain = made_of["sourceImage"]
        .as_str()
        .is_some_and(|image| image.contains("/ubuntu-os-cloud/"));
    let smallest = if is_plain { 10 } else { 20 };
    if !size.is_some_and(|size| (smallest..=65_536).contains(&size)) {
        return Err(field(
            "disks[0].initializeParams.diskSizeGb",
            "smaller than the image",
        ));
    }
    let is_hyper = made_of["diskType"] == format!("zones/{zone}/diskTypes/hyperdisk-balanced");
    let is_persistent = made_of["diskType"] == format!("zones/{zone}/diskTypes/pd-balanced");
    let needs_hyper = HYPERDISK_ONLY.iter().any(|start| type_name.starts_with(start));
    if is_hyper != needs_hyper || is_persistent == needs_hyper {
        return Err(field(
            "disks[0].initializeParams.diskType",
            "the machine type does not take it",
        ));
    }
    let gpus = body["guestAccelerators"].as_array().cloned().unwrap_or_default();
    for gpu in &gpus {
        let start = format!("projects/{PROJECT}/zones/{zone}/acceleratorTypes/");
        let is_right = gpu["acceleratorType"]
            .as_str()
            .is_some_and(|name| name.starts_with(&start));
        if !is_right || gpu["acceleratorCount"].as_i64().is_none_or(|count| count < 1) {
            return Err(field("guestAccelerators", &gpu.to_string()));
        }
    }
    let scheduling = &body["scheduling"];
    let is_spot = scheduling["provisioningModel"] == "SPOT";
    let has_gpus = !gpus.is_empty() || WITH_GPUS.iter().any(|start| type_name.starts_with(start));
    if has_gpus && !is_spot && scheduling["onHostMaintenance"] != "TERMINATE" {
        return Err(field(
            "scheduling.onHostMaintenance",
            "Instances with guest accelerators do not support live migration.",
        ));
    }
    if !scheduling["instanceTerminationAction"].is_null() && !is_spot {
        return Err(field("scheduling.instanceTerminationAction", "only for spot"));
    }
    let is_label = |text: &str, shortest: usize| {
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-".contains(c);
        (shortest..=63).contains(&text.len()) && text.chars().all(is_plain)
    };
    let labels = body["labels"].as_object().cloned().unwrap_or_default();
    let is_right = |(key, value): (&String, &Value)| {
        is_label(key, 1) && value.as_str().is_some_and(|value| is_label(value, 0))
    };
    if labels.len() > 64 || !labels.iter().all(is_right) {
        return Err(field("labels", "the labels are invalid"));
    }
    let items = body["metadata"]["items"].as_array().cloned().unwrap_or_default();
    let keys: BTreeSet<&str> = items.iter().filter_map(|item| item["key"].as_str()).collect();
    if keys.len() != items.len() {
        return Err(field("metadata", "keys are to be unique"));
    }
    let tags = body["tags"]["items"].as_array().cloned().unwrap_or_default();
    if !tags.iter().all(|tag| tag.as_str().is_some_and(is_name)) {
        return Err(field("tags", "invalid"));
    }
    Ok(type_name.to_owned())
}
