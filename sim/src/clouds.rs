//! A simulated cloud: offers, machines, and its own faults.

mod attachments;
mod balancers;
mod gateways;
mod groups;
mod placements;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use dstack_compute::config::{BackendConfig, SplitConfig};
use dstack_compute::{
    Account, AccountProject, Attachment, Backend, BackendKind, Backends, Call, Capabilities, ComputeError,
    ConfigureError, Container, ContainerRequest, GatewayMachine, Group, Inventory, JobNeeds, Known,
    LISTED_WITHIN, Lifecycle, LoadBalancers, Machine as CloudMachine, MachineRequest, Marks, MissingRegion,
    Owned, OwnedKind, OwnedMark, Placement, Removal, Sign, Step, Volume, VolumeRequest, Volumes, Workload,
};
use dstack_model::backends::BackendType;
use dstack_model::decode::decode_strict;
use dstack_model::instances::InstanceRuntime;
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_model::runs::{JobProvisioningData, Requirements};
use dstack_model::volumes::{AnyVolumeConfiguration, VolumeProvisioningData};
use dstack_system::{Random, task};
use dstack_units::{
    ComputeGroupId, GatewayId, GatewayReplicaId, InstallationId, InstanceId, PlacementGroupId, ProjectId,
    Time, VolumeId,
};
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::Instant;
use uuid::Uuid;

use crate::Faults;
use crate::hosts::Hosts;
use crate::servers::Caller;

pub use balancers::BalancerAtCloud;
pub use gateways::GatewayAtCloud;
pub use groups::ContainerGroup;
pub use placements::PlacementGroup;

/// What is said of a cloud that is [sold out](Clouds::sold_out).
pub const SOLD_OUT: &str = "small in aws/here: no small left; large in aws/here: no large left";

/// What is said of a container that is not there any more.
pub const CONTAINER_LOST: &str = "the container was killed";

/// A machine that costs money.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Whose it is.
    pub instance: InstanceId,
    /// Of which offer.
    pub offer: String,
    /// Where it is: its region, and its zone if the cloud has some.
    pub place: (String, Option<String>),
    /// The placement group that it is in.
    pub group: Option<String>,
    /// The reservation that it is made of.
    pub reservation: Option<String>,
}

/// How late a cloud is. Its calls take effect also when the caller has gone away in the meantime.
#[derive(Debug, Clone, Copy, Default)]
pub struct Delays {
    /// Chance that a call is answered with an error, and takes effect all the same, but only later.
    pub late: f64,
    /// How much later at most.
    pub late_by: Duration,
    /// How long a machine is not listed after it was made.
    pub unlisted: Duration,
    /// How long it takes to find out which clouds are configured.
    pub lookup: Duration,
    /// How long it takes to tell what it offers.
    pub offers: Duration,
}

#[derive(Debug, Default)]
struct State {
    offers: Vec<Offer>,
    full: BTreeSet<String>,
    machines: Vec<Machine>,
    /// When each of them is listed.
    listed_at: HashMap<InstanceId, Instant>,
    /// Machines ever made, by instance and offer.
    made: HashMap<(InstanceId, String), usize>,
    /// A number for each instance.
    numbers: HashMap<InstanceId, usize>,
    /// Machines and groups that are to be taken away by their ids: when, if that is said, and why.
    notices: HashMap<Uuid, (Option<Time>, String)>,
    /// Machines that are elsewhere now.
    moved: HashMap<InstanceId, JobProvisioningData>,
    /// Disks that cost money, and when each is listed.
    disks: Vec<(VolumeId, Instant)>,
    /// Numbers of disks, which their ids are made of.
    disk_numbers: HashMap<VolumeId, usize>,
    /// Which machines have which disks.
    attached: attachments::Attached,
    /// Disks ever made, by volume.
    disks_made: HashMap<VolumeId, usize>,
    /// Containers that cost money.
    containers: Vec<Machine>,
    /// What the last one was asked to run.
    workload: Option<Workload>,
    /// Offers asked for, in order.
    asked: Vec<String>,
    faults: Faults,
    delays: Delays,
    gone: bool,
    unreadable: bool,
    planted: Vec<Owned>,
    planted_calls: HashMap<String, usize>,
    hanging: BTreeSet<String>,
    swept: Vec<String>,
    hides_inventory: bool,
    /// Regions that do not tell how machines are.
    regions_away: Vec<String>,
    inventories: usize,
    placements: placements::Placements,
    groups: groups::Groups,
    gateways: gateways::Gateways,
    balancers: balancers::Balancers,
    has_reservations: bool,
    /// What jobs need on machines of one type.
    needs: HashMap<String, JobNeeds>,
    never_ready: BTreeSet<String>,
    /// The clouds that are configured besides this one.
    others: Vec<Clouds>,
    /// Its first machine and its first disk have this number, so that no two of an installation have one.
    first_number: usize,
}

