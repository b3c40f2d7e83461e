//! The life of a machine: its boot disk first, then for spot machines what it may cost, then the machine.

use std::sync::PoisonError;
use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::{look_by_place, machine_place, not_asked};
use dstack_compute::{
    Call, ComputeError, Known, LISTED_WITHIN, Lifecycle, Machine, MachineRequest, Removal, Sign, Step,
};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::JobProvisioningData;
use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::client::{Begun, Kind};
use crate::errors::{failure, told};
use crate::labels::labels;
use crate::messages::{
    Address, AttachedDisk, ById, Cluster, DiskSpec, Empty, FAIL, Instance, InstanceSpec, InstanceState,
    MaxPrice, NETWORK_SSD, NewAddress, NewInterface, Platform, Preemptible, PricedInstances, Pricing,
    PricingPolicySpec, READ_WRITE, Resources, STOP, SourceImageFamily, Thing,
};
use crate::offers::{fabrics_of, platform_and_preset, sent_price_cap};
use crate::user_data::user_data;
use crate::{Nebius, PROJECT};

/// Longest name of a machine, and of what it has. Nebius takes 1024 bytes.
const NAME_LENGTH: usize = 60;

/// Ubuntu with CUDA, Docker and NVIDIA's container toolkit, and its user.
const IMAGE_FAMILY: &str = "ubuntu24.04-cuda13.0";
const USER: &str = "ubuntu";

/// Pieces of a machine, in the order in which they are made.
const DISK: &str = "disk";
const POLICY: &str = "pricing policy";
const MACHINE: &str = "machine";

/// Pause while a disk or policy is made.
const PIECE_INTERVAL: Duration = Duration::from_secs(5);

/// Pause while a machine starts.
const STARTS_INTERVAL: Duration = Duration::from_secs(10);

/// Pause while something is being taken away.
pub(crate) const ENDS_INTERVAL: Duration = Duration::from_secs(5);

/// Machines of a region that are not in its list are asked for one by one: so many in one look.
const MOST_ASKED: usize = 20;

fn underway(doing: &str, again: Duration) -> Step<JobProvisioningData> {
    Step::Underway {
        seen: None,
        doing: doing.to_owned(),
        again,
    }
}

#[async_trait]
impl Lifecycle<Machine> for Nebius {
    async fn ensure(
        &self,
        want: &MachineRequest,
        call: &Call<'_>,
    ) -> Result<Step<JobProvisioningData>, ComputeError> {
        let is_asked = call.made::<Begun>(MACHINE)?.is_some();
        let prepared = match is_asked {
            true => Prepared::default(),
            false => self.prepare(want, call).await?,
        };
        let disk = self.ensure_disk(want, &prepared, call).await?;
        if !is_asked && !self.is_there(Kind::Disk, &disk, call).await? {
            return Ok(underway("the disk is made", PIECE_INTERVAL));
        }
        let policy = self.ensure_policy(want, &prepared, call).await?;
        if let Some(policy) = &policy
            && !is_asked
            && !self.is_there(Kind::PricingPolicy, policy, call).await?
        {
            return Ok(underway("the pricing policy is made", PIECE_INTERVAL));
        }
        let policy = policy.map(|policy| policy.made.id);
        let ask = async || {
            self.start(want, &prepared, &disk.made.id, policy.as_deref(), call)
                .await
        };
        let find = || self.find(Kind::Instance, want, call);
        let begun: Begun = call.make(MACHINE, LISTED_WITHIN, ask, find).await?;
        let Some(instance) = self
            .client
            .get::<Instance>(Kind::Instance, &begun.made.id)
            .await?
        else {
            // One that failed may be removed by Nebius: its operation tells why.
            self.is_over(Kind::Instance, &begun).await?;
            return match begun.made.is_new(call) {
                true => Ok(underway("the machine is listed", STARTS_INTERVAL)),
                false => Err(ComputeError::Broken(
                    "Nebius does not have the machine".to_owned(),
                )),
            };
        };
        let runs = matches!(state(&instance), InstanceState::Starting | InstanceState::Running);
        if let Some(addresses) = addresses(&instance).filter(|_| runs) {
            let place = place(
                &want.offer,
                begun.made.id,
                addresses,
                &disk.made.id,
                policy.as_deref(),
            );
            return Ok(Step::Ready(place));
        }
        // Quota and capacity may be found lacking only now.
        self.is_over(Kind::Instance, &begun).await?;
        match end_of(&instance) {
            Some(end) => Err(ComputeError::Broken(end)),
            None => Ok(underway("the machine starts", STARTS_INTERVAL)),
        }
    }

