"""Drives an emulated Crusoe with the backend of dstack 0.22.5: offers, create, wait, end, and a placement group.

usage: reference.py URL ACCESS_KEY SECRET_KEY PROJECT
"""

import sys
import time
from types import SimpleNamespace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from dstack._internal.core.backends.crusoe import compute as crusoe, resources
from dstack._internal.core.backends.crusoe.configurator import CrusoeConfigurator
from dstack._internal.core.backends.crusoe.models import (
    CrusoeAccessKeyCreds,
    CrusoeBackendConfigWithCreds,
    CrusoeConfig,
)
from dstack._internal.core.errors import BackendError, BackendInvalidCredentialsError, NotYetTerminated
from dstack._internal.core.models.instances import InstanceConfiguration, SSHKey
from dstack._internal.core.models.placement import PlacementStrategy
from gpuhunt.providers import crusoe as catalog

URL, ACCESS_KEY, SECRET_KEY, PROJECT = sys.argv[1:]
resources.API_URL = URL
catalog.API_URL = URL

creds = CrusoeAccessKeyCreds(access_key=ACCESS_KEY, secret_key=SECRET_KEY)
compute = crusoe.CrusoeCompute(CrusoeConfig(project_id=PROJECT, creds=creds))
PUBLIC_KEY = (
    Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
)


def check_credentials():
    def validate(**changed):
        config = {"project_id": PROJECT, "creds": creds, **changed}
        CrusoeConfigurator().validate_config(CrusoeBackendConfigWithCreds(**config), False)

    validate(regions=["us-east1-a"])
    other = CrusoeAccessKeyCreds(access_key=ACCESS_KEY, secret_key="b3RoZXI")
    for wrong in [{"creds": other}, {"project_id": "other"}, {"regions": ["nowhere"]}]:
        try:
            validate(**wrong)
        except BackendInvalidCredentialsError:
            continue
        raise AssertionError(f"{wrong} was taken")


def find_offer(name):
    offers = compute.get_all_offers_with_availability(False)
    return next(offer for offer in offers if offer.instance.name == name and offer.region == "us-east1-a")


def check_machine(name, group=None):
    offer = find_offer(name)
    config = InstanceConfiguration(
        project_name="main", instance_name="fleet-0", user="somebody", ssh_keys=[SSHKey(public=PUBLIC_KEY)]
    )
    data = compute.create_instance(offer, config, group)
    compute.update_provisioning_data(data, PUBLIC_KEY, "")
    assert data.hostname and data.internal_ip, data
    deadline = time.monotonic() + 20
    while True:
        try:
            compute.terminate_instance(data.instance_id, data.region, data.backend_data)
            break
        except NotYetTerminated:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def check_group():
    name = "h100-80gb-sxm-ib.8x"
    configuration = SimpleNamespace(region="us-east1-a", placement_strategy=PlacementStrategy.CLUSTER)
    group = SimpleNamespace(name="dstack-group", configuration=configuration)
    group.provisioning_data = compute.create_placement_group(group, find_offer(name))
    assert compute.is_suitable_placement_group(group, find_offer(name))
    check_machine(name, group)
    compute.delete_placement_group(group)


# Its pauses are for a cloud that takes minutes.
sleep = time.sleep
time.sleep = lambda seconds: sleep(min(seconds, 0.05))
check_credentials()
check_machine("c1a.8x")
check_group()
print("all parts passed")
