"""The same task validated and turned into jobs by dstack 0.22.5: microseconds for each.

Run with a Python in which dstack 0.22.5 with its server is installed:
    PYTHON crates/dstack-plan/benches/beside_reference.py
"""

import asyncio
import re
import time
from pathlib import Path

import yaml
from dstack._internal.core.models.runs import RunSpec
from dstack._internal.server.models import UserModel
from dstack._internal.server.services.jobs import get_jobs_from_run_spec
from dstack._internal.server.services.runs.spec import validate_run_spec_and_set_defaults

source = (Path(__file__).parent / "common.rs").read_text()
TASK = re.search(r'const TASK: &str = "\\\n(.*?)";', source, re.S).group(1)
USER = UserModel(name="user", ssh_public_key="ssh-ed25519 AAAA user")


async def plan():
    configuration = yaml.load(TASK, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    spec = RunSpec.model_validate({"run_name": "train", "configuration": configuration})
    spec = RunSpec.model_validate(spec.model_dump())
    validate_run_spec_and_set_defaults(USER, spec)
    # One node: for several, the reference also generates an RSA key pair.
    spec.configuration.nodes = 1
    return await get_jobs_from_run_spec(run_spec=spec, secrets={}, replica_num=0)


async def main():
    await plan()
    rounds = 200
    start = time.perf_counter()
    for _ in range(rounds):
        await plan()
    print(f"parse, validate and plan a task: {(time.perf_counter() - start) / rounds * 1e6:.0f} us")


asyncio.run(main())
