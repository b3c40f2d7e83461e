"""Drives an emulated JarvisLabs with the backend of dstack 0.22.5: offers, create, wait, terminate, with and without GPUs.

usage: reference.py URL API_KEY
"""

import sys
import time
from types import SimpleNamespace

import gpuhunt.providers.jarvislabs as provider
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from dstack._internal.core.backends.jarvislabs import api_client, compute as jarvislabs_compute
from dstack._internal.core.backends.jarvislabs.models import (
    JarvisLabsAPIKeyCreds,
    JarvisLabsConfig,
)
from dstack._internal.core.errors import NoCapacityError
from dstack._internal.core.models.resources import ResourcesSpec
from dstack._internal.core.models.runs import Requirements

URL, KEY = sys.argv[1:]
api_client.API_URL = URL
for region in provider.JARVISLABS_REGION_URLS:
    provider.JARVISLABS_REGION_URLS[region] = URL
# The default of a parameter.
provider.JarvisLabsProvider.__init__.__defaults__ = (URL,)
jarvislabs_compute._start_runner = lambda **told: True

PUBLIC_KEY = (
    Ed25519PrivateKey.generate()
    .public_key()
    .public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    .decode()
)
compute = jarvislabs_compute.JarvisLabsCompute(
    JarvisLabsConfig(creds=JarvisLabsAPIKeyCreds(api_key=KEY))
)
INSTANCE = SimpleNamespace(
    project_name="main", instance_name="train-0", get_public_keys=lambda: [PUBLIC_KEY]
)


def check_keys():
    assert compute.api_client.validate_api_key()
    assert not api_client.JarvisLabsAPIClient("wrong").validate_api_key()


def check_machine(offer):
    data = compute.create_instance(offer, INSTANCE, None)
    deadline = time.monotonic() + 20
    while data.hostname is None:
        assert time.monotonic() < deadline, f"{data.instance_id} is never reached"
        time.sleep(0.05)
        compute.update_provisioning_data(data, PUBLIC_KEY, "")
    assert (data.username, data.internal_ip is not None) == ("ubuntu", offer.region != "europe-01")
    compute.terminate_instance(data.instance_id, data.region, data.backend_data)
    while compute.api_client.get_instance(data.instance_id):
        assert time.monotonic() < deadline, f"{data.instance_id} never ends"
        time.sleep(0.05)


def check_sold_out(offer):
    nowhere = offer.model_copy(update={"region": "india-01"})
    try:
        compute.create_instance(nowhere, INSTANCE, None)
    except NoCapacityError:
        return
    raise AssertionError("it was made")


check_keys()
resources = ResourcesSpec(cpu="1..", memory="1GB..", disk="100GB..")
wanted = Requirements(resources=resources)
offers = list(compute.get_offers(wanted, True, True))
by_name = {(one.instance.name, one.region): one for one in offers}
cpu = by_name["cpu-4x16", "india-noida-01"]
gpu = by_name["RTXPRO6000-2x", "india-chennai-01"]
check_machine(cpu)
check_machine(gpu)
check_sold_out(cpu)
check_sold_out(gpu)
print("all parts passed")
