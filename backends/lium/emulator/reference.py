"""Drives an emulated Lium with the backend of dstack 0.22.5: offers, create, wait, end, of pods and volumes.

usage: reference.py URL API_KEY
"""

import sys
import time
from types import SimpleNamespace

import gpuhunt.providers.lium as catalog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from dstack._internal.core.backends.lium import api_client
from dstack._internal.core.backends.lium import compute as lium
from dstack._internal.core.backends.lium.models import LiumAPIKeyCreds, LiumConfig
from dstack._internal.core.errors import NoCapacityError, NotYetTerminated
from dstack._internal.core.models.resources import ResourcesSpec
from dstack._internal.core.models.runs import Requirements
from dstack._internal.core.models.volumes import LiumVolumeConfiguration, VolumeMountPoint

URL, KEY = sys.argv[1:]
api_client.API_URL = f"{URL}/api"
catalog.NODES_URL = f"{URL}/api/public/v1/nodes"
# Its pods have no SSH server here.
lium._bootstrap_runner = lambda ssh, key, command: None

PUBLIC_KEY = (
    Ed25519PrivateKey.generate()
    .public_key()
    .public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    .decode()
)
RUN = SimpleNamespace(project_name="main", user="somebody", run_spec=SimpleNamespace(run_name="train"))
LOGIN = SimpleNamespace(username="puller", password="secret")
MOUNT = VolumeMountPoint(name="data", path="/data")
REQUIREMENTS = Requirements(resources=ResourcesSpec(gpu="H100:2"))
compute = lium.LiumCompute(LiumConfig(creds=LiumAPIKeyCreds(api_key=KEY)))


def start(offer, volumes=(), registry_auth=None):
    spec = SimpleNamespace(
        job_name="train-0-0",
        image_name="dstackai/base:latest",
        registry_auth=registry_auth,
        volumes=[MOUNT] if volumes else [],
    )
    job = SimpleNamespace(job_spec=spec)
    return compute.run_job(RUN, job, offer, PUBLIC_KEY, "", list(volumes), None, REQUIREMENTS, [])


def wait(data):
    deadline = time.monotonic() + 20
    while data.hostname is None:
        assert time.monotonic() < deadline, f"{data.instance_id} is never reached"
        time.sleep(0.05)
        try:
            compute.update_provisioning_data(data, PUBLIC_KEY, "")
        except lium.ProvisioningError as error:
            # It takes a pod that runs and is not told yet how it is reached for a broken one.
            assert "SSH connection details" in str(error), error
    assert data.ssh_port, data
    return data


def end(data):
    deadline = time.monotonic() + 20
    while True:
        try:
            return compute.terminate_instance(data.instance_id, data.region, data.backend_data)
        except NotYetTerminated:
            assert time.monotonic() < deadline, f"{data.instance_id} is never gone"
            time.sleep(0.05)


def check_key():
    assert compute.api_client.get_user()
    try:
        api_client.LiumAPIClient("wrong").get_user()
    except api_client.LiumAPIError as error:
        assert error.status_code == 401, error
        return
    raise AssertionError("a wrong key is taken")


def check_pods(offer):
    end(wait(start(offer, registry_auth=LOGIN)))
    nowhere = offer.copy(deep=True)
    nowhere.instance.name = "gone"
    try:
        start(nowhere)
    except NoCapacityError as error:
        assert "node_not_found" in str(error), error
        return
    raise AssertionError("a node that is not there is rented")


def check_volumes(offer):
    volume = SimpleNamespace(
        name="data",
        project_name="main",
        configuration=LiumVolumeConfiguration(name="data"),
    )
    volume.volume_id = compute.create_volume(volume).volume_id
    volume.configuration.volume_id = volume.volume_id
    assert compute.register_volume(volume).volume_id == volume.volume_id
    end(wait(start(offer, volumes=[volume])))
    for _ in range(2):  # what is gone is gone
        compute.delete_volume(volume)


offers = compute.get_offers_by_requirements(REQUIREMENTS, False, False)
assert offers, "there are no offers"
check_key()
check_pods(offers[0])
check_volumes(offers[0])
print("all parts passed")
