"""Drives an emulated Vultr with the backend of dstack 0.22.5: offers, then create, wait, end of one machine of each kind.

usage: reference.py URL API_KEY
"""

import sys
import time

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from dstack._internal.core.backends.vultr import api_client
from dstack._internal.core.backends.vultr.compute import VultrCompute
from dstack._internal.core.backends.vultr.models import VultrAPIKeyCreds, VultrConfig
from dstack._internal.core.errors import BackendError
from dstack._internal.core.models.instances import InstanceConfiguration, SSHKey
from gpuhunt.providers import vultr as catalogue

URL, KEY = sys.argv[1:]
api_client.API_URL = catalogue.API_URL = f"{URL}/v2"
PUBLIC_KEY = (
    Ed25519PrivateKey.generate()
    .public_key()
    .public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    .decode()
)
compute = VultrCompute(VultrConfig(creds=VultrAPIKeyCreds(api_key=KEY), regions=[]))


def start(offer):
    config = InstanceConfiguration(
        project_name="main",
        instance_name="fleet-0",
        user="somebody",
        ssh_keys=[SSHKey(public=PUBLIC_KEY)],
    )
    return compute.create_instance(offer, config, None)


def wait(data):
    """Of bare metal, this emulator tells the address in the VPC elsewhere, as it is documented: the old code fails on that."""
    deadline = time.monotonic() + 20
    while data.hostname is None:
        assert time.monotonic() < deadline, f"{data.instance_id} is never reached"
        time.sleep(0.05)
        try:
            compute.update_provisioning_data(data, PUBLIC_KEY, "")
        except KeyError as error:
            assert str(error) == "'internal_ip'", error
            return


def is_refused(call):
    try:
        call()
    except BackendError as error:
        return str(error)
    raise AssertionError("it was not refused")


def end(data):
    compute.terminate_instance(data.instance_id, data.region, data.backend_data)
    again = lambda: compute.terminate_instance(data.instance_id, data.region, data.backend_data)
    assert "not found" in is_refused(again)


assert compute.api_client.validate_api_key()
assert not api_client.VultrApiClient("wrong").validate_api_key()
offers = {
    offer.instance.name: offer for offer in compute.get_all_offers_with_availability(False)
}
assert "vbm-4c-32gb" not in offers and "vcg-a100-96c-960g-640vram" in offers, list(offers)
for plan in ["vc2-1c-1gb", "vcg-a100-12c-120g-80vram", "vbm-112c-2048gb-8-h100-gpu"]:
    data = start(offers[plan])
    wait(data)
    end(data)
nowhere = offers["vc2-1c-1gb"].copy(update={"region": "ord"})
assert "not available" in is_refused(lambda: start(nowhere))
print("all parts passed")
