//! The life of a machine: one request, with which Azure makes a virtual machine, its network interface, address and disk. They end with it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use dstack_backend::{Made, cloud_config, machine_place, not_asked};
use dstack_compute::{
    Call, ComputeError, Known, LISTED_WITHIN, Lifecycle, Machine, MachineRequest, Removal, Sign, Step,
};
use dstack_model::offers::InstanceOfferWithAvailability;
use dstack_model::runs::JobProvisioningData;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::client::{self, COMPUTE, NETWORK, Reference, Thing};
use crate::configure::identity_path;
use crate::errors::{AzureError, Problem};
use crate::images::{USER, gateway_image, image_for};
use crate::network::Network;
use crate::pieces::Piece;
use crate::{Azure, Everywhere, names, tags};

/// Longest name of a machine (64 are allowed).
const NAME_LENGTH: usize = 60;

const MACHINE: &str = "machine";

/// What is noted before a machine is asked for. It is no piece of Azure.
const CHOICE: &str = "choice of the machine";

/// What is noted of a machine of dstack 0.22.5 before it is removed. It is no piece of Azure.
const UNMARKED: &str = "unmarked pieces of the machine";

/// What is noted of a machine before it is removed whose place names no resource group. It is no piece of Azure.
const FOUND_IN: &str = "resource group of the machine";

/// Pause while a machine starts.
const STARTS_INTERVAL: Duration = Duration::from_secs(10);

/// Pause while a machine is being taken away.
pub(crate) const ENDS_INTERVAL: Duration = Duration::from_secs(10);

/// Machines that a list lacks, and that are asked for by their names in one look.
const MOST_ASKED: usize = 20;

/// What the request names is gone, or not known everywhere yet.
const NOT_THERE: &[&str] = &["InvalidResourceReference", "ResourceNotFound", "SubnetNotFound"];

/// Types of keys that Azure takes; others come with the user data.
const KEY_TYPES: &[&str] = &["ssh-rsa ", "ssh-ed25519 "];

/// What a machine is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Purpose {
    /// Jobs, with an agent.
    Jobs,
    Gateway,
}

impl Purpose {
    /// What a machine calls itself, as those of dstack 0.22.5 do.
    const fn computer_name(self) -> &'static str {
        match self {
            Self::Jobs => "runnervm",
            Self::Gateway => "gatewayvm",
        }
    }
}

/// What is noted of a machine that was asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Asked {
    made: Made,
    /// Address of the operation, which tells why it has failed.
    #[serde(default)]
    operation: Option<String>,
}

/// What the configuration says of a machine when it is asked for first; it may change while the machine is there.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Choice {
    /// Name of the resource group in which the machine is, also when the configuration names another one later.
    group: String,
    is_public: bool,
}

/// What places have more than those of dstack 0.22.5, whose machines are in the group that was configured then.
#[derive(Debug, Default, Serialize, Deserialize)]
struct PlaceData {
    #[serde(default)]
    resource_group: Option<String>,
}

