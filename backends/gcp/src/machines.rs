//! The life of a machine: an instance of Compute Engine.
//!
//! It is asked for in one zone after the other. A call for one gives an operation, which tells only after some seconds whether there was
//! room.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{Made, look_by_place, machine_place, not_asked};
use dstack_compute::{
    Call, ComputeError, Known, LISTED_WITHIN, Lifecycle, Machine, MachineRequest, Marks, OwnedMark, Removal,
    Sign, Step,
};
use dstack_model::runs::JobProvisioningData;
use futures_util::StreamExt as _;
use futures_util::stream;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::Gcp;
use crate::client::{Instance, Outcome, last, plain};
use crate::errors::{GcpError, Told, known};
use crate::instance::{Parts, USER, instance};
use crate::labels::{OURS, labels};
use crate::tpu::{Node, is_tpu, node};

/// Longest name of a resource.
pub(crate) const NAME_LENGTH: usize = 63;

const MACHINE: &str = "instance";

/// What is noted before an instance is asked for. It is no piece of Google's.
const CHOICE: &str = "choice of the instance";

/// The operation of an attempt that came to nothing. What another call of it makes all the same is being deleted, and never used.
const GIVEN_UP: &str = "attempt that was given up";

/// Pause while it shows whether there is room for a machine.
const MAKES_INTERVAL: Duration = Duration::from_secs(5);

/// Pause while a machine starts, which takes less than a minute. Google allows 1500 reads a minute in a region: enough for two hundred
/// machines at once.
pub(crate) const STARTS_INTERVAL: Duration = Duration::from_secs(10);

/// Pause while something is being taken away.
pub(crate) const ENDS_INTERVAL: Duration = Duration::from_secs(10);

/// Pause before the next zone is tried.
const NEXT_ZONE: Duration = Duration::from_secs(1);

/// Instances that are asked for by their names at the same time.
pub(crate) const PARALLEL: usize = 8;

pub(crate) const SSH_PORT: i64 = 22;

/// What a machine is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose<'a> {
    /// Jobs, with an agent.
    Jobs,
    /// Jobs on several hosts of a TPU, each with a container.
    Pod {
        /// The script that all hosts start with.
        startup: &'a str,
    },
    /// The program of gateways, without an agent.
    Gateway {
        /// It is to be reached from everywhere.
        is_public: bool,
    },
}

impl Purpose<'_> {
    pub(crate) const fn is_gateway(self) -> bool {
        matches!(self, Self::Gateway { .. })
    }
}

/// Where a machine is: an instance of Compute Engine, or a node of Cloud TPU.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Site {
    pub(crate) zone: String,
    #[serde(default)]
    pub(crate) is_tpu: bool,
}

impl Site {
    /// The path of a machine in the project.
    ///
    /// # Errors
    /// There is none, as a name is none of Google's.
    pub(crate) fn path(&self, name: &str) -> Result<String, ComputeError> {
        let (zone, name) = (plain(&self.zone)?, plain(name)?);
        Ok(match self.is_tpu {
            true => format!("locations/{zone}/nodes/{name}"),
            false => format!("zones/{zone}/instances/{name}"),
        })
    }

    /// As it is stored with a machine (dstack 0.22.5).
    pub(crate) fn data(&self) -> String {
        let zone = &self.zone;
        let data = match self.is_tpu {
            true => json!({"is_tpu": true, "zone": zone}),
            false => json!({"zone": zone}),
        };
        data.to_string()
    }

    /// The path of its zone, where its operations are.
    pub(crate) fn scope(&self) -> String {
        match self.is_tpu {
            true => format!("locations/{}", self.zone),
            false => format!("zones/{}", self.zone),
        }
    }
}

/// Where an instance is asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Choice {
    #[serde(flatten)]
    pub(crate) site: Site,
    /// The id of the request: what is asked for twice is made once.
    request: String,
    /// Zones that had no room.
    tried: Vec<String>,
}

/// What is noted of an instance that was asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Launched {
    /// What tells whether it is made; `None`: it is there.
    pub(crate) operation: Option<String>,
    pub(crate) made: Made,
}

#[async_trait]
impl Lifecycle<Machine> for Gcp {
    async fn ensure(
        &self,
        want: &MachineRequest,
        call: &Call<'_>,
    ) -> Result<Step<JobProvisioningData>, ComputeError> {
        self.ensure_machine(want, Purpose::Jobs, call).await
    }

