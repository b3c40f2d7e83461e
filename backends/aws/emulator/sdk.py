"""Drives an emulated AWS with boto3, the vendor's SDK: one life of everything that the backend makes.

usage: sdk.py URL KEY_ID SECRET ROLE EXTERNAL_ID
"""

import datetime
import sys
import time

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

URL, KEY_ID, SECRET, ROLE, EXTERNAL_ID = sys.argv[1:]
FAST = {"Delay": 1, "MaxAttempts": 60}


def client(service, key_id=KEY_ID, secret=SECRET, region="us-east-1", token=None):
    config = Config(retries={"total_max_attempts": 1})
    return boto3.client(
        service,
        endpoint_url=URL,
        region_name=region,
        aws_access_key_id=key_id,
        aws_secret_access_key=secret,
        aws_session_token=token,
        config=config,
    )


def refused(code, call, **parameters):
    try:
        call(**parameters)
    except ClientError as error:
        assert error.response["Error"]["Code"] == code, error
        assert error.response["ResponseMetadata"]["HTTPStatusCode"] >= 400, error
        return
    raise AssertionError(f"{code} is missing")


def tagged(kind):
    return [{"ResourceType": kind, "Tags": [{"Key": "Name", "Value": "by boto3"}]}]


ec2 = client("ec2")

# Who asks.
assert client("sts").get_caller_identity()["Account"] == "123456789012"
refused("InvalidClientTokenId", client("sts", key_id="AKIAWRONG").get_caller_identity)
refused("SignatureDoesNotMatch", client("sts", secret="wrong").get_caller_identity)
refused("AuthFailure", client("ec2", secret="wrong").describe_vpcs)
refused("AuthFailure", client("ec2", region="ap-east-1").describe_vpcs)
refused("NoSuchEntity", client("iam").get_instance_profile, InstanceProfileName="none")
quotas = client("service-quotas")
quota = quotas.get_service_quota(ServiceCode="ec2", QuotaCode="L-417A185B")["Quota"]
assert quota["Value"] > 0, quota
refused("NoSuchResourceException", quotas.get_service_quota, ServiceCode="ec2", QuotaCode="L-0")

# A role: what STS gives for it is taken with its own secret and token alone.
sts = client("sts")
role = {"RoleArn": ROLE, "RoleSessionName": "by-boto3"}
refused("AccessDenied", sts.assume_role, **role)
refused("AccessDenied", sts.assume_role, **role, ExternalId="another")
refused("ValidationError", sts.assume_role, RoleArn=ROLE, RoleSessionName="by boto3")
assumed = sts.assume_role(**role, ExternalId=EXTERNAL_ID)
given = assumed["Credentials"]
left = given["Expiration"] - datetime.datetime.now(datetime.timezone.utc)
assert datetime.timedelta(minutes=55) < left <= datetime.timedelta(hours=1), left
key = {"key_id": given["AccessKeyId"], "secret": given["SecretAccessKey"], "token": given["SessionToken"]}
identity = client("sts", **key).get_caller_identity()
assert identity["Arn"] == assumed["AssumedRoleUser"]["Arn"], identity
assert identity["Arn"].endswith(":assumed-role/by-boto3/by-boto3"), identity
assert client("ec2", **key).describe_vpcs()["Vpcs"]
refused("InvalidClientTokenId", client("sts", **{**key, "token": None}).get_caller_identity)
refused("InvalidClientTokenId", client("sts", **{**key, "token": "another"}).get_caller_identity)
refused("SignatureDoesNotMatch", client("sts", **{**key, "secret": SECRET}).get_caller_identity)
refused("AuthFailure", client("ec2", **{**key, "token": None}).describe_vpcs)

# The network.
zones = [zone["ZoneName"] for zone in ec2.describe_availability_zones()["AvailabilityZones"]]
assert zones == ["us-east-1a", "us-east-1b", "us-east-1c"], zones
[vpc] = ec2.describe_vpcs(Filters=[{"Name": "isDefault", "Values": ["true"]}])["Vpcs"]
of_vpc = [{"Name": "vpc-id", "Values": [vpc["VpcId"]]}]
subnets = ec2.describe_subnets(Filters=of_vpc)["Subnets"]
assert len(subnets) == 3, subnets
[table] = ec2.describe_route_tables(Filters=of_vpc)["RouteTables"]
assert any(route.get("GatewayId", "").startswith("igw-") for route in table["Routes"]), table
group = ec2.create_security_group(
    GroupName="by-boto3", Description="test", VpcId=vpc["VpcId"], TagSpecifications=tagged("security-group")
)["GroupId"]
refused(
    "InvalidGroup.Duplicate",
    ec2.create_security_group,
    GroupName="by-boto3",
    Description="test",
    VpcId=vpc["VpcId"],
)
ssh = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
among_us = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}
ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[ssh, among_us])
ec2.authorize_security_group_egress(GroupId=group, IpPermissions=[among_us])
refused(
    "InvalidPermission.Duplicate",
    ec2.authorize_security_group_ingress,
    GroupId=group,
    IpPermissions=[ssh],
)
[found] = ec2.describe_security_groups(Filters=[{"Name": "group-name", "Values": ["by-*"]}])["SecurityGroups"]
assert len(found["IpPermissions"]) == 2 and len(found["IpPermissionsEgress"]) == 1, found

