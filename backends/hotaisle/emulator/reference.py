"""Drives an emulated Hot Aisle with the backend of dstack 0.22.5: offers, create, wait, terminate, of a virtual machine and a server.

usage: reference.py URL API_KEY TEAM
"""

import sys
import time
from types import SimpleNamespace

import gpuhunt.providers.hotaisle as provider
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from dstack._internal.core.backends.hotaisle import api_client, compute as hotaisle_compute
from dstack._internal.core.backends.hotaisle.models import HotAisleAPIKeyCreds, HotAisleConfig
from dstack._internal.core.errors import BackendError, ServerClientError

URL, KEY, TEAM = sys.argv[1:]
api_client.API_URL = provider.API_URL = f"{URL}/api"
hotaisle_compute._start_runner = lambda **told: True

PUBLIC_KEY = (
    Ed25519PrivateKey.generate()
    .public_key()
    .public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    .decode()
)
config = HotAisleConfig(
    team_handle=TEAM, bare_metal=True, creds=HotAisleAPIKeyCreds(api_key=KEY)
)
compute = hotaisle_compute.HotAisleCompute(config)


def check_keys():
    assert compute.api_client.validate_api_key()
    for key, team in [("wrong", TEAM), (KEY, "nobody")]:
        try:
            api_client.HotAisleAPIClient(key, team).validate_api_key()
        except ServerClientError:
            continue
        raise AssertionError(f"{key} {team} are taken")


def check_machine(offer):
    instance = SimpleNamespace(
        project_name="main", instance_name="train-0", ssh_keys=[SimpleNamespace(public=PUBLIC_KEY)]
    )
    data = compute.create_instance(offer, instance, None)
    deadline = time.monotonic() + 20
    while data.hostname is None:
        assert time.monotonic() < deadline, f"{data.instance_id} is never reached"
        time.sleep(0.05)
        compute.update_provisioning_data(data, PUBLIC_KEY, "")
    for _ in range(2):  # what is gone is gone
        while True:
            assert time.monotonic() < deadline, f"{data.instance_id} never ends"
            try:
                compute.terminate_instance(data.instance_id, data.region, data.backend_data)
                break
            except BackendError as error:
                assert "minimum reservation" in str(error), error
                time.sleep(0.05)


check_keys()
offers = {
    one.instance.name: one for one in compute.get_all_offers_with_availability(False)
}
assert set(offers) == {"vm-mi300x-1", "vm-mi300x-8", "bm-mi300x-8"}, offers
check_machine(offers["vm-mi300x-1"])
check_machine(offers["bm-mi300x-8"])
print("all parts passed")
