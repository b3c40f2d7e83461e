//! TPUs.

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::networks::{self, is_name};
use crate::{Answer, Ask, Cloud, Gcp, PAGE, PROJECT, Refusal, Times, invalid, is_zone, missing, refuse};

/// What a zone has, the software for it, and on how many hosts it is.
const TYPES: &[(&str, &str, u8)] = &[
    ("v2-8", "tpu-ubuntu2204-base", 1),
    ("v2-32", "tpu-ubuntu2204-base", 4),
    ("v3-8", "tpu-ubuntu2204-base", 1),
    ("v5p-8", "tpu-ubuntu2204-base", 1),
    ("v5p-16", "tpu-ubuntu2204-base", 2),
    ("v5litepod-1", "v2-alpha-tpuv5-lite", 1),
    ("v5litepod-4", "v2-alpha-tpuv5-lite", 1),
    ("v5litepod-8", "v2-alpha-tpuv5-lite", 1),
    ("v5litepod-16", "v2-alpha-tpuv5-lite", 4),
    ("v6e-1", "v2-alpha-tpuv6e", 1),
    ("v6e-4", "v2-alpha-tpuv6e", 1),
    ("v6e-8", "v2-alpha-tpuv6e", 1),
    ("v6e-16", "v2-alpha-tpuv6e", 4),
];

/// The most that a value of metadata may have ("VM metadata", limits).
const LONGEST_METADATA: usize = 256 * 1024;

#[derive(Debug, Clone)]
pub(crate) struct Node {
    zone: String,
    name: String,
    asked: Value,
    made_at: Instant,
    listed_at: Instant,
    pub(crate) stopped_at: Option<Instant>,
    gone_at: Option<Instant>,
    is_settled: bool,
    /// It comes to nothing: it is only listed for some seconds.
    is_doomed: bool,
    /// What its disks will be, and when.
    changes: Vec<(Instant, Value)>,
    hosts: u8,
    /// How far its addresses have moved.
    moved: u8,
}

impl Node {
    fn id(&self) -> String {
        format!("locations/{}/nodes/{}", self.zone, self.name)
    }

    fn is_gone(&self) -> bool {
        self.gone_at.is_some_and(|at| at <= Instant::now())
    }

    fn is_listed(&self) -> bool {
        self.listed_at <= Instant::now() && !self.is_gone()
    }

    fn is_ready(&self, times: Times) -> bool {
        self.gone_at.is_none() && self.stopped_at.is_none() && self.made_at.elapsed() >= times.starts
    }

    fn to_json(&self, times: Times) -> Value {
        let mut told = self.asked.clone();
        told["name"] = format!("projects/{PROJECT}/{}", self.id()).into();
        told["id"] = "4".into();
        told["createTime"] = "2026-10-01T12:00:00Z".into();
        told["state"] = match () {
            () if self.gone_at.is_some() => "DELETING",
            () if self.stopped_at.is_some() => "PREEMPTED",
            () if self.is_ready(times) => "READY",
            () => "CREATING",
        }
        .into();
        let endpoint = |host: u8| {
            let mut endpoint =
                json!({"ipAddress": format!("10.128.0.{}", 9 + self.moved + host), "port": 8470});
            if self.asked["networkConfig"]["enableExternalIps"] == true {
                let external = format!("203.0.113.{}", 80 + self.moved + host);
                endpoint["accessConfig"] = json!({"externalIp": external});
            }
            endpoint
        };
        if self.is_ready(times) {
            told["networkEndpoints"] = (0..self.hosts).map(endpoint).collect();
        }
        told
    }
}

impl Gcp {
    /// What was asked for with all TPUs that were ever made.
    pub fn asked_tpus(&self) -> Vec<Value> {
        let state = self.lock();
        let made = state.nodes.iter().filter(|node| !node.is_doomed);
        made.map(|node| node.asked.clone()).collect()
    }

    /// All TPUs have other addresses from now on.
    pub fn move_tpus(&self) {
        for node in &mut self.lock().nodes {
            node.moved += 10;
        }
    }

