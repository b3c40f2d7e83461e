"""What dstack 0.22.5 stores of backends and of what they made, by its own code, as JSON on the standard output.

    python stored_0_22_5.py > stored-0.22.5.json

It needs `dstack[all]==0.22.5`, and no network. `configurations`: the columns `config` and `auth` as `create_backend` of each
configurator gives them, and what the API shows of them. `rows` and `groups`: `job_provisioning_data` of an instance that runs, and what
is stored of a compute group, with the fields that `compute.py` of each type sets; `<name>` stands for what only the cloud knows.
Credentials are those that the emulated clouds take; they are made up.
"""

import json
import uuid
from pathlib import Path
from unittest import mock

from dstack._internal.core.backends.aws.compute import AWSInstanceBackendData
from dstack._internal.core.backends.base.configurator import StoredBackendRecord
from dstack._internal.core.backends.configurators import get_configurator
from dstack._internal.core.backends.crusoe.compute import CrusoeInstanceBackendData
from dstack._internal.core.backends.daytona.compute import DaytonaInstanceBackendData
from dstack._internal.core.backends.hotaisle.compute import HotAisleInstanceBackendData
from dstack._internal.core.backends.jarvislabs.compute import JarvisLabsInstanceBackendData
from dstack._internal.core.backends.kubernetes.compute import KubernetesBackendData
from dstack._internal.core.backends.lium.compute import LiumInstanceBackendData
from dstack._internal.core.backends.models import BackendConfigWithCreds
from dstack._internal.core.backends.nebius.compute import NebiusInstanceBackendData
from dstack._internal.core.backends.seeweb.compute import SeewebInstanceBackendData
from dstack._internal.core.backends.verda.compute import VerdaInstanceBackendData
from dstack._internal.core.models.backends.base import BackendType
from dstack._internal.core.models.compute_groups import ComputeGroupProvisioningData
from dstack._internal.core.models.instances import (
    Disk,
    Gpu,
    InstanceType,
    Resources,
    SSHConnectionParams,
)
from dstack._internal.core.models.runs import JobProvisioningData
from dstack._internal.server.services.config import config_to_yaml

CANARY = "canary-0f1e2d3c"
BACKENDS = Path(__file__).parents[3]


def pem(backend):
    return (BACKENDS / backend / "emulator" / "key.pem").read_text()


API_KEY = {"type": "api_key", "api_key": CANARY}
CLIENT = {"type": "api_key", "client_id": "c1ient1d", "client_secret": CANARY}
TOKEN_URI = "https://oauth2.googleapis.com/token"
GCP_KEY = {
    "type": "service_account",
    "project_id": "a-project",
    "private_key_id": "0123456789abcdef0123456789abcdef01234567",
    "private_key": pem("gcp"),
    "client_email": "dstack@a-project.iam.gserviceaccount.com",
    "client_id": "1",
    "token_uri": TOKEN_URI,
}
KUBECONFIG = """apiVersion: v1
kind: Config
contexts:
- name: alpha
  context: {cluster: c, user: u, namespace: team}
- name: beta
  context: {cluster: c, user: u, namespace: team}
clusters:
- name: c
  cluster: {server: 'https://192.0.2.1:6443'}
users:
- name: u
  user: {token: %s}
""" % CANARY
AZURE = {
    "type": "azure",
    "tenant_id": "11111111-aaaa-4aaa-8aaa-111111111111",
    "subscription_id": "22222222-bbbb-4bbb-8bbb-222222222222",
}
OCI_CREDS = {
    "type": "client",
    "user": "ocid1.user.oc1..aaaauser",
    "tenancy": "ocid1.tenancy.oc1..aaaatenancy",
    "fingerprint": "72:b2:59:2a:aa:98:3c:a8:dc:f3:56:01:f1:83:19:21",
    "region": "eu-frankfurt-1",
}
CRUSOE = {
    "type": "crusoe",
    "project_id": "ab4a6b00-aa5f-408e-a9fb-ac6de5eb45ab",
    "creds": {"type": "access_key", "access_key": "AKEXAMPLE", "secret_key": CANARY},
}
AWS_CREDS = {"type": "access_key", "access_key": "AKIAIOSFODNN7EXAMPLE", "secret_key": CANARY}
NEBIUS_CREDS = {
    "type": "service_account",
    "service_account_id": "serviceaccount-e00dstack",
    "public_key_id": "publickey-e00dstack",
    "private_key_content": pem("nebius"),
}
SLURM_CLUSTER = {
    "name": "main",
    "hostname": "main.example",
    "user": "me",
    "private_key": {"content": CANARY},
    "gpu_partitions": [{"gpu": "A100:80GB", "partitions": ["gpu"]}],
}

