use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::lists::{fields, list, name_in_books, page, tags_for, text, texts};
use crate::state::{Cloud, End, Instance, images, subnets, zones};
use crate::{Answer, Call, Problem};

/// vCPUs that an account may have of a class where nothing else is said.
const USUAL_QUOTA: f64 = 1000.0;

fn refused(code: &str, message: impl Into<String>) -> Problem {
    Problem::new(400, code, message)
}

/// The quota that a type counts against.
pub(crate) fn quota_code(size: &str) -> &'static str {
    match size.as_bytes().first() {
        Some(b'p') => "L-417A185B",
        Some(b'g') => "L-DB2E81BA",
        _ => "L-1216C47A",
    }
}

pub(crate) fn run(cloud: &mut Cloud, call: &Call<'_>) -> Answer {
    let input = &call.input;
    let token = text(&input["ClientToken"]);
    if let Some(made) = known_token(cloud, call, &token)? {
        return Ok(reservation(cloud, &made));
    }
    let instance = new_instance(cloud, call, &token)?;
    let id = instance.id.clone();
    let ledger = &call.aws.0.ledger;
    ledger.made("instance", &id, name_in_books(&instance.tags, &id));
    if let Some(free) = cloud.free.get_mut(&instance.zone) {
        *free -= 1;
    }
    if let Some(reserved) = &instance.reservation
        && let Some(reservation) = cloud.reservations.iter_mut().find(|one| one.id == *reserved)
    {
        reservation.available -= 1;
    }
    remember_token(cloud, call, token, &id);
    cloud.instances.push(instance);
    Ok(reservation(cloud, &id))
}

/// What an earlier call with this token has made.
pub(crate) fn known_token(cloud: &Cloud, call: &Call<'_>, token: &str) -> Result<Option<String>, Problem> {
    let known = cloud.tokens.get(&(call.region.to_owned(), token.to_owned()));
    match known {
        Some((digest, made)) if *digest == call.digest => Ok(Some(made.clone())),
        Some(_) => Err(refused(
            "IdempotentParameterMismatch",
            "Arguments on this idempotent request are inconsistent with arguments used in previous request(s).",
        )),
        None => Ok(None),
    }
}

pub(crate) fn remember_token(cloud: &mut Cloud, call: &Call<'_>, token: String, id: &str) {
    if !token.is_empty() {
        let key = (call.region.to_owned(), token);
        cloud.tokens.insert(key, (call.digest.clone(), id.to_owned()));
    }
}

