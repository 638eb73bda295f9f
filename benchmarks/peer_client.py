"""Clients of PyPI's covalent-awsbatch-plugin, in an environment without farcall.

``python -m benchmarks.peer_client WORK COUNT OPTIONS`` calls ``AWSBatchExecutor.run`` directly and
prints one line of JSON. WORK is ``submit`` for concurrent trivial tasks; ``plain`` for one
container start with a function that does not use Covalent; or ``dispatched`` for one container
start with the function in the form that a Covalent server sends.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import cloudpickle
import covalent  # noqa: F401  # loads the configuration with the plugin's section
from covalent._workflow.transport import TransportableObject
from covalent.executor.utils.wrappers import wrapper_fn
from covalent_awsbatch_plugin.awsbatch import AWSBatchExecutor

from benchmarks import meter


def double(x: int) -> int:
    """Return the double; the trivial task."""
    return 2 * x


class Alone(AWSBatchExecutor):
    """The peer's executor without a Covalent server; calls to it do nothing."""

    async def get_cancel_requested(self) -> bool:
        """Return False: no cancellation was requested."""
        return False

    async def set_job_handle(self, handle: Any) -> None:
        """Discard the job handle."""


async def _run(
    folder: str, number: int, function: Callable[..., Any], *args: Any, **more: Any
) -> Any:
    executor = Alone(
        region=os.environ["AWS_REGION"],
        s3_bucket_name=os.environ["FARCALL_S3_BUCKET_NAME"],
        batch_queue=os.environ["FARCALL_QUEUE"],
        poll_freq=1,
        cache_dir=folder,
        **more,
    )
    executor._task_stdout, executor._task_stderr = sys.stderr, sys.stderr
    dispatch = f"{os.urandom(4).hex()}{number}"
    where = {"dispatch_id": dispatch, "node_id": 0, "results_dir": folder}
    return await executor.run(function, list(args), {}, where)


async def _submit(folder: str, count: int) -> dict[str, Any]:
    measured = meter.Meter()
    values = await asyncio.gather(*(_run(folder, n, double, n) for n in range(count)))
    if values != [2 * number for number in range(count)]:
        raise AssertionError("wrong values")
    return measured.report()


async def _start(folder: str, form: str, image: str) -> dict[str, Any]:
    names = ("batch_job_role_name", "batch_execution_role_name", "batch_job_log_group_name")
    options = {name: os.environ[f"FARCALL_{name.upper()}"] for name in names}
    function: Callable[..., Any] = meter.probe
    if form == "dispatched":
        given = TransportableObject.make_transportable(function)
        function = functools.partial(wrapper_fn, given, [], [])
    measured = meter.Meter()
    found = await _run(folder, 0, function, container_image_uri=image, vcpu=1, **options)
    values = found.get_deserialized() if form == "dispatched" else found
    return {**measured.report(), "result": [values]}


if __name__ == "__main__":
    cloudpickle.register_pickle_by_value(meter)  # the image does not contain this package
    work, number, given = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    with tempfile.TemporaryDirectory() as folder:
        coroutine = _submit(folder, number) if work == "submit" else _start(folder, work, **given)
        print(json.dumps(asyncio.run(coroutine)))