#[async_trait]
impl Lifecycle<Machine> for Azure {
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
        let places = known.iter().filter_map(|known| known.place.as_ref());
        let groups: BTreeSet<String> = places.map(|place| self.likely_group(place)).collect();
        let mut lists = HashMap::new();
        let mut failed = None;
        for group in groups {
            match self.list_machines(Some(&group)).await {
                Ok(listed) => drop(lists.insert(group, listed)),
                Err(error) => failed = Some(error),
            }
        }
        if let Some(error) = failed.filter(|_| lists.is_empty()) {
            return Err(error);
        }
        let find = |place: &JobProvisioningData| {
            let listed = lists.get(&self.likely_group(place))?;
            Some(named(listed, &place.instance_id))
        };
        let is_lacking =
            |place: &JobProvisioningData| noted_group(place).is_none() && matches!(find(place), Some(None));
        let mut places = known.iter().filter_map(|known| known.place.as_ref());
        let everywhere = match places.any(is_lacking) {
            true => self.machines_everywhere().await.ok(),
            false => None,
        };
        let (mut signs, mut asked) = (Vec::with_capacity(known.len()), 0);
        for known in known {
            let Some(place) = &known.place else {
                signs.push(None);
                continue;
            };
            let Some(mut listed) = find(place) else {
                signs.push(None);
                continue;
            };
            let (mut group, name) = (self.likely_group(place), place.instance_id.as_str());
            // Whether the machine is nowhere, if it is not in this group.
            let mut is_certain = true;
            if is_lacking(place) {
                let everywhere = everywhere.as_deref();
                listed = everywhere.and_then(|all| named(&all.machines, name));
                match listed {
                    Some(machine) => group = machine.group().unwrap_or(&self.group).to_lowercase(),
                    None => is_certain = everywhere.is_some_and(|all| all.is_whole),
                }
            }
            if listed.is_some_and(is_well) {
                signs.push(Some(Sign::Well));
                continue;
            }
            // A list may lack what is new, or what moved while it was read; what has failed is told by its state now.
            asked += 1;
            let found = match asked <= MOST_ASKED {
                true => self.machine(&group, name).await.ok(),
                false => None,
            };
            let found = found.filter(|found| found.is_some() || is_certain);
            signs.push(found.map(|found| sign_of(found.as_ref())));
        }
        Ok(signs)
    }

    async fn remove(&self, known: &Known<Machine>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let place = known.place.as_ref();
        let choice: Option<Choice> = call.made(CHOICE)?;
        let group = match (place, choice) {
            (Some(place), choice) => match noted_group(place).or(choice.map(|choice| choice.group)) {
                Some(group) => group,
                None => self.find_group(&place.instance_id, call).await?,
            },
            (None, Some(choice)) => choice.group,
            (None, None) => self.group.clone(),
        };
        let of_place = place.map(|place| Asked {
            made: Made::long_ago(place.instance_id.clone()),
            operation: None,
        });
        let find = async || {
            let name = known.marks.name(NAME_LENGTH);
            let is_there =
                self.machine(&group, &name).await?.is_some() || self.has_pieces(&group, &known.marks).await?;
            Ok(is_there.then(|| Asked {
                made: Made::now(name, call),
                operation: None,
            }))
        };
        let is_noted = call.made::<Asked>(MACHINE)?.is_some();
        let unmarked = match place.filter(|_| !is_noted) {
            Some(place) => self.note_unmarked(&group, &place.instance_id, call).await?,
            None => Vec::new(),
        };
        let delete = async |asked: Asked| {
            let mut told = self.end_machine(&group, &asked.made.id).await?;
            let is_own =
                |piece: &Piece| piece.is_for(&known.marks) || unmarked.iter().any(|one| piece.is(one));
            if told == Removal::Gone && self.end_pieces(&group, is_own).await? {
                told = Removal::Underway { again: ENDS_INTERVAL };
            }
            Ok(asked.made.removal(call, told, ENDS_INTERVAL))
        };
        let removal = call
            .unmake(MACHINE, of_place, LISTED_WITHIN, find, delete)
            .await?;
        if removal == Removal::Gone {
            // The next attempt makes another choice.
            let gone = async |_: Choice| Ok(Removal::Gone);
            call.unmake(CHOICE, None, Duration::ZERO, async || Ok(None), gone)
                .await?;
        }
        Ok(removal)
    }
}