# As users submit them. The first of a type works in its emulated cloud.
CONFIGURATIONS = [
    {"type": "amddevcloud", "project_name": "my-web-api", "creds": API_KEY},
    {"type": "aws", "regions": ["us-east-1", "eu-west-1"], "creds": AWS_CREDS},
    {"type": "aws", "creds": {"type": "default"}},
    {
        "type": "aws",
        "regions": ["us-east-1"],
        "vpc_ids": {"us-east-1": "vpc-0a1b2c3d4e5f67890"},
        "default_vpcs": True,
        "public_ips": False,
        "iam_instance_profile": "dstack-jobs",
        "tags": {"team": "vision", "cost center": "a/b"},
        "os_images": {"cpu": {"name": "cpu-image", "owner": "123456789012", "user": "ubuntu"}, "nvidia": None},
        "experimental_instance_types": ["p3.2xlarge"],
        "creds": AWS_CREDS,
    },
    {
        **AZURE,
        "regions": ["eastus", "westeurope"],
        "creds": {"type": "client", "client_id": "33333333-cccc-4ccc-8ccc-333333333333", "client_secret": CANARY},
    },
    {
        **AZURE,
        "resource_group": "team",
        "regions": ["eastus"],
        "vpc_ids": {"eastus": "team/network"},
        "public_ips": False,
        "vm_managed_identity": "team/runners",
        "tags": {"team": "vision"},
        "creds": {"type": "default"},
    },
    {"type": "cloudrift", "creds": API_KEY},
    {"type": "cloudrift", "regions": ["us-east-nc-nr-1"], "creds": API_KEY},
    {**CRUSOE, "regions": ["us-east1-a", "eu-iceland1-a"]},
    CRUSOE,
    {"type": "datacrunch", "creds": CLIENT},
    {"type": "daytona", "creds": API_KEY},
    {"type": "daytona", "regions": ["us"], "creds": API_KEY},
    {"type": "digitalocean", "project_name": "my-web-api", "creds": API_KEY},
    {"type": "digitalocean", "regions": ["nyc1"], "creds": API_KEY},
    {
        "type": "gcp",
        "project_id": "a-project",
        "regions": ["us-central1", "europe-west4"],
        "creds": {"type": "service_account", "filename": "key.json", "data": json.dumps(GCP_KEY)},
    },
    {
        "type": "gcp",
        "project_id": "a-project",
        "tpu": True,
        "vpc_name": "shared",
        "subnetworks": {"us-central1": "one"},
        "extra_vpcs": ["gpu-1"],
        "roce_vpcs": ["rdma"],
        "vpc_project_id": "host-project",
        "public_ips": False,
        "nat_check": False,
        "vm_service_account": "jobs@a-project.iam.gserviceaccount.com",
        "tags": {"team": "vision"},
        "creds": {"type": "default"},
    },
    {"type": "hotaisle", "team_handle": "acme", "bare_metal": True, "creds": API_KEY},
    {"type": "hotaisle", "team_handle": "acme", "regions": ["us-michigan-1"], "creds": API_KEY},
    {"type": "jarvislabs", "creds": API_KEY},
    {"type": "kubernetes", "kubeconfig": {"data": KUBECONFIG}, "contexts": ["alpha"]},
    {
        "type": "kubernetes",
        "kubeconfig": {"filename": "~/.kube/config", "data": KUBECONFIG},
        "contexts": [{"name": "alpha", "proxy_jump": {"hostname": "jump.example", "port": 32000}}, "beta"],
    },
    {"type": "lambda", "creds": API_KEY},
    {"type": "lambda", "regions": ["us-west-1"], "creds": API_KEY},
    {"type": "lium", "creds": API_KEY},
    {"type": "nebius", "creds": NEBIUS_CREDS},
    {
        "type": "nebius",
        "projects": ["project-e00north"],
        "regions": ["eu-north1"],
        "fabrics": ["fabric-2"],
        "tags": {"team": "vision"},
        "creds": NEBIUS_CREDS,
    },
    {"type": "oci", "creds": {**OCI_CREDS, "key_content": pem("oci")}},
    {
        "type": "oci",
        "regions": ["eu-frankfurt-1"],
        "compartment_id": "ocid1.compartment.oc1..aaaateam",
        "experimental_instance_types": ["VM.Standard.E4.Flex"],
        "creds": {**OCI_CREDS, "key_file": "/home/ann/.oci/key.pem", "pass_phrase": CANARY},
    },
    {"type": "oci", "creds": {"type": "default"}},
    {"type": "runpod", "creds": API_KEY},
    {"type": "runpod", "regions": ["EU-RO-1"], "community_cloud": True, "creds": API_KEY},
    {"type": "seeweb", "creds": {"type": "api_token", "api_token": CANARY}},
    {"type": "slurm", "clusters": [SLURM_CLUSTER]},
    {"type": "slurm", "clusters": [{**SLURM_CLUSTER, "port": 2222, "cpu_partitions": ["cpu"]}]},
    {"type": "vastai", "creds": API_KEY},
    {"type": "vastai", "regions": ["se-sweden"], "community_cloud": False, "creds": API_KEY},
    {"type": "verda", "creds": CLIENT},
    {"type": "verda", "regions": ["FIN-01"], "creds": CLIENT},
    {"type": "vultr", "creds": API_KEY},
]