    async fn look(
        &self,
        known: &[Known<Machine>],
    ) -> Result<Vec<Option<Sign<JobProvisioningData>>>, ComputeError> {
        let region = |known: &Known<Machine>| known.place.as_ref().map(|place| place.region.clone());
        let signs = look_by_place(known, region, |region, machines| async move {
            self.signs_in(&region, &machines).await
        });
        let told = |sign: Sign<()>| match sign {
            Sign::Well => Some(Sign::Well),
            Sign::Lost(why) => Some(Sign::Lost(why)),
            Sign::Ending { at, why } => Some(Sign::Ending { at, why }),
            Sign::Moved(()) => None,
        };
        Ok(signs.await?.into_iter().map(|sign| sign.and_then(told)).collect())
    }

    async fn remove(&self, known: &Known<Machine>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let data: Option<Value> = known
            .place
            .as_ref()
            .and_then(|place| serde_json::from_str(place.backend_data.as_deref()?).ok());
        let noted = |name: &str| Some(data.as_ref()?.get(name)?.as_str()?.to_owned());
        let machine = known.place.as_ref().map(|place| place.instance_id.clone());
        let name = known.marks.name(NAME_LENGTH);
        // Nothing has the policy and the disk any more when the machine is gone.
        for (piece, kind, id) in [
            (MACHINE, Kind::Instance, machine),
            (POLICY, Kind::PricingPolicy, noted("pricing_policy_id")),
            (DISK, Kind::Disk, noted("boot_disk_id")),
        ] {
            let find = || self.find_named(kind, &known.site, &name, &known.marks, call);
            let delete = async |begun: Begun| {
                let told = self.delete(kind, &begun.made.id).await?;
                Ok(begun.made.removal(call, told, ENDS_INTERVAL))
            };
            let id = id.map(Begun::long_ago);
            let removal = call.unmake(piece, id, LISTED_WITHIN, find, delete).await?;
            if removal != Removal::Gone {
                return Ok(removal);
            }
        }
        Ok(Removal::Gone)
    }
}

/// What has to be known before anything is asked for.
#[derive(Debug, Default)]
struct Prepared {
    project: String,
    subnet: String,
    cluster: Option<String>,
}

impl Nebius {
    /// Before what is noted, as whatever fails here was certainly not asked for: a token too.
    async fn prepare(&self, want: &MachineRequest, call: &Call<'_>) -> Result<Prepared, ComputeError> {
        self.client.prepare().await.map_err(not_asked)?;
        let cluster = match &want.placement_group {
            Some(group) => self
                .cluster_for(&want.offer, group, call)
                .await
                .map_err(not_asked)?,
            None => None,
        };
        let (project, cluster) = match cluster {
            // Machines are in clusters of their own project only.
            Some((project, cluster)) => (call.choose(PROJECT, project).await?, Some(cluster)),
            None => (self.note_project(&want.offer.region, call).await?, None),
        };
        let subnet = self.subnet(&project).await.map_err(not_asked)?;
        Ok(Prepared {
            project,
            subnet,
            cluster,
        })
    }

    async fn ensure_disk(
        &self,
        want: &MachineRequest,
        prepared: &Prepared,
        call: &Call<'_>,
    ) -> Result<Begun, ComputeError> {
        let spec = DiskSpec {
            size_mebibytes: Some(want.offer.instance.resources.disk.size_mib),
            kind: NETWORK_SSD,
            source_image_family: Some(SourceImageFamily {
                image_family: IMAGE_FAMILY.to_owned(),
            }),
        };
        let ask = async || self.make(Kind::Disk, want, prepared, &spec, call).await;
        let find = || self.find(Kind::Disk, want, call);
        call.make(DISK, LISTED_WITHIN, ask, find).await
    }

