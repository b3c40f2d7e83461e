//! Images, zones, reservations, placement groups, quotas and profiles.

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::instances::zones_page;
use crate::lists::{fields, list, tags_for, text, texts};
use crate::state::{CANONICAL, Cloud, PlacementGroup, images};
use crate::{Answer, Call, Problem};

pub(crate) fn describe_zones(call: &Call<'_>) -> Answer {
    zones_page(call)
}

/// Those that are enabled for the account.
pub(crate) fn describe_regions(call: &Call<'_>) -> Value {
    let region = |name: &String| json!({"RegionName": name, "Endpoint": format!("ec2.{name}.amazonaws.com"), "OptInStatus": "opt-in-not-required"});
    let regions: Vec<Value> = call.aws.0.regions.iter().map(region).collect();
    json!({"Regions": regions})
}

pub(crate) fn describe_images(call: &Call<'_>) -> Answer {
    let owners = texts(&call.input["Owners"]);
    let is_of = |image: &Value, owner: &str| match owner {
        "amazon" => image["OwnerId"] == CANONICAL,
        id => image["OwnerId"] == id,
    };
    let images = images()
        .into_iter()
        .filter(|image| owners.is_empty() || owners.iter().any(|owner| is_of(image, owner)));
    let known = [
        ("name", "/Name"),
        ("architecture", "/Architecture"),
        ("state", "/State"),
    ];
    list(call, "Images", images.collect(), |item, name| {
        fields(item, name, &known)
    })
}

pub(crate) fn describe_reservations(cloud: &Cloud, call: &Call<'_>) -> Answer {
    let here: Vec<Value> = cloud
        .reservations
        .iter()
        .filter(|one| one.zone.starts_with(call.region))
        .map(|one| {
            json!({"CapacityReservationId": one.id, "InstanceType": one.instance_type, "AvailabilityZone": one.zone, "State": "active",
                "Tenancy": "default", "TotalInstanceCount": one.available, "AvailableInstanceCount": one.available,
                "ReservationType": one.kind})
        })
        .collect();
    let ids = texts(&call.input["CapacityReservationIds"]);
    for id in &ids {
        if !id.starts_with("cr-") {
            let text = format!("The ID '{id}' is not valid.");
            return Err(Problem::new(400, "InvalidCapacityReservationId.Malformed", text));
        }
        if !here.iter().any(|one| one["CapacityReservationId"] == **id) {
            let text = format!("The capacity reservation ID '{id}' does not exist.");
            return Err(Problem::new(400, "InvalidCapacityReservationId.NotFound", text));
        }
    }
    let wanted = here
        .into_iter()
        .filter(|one| ids.is_empty() || ids.contains(&text(&one["CapacityReservationId"])));
    let known = [("state", "/State")];
    list(call, "CapacityReservations", wanted.collect(), |item, name| {
        fields(item, name, &known)
    })
}

pub(crate) fn create_placement_group(cloud: &mut Cloud, call: &Call<'_>) -> Answer {
    let name = text(&call.input["GroupName"]);
    if name.is_empty() || name.len() > 255 || call.input["Strategy"].is_null() {
        return Err(Problem::new(
            400,
            "InvalidParameterValue",
            "groupName and strategy are required",
        ));
    }
    let is_same = |group: &PlacementGroup| group.name == name && group.region == call.region;
    if cloud.placement_groups.iter().any(is_same) {
        let text = format!("The placement group '{name}' already exists.");
        return Err(Problem::new(400, "InvalidPlacementGroup.Duplicate", text));
    }
    let group = PlacementGroup {
        id: cloud.new_id("pg"),
        name: name.clone(),
        region: call.region.to_owned(),
        tags: tags_for(&call.input, "placement-group")?,
        listed_at: cloud.listed_at(),
        deleted_at: None,
    };
    call.aws.0.ledger.made("placement group", &name, &name);
    let answer = json!({"PlacementGroup": described(&group)});
    cloud.placement_groups.push(group);
    Ok(answer)
}

fn described(group: &PlacementGroup) -> Value {
    let state = if group.deleted_at.is_some() {
        "deleting"
    } else {
        "available"
    };
    json!({"GroupName": group.name, "GroupId": group.id, "State": state, "Strategy": "cluster", "Tags": group.tags})
}

pub(crate) fn describe_placement_groups(cloud: &Cloud, call: &Call<'_>) -> Answer {
    let here = cloud
        .placement_groups
        .iter()
        .filter(|group| group.region == call.region && group.listed_at <= Instant::now());
    let here: Vec<Value> = here.map(described).collect();
    let names = texts(&call.input["GroupNames"]);
    if let Some(missing) = names
        .iter()
        .find(|name| !here.iter().any(|group| group["GroupName"] == ***name))
    {
        let text = format!("The Placement Group '{missing}' is unknown.");
        return Err(Problem::new(400, "InvalidPlacementGroup.Unknown", text));
    }
    let wanted = here
        .into_iter()
        .filter(|group| names.is_empty() || names.contains(&text(&group["GroupName"])));
    let known = [("group-name", "/GroupName"), ("state", "/State")];
    list(call, "PlacementGroups", wanted.collect(), |item, name| {
        fields(item, name, &known)
    })
}

pub(crate) fn delete_placement_group(cloud: &mut Cloud, call: &Call<'_>) -> Answer {
    let name = text(&call.input["GroupName"]);
    let times = cloud.times;
    let is_used = cloud.instances.iter().any(|one| {
        one.region == call.region && one.placement_group.as_ref() == Some(&name) && !one.is_over(times)
    });
    let found = cloud
        .placement_groups
        .iter_mut()
        .find(|group| group.name == name && group.region == call.region);
    let Some(group) = found else {
        let text = format!("The Placement Group '{name}' is unknown.");
        return Err(Problem::new(400, "InvalidPlacementGroup.Unknown", text));
    };
    if is_used {
        let text = format!("The placement group '{name}' is in use and may not be deleted.");
        return Err(Problem::new(400, "InvalidPlacementGroup.InUse", text));
    }
    group.deleted_at.get_or_insert_with(Instant::now);
    Ok(json!({}))
}

pub(crate) fn get_service_quota(cloud: &Cloud, call: &Call<'_>) -> Answer {
    let code = text(&call.input["QuotaCode"]);
    let known = ["L-1216C47A", "L-417A185B", "L-DB2E81BA"];
    if call.input["ServiceCode"] != "ec2" || !known.contains(&code.as_str()) {
        let text = "The request failed because the specified resource does not exist.";
        return Err(Problem::new(400, "NoSuchResourceException", text));
    }
    let value = cloud.quotas.get(&code).copied().unwrap_or(1000.0);
    Ok(json!({"Quota": {"ServiceCode": "ec2", "QuotaCode": code, "Value": value, "Unit": "None"}}))
}

pub(crate) fn get_instance_profile(cloud: &Cloud, call: &Call<'_>) -> Answer {
    let name = text(&call.input["InstanceProfileName"]);
    if !cloud.profiles.contains(&name) {
        let text = format!("Instance Profile {name} cannot be found.");
        return Err(Problem::new(404, "NoSuchEntity", text));
    }
    Ok(
        json!({"InstanceProfile": {"InstanceProfileName": name, "InstanceProfileId": "AIPA1234567890EXAMPLE", "Path": "/",
        "Arn": format!("arn:aws:iam::123456789012:instance-profile/{name}"), "CreateDate": "2026-10-01T12:00:00Z", "Roles": []}}),
    )
}
