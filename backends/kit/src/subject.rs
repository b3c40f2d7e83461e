use dstack_compute::{
    Attachment, AttachmentSite, Backend, Container, ContainerRequest, GatewayMachine, GatewayRequest, Group,
    GroupRequest, Known, Lifecycle, LoadBalancer, LoadBalancerRequest, Machine, MachineRequest, Marks, Owner,
    Placement, PlacementRequest, RegistryLogin, Resource, Sign, Volume, VolumeRequest, Workload,
};
use dstack_model::decode::decode_strict;
use dstack_model::instances::InstanceAvailability;
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_model::runs::Requirements;
use dstack_model::volumes::AnyVolumeConfiguration;
use serde_json::Value;
use uuid::Uuid;

use crate::{CANARY, Cloud, installation};

/// A kind of things that a backend makes, as the checks ask for it.
pub struct Subject<R: Resource> {
    /// The life cycle of the backend.
    pub lifecycle: fn(&dyn Backend) -> Option<&dyn Lifecycle<R>>,
    /// What is asked for.
    pub want: R::Want,
    /// The same, asked for under other marks.
    pub asked: fn(&R::Want, Marks) -> R::Want,
    /// What it carries.
    pub marks: Marks,
    /// Where it is asked for.
    pub site: R::Site,
    /// What is wrong with a place; `None`: nothing.
    pub problem: fn(&R::Place) -> Option<String>,
    /// By what a place calls it: its id in the inventory, or its name there. Empty: by nothing; `Backend::is_at` tells of machines and
    /// containers.
    pub called: fn(&R::Place) -> &str,
}

impl<R: Resource> Subject<R> {
    /// What is known of it.
    pub fn known(&self, place: Option<R::Place>) -> Known<R> {
        Known {
            marks: self.marks.clone(),
            site: self.site.clone(),
            place,
        }
    }

    /// How it is, as a backend tells of it alone; `None`: it cannot be told.
    pub async fn sign(&self, backend: &dyn Backend, known: &Known<R>) -> Option<Sign<R::Place>> {
        let lifecycle = (self.lifecycle)(backend).unwrap();
        let mut signs = lifecycle.look(std::slice::from_ref(known)).await.unwrap();
        assert_eq!(signs.len(), 1, "{signs:?}");
        signs.remove(0)
    }

    /// The same of another installation in the same account, for a row whose key is the same.
    pub(crate) fn of_another_installation(&self) -> Self {
        let installation = Uuid::from_u128(0x8765_4321_9abc_4def_8012_3456_0fed_cba9);
        self.under(Marks {
            installation: installation.into(),
            ..self.marks.clone()
        })
    }

    /// The same for another row of the project.
    pub(crate) fn of_another_row(&self, cloud: &Cloud) -> Self {
        self.under(Marks {
            key: marks(cloud, "").key,
            ..self.marks.clone()
        })
    }

    fn under(&self, marks: Marks) -> Self {
        Self {
            lifecycle: self.lifecycle,
            want: (self.asked)(&self.want, marks.clone()),
            asked: self.asked,
            marks,
            site: self.site.clone(),
            problem: self.problem,
            called: self.called,
        }
    }
}

/// Marks of an installation, as the engine makes them.
pub fn marks(cloud: &Cloud, name: &str) -> Marks {
    let id = || cloud.env.random.uuid();
    Marks {
        installation: installation(),
        key: cloud.env.random.ordered_uuid(cloud.env.clock.now()),
        name: name.to_owned(),
        project: id().into(),
    }
}

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExampleExampleExampleExampleExampleExampleEx dstack";

fn owner() -> Owner {
    Owner {
        project: "main".to_owned(),
        user: "somebody".to_owned(),
        tags: [("team".to_owned(), "vision".to_owned())].into(),
    }
}

/// Longer than any cloud takes.
fn long_name() -> String {
    format!("a-fleet-with-a-name-{}-0", "x".repeat(80))
}

