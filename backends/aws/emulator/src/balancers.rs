//! Elastic Load Balancing: application load balancers, target groups, listeners, and the health of targets.

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::lists::{tags_of, text, texts};
use crate::state::{Cloud, Times, subnets};
use crate::{Answer, Call, Problem};

const ACCOUNT: &str = "123456789012";

/// Certificates that the account has.
const CERTIFICATE: &str = "arn:aws:acm:us-east-1:123456789012:certificate/";

#[derive(Debug, Clone)]
pub(crate) struct Balancer {
    arn: String,
    name: String,
    region: String,
    scheme: String,
    subnets: Vec<String>,
    security_groups: Vec<String>,
    tags: Value,
    made_at: Instant,
    listed_at: Instant,
    listeners: Vec<Listener>,
}

#[derive(Debug, Clone)]
struct Listener {
    arn: String,
    port: i64,
    asked: Value,
}

#[derive(Debug, Clone)]
pub(crate) struct TargetGroup {
    arn: String,
    name: String,
    region: String,
    vpc: String,
    health_path: String,
    listed_at: Instant,
    targets: Vec<Target>,
}

#[derive(Debug, Clone)]
struct Target {
    id: String,
    port: i64,
    since: Instant,
    left_at: Option<Instant>,
}

impl Balancer {
    /// It takes some minutes to be set up.
    fn state(&self, times: Times) -> &'static str {
        match self.made_at.elapsed() >= times.starts * 4 {
            true => "active",
            false => "provisioning",
        }
    }

    fn described(&self, cloud: &Cloud) -> Value {
        json!({"LoadBalancerArn": self.arn, "LoadBalancerName": self.name, "DNSName": self.dns_name(),
            "Scheme": self.scheme, "Type": "application", "IpAddressType": "ipv4", "CreatedTime": cloud.date(self.made_at),
            "State": {"Code": self.state(cloud.times)}, "SecurityGroups": self.security_groups,
            "AvailabilityZones": self.zones()})
    }

    fn zones(&self) -> Vec<Value> {
        let known = subnets(&self.region);
        let all = known
            .iter()
            .filter(|one| self.subnets.contains(&text(&one["SubnetId"])));
        all.map(|one| json!({"ZoneName": one["AvailabilityZone"], "SubnetId": one["SubnetId"]}))
            .collect()
    }

    fn dns_name(&self) -> String {
        format!("{}-1234567890.{}.elb.amazonaws.com", self.name, self.region)
    }
}

impl Target {
    fn health(&self, cloud: &Cloud) -> Option<&'static str> {
        let times = cloud.times;
        if let Some(left) = self.left_at {
            return (left.elapsed() < times.ends).then_some("draining");
        }
        let runs = |one: &crate::state::Instance| one.id == self.id && one.state(times).0 == "running";
        Some(match cloud.instances.iter().any(runs) {
            false => "unused",
            true if self.since.elapsed() < times.starts => "initial",
            true => "healthy",
        })
    }
}

pub(crate) fn elb(cloud: &mut Cloud, action: &str, call: &Call<'_>) -> Answer {
    match action {
        "CreateLoadBalancer" => create_balancer(cloud, call),
        "DescribeLoadBalancers" => describe_balancers(cloud, call),
        "DeleteLoadBalancer" => Ok(delete_balancer(cloud, call)),
        "CreateTargetGroup" => create_group(cloud, call),
        "DescribeTargetGroups" => describe_groups(cloud, call),
        "DeleteTargetGroup" => delete_group(cloud, call),
        "CreateListener" => create_listener(cloud, call),
        "DescribeListeners" => describe_listeners(cloud, call),
        "DeleteListener" => delete_listener(cloud, call),
        "RegisterTargets" => register(cloud, call),
        "DeregisterTargets" => deregister(cloud, call),
        "DescribeTargetHealth" => describe_health(cloud, call),
        other => panic!("{other} is described and not played"),
    }
}

fn refused<T>(code: &str, message: impl Into<String>) -> Result<T, Problem> {
    Err(Problem::new(400, code, message))
}

/// Letters, digits and hyphens, 32 at most, none of them at an end.
fn check_name(name: &str) -> Result<(), Problem> {
    let fits = (1..=32).contains(&name.len())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.starts_with("internal-");
    match fits {
        true => Ok(()),
        false => refused("ValidationError", format!("The name '{name}' is not valid")),
    }
}