    async fn look(
        &self,
        known: &[Known<Machine>],
    ) -> Result<Vec<Option<Sign<JobProvisioningData>>>, ComputeError> {
        let site = |known: &Known<Machine>| known.place.as_ref().map(site_of);
        look_by_place(known, site, |site, known| self.signs_in(site, known)).await
    }

    async fn remove(&self, known: &Known<Machine>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let place = known.place.as_ref();
        let place = place.map(|place| (site_of(place), place.instance_id.clone()));
        self.remove_instance(&known.marks, place, call).await
    }
}

/// The next attempt makes another choice.
async fn forget_choice(call: &Call<'_>) -> Result<(), ComputeError> {
    let gone = async |_: Choice| Ok(Removal::Gone);
    let forgotten = call.unmake(CHOICE, None, Duration::ZERO, async || Ok(None), gone);
    forgotten.await.map(drop)
}

fn is_given_up(launched: &Launched, call: &Call<'_>) -> Result<bool, ComputeError> {
    let given_up: Option<String> = call.made(GIVEN_UP)?;
    Ok(given_up.is_some() && given_up == launched.operation)
}

async fn give_up(launched: &Launched, call: &Call<'_>) -> Result<(), ComputeError> {
    if let Some(operation) = &launched.operation
        && !is_given_up(launched, call)?
    {
        forget_given_up(call).await?;
        call.choose(GIVEN_UP, operation.clone()).await?;
    }
    Ok(())
}

async fn forget_given_up(call: &Call<'_>) -> Result<(), ComputeError> {
    let gone = async |_: String| Ok(Removal::Gone);
    let forgotten = call.unmake(GIVEN_UP, None, Duration::ZERO, async || Ok(None), gone);
    forgotten.await.map(drop)
}

/// What was made, and where.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) site: Site,
    pub(crate) instance: Instance,
}

impl Gcp {
    /// Makes a machine, unless it is made, and tells how far it is.
    pub(crate) async fn ensure_machine(
        &self,
        want: &MachineRequest,
        purpose: Purpose<'_>,
        call: &Call<'_>,
    ) -> Result<Step<JobProvisioningData>, ComputeError> {
        Ok(match self.ensure_running(want, purpose, call).await? {
            Step::Ready(running) => self.reached(want, purpose, &running),
            Step::Underway { doing, again, .. } => waits_for(&doing, again),
        })
    }

    /// Makes an instance or a TPU, unless it is made, and waits until it runs.
    pub(crate) async fn ensure_running(
        &self,
        want: &MachineRequest,
        purpose: Purpose<'_>,
        call: &Call<'_>,
    ) -> Result<Step<Running>, ComputeError> {
        let launched = match call.made::<Launched>(MACHINE)? {
            Some(launched) => launched,
            None => self.launch(want, purpose, call).await?,
        };
        let Some(choice) = call.made::<Choice>(CHOICE)? else {
            return Err(ComputeError::Broken(
                "it is not noted where the instance was asked for".to_owned(),
            ));
        };
        let instance = self.instance(&choice.site, &launched.made.id).await?;
        // What comes to nothing is listed for some seconds as one that stops: only its operation tells why.
        let may_have_failed = instance.as_ref().is_none_or(|instance| match state(instance) {
            State::Ends(_) | State::Over(_) => launched.operation.is_some(),
            State::Starts | State::Runs => false,
        });
        match instance {
            Some(instance) if !may_have_failed && !is_given_up(&launched, call)? => {
                running(&choice, instance)
            }
            instance => self.not_there(want, &choice, &launched, instance, call).await,
        }
    }

    /// Ends what was made for these marks: at this place and of this name, if that is known.
    pub(crate) async fn remove_instance(
        &self,
        marks: &Marks,
        place: Option<(Site, String)>,
        call: &Call<'_>,
    ) -> Result<Removal, ComputeError> {
        let choice: Option<Choice> = call.made(CHOICE)?;
        let (place, made) = place.unzip();
        let Some(site) = place.or_else(|| choice.map(|choice| choice.site)) else {
            // Before anything is asked for, it is noted where.
            return Ok(Removal::Gone);
        };
        let made = made.map(|name| Launched {
            operation: None,
            made: Made::long_ago(name),
        });
        let find = async || {
            let name = marks.name(NAME_LENGTH);
            let found = self.find_instance(&site, &name, marks).await?;
            Ok(found.then(|| Launched {
                operation: None,
                made: Made::now(name, call),
            }))
        };
        let delete = async |launched: Launched| {
            let told = self.terminate(&site, &launched.made.id).await?;
            Ok(launched.made.removal(call, told, ENDS_INTERVAL))
        };
        let removal = call.unmake(MACHINE, made, LISTED_WITHIN, find, delete).await?;
        if removal == Removal::Gone {
            forget_given_up(call).await?;
            forget_choice(call).await?;
        }
        Ok(removal)
    }

