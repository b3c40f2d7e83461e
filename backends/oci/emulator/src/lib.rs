//! Plays Oracle Cloud by its API description (as OCI's SDK for Python, 2.189, has it), for tests: Core Services, Identity and Marketplace.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::missing_panics_doc)] // tests

mod auth;
mod network;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use dstack_backend_kit::{Emulator, Ledger};
use serde_json::{Value, json};
use tokio::time::Instant;

/// The private key of the account.
pub const KEY: &str = include_str!("../key.pem");

/// The same key, whose passphrase is the kit's canary.
pub const ENCRYPTED_KEY: &str = include_str!("../key_encrypted.pem");

/// The tenancy of the account.
pub const TENANCY: &str = "ocid1.tenancy.oc1..aaaatenancy";

/// The user of the account.
pub const USER: &str = "ocid1.user.oc1..aaaauser";

/// Fingerprint of [`KEY`].
pub const FINGERPRINT: &str = "72:b2:59:2a:aa:98:3c:a8:dc:f3:56:01:f1:83:19:21";

/// The home region, with two availability domains.
pub const HOME: &str = "us-ashburn-1";

/// Another, with one.
pub const OTHER: &str = "eu-frankfurt-1";

/// A region that the tenancy is not subscribed to yet.
pub const PENDING: &str = "uk-london-1";

/// The most that a page has, and one of shapes.
const PAGE: usize = 2;
const PAGE_OF_SHAPES: usize = 8;

/// How long machines that have ended are listed.
const LISTED_AFTERWARDS: Duration = Duration::from_secs(3600);

const SHAPES: &[&str] = &[
    "VM.Standard2.1",
    "VM.Standard2.2",
    "VM.Standard2.4",
    "VM.Standard2.8",
    "VM.Standard2.16",
    "VM.Standard2.24",
    "BM.Standard2.52",
    "BM.Standard.E3.128",
    "BM.Standard.E4.128",
    "BM.Optimized3.36",
    "VM.Standard.E4.Flex",
    "VM.GPU3.1",
    "VM.GPU.A10.1",
    "BM.GPU.A10.4",
    "BM.GPU4.8",
];

const IMAGES: &[&str] = &[
    "dstack-0.14",
    "dstack-cuda-0.14",
    "dstack-cuda-0.10",
    "dstack-cuda-0.14-staging",
];

/// How long things take.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Until a machine runs.
    pub starts: Duration,
    /// Until a machine that is ended is gone.
    pub ends: Duration,
}

const USUAL: Times = Times {
    starts: Duration::from_secs(25),
    ends: Duration::from_secs(8),
};

/// Gives the address of a machine that is set up by this user data; `None`: there is no capacity.
pub type Machines = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// The vendor's cloud, with one tenancy.
#[derive(Debug, Clone)]
pub struct Oci(Arc<Shared>);

struct Shared {
    give_machine: Machines,
    times: Times,
    ledger: Ledger,
    state: Mutex<Cloud>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Oci")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Cloud {
    compartments: Vec<Value>,
    /// Networks and their parts, by path.
    parts: Vec<Part>,
    machines: Vec<Machine>,
    /// Agreements that were accepted: region, compartment, agreement.
    accepted: BTreeSet<(String, String, String)>,
    made: usize,
    sold_out: bool,
    full_domains: BTreeSet<String>,
    refused_shapes: BTreeMap<String, &'static str>,
    lag: Duration,
}

#[derive(Debug, Clone)]
struct Part {
    region: String,
    path: &'static str,
    told: Value,
}

#[derive(Debug, Clone)]
struct Machine {
    region: String,
    id: String,
    asked: Value,
    address: String,
    made_at: Instant,
    listed_at: Instant,
    ended_at: Option<Instant>,
    /// When it is gone.
    gone_at: Option<Instant>,
}

