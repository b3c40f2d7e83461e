//! Disks, and what is attached to machines.

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::instances::{HYPERDISK_ONLY, Machine};
use crate::lists::list_by_zone;
use crate::networks::is_name;
use crate::{Answer, Ask, Cloud, Gcp, PROJECT, Times, invalid, missing, refuse};

#[derive(Debug, Clone)]
pub(crate) struct Disk {
    zone: String,
    asked: Value,
    made_at: Instant,
    listed_at: Instant,
    gone_at: Option<Instant>,
    is_settled: bool,
    has_failed: bool,
}

/// A disk that a machine has.
#[derive(Debug, Clone)]
pub(crate) struct Attached {
    pub(crate) source: String,
    pub(crate) device: String,
    pub(crate) since: Instant,
    pub(crate) until: Option<Instant>,
}

impl Attached {
    pub(crate) fn is_over(&self) -> bool {
        self.until.is_some_and(|at| at <= Instant::now())
    }
}

impl Disk {
    fn name(&self) -> &str {
        self.asked["name"].as_str().unwrap()
    }

    fn id(&self) -> String {
        format!("zones/{}/disks/{}", self.zone, self.name())
    }

    fn is_gone(&self) -> bool {
        self.gone_at.is_some_and(|at| at <= Instant::now())
    }

    fn is_listed(&self) -> bool {
        self.listed_at <= Instant::now() && !self.is_gone()
    }

    fn to_json(&self, times: Times) -> Value {
        let api = "https://www.googleapis.com/compute/v1/projects";
        let mut told = self.asked.clone();
        told["id"] = "2".into();
        told["kind"] = "compute#disk".into();
        told["status"] = match () {
            () if self.has_failed => "FAILED",
            () if self.gone_at.is_some() => "DELETING",
            () if self.made_at.elapsed() < times.others => "CREATING",
            () => "READY",
        }
        .into();
        told["selfLink"] = format!("{api}/{PROJECT}/{}", self.id()).into();
        told["zone"] = format!("{api}/{PROJECT}/zones/{}", self.zone).into();
        let kind = self.asked["type"].as_str().unwrap();
        told["type"] = format!("{api}/{PROJECT}/{kind}").into();
        // Numbers of 64 bits are texts.
        let size = &self.asked["sizeGb"];
        told["sizeGb"] = size
            .as_str()
            .map_or_else(|| size.to_string(), str::to_owned)
            .into();
        told
    }
}

impl Cloud {
    pub(crate) fn has_disk(&self, id: &str, zone: &str) -> bool {
        self.disks
            .iter()
            .any(|one| one.is_listed() && one.zone == zone && one.id() == id)
    }
}

/// The path of a disk, however it is named.
fn relative(source: &str) -> &str {
    let source = source.split_once("/v1/").map_or(source, |(_, rest)| rest);
    source
        .strip_prefix(&format!("projects/{PROJECT}/"))
        .unwrap_or(source)
}

impl Gcp {
    /// A disk that somebody else has made.
    pub fn add_disk(&self, zone: &str, name: &str, gb: i64) {
        let now = Instant::now();
        self.lock().disks.push(Disk {
            zone: zone.to_owned(),
            asked: json!({"name": name, "sizeGb": gb, "type": format!("zones/{zone}/diskTypes/pd-ssd")}),
            made_at: now,
            listed_at: now,
            gone_at: None,
            is_settled: false,
            has_failed: false,
        });
    }

    pub(crate) fn settle_disks(&self, state: &mut Cloud) {
        for disk in &mut state.disks {
            if disk.is_gone() && !disk.is_settled {
                disk.is_settled = true;
                self.0.ledger.removed(&disk.id());
            }
        }
        for machine in &mut state.machines {
            let is_gone = machine.is_gone();
            machine.attached.retain(|one| {
                let stays = !is_gone && !one.is_over();
                if !stays {
                    self.0.ledger.removed(&one.source);
                }
                stays
            });
        }
    }

    pub(crate) fn lose_disks(state: &mut Cloud) {
        state.disks.iter_mut().for_each(|disk| disk.has_failed = true);
    }

    pub(crate) fn disks(&self, state: &mut Cloud, ask: &Ask) -> Answer {
        let times = self.0.times;
        let listed = || {
            let all = state.disks.iter().filter(|one| one.is_listed());
            all.map(|one| (one.zone.clone(), one.to_json(times))).collect()
        };
        if let Some(answer) = list_by_zone(ask, "disks", &state.unreachable, listed) {
            return answer;
        }
        let zone = ask.at(1);
        if ask.called.name == "disks.insert" {
            return self.insert_disk(state, ask, zone);
        }
        let target = format!("zones/{zone}/disks/{}", ask.at(2));
        let mut all = state.disks.iter();
        let at = all.position(|one| one.is_listed() && one.id() == target);
        let at = at.ok_or_else(|| missing(&format!("projects/{PROJECT}/{target}")))?;
        match ask.called.name {
            "disks.get" => Ok(state.disks[at].to_json(times)),
            "disks.delete" => {
                if let Some(user) = user_of(state, &target) {
                    let message = format!(
                        "The disk resource 'projects/{PROJECT}/{target}' is already being used by '{user}'"
                    );
                    return Err(refuse(400, "resourceInUseByAnotherResource", message));
                }
                state.disks[at]
                    .gone_at
                    .get_or_insert(Instant::now() + times.others);
                Ok(self.begin(state, ask, &format!("zones/{zone}"), target, times.others, None))
            }
            other => Err(missing(other)),
        }
    }

