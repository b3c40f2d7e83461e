//! Policies of placement, and reservations.

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::instances::Machine;
use crate::lists::aggregated;
use crate::networks::is_name;
use crate::{Answer, Ask, Cloud, Gcp, PROJECT, Refusal, Times, invalid, missing, refuse};

#[derive(Debug, Clone)]
pub(crate) struct Policy {
    region: String,
    asked: Value,
    made_at: Instant,
    listed_at: Instant,
    gone_at: Option<Instant>,
    is_settled: bool,
}

impl Policy {
    fn id(&self) -> String {
        format!(
            "regions/{}/resourcePolicies/{}",
            self.region,
            self.asked["name"].as_str().unwrap()
        )
    }

    fn is_gone(&self) -> bool {
        self.gone_at.is_some_and(|at| at <= Instant::now())
    }

    fn is_listed(&self) -> bool {
        self.listed_at <= Instant::now() && !self.is_gone()
    }

    fn to_json(&self, times: Times) -> Value {
        let mut told = self.asked.clone();
        told["id"] = "3".into();
        told["status"] = match () {
            () if self.gone_at.is_some() => "DELETING",
            () if self.made_at.elapsed() < times.others => "CREATING",
            () => "READY",
        }
        .into();
        told["selfLink"] = format!(
            "https://www.googleapis.com/compute/v1/projects/{PROJECT}/{}",
            self.id()
        )
        .into();
        told
    }
}

/// Capacity that was reserved.
#[derive(Debug, Clone)]
pub struct Reservation {
    /// The project that has it.
    pub project: &'static str,
    /// The last part of its path.
    pub name: &'static str,
    /// The zone in which machines may use it, such as `us-central1-a`.
    pub zone: &'static str,
    /// Type of its machines.
    pub machine_type: &'static str,
    /// GPUs that are named: Google's name, and how many.
    pub gpus: Option<(&'static str, usize)>,
    /// How many machines it is for.
    pub count: usize,
    /// The policy that its machines have.
    pub placement: Option<&'static str>,
}

impl Reservation {
    fn path(&self) -> String {
        format!("projects/{}/reservations/{}", self.project, self.name)
    }

    fn used(&self, state: &Cloud) -> usize {
        let uses = |one: &&Machine| {
            !one.is_gone()
                && one.zone == self.zone
                && one.asked["reservationAffinity"]["values"] == json!([self.path()])
        };
        state.machines.iter().filter(uses).count()
    }

    fn to_json(&self, state: &Cloud) -> Value {
        let project = self.project;
        let link = format!(
            "https://www.googleapis.com/compute/v1/projects/{project}/zones/{}",
            self.zone
        );
        let gpus: Vec<Value> = self
            .gpus
            .iter()
            .map(|(name, count)| json!({"acceleratorType": name, "acceleratorCount": count}))
            .collect();
        let ssds = json!([{"diskSizeGb": "375", "interface": "NVME"}]);
        let count = self.count.to_string();
        let mut told = json!({"name": self.name, "selfLink": format!("{link}/reservations/{}", self.name), "zone": link,
            "status": "READY", "specificReservationRequired": true, "specificReservation": {
                "count": count, "assuredCount": count, "inUseCount": self.used(state).to_string(),
                "instanceProperties": {"machineType": self.machine_type, "guestAccelerators": gpus, "localSsds": ssds}}});
        if let Some(policy) = self.placement {
            told["resourcePolicies"] = json!({"placement": policy});
        }
        told
    }
}

impl Gcp {
    /// Capacity was reserved.
    pub fn add_reservation(&self, reservation: Reservation) {
        self.lock().reservations.push(reservation);
    }

    pub(crate) fn settle_policies(&self, state: &mut Cloud) {
        for policy in &mut state.policies {
            if policy.is_gone() && !policy.is_settled {
                policy.is_settled = true;
                self.0.ledger.removed(&policy.id());
            }
        }
    }

    pub(crate) fn reservations(state: &Cloud, ask: &Ask) -> Answer {
        let all = state.reservations.iter().filter(|one| one.project == ask.at(0));
        let all = all
            .map(|one| (format!("zones/{}", one.zone), one.to_json(state)))
            .collect();
        aggregated(ask, "reservations", all, |_| false)
    }