impl Azure {
    /// Makes a machine, unless it is made, and tells how far it is.
    pub(crate) async fn ensure_machine(
        &self,
        want: &MachineRequest,
        purpose: Purpose,
        call: &Call<'_>,
    ) -> Result<Step<JobProvisioningData>, ComputeError> {
        let starting = |doing: &str| {
            Ok(Step::Underway {
                seen: None,
                doing: doing.to_owned(),
                again: STARTS_INTERVAL,
            })
        };
        let choice = Choice {
            group: self.group.clone(),
            is_public: self.is_public(purpose),
        };
        let choice = call.choose(CHOICE, choice).await?;
        let group = choice.group.as_str();
        let Some(asked) = call.made::<Asked>(MACHINE)? else {
            self.launch(want, purpose, &choice, call).await?;
            return starting("the machine starts");
        };
        let name = &asked.made.id;
        let lists = self.lists(group);
        let listed = lists.machines.get(|| self.list_machines(Some(group))).await?;
        let listed = listed.iter().find(|machine| machine.name == *name).cloned();
        let machine = match listed {
            // The list may be of a moment ago.
            Some(machine) if is_well(&machine) => Some(machine),
            None if asked.made.is_new(call) => None,
            _ => self.machine(group, name).await?,
        };
        let Some(machine) = machine else {
            return match asked.made.is_new(call) {
                true => starting("the machine is listed"),
                false => Err(ComputeError::Broken("Azure does not have the machine".to_owned())),
            };
        };
        match state(&machine) {
            "Succeeded" | "Updating" => {}
            "Failed" | "Canceled" => return Err(self.why_failed(&asked, &machine).await),
            "Deleting" => return Err(ComputeError::Broken("Azure removes the machine".to_owned())),
            _ => return starting("the machine starts"),
        }
        match self.addresses(&machine, &choice).await? {
            Some(addresses) => Ok(Step::Ready(place(&want.offer, group, machine.name, addresses))),
            None => starting("the machine gets an address"),
        }
    }

    /// The resource group of what was made: where none is noted, that of the configuration, unless it has changed since.
    fn likely_group(&self, place: &JobProvisioningData) -> String {
        noted_group(place).unwrap_or_else(|| self.group.clone())
    }

    /// The resource group of a machine whose place names none: where it is. It is noted, as nothing tells it once the machine is gone.
    ///
    /// # Errors
    /// The machine is not in the group of the configuration, and the credentials do not see whether it is in another one.
    async fn find_group(&self, name: &str, call: &Call<'_>) -> Result<String, ComputeError> {
        if let Some(noted) = call.made(FOUND_IN)? {
            return Ok(noted);
        }
        let group = if self.machine(&self.group, name).await?.is_some() {
            self.group.clone()
        } else {
            let all = self.machines_everywhere().await?;
            match named(&all.machines, name) {
                Some(machine) => machine.group().unwrap_or(&self.group).to_lowercase(),
                None if all.is_whole => return Ok(self.group.clone()),
                None => {
                    return Err(ComputeError::Credentials(format!(
                        "the machine is not in the resource group {}, and Azure shows no other: allow \
                         `Microsoft.Compute/virtualMachines/read` in the subscription",
                        self.group
                    )));
                }
            }
        };
        call.choose(FOUND_IN, group).await
    }

    async fn machines_everywhere(&self) -> Result<Arc<Everywhere>, ComputeError> {
        self.everywhere.get(|| self.list_everywhere()).await
    }

    pub(crate) fn machine_path(&self, group: &str, name: &str) -> String {
        self.client
            .in_group(group, format_args!("Compute/virtualMachines/{name}"))
    }

    /// `None`: Azure does not have it.
    async fn machine(&self, group: &str, name: &str) -> Result<Option<Thing<client::Machine>>, ComputeError> {
        let found = self.client.find_machine(&self.machine_path(group, name)).await;
        found.map_err(|error| error.compute_error())
    }

    /// Asks for the machine under its name: to ask twice makes it once.
    async fn launch(
        &self,
        want: &MachineRequest,
        purpose: Purpose,
        choice: &Choice,
        call: &Call<'_>,
    ) -> Result<Asked, ComputeError> {
        let group = choice.group.as_str();
        let network = self.network(&want.offer.region, purpose).await?;
        let body = self
            .body(want, purpose, choice.is_public, &network)
            .map_err(not_asked)?;
        let name = want.marks.name(NAME_LENGTH);
        let path = self.machine_path(group, &name);
        let was_asked = call.asked_at(MACHINE).is_some();
        let asked = |operation: Option<String>| Asked {
            made: Made::now(name.clone(), call),
            operation,
        };
        let ask = async || {
            // As long as Azure is at it, the same request would be in conflict with the first one.
            if was_asked && self.machine(group, &name).await?.is_some() {
                return Ok(asked(None));
            }
            let error = match self.client.put(&path, COMPUTE, &body).await {
                Ok(operation) => return Ok(asked(operation)),
                Err(error) => error,
            };
            if error.is(NOT_THERE) {
                self.networks.forget(&want.offer.region, purpose);
                return Err(ComputeError::NotReady(error.to_string()));
            }
            // As one for which there is no room.
            if error.may_have_begun() && !matches!(self.machine(group, &name).await, Ok(None)) {
                return Ok(asked(None));
            }
            Err(error.compute_error())
        };
        call.make_once(MACHINE, ask).await
    }

