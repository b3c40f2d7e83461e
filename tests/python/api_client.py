"""The unmodified Python API of dstack 0.22.5 against a server: `api_client.py URL TOKEN`.

Prints a line per part; the last is `all parts passed`.
"""

import io
import os
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path

from dstack.api import Client, RemoteRepo, Task, VirtualRepo
from dstack.api.server import APIClient
from dstack._internal.core.errors import (
    ClientError,
    ResourceExistsError,
    ResourceNotExistsError,
    ServerClientError,
    URLNotFoundError,
)
from dstack._internal.server.schemas.projects import MemberSetting
from dstack._internal.core.models.repos import RemoteRepoCreds
from dstack._internal.core.models.runs import RunStatus
from dstack._internal.core.models.users import GlobalRole, ProjectRole

PATIENCE = 90


def part(function):
    PARTS.append(function)
    return function


PARTS = []


def raises(kind, call, text=""):
    try:
        call()
    except kind as error:
        assert text in str(error), str(error)
        return
    raise AssertionError(f"no {kind.__name__}")


def small(name, *commands, **more):
    return Task.model_validate({
        "name": name,
        "commands": list(commands),
        "resources": {"cpu": "1..", "memory": "0.1GB..", "disk": "1GB.."},
        **more,
    })


def until(what, check):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        value = check()
        if value:
            return value
        time.sleep(0.1)
    raise AssertionError(f"{what}: not within {PATIENCE} s")


def ended(run):
    def check():
        run.refresh()
        return run.status.is_finished()

    until(f"{run.name} ends", check)
    return run.status


@part
def users(client, _):
    api = client.client
    me = api.users.get_my_user()
    assert (me.username, me.global_role) == ("admin", GlobalRole.ADMIN), me
    alice = api.users.create("alice", GlobalRole.USER)
    assert alice.username == "alice"
    raises(ResourceExistsError, lambda: api.users.create("Alice", GlobalRole.USER))
    assert api.users.update("alice", GlobalRole.ADMIN).global_role == GlobalRole.ADMIN
    api.users.update("alice", GlobalRole.USER)
    token = api.users.refresh_token("alice").creds.token
    theirs = APIClient(base_url=api.base_url, token=token)
    assert theirs.users.get_my_user().username == "alice"
    raises(ClientError, lambda: theirs.users.create("bob", GlobalRole.USER), "is denied")
    assert sorted(user.username for user in api.users.list()) == ["admin", "alice"]


@part
def projects(client, _):
    api = client.client
    assert api.projects.create("team").project_name == "team"
    raises(ResourceExistsError, lambda: api.projects.create("Team"))
    project = api.projects.add_member("team", "alice", ProjectRole.USER)
    assert {member.user.username for member in project.members} == {"admin", "alice"}
    project = api.projects.remove_member("team", "alice")
    assert [member.user.username for member in project.members] == ["admin"]
    settings = [MemberSetting(username=name, project_role=ProjectRole.ADMIN) for name in ("admin", "alice")]
    assert len(api.projects.set_members("team", settings).members) == 2
    assert {project.project_name for project in api.projects.list()} == {"main", "team"}
    api.projects.delete(["team"])
    raises(URLNotFoundError, lambda: api.projects.get("team"))


@part
def backends(client, _):
    assert client.backends.list() == []
    assert isinstance(client.client.backends.list_backend_types(), list)


@part
def secrets(client, _):
    api = client.client.secrets
    assert api.create_or_update("main", "word", "xyzzy").value == "xyzzy"
    assert [(secret.name, secret.value) for secret in api.list("main")] == [("word", None)]
    assert api.get("main", "word").value == "xyzzy"
    raises(ResourceNotExistsError, lambda: api.get("main", "other"))
    api.delete("main", ["word"])
    assert api.list("main") == []


@part
def repos(client, _):
    url = "https://github.com/dstackai/dstack-examples.git"
    repo = RemoteRepo.from_url(url, repo_branch="main", repo_hash="0" * 40)
    assert not client.repos.is_initialized(repo)
    assert client.repos.get(repo.repo_id) is None
    client.repos.init(repo, creds=RemoteRepoCreds(clone_url=url, private_key=None, oauth_token="secret"))
    assert client.repos.is_initialized(repo, by_user=True)
    assert client.repos.get(repo.repo_id).repo_id == repo.repo_id
    assert client.repos.get(repo.repo_id, with_creds=True).repo_creds.oauth_token == "secret"
    client.repos.init(VirtualRepo())
    assert client.repos.is_initialized(VirtualRepo())
    assert {head.repo_id for head in client.client.repos.list("main")} == {repo.repo_id, "none"}
    client.client.repos.upload_code("main", repo.repo_id, "cafe", io.BytesIO(b"diff"))
    client.client.repos.delete("main", [repo.repo_id])
    assert not client.repos.is_initialized(repo)