impl Machine {
    fn state(&self, times: Times) -> &'static str {
        match self.gone_at {
            Some(at) if at <= Instant::now() => "TERMINATED",
            Some(_) => "TERMINATING",
            None if self.made_at.elapsed() >= times.starts => "RUNNING",
            None => "PROVISIONING",
        }
    }

    fn is_listed(&self) -> bool {
        let now = Instant::now();
        self.listed_at <= now && self.gone_at.is_none_or(|at| now < at + LISTED_AFTERWARDS)
    }

    fn to_json(&self, times: Times) -> Value {
        let asked = &self.asked;
        json!({"id": self.id, "displayName": asked["displayName"], "compartmentId": asked["compartmentId"],
            "availabilityDomain": asked["availabilityDomain"], "shape": asked["shape"], "region": self.region,
            "freeformTags": asked["freeformTags"], "lifecycleState": self.state(times),
            "timeCreated": "2026-10-01T12:00:00.000Z"})
    }
}

/// Status, code and message.
type Refusal = (StatusCode, &'static str, &'static str);

/// What a call does; a text is the next page.
type Answer = Result<(Value, Option<String>), Refusal>;

const MISSING: Refusal = (
    StatusCode::NOT_FOUND,
    "NotAuthorizedOrNotFound",
    "Authorization failed or requested resource not found.",
);

const fn bad(message: &'static str) -> Refusal {
    (StatusCode::BAD_REQUEST, "InvalidParameter", message)
}

/// A request, as far as calls need it.
struct Ask<'a> {
    region: &'a str,
    method: &'a str,
    path: &'a [&'a str],
    query: BTreeMap<String, String>,
    body: Value,
}

impl Ask<'_> {
    fn query(&self, name: &str) -> Result<&str, Refusal> {
        self.query
            .get(name)
            .map(String::as_str)
            .ok_or(bad("a parameter is missing"))
    }

    /// A page of a list. The first has nothing, as may happen, in some lists.
    fn page(&self, all: Vec<Value>) -> Answer {
        let limit: usize = self
            .query
            .get("limit")
            .map_or(Ok(PAGE_OF_SHAPES), |limit| limit.parse())
            .unwrap_or(0);
        if limit == 0 {
            return Err(bad("limit"));
        }
        let page = match self.query.get("page") {
            Some(page) => page,
            None if matches!(self.path, ["shapes" | "listings"]) => {
                return Ok((json!([]), Some("p/0+".to_owned())));
            }
            None => "p/0+",
        };
        let at = page
            .strip_prefix("p/")
            .and_then(|page| page.strip_suffix('+')?.parse::<usize>().ok());
        let at = at.ok_or(bad("page"))?;
        let most = if self.path == ["shapes"] {
            PAGE_OF_SHAPES
        } else {
            PAGE
        };
        let end = at + limit.min(most);
        let next = (all.len() > end).then(|| format!("p/{end}+"));
        Ok((all.into_iter().skip(at).take(end - at).collect(), next))
    }

    /// The fields of the body are those that the description has.
    fn fields(&self, known: &[&str], required: &[&str]) -> Result<(), Refusal> {
        let fields = self.body.as_object().ok_or(bad("the body is no object"))?;
        let is_known = fields.keys().all(|field| known.contains(&field.as_str()));
        let is_whole = required
            .iter()
            .all(|field| self.body[*field].as_str().is_some_and(|text| !text.is_empty()));
        match is_known && is_whole {
            true => Ok(()),
            false => Err(bad("unknown or missing fields")),
        }
    }
}

impl Default for Oci {
    fn default() -> Self {
        Self::with_times(USUAL)
    }
}

impl Oci {
    /// A cloud with another pace.
    pub fn with_times(times: Times) -> Self {
        Self::with_machines(times, Box::new(|_| Some("203.0.113.60".to_owned())))
    }

    /// As [`Oci::with_times`], with machines that are real.
    pub fn with_machines(times: Times, give_machine: Machines) -> Self {
        Self(Arc::new(Shared {
            give_machine,
            times,
            ledger: Ledger::default(),
            state: Mutex::default(),
        }))
    }

