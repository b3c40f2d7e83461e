//! Virtual machines.

use axum::http::StatusCode;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::pieces::Piece;
use crate::{
    Answer, Ask, Azure, Cloud, Done, Refusal, SIZES, SUBSCRIPTION, Times, bad, check_tags, conflict, fields,
    missing, network, ok, one_of,
};

const GALLERY: &str = "/CommunityGalleries/dstack-ebac134d-04b9-4c2b-8b6c-ad3e73904aa7/Images/";

const IMAGES: &[&str] = &[
    "dstack-0.14",
    "dstack-cuda-0.14",
    "dstack-cuda-0.10",
    "dstack-grid-0.14",
];

#[derive(Debug, Clone)]
pub(crate) struct Machine {
    group: String,
    pub(crate) name: String,
    pub(crate) asked: Value,
    made_at: Instant,
    listed_at: Instant,
    ended_at: Option<Instant>,
    /// When it is gone.
    pub(crate) gone_at: Option<Instant>,
    /// Why it cannot be made.
    fails: Option<&'static str>,
    interface: Option<String>,
    operation: String,
}

impl Machine {
    pub(crate) fn id(&self) -> String {
        let group = &self.group;
        let name = &self.name;
        format!(
            "/subscriptions/{SUBSCRIPTION}/resourceGroups/{group}/providers/Microsoft.Compute/virtualMachines/{name}"
        )
    }

    fn state(&self, times: Times) -> &'static str {
        let takes = match self.fails {
            Some(_) => times.starts / 2,
            None => times.starts,
        };
        match self.made_at.elapsed() >= takes {
            _ if self.ended_at.is_some() => "Deleting",
            false => "Creating",
            true if self.fails.is_some() => "Failed",
            true => "Succeeded",
        }
    }

    fn to_json(&self, times: Times, is_listed: bool, with_view: bool) -> Value {
        // Azure is not consistent in this.
        let group = if is_listed {
            self.group.to_uppercase()
        } else {
            self.group.clone()
        };
        let state = self.state(times);
        let mut told = json!({"name": self.name, "location": self.asked["location"], "tags": self.asked["tags"],
            "id": format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/{group}/providers/Microsoft.Compute/virtualMachines/{}", self.name),
            "type": "Microsoft.Compute/virtualMachines", "identity": self.asked["identity"],
            "properties": {"provisioningState": state, "vmId": self.operation,
                "hardwareProfile": self.asked["properties"]["hardwareProfile"],
                "timeCreated": "2026-11-01T12:00:00.0000000+00:00"}});
        if let Some(interface) = &self.interface {
            told["properties"]["networkProfile"] =
                json!({"networkInterfaces": [{"id": interface, "properties": {"deleteOption": "Delete"}}]});
        }
        if with_view {
            let (code, power) = match state {
                "Failed" => (
                    format!("ProvisioningState/failed/{}", self.fails.unwrap_or_default()),
                    "unknown",
                ),
                other => (format!("ProvisioningState/{}", other.to_lowercase()), "running"),
            };
            told["properties"]["instanceView"] = json!({"statuses": [
                {"code": code, "level": "Info", "displayStatus": state, "message": "Allocation failed."},
                {"code": format!("PowerState/{power}"), "level": "Info", "displayStatus": power}]});
        }
        told
    }
}

impl Azure {
    /// Azure takes a machine, as it does with those of spot.
    pub fn evict(&self, name: &str) {
        let now = Instant::now();
        for machine in self
            .lock()
            .machines
            .iter_mut()
            .filter(|machine| machine.name == name)
        {
            machine.gone_at = Some(now);
        }
        self.settle();
    }