fn create_balancer(cloud: &mut Cloud, call: &Call<'_>) -> Answer {
    let input = &call.input;
    let name = text(&input["Name"]);
    check_name(&name)?;
    let wanted = texts(&input["Subnets"]);
    let known = subnets(call.region);
    let mut zones = Vec::new();
    for subnet in &wanted {
        let Some(found) = known.iter().find(|one| one["SubnetId"] == **subnet) else {
            return refused(
                "SubnetNotFound",
                format!("The subnet ID '{subnet}' does not exist"),
            );
        };
        zones.push(text(&found["AvailabilityZone"]));
    }
    zones.sort();
    zones.dedup();
    if zones.len() != wanted.len() {
        return refused(
            "InvalidConfigurationRequest",
            "A load balancer cannot be attached to multiple subnets in the same AZ",
        );
    }
    if zones.len() < 2 {
        return refused(
            "ValidationError",
            "At least two subnets in two different Availability Zones must be specified",
        );
    }
    let groups = texts(&input["SecurityGroups"]);
    for group in &groups {
        if !cloud.security_groups.iter().any(|one| one.id == *group) {
            return refused(
                "InvalidConfigurationRequest",
                format!("The security group '{group}' does not exist"),
            );
        }
    }
    if cloud.sold_out {
        return refused(
            "TooManyLoadBalancers",
            "The maximum number of load balancers has been reached",
        );
    }
    let scheme = text(&input["Scheme"]);
    if let Some(same) = cloud
        .balancers
        .iter()
        .find(|one| one.name == name && one.region == call.region)
    {
        // With the same settings it is answered as if it were made now.
        return match same.scheme == scheme && same.subnets == wanted {
            true => Ok(json!({"LoadBalancers": [same.described(cloud)]})),
            false => refused(
                "DuplicateLoadBalancerName",
                format!("A load balancer with the same name '{name}' exists"),
            ),
        };
    }
    let id = cloud.new_id("lb");
    let balancer = Balancer {
        arn: format!(
            "arn:aws:elasticloadbalancing:{}:{ACCOUNT}:loadbalancer/app/{name}/{}",
            call.region,
            &id[3..]
        ),
        name: name.clone(),
        region: call.region.to_owned(),
        scheme,
        subnets: wanted,
        security_groups: groups,
        tags: tags_of(&input["Tags"])?,
        made_at: Instant::now(),
        listed_at: cloud.listed_at(),
        listeners: Vec::new(),
    };
    call.aws.0.ledger.made("load balancer", &balancer.arn, &name);
    let answer = json!({"LoadBalancers": [balancer.described(cloud)]});
    cloud.balancers.push(balancer);
    Ok(answer)
}

/// Those of a region that are listed, by ARN or name; all of them where none is given, a page of which has four.
fn chosen<'a, T>(
    call: &Call<'_>,
    here: &[&'a T],
    (arns, arn): (&str, fn(&T) -> &str),
    name: fn(&T) -> &str,
    absent: &str,
) -> Result<(Vec<&'a T>, Value), Problem> {
    let (arns, names) = (texts(&call.input[arns]), texts(&call.input["Names"]));
    if !arns.is_empty() || !names.is_empty() {
        let is_asked = |one: &&&T| {
            arns.iter().any(|asked| asked == arn(one)) || names.iter().any(|asked| asked == name(one))
        };
        let found: Vec<&T> = here.iter().filter(is_asked).copied().collect();
        if found.len() < arns.len() + names.len() {
            return refused(absent, format!("{:?} not found", [arns, names].concat()));
        }
        return Ok((found, Value::Null));
    }
    let begin: usize = text(&call.input["Marker"]).parse().unwrap_or(0);
    let page: Vec<&T> = here.iter().skip(begin).take(PAGE).copied().collect();
    let next = (begin + PAGE < here.len()).then(|| (begin + PAGE).to_string());
    Ok((page, json!(next)))
}

/// Small, so that tests meet the second one.
const PAGE: usize = 4;

fn describe_balancers(cloud: &Cloud, call: &Call<'_>) -> Answer {
    let here = cloud
        .balancers
        .iter()
        .filter(|one| one.region == call.region && one.listed_at <= Instant::now());
    let (found, next) = chosen(
        call,
        &here.collect::<Vec<_>>(),
        ("LoadBalancerArns", |one| &one.arn),
        |one| &one.name,
        "LoadBalancerNotFound",
    )?;
    let found: Vec<Value> = found.iter().map(|one| one.described(cloud)).collect();
    Ok(json!({"LoadBalancers": found, "NextMarker": next}))
}

/// One that does not exist is deleted all the same; its listeners go with it.
fn delete_balancer(cloud: &mut Cloud, call: &Call<'_>) -> Value {
    let arn = text(&call.input["LoadBalancerArn"]);
    if cloud.balancers.iter().any(|one| one.arn == arn) {
        cloud.balancers.retain(|one| one.arn != arn);
        call.aws.0.ledger.removed(&arn);
    }
    json!({})
}