    /// Asks for the instance in the first zone that was not tried.
    async fn launch(
        &self,
        want: &MachineRequest,
        purpose: Purpose<'_>,
        call: &Call<'_>,
    ) -> Result<Launched, ComputeError> {
        loop {
            let choice: Choice = match call.made(CHOICE)? {
                Some(choice) => choice,
                None => {
                    let zones = self.zones_to_try(want).await?;
                    self.choose(want, &zones, Vec::new(), None, call).await?
                }
            };
            let ask = || self.insert(want, purpose, &choice, call);
            match call.make_once(MACHINE, ask).await {
                // Not as long as an earlier call, whose answer was lost, may have made it in this zone.
                Err(error) if is_of_zone(&error, &choice.site) && call.asked_at(MACHINE).is_none() => {
                    self.choose_next(want, choice, error, call).await?;
                }
                made => return made,
            }
        }
    }

    /// Zones of an offer, or those of its region.
    ///
    /// # Errors
    /// Google has no such region, or does not tell.
    async fn zones_to_try(&self, want: &MachineRequest) -> Result<Vec<String>, ComputeError> {
        if let Some(zones) = &want.offer.availability_zones {
            return Ok(zones.clone());
        }
        let region = &want.offer.region;
        let zones = self.zones_in(region).await.map_err(not_asked)?;
        match zones.is_empty() {
            true => Err(ComputeError::Refused(format!(
                "Google has no region {region}: check `region`"
            ))),
            false => Ok(zones),
        }
    }

    /// Notes where the instance is asked for next.
    ///
    /// # Errors
    /// There is no zone left.
    async fn choose(
        &self,
        want: &MachineRequest,
        zones: &[String],
        tried: Vec<String>,
        refusal: Option<ComputeError>,
        call: &Call<'_>,
    ) -> Result<Choice, ComputeError> {
        let Some(zone) = zones.iter().find(|zone| !tried.contains(zone)) else {
            let none = || {
                let text = format!("there is no zone in {} that could be tried", want.offer.region);
                ComputeError::NoCapacity(text)
            };
            return Err(refusal.unwrap_or_else(none));
        };
        let choice = Choice {
            site: Site {
                zone: zone.clone(),
                is_tpu: is_tpu(&want.offer.instance.name),
            },
            request: self.kind.env.random.uuid().to_string(),
            tried,
        };
        call.choose(CHOICE, choice).await
    }

    async fn choose_next(
        &self,
        want: &MachineRequest,
        before: Choice,
        refusal: ComputeError,
        call: &Call<'_>,
    ) -> Result<Choice, ComputeError> {
        let zones = self.zones_to_try(want).await?;
        let mut tried = before.tried;
        tried.push(before.site.zone);
        forget_choice(call).await?;
        self.choose(want, &zones, tried, Some(refusal), call).await
    }

    async fn insert(
        &self,
        want: &MachineRequest,
        purpose: Purpose<'_>,
        choice: &Choice,
        call: &Call<'_>,
    ) -> Result<Launched, ComputeError> {
        let offer = &want.offer;
        let reservation = match &want.reservation {
            Some(name) => {
                let mut zones = self.reservation(name).await.map_err(not_asked)?;
                let zone = &choice.site.zone;
                let none = || ComputeError::NoCapacity(format!("there is no reservation {name} in {zone}"));
                Some(zones.remove(zone).ok_or_else(none)?)
            }
            None => None,
        };
        let networks = self
            .networks(&offer.region, &offer.instance.name, purpose)
            .await?;
        let name = want.marks.name(NAME_LENGTH);
        let labels = labels(&want.marks, &want.owner, self.config.tags.as_ref());
        let is_public = self.is_public(purpose);
        let service_account = self.config.vm_service_account.as_deref();
        // Jobs have it, and gateways need none.
        let service_account = service_account.filter(|_| !purpose.is_gateway());
        let made = Made::now(name.clone(), call);
        let site = &choice.site;
        let asked = match site.is_tpu {
            true => {
                let body = node(want, purpose, &labels, &networks, is_public, service_account);
                let path = format!("{}/nodes", site.scope());
                self.client.act(&path, &[("nodeId", &name)], Some(&body)).await
            }
            false => {
                let parts = Parts {
                    purpose,
                    project: &self.client.project,
                    zone: plain(&site.zone)?,
                    name: &name,
                    labels: &labels,
                    networks: &networks,
                    is_public,
                    service_account,
                    placement: want.placement_group.as_ref().map(|group| {
                        let (project, region) = (&self.client.project, &offer.region);
                        format!("projects/{project}/regions/{region}/resourcePolicies/{group}")
                    }),
                    reservation: reservation.as_ref(),
                };
                let path = format!("{}/instances", site.scope());
                let body = instance(want, &parts)?;
                self.client.insert(&path, Some(&choice.request), &body).await
            }
        };
        match asked {
            Ok(operation) => Ok(Launched {
                operation: Some(last(&operation.name).to_owned()),
                made,
            }),
            // An earlier call has made it.
            Err(error) if error.is_conflict() => match self
                .instance(site, &name)
                .await
                .map_err(|error| unclear(&error))?
            {
                Some(found) if is_for(&found, &want.marks) => Ok(Launched {
                    operation: None,
                    made,
                }),
                Some(_) => Err(error.compute_error()),
                None => Err(ComputeError::Unclear(format!(
                    "Google does not list the instance {name} yet"
                ))),
            },
            Err(error) => Err(match error.told().and_then(elsewhere) {
                Some(error) => error,
                None => error.compute_error(),
            }),
        }
    }

