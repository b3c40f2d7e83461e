//! What is there in the emulated cloud.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::balancers::{Balancer, TargetGroup};
use crate::sts::{Role, Session};

/// How long things take.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Until a new instance runs.
    pub starts: Duration,
    /// Until an instance that is ended is terminated.
    pub ends: Duration,
    /// Until a volume is made, attached, detached or deleted.
    pub volumes: Duration,
}

/// As long as AWS takes.
pub(crate) const USUAL: Times = Times {
    starts: Duration::from_secs(25),
    ends: Duration::from_secs(30),
    volumes: Duration::from_secs(6),
};

/// For how long an instance that is over is listed.
const LISTED_AFTERWARDS: Duration = Duration::from_secs(60 * 60);

/// From the notice to the end of a spot instance.
const SPOT_NOTICE: Duration = Duration::from_secs(120);

/// An end, and why.
#[derive(Debug, Clone)]
pub(crate) struct End {
    pub(crate) at: Instant,
    pub(crate) code: &'static str,
    pub(crate) message: &'static str,
}

#[derive(Debug)]
pub(crate) struct Cloud {
    pub(crate) times: Times,
    pub(crate) began: Instant,
    pub(crate) instances: Vec<Instance>,
    pub(crate) volumes: Vec<Volume>,
    pub(crate) placement_groups: Vec<PlacementGroup>,
    pub(crate) balancers: Vec<Balancer>,
    pub(crate) target_groups: Vec<TargetGroup>,
    pub(crate) security_groups: Vec<SecurityGroup>,
    pub(crate) addresses: Vec<Address>,
    pub(crate) reservations: Vec<Reservation>,
    /// What calls with a token were asked for with, and what they made.
    pub(crate) tokens: HashMap<(String, String), (String, String)>,
    pub(crate) sold_out: bool,
    /// How many more instances a zone takes; any number where nothing is said.
    pub(crate) free: HashMap<String, usize>,
    pub(crate) lag: Duration,
    /// vCPUs that the account may have, by the code of the quota.
    pub(crate) quotas: HashMap<String, f64>,
    /// Calls that the key may not make, such as `ec2:RunInstances`.
    pub(crate) denied: HashSet<String>,
    pub(crate) closed_regions: HashSet<String>,
    pub(crate) profiles: HashSet<String>,
    pub(crate) session_tokens: HashSet<String>,
    pub(crate) roles: Vec<Role>,
    /// Of roles, since the beginning.
    pub(crate) sessions: Vec<Session>,
    /// The account's key may do nothing but assume roles.
    pub(crate) has_roles_only: bool,
    /// The call at which all sessions end.
    pub(crate) sessions_end_at: Option<String>,
    pub(crate) last_number: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct Instance {
    pub(crate) id: String,
    pub(crate) region: String,
    pub(crate) zone: String,
    pub(crate) size: String,
    pub(crate) vcpus: i64,
    pub(crate) image: String,
    pub(crate) tags: Value,
    pub(crate) token: String,
    pub(crate) interfaces: Vec<Value>,
    pub(crate) is_public: bool,
    pub(crate) placement_group: Option<String>,
    pub(crate) spot_request: Option<String>,
    pub(crate) reservation: Option<String>,
    pub(crate) user_data: String,
    /// Address of the machine that stands for it.
    pub(crate) given: Option<String>,
    pub(crate) root_device: String,
    pub(crate) made_at: Instant,
    pub(crate) listed_at: Instant,
    pub(crate) interrupted_at: Option<Instant>,
    pub(crate) end: Option<End>,
}

#[derive(Debug, Clone)]
pub(crate) struct Volume {
    pub(crate) id: String,
    pub(crate) region: String,
    pub(crate) zone: String,
    pub(crate) size: i64,
    pub(crate) tags: Value,
    pub(crate) made_at: Instant,
    pub(crate) listed_at: Instant,
    pub(crate) deleted_at: Option<Instant>,
    pub(crate) has_failed: bool,
    pub(crate) attachment: Option<Attachment>,
}

#[derive(Debug, Clone)]
pub(crate) struct Attachment {
    pub(crate) instance: String,
    pub(crate) device: String,
    pub(crate) at: Instant,
    pub(crate) detached_at: Option<Instant>,
}

#[derive(Debug, Clone)]
pub(crate) struct PlacementGroup {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) region: String,
    pub(crate) tags: Value,
    pub(crate) listed_at: Instant,
    pub(crate) deleted_at: Option<Instant>,
}

#[derive(Debug, Clone)]
pub(crate) struct SecurityGroup {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) region: String,
    pub(crate) vpc: String,
    pub(crate) description: String,
    pub(crate) tags: Value,
    /// Until then it is not known everywhere.
    pub(crate) listed_at: Instant,
    pub(crate) ingress: Vec<Value>,
    pub(crate) egress: Vec<Value>,
}

