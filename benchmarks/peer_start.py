"""One start of the peer's image, by the peer's executor; runs in a venv without farcall.

``python -m benchmarks.peer_start FORM IMAGE`` prints the probe's answer as JSON. FORM is ``plain``
for a function that needs nothing of Covalent, and ``dispatched`` for what a Covalent server makes
of it.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import sys
import tempfile
from typing import Any

import cloudpickle
from covalent._workflow.transport import TransportableObject
from covalent.executor.utils.wrappers import wrapper_fn

from benchmarks import container_probe
from benchmarks.peer_client import Alone


async def _start(form: str, image: str, folder: str) -> dict[str, Any]:
    executor = Alone(
        region=os.environ["AWS_REGION"],
        s3_bucket_name=os.environ["FARCALL_S3_BUCKET_NAME"],
        queue=os.environ["FARCALL_QUEUE"],
        batch_job_role_name=os.environ["FARCALL_BATCH_JOB_ROLE_NAME"],
        batch_execution_role_name=os.environ["FARCALL_BATCH_EXECUTION_ROLE_NAME"],
        batch_job_log_group_name=os.environ["FARCALL_BATCH_JOB_LOG_GROUP_NAME"],
        image=image,
        vcpu=1,
        poll_freq=1,
        cache_dir=folder,
    )
    executor._task_stdout, executor._task_stderr = sys.stderr, sys.stderr
    function = container_probe.probe
    if form == "dispatched":
        given = TransportableObject.make_transportable(function)
        function = functools.partial(wrapper_fn, given, [], [])
    where = {"dispatch_id": os.urandom(8).hex(), "node_id": 0, "results_dir": folder}
    found = await executor.run(function, [], {}, where)
    told: dict[str, Any] = found.get_deserialized() if form == "dispatched" else found
    return told


if __name__ == "__main__":
    cloudpickle.register_pickle_by_value(container_probe)  # the image lacks it
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asyncio.run(_start(sys.argv[1], sys.argv[2], folder))))