    /// An instance that was asked for is not there, or `ends`: it shows why when its operation is done.
    async fn not_there(
        &self,
        want: &MachineRequest,
        choice: &Choice,
        launched: &Launched,
        ends: Option<Instance>,
        call: &Call<'_>,
    ) -> Result<Step<Running>, ComputeError> {
        let scope = choice.site.scope();
        let outcome = match &launched.operation {
            Some(operation) => self.client.failure(&scope, operation).await?,
            None => Outcome::Over,
        };
        let told = match outcome {
            Outcome::Failed(told) => told,
            Outcome::Over if is_given_up(launched, call)? => {
                // Google has forgotten the operation meanwhile.
                let error = ComputeError::NoCapacity(format!("there was no room in {}", choice.site.zone));
                return self.try_elsewhere(want, choice, error, call).await;
            }
            Outcome::Over if let Some(instance) = &ends => return running(choice, instance.clone()),
            Outcome::Over if !launched.made.is_new(call) => {
                return Err(ComputeError::Broken(format!(
                    "Google does not have the instance {} any more",
                    launched.made.id
                )));
            }
            _ => return Ok(waits_for("the instance is made", MAKES_INTERVAL)),
        };
        let error = match elsewhere(&told).unwrap_or_else(|| told.over()) {
            error if is_of_zone(&error, &choice.site) => error,
            // The operation says the same for ever.
            error if error.is_transient() => ComputeError::NoCapacity(error.details()),
            // All else is so in all zones.
            error => return Err(error),
        };
        give_up(launched, call).await?;
        self.try_elsewhere(want, choice, error, call).await
    }

    /// Goes on to the next zone once nothing is left of the attempt in the last one.
    async fn try_elsewhere(
        &self,
        want: &MachineRequest,
        choice: &Choice,
        error: ComputeError,
        call: &Call<'_>,
    ) -> Result<Step<Running>, ComputeError> {
        // As long as another call for it is on its way, it may be made in this zone all the same.
        let delete = async |launched: Launched| self.terminate(&choice.site, &launched.made.id).await;
        let removal = call
            .unmake(MACHINE, None, LISTED_WITHIN, async || Ok(None), delete)
            .await?;
        if removal != Removal::Gone {
            return Ok(waits_for("the attempt in the last zone is over", ENDS_INTERVAL));
        }
        self.choose_next(want, choice.clone(), error, call).await?;
        Ok(waits_for("the instance is made in another zone", NEXT_ZONE))
    }

    /// The place of an instance that runs, once it has an address.
    fn reached(
        &self,
        want: &MachineRequest,
        purpose: Purpose<'_>,
        Running { site, instance }: &Running,
    ) -> Step<JobProvisioningData> {
        let is_public = self.is_public(purpose);
        let first = instance.network_interfaces.first();
        let internal = first.and_then(|interface| interface.network_ip.clone());
        let external = first.and_then(|interface| interface.access_configs.first()?.nat_ip.clone());
        let Some(hostname) = (if is_public { external } else { internal.clone() }) else {
            return waits_for("an address", STARTS_INTERVAL);
        };
        Step::Ready(JobProvisioningData {
            internal_ip: internal,
            public_ip_enabled: is_public,
            reservation: want.reservation.clone(),
            availability_zone: Some(site.zone.clone()),
            backend_data: Some(site.data()),
            ..machine_place(&want.offer, instance.name.clone(), hostname, USER, SSH_PORT)
        })
    }