#[derive(Debug, Clone)]
pub(crate) struct Address {
    pub(crate) id: String,
    pub(crate) region: String,
    pub(crate) ip: String,
    pub(crate) tags: Value,
    pub(crate) listed_at: Instant,
    /// Id of the association, and of the interface.
    pub(crate) association: Option<(String, String)>,
}

/// Capacity that somebody has reserved.
#[derive(Debug, Clone)]
pub struct Reservation {
    /// Its id, such as `cr-1234567890abcdef0`.
    pub id: String,
    /// Its zone, in the region of the same name without the last letter.
    pub zone: String,
    /// The type of the instances.
    pub instance_type: String,
    /// How many are left.
    pub available: i64,
    /// `default` or `capacity-block`.
    pub kind: &'static str,
}

impl Instance {
    pub(crate) fn state(&self, times: Times) -> (&'static str, i64) {
        match &self.end {
            Some(end) if end.at.elapsed() >= times.ends => ("terminated", 48),
            Some(_) => ("shutting-down", 32),
            None if self.made_at.elapsed() >= times.starts => ("running", 16),
            None => ("pending", 0),
        }
    }

    pub(crate) fn is_over(&self, times: Times) -> bool {
        self.state(times).0 == "terminated"
    }
}

impl Volume {
    pub(crate) fn state(&self, times: Times) -> &'static str {
        match self.deleted_at {
            Some(at) if at.elapsed() >= times.volumes => "deleted",
            Some(_) => "deleting",
            None if self.has_failed => "error",
            None if self.attachment.is_some() => "in-use",
            None if self.made_at.elapsed() >= times.volumes => "available",
            None => "creating",
        }
    }
}

impl Attachment {
    pub(crate) fn state(&self, times: Times) -> &'static str {
        match self.detached_at {
            Some(_) => "detaching",
            None if self.at.elapsed() >= times.volumes => "attached",
            None => "attaching",
        }
    }
}

impl Cloud {
    pub(crate) fn new(times: Times) -> Self {
        Self {
            times,
            began: Instant::now(),
            instances: Vec::new(),
            volumes: Vec::new(),
            placement_groups: Vec::new(),
            balancers: Vec::new(),
            target_groups: Vec::new(),
            security_groups: Vec::new(),
            addresses: Vec::new(),
            reservations: Vec::new(),
            tokens: HashMap::new(),
            sold_out: false,
            free: HashMap::new(),
            lag: Duration::ZERO,
            quotas: HashMap::new(),
            denied: HashSet::new(),
            closed_regions: HashSet::new(),
            profiles: HashSet::new(),
            session_tokens: HashSet::new(),
            roles: Vec::new(),
            sessions: Vec::new(),
            has_roles_only: false,
            sessions_end_at: None,
            last_number: 0,
        }
    }

    /// An id that was not given before: the prefix and 17 hexadecimal digits, as AWS writes them.
    pub(crate) fn new_id(&mut self, prefix: &str) -> String {
        self.last_number += 1;
        format!("{prefix}-{:017x}", self.last_number)
    }

    pub(crate) fn listed_at(&self) -> Instant {
        Instant::now() + self.lag
    }

    /// A time as XML has it. The kit's clouds begin in November 2023.
    pub(crate) fn date(&self, at: Instant) -> String {
        let millis = 1_700_000_000_000 + i64::try_from((at - self.began).as_millis()).unwrap();
        let at = jiff::Timestamp::from_millisecond(millis).unwrap();
        at.strftime("%Y-%m-%dT%H:%M:%S.000Z").to_string()
    }