impl State {
    /// The disk of a volume.
    fn disk(&mut self, of: BackendType, volume: VolumeId) -> Result<VolumeProvisioningData, ComputeError> {
        let next = self.first_number + self.disk_numbers.len() + 1;
        let number = *self.disk_numbers.entry(volume).or_insert(next);
        disk(of, &format!("vol-{number}"))
    }

    /// The number of an instance's machine, which its address is made of.
    fn number_of(&mut self, instance: InstanceId) -> usize {
        let next = self.first_number + self.numbers.len();
        *self.numbers.entry(instance).or_insert(next)
    }

    fn end_machine(&mut self, instance: InstanceId) {
        for machine in self
            .machines
            .iter()
            .filter(|machine| machine.instance == instance)
        {
            self.placements.left(machine.group.as_ref());
        }
        self.machines.retain(|machine| machine.instance != instance);
    }
}

/// All clouds of an installation: one, unless there is [another](Clouds::add).
#[derive(Debug, Clone)]
pub struct Clouds {
    kind: BackendType,
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
    random: Random,
    /// Where containers run.
    hosts: Hosts,
    /// Which server calls, where there are several.
    caller: Option<Arc<Caller>>,
}

impl Clouds {
    /// A cloud without offers. Its containers are among `hosts`.
    pub fn new(hosts: Hosts, random: Random) -> Self {
        Self {
            kind: BackendType::Aws,
            hosts,
            state: Arc::default(),
            changed: Arc::default(),
            random,
            caller: None,
        }
    }

    /// Another cloud, of a type that the installation does not have yet, and without offers.
    #[must_use]
    pub fn add(&self, kind: BackendType) -> Self {
        const NUMBERS_EACH: usize = 1000;
        self.change(|state| {
            let first_number = NUMBERS_EACH * (state.others.len() + 1);
            let other = Self {
                kind,
                state: Arc::new(Mutex::new(State {
                    first_number,
                    ..State::default()
                })),
                ..self.clone()
            };
            state.others.push(other.clone());
            other
        })
    }

    /// The same clouds, as they are called by one of several servers.
    pub(crate) fn called_by(&self, caller: &Arc<Caller>) -> Self {
        Self {
            caller: Some(Arc::clone(caller)),
            ..self.clone()
        }
    }

    /// This cloud and those that were added to it, as they are called by the same server.
    pub(crate) fn all(&self) -> Vec<Self> {
        let others = self.lock().others.clone();
        let of_caller = |cloud| Self {
            caller: self.caller.clone(),
            ..cloud
        };
        std::iter::once(self.clone())
            .chain(others.into_iter().map(of_caller))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends when something here changes. Whatever changes after this call counts, also before the answer is awaited.
    pub fn changed(&self) -> impl Future<Output = ()> {
        self.changed.notified()
    }

    /// Changes something, and tells those who wait for that.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.lock());
        self.changed.notify_waiters();
        result
    }

    /// It offers machines of these names, the first the cheapest.
    pub fn offer(&self, names: &[&str]) {
        let offers = (1_u32..)
            .zip(names)
            .filter_map(|(price, name)| offer(self.kind, name, price));
        self.change(|state| state.offers = offers.collect());
    }

    /// It offers containers of these names, the first the cheapest.
    pub fn offer_containers(&self, names: &[&str]) {
        let offers = (1_u32..).zip(names).filter_map(|(price, name)| {
            Some(Offer {
                instance_runtime: InstanceRuntime::Runner,
                ..offer(self.kind, name, price)?
            })
        });
        self.change(|state| state.offers = offers.collect());
    }

    /// It offers groups of so many containers of these names, the first the cheapest.
    pub fn offer_groups(&self, groups: &[(&str, u32)]) {
        let offers = (1_u32..).zip(groups).filter_map(|(price, (name, size))| {
            Some(Offer {
                instance_runtime: InstanceRuntime::Runner,
                group_size: Some(*size),
                ..offer(self.kind, name, price)?
            })
        });
        self.change(|state| state.offers = offers.collect());
    }

    /// Jobs have these needs on machines of this name.
    pub fn needs(&self, name: &str, needs: JobNeeds) {
        self.change(|state| state.needs.insert(name.to_owned(), needs));
    }

    /// Containers that exist.
    pub fn containers(&self) -> Vec<Machine> {
        self.lock().containers.clone()
    }

    /// What the last container was asked to run.
    pub fn workload(&self) -> Option<Workload> {
        self.lock().workload.clone()
    }

    /// It offers machines of these names, each in a region with zones, the first the cheapest.
    pub fn offer_in(&self, places: &[(&str, &str, &[&str])]) {
        self.offer_made_in(InstanceRuntime::Shim, places);
    }

    /// It offers containers of these names, each in a region with zones, the first the cheapest.
    pub fn offer_containers_in(&self, places: &[(&str, &str, &[&str])]) {
        self.offer_made_in(InstanceRuntime::Runner, places);
    }