    /// For a spot machine whose price moves.
    async fn ensure_policy(
        &self,
        want: &MachineRequest,
        prepared: &Prepared,
        call: &Call<'_>,
    ) -> Result<Option<Begun>, ComputeError> {
        let Some(max_price) = sent_price_cap(&want.offer) else {
            return Ok(None);
        };
        let (platform, _) = type_of(want)?;
        let spec = PricingPolicySpec {
            compute_instance_spec: Some(PricedInstances {
                v1: Some(Platform {
                    platform: platform.to_owned(),
                }),
            }),
            pricing: Some(Pricing {
                max_price_v1: Some(MaxPrice { max_price }),
            }),
        };
        let ask = async || self.make(Kind::PricingPolicy, want, prepared, &spec, call).await;
        let find = || self.find(Kind::PricingPolicy, want, call);
        call.make(POLICY, LISTED_WITHIN, ask, find).await.map(Some)
    }

    async fn start(
        &self,
        want: &MachineRequest,
        prepared: &Prepared,
        disk: &str,
        policy: Option<&str>,
        call: &Call<'_>,
    ) -> Result<Begun, ComputeError> {
        let (platform, preset) = type_of(want)?;
        let is_spot = want.offer.instance.resources.spot;
        let by_id = |id: &str| ById { id: id.to_owned() };
        let spec = InstanceSpec {
            resources: Some(Resources {
                platform: platform.to_owned(),
                preset: Some(preset.to_owned()),
            }),
            gpu_cluster: prepared.cluster.as_deref().map(by_id),
            network_interfaces: vec![NewInterface {
                subnet_id: prepared.subnet.clone(),
                name: "dstack-default-interface".to_owned(),
                ip_address: Some(Empty {}),
                public_ip_address: Some(NewAddress { is_static: true }),
            }],
            boot_disk: Some(AttachedDisk {
                attach_mode: READ_WRITE,
                existing_disk: Some(by_id(disk)),
            }),
            cloud_init_user_data: user_data(&want.authorized_keys),
            recovery_policy: if is_spot { FAIL } else { 0 },
            preemptible: is_spot.then_some(Preemptible { on_preemption: STOP }),
            follows_spot_price: (is_spot && policy.is_none()).then_some(Empty {}),
            spot_pricing_policy: policy.map(by_id),
        };
        let made = self.make(Kind::Instance, want, prepared, &spec, call).await;
        if matches!(made, Err(ComputeError::Refused(_))) {
            // Somebody may have removed it.
            self.forget_subnet(&prepared.project);
        }
        made
    }

    async fn make(
        &self,
        kind: Kind,
        want: &MachineRequest,
        prepared: &Prepared,
        spec: &impl prost::Message,
        call: &Call<'_>,
    ) -> Result<Begun, ComputeError> {
        let labels = labels(&want.marks, &want.owner, self.config.tags.as_ref());
        let name = want.marks.name(NAME_LENGTH);
        self.client
            .create(kind, &prepared.project, &name, labels, spec, call)
            .await
    }

    async fn find(
        &self,
        kind: Kind,
        want: &MachineRequest,
        call: &Call<'_>,
    ) -> Result<Option<Begun>, ComputeError> {
        let name = want.marks.name(NAME_LENGTH);
        self.find_named(kind, &want.offer.region, &name, &want.marks, call)
            .await
    }