    /// The tenancy has the network of project `main` in a region already, with the agreements of images.
    pub fn prepare(&self, region: &str) {
        let mut state = self.lock();
        let part = |path: &'static str, name: &str, more: &Value| {
            let mut told = json!({"id": format!("ocid1.{path}.{region}"), "displayName": format!("dstack-main-default-{name}"),
                "compartmentId": TENANCY, "lifecycleState": "AVAILABLE"});
            told.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            let region = region.to_owned();
            Part { region, path, told }
        };
        let (vcn, group) = (
            format!("ocid1.vcns.{region}"),
            format!("ocid1.networkSecurityGroups.{region}"),
        );
        let route = json!({"networkEntityId": format!("ocid1.internetGateways.{region}")});
        let rule = json!({"id": "1", "direction": "INGRESS", "protocol": "all", "source": group});
        let in_vcn = json!({"vcnId": vcn});
        state.parts.extend([
            part("vcns", "vcn", &json!({"rules": [route]})),
            part("internetGateways", "internet-gateway", &in_vcn),
            part("subnets", "subnet", &in_vcn),
            part(
                "networkSecurityGroups",
                "security-group",
                &json!({"vcnId": vcn, "rules": [rule]}),
            ),
        ]);
        for agreement in IMAGES
            .iter()
            .flat_map(|image| ["eula", "terms"].map(|one| format!("{image}-{one}")))
        {
            state
                .accepted
                .insert((region.to_owned(), TENANCY.to_owned(), agreement));
        }
    }

    /// An availability domain has nothing left, which no report says yet.
    pub fn fill(&self, domain: &str) {
        self.lock().full_domains.insert(domain.to_owned());
    }

    /// Launches of a shape are refused with this code.
    pub fn refuse(&self, shape: &str, code: &'static str) {
        self.lock().refused_shapes.insert(shape.to_owned(), code);
    }

    /// What was asked for with the launch of the machine of this name.
    pub fn asked(&self, name: &str) -> Option<Value> {
        let state = self.lock();
        let machine = state
            .machines
            .iter()
            .rev()
            .find(|machine| machine.asked["displayName"] == *name);
        machine.map(|machine| machine.asked.clone())
    }

    /// How many networks and parts of them there are, by path.
    pub fn parts(&self, path: &str) -> usize {
        self.lock().parts.iter().filter(|part| part.path == path).count()
    }

    /// The compartments that were made.
    pub fn compartments(&self) -> Vec<String> {
        let state = self.lock();
        state
            .compartments
            .iter()
            .map(|one| one["name"].as_str().unwrap().to_owned())
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Cloud> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is gone costs nothing any more.
    fn settle(&self) {
        for machine in &self.lock().machines {
            if machine.state(self.0.times) == "TERMINATED" {
                self.0.ledger.removed(&machine.id);
            }
        }
    }

    fn identity(&self, ask: &Ask<'_>) -> Answer {
        let mut state = self.lock();
        match (ask.method, ask.path) {
            ("GET", ["tenancies", tenancy, "regionSubscriptions"]) if *tenancy == TENANCY => {
                let region = |name: &str, status: &str| json!({"regionName": name, "regionKey": name, "status": status, "isHomeRegion": name == HOME});
                Ok((
                    json!([
                        region(HOME, "READY"),
                        region(OTHER, "READY"),
                        region(PENDING, "IN_PROGRESS")
                    ]),
                    None,
                ))
            }
            ("GET", ["availabilityDomains"]) => {
                is_compartment(&state, ask.query("compartmentId")?)?;
                let domain = |name: String| json!({"name": name, "id": name, "compartmentId": TENANCY});
                Ok((domains(ask.region).into_iter().map(domain).collect(), None))
            }
            ("GET", ["compartments", id]) => {
                let found = state.compartments.iter().find(|one| one["id"] == **id);
                Ok((found.cloned().ok_or(MISSING)?, None))
            }
            ("GET", ["compartments"]) => {
                let (parent, name) = (ask.query("compartmentId")?, ask.query.get("name"));
                let is_wanted = |one: &&Value| {
                    one["compartmentId"] == *parent && name.is_none_or(|name| one["name"] == **name)
                };
                ask.page(state.compartments.iter().filter(is_wanted).cloned().collect())
            }
            ("POST", ["compartments"]) if ask.region == HOME => {
                let known = [
                    "compartmentId",
                    "name",
                    "description",
                    "freeformTags",
                    "definedTags",
                ];
                ask.fields(&known, &["compartmentId", "name", "description"])?;
                if state
                    .compartments
                    .iter()
                    .any(|one| one["name"] == ask.body["name"])
                {
                    return Err((StatusCode::CONFLICT, "CompartmentAlreadyExists", "it exists"));
                }
                let mut made = ask.body.clone();
                made["id"] = format!("ocid1.compartment.oc1..{}", state.compartments.len()).into();
                made["lifecycleState"] = "ACTIVE".into();
                made["timeCreated"] = "2026-10-01T12:00:00.000Z".into();
                state.compartments.push(made.clone());
                Ok((made, None))
            }
            _ => Err(MISSING),
        }
    }

    fn marketplace(&self, ask: &Ask<'_>) -> Answer {
        let mut state = self.lock();
        let is_image = |name: &str| IMAGES.contains(&name);
        match (ask.method, ask.path) {
            ("GET", ["listings"]) => {
                let name = ask.query("name")?;
                if ask.query("listingTypes")? != "COMMUNITY" {
                    return Err(bad("listingTypes"));
                }
                let found = IMAGES.iter().filter(|image| image.starts_with(name));
                ask.page(
                    found
                        .map(|image| json!({"id": image, "name": image, "listingType": "COMMUNITY"}))
                        .collect(),
                )
            }
            ("GET", ["listings", id]) if is_image(id) => Ok((
                json!({"id": id, "name": id, "defaultPackageVersion": "1", "listingType": "COMMUNITY"}),
                None,
            )),
            ("GET", ["listings", id, "packages", "1"]) if is_image(id) => Ok((
                json!({"packageType": "IMAGE", "version": "1", "listingId": id, "resourceId": "r",
                    "imageId": image_id(ask.region, id)}),
                None,
            )),
            ("GET", ["listings", id, "packages", "1", "agreements"]) if is_image(id) => ask.page(
                ["eula", "terms"]
                    .map(|one| json!({"id": format!("{id}-{one}"), "contentUrl": "https://example.com"}))
                    .into(),
            ),
            ("GET", ["listings", id, "packages", "1", "agreements", agreement]) if is_image(id) => Ok((
                json!({"id": agreement, "contentUrl": "https://example.com", "signature": format!("{agreement} signed")}),
                None,
            )),
            ("GET", ["acceptedAgreements"]) => {
                let compartment = ask.query("compartmentId")?;
                let listing = ask.query("listingId")?;
                let found = state.accepted.iter().filter(|(region, of, agreement)| {
                    region == ask.region && of == compartment && agreement.starts_with(listing)
                });
                ask.page(
                    found
                        .map(|(_, _, agreement)| json!({"id": agreement, "agreementId": agreement}))
                        .collect(),
                )
            }
            ("POST", ["acceptedAgreements"]) => {
                let required = [
                    "compartmentId",
                    "listingId",
                    "packageVersion",
                    "agreementId",
                    "signature",
                ];
                let known = ["displayName", "freeformTags", "definedTags"];
                ask.fields(&[&required[..], &known[..]].concat(), &required)?;
                let text = |name: &str| ask.body[name].as_str().unwrap().to_owned();
                is_compartment(&state, &text("compartmentId"))?;
                if text("signature") != format!("{} signed", text("agreementId")) {
                    return Err(bad("signature"));
                }
                state
                    .accepted
                    .insert((ask.region.to_owned(), text("compartmentId"), text("agreementId")));
                Ok((
                    json!({"id": text("agreementId"), "agreementId": text("agreementId")}),
                    None,
                ))
            }
            _ => Err(MISSING),
        }
    }

    fn core(&self, ask: &Ask<'_>) -> Answer {
        match (ask.method, ask.path) {
            ("GET", ["shapes"]) => {
                is_compartment(&self.lock(), ask.query("compartmentId")?)?;
                let domain = ask.query("availabilityDomain")?;
                let within = SHAPES.iter().filter(|shape| is_within_limits(domain, shape));
                ask.page(within.map(|shape| json!({"shape": shape})).collect())
            }
            ("POST", ["computeCapacityReports"]) => {
                ask.fields(
                    &["compartmentId", "availabilityDomain", "shapeAvailabilities"],
                    &["compartmentId", "availabilityDomain"],
                )?;
                let domain = ask.body["availabilityDomain"].as_str().unwrap();
                let shapes = ask.body["shapeAvailabilities"]
                    .as_array()
                    .ok_or(bad("shapeAvailabilities"))?;
                if shapes.is_empty() || shapes.len() > 10 {
                    return Err(bad("shapeAvailabilities"));
                }
                let told: Result<Vec<Value>, Refusal> = shapes
                    .iter()
                    .map(|one| {
                        let shape = one["instanceShape"].as_str().ok_or(bad("instanceShape"))?;
                        let status = if is_free(domain, shape) {
                            "AVAILABLE"
                        } else {
                            "OUT_OF_HOST_CAPACITY"
                        };
                        Ok(json!({"instanceShape": shape, "availabilityStatus": status}))
                    })
                    .collect();
                Ok((
                    json!({"compartmentId": ask.body["compartmentId"], "availabilityDomain": domain,
                    "shapeAvailabilities": told?, "timeCreated": "2026-10-01T12:00:00.000Z"}),
                    None,
                ))
            }
            (_, ["instances" | "vnicAttachments" | "vnics", ..]) => self.machines(ask),
            _ => self.network(ask),
        }
    }

    fn machines(&self, ask: &Ask<'_>) -> Answer {
        let times = self.0.times;
        if (ask.method, ask.path) == ("POST", &["instances"]) {
            return self.launch(ask);
        }
        let mut state = self.lock();
        let find = |state: &Cloud, id: &str| {
            let is_it = |one: &Machine| one.id == id && one.region == ask.region && one.is_listed();
            state.machines.iter().position(is_it).ok_or(MISSING)
        };
        match (ask.method, ask.path) {
            ("GET", ["instances"]) => {
                let compartment = ask.query("compartmentId")?;
                is_compartment(&state, compartment)?;
                let all = state
                    .machines
                    .iter()
                    .filter(|one| one.region == ask.region && one.is_listed());
                let all = all.filter(|one| one.asked["compartmentId"] == *compartment);
                ask.page(all.map(|one| one.to_json(times)).collect())
            }
            ("GET", ["instances", id]) => {
                let at = find(&state, id)?;
                Ok((state.machines[at].to_json(times), None))
            }
            ("DELETE", ["instances", id]) => {
                let at = find(&state, id)?;
                let keeps = ask
                    .query("preserveBootVolume")
                    .is_ok_and(|keeps| keeps != "false");
                if keeps {
                    return Err(bad("the boot volume would be left"));
                }
                let machine = &mut state.machines[at];
                if machine.gone_at.is_some() {
                    return Err((StatusCode::CONFLICT, "IncorrectState", "it is terminating"));
                }
                machine.ended_at = Some(Instant::now());
                machine.gone_at = Some(Instant::now() + times.ends);
                Ok((Value::Null, None))
            }
            ("GET", ["vnicAttachments"]) => {
                let at = find(&state, ask.query("instanceId")?)?;
                ask.query("compartmentId")?;
                let machine = &state.machines[at];
                let is_attached = machine.made_at.elapsed() >= times.starts / 2;
                let status = if is_attached { "ATTACHED" } else { "ATTACHING" };
                ask.page(vec![json!({"id": "a", "instanceId": machine.id, "lifecycleState": status,
                    "availabilityDomain": machine.asked["availabilityDomain"], "compartmentId": machine.asked["compartmentId"],
                    "timeCreated": "2026-10-01T12:00:00.000Z", "vnicId": format!("vnic.{}", machine.id)})])
            }
            ("GET", ["vnics", id]) => {
                let at = find(&state, id.strip_prefix("vnic.").ok_or(MISSING)?)?;
                let Machine { asked, address, .. } = &state.machines[at];
                // Who has no way to the internet is not reached from there.
                let address = is_routed(&state, &asked["createVnicDetails"]["subnetId"]).then_some(address);
                Ok((
                    json!({"id": id, "lifecycleState": "AVAILABLE", "publicIp": address, "privateIp": "10.0.0.7",
                    "availabilityDomain": asked["availabilityDomain"], "compartmentId": asked["compartmentId"],
                    "timeCreated": "2026-10-01T12:00:00.000Z"}),
                    None,
                ))
            }
            _ => Err(MISSING),
        }
    }

    fn launch(&self, ask: &Ask<'_>) -> Answer {
        let known = [
            "agentConfig",
            "availabilityConfig",
            "availabilityDomain",
            "capacityReservationId",
            "compartmentId",
            "computeClusterId",
            "createVnicDetails",
            "dedicatedVmHostId",
            "definedTags",
            "displayName",
            "extendedMetadata",
            "faultDomain",
            "freeformTags",
            "hostnameLabel",
            "instanceOptions",
            "launchOptions",
            "launchVolumeAttachments",
            "metadata",
            "platformConfig",
            "preemptibleInstanceConfig",
            "shape",
            "shapeConfig",
            "sourceDetails",
            "subnetId",
        ];
        ask.fields(&known, &["availabilityDomain", "compartmentId", "shape"])?;
        let body = &ask.body;
        let mut state = self.lock();
        is_compartment(&state, body["compartmentId"].as_str().unwrap())?;
        let (domain, shape) = (
            body["availabilityDomain"].as_str().unwrap(),
            body["shape"].as_str().unwrap(),
        );
        let source = &body["sourceDetails"];
        let is_source = source["sourceType"] == "image"
            && source["bootVolumeSizeInGBs"]
                .as_i64()
                .is_some_and(|size| (50..=32_768).contains(&size));
        let user_data = body["metadata"]["user_data"]
            .as_str()
            .and_then(|text| BASE64_STANDARD.decode(text).ok())
            .and_then(|bytes| String::from_utf8(bytes).ok())
            .filter(|text| text.starts_with("#cloud-config"));
        let tags = body["freeformTags"].as_object();
        let is_tags = tags.is_none_or(|tags| tags.len() <= 10 && tags.values().all(Value::is_string));
        let spot = &body["preemptibleInstanceConfig"];
        let is_spot = spot.is_null() || spot["preemptionAction"]["type"] == "TERMINATE";
        let is_domain = domains(ask.region).iter().any(|name| name == domain);
        if !is_source || !is_tags || !is_spot || !is_domain {
            return Err(bad("invalid launch"));
        }
        let user_data = user_data.ok_or(bad("invalid launch"))?;
        let vnic = &body["createVnicDetails"];
        let has = |path: &str, id: &Value| {
            state
                .parts
                .iter()
                .any(|part| part.path == path && part.region == ask.region && part.told["id"] == *id)
        };
        let groups = vnic["nsgIds"].as_array().into_iter().flatten();
        if !has("subnets", &vnic["subnetId"])
            || !groups.into_iter().all(|id| has("networkSecurityGroups", id))
        {
            return Err(MISSING);
        }
        let compartment = body["compartmentId"].as_str().unwrap();
        let is_image = IMAGES.iter().any(|image| {
            let is_accepted = |one: &str| {
                let agreement = format!("{image}-{one}");
                state
                    .accepted
                    .contains(&(ask.region.to_owned(), compartment.to_owned(), agreement))
            };
            source["imageId"] == *image_id(ask.region, image) && is_accepted("eula") && is_accepted("terms")
        });
        if !is_image {
            return Err(MISSING);
        }
        if let Some(code) = state.refused_shapes.get(shape) {
            return Err((
                StatusCode::BAD_REQUEST,
                code,
                "The following service limits were exceeded.",
            ));
        }
        let is_full = state.sold_out || state.full_domains.contains(domain) || !SHAPES.contains(&shape);
        let address = (!is_full).then(|| (self.0.give_machine)(&user_data)).flatten();
        let address = address.ok_or((
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalError",
            "Out of host capacity.",
        ))?;
        state.made += 1;
        let id = format!("ocid1.instance.oc1.{}.{:06}", ask.region, state.made);
        let name = body["displayName"].as_str().unwrap_or("instance20261001");
        self.0.ledger.made("machine", &id, name);
        let now = Instant::now();
        let machine = Machine {
            region: ask.region.to_owned(),
            id,
            asked: body.clone(),
            address,
            made_at: now,
            listed_at: now + state.lag,
            ended_at: None,
            gone_at: None,
        };
        let told = machine.to_json(self.0.times);
        state.machines.push(machine);
        Ok((told, None))
    }
}