    pub(crate) fn policies(&self, state: &mut Cloud, ask: &Ask) -> Answer {
        let times = self.0.times;
        if ask.called.name == "resourcePolicies.aggregatedList" {
            let all = state.policies.iter().filter(|one| one.is_listed());
            let all = all
                .map(|one| (format!("regions/{}", one.region), one.to_json(times)))
                .collect();
            return aggregated(ask, "resourcePolicies", all, |_| false);
        }
        let region = ask.at(1).to_owned();
        let scope = format!("regions/{region}");
        if ask.called.name == "resourcePolicies.insert" {
            let name = ask.body["name"].as_str().unwrap_or_default();
            let placement = &ask.body["groupPlacementPolicy"];
            if !is_name(name) || placement["collocation"] != "COLLOCATED" {
                return Err(invalid(format!(
                    "Invalid value for field 'resource': {}",
                    ask.body
                )));
            }
            let now = Instant::now();
            let policy = Policy {
                region,
                asked: ask.body.clone(),
                made_at: now,
                listed_at: now + state.lag,
                gone_at: None,
                is_settled: false,
            };
            let id = policy.id();
            if state.policies.iter().any(|one| !one.is_gone() && one.id() == id) {
                return Err(refuse(
                    409,
                    "alreadyExists",
                    format!("The resource 'projects/{PROJECT}/{id}' already exists"),
                ));
            }
            if state.sold_out {
                return Err(refuse(
                    403,
                    "quotaExceeded",
                    "Quota 'RESOURCE_POLICIES' exceeded.",
                ));
            }
            self.0.ledger.made("placement group", &id, name);
            state.policies.push(policy);
            return Ok(self.begin(state, ask, &scope, id, times.others, None));
        }
        let id = format!("{scope}/resourcePolicies/{}", ask.at(2));
        let mut all = state.policies.iter();
        let at = all.position(|one| one.is_listed() && one.id() == id);
        let at = at.ok_or_else(|| missing(&format!("projects/{PROJECT}/{id}")))?;
        match ask.called.name {
            "resourcePolicies.get" => Ok(state.policies[at].to_json(times)),
            "resourcePolicies.delete" => {
                let link = format!("projects/{PROJECT}/{id}");
                let has = |one: &&Machine| !one.is_gone() && one.asked["resourcePolicies"] == json!([link]);
                if let Some(user) = state.machines.iter().find(has) {
                    let message = format!(
                        "The resource_policy resource '{link}' is already being used by '{}'",
                        user.id()
                    );
                    return Err(refuse(400, "resourceInUseByAnotherResource", message));
                }
                state.policies[at]
                    .gone_at
                    .get_or_insert(Instant::now() + times.others);
                Ok(self.begin(state, ask, &scope, id, times.others, None))
            }
            other => Err(missing(other)),
        }
    }
}

/// What is wrong with the policy or the reservation of a machine.
pub(crate) fn check(state: &Cloud, zone: &str, machine_type: &str, body: &Value) -> Result<(), Refusal> {
    for policy in body["resourcePolicies"].as_array().into_iter().flatten() {
        let link = policy.as_str().unwrap_or_default();
        let region = zone.rsplit_once('-').unwrap().0;
        let is_it = |one: &Policy| {
            one.is_listed() && one.region == region && format!("projects/{PROJECT}/{}", one.id()) == link
        };
        let of_reservation = state.reservations.iter().any(|one| one.placement == Some(link));
        if !of_reservation && !state.policies.iter().any(is_it) {
            return Err(missing(link));
        }
    }
    let affinity = &body["reservationAffinity"];
    if affinity.is_null() {
        return Ok(());
    }
    let is_named = affinity["consumeReservationType"] == "SPECIFIC_RESERVATION"
        && affinity["key"] == "compute.googleapis.com/reservation-name";
    let mut all = state.reservations.iter();
    let found = all.find(|one| one.zone == zone && affinity["values"] == json!([one.path()]));
    let Some(found) = found.filter(|one| is_named && one.machine_type == machine_type) else {
        return Err(invalid("Specified reservation is not found or does not match"));
    };
    let disks = body["disks"].as_array().into_iter().flatten();
    let ssds = disks.filter(|disk| disk["type"] == "SCRATCH" && disk["interface"] == "NVME");
    if ssds.count() != 1 {
        return Err(invalid("The reservation has another number of local SSDs"));
    }
    if found
        .placement
        .is_some_and(|policy| body["resourcePolicies"] != json!([policy]))
    {
        return Err(invalid("The reservation has another placement policy"));
    }
    match found.used(state) < found.count {
        true => Ok(()),
        false => Err(refuse(
            503,
            "ZONE_RESOURCE_POOL_EXHAUSTED",
            "The reservation has no available resources.",
        )),
    }
}