    /// Whether a machine has an address that is reached from everywhere.
    pub(crate) fn is_public(&self, purpose: Purpose<'_>) -> bool {
        match purpose {
            Purpose::Jobs | Purpose::Pod { .. } => self.config.public_ips.unwrap_or(true),
            Purpose::Gateway { is_public } => is_public,
        }
    }

    /// How instances of a zone are.
    async fn signs_in(
        &self,
        site: Site,
        known: Vec<&Known<Machine>>,
    ) -> Result<Vec<Sign<JobProvisioningData>>, ComputeError> {
        let name = |known: &&Known<Machine>| known.place.as_ref().map(|place| place.instance_id.clone());
        let names: Vec<String> = known
            .iter()
            .map(|known| name(known).unwrap_or_default())
            .collect();
        let found = self.instances_of(&site, names).await?;
        Ok(found.iter().map(|found| sign_of(found.as_ref())).collect())
    }

    /// Instances of a zone, in the order of their names.
    pub(crate) async fn instances_of(
        &self,
        site: &Site,
        names: Vec<String>,
    ) -> Result<Vec<Option<Instance>>, ComputeError> {
        let zone = plain(&site.zone)?;
        let listed = match site.is_tpu {
            true => {
                let nodes = self.client.nodes(zone).await;
                nodes.map(|nodes| nodes.into_iter().map(Node::into_instance).collect())
            }
            false => {
                let path = format!("zones/{zone}/instances");
                self.client.list::<Instance>(None, &path, Some(OURS)).await
            }
        };
        let listed: Vec<Instance> = listed.map_err(GcpError::compute_error)?;
        let listed: HashMap<String, Instance> =
            listed.into_iter().map(|one| (one.name.clone(), one)).collect();
        let found = stream::iter(names)
            .map(|name| {
                let listed = listed.get(&name).cloned();
                async move {
                    // What is new may not be listed yet, and while others end, a page may begin one entry later.
                    match listed {
                        Some(listed) => Ok(Some(listed)),
                        None => self.instance(site, &name).await,
                    }
                }
            })
            .buffered(PARALLEL)
            .collect::<Vec<_>>();
        found.await.into_iter().collect()
    }

    /// `None`: Google says that it does not have it.
    pub(crate) async fn instance(&self, site: &Site, name: &str) -> Result<Option<Instance>, ComputeError> {
        let path = site.path(name)?;
        match site.is_tpu {
            true => {
                let node: Option<Node> = known(self.client.get(&path).await)?;
                Ok(node.map(Node::into_instance))
            }
            false => known(self.client.get(&path).await),
        }
    }

    async fn find_instance(&self, site: &Site, name: &str, marks: &Marks) -> Result<bool, ComputeError> {
        let found = self.instance(site, name).await?;
        Ok(found.is_some_and(|found| is_for(&found, marks)))
    }

    /// Ends a machine, and tells how far that is.
    async fn terminate(&self, site: &Site, name: &str) -> Result<Removal, ComputeError> {
        self.client.remove(&site.path(name)?).await
    }
}

/// Of what is there, as Google has said before.
fn unclear(error: &ComputeError) -> ComputeError {
    ComputeError::Unclear(error.details())
}

/// The instance once it runs, with its place; until then, what is waited for.
///
/// # Errors
/// It has ended, or is about to.
fn running(choice: &Choice, instance: Instance) -> Result<Step<Running>, ComputeError> {
    match state(&instance) {
        State::Starts => Ok(waits_for("the instance starts", STARTS_INTERVAL)),
        State::Ends(why) | State::Over(why) => Err(ComputeError::Broken(why)),
        State::Runs => Ok(Step::Ready(Running {
            site: choice.site.clone(),
            instance,
        })),
    }
}

pub(crate) fn waits_for<P>(doing: &str, again: Duration) -> Step<P> {
    Step::Underway {
        seen: None,
        doing: doing.to_owned(),
        again,
    }
}

/// Whether another zone may have what this one has not: many quotas of TPUs are those of a zone, all others those of a region.
fn is_of_zone(error: &ComputeError, site: &Site) -> bool {
    match error {
        ComputeError::NoCapacity(_) => true,
        ComputeError::NoQuota(_) => site.is_tpu,
        _ => false,
    }
}

