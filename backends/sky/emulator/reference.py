"""Drives an emulated dstack server with the API client of dstack 0.22.5: plans, makes, looks at, ends and deletes runs.

usage: reference.py URL TOKEN
"""

import sys
import time

from dstack._internal.core.errors import ClientError, ResourceNotExistsError, ServerClientError
from dstack._internal.core.models.configurations import TaskConfiguration
from dstack._internal.core.models.profiles import Profile
from dstack._internal.core.models.runs import ApplyRunPlanInput, RunSpec, RunStatus
from dstack.api.server import APIClient

URL, TOKEN = sys.argv[1:]
PROJECT = "research"
client = APIClient(URL, TOKEN)


def spec(name, **more):
    configuration = TaskConfiguration(name=name, image="scratch", commands=["true"], **more)
    return RunSpec(
        run_name=name, configuration=configuration, profile=Profile(name="default"), ssh_key_pub="ssh-ed25519 AAAA"
    )


def refused(error, call, text=""):
    try:
        call()
    except error as e:
        assert text in str(e), e
    else:
        raise AssertionError(f"{error} was expected")


def until(name, status):
    for _ in range(200):
        run = client.runs.get(PROJECT, name)
        if run.status == status:
            return run
        assert not run.status.is_finished() or status.is_finished(), run
        time.sleep(0.05)
    raise AssertionError(f"{name} is not {status}")


def part(name):
    print(f"part: {name}")


part("user and project")
assert client.users.get_my_user().username == "admin"
refused(ClientError, lambda: APIClient(URL, "wrong").users.get_my_user())
names = [backend.name for backend in client.projects.get(PROJECT).backends]
assert "aws" in names and "remote" not in names, names
refused(ClientError, lambda: client.projects.get("nope"))
fleets = client.fleets.list(PROJECT, include_imported=True)
assert [fleet.status.value for fleet in fleets] == ["active"] * len(fleets) and fleets

part("plan")
wanted = spec("plan", resources={"gpu": "A10G"}, fleets=[fleet.name for fleet in fleets], backends=["aws"])
plan = client.runs.get_plan(PROJECT, wanted, max_offers=2, for_offers_only=True)
offers = plan.job_plans[0].offers
assert offers and {offer.backend.value for offer in offers} == {"aws"}, offers
without = spec("plan", fleets=["nope"])
plan = client.runs.get_plan(PROJECT, without, for_offers_only=True)
assert plan.job_plans[0].offers == []

part("life")
pinned = {
    "backends": ["aws"],
    "regions": ["us-east-1"],
    "instance_types": ["g5.2xlarge"],
    "spot_policy": "on-demand",
    "max_price": 1.2,
}
train = spec("train", **pinned)
made = client.runs.apply_plan(PROJECT, ApplyRunPlanInput(run_spec=train))
assert made.status == RunStatus.SUBMITTED
again = ApplyRunPlanInput(run_spec=train)
refused(ServerClientError, lambda: client.runs.apply_plan(PROJECT, again), "Resource has been changed")
refused(ServerClientError, lambda: client.runs.delete(PROJECT, ["train"]), "Cannot delete active runs: ['train']")
run = until("train", RunStatus.RUNNING)
place = run.jobs[0].job_submissions[-1].job_provisioning_data
assert (place.backend.value, place.region, place.instance_type.name) == ("aws", "us-east-1", "g5.2xlarge")
assert place.hostname and place.dockerized and run.id == made.id
client.runs.stop(PROJECT, ["train", "unknown"], abort=True)
until("train", RunStatus.TERMINATED)
assert [run.id for run in client.runs.list(PROJECT, None)] == [made.id]
assert client.runs.list(PROJECT, None, only_active=True) == []
client.runs.delete(PROJECT, ["train", "unknown"])
refused(ResourceNotExistsError, lambda: client.runs.get(PROJECT, "train"))
assert client.runs.get(PROJECT, run_id=made.id).deleted

part("no capacity")
client.runs.apply_plan(PROJECT, ApplyRunPlanInput(run_spec=spec("nocap", instance_types=["none"])))
failed = until("nocap", RunStatus.FAILED)
job = failed.jobs[0].job_submissions[-1]
assert job.termination_reason == "failed_to_start_due_to_no_capacity", job
again = client.runs.apply_plan(PROJECT, ApplyRunPlanInput(run_spec=spec("nocap", **pinned)))
assert again.id != failed.id
client.runs.stop(PROJECT, ["nocap"], abort=True)
until("nocap", RunStatus.TERMINATED)
client.runs.delete(PROJECT, ["nocap"])

print("all parts passed")
