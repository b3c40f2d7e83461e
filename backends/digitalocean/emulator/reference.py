"""Drives an emulated DigitalOcean with the backend of dstack 0.22.5: offers, create, wait, end.

usage: reference.py URL API_KEY PROJECT
"""

import sys
import time

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from dstack._internal.core.backends.digitalocean_base.api_client import DigitalOceanAPIClient
from dstack._internal.core.backends.digitalocean_base.compute import BaseDigitalOceanCompute
from dstack._internal.core.backends.digitalocean_base.models import (
    BaseDigitalOceanAPIKeyCreds,
    BaseDigitalOceanConfig,
)
from dstack._internal.core.errors import BackendInvalidCredentialsError, NoCapacityError
from dstack._internal.core.models.backends.base import BackendType
from dstack._internal.core.models.instances import InstanceConfiguration, SSHKey

URL, KEY, PROJECT = sys.argv[1:]

PUBLIC_KEY = (
    Ed25519PrivateKey.generate()
    .public_key()
    .public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    .decode()
)


def backend(type_, project=None):
    config = BaseDigitalOceanConfig(
        type=type_.value, project_name=project, creds=BaseDigitalOceanAPIKeyCreds(api_key=KEY)
    )
    return BaseDigitalOceanCompute(config, URL, type_)


def is_refused(call, error):
    try:
        call()
    except error as refusal:
        return str(refusal)
    raise AssertionError("it was not refused")


def live(compute, offer):
    config = InstanceConfiguration(
        project_name="main",
        instance_name="train-0",
        user="somebody",
        ssh_keys=[SSHKey(public=PUBLIC_KEY)],
    )
    data = compute.create_instance(offer, config, None)
    deadline = time.monotonic() + 20
    while data.hostname is None:
        assert time.monotonic() < deadline, f"{data.instance_id} is never reached"
        time.sleep(0.05)
        compute.update_provisioning_data(data, PUBLIC_KEY, "")
    for _ in range(2):  # what is gone is gone
        compute.terminate_instance(data.instance_id, data.region)
        time.sleep(0.2)


client = DigitalOceanAPIClient(KEY, URL)
assert client.validate_api_key()
assert client.validate_project_name(PROJECT)
wrong = DigitalOceanAPIClient("wrong", URL)
is_refused(wrong.validate_api_key, BackendInvalidCredentialsError)
is_refused(lambda: client.validate_project_name("none"), BackendInvalidCredentialsError)

for type_, project in [(BackendType.DIGITALOCEAN, PROJECT), (BackendType.AMDDEVCLOUD, None)]:
    compute = backend(type_, project)
    offers = compute.get_all_offers_with_availability(False)
    assert {offer.backend for offer in offers} == {type_}, offers
    for offer in offers:
        live(compute, offer)
    offers[0].region = "nowhere"
    assert "not available" in is_refused(lambda: live(compute, offers[0]), NoCapacityError)
print("all parts passed")