@part
def archives(client, _):
    api = client.client.files
    stored = api.upload_archive("beef", io.BytesIO(b"archive"))
    assert api.get_archive_by_hash("beef").id == stored.id
    raises(ResourceNotExistsError, lambda: api.get_archive_by_hash("none"))


@part
def lists(client, _):
    api = client.client
    (fleet,) = api.fleets.list("main")
    assert api.fleets.get("main", fleet.name).id == fleet.id
    raises(ResourceNotExistsError, lambda: api.fleets.get("main", "other"))
    assert api.volumes.list("main") == [] and api.gateways.list("main") == []
    raises(ResourceNotExistsError, lambda: api.volumes.get("main", "other"))
    raises(ResourceNotExistsError, lambda: api.gateways.get("main", "other"))
    raises(ServerClientError, lambda: api.exports.list("main"))
    assert api.auth.list_providers() == []


@part
def a_plan_is_shown_and_applied(client, _):
    plan = client.runs.get_run_plan(small("planned", "echo planned"))
    assert plan.job_plans[0].offers, "this machine is an offer"
    gpus = client.client.gpus.list_gpus("main", plan.run_spec)
    assert isinstance(gpus, list)
    run = client.runs.apply_plan(plan, reserve_ports=False)
    assert ended(run) == RunStatus.DONE


@part
def output_is_read_attached_and_afterwards(client, _):
    # Attaching looks at the run every five seconds.
    run = client.runs.apply_configuration(small("attached", "echo one", "sleep 12", "echo two"))
    assert run.attach()
    assert run.ports, "ports are forwarded"
    live = b"".join(run.logs()).replace(b"\r\n", b"\n")
    assert live.endswith(b"one\ntwo\n"), live
    run.detach()
    assert ended(run) == RunStatus.DONE
    stored = b"".join(client.runs.get("attached").logs()).replace(b"\r\n", b"\n")
    assert stored.endswith(b"one\ntwo\n"), stored


@part
def files_and_environment_reach_the_job(client, folder):
    path = Path(folder) / "data.txt"
    path.write_text("from a file\n")
    configuration = small(
        "files", "cat data.txt", "echo $WORD", files=["data.txt"], env={"WORD": "xyzzy"}
    )
    run = client.runs.apply_configuration(
        configuration, configuration_path=str(Path(folder) / ".dstack.yml"), reserve_ports=False
    )
    assert ended(run) == RunStatus.DONE, b"".join(run.logs())
    output = b"".join(run.logs()).replace(b"\r\n", b"\n")
    assert output.endswith(b"from a file\nxyzzy\n"), output


@part
def stopping_ends_a_run(client, _):
    run = client.runs.apply_configuration(small("long", "echo up", "sleep 1000"), reserve_ports=False)

    def running():
        run.refresh()
        return run.status == RunStatus.RUNNING

    until("the run starts", running)
    assert "long" in [active.name for active in client.runs.list()]
    raises(ServerClientError, lambda: client.client.runs.delete("main", ["long"]), "active runs")
    run.stop()
    assert ended(run) == RunStatus.TERMINATED
    assert run.hostname and run.backend
    metrics = client.client.metrics.get_job_metrics("main", "long")
    assert isinstance(metrics.metrics, list)
    client.client.runs.delete("main", ["long"])
    assert client.runs.get("long") is None


@part
def lists_and_events_tell_of_the_runs(client, _):
    names = {run.name for run in client.runs.list(all=True)}
    assert {"planned", "attached", "files"} <= names, names
    assert client.runs.get("unknown") is None
    messages = {event.message for event in client.client.events.list()}
    assert any("Run submitted" in message for message in messages), messages


@part
def refusals_have_their_kinds(client, _):
    stranger = APIClient(base_url=client.client.base_url, token="wrong")
    raises(ClientError, stranger.users.get_my_user, "is denied")
    raises(ClientError, lambda: Client.from_config(
        project_name="main", server_url=client.client.base_url, user_token="wrong"
    ).runs.list())
    nowhere = Client.from_config(
        project_name="nowhere", server_url=client.client.base_url, user_token=sys.argv[2]
    )
    raises(URLNotFoundError, lambda: nowhere.client.projects.get("nowhere"))


def main():
    client = Client.from_config(project_name="main", server_url=sys.argv[1], user_token=sys.argv[2])
    assert client.project == "main"
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for check in PARTS:
            started = datetime.now(timezone.utc)
            check(client, folder)
            took = (datetime.now(timezone.utc) - started).total_seconds()
            print(f"{check.__name__}: passed ({took:.1f} s)", flush=True)
    print("all parts passed", flush=True)


main()