fn domains(region: &str) -> Vec<String> {
    let count = if region == HOME { 2 } else { 1 };
    (1..=count)
        .map(|number| format!("Uocm:{}-AD-{number}", region.to_uppercase()))
        .collect()
}

/// Machines with GPUs are allowed in the second domain only, and some nowhere.
fn is_within_limits(domain: &str, shape: &str) -> bool {
    let is_second = domain.ends_with("-2");
    shape != "BM.GPU4.8" && (is_second || !shape.contains("GPU"))
}

/// Bare metal is not free, but for one.
fn is_free(domain: &str, shape: &str) -> bool {
    is_within_limits(domain, shape) && (!shape.starts_with("BM.") || shape == "BM.Standard2.52")
}

fn image_id(region: &str, name: &str) -> String {
    format!("ocid1.image.oc1.{region}.{name}")
}

fn is_compartment(state: &Cloud, id: &str) -> Result<(), Refusal> {
    let is_there = id == TENANCY || state.compartments.iter().any(|one| one["id"] == *id);
    is_there.then_some(()).ok_or(MISSING)
}

/// Whether machines of a subnet have a way to the internet.
fn is_routed(state: &Cloud, subnet: &Value) -> bool {
    let find = |path: &str, id: &Value| {
        state
            .parts
            .iter()
            .find(|part| part.path == path && part.told["id"] == *id)
    };
    let vcn = find("subnets", subnet).and_then(|subnet| find("vcns", &subnet.told["vcnId"]));
    vcn.is_some_and(|vcn| {
        let rules = vcn.told["rules"].as_array().into_iter().flatten();
        rules
            .into_iter()
            .any(|rule| find("internetGateways", &rule["networkEntityId"]).is_some())
    })
}

