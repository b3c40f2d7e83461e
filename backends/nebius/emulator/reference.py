"""Drives an emulated Nebius with the backend of dstack 0.22.5 and the vendor's SDK: credentials, create, wait, end, spot, a placement group.

usage: reference.py ADDRESS SERVICE_ACCOUNT PUBLIC_KEY_ID PRIVATE_KEY_FILE
"""

import sys
import time
from types import SimpleNamespace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from dstack._internal.core.backends.nebius import compute as nebius, configurator, resources
from dstack._internal.core.backends.nebius.models import (
    NebiusBackendConfigWithCreds,
    NebiusConfig,
    NebiusServiceAccountCreds,
)
from dstack._internal.core.errors import BackendInvalidCredentialsError, NoCapacityError, NotYetTerminated
from dstack._internal.core.models.backends.base import BackendType
from dstack._internal.core.models.instances import (
    Disk,
    Gpu,
    InstanceAvailability,
    InstanceConfiguration,
    InstanceOfferWithAvailability,
    InstanceType,
    Resources,
    SSHKey,
)
from dstack._internal.core.models.placement import PlacementStrategy
from nebius.api.nebius.compute.v1 import GetGpuClusterRequest, GpuClusterServiceClient
from nebius.base.options import INSECURE
from nebius.base.resolver import Constant
from nebius.sdk import SDK

ADDRESS, ACCOUNT, KEY_ID, KEY_FILE = sys.argv[1:]
FABRICS = {"fabric-2", "fabric-3", "fabric-4", "fabric-6"}
REGION = "eu-north1"


def make_sdk(creds):
    return SDK(
        service_account_private_key_file_name=KEY_FILE,
        service_account_public_key_id=creds.public_key_id,
        service_account_id=creds.service_account_id,
        resolver=Constant(ADDRESS),
        options=[(INSECURE, True)],
    )


# The rest of it is the vendor's: tokens, addresses of services, retries, operations.
resources.make_sdk = make_sdk
configurator.get_all_infiniband_fabrics = lambda: FABRICS


def creds_of(account):
    with open(KEY_FILE) as file:
        key = file.read()
    return NebiusServiceAccountCreds(
        service_account_id=account, public_key_id=KEY_ID, private_key_content=key
    )


PUBLIC_KEY = (
    Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
)
compute = nebius.NebiusCompute(NebiusConfig(creds=creds_of(ACCOUNT)))


def check_credentials():
    def validate(account=ACCOUNT, **changed):
        config = NebiusBackendConfigWithCreds(creds=creds_of(account), **changed)
        configurator.NebiusConfigurator().validate_config(config, False)

    validate(regions=[REGION], fabrics=["fabric-6"])
    for wrong in [
        {"account": "serviceaccount-e00other"},
        {"regions": ["nowhere"]},
        {"projects": ["project-e00other"]},
        {"fabrics": ["fabric-0"]},
    ]:
        try:
            validate(**wrong)
        except BackendInvalidCredentialsError:
            continue
        raise AssertionError(f"{wrong} was taken")


def offer_of(name, gpus=0, spot=False, fabrics=()):
    gpu = Gpu(name="H100", memory_mib=81920, vendor="nvidia")
    shape = Resources(
        cpus=8, memory_mib=32768, gpus=[gpu] * gpus, spot=spot, disk=Disk(size_mib=102400)
    )
    return InstanceOfferWithAvailability(
        backend=BackendType.NEBIUS,
        instance=InstanceType(name=name, resources=shape),
        region=REGION,
        price=10.0,
        availability=InstanceAvailability.UNKNOWN,
        backend_data={"fabrics": sorted(fabrics), "is_preemptible_flat_rate": False},
    )


def wait_until(is_so):
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline, is_so.__name__
        time.sleep(0.02)


def check_machine(offer, group=None):
    config = InstanceConfiguration(
        project_name="main", instance_name="fleet-0", user="somebody", ssh_keys=[SSHKey(public=PUBLIC_KEY)]
    )
    data = compute.create_instance(offer, config, group)

    def has_address():
        compute.update_provisioning_data(data, PUBLIC_KEY, "")
        return data.hostname is not None

    def is_gone():
        try:
            compute.terminate_instance(data.instance_id, data.region, data.backend_data)
        except NotYetTerminated:
            return False
        return True

    wait_until(has_address)
    assert data.hostname == "203.0.113.56" and data.internal_ip == "192.168.0.5", data
    wait_until(is_gone)


def check_group():
    offer = offer_of("gpu-h100-sxm 8gpu-128vcpu-1600gb", 8, fabrics=FABRICS)
    configuration = SimpleNamespace(region=REGION, placement_strategy=PlacementStrategy.CLUSTER)
    group = SimpleNamespace(name="dstack-group", configuration=configuration)
    group.provisioning_data = compute.create_placement_group(group, offer)
    assert compute.is_suitable_placement_group(group, offer)
    cluster = nebius.NebiusPlacementGroupBackendData.load(group.provisioning_data.backend_data).cluster

    def is_made():
        call = GpuClusterServiceClient(compute._sdk).get(
            GetGpuClusterRequest(id=cluster.id), per_retry_timeout=5
        )
        told = resources.LOOP.await_(call)
        assert told.spec.infiniband_fabric == cluster.fabric, told
        return not told.status.reconciling

    wait_until(is_made)
    check_machine(offer, group)
    compute.delete_placement_group(group)


# Its pauses are for a cloud that takes minutes.
sleep = time.sleep
time.sleep = lambda seconds: sleep(min(seconds, 0.05))
check_credentials()
check_machine(offer_of("cpu-e2 2vcpu-8gb"))
check_machine(offer_of("gpu-h100-sxm 8gpu-128vcpu-1600gb", 8, spot=True))
check_group()
try:
    check_machine(offer_of("cpu-d3 4vcpu-16gb"))
except NoCapacityError:
    raise AssertionError("there is room")
print("all parts passed")