    fn body(
        &self,
        want: &MachineRequest,
        purpose: Purpose,
        is_public: bool,
        network: &Network,
    ) -> Result<Value, ComputeError> {
        let (offer, name) = (&want.offer, want.marks.name(NAME_LENGTH));
        let resources = &offer.instance.resources;
        let tags = tags::of_machine(&want.marks, &want.owner, self.config.tags.as_ref());
        let is_taken = |key: &&String| KEY_TYPES.iter().any(|kind| key.starts_with(kind));
        let keys = want.authorized_keys.iter().filter(is_taken);
        let path = format!("/home/{USER}/.ssh/authorized_keys");
        let keys: Vec<Value> = keys.map(|key| json!({"path": path, "keyData": key})).collect();
        if keys.is_empty() {
            return Err(ComputeError::Refused(
                "Azure takes machines with a key of RSA or Ed25519 only".to_owned(),
            ));
        }
        let mut ip = json!({"subnet": {"id": network.subnet}});
        if let (true, Some(fields)) = (is_public, ip.as_object_mut()) {
            let address = json!({"name": name, "tags": tags, "sku": {"name": "Standard"},
                "properties": {"deleteOption": "Delete", "publicIPAllocationMethod": "Static"}});
            fields.insert("publicIPAddressConfiguration".to_owned(), address);
        }
        let nic = json!({"name": name, "tags": tags, "properties": {
            "deleteOption": "Delete",
            "primary": true,
            "networkSecurityGroup": {"id": network.security_group},
            "ipConfigurations": [{"name": "ip_config", "properties": ip}],
        }});
        let mut properties = json!({
            "hardwareProfile": {"vmSize": offer.instance.name},
            "storageProfile": {
                "imageReference": match purpose {
                    Purpose::Jobs => image_for(&offer.instance.name, resources),
                    Purpose::Gateway => gateway_image(),
                },
                "osDisk": {
                    "name": name,
                    "createOption": "FromImage",
                    "managedDisk": {"storageAccountType": "StandardSSD_LRS"},
                    "diskSizeGB": (resources.disk.size_mib + 1023) / 1024,
                    "deleteOption": "Delete",
                },
            },
            "osProfile": {
                "computerName": purpose.computer_name(),
                "adminUsername": USER,
                "linuxConfiguration": {"disablePasswordAuthentication": true, "ssh": {"publicKeys": keys}},
            },
            "networkProfile": {"networkApiVersion": NETWORK, "networkInterfaceConfigurations": [nic]},
            "priority": if resources.spot { "Spot" } else { "Regular" },
            "userData": BASE64_STANDARD.encode(cloud_config(&want.authorized_keys, &[])),
        });
        if let (true, Some(fields)) = (resources.spot, properties.as_object_mut()) {
            fields.insert("evictionPolicy".to_owned(), "Delete".into());
        }
        let mut body = json!({"location": &*offer.region, "tags": tags, "properties": properties});
        // What jobs may do in the account is none of a gateway's business.
        let identity = self.config.vm_managed_identity.as_ref();
        if let Some(identity) = identity.filter(|_| purpose == Purpose::Jobs) {
            let [group, name] = names::parts::<2>(identity).ok_or_else(|| {
                ComputeError::Configuration(format!("`vm_managed_identity`: {identity} is none"))
            })?;
            let mut identities = serde_json::Map::new();
            identities.insert(identity_path(&self.client, group, name), json!({}));
            if let Some(fields) = body.as_object_mut() {
                let identity = json!({"type": "UserAssigned", "userAssignedIdentities": identities});
                fields.insert("identity".to_owned(), identity);
            }
        }
        Ok(body)
    }