    fn offer_made_in(&self, instance_runtime: InstanceRuntime, places: &[(&str, &str, &[&str])]) {
        let offers = (1_u32..)
            .zip(places)
            .filter_map(|(price, (name, region, zones))| {
                let zones = zones.iter().map(|zone| (*zone).to_owned()).collect();
                Some(Offer {
                    instance_runtime,
                    region: (*region).into(),
                    availability_zones: Some(zones),
                    ..offer(self.kind, name, price)?
                })
            });
        self.change(|state| state.offers = offers.collect());
    }

    /// The machine of an instance breaks, and is gone.
    pub fn lose(&self, instance: InstanceId) {
        self.change(|state| {
            state.end_machine(instance);
            attachments::settle(state, &self.hosts);
            state
                .containers
                .retain(|container| container.instance != instance);
            self.hosts.end_container(&address(state.number_of(instance)));
        });
    }

    /// The cloud says that it will take the machine of an instance away.
    pub fn will_take(&self, instance: InstanceId, why: &str) {
        self.will_take_at(instance, None, why);
    }

    /// Same, saying when.
    pub fn will_take_at(&self, instance: InstanceId, at: Option<Time>, why: &str) {
        self.notice(instance.uuid(), at, why);
    }

    /// Same, of a group of containers.
    pub fn will_take_group(&self, group: ComputeGroupId, at: Option<Time>, why: &str) {
        self.notice(group.uuid(), at, why);
    }

    fn notice(&self, id: Uuid, at: Option<Time>, why: &str) {
        self.change(|state| state.notices.insert(id, (at, why.to_owned())));
    }

    /// It takes nothing away after all.
    pub fn takes_nothing(&self) {
        self.change(|state| state.notices.clear());
    }

    /// The machine of an instance is reached there from now on.
    pub fn moved(&self, instance: InstanceId, place: JobProvisioningData) {
        self.change(|state| state.moved.insert(instance, place));
    }

    /// Nothing is to be had of these offers; `small in a`: of that one in this zone.
    pub fn full(&self, names: &[&str]) {
        let full = names.iter().map(|name| (*name).to_owned()).collect();
        self.change(|state| state.full = full);
    }

    /// It makes machines of reserved capacity.
    pub fn has_reservations(&self) {
        self.change(|state| state.has_reservations = true);
    }

    /// Machines and containers of these offers are begun with, and never get ready.
    pub fn never_ready(&self, names: &[&str]) {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        self.change(|state| state.never_ready = names);
    }

    /// It offers a small and a large machine, and none is to be had.
    pub fn sold_out(&self) {
        self.offer(&["small", "large"]);
        self.full(&["small", "large"]);
    }

    /// How unreliable it is; streams do not concern it.
    pub fn faults(&self, faults: Faults) {
        self.change(|state| state.faults = faults);
    }

    /// Calls and answers are lost, calls arrive late, and what was made is listed late.
    pub fn be_unreliable(&self) {
        self.faults(Faults {
            lost_call: 0.2,
            lost_answer: 0.2,
            ..Faults::default()
        });
        self.delays(Delays {
            late: 0.3,
            late_by: Duration::from_secs(100),
            unlisted: Duration::from_secs(30),
            ..Delays::default()
        });
    }

    /// How late it is.
    pub fn delays(&self, delays: Delays) {
        self.change(|state| state.delays = delays);
    }

    /// Its configuration is removed, or there again.
    pub fn gone(&self, gone: bool) {
        self.change(|state| state.gone = gone);
    }

    /// Nobody knows now which clouds are configured, as when the database is away.
    pub fn unreadable(&self, unreadable: bool) {
        self.change(|state| state.unreadable = unreadable);
    }

    /// There is a machine under these marks that nobody here asked for, known by its tags or by the code in its name.
    pub fn plant_machine(&self, marks: &Marks, by_name: bool) {
        let mark = match by_name {
            true => OwnedMark::of_name(&marks.name(60)),
            false => Some(OwnedMark::Tags {
                installation: marks.installation,
                key: marks.key,
            }),
        };
        let planted = mark.map(|mark| Owned {
            id: format!("i-{}", marks.name),
            name: marks.name(60),
            mark,
            ..owned(OwnedKind::Machine, marks.key, marks.installation)
        });
        self.change(|state| state.planted.extend(planted));
    }

    /// As [`Clouds::plant_machine`], known by its tags, in this region.
    pub fn plant_machine_in(&self, region: &str, marks: &Marks) {
        self.plant_machine(marks, false);
        self.change(|state| {
            if let Some(planted) = state.planted.last_mut() {
                planted.region = region.to_owned();
            }
        });
    }

    /// The planted machine of this id is gone only after so many calls more than one.
    pub fn ends_slowly(&self, id: &str, calls: usize) {
        self.change(|state| state.planted_calls.insert(id.to_owned(), calls));
    }

    /// Whoever asks it to end the planted machine of this id gets no answer.
    pub fn never_ends(&self, id: &str) {
        self.change(|state| state.hanging.insert(id.to_owned()));
    }

