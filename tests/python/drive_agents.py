"""Drives our agents with the client code of the server of dstack 0.22.5, through one job, and prints what it saw.

usage: drive_agents.py SHIM_PORT RECORDED_RUN (a recorded answer of runs/apply) IMAGE
"""

import io
import json
import sys
import tarfile
import time
import uuid

from dstack._internal.core.models.runs import ClusterInfo, NetworkMode, Run
from dstack._internal.server.services.runner.client import RunnerClient, ShimClient, ShimResponseStatusError

DEADLINE = 60


def until(what, probe):
    """The protocol is one of polling: asks until there is an answer."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        if (found := probe()) is not None:
            return found
        time.sleep(0.05)
    raise TimeoutError(what)


def code():
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        text = b"from the archive\n"
        info = tarfile.TarInfo("hello.txt")
        info.size = len(text)
        archive.addfile(info, io.BytesIO(text))
    return file.getvalue()


def start_task(shim, task_id, image):
    shim.submit_task(
        task_id=task_id,
        name="driven-0-0",
        registry_username="",
        registry_password="",
        image_name=image,
        container_user="root",
        privileged=False,
        gpu=None,
        cpu=None,
        memory=None,
        shm_size=None,
        network_mode=NetworkMode.HOST,
        volumes=[],
        volume_mounts=[],
        instance_mounts=[],
        gpu_devices=[],
        host_ssh_user="",
        host_ssh_keys=[],
        container_ssh_keys=["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAOqcPEeF6E35+FiIUxnvbcU0DPYZxm4ZVGgTiXQITsu driven"],
        instance_id="i-1",
    )

    def running():
        task = shim.get_task(task_id)
        if task.status.value == "terminated":
            raise RuntimeError(f"{task.termination_reason}: {task.termination_message}")
        return task if task.status.value == "running" else None

    return until("the task to run", running)


def runner_of(task):
    ports = {mapping.container: mapping.host for mapping in task.ports or []}
    client = RunnerClient(port=ports.get(10999, 10999))
    until("the runner", client.healthcheck)
    return client


def run_job(runner, run, commands):
    job = run.jobs[0]
    job.job_spec.commands = ["/bin/sh", "-c", commands]
    job.job_spec.env = {"PLAIN": "value"}
    job.job_spec.working_dir = None
    cluster = ClusterInfo(job_ips=["127.0.0.1"], master_job_ip="127.0.0.1", gpus_per_job=0)
    runner.submit_job(run, job, cluster, {"key": "secret value"}, None, instance_env={"FROM_INSTANCE": "yes"})
    runner.upload_code(code())
    info = runner.run_job()
    seen = {"states": [], "messages": [], "logs": b"", "timestamps": [], "info": bool(info and info.working_dir and info.username)}
    at = 0

    def ended():
        nonlocal at
        answer = runner.pull(at)
        at = answer.last_updated
        seen["states"] += [[event.state.value, event.exit_status] for event in answer.job_states]
        seen["messages"] += [event.termination_message for event in answer.job_states if event.termination_message]
        seen["logs"] += b"".join(event.message for event in answer.job_logs)
        seen["timestamps"] += [event.timestamp for event in answer.job_logs]
        final = [state for state, _ in seen["states"] if state in ("done", "failed", "terminated")]
        return True if final and not answer.has_more else None

    until("the job to end", ended)
    # The server keeps milliseconds and asks for what is newer than the last one: equal ones would be lost.
    seen["timestamps"] = all(a < b for a, b in zip(seen["timestamps"], seen["timestamps"][1:]))
    seen["logs"] = seen["logs"].decode()
    return seen


def main():
    port, recorded, image = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    with open(recorded) as file:
        run = Run.model_validate(json.load(file)["response"]["json"])
    shim = ShimClient(port=port)
    until("the shim", shim.healthcheck)
    shown = {
        "version": shim.get_version_string(),
        "api_v2": shim.is_api_v2_supported(),
        "health": shim.get_instance_health() is not None,
        "info": shim.get_instance_info() is not None,
        "components": sorted(component.name for component in shim.get_components()),
        "tasks_before": [task.id for task in shim.list_tasks().tasks],
    }
    task_id = uuid.uuid4()
    task = start_task(shim, task_id, image)
    runner = runner_of(task)
    shown["metrics"] = runner.get_metrics() is not None
    shown["job"] = run_job(
        runner, run, "cat $DSTACK_REPO_DIR/hello.txt; echo $PLAIN $FROM_INSTANCE; for n in 1 2 3; do echo line $n; done; exit 3"
    )
    shown["safe_to_restart"] = shim.is_safe_to_restart()
    shim.terminate_task(task_id, reason="done_by_runner", message="", timeout=2)
    ended = until("the end of the task", lambda: (t := shim.get_task(task_id)).status.value == "terminated" and t or None)
    shown["termination"] = ended.termination_reason
    shim.remove_task(task_id)
    try:
        shim.get_task(task_id)
        shown["removed"] = False
    except ShimResponseStatusError as error:
        shown["removed"] = error.status_code == 404
    shown["shutdown"] = shim.shutdown(force=False)
    print(json.dumps(shown))


main()