    /// The machine is one of dstack 0.22.5: interface and address have no marks, and do not end with it.
    pub fn grow_old(&self, name: &str) {
        let mut state = self.lock();
        let Cloud { machines, pieces, .. } = &mut *state;
        let machine = machines.iter_mut().find(|machine| machine.name == name).unwrap();
        let mut address = None;
        // Addresses come first.
        for piece in pieces.iter_mut().filter(|piece| piece.machine == name) {
            let old = match piece.collection {
                "publicIPAddresses" => "public_ip_config-0000002a",
                "networkInterfaces" => "nic_config-0000002a",
                _ => continue,
            };
            self.0.ledger.removed(&piece.id());
            old.clone_into(&mut piece.name);
            piece.tags = Value::Null;
            piece.ends_with_it = false;
            self.0.ledger.made(piece.collection, piece.id(), name);
            match piece.collection {
                "publicIPAddresses" => address = Some(piece.path()),
                _ => {
                    piece.with.clone_from(&address);
                    machine.interface = Some(piece.path());
                }
            }
        }
    }

    pub(crate) fn operation(&self, id: &str) -> Answer {
        let state = self.lock();
        let Some(machine) = state.machines.iter().find(|machine| machine.operation == id) else {
            if let Some(name) = id.strip_prefix("network-") {
                let found = state
                    .shared
                    .iter()
                    .find(|part| part.name.eq_ignore_ascii_case(name));
                let is_ready = found.is_some_and(network::Part::is_ready);
                return Ok(ok(
                    json!({"status": if is_ready { "Succeeded" } else { "InProgress" }}),
                ));
            }
            // Of a removal.
            let name = id.strip_prefix("end-").ok_or_else(|| missing(id))?;
            let is_there = state.machines.iter().any(|machine| machine.name == name);
            return Ok(ok(
                json!({"status": if is_there { "InProgress" } else { "Succeeded" }}),
            ));
        };
        let mut told = json!({"name": id, "startTime": "2026-11-01T12:00:00Z", "status": match machine.state(self.0.times) {
            "Creating" => "InProgress",
            "Failed" => "Failed",
            _ => "Succeeded",
        }});
        if told["status"] == "Failed" {
            told["error"] = json!({"code": machine.fails, "message": "Allocation failed."});
        }
        Ok(ok(told))
    }

    pub(crate) fn machines(&self, ask: &Ask<'_>, group: &str, rest: &[&str]) -> Answer {
        ask.version(&["2026-04-01"])?;
        if let ("PUT", [name]) = (ask.method, rest) {
            self.allowed("Microsoft.Compute/virtualMachines/write")?;
            return self.make(ask, group, name);
        }
        let mut state = self.lock();
        let (now, times) = (Instant::now(), self.0.times);
        let is_of = |machine: &Machine| {
            (group.is_empty() || machine.group.eq_ignore_ascii_case(group)) && machine.listed_at <= now
        };
        match (ask.method, rest) {
            ("GET", []) => {
                let all = state.machines.iter().filter(|machine| is_of(machine));
                let all = all.map(|machine| machine.to_json(times, true, false));
                // One that no description has.
                let odd = json!({"properties": null});
                ask.page([odd].into_iter().chain(all).collect(), Self::page(&state), false)
            }
            ("GET", [name]) => {
                let found = state
                    .machines
                    .iter()
                    .find(|machine| is_of(machine) && machine.name == *name);
                let found = found.ok_or_else(|| missing(ask.path))?;
                let view = ask
                    .query
                    .get("$expand")
                    .is_some_and(|expand| expand == "instanceView");
                Ok(ok(found.to_json(times, false, view)))
            }
            ("DELETE", [name]) => {
                let found = state
                    .machines
                    .iter_mut()
                    .find(|machine| is_of(machine) && machine.name == *name);
                let Some(machine) = found else {
                    return Ok(Done {
                        status: StatusCode::NO_CONTENT,
                        ..ok(Value::Null)
                    });
                };
                machine.ended_at.get_or_insert(now);
                machine.gone_at.get_or_insert(now + times.ends);
                let location = machine.asked["location"].as_str().unwrap();
                Ok(Done {
                    status: StatusCode::ACCEPTED,
                    body: Value::Null,
                    operation: Some(format!(
                        "/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Compute/locations/{location}/operations/end-{name}?api-version=2026-04-01"
                    )),
                })
            }
            _ => Err(missing(ask.path)),
        }
    }