fn new_instance(cloud: &mut Cloud, call: &Call<'_>, token: &str) -> Result<Instance, Problem> {
    let input = &call.input;
    let size_name = text(&input["InstanceType"]);
    let size = call.aws.0.sizes.iter().find(|size| size.name == size_name);
    let size = size.ok_or_else(|| {
        refused(
            "InvalidParameterValue",
            format!("Invalid value '{size_name}' for InstanceType."),
        )
    })?;
    if input["MinCount"] != 1 || input["MaxCount"] != 1 {
        return Err(refused(
            "InvalidParameterCombination",
            "One instance at a time is played",
        ));
    }
    let image = text(&input["ImageId"]);
    if !images().iter().any(|known| known["ImageId"] == image) {
        let text = format!("The image id '[{image}]' does not exist");
        return Err(refused("InvalidAMIID.NotFound", text));
    }
    let (zone, interfaces) = interfaces(cloud, call, size.max_efa)?;
    let user_data = STANDARD
        .decode(text(&input["UserData"]))
        .ok()
        .and_then(|data| String::from_utf8(data).ok());
    let user_data = user_data.ok_or_else(|| {
        refused(
            "InvalidUserData.Malformed",
            "Invalid BASE64 encoding of user data.",
        )
    })?;
    if user_data.len() > 16 * 1024 {
        return Err(refused(
            "InvalidParameterValue",
            "User data is limited to 16384 bytes",
        ));
    }
    let profile = &input["IamInstanceProfile"]["Name"];
    if !profile.is_null() && !cloud.profiles.contains(&text(profile)) {
        let text = format!(
            "Value ({}) for parameter iamInstanceProfile.name is invalid.",
            text(profile)
        );
        return Err(refused("InvalidParameterValue", text));
    }
    let group = placement_group(cloud, call)?;
    let market = text(&input["InstanceMarketOptions"]["MarketType"]);
    let reservation = reserved(cloud, call, &zone, &market)?;
    check_capacity(cloud, call, &zone, &size_name, size.vcpus)?;
    let is_public = interfaces
        .iter()
        .any(|interface| interface["AssociatePublicIpAddress"] == true);
    let spot_request = (market == "spot").then(|| cloud.new_id("sir"));
    let interfaces = interfaces
        .into_iter()
        .map(|mut interface| {
            interface["NetworkInterfaceId"] = Value::from(cloud.new_id("eni"));
            interface
        })
        .collect();
    let root_device = text(&input["BlockDeviceMappings"][0]["DeviceName"]);
    let given =
        match &call.aws.0.give_machine {
            None => None,
            Some(give) => Some(give(&user_data).ok_or_else(|| {
                Problem::new(500, "InsufficientInstanceCapacity", "There is no machine left")
            })?),
        };
    Ok(Instance {
        given,
        id: cloud.new_id("i"),
        region: call.region.to_owned(),
        zone,
        size: size_name,
        vcpus: size.vcpus,
        image,
        tags: tags_for(input, "instance")?,
        token: token.to_owned(),
        interfaces,
        is_public,
        placement_group: group,
        spot_request,
        reservation,
        user_data,
        root_device,
        made_at: Instant::now(),
        listed_at: cloud.listed_at(),
        interrupted_at: None,
        end: None,
    })
}

