"""Drives an emulated Lambda with the backend of dstack 0.22.5: offers, create, wait, terminate.

usage: reference.py URL API_KEY INSTANCE_TYPE REGION
"""

import sys
import time
from types import SimpleNamespace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from dstack._internal.core.backends.lambdalabs import api_client, compute as lambda_compute
from dstack._internal.core.backends.lambdalabs.models import LambdaAPIKeyCreds, LambdaConfig
from dstack._internal.core.models.backends.base import BackendType
from dstack._internal.core.models.instances import (
    Disk,
    Gpu,
    InstanceAvailability,
    InstanceOffer,
    InstanceType,
    Resources,
)

URL, KEY, NAME, REGION = sys.argv[1:]
api_client.API_URL = f"{URL}/api/v1"
started = []
lambda_compute._start_runner = lambda **told: started.append(told["hostname"])

PUBLIC_KEY = (
    Ed25519PrivateKey.generate()
    .public_key()
    .public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    .decode()
)
compute = lambda_compute.LambdaCompute(LambdaConfig(creds=LambdaAPIKeyCreds(api_key=KEY)))


def offer(region):
    resources = Resources(
        cpus=30,
        memory_mib=200 * 1024,
        gpus=[Gpu(name="A10", memory_mib=24 * 1024)],
        spot=False,
        disk=Disk(size_mib=1400 * 1024),
    )
    return InstanceOffer(
        backend=BackendType.LAMBDA,
        instance=InstanceType(name=NAME, resources=resources),
        region=region,
        price=1.0,
    )


def check_keys():
    assert compute.api_client.validate_api_key()
    assert not api_client.LambdaAPIClient("wrong").validate_api_key()


def check_offers():
    offers = [offer(REGION), offer("nowhere-1")]
    told = [one.availability for one in compute._get_offers_with_availability(offers)]
    assert told == [InstanceAvailability.AVAILABLE, InstanceAvailability.NOT_AVAILABLE], told


def check_machine(name):
    config = SimpleNamespace(
        project_name="main",
        instance_name=name,
        ssh_keys=[SimpleNamespace(public=PUBLIC_KEY)],
    )
    there = offer(REGION).with_availability(availability=InstanceAvailability.AVAILABLE)
    data = compute.create_instance(there, config, None)
    deadline = time.monotonic() + 20
    while data.hostname is None:
        assert time.monotonic() < deadline, f"{data.instance_id} is never reached"
        time.sleep(0.05)
        compute.update_provisioning_data(data, PUBLIC_KEY, "")
    compute.terminate_instance(data.instance_id, data.region)
    while compute.api_client.list_instances():
        assert time.monotonic() < deadline, f"{data.instance_id} never ends"
        time.sleep(0.05)
    return data.hostname


check_keys()
check_offers()
reached = [check_machine("train-0"), check_machine("train-1")]
assert started == reached, (started, reached)
print("all parts passed")