    /// There is a disk under this key that nobody here asked for.
    pub fn plant_disk(&self, volume: VolumeId) {
        self.change(|state| state.disks.push((volume, Instant::now())));
    }

    /// Ids of planted machines that exist, in the order in which they were planted.
    pub fn planted(&self) -> Vec<String> {
        self.lock().planted.iter().map(|thing| thing.id.clone()).collect()
    }

    /// Ids of what it was asked to end as nobody knows it, in order.
    pub fn swept(&self) -> Vec<String> {
        self.lock().swept.clone()
    }

    /// This region does not tell how machines are, nor what it has, from now on or no longer; the others do.
    pub fn take_region_away(&self, region: &str, is_away: bool) {
        self.change(|state| {
            state.regions_away.retain(|known| known != region);
            if is_away {
                state.regions_away.push(region.to_owned());
            }
        });
    }

    /// It does not say what it has, from now on or no longer: it takes for ever.
    pub fn hide_inventory(&self, hides: bool) {
        self.change(|state| state.hides_inventory = hides);
    }

    /// How often it has said what it has.
    pub fn inventories(&self) -> usize {
        self.lock().inventories
    }

    /// Machines that exist.
    pub fn machines(&self) -> Vec<Machine> {
        self.lock().machines.clone()
    }

    /// The volumes whose disks exist, in the order in which these were made.
    pub fn disks(&self) -> Vec<VolumeId> {
        self.lock().disks.iter().map(|(volume, _)| *volume).collect()
    }

    /// The most disks that were ever made for one volume.
    pub fn most_disks_made(&self) -> usize {
        self.lock().disks_made.values().copied().max().unwrap_or(0)
    }

    /// Offers asked for, in order.
    pub fn asked(&self) -> Vec<String> {
        self.lock().asked.clone()
    }

    /// The most machines that were ever made for one instance of one offer.
    pub fn most_made(&self) -> usize {
        self.lock().made.values().copied().max().unwrap_or(0)
    }

    /// A call that changes nothing.
    async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut State) -> Result<T, ComputeError> + Send + 'static,
    ) -> Result<T, ComputeError> {
        self.call(None, work).await
    }

    /// A call that changes something, perhaps later than it is answered.
    async fn order<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut State) -> Result<T, ComputeError> + Send + 'static,
    ) -> Result<T, ComputeError> {
        if let Some(caller) = &self.caller {
            caller.acts("order of a cloud");
        }
        let delays = self.lock().delays;
        let is_late = delays.late > 0.0 && self.random.fraction() < delays.late;
        let late_by = is_late.then(|| delays.late_by.mul_f64(self.random.fraction()));
        self.call(late_by, work).await
    }

    /// A call that takes time, and that may be lost, or its answer, or take effect later. Whoever calls may go away meanwhile:
    /// what has been sent takes effect.
    async fn call<T: Send + 'static>(
        &self,
        late_by: Option<Duration>,
        work: impl FnOnce(&mut State) -> Result<T, ComputeError> + Send + 'static,
    ) -> Result<T, ComputeError> {
        let takes = Duration::from_millis(self.random.below(800));
        let (lost_call, lost_answer) = (self.random.fraction(), self.random.fraction());
        let unavailable = || ComputeError::Unclear("503".to_owned());
        let faults = self.lock().faults;
        if lost_call < faults.lost_call {
            tokio::time::sleep(takes).await;
            return Err(unavailable());
        }
        let cloud = self.clone();
        let effect = task::spawn("call of a cloud", async move {
            tokio::time::sleep(takes + late_by.unwrap_or_default()).await;
            cloud.change(work)
        });
        if late_by.is_some() {
            tokio::time::sleep(takes).await;
            return Err(unavailable());
        }
        let result = effect.await.ok().flatten().ok_or_else(unavailable)?;
        if lost_answer < faults.lost_answer {
            return Err(unavailable());
        }
        result
    }
}

fn kind(name: &str) -> serde_json::Value {
    let resources =
        json!({"cpus": 8, "memory_mib": 65536, "gpus": [], "spot": false, "disk": {"size_mib": 102_400}});
    json!({"name": name, "resources": resources})
}

fn offer(backend: BackendType, name: &str, price: u32) -> Option<Offer> {
    let offer = json!({"backend": backend, "instance": kind(name), "region": "here", "price": price,
        "availability": "available"});
    decode_strict(&offer).ok()
}

/// The first that is allowed.
fn zone(offer: &Offer) -> Option<String> {
    offer.availability_zones.as_ref()?.first().cloned()
}

fn address(number: usize) -> String {
    format!("10.0.{}.{}", number / 250, number % 250 + 1)
}

/// Where the machine of this number is, which is an instance's.
fn place(offer: &Offer, number: usize, instance: InstanceId) -> Option<JobProvisioningData> {
    let address = address(number);
    let is_container = offer.instance_runtime == InstanceRuntime::Runner;
    let place = json!({"backend": offer.backend, "instance_type": kind(&offer.instance.name), "instance_id": instance,
        "hostname": address, "internal_ip": address, "region": offer.region, "price": offer.price, "username": "ubuntu", "ssh_port": 22,
        "dockerized": !is_container, "availability_zone": zone(offer)});
    decode_strict(&place).ok()
}

