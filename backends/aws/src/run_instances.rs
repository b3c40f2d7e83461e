//! What `RunInstances` is asked for.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dstack_backend::cloud_config;
use dstack_compute::MachineRequest;
use serde::{Deserialize, Serialize};

use crate::client::Form;
use crate::network::Place;

/// Types whose first network card cannot do EFA: it is there in addition to those that can.
const WITHOUT_EFA_ON_FIRST_CARD: &[&str] = &["p6-b300.48xlarge"];

/// Types of which every fourth card has an address for IP as well, and the others are for EFA only
/// ("Maximize network bandwidth on Amazon EC2 instances with multiple network cards").
const WITH_IP_ON_EVERY_FOURTH_CARD: &[&str] = &["p5.48xlarge"];

/// What a machine is made of. It is noted before the call, so that a call that is made again is the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Choice {
    /// Makes the call one that is carried out once.
    pub(crate) token: String,
    pub(crate) place: Place,
    /// Zones that had none.
    #[serde(default)]
    pub(crate) tried: Vec<String>,
    pub(crate) security_group: String,
    pub(crate) image: String,
    /// Device of the image's disk.
    pub(crate) root_device: String,
    /// Most EFA interfaces of the type; 0: it has none.
    pub(crate) max_efa: u32,
    /// Whether it is to be reached from everywhere.
    pub(crate) is_public: bool,
    pub(crate) iam_instance_profile: Option<String>,
    /// Unset: that of the account.
    pub(crate) tenancy: Option<String>,
    pub(crate) is_capacity_block: bool,
    /// By its name.
    pub(crate) placement_group: Option<String>,
}

/// An interface of a new machine.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NewInterface {
    kind: &'static str,
    device: u32,
    /// Unset: the type has no more than one, or it is the first.
    card: Option<u32>,
    has_public_ip: bool,
}

/// The interfaces of a machine: the first card, and for EFA all others.
fn interfaces(instance_type: &str, max_efa: u32, is_public: bool) -> Vec<NewInterface> {
    let first_can = !WITHOUT_EFA_ON_FIRST_CARD.contains(&instance_type);
    let first = NewInterface {
        kind: if max_efa > 0 && first_can {
            "efa"
        } else {
            "interface"
        },
        device: 0,
        card: None,
        // AWS gives no public address to machines with several interfaces.
        has_public_ip: is_public && max_efa <= 1,
    };
    let cards = match max_efa {
        0 | 1 => 0..0,
        _ if first_can => 1..max_efa,
        _ => 1..max_efa + 1,
    };
    let has_ip = |card: u32| WITH_IP_ON_EVERY_FOURTH_CARD.contains(&instance_type) && card.is_multiple_of(4);
    let others = cards.map(|card| NewInterface {
        kind: if has_ip(card) { "efa" } else { "efa-only" },
        device: 1,
        card: Some(card),
        has_public_ip: false,
    });
    std::iter::once(first).chain(others).collect()
}

/// Whether machines get their public address by a call of its own.
pub(crate) const fn needs_address(choice: &Choice) -> bool {
    choice.is_public && choice.max_efa > 1
}

/// The call of `RunInstances` for a machine of this choice. Called again with the same choice, it is the same to the letter.
pub(crate) fn run_instances(want: &MachineRequest, choice: &Choice, tags: &[(String, String)]) -> Form {
    let instance = &want.offer.instance;
    let user_data = cloud_config(&want.authorized_keys, &[]);
    let disk = "BlockDeviceMapping.1";
    let form = Form::new("RunInstances")
        .with("ClientToken", &choice.token)
        .with("ImageId", &choice.image)
        .with("InstanceType", &instance.name)
        .with("MinCount", "1")
        .with("MaxCount", "1")
        .with("UserData", STANDARD.encode(user_data))
        .with(format!("{disk}.DeviceName"), &choice.root_device)
        .with(
            format!("{disk}.Ebs.VolumeSize"),
            disk_gib(instance.resources.disk.size_mib),
        )
        .with(format!("{disk}.Ebs.VolumeType"), "gp3")
        .with(format!("{disk}.Ebs.DeleteOnTermination"), "true")
        // A machine that ends itself costs nothing afterwards.
        .with("InstanceInitiatedShutdownBehavior", "terminate")
        .tagged("instance", tags)
        .with_some("IamInstanceProfile.Name", choice.iam_instance_profile.as_deref())
        .with_some("Placement.GroupName", choice.placement_group.as_deref())
        .with_some("Placement.Tenancy", choice.tenancy.as_deref())
        .with_some(
            "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId",
            want.reservation.as_deref(),
        );
    let form = with_market(form, choice.is_capacity_block, instance.resources.spot);
    let all = interfaces(&instance.name, choice.max_efa, choice.is_public);
    all.iter().enumerate().fold(form, |form, (at, interface)| {
        with_interface(form, at + 1, interface, choice)
    })
}