    fn make(&self, ask: &Ask<'_>, group: &str, name: &str) -> Answer {
        if !(1..=64).contains(&name.len()) {
            return Err(bad("InvalidParameter", "vmName"));
        }
        let mut state = self.lock();
        check(&state, &ask.body)?;
        let (now, times) = (Instant::now(), self.0.times);
        if let Some(known) = state
            .machines
            .iter()
            .find(|machine| machine.name == name && machine.group.eq_ignore_ascii_case(group))
        {
            return match known.state(times) {
                "Creating" | "Deleting" => Err(conflict("Conflict", "Another operation goes on.")),
                _ if known.asked["location"] != ask.body["location"] => Err(conflict(
                    "InvalidResourceLocation",
                    "The resource already exists elsewhere.",
                )),
                _ => Ok(ok(known.to_json(times, false, false))),
            };
        }
        let properties = &ask.body["properties"];
        let size = properties["hardwareProfile"]["vmSize"].as_str().unwrap();
        if let Some((status, code, message)) = state.refused.get(size) {
            let status = StatusCode::from_u16(*status).unwrap();
            return Err((status, (*code).to_owned(), (*message).to_owned()));
        }
        if state.sold_out || !SIZES.iter().any(|(known, ..)| *known == size) {
            return Err(conflict(
                "SkuNotAvailable",
                "The requested VM size is currently not available in the location.",
            ));
        }
        let disk = &properties["storageProfile"]["osDisk"];
        let disk_name = disk["name"]
            .as_str()
            .map_or_else(|| format!("{name}_OsDisk_1"), str::to_owned);
        if state
            .pieces
            .iter()
            .any(|piece| piece.collection == "disks" && piece.name == disk_name)
        {
            return Err(conflict("ConflictingUserInput", "Disk already exists."));
        }
        state.made += 1;
        let number = state.made;
        let fails = state.failing.get(size).copied();
        let listed_at = now + state.lag;
        let piece =
            |collection: &'static str, piece: String, tags: &Value, with: Option<String>, ends: &Value| {
                Piece {
                    group: group.to_owned(),
                    collection,
                    name: piece,
                    region: ask.body["location"].clone(),
                    tags: tags.clone(),
                    // What was begun of a machine that fails is not its own yet.
                    machine: if fails.is_some() {
                        String::new()
                    } else {
                        name.to_owned()
                    },
                    with,
                    ends_with_it: *ends == "Delete",
                    made_at: now,
                    listed_at,
                    gone_at: None,
                }
            };
        let nic = &properties["networkProfile"]["networkInterfaceConfigurations"][0];
        let address = &nic["properties"]["ipConfigurations"][0]["properties"]["publicIPAddressConfiguration"];
        let suffixed = |config: &Value| format!("{}-{number:08x}", config["name"].as_str().unwrap());
        let mut pieces = Vec::new();
        if address.is_object() {
            let ends = &address["properties"]["deleteOption"];
            pieces.push(piece(
                "publicIPAddresses",
                suffixed(address),
                &address["tags"],
                None,
                ends,
            ));
        }
        let with = pieces.first().map(Piece::path);
        let ends = &nic["properties"]["deleteOption"];
        pieces.push(piece(
            "networkInterfaces",
            suffixed(nic),
            &nic["tags"],
            with,
            ends,
        ));
        let interface = pieces.last().map(Piece::path);
        if fails.is_none() {
            pieces.push(piece(
                "disks",
                disk_name,
                &Value::Null,
                None,
                &disk["deleteOption"],
            ));
        }
        for piece in &pieces {
            self.0.ledger.made(piece.collection, piece.id(), name);
        }
        state.pieces.extend(pieces);
        let machine = Machine {
            group: group.to_owned(),
            name: name.to_owned(),
            asked: ask.body.clone(),
            made_at: now,
            listed_at,
            ended_at: None,
            gone_at: None,
            fails,
            interface,
            operation: format!("vm-{number:08x}"),
        };
        self.0.ledger.made("machine", machine.id(), name);
        let location = ask.body["location"].as_str().unwrap();
        let operation = format!(
            "/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Compute/locations/{location}/operations/{}?api-version=2026-04-01",
            machine.operation
        );
        let body = machine.to_json(times, false, false);
        state.machines.push(machine);
        if let Some((status, code)) = state.begun.get(size) {
            let status = StatusCode::from_u16(*status).unwrap();
            return Err((status, (*code).to_owned(), "m".to_owned()));
        }
        Ok(Done {
            status: StatusCode::CREATED,
            body,
            operation: Some(operation),
        })
    }
}