#[async_trait]
impl Backends for Clouds {
    async fn of_project(&self, _project: ProjectId) -> Result<Vec<Arc<dyn Backend>>, ComputeError> {
        let lookup = self.lock().delays.lookup;
        if lookup > Duration::ZERO {
            tokio::time::sleep(lookup).await;
        }
        if self.lock().unreadable {
            return Err(ComputeError::Unclear("the database is away".to_owned()));
        }
        let configured = self.all().into_iter().filter(|cloud| !cloud.lock().gone);
        Ok(configured
            .map(|cloud| Arc::new(cloud) as Arc<dyn Backend>)
            .collect())
    }

    /// One of each cloud, of which a project can be told that has no other part in simulations.
    async fn accounts(&self) -> Result<Vec<Account>, ComputeError> {
        let account = |backend: Arc<dyn Backend>| Account {
            id: backend.kind().to_string(),
            kind: backend.kind().to_string(),
            backend: Ok(backend),
            projects: vec![AccountProject {
                id: ProjectId::new(Uuid::nil()),
                name: "main".to_owned(),
            }],
        };
        let backends = self.of_project(ProjectId::new(Uuid::nil())).await?;
        Ok(backends.into_iter().map(account).collect())
    }

    fn job_needs(&self, kind: BackendType, instance_type: &str) -> JobNeeds {
        let cloud = self.all().into_iter().find(|cloud| cloud.kind == kind);
        cloud.map_or(JobNeeds::NONE, |cloud| {
            BackendKind::job_needs(&cloud, instance_type)
        })
    }
}

/// All projects have all clouds, however they are configured.
#[async_trait]
impl BackendKind for Clouds {
    fn kind(&self) -> BackendType {
        self.kind
    }

    fn capabilities(&self) -> Capabilities {
        let state = self.lock();
        Capabilities {
            create_instance: true,
            multinode: true,
            privileged: true,
            instance_volumes: true,
            volumes: true,
            placement_groups: state.placements.are_there,
            gateways: true,
            load_balancers: true,
            compute_groups: state.groups.are_made,
            reservations: state.has_reservations,
            ..Capabilities::default()
        }
    }

    fn job_needs(&self, instance_type: &str) -> JobNeeds {
        let needs = self.lock().needs.get(instance_type).copied();
        needs.unwrap_or(JobNeeds::NONE)
    }

    async fn configure(&self, _: &str, config: &BackendConfig) -> Result<SplitConfig, ConfigureError> {
        Ok(config.split())
    }

    fn open(&self, _: &SplitConfig) -> Result<Arc<dyn Backend>, ComputeError> {
        Ok(Arc::new(self.clone()))
    }
}

#[async_trait]
impl Backend for Clouds {
    fn backend_kind(&self) -> &dyn BackendKind {
        self
    }

    async fn offers(&self, _requirements: &Requirements) -> Result<Vec<Offer>, ComputeError> {
        let takes = self.lock().delays.offers;
        if takes > Duration::ZERO {
            tokio::time::sleep(takes).await;
        }
        self.ask(|state| Ok(state.offers.clone())).await
    }

    fn machines(&self) -> Option<&dyn Lifecycle<CloudMachine>> {
        Some(self)
    }

    fn containers(&self) -> Option<&dyn Lifecycle<Container>> {
        Some(self)
    }

    fn placements(&self) -> Option<&dyn Lifecycle<Placement>> {
        self.lock().placements.are_there.then_some(self as _)
    }

    fn groups(&self) -> Option<&dyn Lifecycle<Group>> {
        self.lock().groups.are_made.then_some(self as _)
    }

    fn volumes(&self) -> Option<&dyn Volumes> {
        Some(self)
    }

    fn gateways(&self) -> Option<&dyn Lifecycle<GatewayMachine>> {
        Some(self)
    }

    fn load_balancers(&self) -> Option<&dyn LoadBalancers> {
        Some(self)
    }