/// What the backend offers first of what is to be had, there.
async fn first_offer(cloud: &Cloud, requirements: &Requirements, region: Option<&str>) -> Offer {
    let offers = cloud.offers(requirements).await;
    let offer = offers.into_iter().find(|offer| {
        let is_there = region.is_none_or(|region| &*offer.region == region);
        is_there && offer.availability != InstanceAvailability::NotAvailable
    });
    offer.expect("the backend offers something")
}

/// The first that is so.
async fn wanted_offer(
    cloud: &Cloud,
    requirements: &Requirements,
    is_wanted: impl Fn(&Offer) -> bool,
) -> Offer {
    let offers = cloud.offers(requirements).await;
    let names: Vec<String> = offers.iter().map(|offer| offer.instance.name.clone()).collect();
    let offer = offers.into_iter().find(is_wanted);
    offer.unwrap_or_else(|| panic!("none of what is offered is so: {names:?}"))
}

fn unset(fields: &[(bool, &str)]) -> Option<String> {
    let unset = fields.iter().filter(|(unset, _)| *unset);
    let names: Vec<&str> = unset.map(|(_, name)| *name).collect();
    (!names.is_empty()).then(|| format!("{} not set", names.join(", ")))
}

/// The first machine that the backend has.
pub async fn machine(cloud: &Cloud) -> Subject<Machine> {
    let offer = first_offer(cloud, &Cloud::requirements(), cloud.region).await;
    machine_at(cloud, offer)
}

/// The first machine that the backend has in a region.
pub async fn machine_in(cloud: &Cloud, region: &str) -> Subject<Machine> {
    let offer = first_offer(cloud, &Cloud::requirements(), Some(region)).await;
    machine_at(cloud, offer)
}

/// A machine of the first offer that is so.
pub async fn machine_of(
    cloud: &Cloud,
    requirements: &Requirements,
    is_wanted: impl Fn(&Offer) -> bool,
) -> Subject<Machine> {
    let offer = wanted_offer(cloud, requirements, is_wanted).await;
    machine_at(cloud, offer)
}

/// A cloud with the first machine that the backend has, as the checks take them.
pub async fn with_machine(cloud: Cloud) -> (Cloud, Subject<Machine>) {
    let subject = machine(&cloud).await;
    (cloud, subject)
}

/// A cloud with so many machines, alike.
pub async fn with_machines(cloud: Cloud, count: usize) -> (Cloud, Vec<Subject<Machine>>) {
    let mut subjects = Vec::new();
    for _ in 0..count {
        subjects.push(machine(&cloud).await);
    }
    (cloud, subjects)
}

/// A cloud with a machine in each of these regions, of which one may be named more than once.
pub async fn with_machines_in(cloud: Cloud, regions: &[&str]) -> (Cloud, Vec<Subject<Machine>>) {
    let mut subjects = Vec::new();
    for region in regions {
        subjects.push(machine_in(&cloud, region).await);
    }
    (cloud, subjects)
}

fn machine_at(cloud: &Cloud, offer: Offer) -> Subject<Machine> {
    let marks = marks(cloud, &long_name());
    Subject {
        lifecycle: |backend| backend.machines(),
        site: offer.region.to_string(),
        want: MachineRequest {
            marks: marks.clone(),
            owner: owner(),
            reservation: None,
            offer,
            authorized_keys: vec![KEY.to_owned()],
            placement_group: None,
        },
        asked: |want, marks| MachineRequest {
            marks,
            ..want.clone()
        },
        marks,
        problem: |place| {
            unset(&[
                (place.hostname.is_none(), "hostname"),
                (place.ssh_port.is_none(), "ssh_port"),
                (place.username.is_empty(), "username"),
                (place.instance_id.is_empty(), "instance_id"),
                (!place.dockerized, "dockerized"),
            ])
        },
        called: |_| "",
    }
}

fn workload() -> Workload {
    Workload {
        image: "registry.example/team/image:1".to_owned(),
        registry: Some(RegistryLogin {
            username: "puller".to_owned(),
            password: CANARY.into(),
            is_servers: false,
        }),
        script: "sleep infinity".to_owned(),
        authorized_keys: vec![KEY.to_owned()],
        privileged: false,
        shm_mib: Some(64),
        volumes: Vec::new(),
        folders: Vec::new(),
    }
}