/// What the description allows, and what machines need.
fn check(state: &Cloud, body: &Value) -> Result<(), Refusal> {
    let known = [
        "location",
        "tags",
        "properties",
        "identity",
        "zones",
        "plan",
        "extendedLocation",
        "placement",
    ];
    fields(body, &known, &["location", "properties"])?;
    check_tags(&body["tags"])?;
    let properties = &body["properties"];
    let known = [
        "additionalCapabilities",
        "applicationProfile",
        "availabilitySet",
        "billingProfile",
        "capacityReservation",
        "diagnosticsProfile",
        "evictionPolicy",
        "extensionsTimeBudget",
        "flexProfile",
        "hardwareProfile",
        "host",
        "hostGroup",
        "interconnectBlockProfile",
        "licenseType",
        "networkProfile",
        "osProfile",
        "platformFaultDomain",
        "priority",
        "proximityPlacementGroup",
        "resiliencyProfile",
        "scheduledEventsPolicy",
        "scheduledEventsProfile",
        "securityProfile",
        "storageProfile",
        "userData",
        "virtualMachineScaleSet",
    ];
    let needed = ["hardwareProfile", "storageProfile", "osProfile", "networkProfile"];
    fields(properties, &known, &needed)?;
    fields(
        &properties["hardwareProfile"],
        &["vmSize", "vmSizeProperties", "processorMode"],
        &["vmSize"],
    )?;
    one_of(&properties["priority"], &["Regular", "Low", "Spot"])?;
    one_of(&properties["evictionPolicy"], &["Deallocate", "Delete"])?;
    if !properties["evictionPolicy"].is_null() && properties["priority"] != "Spot" {
        return Err(bad(
            "InvalidParameter",
            "Eviction policy can be set only on Azure Spot Virtual Machines",
        ));
    }
    check_storage(
        &properties["storageProfile"],
        &properties["hardwareProfile"]["vmSize"],
    )?;
    check_system(&properties["osProfile"])?;
    let user_data = &properties["userData"];
    let user_data = user_data.as_str().map(|text| {
        BASE64_STANDARD
            .decode(text)
            .ok()
            .filter(|text| text.len() <= 65_536)
    });
    if matches!(user_data, Some(None)) {
        return Err(bad("InvalidParameter", "userData"));
    }
    if !body["identity"].is_null() {
        fields(&body["identity"], &["type", "userAssignedIdentities"], &["type"])?;
        let own = [
            "SystemAssigned",
            "UserAssigned",
            "SystemAssigned, UserAssigned",
            "None",
        ];
        one_of(&body["identity"]["type"], &own)?;
        let identities = body["identity"]["userAssignedIdentities"]
            .as_object()
            .into_iter()
            .flatten();
        for (id, _) in identities {
            if !id.ends_with("/providers/Microsoft.ManagedIdentity/userAssignedIdentities/runners") {
                return Err(bad("FailedIdentityOperation", "the identity is not there"));
            }
        }
    }
    check_network(state, &properties["networkProfile"], &body["location"])
}