fn with_market(form: Form, is_capacity_block: bool, is_spot: bool) -> Form {
    let market = "InstanceMarketOptions";
    if is_capacity_block {
        return form.with(format!("{market}.MarketType"), "capacity-block");
    }
    if !is_spot {
        return form;
    }
    form.with(format!("{market}.MarketType"), "spot")
        .with(format!("{market}.SpotOptions.SpotInstanceType"), "one-time")
        .with(
            format!("{market}.SpotOptions.InstanceInterruptionBehavior"),
            "terminate",
        )
}

fn with_interface(form: Form, number: usize, interface: &NewInterface, choice: &Choice) -> Form {
    let field = |name: &str| format!("NetworkInterface.{number}.{name}");
    let form = form
        .with(field("DeviceIndex"), interface.device.to_string())
        .with(field("SubnetId"), &choice.place.subnet)
        .with(field("SecurityGroupId.1"), &choice.security_group)
        .with(field("InterfaceType"), interface.kind)
        .with(
            field("AssociatePublicIpAddress"),
            interface.has_public_ip.to_string(),
        )
        .with(field("DeleteOnTermination"), "true");
    match interface.card {
        Some(card) => form.with(field("NetworkCardIndex"), card.to_string()),
        None => form,
    }
}

/// In whole GiB.
fn disk_gib(mib: i64) -> String {
    let gib = mib.max(0).unsigned_abs().div_ceil(1024);
    gib.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(instance_type: &str, max_efa: u32) -> Vec<(u32, &'static str)> {
        let all = interfaces(instance_type, max_efa, true);
        all.iter()
            .map(|interface| (interface.card.unwrap_or(0), interface.kind))
            .collect()
    }

    #[test]
    fn a_machine_has_the_interfaces_of_its_type() {
        assert_eq!(kinds("t3.medium", 0), [(0, "interface")]);
        assert_eq!(kinds("g5.8xlarge", 1), [(0, "efa")]);
        assert_eq!(
            kinds("p4d.24xlarge", 4),
            [(0, "efa"), (1, "efa-only"), (2, "efa-only"), (3, "efa-only")]
        );
        let p5 = kinds("p5.48xlarge", 32);
        let with_ip: Vec<u32> = p5
            .iter()
            .filter(|(_, kind)| *kind == "efa")
            .map(|(card, _)| *card)
            .collect();
        assert_eq!((p5.len(), with_ip), (32, vec![0, 4, 8, 12, 16, 20, 24, 28]));
        let b300 = kinds("p6-b300.48xlarge", 16);
        assert_eq!(
            (b300.len(), b300[0], b300[16]),
            (17, (0, "interface"), (16, "efa-only"))
        );
    }

    #[test]
    fn only_a_machine_with_one_interface_gets_a_public_address_with_it() {
        for (max_efa, is_public, expected) in [
            (0, true, true),
            (1, true, true),
            (4, true, false),
            (0, false, false),
        ] {
            let all = interfaces("p4d.24xlarge", max_efa, is_public);
            assert_eq!(all[0].has_public_ip, expected, "{max_efa} {is_public}");
            assert!(
                all[1..]
                    .iter()
                    .all(|interface| !interface.has_public_ip && interface.device == 1)
            );
        }
    }

    #[test]
    fn disks_are_in_whole_gib() {
        assert_eq!(disk_gib(100 * 1024), "100");
        assert_eq!(disk_gib(100 * 1024 + 1), "101");
    }
}