/// The zone of the subnet that all interfaces are in, and the interfaces.
fn interfaces(cloud: &Cloud, call: &Call<'_>, max_efa: u32) -> Result<(String, Vec<Value>), Problem> {
    let all: Vec<Value> = call.input["NetworkInterfaces"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let subnet = match all.first() {
        Some(first) => text(&first["SubnetId"]),
        None => {
            return Err(refused(
                "MissingParameter",
                "Instances of this account are in named subnets",
            ));
        }
    };
    let found = subnets(call.region)
        .into_iter()
        .find(|one| one["SubnetId"] == subnet);
    let found = found.ok_or_else(|| {
        refused(
            "InvalidSubnetID.NotFound",
            format!("The subnet ID '{subnet}' does not exist"),
        )
    })?;
    let mut places = Vec::new();
    for interface in &all {
        for group in texts(&interface["Groups"]) {
            let is_known = |one: &crate::state::SecurityGroup| {
                one.id == group && found["VpcId"] == one.vpc && one.listed_at <= Instant::now()
            };
            if !cloud.security_groups.iter().any(is_known) {
                let text = format!("The security group '{group}' does not exist");
                return Err(refused("InvalidGroup.NotFound", text));
            }
        }
        let is_efa = text(&interface["InterfaceType"]).starts_with("efa");
        if is_efa && max_efa == 0 {
            let text = "The instance type does not support Elastic Fabric Adapter";
            return Err(refused("InvalidParameterCombination", text));
        }
        if all.len() > 1 && interface["AssociatePublicIpAddress"] == true {
            return Err(refused(
                "InvalidParameterCombination",
                "The associatePublicIPAddress parameter cannot be specified when launching with multiple network interfaces.",
            ));
        }
        places.push((
            interface["NetworkCardIndex"].as_i64().unwrap_or(0),
            interface["DeviceIndex"].as_i64(),
        ));
    }
    let count = places.len();
    places.sort_unstable();
    places.dedup();
    if places.len() != count {
        return Err(refused(
            "InvalidParameterValue",
            "Each network interface requires a unique device index.",
        ));
    }
    Ok((text(&found["AvailabilityZone"]), all))
}

fn placement_group(cloud: &Cloud, call: &Call<'_>) -> Result<Option<String>, Problem> {
    let name = &call.input["Placement"]["GroupName"];
    if name.is_null() {
        return Ok(None);
    }
    let name = text(name);
    let is_there = cloud
        .placement_groups
        .iter()
        .any(|group| group.name == name && group.region == call.region && group.deleted_at.is_none());
    match is_there {
        true => Ok(Some(name)),
        false => {
            let text = format!("The placement group '{name}' is unknown.");
            Err(refused("InvalidPlacementGroup.Unknown", text))
        }
    }
}

fn reserved(cloud: &Cloud, call: &Call<'_>, zone: &str, market: &str) -> Result<Option<String>, Problem> {
    let specification = &call.input["CapacityReservationSpecification"];
    let id = &specification["CapacityReservationTarget"]["CapacityReservationId"];
    if id.is_null() {
        return Ok(None);
    }
    let id = text(id);
    let Some(reservation) = cloud.reservations.iter().find(|one| one.id == id) else {
        let text = format!("The capacity reservation {id} does not exist");
        return Err(refused("InvalidCapacityReservationId.NotFound", text));
    };
    if reservation.zone != zone || call.input["InstanceType"] != reservation.instance_type {
        let text = "The instance does not match the attributes of the capacity reservation";
        return Err(refused("InvalidParameterValue", text));
    }
    if (reservation.kind == "capacity-block") != (market == "capacity-block") {
        return Err(refused(
            "InvalidParameterCombination",
            "The market type does not match the reservation",
        ));
    }
    if reservation.available <= 0 {
        let text = "Your requested capacity exceeds that of the reservation";
        return Err(refused("ReservationCapacityExceeded", text));
    }
    Ok(Some(id))
}

fn check_capacity(cloud: &Cloud, call: &Call<'_>, zone: &str, size: &str, vcpus: i64) -> Result<(), Problem> {
    let code = quota_code(size);
    let is_same = |one: &&Instance| {
        one.region == call.region && quota_code(&one.size) == code && !one.is_over(cloud.times)
    };
    let used: i64 = cloud.instances.iter().filter(is_same).map(|one| one.vcpus).sum();
    let quota = cloud.quotas.get(code).copied().unwrap_or(USUAL_QUOTA);
    #[allow(clippy::cast_precision_loss)] // counts of CPUs
    if (used + vcpus) as f64 > quota {
        return Err(refused(
            "VcpuLimitExceeded",
            format!(
                "You have requested more vCPU capacity than your current vCPU limit of {quota} allows for the instance bucket"
            ),
        ));
    }
    let is_full = cloud.free.get(zone).is_some_and(|free| *free == 0);
    match cloud.sold_out || is_full {
        true => Err(Problem::new(
            500,
            "InsufficientInstanceCapacity",
            format!(
                "We currently do not have sufficient {size} capacity in the Availability Zone you requested ({zone})."
            ),
        )),
        false => Ok(()),
    }
}

/// The address of an instance, by its number.
fn ip(instance: &Instance, network: &str) -> String {
    let number = u64::from_str_radix(instance.id.trim_start_matches("i-"), 16).unwrap_or_default();
    format!("{network}.{}", number % 250 + 2)
}

fn described(cloud: &Cloud, instance: &Instance) -> Value {
    let (name, code) = instance.state(cloud.times);
    let is_up = matches!(name, "pending" | "running");
    let interfaces: Vec<Value> = instance
        .interfaces
        .iter()
        .map(|one| {
            json!({"NetworkInterfaceId": one["NetworkInterfaceId"], "SubnetId": one["SubnetId"], "InterfaceType": one["InterfaceType"],
                "Status": "in-use", "Attachment": {"DeviceIndex": one["DeviceIndex"], "Status": "attached",
                "NetworkCardIndex": one["NetworkCardIndex"].as_i64().unwrap_or(0)}})
        })
        .collect();
    let address = cloud.addresses.iter().find(|address| {
        let interface = address.association.as_ref().map(|(_, interface)| interface);
        interface.is_some_and(|id| {
            instance
                .interfaces
                .iter()
                .any(|one| one["NetworkInterfaceId"] == **id)
        })
    });
    let public = match address {
        Some(address) => Some(address.ip.clone()),
        None => (instance.is_public && name == "running").then(|| {
            instance
                .given
                .clone()
                .unwrap_or_else(|| ip(instance, "203.0.113"))
        }),
    };
    let volumes = cloud.volumes.iter().filter_map(|volume| {
        let attachment = volume.attachment.as_ref()?;
        let is_here = attachment.instance == instance.id;
        is_here.then(|| {
            json!({"DeviceName": attachment.device, "Ebs": {"VolumeId": volume.id, "Status": attachment.state(cloud.times)}})
        })
    });
    let root = json!({"DeviceName": instance.root_device, "Ebs": {"VolumeId": format!("vol-root-of-{}", instance.id),
        "Status": "attached", "DeleteOnTermination": true}});
    let devices: Vec<Value> = std::iter::once(root).chain(volumes).collect();
    let reason = instance
        .end
        .as_ref()
        .map(|end| json!({"Code": end.code, "Message": end.message}));
    json!({
        "InstanceId": instance.id,
        "ImageId": instance.image,
        "InstanceType": instance.size,
        "ClientToken": instance.token,
        "LaunchTime": cloud.date(instance.made_at),
        "State": {"Code": code, "Name": name},
        "StateReason": reason,
        "Placement": {"AvailabilityZone": instance.zone, "GroupName": instance.placement_group, "Tenancy": "default"},
        "PrivateIpAddress": is_up.then(|| instance.given.clone().unwrap_or_else(|| ip(instance, "172.31.7"))),
        "PublicIpAddress": public,
        "SpotInstanceRequestId": instance.spot_request,
        "InstanceLifecycle": instance.spot_request.as_ref().map(|_| "spot"),
        "CapacityReservationId": instance.reservation,
        "BlockDeviceMappings": if is_up { devices } else { Vec::new() },
        "NetworkInterfaces": if is_up { interfaces } else { Vec::new() },
        "Tags": instance.tags,
    })
}

fn reservation(cloud: &Cloud, id: &str) -> Value {
    let instances = cloud.instances.iter().filter(|one| one.id == id);
    let instances: Vec<Value> = instances.map(|one| described(cloud, one)).collect();
    json!({"ReservationId": format!("r-{id}"), "OwnerId": "123456789012", "Instances": instances})
}

pub(crate) fn describe(cloud: &Cloud, call: &Call<'_>) -> Answer {
    let ids = texts(&call.input["InstanceIds"]);
    if !ids.is_empty() && !call.input["MaxResults"].is_null() {
        let text = "The parameter instancesSet cannot be used with the parameter maxResults";
        return Err(refused("InvalidParameterCombination", text));
    }
    let listed = |one: &&Instance| one.region == call.region && one.listed_at <= Instant::now();
    let listed: Vec<&Instance> = cloud.instances.iter().filter(listed).collect();
    if let Some(missing) = ids.iter().find(|id| !listed.iter().any(|one| one.id == **id)) {
        let text = format!("The instance ID '{missing}' does not exist");
        return Err(refused("InvalidInstanceID.NotFound", text));
    }
    let wanted = listed
        .into_iter()
        .filter(|one| ids.is_empty() || ids.contains(&one.id));
    let items = wanted.map(|one| described(cloud, one)).collect();
    let known = [
        ("instance-id", "/InstanceId"),
        ("client-token", "/ClientToken"),
        ("instance-state-name", "/State/Name"),
    ];
    let found = list(call, "Instances", items, |item, name| fields(item, name, &known))?;
    let each = found["Instances"].as_array().unwrap().iter().map(|instance| {
        json!({"ReservationId": format!("r-{}", text(&instance["InstanceId"])), "OwnerId": "123456789012", "Instances": [instance]})
    });
    let each: Vec<Value> = each.collect();
    Ok(json!({"Reservations": each, "NextToken": found["NextToken"]}))
}

pub(crate) fn terminate(cloud: &mut Cloud, call: &Call<'_>) -> Answer {
    let ids = texts(&call.input["InstanceIds"]);
    let is_there = |id: &String| {
        let mut all = cloud.instances.iter();
        all.any(|one| one.id == *id && one.region == call.region && one.listed_at <= Instant::now())
    };
    if let Some(missing) = ids.iter().find(|id| !is_there(id)) {
        let text = format!("The instance ID '{missing}' does not exist");
        return Err(refused("InvalidInstanceID.NotFound", text));
    }
    let times = cloud.times;
    let mut changes = Vec::new();
    for instance in cloud.instances.iter_mut().filter(|one| ids.contains(&one.id)) {
        let (before, before_code) = instance.state(times);
        instance.end.get_or_insert(End {
            at: Instant::now(),
            code: "Client.UserInitiatedShutdown",
            message: "Client.UserInitiatedShutdown: User initiated shutdown",
        });
        let (after, after_code) = instance.state(times);
        changes.push(
            json!({"InstanceId": instance.id, "PreviousState": {"Code": before_code, "Name": before},
            "CurrentState": {"Code": after_code, "Name": after}}),
        );
    }
    Ok(json!({"TerminatingInstances": changes}))
}

pub(crate) fn describe_spot_requests(cloud: &Cloud, call: &Call<'_>) -> Answer {
    let request = |instance: &Instance| {
        let id = instance.spot_request.as_ref()?;
        let code = match (&instance.end, instance.interrupted_at) {
            (Some(end), _) if end.code.starts_with("Server.Spot") => "instance-terminated-by-service",
            (Some(_), _) => "instance-terminated-by-user",
            (None, Some(_)) => "marked-for-termination",
            (None, None) => "fulfilled",
        };
        let at = instance.interrupted_at.unwrap_or(instance.made_at);
        Some(
            json!({"SpotInstanceRequestId": id, "InstanceId": instance.id, "Type": "one-time",
            "State": if instance.end.is_some() { "closed" } else { "active" },
            "Status": {"Code": code, "Message": "Your Spot instance is marked for termination.", "UpdateTime": cloud.date(at)}}),
        )
    };
    let here = cloud.instances.iter().filter(|one| one.region == call.region);
    let items = here.filter_map(request).collect();
    let known = [("instance-id", "/InstanceId"), ("status-code", "/Status/Code")];
    list(call, "SpotInstanceRequests", items, |item, name| {
        fields(item, name, &known)
    })
}

pub(crate) fn describe_types(call: &Call<'_>) -> Answer {
    let sizes = call.aws.0.sizes.iter().map(|size| {
        let efa = (size.max_efa > 0).then(|| json!({"MaximumEfaInterfaces": size.max_efa}));
        json!({"InstanceType": size.name, "VCpuInfo": {"DefaultVCpus": size.vcpus},
            "NetworkInfo": {"EfaSupported": size.max_efa > 0, "EfaInfo": efa}})
    });
    let known = [
        ("instance-type", "/InstanceType"),
        ("network-info.efa-supported", "/NetworkInfo/EfaSupported"),
    ];
    let named = texts(&call.input["InstanceTypes"]);
    let sizes = sizes.filter(|size| named.is_empty() || named.contains(&text(&size["InstanceType"])));
    list(call, "InstanceTypes", sizes.collect(), |item, name| {
        fields(item, name, &known)
    })
}

pub(crate) fn zones_page(call: &Call<'_>) -> Answer {
    let all = zones(call.region).map(|zone| {
        json!({"ZoneName": zone, "RegionName": call.region, "State": "available", "ZoneType": "availability-zone"})
    });
    page(call, "AvailabilityZones", all.to_vec())
}