/// The first container that the backend has.
pub async fn container(cloud: &Cloud) -> Subject<Container> {
    let requirements = Cloud::requirements();
    let offer = first_offer(cloud, &requirements, cloud.region).await;
    container_at(cloud, requirements, offer)
}

/// The first container that the backend has in a region.
pub async fn container_in(cloud: &Cloud, region: &str) -> Subject<Container> {
    let requirements = Cloud::requirements();
    let offer = first_offer(cloud, &requirements, Some(region)).await;
    container_at(cloud, requirements, offer)
}

/// A container of the first offer that is so.
pub async fn container_of(
    cloud: &Cloud,
    requirements: Requirements,
    is_wanted: impl Fn(&Offer) -> bool,
) -> Subject<Container> {
    let offer = wanted_offer(cloud, &requirements, is_wanted).await;
    container_at(cloud, requirements, offer)
}

/// A cloud with the first container that the backend has, as the checks take them.
pub async fn with_container(cloud: Cloud) -> (Cloud, Subject<Container>) {
    let subject = container(&cloud).await;
    (cloud, subject)
}

/// A cloud with so many containers, alike.
pub async fn with_containers(cloud: Cloud, count: usize) -> (Cloud, Vec<Subject<Container>>) {
    let mut subjects = Vec::new();
    for _ in 0..count {
        subjects.push(container(&cloud).await);
    }
    (cloud, subjects)
}

fn container_at(cloud: &Cloud, requirements: Requirements, offer: Offer) -> Subject<Container> {
    let marks = marks(cloud, &long_name());
    Subject {
        lifecycle: |backend| backend.containers(),
        site: offer.region.to_string(),
        want: ContainerRequest {
            marks: marks.clone(),
            owner: owner(),
            offer,
            requirements,
            workload: workload(),
        },
        asked: |want, marks| ContainerRequest {
            marks,
            ..want.clone()
        },
        marks,
        problem: |place| {
            unset(&[
                (place.hostname.is_none(), "hostname"),
                (place.ssh_port.is_none(), "ssh_port"),
                (place.username.is_empty(), "username"),
                (place.instance_id.is_empty(), "instance_id"),
                (place.dockerized, "not dockerized"),
            ])
        },
        called: |_| "",
    }
}

/// The first group of so many containers that the backend has.
pub async fn group(cloud: &Cloud, nodes: usize) -> Subject<Group> {
    let requirements = Requirements {
        multinode: Some(true),
        ..Cloud::requirements()
    };
    let offer = first_offer(cloud, &requirements, cloud.region).await;
    group_at(cloud, requirements, offer, nodes)
}

/// A group of the first offer that is so, with as many containers as it is for.
pub async fn group_of(
    cloud: &Cloud,
    requirements: Requirements,
    is_wanted: impl Fn(&Offer) -> bool,
) -> Subject<Group> {
    let offer = wanted_offer(cloud, &requirements, is_wanted).await;
    let nodes = offer.group_size.expect("the group has a fixed size");
    let nodes = usize::try_from(nodes).unwrap();
    group_at(cloud, requirements, offer, nodes)
}

fn group_at(cloud: &Cloud, requirements: Requirements, offer: Offer, nodes: usize) -> Subject<Group> {
    let marks = marks(cloud, &long_name());
    let workload = Workload {
        registry: None,
        ..workload()
    };
    Subject {
        lifecycle: |backend| backend.groups(),
        site: offer.region.to_string(),
        want: GroupRequest {
            marks: marks.clone(),
            owner: owner(),
            offer,
            requirements,
            workloads: vec![workload; nodes],
        },
        asked: |want, marks| GroupRequest {
            marks,
            ..want.clone()
        },
        marks,
        problem: |place| {
            let members = &place.job_provisioning_datas;
            unset(&[
                (members.is_empty(), "members"),
                (place.compute_group_id.is_empty(), "compute_group_id"),
                (members.iter().any(|member| member.hostname.is_none()), "hostname"),
                (members.iter().any(|member| member.ssh_port.is_none()), "ssh_port"),
                (
                    members.iter().any(|member| member.internal_ip.is_none()),
                    "internal_ip",
                ),
            ])
        },
        called: |place| &place.compute_group_id,
    }
}