    async fn inventory(&self) -> Result<Vec<Owned>, ComputeError> {
        // That of the engine's settings, where nothing else is set.
        let installation = InstallationId::new(Uuid::nil());
        if self.lock().hides_inventory {
            std::future::pending::<()>().await;
        }
        self.ask(move |state| {
            let is_listed = |at: &Instant| *at <= Instant::now();
            let machines = state
                .machines
                .iter()
                .filter(|machine| state.listed_at.get(&machine.instance).is_none_or(is_listed));
            let machines =
                machines.map(|machine| owned(OwnedKind::Machine, machine.instance.uuid(), installation));
            let containers = state
                .containers
                .iter()
                .filter(|container| state.listed_at.get(&container.instance).is_none_or(is_listed));
            let containers = containers
                .map(|container| owned(OwnedKind::Container, container.instance.uuid(), installation));
            let disks = state.disks.iter().filter(|(_, at)| is_listed(at));
            let disks = disks.map(|(volume, _)| owned(OwnedKind::Volume, volume.uuid(), installation));
            let placements = state.placements.groups.iter();
            let placements =
                placements.map(|group| owned(OwnedKind::Placement, group.id.uuid(), installation));
            let groups = state.groups.groups.iter();
            let groups = groups.map(|group| owned(OwnedKind::Group, group.id.uuid(), installation));
            let gateways = state
                .gateways
                .machines
                .iter()
                .filter(|machine| is_listed(&machine.listed_at));
            let gateways =
                gateways.map(|machine| owned(OwnedKind::Gateway, machine.replica.uuid(), installation));
            let balancers = state.balancers.all.iter().filter(|one| is_listed(&one.listed_at));
            let balancers =
                balancers.map(|one| owned(OwnedKind::LoadBalancer, one.gateway.uuid(), installation));
            let all = machines
                .chain(gateways)
                .chain(balancers)
                .chain(placements)
                .chain(groups)
                .chain(containers)
                .chain(disks)
                .chain(state.planted.iter().cloned())
                .collect();
            state.inventories += 1;
            Ok(all)
        })
        .await
    }

    async fn inventory_by_region(&self) -> Result<Inventory, ComputeError> {
        let away = self.lock().regions_away.clone();
        let mut owned = self.inventory().await?;
        owned.retain(|one| !away.contains(&one.region));
        let missing = away.into_iter().map(|region| MissingRegion {
            region,
            error: Some(ComputeError::Unclear("the region is away".to_owned())),
        });
        Ok(Inventory {
            owned,
            missing: missing.collect(),
        })
    }

    async fn remove_owned(&self, owned: &Owned) -> Result<Removal, ComputeError> {
        let id = owned.id.clone();
        self.change(|state| state.swept.push(id.clone()));
        if self.lock().hanging.contains(&id) {
            std::future::pending::<()>().await;
        }
        if self.planted().contains(&id) {
            let order = self.order(move |state| {
                // The end of some takes a few calls.
                match state.planted_calls.get_mut(&id).filter(|left| **left > 0) {
                    Some(left) => {
                        *left -= 1;
                        let again = Duration::from_secs(10);
                        Ok(Removal::Underway { again })
                    }
                    None => {
                        state.planted.retain(|thing| thing.id != id);
                        Ok(Removal::Gone)
                    }
                }
            });
            return order.await;
        }
        let OwnedMark::Tags { key, .. } = owned.mark else {
            return Err(ComputeError::Unsupported("to remove what has no tags"));
        };
        match owned.kind {
            OwnedKind::Volume => self.delete_disk(VolumeId::from(key)).await,
            OwnedKind::Gateway => self.end_gateway(GatewayReplicaId::from(key)).await,
            OwnedKind::LoadBalancer => self.end_balancer(GatewayId::from(key)).await,
            OwnedKind::Placement => self.delete_placement(PlacementGroupId::from(key)).await,
            OwnedKind::Group => self.delete_group(ComputeGroupId::from(key)).await,
            OwnedKind::Container => self.end_container(InstanceId::from(key)).await,
            _ => self.end_machine(InstanceId::from(key)).await,
        }
    }
}

impl State {
    /// Counts that the offer is asked for.
    ///
    /// # Errors
    /// Nothing is to be had of it.
    fn ask_for(&mut self, offer: &Offer) -> Result<(), ComputeError> {
        let name = &offer.instance.name;
        self.asked.push(name.clone());
        let in_zone = zone(offer).map(|zone| format!("{name} in {zone}"));
        let is_full = self.full.contains(name) || in_zone.is_some_and(|there| self.full.contains(&there));
        match is_full {
            true => Err(ComputeError::NoCapacity(format!("no {name} left"))),
            false => Ok(()),
        }
    }
}

fn owned(kind: OwnedKind, key: Uuid, installation: InstallationId) -> Owned {
    Owned {
        kind,
        id: key.to_string(),
        name: String::new(),
        mark: OwnedMark::Tags { installation, key },
        region: "here".to_owned(),
        price: Some(1.0),
        made_at: None,
    }
}

impl Clouds {
    /// Makes another machine at each call: nothing but its notes keeps the engine from having two.
    async fn make_machine(&self, request: &MachineRequest) -> Result<JobProvisioningData, ComputeError> {
        let request = request.clone();
        self.order(move |state| {
            let name = &request.offer.instance.name;
            let instance = InstanceId::from(request.marks.key);
            state.ask_for(&request.offer)?;
            let group = request.placement_group.as_ref();
            state.placements.check(group, &request.offer)?;
            state.machines.push(Machine {
                instance,
                offer: name.clone(),
                place: (request.offer.region.to_string(), zone(&request.offer)),
                group: group.cloned(),
                reservation: request.reservation.clone(),
            });
            let listed_at = Instant::now() + state.delays.unlisted;
            state.listed_at.insert(instance, listed_at);
            *state.made.entry((instance, name.clone())).or_default() += 1;
            let number = state.number_of(instance);
            place(&request.offer, number, instance).ok_or(ComputeError::Unsupported("this"))
        })
        .await
    }

