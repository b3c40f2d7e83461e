"""Drives an emulated Seeweb with the backend of dstack 0.22.5: offers, create, wait, end.

usage: reference.py URL API_TOKEN
"""

import json
import sys
import time

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from dstack._internal.core.backends.seeweb import api_client
from dstack._internal.core.backends.seeweb.compute import SeewebCompute
from dstack._internal.core.backends.seeweb.models import SeewebAPITokenCreds, SeewebConfig
from dstack._internal.core.errors import NoCapacityError
from dstack._internal.core.models.instances import (
    InstanceAvailability,
    InstanceConfiguration,
    SSHKey,
)
from dstack._internal.core.models.resources import ResourcesSpec
from dstack._internal.core.models.runs import Requirements
from gpuhunt.providers import seeweb as catalog

URL, TOKEN = sys.argv[1:]
api_client.API_URL = catalog.API_URL = f"{URL}/ecs/v2"

PUBLIC_KEY = (
    Ed25519PrivateKey.generate()
    .public_key()
    .public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    .decode()
)
compute = SeewebCompute(SeewebConfig(creds=SeewebAPITokenCreds(api_token=TOKEN)))


def live(offer):
    config = InstanceConfiguration(
        project_name="main",
        instance_name="train-0",
        user="somebody",
        ssh_keys=[SSHKey(public=PUBLIC_KEY)],
    )
    data = compute.create_instance(offer, config, None)
    assert json.loads(data.backend_data)["action_id"] is not None
    deadline = time.monotonic() + 20
    while data.hostname is None:
        assert time.monotonic() < deadline, f"{data.instance_id} is never reached"
        time.sleep(0.05)
        compute.update_provisioning_data(data, PUBLIC_KEY, "")
    compute.terminate_instance(data.instance_id, data.region)
    time.sleep(0.2)
    compute.terminate_instance(data.instance_id, data.region)  # what is gone is gone


assert compute.api_client.validate_api_key()
assert not api_client.SeewebApiClient("wrong").validate_api_key()
resources = ResourcesSpec(gpu={"count": {"min": 1}}, disk={"size": "1GB.."})
offers = compute.get_offers_by_requirements(Requirements(resources=resources), True, False)
assert offers
for offer in offers:
    assert offer.availability == InstanceAvailability.AVAILABLE, offer
    live(offer)
offers[0].region = "nowhere"
try:
    live(offers[0])
    raise AssertionError("it was not refused")
except NoCapacityError as error:
    assert "not available" in str(error)
print("all parts passed")