/// Images of the gallery, and of the marketplace, are there.
fn check_image(image: &Value, size: &Value) -> Result<(), Refusal> {
    let known = [
        "id",
        "communityGalleryImageId",
        "offer",
        "publisher",
        "sharedGalleryImageId",
        "sku",
        "version",
    ];
    fields(image, &known, &[])?;
    let Some(publisher) = image["publisher"].as_str() else {
        let id = image["communityGalleryImageId"].as_str();
        let id = id.and_then(|id| id.strip_prefix(GALLERY));
        return match id.is_some_and(|image| IMAGES.contains(&image)) {
            true => Ok(()),
            false => {
                let message = "The gallery image is not available in the location.";
                let code = "GalleryImageNotFound".to_owned();
                Err((StatusCode::NOT_FOUND, code, message.to_owned()))
            }
        };
    };
    fields(
        image,
        &["publisher", "offer", "sku", "version"],
        &["publisher", "offer", "sku", "version"],
    )?;
    let is_jammy = publisher.eq_ignore_ascii_case("canonical")
        && image["offer"] == "0001-com-ubuntu-server-jammy"
        && image["version"] == "latest";
    let size = size.as_str().unwrap_or_default();
    match image["sku"].as_str() {
        Some("22_04-lts-gen2") if is_jammy => Ok(()),
        Some("22_04-lts") if is_jammy && !size.ends_with("_v6") => Ok(()),
        Some("22_04-lts") if is_jammy => Err(bad(
            "BadRequest",
            format!("The selected VM size '{size}' cannot boot Hypervisor Generation '1'."),
        )),
        _ => Err((
            StatusCode::NOT_FOUND,
            "PlatformImageNotFound".to_owned(),
            "The platform image is not available.".to_owned(),
        )),
    }
}

fn check_storage(storage: &Value, size: &Value) -> Result<(), Refusal> {
    let known = [
        "alignRegionalDisksToVMZone",
        "dataDisks",
        "diskApiVersion",
        "diskControllerType",
        "imageReference",
        "osDisk",
    ];
    fields(storage, &known, &["imageReference", "osDisk"])?;
    check_image(&storage["imageReference"], size)?;
    let disk = &storage["osDisk"];
    let known = [
        "caching",
        "createOption",
        "deleteOption",
        "diffDiskSettings",
        "diskSizeGB",
        "encryptionSettings",
        "image",
        "managedDisk",
        "name",
        "osType",
        "storageFaultDomainAlignment",
        "vhd",
        "writeAcceleratorEnabled",
    ];
    fields(disk, &known, &["createOption"])?;
    one_of(&disk["createOption"], &["FromImage"])?;
    one_of(&disk["deleteOption"], &["Delete", "Detach"])?;
    fields(
        &disk["managedDisk"],
        &["id", "diskEncryptionSet", "securityProfile", "storageAccountType"],
        &[],
    )?;
    one_of(
        &disk["managedDisk"]["storageAccountType"],
        &["Standard_LRS", "Premium_LRS", "StandardSSD_LRS"],
    )?;
    if !disk["diskSizeGB"]
        .as_i64()
        .is_some_and(|size| (30..=4095).contains(&size))
    {
        return Err(bad("InvalidParameter", "osDisk.diskSizeGB"));
    }
    Ok(())
}

fn check_system(system: &Value) -> Result<(), Refusal> {
    let known = [
        "adminPassword",
        "adminUsername",
        "allowExtensionOperations",
        "computerName",
        "customData",
        "linuxConfiguration",
        "requireGuestProvisionSignal",
        "secrets",
        "windowsConfiguration",
    ];
    fields(
        system,
        &known,
        &["adminUsername", "computerName", "linuxConfiguration"],
    )?;
    let linux = &system["linuxConfiguration"];
    let known = [
        "disablePasswordAuthentication",
        "enableVMAgentPlatformUpdates",
        "patchSettings",
        "provisionVMAgent",
        "ssh",
    ];
    fields(linux, &known, &["ssh"])?;
    let keys = linux["ssh"]["publicKeys"]
        .as_array()
        .filter(|keys| !keys.is_empty());
    let keys = keys.ok_or(bad("InvalidParameter", "a password or a key is needed"))?;
    let home = format!(
        "/home/{}/.ssh/authorized_keys",
        system["adminUsername"].as_str().unwrap_or_default()
    );
    for key in keys {
        fields(key, &["keyData", "path"], &["keyData", "path"])?;
        let data = key["keyData"].as_str().unwrap_or_default();
        let is_taken = data.starts_with("ssh-rsa ") || data.starts_with("ssh-ed25519 ");
        if !is_taken || key["path"] != *home {
            return Err(bad(
                "InvalidParameter",
                "linuxConfiguration.ssh.publicKeys.keyData is invalid.",
            ));
        }
    }
    Ok(())
}

