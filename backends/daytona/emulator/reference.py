"""Drives an emulated Daytona with the backend of dstack 0.22.5: offers, create, wait, end, of sandboxes and volumes.

usage: reference.py URL API_KEY
"""

import sys
import time
from types import SimpleNamespace

import gpuhunt.providers.daytona as catalog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from dstack._internal.core.backends.daytona import api_client
from dstack._internal.core.backends.daytona.compute import DaytonaCompute
from dstack._internal.core.backends.daytona.configurator import DaytonaConfigurator
from dstack._internal.core.backends.daytona.models import (
    DaytonaAPIKeyCreds,
    DaytonaBackendConfigWithCreds,
    DaytonaConfig,
)
from dstack._internal.core.errors import (
    BackendError,
    BackendInvalidCredentialsError,
    NotYetTerminated,
)
from dstack._internal.core.models.resources import ResourcesSpec
from dstack._internal.core.models.runs import Requirements
from dstack._internal.core.models.volumes import DaytonaVolumeConfiguration, VolumeMountPoint

URL, KEY = sys.argv[1:]
api_client.API_URL = f"{URL}/api"
catalog.DaytonaProvider.__init__.__defaults__ = (None, f"{URL}/api")
catalog.PRICING_URL = f"{URL}/gpu-pricing"


def toolbox_url(client, sandbox_id):
    """Here it is at the same address, and not at the vendor's."""
    data = client._make_request("GET", f"/sandbox/{sandbox_id}/toolbox-proxy-url")
    api_client_check(data["url"])
    return f"{URL}/toolbox/{sandbox_id}"


api_client_check = api_client._validate_toolbox_url
api_client._validate_toolbox_url = lambda url: None
api_client.DaytonaAPIClient.get_toolbox_url = toolbox_url

PUBLIC_KEY = (
    Ed25519PrivateKey.generate()
    .public_key()
    .public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    .decode()
)
RUN = SimpleNamespace(project_name="main", user="somebody", run_spec=SimpleNamespace(run_name="train"))
LOGIN = SimpleNamespace(username="puller", password="secret")
MOUNT = VolumeMountPoint(name="data", path="/data")
CPUS = Requirements(resources=ResourcesSpec(cpu="2", memory="4GB", disk="8GB", gpu=0))
GPUS = Requirements(resources=ResourcesSpec(gpu="RTX4090:1"))
compute = DaytonaCompute(DaytonaConfig(creds=DaytonaAPIKeyCreds(api_key=KEY)))


def offer(requirements, region):
    offers = compute.get_offers_by_requirements(requirements, False, False)
    offers = [one for one in offers if one.region == region and one.availability.is_available()]
    assert offers, f"nothing is offered in {region}"
    return offers[0]


def start(wanted, requirements, volumes=(), registry_auth=None):
    spec = SimpleNamespace(
        job_name="train-0-0",
        image_name="dstackai/base:latest",
        registry_auth=registry_auth,
        volumes=[MOUNT] if volumes else [],
    )
    job = SimpleNamespace(job_spec=spec)
    return compute.run_job(RUN, job, wanted, PUBLIC_KEY, "", list(volumes), None, requirements, [])


def wait(data):
    deadline = time.monotonic() + 20
    while data.hostname is None:
        assert time.monotonic() < deadline, f"{data.instance_id} is never reached"
        time.sleep(0.05)
        compute.update_provisioning_data(data, PUBLIC_KEY, "")
    assert data.ssh_proxy.hostname == "ssh.app.daytona.io", data
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
    def check(key, regions):
        config = DaytonaBackendConfigWithCreds(creds=DaytonaAPIKeyCreds(api_key=key), regions=regions)
        DaytonaConfigurator().validate_config(config, default_creds_enabled=False)

    check(KEY, ["us", "earth"])
    try:
        check("wrong", None)
    except BackendInvalidCredentialsError:
        return
    raise AssertionError("a wrong key is taken")


def check_sandboxes():
    end(wait(start(offer(CPUS, "us"), CPUS, registry_auth=LOGIN)))
    end(wait(start(offer(GPUS, "earth"), GPUS)))


def check_volumes():
    volume = SimpleNamespace(
        name="data",
        project_name="main",
        configuration=DaytonaVolumeConfiguration(name="data"),
    )
    volume.volume_id = compute.create_volume(volume).volume_id
    volume.configuration.volume_id = volume.volume_id
    assert compute.register_volume(volume).volume_id == volume.volume_id
    data = wait(start(offer(CPUS, "us"), CPUS, volumes=[volume]))
    try:
        compute.delete_volume(volume)
        raise AssertionError("a volume is deleted that is in use")
    except BackendError as error:
        assert "in use" in str(error), error
    end(data)
    compute.delete_volume(volume)


check_key()
check_sandboxes()
check_volumes()
time.sleep(0.5)  # the volume is being deleted
print("all parts passed")