    /// The cluster of a placement group, and its project before it; `None`: machines without InfiniBand need none.
    ///
    /// # Errors
    /// The machine does not fit into it, or there should be one.
    async fn cluster_for(
        &self,
        offer: &InstanceOfferWithAvailability,
        group: &str,
        call: &Call<'_>,
    ) -> Result<Option<(String, String)>, ComputeError> {
        let found = self.find_cluster(&offer.region, group, call).await?;
        let found = found.map(|(project, cluster)| (project, cluster.metadata, cluster.spec));
        let Some((project, Some(metadata), Some(spec))) = found else {
            // The group is there only since its cluster is known by this name.
            return match self.fabrics(&offer.instance.name, &offer.region)?.is_empty() {
                true => Ok(None),
                false => Err(ComputeError::Refused(format!(
                    "the placement group {group} has no GPU cluster: it was removed, or the group's first machine has no InfiniBand"
                ))),
            };
        };
        let fabric = &spec.infiniband_fabric;
        match fabrics_of(&offer.backend_data).any(|of_offer| of_offer == fabric) {
            true => Ok(Some((project, metadata.id))),
            false => Err(ComputeError::Refused(format!(
                "{} is not in the fabric {fabric} of the placement group",
                offer.instance.name
            ))),
        }
    }

    /// The cluster of this name, and its project: the one that is noted, or else any of the region, as another one than now may have been
    /// used when it was made.
    async fn find_cluster(
        &self,
        region: &str,
        name: &str,
        call: &Call<'_>,
    ) -> Result<Option<(String, Cluster)>, ComputeError> {
        if let Some(noted) = call.made::<String>(PROJECT)? {
            let found = self.client.named(Kind::Cluster, &noted, name).await?;
            return Ok(found.map(|cluster| (noted, cluster)));
        }
        let projects = self.projects().await?;
        let used = projects.by_region.get(region).and_then(Option::as_ref);
        let of_region = projects.all.iter().filter(|project| project.region == region);
        let mut ids: Vec<&String> = of_region.map(|project| &project.id).collect();
        // That one first.
        ids.sort_by_key(|id| Some(*id) != used);
        for id in ids {
            match self.client.named(Kind::Cluster, id, name).await {
                Ok(Some(cluster)) => return Ok(Some((id.clone(), cluster))),
                Ok(None) => {}
                // Nothing of ours is where the account may not look, unless it is to be used.
                Err(ComputeError::Credentials(_)) if Some(id) != used => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Whether an operation is over; `None`: Nebius does not tell.
    ///
    /// # Errors
    /// It came to nothing.
    pub(crate) async fn is_over(&self, kind: Kind, begun: &Begun) -> Result<Option<bool>, ComputeError> {
        let operation = self.client.operation(kind, &begun.operation).await?;
        let Some(operation) = operation else {
            return Ok(None);
        };
        match operation.status.as_ref().and_then(failure) {
            Some(error) => Err(error),
            None => Ok(Some(operation.status.is_some())),
        }
    }

    /// Whether a disk or policy is made.
    async fn is_there(&self, kind: Kind, begun: &Begun, call: &Call<'_>) -> Result<bool, ComputeError> {
        match self.is_over(kind, begun).await? {
            Some(is_over) => return Ok(is_over),
            // It will be known.
            None if !begun.operation.is_empty() && begun.made.is_new(call) => return Ok(false),
            None => {}
        }
        let thing: Option<Thing> = self.client.get(kind, &begun.made.id).await?;
        let broken = |why: &str| Err(ComputeError::Broken(format!("Nebius {why}")));
        match (kind, thing.map(|thing| thing.state(kind))) {
            (_, None) if begun.made.is_new(call) => Ok(false),
            (_, None) => broken("does not have the disk or pricing policy of the machine"),
            (Kind::Disk, Some(3)) | (_, Some(2)) | (Kind::PricingPolicy, Some(4)) => Ok(true),
            (_, Some(0 | 1)) => Ok(false),
            (_, Some(state)) => broken(&format!(
                "could not make the disk or pricing policy of the machine (its state is {state})"
            )),
        }
    }

    /// Another part of them each time.
    fn next_to_ask<'k>(&self, region: &str, missing: &[&'k str]) -> Vec<&'k str> {
        let mut asked_from = self.asked_from.lock().unwrap_or_else(PoisonError::into_inner);
        let from = asked_from.entry(region.to_owned()).or_default();
        let count = missing.len().min(MOST_ASKED);
        let start = from.checked_rem(missing.len()).unwrap_or(0);
        *from = start + count;
        missing.iter().cycle().skip(start).take(count).copied().collect()
    }

