//! Answers of EC2 as far as they are read (API version 2016-11-15), and the calls that list.

use dstack_units::Time;
use serde::Deserialize;

use crate::client::{Client, Form, Page, Service};
use crate::errors::AwsError;

/// Most values of a filter ("Filter", EC2 API reference).
const MAX_FILTER_VALUES: usize = 200;

/// What XML lists as `<item>`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Items<T> {
    #[serde(default = "Vec::new")]
    pub(crate) item: Vec<T>,
}

impl<T> Default for Items<T> {
    fn default() -> Self {
        Self { item: Vec::new() }
    }
}

/// An answer with a list and, where there are more, what the next page is asked for with.
macro_rules! page {
    ($name:ident, $element:literal, $item:ty) => {
        #[derive(Debug, Deserialize)]
        pub(crate) struct $name {
            #[serde(rename = $element, default)]
            items: Items<$item>,
            #[serde(rename = "nextToken")]
            next_token: Option<String>,
        }

        impl Page for $name {
            type Item = $item;

            fn into_items(self) -> (Vec<$item>, Option<String>) {
                (self.items.item, self.next_token)
            }
        }
    };
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Tag {
    pub(crate) key: String,
    #[serde(default)]
    pub(crate) value: String,
}

/// The value of a tag.
pub(crate) fn tag<'a>(tags: &'a Items<Tag>, key: &str) -> Option<&'a str> {
    let found = tags.item.iter().find(|tag| tag.key == key);
    found.map(|tag| tag.value.as_str())
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Instance {
    pub(crate) instance_id: String,
    pub(crate) instance_state: InstanceState,
    pub(crate) state_reason: Option<StateReason>,
    /// Public IPv4 address; unset while it has none.
    pub(crate) ip_address: Option<String>,
    pub(crate) private_ip_address: Option<String>,
    pub(crate) placement: Option<InstancePlacement>,
    pub(crate) launch_time: Option<Time>,
    pub(crate) spot_instance_request_id: Option<String>,
    pub(crate) capacity_reservation_id: Option<String>,
    #[serde(default)]
    pub(crate) network_interface_set: Items<Interface>,
    #[serde(default)]
    pub(crate) block_device_mapping: Items<Device>,
    #[serde(default)]
    pub(crate) tag_set: Items<Tag>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct InstanceState {
    pub(crate) name: String,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct StateReason {
    #[serde(default)]
    pub(crate) code: String,
    #[serde(default)]
    pub(crate) message: String,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InstancePlacement {
    pub(crate) availability_zone: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Interface {
    pub(crate) network_interface_id: String,
    pub(crate) attachment: Option<InterfaceAttachment>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InterfaceAttachment {
    pub(crate) device_index: i64,
    pub(crate) network_card_index: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Device {
    pub(crate) device_name: String,
}

/// Answer of `RunInstances`, and what `DescribeInstances` lists.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Reservation {
    #[serde(default)]
    pub(crate) instances_set: Items<Instance>,
}

page!(Reservations, "reservationSet", Reservation);

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SpotRequest {
    pub(crate) instance_id: Option<String>,
    pub(crate) status: Option<SpotStatus>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SpotStatus {
    #[serde(default)]
    pub(crate) code: String,
    #[serde(default)]
    pub(crate) message: String,
    pub(crate) update_time: Option<Time>,
}

page!(SpotRequests, "spotInstanceRequestSet", SpotRequest);

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Regions {
    #[serde(default)]
    region_info: Items<Region>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Region {
    region_name: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Zones {
    #[serde(default)]
    availability_zone_info: Items<Zone>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Zone {
    zone_name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CapacityReservation {
    pub(crate) capacity_reservation_id: String,
    pub(crate) instance_type: String,
    pub(crate) availability_zone: Option<String>,
    #[serde(default)]
    pub(crate) available_instance_count: i64,
    /// `default` or `capacity-block`.
    pub(crate) reservation_type: Option<String>,
    pub(crate) tenancy: Option<String>,
}

page!(
    CapacityReservations,
    "capacityReservationSet",
    CapacityReservation
);

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Vpc {
    pub(crate) vpc_id: String,
}

page!(Vpcs, "vpcSet", Vpc);

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Subnet {
    pub(crate) subnet_id: String,
    pub(crate) availability_zone: String,
}

page!(Subnets, "subnetSet", Subnet);

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RouteTable {
    #[serde(default)]
    pub(crate) route_set: Items<Route>,
    #[serde(default)]
    pub(crate) association_set: Items<RouteTableAssociation>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Route {
    pub(crate) destination_cidr_block: Option<String>,
    pub(crate) gateway_id: Option<String>,
    pub(crate) nat_gateway_id: Option<String>,
    pub(crate) transit_gateway_id: Option<String>,
    pub(crate) vpc_peering_connection_id: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RouteTableAssociation {
    pub(crate) subnet_id: Option<String>,
    #[serde(default)]
    pub(crate) main: bool,
}

page!(RouteTables, "routeTableSet", RouteTable);

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InstanceTypeInfo {
    pub(crate) network_info: Option<NetworkInfo>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NetworkInfo {
    pub(crate) efa_info: Option<EfaInfo>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EfaInfo {
    #[serde(default)]
    pub(crate) maximum_efa_interfaces: u32,
}

page!(InstanceTypes, "instanceTypeSet", InstanceTypeInfo);

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Image {
    pub(crate) image_id: String,
    /// As in `2026-10-01T12:00:00.000Z`, which sorts as it is.
    #[serde(default)]
    pub(crate) creation_date: String,
    #[serde(default)]
    pub(crate) root_device_name: String,
}

page!(Images, "imagesSet", Image);

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SecurityGroup {
    pub(crate) group_id: String,
    #[serde(default)]
    pub(crate) ip_permissions: Items<Permission>,
    #[serde(default)]
    pub(crate) ip_permissions_egress: Items<Permission>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Permission {
    /// `tcp` and others by name; `-1` stands for all of them.
    #[serde(default)]
    pub(crate) ip_protocol: String,
    pub(crate) from_port: Option<i64>,
    pub(crate) to_port: Option<i64>,
    #[serde(default)]
    pub(crate) ip_ranges: Items<IpRange>,
    #[serde(default)]
    pub(crate) groups: Items<GroupPair>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct IpRange {
    pub(crate) cidr_ip: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GroupPair {
    #[serde(default)]
    pub(crate) group_id: String,
}

page!(SecurityGroups, "securityGroupInfo", SecurityGroup);

/// Answer of `CreateSecurityGroup`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CreatedGroup {
    pub(crate) group_id: String,
}

/// Answer of `AllocateAddress`, and what `DescribeAddresses` lists.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Address {
    pub(crate) allocation_id: String,
    #[serde(default)]
    pub(crate) public_ip: String,
    pub(crate) association_id: Option<String>,
    #[serde(default)]
    pub(crate) tag_set: Items<Tag>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Addresses {
    #[serde(default)]
    addresses_set: Items<Address>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PlacementGroup {
    pub(crate) group_name: String,
    /// `pending`, `available`, `deleting` or `deleted`.
    #[serde(default)]
    pub(crate) state: String,
    #[serde(default)]
    pub(crate) tag_set: Items<Tag>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PlacementGroups {
    #[serde(default)]
    placement_group_set: Items<PlacementGroup>,
}

/// Answer of `CreateVolume`, and what `DescribeVolumes` lists.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Volume {
    pub(crate) volume_id: String,
    /// `creating`, `available`, `in-use`, `deleting`, `deleted` or `error`.
    pub(crate) status: String,
    /// Size in GiB.
    pub(crate) size: i64,
    pub(crate) availability_zone: String,
    #[serde(default)]
    pub(crate) volume_type: String,
    pub(crate) iops: Option<i64>,
    pub(crate) create_time: Option<Time>,
    #[serde(default)]
    pub(crate) attachment_set: Items<VolumeAttachment>,
    #[serde(default)]
    pub(crate) tag_set: Items<Tag>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VolumeAttachment {
    #[serde(default)]
    pub(crate) instance_id: String,
    #[serde(default)]
    pub(crate) device: String,
    /// `attaching`, `attached`, `detaching`, `detached` or `busy`.
    #[serde(default)]
    pub(crate) status: String,
}

page!(VolumesPage, "volumeSet", Volume);

/// Answers of which nothing is read.
#[derive(Debug, Deserialize)]
pub(crate) struct Done {}

impl Client {
    /// Those of these instances that there are; those that ended an hour ago are not there any more.
    pub(crate) async fn instances_by_id(
        &self,
        region: &str,
        ids: &[&str],
    ) -> Result<Vec<Instance>, AwsError> {
        let mut found = Vec::new();
        for ids in ids.chunks(MAX_FILTER_VALUES) {
            // As a filter, and not as `InstanceId`: one that is not there would make an error of all.
            let form = Form::new("DescribeInstances").filter("instance-id", ids.iter().copied());
            found.extend(self.instances(region, form).await?);
        }
        Ok(found)
    }

    pub(crate) async fn instances(&self, region: &str, form: Form) -> Result<Vec<Instance>, AwsError> {
        let reservations = self.list::<Reservations>(region, form).await?;
        let all = reservations.into_iter();
        Ok(all
            .flat_map(|reservation| reservation.instances_set.item)
            .collect())
    }

    pub(crate) async fn volumes_by_id(&self, region: &str, ids: &[&str]) -> Result<Vec<Volume>, AwsError> {
        let mut found = Vec::new();
        for ids in ids.chunks(MAX_FILTER_VALUES) {
            let form = Form::new("DescribeVolumes").filter("volume-id", ids.iter().copied());
            found.extend(self.list::<VolumesPage>(region, form).await?);
        }
        Ok(found)
    }

    /// Regions that are enabled for the account. This list has no pages.
    pub(crate) async fn regions(&self, home: &str) -> Result<Vec<String>, AwsError> {
        let form = Form::new("DescribeRegions");
        let answer: Regions = self.read(Service::Ec2, home, form).await?;
        let regions = answer.region_info.item.into_iter();
        Ok(regions.map(|region| region.region_name).collect())
    }

    /// Zones of a region that the account may use. This list has no pages.
    pub(crate) async fn zones(&self, region: &str) -> Result<Vec<String>, AwsError> {
        let form = Form::new("DescribeAvailabilityZones").filter("region-name", [region]);
        let answer: Zones = self.read(Service::Ec2, region, form).await?;
        let zones = answer.availability_zone_info.item.into_iter();
        Ok(zones.map(|zone| zone.zone_name).collect())
    }

    /// This list has no pages.
    pub(crate) async fn addresses(&self, region: &str, form: Form) -> Result<Vec<Address>, AwsError> {
        let answer: Addresses = self.read(Service::Ec2, region, form).await?;
        Ok(answer.addresses_set.item)
    }

    /// This list has no pages.
    pub(crate) async fn placement_groups(
        &self,
        region: &str,
        form: Form,
    ) -> Result<Vec<PlacementGroup>, AwsError> {
        let answer: PlacementGroups = self.read(Service::Ec2, region, form).await?;
        Ok(answer.placement_group_set.item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_as_ec2_writes_them() {
        // As in the examples of the EC2 API reference.
        let text = r#"<?xml version="1.0" encoding="UTF-8"?>
<DescribeInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">
  <requestId>8f7724cf-496f-496e-8fe3-example</requestId>
  <reservationSet>
    <item>
      <reservationId>r-1234567890abcdef0</reservationId>
      <ownerId>123456789012</ownerId>
      <groupSet/>
      <instancesSet>
        <item>
          <instanceId>i-1234567890abcdef0</instanceId>
          <imageId>ami-bff32ccc</imageId>
          <instanceState><code>16</code><name>running</name></instanceState>
          <privateDnsName/>
          <reason/>
          <launchTime>2018-05-08T16:46:19.000Z</launchTime>
          <placement><availabilityZone>eu-west-1c</availabilityZone><groupName/><tenancy>default</tenancy></placement>
          <privateIpAddress>192.168.1.88</privateIpAddress>
          <ipAddress>54.194.252.215</ipAddress>
          <blockDeviceMapping>
            <item><deviceName>/dev/xvda</deviceName><ebs><volumeId>vol-1234567890abcdef0</volumeId></ebs></item>
          </blockDeviceMapping>
          <tagSet><item><key>Name</key><value>Server_1</value></item><item><key>empty</key><value/></item></tagSet>
          <networkInterfaceSet>
            <item>
              <networkInterfaceId>eni-551ba000</networkInterfaceId>
              <attachment><attachmentId>eni-attach-39697adc</attachmentId><deviceIndex>0</deviceIndex></attachment>
            </item>
          </networkInterfaceSet>
        </item>
      </instancesSet>
    </item>
  </reservationSet>
</DescribeInstancesResponse>"#;
        let answer: Reservations = quick_xml::de::from_str(text).unwrap();
        let (reservations, next) = answer.into_items();
        assert_eq!(next, None);
        let instance = &reservations[0].instances_set.item[0];
        assert_eq!(instance.instance_state.name, "running");
        assert_eq!(instance.ip_address.as_deref(), Some("54.194.252.215"));
        assert_eq!(
            instance.launch_time.unwrap(),
            "2018-05-08T16:46:19Z".parse().unwrap()
        );
        assert_eq!(instance.block_device_mapping.item[0].device_name, "/dev/xvda");
        assert_eq!(tag(&instance.tag_set, "Name"), Some("Server_1"));
        assert_eq!(tag(&instance.tag_set, "empty"), Some(""));
        let attachment = instance.network_interface_set.item[0]
            .attachment
            .as_ref()
            .unwrap();
        assert_eq!(attachment.device_index, 0);
        let none: Reservations = quick_xml::de::from_str(
            "<DescribeInstancesResponse><reservationSet/></DescribeInstancesResponse>",
        )
        .unwrap();
        assert!(none.into_items().0.is_empty());
    }
}