/// What is refused because of the zone: another one may take it.
fn elsewhere(told: &Told) -> Option<ComputeError> {
    let of_zone = ["/machineTypes/", "/acceleratorTypes/", "/diskTypes/"];
    // Networks for RDMA are in one zone, and only trying tells in which (dstack 0.22.5).
    let is_of_zone = match told.status {
        404 => of_zone.iter().any(|part| told.message.contains(part)),
        400 => [
            "Network profile only allows resource creation in location",
            "Unknown zone",
            "does not exist in zone",
        ]
        .iter()
        .any(|part| told.message.contains(part)),
        // Of Cloud TPU.
        403 => told.message.contains("is not found or access is unauthorized"),
        _ => false,
    };
    is_of_zone.then(|| ComputeError::NoCapacity(dstack_backend::one_line(&told.message)))
}

pub(crate) fn mark(labels: &HashMap<String, String>) -> Option<OwnedMark> {
    OwnedMark::of_tags(|name| labels.get(name).map(String::as_str))
}

fn is_for(instance: &Instance, marks: &Marks) -> bool {
    mark(&instance.labels).is_some_and(|mark| mark.is_for(marks))
}

/// Where a machine is. Of rows of dstack 0.22.5 the region may be the zone.
pub(crate) fn site_of(place: &JobProvisioningData) -> Site {
    let data = place.backend_data.as_deref();
    let site = data.and_then(|data| serde_json::from_str::<Site>(data).ok());
    let zone = || {
        place
            .availability_zone
            .clone()
            .unwrap_or_else(|| place.region.clone())
    };
    site.unwrap_or_else(|| Site {
        zone: zone(),
        is_tpu: false,
    })
}

/// The id of a machine in the inventory.
pub(crate) fn id_of(place: &JobProvisioningData) -> String {
    site_of(place).path(&place.instance_id).unwrap_or_default()
}

/// How far an instance is ("Instance lifecycle", Compute Engine).
#[derive(Debug, PartialEq)]
enum State {
    Starts,
    Runs,
    Ends(String),
    Over(String),
}

fn state(instance: &Instance) -> State {
    let is_spot = instance.scheduling.provisioning_model.as_deref() == Some("SPOT");
    let why = |status: &str| match is_spot {
        true => "Google has taken the spot instance back".to_owned(),
        false => format!("the instance is {status}"),
    };
    match instance.status.as_str() {
        // A host that has failed is repaired by itself.
        "RUNNING" | "REPAIRING" => State::Runs,
        status @ ("STOPPING" | "PENDING_STOP") => State::Ends(why(status)),
        status @ ("STOPPED" | "TERMINATED" | "SUSPENDING" | "SUSPENDED" | "DEPROVISIONING") => {
            State::Over(why(status))
        }
        // `PROVISIONING`, `STAGING`, and what comes after this version.
        _ => State::Starts,
    }
}

pub(crate) fn sign_of<P>(instance: Option<&Instance>) -> Sign<P> {
    match instance.map(state) {
        None => Sign::Lost("Google does not have the instance any more".to_owned()),
        Some(State::Over(why)) => Sign::Lost(why),
        Some(State::Ends(why)) => Sign::Ending { at: None, why },
        Some(State::Starts | State::Runs) => Sign::Well,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(status: &str, model: &str) -> Instance {
        let told = json!({"name": "i", "status": status, "scheduling": {"provisioningModel": model}});
        serde_json::from_value(told).unwrap()
    }

    #[test]
    fn how_an_instance_is_by_its_status() {
        for (status, expected) in [
            ("PROVISIONING", "well"),
            ("RUNNING", "well"),
            ("REPAIRING", "well"),
            ("NEW_IN_THIS_YEAR", "well"),
            ("STOPPING", "ending"),
            ("TERMINATED", "lost"),
            ("SUSPENDED", "lost"),
        ] {
            let told = match sign_of::<()>(Some(&instance(status, "STANDARD"))) {
                Sign::Well => "well",
                Sign::Ending { .. } => "ending",
                Sign::Lost(_) => "lost",
                Sign::Moved(_) => "moved",
            };
            assert_eq!(told, expected, "{status}");
        }
        assert!(matches!(sign_of::<()>(None), Sign::Lost(_)));
        let taken = sign_of::<()>(Some(&instance("TERMINATED", "SPOT")));
        assert_eq!(
            taken,
            Sign::Lost("Google has taken the spot instance back".to_owned())
        );
    }
}