/// The service's name, the region, and the path below the host.
fn place<'a>(host: &'a str, path: &'a str) -> Option<(&'a str, &'a str, &'a str)> {
    // By the host, or by a first part of the path where that is not the vendor's.
    let (host, path) = match host.contains("oraclecloud.com") {
        true => (host, path),
        false => path
            .strip_prefix('/')?
            .split_once('/')
            .map(|(host, _)| (host, &path[host.len() + 1..]))?,
    };
    let mut parts = host.split('.');
    Some((parts.next()?, parts.next()?, path))
}

async fn serve(
    State(cloud): State<Oci>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let refused = |(status, code, message): Refusal| {
        (status, Json(json!({"code": code, "message": message}))).into_response()
    };
    let host = headers
        .get("host")
        .and_then(|host| host.to_str().ok())
        .unwrap_or_default()
        .to_owned();
    let key_id = format!("{TENANCY}/{USER}/{FINGERPRINT}");
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    if !auth::is_signed(&key_id, &method, target, &headers, &body) {
        return refused((
            StatusCode::UNAUTHORIZED,
            "NotAuthenticated",
            "The required information to complete authentication was not provided.",
        ));
    }
    let Some((service, region, path)) = place(&host, uri.path()) else {
        return refused(MISSING);
    };
    let path: Vec<&str> = path.split('/').skip(1).collect();
    let query = url::form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    let ask = Ask {
        region,
        method: method.as_str(),
        path: path.get(1..).unwrap_or_default(),
        query: query.into_owned().collect(),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    };
    cloud.settle();
    let answer = match (service, path.first().copied()) {
        ("iaas", Some("20160918")) => cloud.core(&ask),
        ("identity", Some("20160918")) => cloud.identity(&ask),
        ("marketplace", Some("20181001")) => cloud.marketplace(&ask),
        _ => Err(MISSING),
    };
    cloud.settle();
    match answer {
        Ok((Value::Null, _)) => StatusCode::NO_CONTENT.into_response(),
        Ok((told, None)) => Json(told).into_response(),
        Ok((told, Some(next))) => ([("opc-next-page", next)], Json(told)).into_response(),
        Err(refusal) => refused(refusal),
    }
}

impl Emulator for Oci {
    fn router(&self) -> Router {
        Router::new().fallback(serve).with_state(self.clone())
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
            machine.gone_at.get_or_insert(now);
        }
        self.settle();
    }
}