def without_network():
    """What `create_backend` of Azure and OCI asks of their clouds, with what it is answered."""
    azure = "dstack._internal.core.backends.azure.configurator."
    oci = "dstack._internal.core.backends.oci.configurator."
    subscribed = mock.Mock(names={"eu-frankfurt-1", "us-ashburn-1"}, home_region_name="us-ashburn-1")
    subnets = {"eu-frankfurt-1": "ocid1.subnet.oc1..aaaasubnet1", "us-ashburn-1": "ocid1.subnet.oc1..aaaasubnet2"}

    def resources(project_name, config, home_region_name):
        return config.compartment_id or "ocid1.tenancy.oc1..aaaatenancy", subnets

    for target, answer in [
        (azure + "auth.authenticate", lambda creds: (None, None)),
        (azure + "AzureConfigurator._create_resource_group", lambda self, **_: "dstack-main"),
        (azure + "AzureConfigurator._create_network_resources", lambda self, **_: None),
        (oci + "get_subscribed_regions", lambda creds: subscribed),
        (oci + "_filter_supported_regions", sorted),
        (oci + "_create_resources", resources),
    ]:
        mock.patch(target, answer).start()


def stored(configuration):
    config = BackendConfigWithCreds.model_validate(configuration).root
    configurator = get_configurator(config.type)
    record = configurator.create_backend(project_name="main", config=config)
    record = StoredBackendRecord(**record.model_dump(), project_id=uuid.UUID(int=1), backend_id=uuid.UUID(int=2))
    shown = configurator.get_backend_config_with_creds(record)
    return {
        "type": config.type,
        "config": record.config,
        "auth": record.auth,
        "config_info": json.loads(shown.model_dump_json()),
        "config_yaml": config_to_yaml(shown),
    }


def dumped(data):
    """As `compute.py` writes what a class describes."""
    return data.model_dump_json()