    async fn signs_in(
        &self,
        region: &str,
        machines: &[&Known<Machine>],
    ) -> Result<Vec<Sign<()>>, ComputeError> {
        let listed: Vec<Instance> = match self.project(region).await {
            Ok(project) => told(self.client.list(Kind::Instance, &project).await)?,
            // None is used there any more: they are all asked for by their ids.
            Err(ComputeError::Configuration(_)) => Vec::new(),
            Err(error) => return Err(error),
        };
        let is_it =
            |instance: &Instance, id: &str| instance.metadata.as_ref().is_some_and(|own| own.id == id);
        let missing: Vec<&str> = machines
            .iter()
            .map(|known| id_of(known))
            .filter(|id| !listed.iter().any(|instance| is_it(instance, id)))
            .collect();
        // What is new may not be listed yet, while others end a page may begin one entry later, and projects may have been changed.
        let missing = self.next_to_ask(region, &missing);
        let asked = join_all(
            missing
                .iter()
                .map(|id| async move { (*id, self.client.get::<Instance>(Kind::Instance, id).await) }),
        );
        let asked = asked.await;
        let sign = |instance: &Instance| end_of(instance).map_or(Sign::Well, Sign::Lost);
        Ok(machines
            .iter()
            .map(|known| {
                let id = id_of(known);
                if let Some(instance) = listed.iter().find(|instance| is_it(instance, id)) {
                    return sign(instance);
                }
                match asked.iter().find(|(asked, _)| *asked == id) {
                    Some((_, Ok(Some(instance)))) => sign(instance),
                    Some((_, Ok(None))) => Sign::Lost("Nebius does not have the machine any more".to_owned()),
                    // Nothing is told of it.
                    Some((_, Err(_))) | None => Sign::Moved(()),
                }
            })
            .collect())
    }
}

fn id_of(known: &Known<Machine>) -> &str {
    known
        .place
        .as_ref()
        .map_or("", |place| place.instance_id.as_str())
}

fn type_of(want: &MachineRequest) -> Result<(&str, &str), ComputeError> {
    let name = want.offer.instance.name.as_str();
    platform_and_preset(name)
        .ok_or_else(|| ComputeError::Refused(format!("{name} is no platform and preset of Nebius")))
}

fn state(instance: &Instance) -> InstanceState {
    instance
        .status
        .as_ref()
        .map_or(InstanceState::Unspecified, crate::messages::InstanceStatus::state)
}

/// Why a machine will never work (again). Spot machines are stopped when Nebius needs them.
fn end_of(instance: &Instance) -> Option<String> {
    let state = state(instance);
    let is_over = matches!(
        state,
        InstanceState::Stopping | InstanceState::Stopped | InstanceState::Deleting | InstanceState::Error
    );
    is_over.then(|| format!("Nebius has ended the machine (its state is {state:?})"))
}

/// The public address and the private one; `None`: not yet.
fn addresses(instance: &Instance) -> Option<(String, Option<String>)> {
    let interface = instance.status.as_ref()?.network_interfaces.first()?;
    let plain = |address: &Address| {
        let (address, _) = address.address.split_once('/').unwrap_or((&address.address, ""));
        (!address.is_empty()).then(|| address.to_owned())
    };
    let public = interface.public_ip_address.as_ref().and_then(plain)?;
    Some((public, interface.ip_address.as_ref().and_then(plain)))
}

fn place(
    offer: &InstanceOfferWithAvailability,
    id: String,
    (hostname, internal_ip): (String, Option<String>),
    disk: &str,
    policy: Option<&str>,
) -> JobProvisioningData {
    JobProvisioningData {
        internal_ip,
        // The form of dstack 0.22.5.
        backend_data: Some(json!({"boot_disk_id": disk, "pricing_policy_id": policy}).to_string()),
        ..machine_place(offer, id, hostname, USER, 22)
    }
}