    /// What time has done. The ids of what is gone.
    pub(crate) fn settle(&mut self) -> Vec<String> {
        let times = self.times;
        let mut gone = Vec::new();
        for instance in &mut self.instances {
            if let Some(at) = instance.interrupted_at.filter(|at| at.elapsed() >= SPOT_NOTICE) {
                instance.end.get_or_insert(End {
                    at: at + SPOT_NOTICE,
                    code: "Server.SpotInstanceTermination",
                    message: "Server.SpotInstanceTermination: Spot instance termination",
                });
            }
        }
        let over: Vec<&Instance> = self.instances.iter().filter(|one| one.is_over(times)).collect();
        for instance in &over {
            gone.push(instance.id.clone());
            for address in &mut self.addresses {
                let is_of = |(_, interface): &(String, String)| {
                    instance
                        .interfaces
                        .iter()
                        .any(|one| one["NetworkInterfaceId"] == **interface)
                };
                if address.association.as_ref().is_some_and(is_of) {
                    address.association = None;
                }
            }
        }
        for volume in &mut self.volumes {
            let is_free = volume.attachment.as_ref().is_some_and(|attachment| {
                attachment
                    .detached_at
                    .is_some_and(|at| at.elapsed() >= times.volumes)
                    || over.iter().any(|one| one.id == attachment.instance)
            });
            if is_free {
                gone.push(attachment_id(&volume.id));
                volume.attachment = None;
            }
            if volume.state(times) == "deleted" {
                gone.push(volume.id.clone());
            }
        }
        let is_gone = |at: Option<Instant>| at.is_some_and(|at| at.elapsed() >= times.volumes);
        for group in self
            .placement_groups
            .iter()
            .filter(|group| is_gone(group.deleted_at))
        {
            gone.push(group.name.clone());
        }
        self.placement_groups.retain(|group| !is_gone(group.deleted_at));
        self.volumes.retain(|volume| volume.state(times) != "deleted");
        self.instances.retain(|one| {
            let ended = one.end.as_ref();
            ended.is_none_or(|end| end.at.elapsed() < LISTED_AFTERWARDS)
        });
        gone
    }
}

/// Under which an attachment is in the books.
pub(crate) fn attachment_id(volume: &str) -> String {
    format!("attachment of {volume}")
}

/// Zones of a region.
pub(crate) fn zones(region: &str) -> [String; 3] {
    ["a", "b", "c"].map(|letter| format!("{region}{letter}"))
}

/// VPCs of a region: the default one is open to the internet, that with the name `private` is not.
pub(crate) fn vpcs(region: &str) -> Vec<Value> {
    let name = json!([{"Key": "Name", "Value": "private"}]);
    vec![
        json!({"VpcId": format!("vpc-default-{region}"), "IsDefault": true, "State": "available", "CidrBlock": "172.31.0.0/16",
            "Tags": []}),
        json!({"VpcId": format!("vpc-private-{region}"), "IsDefault": false, "State": "available", "CidrBlock": "10.0.0.0/16",
            "Tags": name}),
    ]
}

/// Subnets of a region: one in each zone.
pub(crate) fn subnets(region: &str) -> Vec<Value> {
    let of = |kind: &str| {
        zones(region).map(|zone| {
            json!({"SubnetId": format!("subnet-{kind}-{zone}"), "VpcId": format!("vpc-{kind}-{region}"),
                "AvailabilityZone": zone, "State": "available", "DefaultForAz": kind == "default"})
        })
    };
    of("default").into_iter().chain(of("private")).collect()
}

pub(crate) fn route_tables(region: &str) -> Vec<Value> {
    let table = |kind: &str, route: Value| {
        json!({"RouteTableId": format!("rtb-{kind}-{region}"), "VpcId": format!("vpc-{kind}-{region}"),
            "Routes": [{"DestinationCidrBlock": "172.31.0.0/16", "GatewayId": "local", "State": "active"}, route],
            "Associations": [{"Main": true, "RouteTableAssociationId": "rtbassoc-1"}]})
    };
    let to =
        |field: &str, id: &str| json!({"DestinationCidrBlock": "0.0.0.0/0", field: id, "State": "active"});
    vec![
        table("default", to("GatewayId", "igw-1")),
        table("private", to("NatGatewayId", "nat-1")),
    ]
}

/// Whose images may be asked for as those of `amazon`, too.
pub(crate) const CANONICAL: &str = "099720109477";

/// Images: those of dstack, of AWS with drivers, of which there are new ones every month, and of Ubuntu.
pub(crate) fn images() -> Vec<Value> {
    let image = |id: &str, name: &str, owner: &str, architecture: &str, at: &str| {
        json!({"ImageId": id, "Name": name, "OwnerId": owner, "Architecture": architecture, "State": "available",
            "CreationDate": at, "RootDeviceName": "/dev/sda1", "RootDeviceType": "ebs", "VirtualizationType": "hvm"})
    };
    let drivers =
        |month: &str| format!("Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) 2026{month}01");
    let arm = "Deep Learning ARM64 Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) 20261001";
    let (october, november) = ("2026-10-01T12:00:00.000Z", "2026-11-01T12:00:00.000Z");
    vec![
        image("ami-dstack", "dstack-0.14", "142421590066", "x86_64", october),
        image(
            "ami-drivers-november",
            &drivers("11"),
            "898082745236",
            "x86_64",
            november,
        ),
        image(
            "ami-drivers-october",
            &drivers("10"),
            "898082745236",
            "x86_64",
            october,
        ),
        image("ami-drivers-arm", arm, "898082745236", "arm64", october),
        image(
            "ami-ubuntu",
            "ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-amd64-server-20261001",
            CANONICAL,
            "x86_64",
            october,
        ),
    ]
}
