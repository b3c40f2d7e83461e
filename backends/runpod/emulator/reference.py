"""Drives an emulated Runpod with the backend of dstack 0.22.5: create, wait, end, of each kind of things.

usage: reference.py URL API_KEY
"""

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

URL, KEY = sys.argv[1:]
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


def one_of(catalog, place, gpus, cluster=False):
    for row in catalog:
        flags = row.flags or []
        if (
            ("-" in row.location) == (place == "center")
            and (place != "center" or not gpus or cluster or row.location == "EU-RO-1")
            and row.gpu_count == gpus
            and ("runpod-cluster" in flags) == cluster
        ):
            return {
                "name": row.instance_name,
                "place": row.location,
                "cpus": row.cpu,
                "memory": int(row.memory),
                "gpus": gpus,
                "cluster": cluster,
            }
    raise AssertionError(f"the emulated cloud has nothing: {place} {gpus} {cluster}")