/// A volume of this configuration, as users write it.
pub fn volume(cloud: &Cloud, configuration: &Value) -> Subject<Volume> {
    let configuration: AnyVolumeConfiguration = decode_strict(configuration).unwrap();
    let marks = marks(cloud, &long_name());
    Subject {
        lifecycle: |backend| backend.volumes().map(|volumes| volumes as &dyn Lifecycle<Volume>),
        site: configuration.region().unwrap_or_default().to_owned(),
        want: VolumeRequest {
            marks: marks.clone(),
            owner: owner(),
            configuration,
        },
        asked: |want, marks| VolumeRequest {
            marks,
            ..want.clone()
        },
        marks,
        problem: |place| {
            unset(&[
                (place.volume_id.is_empty(), "volume_id"),
                (place.backend.is_none(), "backend"),
            ])
        },
        called: |place| &place.volume_id,
    }
}

/// A volume that is attached to a machine; both are there already. Attachments carry no marks.
pub fn attachment(cloud: &Cloud, site: AttachmentSite) -> Subject<Attachment> {
    Subject {
        lifecycle: |backend| backend.volumes().and_then(|volumes| volumes.attachments()),
        want: site.clone(),
        asked: |want, _| want.clone(),
        marks: marks(cloud, "attachment"),
        site,
        problem: |place| unset(&[(place.device_name.is_none(), "device_name")]),
        called: |_| "",
    }
}

/// A placement group for machines of a type.
pub fn placement(cloud: &Cloud, region: &str, instance_type: &str) -> Subject<Placement> {
    let marks = marks(cloud, &long_name());
    Subject {
        lifecycle: |backend| backend.placements(),
        site: region.to_owned(),
        want: PlacementRequest {
            marks: marks.clone(),
            owner: owner(),
            region: region.to_owned(),
            instance_type: instance_type.to_owned(),
        },
        asked: |want, marks| PlacementRequest {
            marks,
            ..want.clone()
        },
        marks,
        problem: |_| None,
        called: |_| "",
    }
}

/// A load balancer for machines of gateways, without a certificate.
pub fn load_balancer(cloud: &Cloud, region: &str) -> Subject<LoadBalancer> {
    let marks = marks(cloud, &long_name());
    Subject {
        lifecycle: |backend| {
            let balancers = backend.load_balancers()?;
            Some(balancers as &dyn Lifecycle<LoadBalancer>)
        },
        site: region.to_owned(),
        want: LoadBalancerRequest {
            marks: marks.clone(),
            owner: owner(),
            region: region.to_owned(),
            is_public: true,
            certificate: None,
        },
        asked: |want, marks| LoadBalancerRequest {
            marks,
            ..want.clone()
        },
        marks,
        problem: |place| {
            unset(&[
                (place.hostname.is_empty(), "hostname"),
                (place.backend_data.is_empty(), "backend_data"),
            ])
        },
        called: |_| "",
    }
}

/// A machine for a gateway.
pub fn gateway(cloud: &Cloud, region: &str) -> Subject<GatewayMachine> {
    let marks = marks(cloud, &long_name());
    Subject {
        lifecycle: |backend| backend.gateways(),
        site: region.to_owned(),
        want: GatewayRequest {
            marks: marks.clone(),
            owner: owner(),
            region: region.to_owned(),
            instance_type: None,
            is_public: true,
            authorized_keys: vec![KEY.to_owned()],
            load_balancer: None,
        },
        asked: |want, marks| GatewayRequest {
            marks,
            ..want.clone()
        },
        marks,
        problem: |place| {
            unset(&[
                (place.instance_id.is_empty(), "instance_id"),
                (place.ip_address.is_empty(), "ip_address"),
                (place.region.is_empty(), "region"),
            ])
        },
        called: |place| &place.instance_id,
    }
}