    /// Whether there is a machine of the instance, and it is listed.
    async fn lists_machine(&self, instance: InstanceId) -> Result<bool, ComputeError> {
        self.ask(move |state| {
            let listed_at = state.listed_at.get(&instance);
            let is_listed = listed_at.is_none_or(|at| *at <= Instant::now());
            let is_there = state.machines.iter().any(|machine| machine.instance == instance);
            Ok(is_there && is_listed)
        })
        .await
    }

    async fn end_machine(&self, instance: InstanceId) -> Result<Removal, ComputeError> {
        let hosts = self.hosts.clone();
        self.order(move |state| {
            state.end_machine(instance);
            attachments::settle(state, &hosts);
            Ok(Removal::Gone)
        })
        .await
    }
}

#[async_trait]
impl Lifecycle<CloudMachine> for Clouds {
    async fn ensure(
        &self,
        want: &MachineRequest,
        call: &Call<'_>,
    ) -> Result<Step<JobProvisioningData>, ComputeError> {
        let instance = InstanceId::from(want.marks.key);
        let find = || async move {
            let there = self.lists_machine(instance).await?;
            Ok(place(&want.offer, self.lock().number_of(instance), instance).filter(|_| there))
        };
        let made = call
            .make("machine", LISTED_WITHIN, || self.make_machine(want), find)
            .await?;
        if self.lock().never_ready.contains(&want.offer.instance.name) {
            return Ok(Step::Underway {
                seen: None,
                doing: "an address".to_owned(),
                again: Duration::from_secs(5),
            });
        }
        Ok(Step::Ready(made))
    }

    async fn look(
        &self,
        known: &[Known<CloudMachine>],
    ) -> Result<Vec<Option<Sign<JobProvisioningData>>>, ComputeError> {
        let known = known.to_vec();
        self.ask(move |state| {
            let sign = |known: &Known<CloudMachine>| {
                if state.regions_away.contains(&known.site) {
                    return None;
                }
                let instance = InstanceId::from(known.marks.key);
                if let Some((at, why)) = state.notices.get(&known.marks.key) {
                    let (at, why) = (*at, why.clone());
                    return Some(Sign::Ending { at, why });
                }
                let is_there = state.machines.iter().any(|machine| machine.instance == instance);
                Some(match (is_there, state.moved.get(&instance)) {
                    (false, _) => Sign::Lost("the machine is gone".to_owned()),
                    (true, Some(place)) => Sign::Moved(place.clone()),
                    (true, None) => Sign::Well,
                })
            };
            Ok(known.iter().map(sign).collect())
        })
        .await
    }

    async fn remove(&self, known: &Known<CloudMachine>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let instance = InstanceId::from(known.marks.key);
        let find = || async move {
            Ok(self
                .lists_machine(instance)
                .await?
                .then_some(serde_json::Value::Null))
        };
        let made = known.place.as_ref().map(|_| serde_json::Value::Null);
        call.unmake("machine", made, LISTED_WITHIN, find, |_| {
            self.end_machine(instance)
        })
        .await
    }
}

impl Clouds {
    /// Makes another container at each call: nothing but its notes keeps the engine from having two.
    async fn make_container(&self, request: &ContainerRequest) -> Result<JobProvisioningData, ComputeError> {
        let request = request.clone();
        let hosts = self.hosts.clone();
        self.order(move |state| {
            let name = &request.offer.instance.name;
            let instance = InstanceId::from(request.marks.key);
            state.ask_for(&request.offer)?;
            state.containers.push(Machine {
                instance,
                offer: name.clone(),
                place: (request.offer.region.to_string(), zone(&request.offer)),
                group: None,
                reservation: None,
            });
            let listed_at = Instant::now() + state.delays.unlisted;
            state.listed_at.insert(instance, listed_at);
            *state.made.entry((instance, name.clone())).or_default() += 1;
            let number = state.number_of(instance);
            hosts.begin_container(&address(number));
            let place = place(&request.offer, number, instance).ok_or(ComputeError::Unsupported("this"));
            state.workload = Some(request.workload);
            place
        })
        .await
    }

    /// Whether there is a container of the instance, and it is listed.
    async fn lists_container(&self, instance: InstanceId) -> Result<bool, ComputeError> {
        self.ask(move |state| {
            let listed_at = state.listed_at.get(&instance);
            let is_listed = listed_at.is_none_or(|at| *at <= Instant::now());
            Ok(is_listed && has_container(state, instance))
        })
        .await
    }

    async fn end_container(&self, instance: InstanceId) -> Result<Removal, ComputeError> {
        let hosts = self.hosts.clone();
        self.order(move |state| {
            state
                .containers
                .retain(|container| container.instance != instance);
            hosts.end_container(&address(state.number_of(instance)));
            Ok(Removal::Gone)
        })
        .await
    }
}