    /// Whether a machine gets an address.
    pub(crate) fn is_public(&self, purpose: Purpose) -> bool {
        purpose == Purpose::Gateway || self.config.public_ips.unwrap_or(true)
    }

    /// The operation tells; where its address is not known, the state of the machine.
    async fn why_failed(&self, asked: &Asked, machine: &Thing<client::Machine>) -> ComputeError {
        #[derive(Deserialize)]
        struct Operation {
            #[serde(default)]
            error: Option<Problem>,
        }
        if let Some(link) = &asked.operation {
            let told = self.client.operation::<Operation>(link).await;
            if let Some(problem) = told.ok().and_then(|operation| operation.error) {
                return AzureError::of_operation(problem).compute_error();
            }
        }
        let view = machine
            .properties
            .as_ref()
            .map(|properties| &properties.instance_view);
        let statuses = view.into_iter().flat_map(|view| &view.statuses);
        let told = statuses.into_iter().find_map(|status| {
            let code = status.code.strip_prefix("ProvisioningState/failed/")?;
            Some(Problem {
                code: code.to_owned(),
                message: status.message.clone().unwrap_or_default(),
            })
        });
        match told {
            Some(problem) => AzureError::of_operation(problem).compute_error(),
            None => {
                ComputeError::NoCapacity("Azure could not make the machine, and does not say why".to_owned())
            }
        }
    }

    /// The network interface and the address of a machine of dstack 0.22.5, which have no marks, and perhaps do not end with it.
    async fn note_unmarked(
        &self,
        group: &str,
        name: &str,
        call: &Call<'_>,
    ) -> Result<Vec<Reference>, ComputeError> {
        if let Some(noted) = call.made(UNMARKED)? {
            return Ok(noted);
        }
        let machine = self
            .machine(group, name)
            .await?
            .and_then(|machine| machine.properties);
        let Some(nic) =
            machine.and_then(|machine| machine.network_profile.network_interfaces.into_iter().next())
        else {
            return Ok(Vec::new());
        };
        let lists = self.lists(group);
        let pieces = lists.pieces.get(|| self.list_pieces(Some(group))).await?;
        let ip = pieces.iter().find(|piece| piece.is(&nic)).and_then(Piece::ip);
        let address = ip.and_then(|ip| ip.public_address.clone());
        let found: Vec<Reference> = [nic].into_iter().chain(address).collect();
        call.choose(UNMARKED, found).await
    }

    /// The address at which it is reached, and the one in its network; `None`: it has none yet.
    async fn addresses(
        &self,
        machine: &Thing<client::Machine>,
        choice: &Choice,
    ) -> Result<Option<(String, Option<String>)>, ComputeError> {
        let profile = machine
            .properties
            .as_ref()
            .map(|properties| &properties.network_profile);
        let Some(nic) = profile.and_then(|profile| profile.network_interfaces.first()) else {
            return Ok(None);
        };
        let (group, lists) = (choice.group.as_str(), self.lists(&choice.group));
        let pieces = lists.pieces.get(|| self.list_pieces(Some(group))).await?;
        let find = |one: &Reference| pieces.iter().find(|piece| piece.is(one));
        let Some(ip) = find(nic).and_then(Piece::ip) else {
            return Ok(None);
        };
        let private = ip.private_address.clone();
        if !choice.is_public {
            return Ok(private.map(|address| (address.clone(), Some(address))));
        }
        let address = ip.public_address.as_ref().and_then(find);
        let address = address.and_then(|piece| piece.properties.ip_address.clone());
        Ok(address.map(|address| (address, private)))
    }

