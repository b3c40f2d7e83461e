//! VPCs, subnets, routes, and security groups.

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::lists::{fields, list, tags_for, text};
use crate::state::{Cloud, SecurityGroup, route_tables, subnets, vpcs};
use crate::{Answer, Call, Problem};

pub(crate) fn describe_vpcs(call: &Call<'_>) -> Answer {
    let known = [("vpc-id", "/VpcId"), ("isDefault", "/IsDefault")];
    list(call, "Vpcs", vpcs(call.region), |item, name| {
        fields(item, name, &known)
    })
}

pub(crate) fn describe_subnets(call: &Call<'_>) -> Answer {
    let known = [("vpc-id", "/VpcId"), ("availability-zone", "/AvailabilityZone")];
    list(call, "Subnets", subnets(call.region), |item, name| {
        fields(item, name, &known)
    })
}

pub(crate) fn describe_route_tables(call: &Call<'_>) -> Answer {
    let most = call.input["MaxResults"].as_i64();
    if most.is_some_and(|most| !(5..=100).contains(&most)) {
        let text = "MaxResults is from 5 to 100";
        return Err(Problem::new(400, "InvalidParameterValue", text));
    }
    let known = [("vpc-id", "/VpcId")];
    list(call, "RouteTables", route_tables(call.region), |item, name| {
        fields(item, name, &known)
    })
}

pub(crate) fn describe_security_groups(cloud: &Cloud, call: &Call<'_>) -> Answer {
    let here = cloud
        .security_groups
        .iter()
        .filter(|group| group.region == call.region && group.listed_at <= Instant::now());
    let items = here.map(|group| {
        json!({"GroupId": group.id, "GroupName": group.name, "VpcId": group.vpc, "Description": group.description,
            "Tags": group.tags, "IpPermissions": group.ingress, "IpPermissionsEgress": group.egress})
    });
    let known = [
        ("group-name", "/GroupName"),
        ("group-id", "/GroupId"),
        ("vpc-id", "/VpcId"),
    ];
    list(call, "SecurityGroups", items.collect(), |item, name| {
        fields(item, name, &known)
    })
}

pub(crate) fn create_security_group(cloud: &mut Cloud, call: &Call<'_>) -> Answer {
    let (name, vpc) = (text(&call.input["GroupName"]), text(&call.input["VpcId"]));
    if !vpcs(call.region).iter().any(|one| one["VpcId"] == vpc) {
        let text = format!("The vpc ID '{vpc}' does not exist");
        return Err(Problem::new(400, "InvalidVpcID.NotFound", text));
    }
    if cloud
        .security_groups
        .iter()
        .any(|group| group.name == name && group.vpc == vpc)
    {
        let text = format!("The security group '{name}' already exists for VPC '{vpc}'");
        return Err(Problem::new(400, "InvalidGroup.Duplicate", text));
    }
    let group = SecurityGroup {
        id: cloud.new_id("sg"),
        name,
        region: call.region.to_owned(),
        vpc,
        description: text(&call.input["Description"]),
        tags: tags_for(&call.input, "security-group")?,
        listed_at: cloud.listed_at(),
        ingress: Vec::new(),
        egress: vec![json!({"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]})],
    };
    let answer = json!({"GroupId": group.id, "Tags": group.tags});
    cloud.security_groups.push(group);
    Ok(answer)
}

pub(crate) fn authorize(cloud: &mut Cloud, call: &Call<'_>, is_egress: bool) -> Answer {
    let id = text(&call.input["GroupId"]);
    let is_known = |group: &&mut SecurityGroup| group.id == id && group.listed_at <= Instant::now();
    let Some(group) = cloud.security_groups.iter_mut().find(is_known) else {
        let text = format!("The security group '{id}' does not exist");
        return Err(Problem::new(400, "InvalidGroup.NotFound", text));
    };
    let rules = if is_egress {
        &mut group.egress
    } else {
        &mut group.ingress
    };
    for wanted in call.input["IpPermissions"].as_array().into_iter().flatten() {
        let is_same_ports = |rule: &&mut Value| {
            ["IpProtocol", "FromPort", "ToPort"]
                .iter()
                .all(|part| rule.get(*part) == wanted.get(*part))
        };
        let lists = ["IpRanges", "UserIdGroupPairs"];
        let Some(rule) = rules.iter_mut().find(is_same_ports) else {
            rules.push(wanted.clone());
            continue;
        };
        // Rules with the same ports are one permission.
        for list in lists {
            for one in wanted[list].as_array().into_iter().flatten() {
                let mut known = rule[list].as_array().cloned().unwrap_or_default();
                if known.contains(one) {
                    let text = "the specified rule already exists";
                    return Err(Problem::new(400, "InvalidPermission.Duplicate", text));
                }
                known.push(one.clone());
                rule[list] = Value::from(known);
            }
        }
    }
    Ok(json!({"Return": true}))
}
