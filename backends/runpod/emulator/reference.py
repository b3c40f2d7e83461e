"""Drives an emulated Runpod with the backend of dstack 0.22.5: create, wait, end, of each kind of things.

usage: reference.py URL API_KEY SIZES, with one size of each kind as JSON: cpu, gpu, community, cluster
"""

import json
import sys
import time
from types import SimpleNamespace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from dstack._internal.core.backends.runpod import api_client
from dstack._internal.core.backends.runpod.compute import RunpodCompute
from dstack._internal.core.backends.runpod.models import RunpodAPIKeyCreds, RunpodConfig
from dstack._internal.core.errors import BackendError
from dstack._internal.core.models.backends.base import BackendType
from dstack._internal.core.models.instances import (
    Disk,
    Gpu,
    InstanceAvailability,
    InstanceOfferWithAvailability,
    InstanceType,
    Resources,
)
from dstack._internal.core.models.volumes import RunpodVolumeConfiguration

URL, KEY, SIZES = sys.argv[1:]
SIZES = json.loads(SIZES)
api_client.API_V2_URL = f"{URL}/v2"
api_client.API_GRAPHQL_URL = f"{URL}/graphql"

PUBLIC_KEY = (
    Ed25519PrivateKey.generate()
    .public_key()
    .public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    .decode()
)
RUN = SimpleNamespace(
    project_name="main",
    user="somebody",
    run_spec=SimpleNamespace(
        run_name="train", configuration=SimpleNamespace(volumes=[SimpleNamespace(path="/data")])
    ),
)
LOGIN = SimpleNamespace(username="puller", password="secret")
compute = RunpodCompute(RunpodConfig(creds=RunpodAPIKeyCreds(api_key=KEY)))


def job(registry_auth=None):
    spec = SimpleNamespace(
        job_name="train-0-0", image_name="dstackai/base:latest", registry_auth=registry_auth
    )
    return SimpleNamespace(job_spec=spec)


def offer(entry):
    resources = Resources(
        cpus=entry["cpus"],
        memory_mib=entry["memory"] * 1024,
        gpus=[Gpu(name="GPU", memory_mib=1024)] * entry["gpus"],
        spot=False,
        disk=Disk(size_mib=10 * 1024),
    )
    return InstanceOfferWithAvailability(
        backend=BackendType.RUNPOD,
        instance=InstanceType(name=entry["name"], resources=resources),
        region=entry["place"],
        price=1.0,
        availability=InstanceAvailability.AVAILABLE,
        backend_data={"pod_counts": [2, 3]} if entry.get("cluster") else {},
    )


def start(entry, volumes=(), registry_auth=None):
    return compute.run_job(
        RUN, job(registry_auth), offer(entry), PUBLIC_KEY, "", list(volumes), None, None, []
    )


def wait(data):
    deadline = time.monotonic() + 20
    while data.hostname is None:
        assert time.monotonic() < deadline, f"{data.instance_id} is never reached"
        time.sleep(0.05)
        compute.update_provisioning_data(data, PUBLIC_KEY, "")
    assert data.ssh_port, data
    return data


def end(data):
    for _ in range(2):  # what is gone is gone
        compute.terminate_instance(data.instance_id, data.region)


def is_refused(call):
    try:
        call()
    except BackendError as error:
        return str(error)
    raise AssertionError("it was not refused")


def check_keys():
    assert compute.api_client.validate_api_key()
    assert not api_client.RunpodApiClient("wrong").validate_api_key()


def check_pods():
    for kind in ["cpu", "gpu", "community"]:
        data = wait(start(SIZES[kind], registry_auth=LOGIN))
        end(data)
    nowhere = {**SIZES["gpu"], "place": "XX-NO-1"}
    assert "no longer any instances" in is_refused(lambda: start(nowhere))


def check_volumes():
    region = SIZES["gpu"]["place"]
    volume = SimpleNamespace(
        name="data",
        project_name="main",
        user="somebody",
        configuration=RunpodVolumeConfiguration(region=region, size="100GB"),
    )
    made = compute.create_volume(volume)
    volume.volume_id = made.volume_id
    volume.configuration.volume_id = made.volume_id
    assert compute.register_volume(volume) == made
    pod = wait(start(SIZES["gpu"], volumes=[volume]))
    assert "in use" in is_refused(lambda: compute.delete_volume(volume))
    end(pod)
    retry(lambda: compute.delete_volume(volume))
    compute.delete_volume(volume)


def check_clusters():
    jobs = [SimpleNamespace(job=job(), volumes=[]) for _ in range(2)]
    group = compute.run_jobs(RUN, jobs, offer(SIZES["cluster"]), PUBLIC_KEY, "", None, None, [])
    members = [wait(data) for data in group.job_provisioning_datas]
    assert len({data.internal_ip for data in members}) == 2, members
    assert "delete the cluster" in is_refused(lambda: end(members[0]))
    for _ in range(2):
        compute.terminate_compute_group(SimpleNamespace(provisioning_data=group))


def remove_logins():
    """Those of pods that were just deleted are in use for a moment."""

    def remove():
        compute._clean_stale_container_registry_credentials()
        left = compute.api_client.list_container_registry_credentials()
        if left:
            raise BackendError(f"still there: {left}")

    retry(remove)


def retry(call):
    deadline = time.monotonic() + 20
    while True:
        try:
            return call()
        except BackendError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


check_keys()
check_pods()
check_volumes()
check_clusters()
remove_logins()
print("all parts passed")