# `backend_data` of an instance of each type, and what else `compute.py` sets of it.
VM = {"ssh_port": 22, "dockerized": True}
CONTAINER = {"dockerized": False, "username": "root"}
KUBERNETES_DATA = KubernetesBackendData(
    jump_pod_name="dstack-main-ssh-jump-pod",
    jump_pod_service_name="dstack-main-ssh-jump-pod-service",
    user_ssh_public_key="ssh-ed25519 AAAAuser",
    extra_authorized_keys=["ssh-ed25519 AAAAuser"],
)
LIUM_DATA = LiumInstanceBackendData(
    pod_name="main-train-0-0",
    executor_id="6f0c2d1e-77aa-4c0f-9a1e-0f6a3b2c1d00",
    startup_command="true",
    template_id="<pieces.0>",
    credential_id=None,
)
ROWS = {
    "amddevcloud": {**VM, "username": "root"},
    "aws": {**VM, "username": "ubuntu", "availability_zone": "<availability_zone>"},
    "azure": {**VM, "username": "ubuntu"},
    "cloudrift": {**VM, "username": "riftuser"},
    "crusoe": {
        **VM,
        "username": "ubuntu",
        "backend_data": dumped(CrusoeInstanceBackendData(data_disk_id="<data.data_disk_id>")),
    },
    "datacrunch": {
        **VM,
        "username": "root",
        "backend_data": dumped(VerdaInstanceBackendData(ssh_key_ids=["<data.ssh_key_ids.0>"])),
    },
    "daytona": {
        **CONTAINER,
        "ssh_port": 10022,
        "backend_data": dumped(DaytonaInstanceBackendData(registry_id="<pieces.0>")),
    },
    "digitalocean": {**VM, "username": "root"},
    "gcp": {
        **VM,
        "username": "ubuntu",
        "availability_zone": "<availability_zone>",
        "backend_data": json.dumps({"zone": "<data.zone>"}),
    },
    "hotaisle": {
        **VM,
        "username": "hotaisle",
        "backend_data": dumped(HotAisleInstanceBackendData(ip_address="<data.ip_address>")),
    },
    "jarvislabs": {
        **VM,
        "username": "ubuntu",
        "backend_data": dumped(JarvisLabsInstanceBackendData(ssh_key_ids=["9999"])),
    },
    "kubernetes": {
        **CONTAINER,
        "ssh_port": 10022,
        "ssh_proxy": SSHConnectionParams(hostname="192.0.2.41", username="root", port=30999),
        "backend_data": dumped(KUBERNETES_DATA),
    },
    "lambda": {**VM, "username": "ubuntu"},
    "lium": {**CONTAINER, "ssh_port": 20023, "backend_data": dumped(LIUM_DATA)},
    "nebius": {
        **VM,
        "username": "ubuntu",
        "backend_data": dumped(NebiusInstanceBackendData(boot_disk_id="<data.boot_disk_id>")),
    },
    "oci": {**VM, "username": "ubuntu", "availability_zone": "<availability_zone>"},
    "runpod": {**CONTAINER, "ssh_port": 10022},
    "seeweb": {
        **VM,
        "username": "root",
        "backend_data": dumped(SeewebInstanceBackendData(action_id=77)),
    },
    "slurm": {
        **CONTAINER,
        "ssh_port": 10022,
        "availability_zone": "<availability_zone>",
        "ssh_proxy": SSHConnectionParams(hostname="main.example", username="me", port=22),
    },
    "vastai": {**CONTAINER, "ssh_port": 20011},
    "verda": {
        **VM,
        "username": "root",
        "backend_data": dumped(
            VerdaInstanceBackendData(startup_script_id="0c41386b-2d3c-4f1a-9d0f-4e0e7a1d2b3c", ssh_key_ids=["<data.ssh_key_ids.0>"])
        ),
    },
    "vultr": {**VM, "username": "root", "backend_data": json.dumps({"plan_type": "vm_instance"})},
}


def instance(backend, fields, instance_id="<instance_id>", hostname="<hostname>", internal_ip="<internal_ip>"):
    resources = Resources(
        cpus=8,
        memory_mib=32768,
        gpus=[Gpu(name="H100", memory_mib=81920)],
        spot=False,
        disk=Disk(size_mib=102400),
    )
    return JobProvisioningData(
        backend=backend,
        instance_type=InstanceType(name="<instance_type>", resources=resources),
        instance_id=instance_id,
        hostname=hostname,
        internal_ip=internal_ip,
        region="<region>",
        price=1.5,
        **fields,
    )


def group(backend, fields, nodes=2):
    members = [
        instance(backend, fields, *(f"<{name}.{node}>" for name in ("instance_id", "hostname", "internal_ip")))
        for node in range(nodes)
    ]
    return ComputeGroupProvisioningData(
        compute_group_id="<compute_group_id>",
        compute_group_name="<compute_group_name>",
        backend=backend,
        region="<region>",
        job_provisioning_datas=members,
    )


def main():
    without_network()
    known = {backend.value for backend in BackendType if get_configurator(backend) is not None}
    assert known == {one["type"] for one in CONFIGURATIONS} == set(ROWS), known
    rows = {backend: json.loads(instance(backend, fields).model_dump_json()) for backend, fields in ROWS.items()}
    eip = AWSInstanceBackendData(eip_allocation_id="<data.eip_allocation_id>")
    rows["aws-with-an-address"] = {**rows["aws"], "backend_data": dumped(eip)}
    rows["vultr-bare-metal"] = {**rows["vultr"], "backend_data": json.dumps({"plan_type": "bare-metal"})}
    groups = {
        backend: json.loads(group(backend, ROWS[backend]).model_dump_json()) for backend in ("runpod", "slurm")
    }
    # Clouds of containers say which port it is.
    for row in rows.values():
        if not row["dockerized"]:
            row["ssh_port"] = "<ssh_port>"
    for one in groups.values():
        for node, member in enumerate(one["job_provisioning_datas"]):
            member["ssh_port"] = f"<ssh_port.{node}>"
    found = {"configurations": [stored(one) for one in CONFIGURATIONS], "rows": dict(sorted(rows.items())), "groups": groups}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
