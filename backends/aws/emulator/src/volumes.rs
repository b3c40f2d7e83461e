//! Volumes of EBS.

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::instances::{known_token, remember_token};
use crate::lists::{fields, list, name_in_books, tags_for, text, texts};
use crate::state::{Attachment, Cloud, Volume, attachment_id, zones};
use crate::{Answer, Call, Problem};

fn refused(code: &str, message: impl Into<String>) -> Problem {
    Problem::new(400, code, message)
}

pub(crate) fn create(cloud: &mut Cloud, call: &Call<'_>) -> Answer {
    let input = &call.input;
    let token = text(&input["ClientToken"]);
    if let Some(made) = known_token(cloud, call, &token)? {
        let known = cloud.volumes.iter().find(|volume| volume.id == made);
        return known.map(|volume| described(cloud, volume)).ok_or_else(|| {
            refused(
                "InvalidVolume.NotFound",
                format!("The volume '{made}' does not exist."),
            )
        });
    }
    let zone = text(&input["AvailabilityZone"]);
    if !zones(call.region).contains(&zone) {
        let text = format!("The zone '{zone}' does not exist.");
        return Err(refused("InvalidZone.NotFound", text));
    }
    let size = input["Size"].as_i64().unwrap_or(0);
    if !(1..=16_384).contains(&size) || input["VolumeType"] != "gp3" {
        let text = format!("Volume of {size}GiB is not valid for this volume type");
        return Err(refused("InvalidParameterValue", text));
    }
    if cloud.sold_out {
        let text = "There is not enough capacity to fulfill your EBS volume provision request";
        return Err(Problem::new(500, "InsufficientVolumeCapacity", text));
    }
    let volume = Volume {
        id: cloud.new_id("vol"),
        region: call.region.to_owned(),
        zone,
        size,
        tags: tags_for(input, "volume")?,
        made_at: Instant::now(),
        listed_at: cloud.listed_at(),
        deleted_at: None,
        has_failed: false,
        attachment: None,
    };
    let id = volume.id.clone();
    call.aws
        .0
        .ledger
        .made("volume", &id, name_in_books(&volume.tags, &id));
    remember_token(cloud, call, token, &id);
    let answer = described(cloud, &volume);
    cloud.volumes.push(volume);
    Ok(answer)
}

fn attached(cloud: &Cloud, volume: &str, attachment: &Attachment) -> Value {
    json!({"VolumeId": volume, "InstanceId": attachment.instance, "Device": attachment.device,
        "State": attachment.state(cloud.times), "AttachTime": cloud.date(attachment.at), "DeleteOnTermination": false})
}

fn described(cloud: &Cloud, volume: &Volume) -> Value {
    let attachments: Vec<Value> = volume
        .attachment
        .iter()
        .map(|attachment| attached(cloud, &volume.id, attachment))
        .collect();
    json!({"VolumeId": volume.id, "State": volume.state(cloud.times), "Size": volume.size, "AvailabilityZone": volume.zone,
        "VolumeType": "gp3", "Iops": 3000, "Encrypted": false, "CreateTime": cloud.date(volume.made_at), "Attachments": attachments,
        "Tags": volume.tags})
}

pub(crate) fn describe(cloud: &Cloud, call: &Call<'_>) -> Answer {
    let here = cloud
        .volumes
        .iter()
        .filter(|volume| volume.region == call.region && volume.listed_at <= Instant::now());
    let items: Vec<Value> = here.map(|volume| described(cloud, volume)).collect();
    let ids = texts(&call.input["VolumeIds"]);
    if let Some(missing) = ids
        .iter()
        .find(|id| !items.iter().any(|volume| volume["VolumeId"] == ***id))
    {
        let text = format!("The volume '{missing}' does not exist.");
        return Err(refused("InvalidVolume.NotFound", text));
    }
    let wanted = items
        .into_iter()
        .filter(|volume| ids.is_empty() || ids.contains(&text(&volume["VolumeId"])));
    let known = [("volume-id", "/VolumeId"), ("status", "/State")];
    list(call, "Volumes", wanted.collect(), |item, name| {
        fields(item, name, &known)
    })
}

