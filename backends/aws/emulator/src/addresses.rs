//! Elastic IPs.

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::lists::{fields, list, name_in_books, tags_for, text};
use crate::state::{Address, Cloud};
use crate::{Answer, Call, Problem};

/// Most that an account has where nobody has asked for more.
const MOST: usize = 5;

pub(crate) fn allocate(cloud: &mut Cloud, call: &Call<'_>) -> Answer {
    if cloud
        .addresses
        .iter()
        .filter(|one| one.region == call.region)
        .count()
        >= MOST
    {
        let text = "The maximum number of addresses has been reached.";
        return Err(Problem::new(400, "AddressLimitExceeded", text));
    }
    let id = cloud.new_id("eipalloc");
    let address = Address {
        ip: format!("198.51.100.{}", cloud.last_number % 250 + 2),
        id: id.clone(),
        region: call.region.to_owned(),
        tags: tags_for(&call.input, "elastic-ip")?,
        listed_at: cloud.listed_at(),
        association: None,
    };
    call.aws
        .0
        .ledger
        .made("address", &id, name_in_books(&address.tags, &id));
    let answer = json!({"AllocationId": id, "PublicIp": address.ip, "Domain": "vpc"});
    cloud.addresses.push(address);
    Ok(answer)
}

fn find<'a>(cloud: &'a mut Cloud, call: &Call<'_>, id: &str) -> Result<&'a mut Address, Problem> {
    let found = cloud
        .addresses
        .iter_mut()
        .find(|one| one.id == id && one.region == call.region && one.listed_at <= Instant::now());
    found.ok_or_else(|| {
        let text = format!("The allocation ID '{id}' does not exist");
        Problem::new(400, "InvalidAllocationID.NotFound", text)
    })
}

pub(crate) fn associate(cloud: &mut Cloud, call: &Call<'_>) -> Answer {
    let interface = text(&call.input["NetworkInterfaceId"]);
    let times = cloud.times;
    let is_up = cloud.instances.iter().any(|instance| {
        let mut interfaces = instance.interfaces.iter();
        interfaces.any(|one| one["NetworkInterfaceId"] == interface) && !instance.is_over(times)
    });
    if !is_up {
        let text = format!("The networkInterface ID '{interface}' does not exist");
        return Err(Problem::new(400, "InvalidNetworkInterfaceID.NotFound", text));
    }
    let is_taken = |one: &Address| one.association.as_ref().is_some_and(|(_, to)| *to == interface);
    let wanted = text(&call.input["AllocationId"]);
    if cloud
        .addresses
        .iter()
        .any(|one| is_taken(one) && one.id != wanted)
    {
        let text = format!("resource {interface} is already associated");
        return Err(Problem::new(400, "Resource.AlreadyAssociated", text));
    }
    let association = cloud.new_id("eipassoc");
    let address = find(cloud, call, &wanted)?;
    let (association, _) = address.association.get_or_insert((association, interface));
    Ok(json!({"AssociationId": association.clone()}))
}

pub(crate) fn describe(cloud: &Cloud, call: &Call<'_>) -> Answer {
    let here = cloud
        .addresses
        .iter()
        .filter(|one| one.region == call.region && one.listed_at <= Instant::now());
    let items = here.map(|one| {
        let (association, interface) = one.association.clone().unzip();
        json!({"AllocationId": one.id, "PublicIp": one.ip, "Domain": "vpc", "Tags": one.tags, "AssociationId": association,
            "NetworkInterfaceId": interface})
    });
    let known = [("allocation-id", "/AllocationId")];
    let items: Vec<Value> = items.collect();
    list(call, "Addresses", items, |item, name| fields(item, name, &known))
}

pub(crate) fn disassociate(cloud: &mut Cloud, call: &Call<'_>) -> Answer {
    let id = text(&call.input["AssociationId"]);
    let found = cloud.addresses.iter_mut().find(|one| {
        one.association
            .as_ref()
            .is_some_and(|(association, _)| *association == id)
    });
    let Some(address) = found else {
        let text = format!("The association ID '{id}' does not exist");
        return Err(Problem::new(400, "InvalidAssociationID.NotFound", text));
    };
    address.association = None;
    Ok(json!({}))
}

pub(crate) fn release(cloud: &mut Cloud, call: &Call<'_>) -> Answer {
    let id = text(&call.input["AllocationId"]);
    let address = find(cloud, call, &id)?;
    if address.association.is_some() {
        let text = format!("Address {id} is in use.");
        return Err(Problem::new(400, "InvalidIPAddress.InUse", text));
    }
    cloud.addresses.retain(|one| one.id != id);
    call.aws.0.ledger.removed(&id);
    Ok(json!({}))
}