    /// `Gone`: Azure does not have the machine itself.
    pub(crate) async fn end_machine(&self, group: &str, name: &str) -> Result<Removal, ComputeError> {
        let underway = Removal::Underway { again: ENDS_INTERVAL };
        let lists = self.lists(group);
        let listed = lists.machines.get(|| self.list_machines(Some(group))).await?;
        match named(&listed, name) {
            Some(machine) if state(machine) == "Deleting" => return Ok(underway),
            None if self.machine(group, name).await?.is_none() => return Ok(Removal::Gone),
            _ => {}
        }
        let asked = self.client.delete(&self.machine_path(group, name), COMPUTE).await;
        match asked.map_err(|error| error.compute_error()) {
            // What goes on with it ends first.
            Ok(()) | Err(ComputeError::NotReady(_)) => Ok(underway),
            Err(error) => Err(error),
        }
    }
}

/// What a place says of the resource group; `None`: it is one of dstack 0.22.5, or of an early build.
fn noted_group(place: &JobProvisioningData) -> Option<String> {
    let data = place.backend_data.as_deref().unwrap_or_default();
    let data: PlaceData = serde_json::from_str(data).unwrap_or_default();
    data.resource_group.filter(|group| names::is_name(group))
}

/// Azure does not tell cases of names apart.
fn named<'m>(machines: &'m [Thing<client::Machine>], name: &str) -> Option<&'m Thing<client::Machine>> {
    machines
        .iter()
        .find(|machine| machine.name.eq_ignore_ascii_case(name))
}

fn state(machine: &Thing<client::Machine>) -> &str {
    let properties = machine.properties.as_ref();
    properties.map_or("", |properties| properties.provisioning_state.as_str())
}

/// Whether a machine starts, or is there, as far as a list tells.
fn is_well(machine: &Thing<client::Machine>) -> bool {
    !matches!(state(machine), "Failed" | "Canceled" | "Deleting")
}

fn sign_of(machine: Option<&Thing<client::Machine>>) -> Sign<JobProvisioningData> {
    let Some(machine) = machine else {
        return Sign::Lost(
            "Azure does not have the machine any more, as when it takes a spot machine back".to_owned(),
        );
    };
    let view = machine
        .properties
        .as_ref()
        .map(|properties| &properties.instance_view);
    let mut statuses = view.into_iter().flat_map(|view| &view.statuses);
    // A change of it may have failed, and it runs on.
    let runs = statuses.any(|status| status.code == "PowerState/running");
    match (is_well(machine), state(machine)) {
        (true, _) => Sign::Well,
        (false, state) if state != "Deleting" && runs => Sign::Well,
        (false, state) => Sign::Lost(format!("Azure has ended the machine (its state is {state})")),
    }
}

fn place(
    offer: &InstanceOfferWithAvailability,
    group: &str,
    id: String,
    (hostname, internal_ip): (String, Option<String>),
) -> JobProvisioningData {
    let data = PlaceData {
        resource_group: Some(group.to_owned()),
    };
    JobProvisioningData {
        internal_ip,
        backend_data: serde_json::to_string(&data).ok(),
        ..machine_place(offer, id, hostname, USER, 22)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(state: &str, statuses: &[&str]) -> Thing<client::Machine> {
        let statuses: Vec<Value> = statuses.iter().map(|code| json!({"code": code})).collect();
        serde_json::from_value(json!({"name": "m", "properties": {
            "provisioningState": state, "instanceView": {"statuses": statuses}}}))
        .unwrap()
    }

    #[test]
    fn how_a_machine_is_by_its_state() {
        for (found, is_lost) in [
            (machine("Succeeded", &[]), false),
            (machine("Updating", &[]), false),
            (machine("NewInThisYear", &[]), false),
            (machine("Failed", &["PowerState/running"]), false),
            (machine("Failed", &["PowerState/deallocated"]), true),
            (machine("Failed", &[]), true),
            (machine("Deleting", &["PowerState/running"]), true),
        ] {
            let sign = sign_of(Some(&found));
            assert_eq!(matches!(sign, Sign::Lost(_)), is_lost, "{found:?}");
        }
        assert!(matches!(sign_of(None), Sign::Lost(_)));
    }
}