fn find<'a>(cloud: &'a mut Cloud, call: &Call<'_>) -> Result<&'a mut Volume, Problem> {
    let id = text(&call.input["VolumeId"]);
    let found = cloud
        .volumes
        .iter_mut()
        .find(|volume| volume.id == id && volume.region == call.region && volume.listed_at <= Instant::now());
    found.ok_or_else(|| {
        refused(
            "InvalidVolume.NotFound",
            format!("The volume '{id}' does not exist."),
        )
    })
}

pub(crate) fn attach(cloud: &mut Cloud, call: &Call<'_>) -> Answer {
    let (id, device) = (text(&call.input["InstanceId"]), text(&call.input["Device"]));
    let times = cloud.times;
    let found = cloud
        .instances
        .iter()
        .find(|one| one.id == id && one.region == call.region);
    let Some(instance) = found else {
        let text = format!("The instance ID '{id}' does not exist");
        return Err(refused("InvalidInstanceID.NotFound", text));
    };
    let (state, zone) = (instance.state(times).0, instance.zone.clone());
    if state != "running" {
        return Err(refused(
            "IncorrectState",
            format!("Instance '{id}' is not 'running'."),
        ));
    }
    let is_used = |volume: &Volume| {
        let attachment = volume.attachment.as_ref();
        attachment.is_some_and(|one| one.instance == id && one.device == device)
    };
    if device == instance.root_device || cloud.volumes.iter().any(is_used) {
        let text =
            format!("Invalid value '{device}' for unixDevice. Attachment point {device} is already in use");
        return Err(refused("InvalidParameterValue", text));
    }
    let volume = find(cloud, call)?;
    match volume.state(times) {
        "available" => {}
        "in-use" => {
            let text = format!("{} is already attached to an instance", volume.id);
            return Err(refused("VolumeInUse", text));
        }
        _ => {
            let text = format!("Volume '{}' is not 'available'.", volume.id);
            return Err(refused("IncorrectState", text));
        }
    }
    if volume.zone != zone {
        let text = format!(
            "The volume '{}' is not in the same availability zone as instance '{id}'",
            volume.id
        );
        return Err(refused("InvalidVolume.ZoneMismatch", text));
    }
    let attachment = Attachment {
        instance: id,
        device,
        at: Instant::now(),
        detached_at: None,
    };
    volume.attachment = Some(attachment.clone());
    let id = volume.id.clone();
    call.aws.0.ledger.made("attachment", attachment_id(&id), &id);
    Ok(attached(cloud, &id, &attachment))
}

pub(crate) fn detach(cloud: &mut Cloud, call: &Call<'_>) -> Answer {
    let instance = call.input["InstanceId"].as_str().map(str::to_owned);
    let volume = find(cloud, call)?;
    let id = volume.id.clone();
    let Some(attachment) = &mut volume.attachment else {
        return Err(refused(
            "IncorrectState",
            format!("Volume '{id}' is in the 'available' state."),
        ));
    };
    if instance.is_some_and(|instance| instance != attachment.instance) {
        let text = format!("'{id}' is not attached to this instance");
        return Err(refused("InvalidAttachment.NotFound", text));
    }
    attachment.detached_at.get_or_insert_with(Instant::now);
    let attachment = attachment.clone();
    Ok(attached(cloud, &id, &attachment))
}

pub(crate) fn delete(cloud: &mut Cloud, call: &Call<'_>) -> Answer {
    let volume = find(cloud, call)?;
    if let Some(attachment) = &volume.attachment {
        let text = format!(
            "Volume {} is currently attached to {}",
            volume.id, attachment.instance
        );
        return Err(refused("VolumeInUse", text));
    }
    volume.deleted_at.get_or_insert_with(Instant::now);
    Ok(json!({}))
}