    pub(crate) fn settle_nodes(&self, state: &mut Cloud) {
        for node in &mut state.nodes {
            let is_due = |change: &mut (Instant, Value)| change.0 <= Instant::now();
            if let Some((_, disks)) = node.changes.extract_if(.., is_due).last() {
                node.asked["dataDisks"] = disks;
            }
            if node.is_gone() && !node.is_settled {
                node.is_settled = true;
                self.0.ledger.removed(&node.id());
            }
        }
    }

    pub(crate) fn lose_nodes(state: &mut Cloud) {
        let now = Instant::now();
        state
            .nodes
            .iter_mut()
            .for_each(|node| node.gone_at = node.gone_at.or(Some(now)));
    }

    pub(crate) fn nodes(&self, state: &mut Cloud, ask: &Ask) -> Answer {
        let times = self.0.times;
        let zone = ask.at(1).to_owned();
        if ask.called.name == "nodes.list" {
            let is_there = |one: &&Node| one.is_listed() && (zone == "-" || one.zone == zone);
            let is_reached = |one: &&Node| zone != "-" || !state.unreachable.contains(&one.zone);
            let all = state.nodes.iter().filter(is_there).filter(is_reached);
            let mut told = page(ask, "nodes", all.map(|one| one.to_json(times)).collect())?;
            if zone == "-" && !state.unreachable.is_empty() {
                let names = state
                    .unreachable
                    .iter()
                    .map(|zone| format!("projects/{PROJECT}/locations/{zone}"));
                told["unreachable"] = names.collect();
            }
            return Ok(told);
        }
        let scope = format!("locations/{zone}");
        if !is_zone(&zone) {
            return Err(missing(&scope));
        }
        let mut operations = state.operations.iter().filter(|one| one.scope == scope);
        match ask.called.name {
            "operations.list" => {
                return page(
                    ask,
                    "operations",
                    operations.map(crate::Operation::to_tpu_json).collect(),
                );
            }
            "operations.get" => {
                let found = operations.find(|one| one.name == ask.at(2));
                return found
                    .map(crate::Operation::to_tpu_json)
                    .ok_or_else(|| missing(ask.at(2)));
            }
            _ => {}
        }
        let (kind, target) = match ask.called.name {
            "nodes.create" => return self.create_node(state, ask, &zone),
            name => (name, format!("{scope}/nodes/{}", ask.at(2))),
        };
        let mut all = state.nodes.iter();
        let at = all.position(|one| one.is_listed() && one.id() == target);
        let at = at.ok_or_else(|| missing(&format!("projects/{PROJECT}/{target}")))?;
        match kind {
            "nodes.get" => return Ok(state.nodes[at].to_json(times)),
            "nodes.delete" => {
                state.nodes[at].gone_at.get_or_insert(Instant::now() + times.ends);
                self.begin(state, ask, &scope, target, times.ends, None);
            }
            _ => {
                if ask
                    .query
                    .get("updateMask")
                    .is_none_or(|mask| mask != "dataDisks" && mask != "data_disks")
                {
                    return Err(invalid("updateMask"));
                }
                if !state.nodes[at].is_ready(times) {
                    return Err(refuse(400, "FAILED_PRECONDITION", "The node is not READY."));
                }
                let disks = ask.body["dataDisks"].as_array().cloned().unwrap_or_default();
                check_disks(state, &zone, &disks)?;
                state.nodes[at]
                    .changes
                    .push((Instant::now() + times.others, disks.into()));
                self.begin(state, ask, &scope, target, times.others, None);
            }
        }
        Ok(state.operations.last().unwrap().to_tpu_json())
    }