# An instance: made once by its token.
[image] = ec2.describe_images(Owners=["142421590066"], Filters=[{"Name": "name", "Values": ["dstack-*"]}])["Images"]
wanted = {
    "ImageId": image["ImageId"],
    "InstanceType": "t3.medium",
    "MinCount": 1,
    "MaxCount": 1,
    "ClientToken": "once",
    "UserData": "#cloud-config\n",
    "BlockDeviceMappings": [
        {"DeviceName": image["RootDeviceName"], "Ebs": {"VolumeSize": 100, "VolumeType": "gp3"}}
    ],
    "NetworkInterfaces": [
        {
            "DeviceIndex": 0,
            "SubnetId": subnets[0]["SubnetId"],
            "Groups": [group],
            "AssociatePublicIpAddress": True,
        }
    ],
    "TagSpecifications": tagged("instance"),
}
[instance] = ec2.run_instances(**wanted)["Instances"]
assert instance["State"]["Name"] == "pending", instance
[again] = ec2.run_instances(**wanted)["Instances"]
assert again["InstanceId"] == instance["InstanceId"], again
refused("IdempotentParameterMismatch", ec2.run_instances, **{**wanted, "InstanceType": "t3.small"})
refused("InvalidAMIID.NotFound", ec2.run_instances, **{**wanted, "ClientToken": "2", "ImageId": "ami-0"})
instance_id = instance["InstanceId"]
ec2.get_waiter("instance_running").wait(InstanceIds=[instance_id], WaiterConfig=FAST)
[reservation] = ec2.describe_instances(InstanceIds=[instance_id])["Reservations"]
[instance] = reservation["Instances"]
assert instance["PublicIpAddress"] and instance["PrivateIpAddress"], instance
assert instance["Placement"]["AvailabilityZone"] == zones[0], instance
assert instance["Tags"] == [{"Key": "Name", "Value": "by boto3"}], instance
refused("InvalidInstanceID.NotFound", ec2.describe_instances, InstanceIds=["i-00000000000000000"])

# Spot instances, and pages.
spot = {"MarketType": "spot", "SpotOptions": {"SpotInstanceType": "one-time"}}
more = [
    ec2.run_instances(**{**wanted, "ClientToken": f"more-{at}", "InstanceMarketOptions": spot})["Instances"][0]
    for at in range(6)
]
pages = ec2.get_paginator("describe_instances").paginate(PaginationConfig={"PageSize": 5})
sizes = [len(page["Reservations"]) for page in pages]
assert sizes == [5, 2], sizes
requests = ec2.describe_spot_instance_requests()["SpotInstanceRequests"]
assert {request["InstanceId"] for request in requests} == {one["InstanceId"] for one in more}, requests

# A volume: made, attached, detached, deleted.
volume = ec2.create_volume(
    AvailabilityZone=zones[0],
    Size=10,
    VolumeType="gp3",
    ClientToken="volume",
    TagSpecifications=tagged("volume"),
)
volume_id = volume["VolumeId"]
ec2.get_waiter("volume_available").wait(VolumeIds=[volume_id], WaiterConfig=FAST)
attached = ec2.attach_volume(VolumeId=volume_id, InstanceId=instance_id, Device="/dev/sdf")
assert attached["State"] == "attaching", attached
refused("VolumeInUse", ec2.attach_volume, VolumeId=volume_id, InstanceId=instance_id, Device="/dev/sdg")
refused("VolumeInUse", ec2.delete_volume, VolumeId=volume_id)
ec2.get_waiter("volume_in_use").wait(VolumeIds=[volume_id], WaiterConfig=FAST)
ec2.detach_volume(VolumeId=volume_id, InstanceId=instance_id)
ec2.get_waiter("volume_available").wait(VolumeIds=[volume_id], WaiterConfig=FAST)
ec2.delete_volume(VolumeId=volume_id)
ec2.get_waiter("volume_deleted").wait(VolumeIds=[volume_id], WaiterConfig=FAST)

# An address.
address = ec2.allocate_address(Domain="vpc", TagSpecifications=tagged("elastic-ip"))
interface = instance["NetworkInterfaces"][0]["NetworkInterfaceId"]
association = ec2.associate_address(
    AllocationId=address["AllocationId"], NetworkInterfaceId=interface, AllowReassociation=False
)["AssociationId"]
[listed] = ec2.describe_addresses(Filters=[{"Name": "tag:Name", "Values": ["by boto3"]}])["Addresses"]
assert listed["AssociationId"] == association, listed
refused("InvalidIPAddress.InUse", ec2.release_address, AllocationId=address["AllocationId"])
ec2.disassociate_address(AssociationId=association)
ec2.release_address(AllocationId=address["AllocationId"])
refused("InvalidAllocationID.NotFound", ec2.release_address, AllocationId=address["AllocationId"])