    fn insert_disk(&self, state: &mut Cloud, ask: &Ask, zone: &str) -> Answer {
        let body = &ask.body;
        let name = body["name"].as_str().unwrap_or_default();
        let size = &body["sizeGb"];
        let size = size
            .as_str()
            .map_or_else(|| size.as_i64(), |text| text.parse().ok());
        let is_kind = body["type"] == format!("zones/{zone}/diskTypes/pd-balanced");
        if !is_name(name) || !is_kind || !size.is_some_and(|size| (10..=65_536).contains(&size)) {
            return Err(invalid(format!("Invalid value for field 'resource': {body}")));
        }
        let target = format!("zones/{zone}/disks/{name}");
        if state.disks.iter().any(|one| !one.is_gone() && one.id() == target) {
            let message = format!("The resource 'projects/{PROJECT}/{target}' already exists");
            return Err(refuse(409, "alreadyExists", message));
        }
        let scope = format!("zones/{zone}");
        if state.sold_out || state.full.contains(zone) {
            let message =
                format!("The zone 'projects/{PROJECT}/{scope}' does not have enough resources available");
            let failure = refuse(503, "ZONE_RESOURCE_POOL_EXHAUSTED", message);
            return Ok(self.begin(state, ask, &scope, target, self.0.times.refuses, Some(failure)));
        }
        let now = Instant::now();
        self.0.ledger.made("volume", &target, name);
        state.disks.push(Disk {
            zone: zone.to_owned(),
            asked: body.clone(),
            made_at: now,
            listed_at: now + state.lag,
            gone_at: None,
            is_settled: false,
            has_failed: false,
        });
        Ok(self.begin(state, ask, &scope, target, self.0.times.others, None))
    }

    /// `at`: the machine.
    pub(crate) fn attach(&self, state: &mut Cloud, ask: &Ask, at: usize) -> Answer {
        let zone = ask.at(1).to_owned();
        let source = relative(ask.body["source"].as_str().unwrap_or_default()).to_owned();
        let device = ask.body["deviceName"].as_str().unwrap_or_default().to_owned();
        if !state
            .disks
            .iter()
            .any(|one| one.is_listed() && one.id() == source)
        {
            return Err(missing(&format!("projects/{PROJECT}/{source}")));
        }
        if !source.starts_with(&format!("zones/{zone}/")) {
            return Err(invalid(format!("The disk {source} is not in the zone {zone}")));
        }
        if !is_name(&device) || ask.body["autoDelete"] != false {
            return Err(invalid("Invalid value for field 'resource.deviceName'"));
        }
        let machine_type = state.machines[at].asked["machineType"]
            .as_str()
            .unwrap()
            .to_owned();
        let name = machine_type.rsplit('/').next().unwrap();
        if HYPERDISK_ONLY.iter().any(|start| name.starts_with(start)) {
            return Err(invalid(format!(
                "[pd-balanced] features are not compatible with {name}"
            )));
        }
        if let Some(user) = user_of(state, &source) {
            let message =
                format!("The disk resource 'projects/{PROJECT}/{source}' is already being used by '{user}'");
            return Err(refuse(400, "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", message));
        }
        self.0.ledger.made("attachment", &source, &device);
        let since = Instant::now() + self.0.times.others;
        let machine = &mut state.machines[at];
        machine.attached.push(Attached {
            source,
            device,
            since,
            until: None,
        });
        let target = machine.id();
        Ok(self.begin(
            state,
            ask,
            &format!("zones/{zone}"),
            target,
            self.0.times.others,
            None,
        ))
    }

    pub(crate) fn detach(&self, state: &mut Cloud, ask: &Ask, at: usize) -> Answer {
        let device = ask.query["deviceName"].clone();
        let until = Instant::now() + self.0.times.others;
        let machine: &mut Machine = &mut state.machines[at];
        let target = machine.id();
        let mut all = machine.attached.iter_mut();
        let Some(attached) = all.find(|one| one.device == device && !one.is_over()) else {
            return Err(invalid(format!(
                "No attached disk found with device name '{device}'"
            )));
        };
        attached.until.get_or_insert(until);
        let scope = format!("zones/{}", ask.at(1));
        Ok(self.begin(state, ask, &scope, target, self.0.times.others, None))
    }
}

/// The machine that has a disk.
fn user_of(state: &Cloud, source: &str) -> Option<String> {
    let has = |machine: &&Machine| {
        let is_it = |one: &Attached| one.source == source && !one.is_over();
        !machine.is_gone() && machine.attached.iter().any(is_it)
    };
    state.machines.iter().find(has).map(Machine::id)
}