fn has_container(state: &State, instance: InstanceId) -> bool {
    let mut containers = state.containers.iter();
    containers.any(|container| container.instance == instance)
}

fn instance_of(marks: &Marks) -> InstanceId {
    InstanceId::from(marks.key)
}

#[async_trait]
impl Lifecycle<Container> for Clouds {
    async fn ensure(
        &self,
        want: &ContainerRequest,
        call: &Call<'_>,
    ) -> Result<Step<JobProvisioningData>, ComputeError> {
        let instance = instance_of(&want.marks);
        let find = || async move {
            let there = self.lists_container(instance).await?;
            Ok(place(&want.offer, self.lock().number_of(instance), instance).filter(|_| there))
        };
        let made = call
            .make("container", LISTED_WITHIN, || self.make_container(want), find)
            .await?;
        if self.lock().never_ready.contains(&want.offer.instance.name) {
            return Ok(Step::Underway {
                seen: None,
                doing: "a start".to_owned(),
                again: Duration::from_secs(5),
            });
        }
        Ok(Step::Ready(made))
    }

    async fn look(
        &self,
        known: &[Known<Container>],
    ) -> Result<Vec<Option<Sign<JobProvisioningData>>>, ComputeError> {
        let instances: Vec<InstanceId> = known.iter().map(|known| instance_of(&known.marks)).collect();
        self.ask(move |state| {
            let sign = |instance: &InstanceId| {
                Some(match has_container(state, *instance) {
                    true => Sign::Well,
                    false => Sign::Lost(CONTAINER_LOST.to_owned()),
                })
            };
            Ok(instances.iter().map(sign).collect())
        })
        .await
    }

    async fn remove(&self, known: &Known<Container>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let instance = instance_of(&known.marks);
        let find = || async move {
            let there = self.lists_container(instance).await?;
            Ok(there.then_some(serde_json::Value::Null))
        };
        let made = known.place.as_ref().map(|_| serde_json::Value::Null);
        call.unmake("container", made, LISTED_WITHIN, find, |_| {
            self.end_container(instance)
        })
        .await
    }
}

fn disk(backend: BackendType, id: &str) -> Result<VolumeProvisioningData, ComputeError> {
    let data = json!({"backend": backend, "volume_id": id, "size_gb": 100, "price": 8.0});
    decode_strict(&data).map_err(|_| ComputeError::Unsupported("this"))
}

impl Clouds {
    /// Makes another disk at each call: nothing but its notes keeps the engine from having two.
    async fn make_disk(&self, id: VolumeId) -> Result<VolumeProvisioningData, ComputeError> {
        let kind = self.kind;
        self.order(move |state| {
            if state.full.contains("disk") {
                return Err(ComputeError::NoCapacity("no disk left".to_owned()));
            }
            state.disks.push((id, Instant::now() + state.delays.unlisted));
            *state.disks_made.entry(id).or_default() += 1;
            state.disk(kind, id)
        })
        .await
    }

    async fn find_disk(&self, id: VolumeId) -> Result<Option<VolumeProvisioningData>, ComputeError> {
        let kind = self.kind;
        self.ask(move |state| {
            let is_listed = |(disk, at): &(VolumeId, Instant)| *disk == id && *at <= Instant::now();
            match state.disks.iter().any(is_listed) {
                true => state.disk(kind, id).map(Some),
                false => Ok(None),
            }
        })
        .await
    }

    async fn delete_disk(&self, id: VolumeId) -> Result<Removal, ComputeError> {
        self.order(move |state| {
            state.disks.retain(|(disk, _)| *disk != id);
            Ok(Removal::Gone)
        })
        .await
    }
}

#[async_trait]
impl Lifecycle<Volume> for Clouds {
    async fn ensure(
        &self,
        want: &VolumeRequest,
        call: &Call<'_>,
    ) -> Result<Step<VolumeProvisioningData>, ComputeError> {
        let id = VolumeId::from(want.marks.key);
        let (make, find) = (|| self.make_disk(id), || self.find_disk(id));
        Ok(Step::Ready(call.make("disk", LISTED_WITHIN, make, find).await?))
    }

    async fn remove(&self, known: &Known<Volume>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let id = VolumeId::from(known.marks.key);
        let (find, delete) = (|| self.find_disk(id), |_| self.delete_disk(id));
        call.unmake("disk", known.place.clone(), LISTED_WITHIN, find, delete)
            .await
    }
}

#[async_trait]
impl Volumes for Clouds {
    async fn register(&self, volume: &VolumeRequest) -> Result<VolumeProvisioningData, ComputeError> {
        let id = match &volume.configuration {
            AnyVolumeConfiguration::Aws(configuration) => configuration.volume_id.clone(),
            _ => None,
        };
        let kind = self.kind;
        self.ask(move |_| disk(kind, &id.unwrap_or_default())).await
    }

    fn attachments(&self) -> Option<&dyn Lifecycle<Attachment>> {
        Some(self)
    }
}