# A placement group is in use as long as an instance is in it.
ec2.create_placement_group(GroupName="by-boto3", Strategy="cluster", TagSpecifications=tagged("placement-group"))
member = {**wanted, "ClientToken": "member", "InstanceType": "c5.large", "Placement": {"GroupName": "by-boto3"}}
[member] = ec2.run_instances(**member)["Instances"]
refused("InvalidPlacementGroup.InUse", ec2.delete_placement_group, GroupName="by-boto3")

# A load balancer: made once by its name, with a target group that is in use as long as a listener leads to it.
elb = client("elbv2")
balancer = {
    "Name": "by-boto3",
    "Subnets": [subnet["SubnetId"] for subnet in subnets],
    "SecurityGroups": [group],
    "Scheme": "internet-facing",
    "Tags": [{"Key": "Name", "Value": "by boto3"}],
}
[made] = elb.create_load_balancer(**balancer)["LoadBalancers"]
[again] = elb.create_load_balancer(**balancer)["LoadBalancers"]
assert again["LoadBalancerArn"] == made["LoadBalancerArn"] and made["DNSName"], again
refused("DuplicateLoadBalancerName", elb.create_load_balancer, **{**balancer, "Scheme": "internal"})
refused("ValidationError", elb.create_load_balancer, **{**balancer, "Name": "other", "Subnets": balancer["Subnets"][:1]})
refused("LoadBalancerNotFound", elb.describe_load_balancers, Names=["none"])
balancer_arn = made["LoadBalancerArn"]
[targets] = elb.create_target_group(
    Name="by-boto3", Protocol="HTTP", Port=80, VpcId=vpc["VpcId"], TargetType="instance", HealthCheckPath="/health"
)["TargetGroups"]
targets_arn = targets["TargetGroupArn"]
forward = [{"Type": "forward", "TargetGroupArn": targets_arn}]
to_https = [{"Type": "redirect", "RedirectConfig": {"Protocol": "HTTPS", "Port": "443", "StatusCode": "HTTP_301"}}]
certificates = [{"CertificateArn": "arn:aws:acm:us-east-1:123456789012:certificate/1"}]
https = {"LoadBalancerArn": balancer_arn, "Protocol": "HTTPS", "Port": 443, "DefaultActions": forward}
refused("CertificateNotFound", elb.create_listener, **https)
elb.create_listener(**https, Certificates=certificates, SslPolicy="ELBSecurityPolicy-2016-08")
elb.create_listener(LoadBalancerArn=balancer_arn, Protocol="HTTP", Port=80, DefaultActions=to_https)
refused(
    "DuplicateListener",
    elb.create_listener,
    LoadBalancerArn=balancer_arn,
    Protocol="HTTP",
    Port=80,
    DefaultActions=forward,
)
assert len(elb.describe_listeners(LoadBalancerArn=balancer_arn)["Listeners"]) == 2
elb.get_waiter("load_balancer_available").wait(LoadBalancerArns=[balancer_arn], WaiterConfig=FAST)
target = [{"Id": instance_id, "Port": 80}]
elb.register_targets(TargetGroupArn=targets_arn, Targets=target)
elb.get_waiter("target_in_service").wait(TargetGroupArn=targets_arn, Targets=target, WaiterConfig=FAST)
refused("InvalidTarget", elb.register_targets, TargetGroupArn=targets_arn, Targets=[{"Id": "i-0"}])
elb.deregister_targets(TargetGroupArn=targets_arn, Targets=target)
[health] = elb.describe_target_health(TargetGroupArn=targets_arn)["TargetHealthDescriptions"]
assert health["TargetHealth"]["State"] == "draining", health
refused("ResourceInUse", elb.delete_target_group, TargetGroupArn=targets_arn)
elb.delete_load_balancer(LoadBalancerArn=balancer_arn)
elb.delete_target_group(TargetGroupArn=targets_arn)
assert elb.describe_target_groups()["TargetGroups"] == []

ids = [instance_id, member["InstanceId"], *(one["InstanceId"] for one in more)]
changes = ec2.terminate_instances(InstanceIds=ids)["TerminatingInstances"]
assert {change["CurrentState"]["Name"] for change in changes} == {"shutting-down"}, changes
ec2.get_waiter("instance_terminated").wait(InstanceIds=ids, WaiterConfig=FAST)
ec2.delete_placement_group(GroupName="by-boto3")
while ec2.describe_placement_groups()["PlacementGroups"]:
    time.sleep(0.1)
print("all parts passed")