    fn create_node(&self, state: &mut Cloud, ask: &Ask, zone: &str) -> Answer {
        let body = &ask.body;
        let name = ask.query.get("nodeId").cloned().unwrap_or_default();
        let kind = body["acceleratorType"].as_str().unwrap_or_default();
        let found = TYPES.iter().find(|(name, ..)| *name == kind);
        let found = found.filter(|_| !state.lacking.contains(&(zone.to_owned(), kind.to_owned())));
        let Some((_, runtime, hosts)) = found else {
            return Err(missing(&format!(
                "projects/{PROJECT}/locations/{zone}/acceleratorTypes/{kind}"
            )));
        };
        if !is_name(&name) || body["runtimeVersion"] != **runtime {
            return Err(invalid(format!(
                "Request contains an invalid argument: {name} {}",
                body["runtimeVersion"]
            )));
        }
        let metadata = body["metadata"]
            .as_object()
            .into_iter()
            .flat_map(|all| all.values());
        if metadata
            .filter_map(Value::as_str)
            .any(|value| value.len() > LONGEST_METADATA)
        {
            return Err(invalid("metadata"));
        }
        let interface = json!({"network": body["networkConfig"]["network"], "subnetwork": body["networkConfig"]["subnetwork"]});
        if let Some(problem) = networks::problem(state, zone, &[interface]) {
            return Err(invalid(problem));
        }
        let disks = body["dataDisks"].as_array().cloned().unwrap_or_default();
        // Those of several hosts can only be read.
        if *hosts > 1 && disks.iter().any(|disk| disk["mode"] != "READ_ONLY") {
            return Err(invalid("dataDisks"));
        }
        check_disks(state, zone, &disks)?;
        let now = Instant::now();
        let node = Node {
            zone: zone.to_owned(),
            name: name.clone(),
            asked: body.clone(),
            made_at: now,
            listed_at: now + state.lag,
            stopped_at: None,
            gone_at: None,
            is_settled: false,
            is_doomed: false,
            changes: Vec::new(),
            hosts: *hosts,
            moved: 0,
        };
        let target = node.id();
        if state.nodes.iter().any(|one| !one.is_gone() && one.id() == target) {
            return Err(refuse(
                409,
                "ALREADY_EXISTS",
                format!("The node {target} already exists"),
            ));
        }
        let failure = match state.failing.get(kind) {
            Some((status, code)) => Some(refuse(
                *status,
                code,
                "Quota limit 'TPUV5sLitepodPerProjectPerZoneForTPUAPI' has been exceeded.",
            )),
            None if state.sold_out || state.full.contains(zone) => {
                let text =
                    format!("There is no more capacity in the zone \"{zone}\"; you can try in another zone.");
                Some(refuse(429, "RESOURCE_EXHAUSTED", text))
            }
            None => None,
        };
        let (scope, times) = (format!("locations/{zone}"), self.0.times);
        match &failure {
            Some(failure) if state.is_hasty => return Err(failure.clone()),
            Some(_) => state.nodes.push(Node {
                gone_at: Some(now + times.refuses * 2),
                is_settled: true,
                is_doomed: true,
                ..node
            }),
            None => {
                self.0.ledger.made("machine", &target, &name);
                state.nodes.push(node);
            }
        }
        let takes = if failure.is_some() {
            times.refuses
        } else {
            times.starts
        };
        self.begin(state, ask, &scope, target, takes, failure);
        Ok(state.operations.last().unwrap().to_tpu_json())
    }
}

fn check_disks(state: &Cloud, zone: &str, disks: &[Value]) -> Result<(), Refusal> {
    for disk in disks {
        let source = disk["sourceDisk"].as_str().unwrap_or_default();
        if !state.has_disk(
            source
                .strip_prefix(&format!("projects/{PROJECT}/"))
                .unwrap_or_default(),
            zone,
        ) {
            return Err(missing(source));
        }
    }
    Ok(())
}

/// A page of a list of Cloud TPU.
fn page(ask: &Ask, field: &str, all: Vec<Value>) -> Answer {
    let begin = match ask.query.get("pageToken") {
        None => 0,
        Some(token) => token
            .strip_prefix("t")
            .and_then(|at| at.parse().ok())
            .ok_or_else(|| invalid("pageToken"))?,
    };
    let most: usize = match ask.query.get("pageSize") {
        None => PAGE,
        Some(most) => most.parse().map_err(|_| invalid("pageSize"))?,
    };
    let most = most.min(PAGE);
    let is_last = all.len() <= begin + most;
    let entries: Vec<Value> = all.into_iter().skip(begin).take(most).collect();
    let mut told = json!({field: entries});
    if !is_last {
        told["nextPageToken"] = format!("t{}", begin + most).into();
    }
    Ok(told)
}