fn create_group(cloud: &mut Cloud, call: &Call<'_>) -> Answer {
    let input = &call.input;
    let (name, vpc) = (text(&input["Name"]), text(&input["VpcId"]));
    check_name(&name)?;
    if input["Port"].is_null() || input["Protocol"].is_null() || vpc.is_empty() {
        return refused(
            "ValidationError",
            "A port, a protocol and a VPC must be specified",
        );
    }
    let health_path = text(&input["HealthCheckPath"]);
    if let Some(same) = cloud
        .target_groups
        .iter()
        .find(|one| one.name == name && one.region == call.region)
    {
        return match same.vpc == vpc && same.health_path == health_path {
            true => Ok(json!({"TargetGroups": [described_group(same)]})),
            false => refused(
                "DuplicateTargetGroupName",
                format!("A target group with the same name '{name}' exists"),
            ),
        };
    }
    let id = cloud.new_id("tg");
    let group = TargetGroup {
        arn: format!(
            "arn:aws:elasticloadbalancing:{}:{ACCOUNT}:targetgroup/{name}/{}",
            call.region,
            &id[3..]
        ),
        name: name.clone(),
        region: call.region.to_owned(),
        vpc,
        health_path,
        listed_at: cloud.listed_at(),
        targets: Vec::new(),
    };
    call.aws.0.ledger.made("target group", &group.arn, &name);
    let answer = json!({"TargetGroups": [described_group(&group)]});
    cloud.target_groups.push(group);
    Ok(answer)
}

fn described_group(group: &TargetGroup) -> Value {
    json!({"TargetGroupArn": group.arn, "TargetGroupName": group.name, "Protocol": "HTTP", "Port": 80, "VpcId": group.vpc,
        "TargetType": "instance", "HealthCheckPath": group.health_path})
}

fn describe_groups(cloud: &Cloud, call: &Call<'_>) -> Answer {
    let here = cloud
        .target_groups
        .iter()
        .filter(|one| one.region == call.region && one.listed_at <= Instant::now());
    let (found, next) = chosen(
        call,
        &here.collect::<Vec<_>>(),
        ("TargetGroupArns", |one| &one.arn),
        |one| &one.name,
        "TargetGroupNotFound",
    )?;
    let found: Vec<Value> = found.iter().map(|one| described_group(one)).collect();
    Ok(json!({"TargetGroups": found, "NextMarker": next}))
}

fn delete_group(cloud: &mut Cloud, call: &Call<'_>) -> Answer {
    let arn = text(&call.input["TargetGroupArn"]);
    let leads_to = |listener: &Listener| listener.asked["DefaultActions"][0]["TargetGroupArn"] == arn;
    if cloud
        .balancers
        .iter()
        .any(|one| one.listeners.iter().any(leads_to))
    {
        return refused(
            "ResourceInUse",
            format!("Target group '{arn}' is currently in use by a listener or a rule"),
        );
    }
    if cloud.target_groups.iter().any(|one| one.arn == arn) {
        cloud.target_groups.retain(|one| one.arn != arn);
        call.aws.0.ledger.removed(&arn);
    }
    Ok(json!({}))
}

fn create_listener(cloud: &mut Cloud, call: &Call<'_>) -> Answer {
    let input = call.input.clone();
    let (arn, port) = (
        text(&input["LoadBalancerArn"]),
        input["Port"].as_i64().unwrap_or(0),
    );
    let action = &input["DefaultActions"][0];
    if action["Type"] == "forward" {
        let group = text(&action["TargetGroupArn"]);
        if !cloud.target_groups.iter().any(|one| one.arn == group) {
            return refused("TargetGroupNotFound", format!("Target group '{group}' not found"));
        }
    }
    let certificate = text(&input["Certificates"][0]["CertificateArn"]);
    match text(&input["Protocol"]).as_str() {
        "HTTPS" if !certificate.starts_with(CERTIFICATE) => {
            return refused(
                "CertificateNotFound",
                format!("Certificate '{certificate}' not found"),
            );
        }
        "HTTP" if !certificate.is_empty() => {
            return refused(
                "ValidationError",
                "Certificates cannot be specified for HTTP listeners",
            );
        }
        _ => {}
    }
    let id = cloud.new_id("listener");
    let Some(balancer) = cloud.balancers.iter_mut().find(|one| one.arn == arn) else {
        return refused("LoadBalancerNotFound", format!("Load balancer '{arn}' not found"));
    };
    if let Some(same) = balancer.listeners.iter().find(|one| one.port == port) {
        return match same.asked == input {
            true => Ok(json!({"Listeners": [described_listener(&arn, same)]})),
            false => refused(
                "DuplicateListener",
                format!("A listener already exists on port {port}"),
            ),
        };
    }
    let listener = Listener {
        arn: format!("{}/{}", arn.replace(":loadbalancer/", ":listener/"), &id[9..]),
        port,
        asked: input,
    };
    let answer = json!({"Listeners": [described_listener(&arn, &listener)]});
    balancer.listeners.push(listener);
    Ok(answer)
}