fn check_network(state: &Cloud, profile: &Value, region: &Value) -> Result<(), Refusal> {
    let known = [
        "interconnectGroupProfile",
        "networkApiVersion",
        "networkInterfaceConfigurations",
        "networkInterfaces",
    ];
    fields(
        profile,
        &known,
        &["networkInterfaceConfigurations", "networkApiVersion"],
    )?;
    let nic = &profile["networkInterfaceConfigurations"][0];
    fields(nic, &["name", "properties", "tags"], &["name", "properties"])?;
    check_tags(&nic["tags"])?;
    let known = [
        "auxiliaryMode",
        "auxiliarySku",
        "deleteOption",
        "disableTcpStateTracking",
        "dnsSettings",
        "dscpConfiguration",
        "enableAcceleratedNetworking",
        "enableFpga",
        "enableIPForwarding",
        "ipConfigurations",
        "networkSecurityGroup",
        "primary",
    ];
    let nic = &nic["properties"];
    fields(nic, &known, &["ipConfigurations"])?;
    one_of(&nic["deleteOption"], &["Delete", "Detach"])?;
    let ip = &nic["ipConfigurations"][0];
    fields(ip, &["name", "properties"], &["name", "properties"])?;
    let known = [
        "applicationGatewayBackendAddressPools",
        "applicationSecurityGroups",
        "loadBalancerBackendAddressPools",
        "primary",
        "privateIPAddressPrefixLength",
        "privateIPAddressVersion",
        "publicIPAddressConfiguration",
        "subnet",
    ];
    fields(&ip["properties"], &known, &["subnet"])?;
    for (id, what) in [
        (&ip["properties"]["subnet"]["id"], "subnet"),
        (&nic["networkSecurityGroup"]["id"], "security group"),
    ] {
        if !network::has(state, id, region) {
            return Err(bad(
                "InvalidResourceReference",
                format!("The {what} {id} was not found in the region."),
            ));
        }
    }
    let address = &ip["properties"]["publicIPAddressConfiguration"];
    if address.is_null() {
        return Ok(());
    }
    fields(address, &["name", "properties", "sku", "tags"], &["name"])?;
    check_tags(&address["tags"])?;
    if !address["sku"].is_null() {
        fields(&address["sku"], &["name", "tier"], &[])?;
        one_of(&address["sku"]["name"], &["Basic", "Standard"])?;
    }
    if !address["properties"].is_null() {
        let known = [
            "deleteOption",
            "dnsSettings",
            "idleTimeoutInMinutes",
            "ipTags",
            "publicIPAddressVersion",
            "publicIPAllocationMethod",
            "publicIPPrefix",
        ];
        fields(&address["properties"], &known, &[])?;
        one_of(&address["properties"]["deleteOption"], &["Delete", "Detach"])?;
        one_of(
            &address["properties"]["publicIPAllocationMethod"],
            &["Static", "Dynamic"],
        )?;
        if address["sku"]["name"] == "Standard"
            && address["properties"]["publicIPAllocationMethod"] == "Dynamic"
        {
            return Err(bad(
                "PublicIPAddressSkuMustHaveStaticAllocation",
                "a standard address is static",
            ));
        }
    }
    Ok(())
}
