"""Serves moto, an emulator of AWS by others, until standard input ends; prints its port and an image when it is ready."""

import json
import sys

import boto3
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
ec2 = boto3.client(
    "ec2",
    endpoint_url=f"http://127.0.0.1:{port}",
    region_name="us-east-1",
    aws_access_key_id="x",
    aws_secret_access_key="x",
)
# Images that are registered have no architecture here.
images = ec2.describe_images(Filters=[{"Name": "architecture", "Values": ["x86_64"]}])["Images"]
image = next(image for image in images if "ubuntu" in image["Name"])
[vpc] = ec2.describe_vpcs(Filters=[{"Name": "isDefault", "Values": ["true"]}])["Vpcs"]
of_vpc = [{"Name": "vpc-id", "Values": [vpc["VpcId"]]}]
[table] = ec2.describe_route_tables(Filters=of_vpc)["RouteTables"]
gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc["VpcId"])
ec2.create_route(
    RouteTableId=table["RouteTableId"], DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway
)
print(json.dumps({"port": port, "image": image["Name"], "owner": image["OwnerId"]}), flush=True)
sys.stdin.read()
server.stop()