fn described_listener(balancer: &str, listener: &Listener) -> Value {
    json!({"ListenerArn": listener.arn, "LoadBalancerArn": balancer, "Port": listener.port, "Protocol": listener.asked["Protocol"]})
}

fn describe_listeners(cloud: &Cloud, call: &Call<'_>) -> Answer {
    let arn = text(&call.input["LoadBalancerArn"]);
    let Some(balancer) = cloud.balancers.iter().find(|one| one.arn == arn) else {
        return refused("LoadBalancerNotFound", format!("Load balancer '{arn}' not found"));
    };
    let listeners: Vec<Value> = balancer
        .listeners
        .iter()
        .map(|one| described_listener(&arn, one))
        .collect();
    Ok(json!({ "Listeners": listeners }))
}

fn delete_listener(cloud: &mut Cloud, call: &Call<'_>) -> Answer {
    let arn = text(&call.input["ListenerArn"]);
    let mut balancers = cloud.balancers.iter_mut();
    let Some(balancer) = balancers.find(|one| one.listeners.iter().any(|listener| listener.arn == arn))
    else {
        return refused("ListenerNotFound", format!("Listener '{arn}' not found"));
    };
    balancer.listeners.retain(|listener| listener.arn != arn);
    Ok(json!({}))
}

fn group<'a>(cloud: &'a mut Cloud, call: &Call<'_>) -> Result<&'a mut TargetGroup, Problem> {
    let arn = text(&call.input["TargetGroupArn"]);
    let found = cloud.target_groups.iter_mut().find(|one| one.arn == arn);
    found.ok_or_else(|| {
        Problem::new(
            400,
            "TargetGroupNotFound",
            format!("Target group '{arn}' not found"),
        )
    })
}

fn asked_targets(call: &Call<'_>) -> Vec<(String, i64)> {
    let targets = call.input["Targets"].as_array().into_iter().flatten();
    let target = |one: &Value| (text(&one["Id"]), one["Port"].as_i64().unwrap_or(80));
    targets.map(target).collect()
}

fn register(cloud: &mut Cloud, call: &Call<'_>) -> Answer {
    let times = cloud.times;
    for (id, _) in asked_targets(call) {
        let runs = |one: &crate::state::Instance| one.id == id && one.state(times).0 == "running";
        if !cloud.instances.iter().any(runs) {
            return refused(
                "InvalidTarget",
                format!("The following targets are not in a running state: '{id}'"),
            );
        }
    }
    let group = group(cloud, call)?;
    for (id, port) in asked_targets(call) {
        group.targets.retain(|one| one.id != id || one.left_at.is_none());
        if !group.targets.iter().any(|one| one.id == id) {
            group.targets.push(Target {
                id,
                port,
                since: Instant::now(),
                left_at: None,
            });
        }
    }
    Ok(json!({}))
}

fn deregister(cloud: &mut Cloud, call: &Call<'_>) -> Answer {
    let group = group(cloud, call)?;
    for (id, _) in asked_targets(call) {
        let Some(target) = group.targets.iter_mut().find(|one| one.id == id) else {
            return refused(
                "InvalidTarget",
                format!("The following targets are not registered: '{id}'"),
            );
        };
        target.left_at.get_or_insert_with(Instant::now);
    }
    Ok(json!({}))
}

fn describe_health(cloud: &mut Cloud, call: &Call<'_>) -> Answer {
    let targets = group(cloud, call)?.targets.clone();
    let described = targets.iter().filter_map(|target| {
        let state = target.health(cloud)?;
        Some(json!({"Target": {"Id": target.id, "Port": target.port}, "TargetHealth": {"State": state}}))
    });
    let described: Vec<Value> = described.collect();
    Ok(json!({ "TargetHealthDescriptions": described }))
}

/// What load balancers were asked for with, for a look.
pub(crate) fn shown(cloud: &Cloud) -> Vec<Value> {
    let shown = |one: &Balancer| {
        let listeners: Vec<&Value> = one.listeners.iter().map(|listener| &listener.asked).collect();
        json!({"arn": one.arn, "name": one.name, "region": one.region, "scheme": one.scheme, "subnets": one.subnets,
            "security_groups": one.security_groups, "tags": one.tags, "listeners": listeners})
    };
    cloud.balancers.iter().map(shown).collect()
}

/// Ids of the targets that have requests, by the region.
pub(crate) fn targets(cloud: &Cloud, region: &str) -> Vec<String> {
    let groups = cloud.target_groups.iter().filter(|group| group.region == region);
    let targets = groups.flat_map(|group| &group.targets);
    targets
        .filter(|one| one.left_at.is_none())
        .map(|one| one.id.clone())
        .collect()
}
