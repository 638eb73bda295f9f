"""Several client processes at once on one account's limit."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import farcall.local
from tests.support.patience import PATIENCE_S, until
from tests.support.proxy import Proxy

pytestmark = pytest.mark.slow

CLIENTS = 4
TASKS = 25
CALLS_PER_S = 12

CLIENT = """
import asyncio, json, sys, time
from farcall import BatchExecutor

async def one(executor, number):
    # The tags differ, so that each task is a SubmitJob of its own.
    task = executor.with_options(tags={"number": str(number)}).task(eval(sys.argv[1]))
    return await task(number)

async def main():
    options = {"vcpu": 1, "memory": 1, "retry_attempts": 1, "linger_s": 0}
    async with BatchExecutor(**options) as executor:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        tasks = [one(executor, number) for number in range(int(sys.argv[2]))]
        print(json.dumps(await asyncio.gather(*tasks)), flush=True)

asyncio.run(main())
"""


class Client:
    """A process that begins all its tasks at once when it is told to.

    Attributes:
        batch: What counts its requests to Batch.
    """

    def __init__(self, batch: Proxy, script: Path, function: str, tasks: int) -> None:
        self.batch = batch
        self.process = subprocess.Popen(
            [sys.executable, script, function, str(tasks)],
            env={**os.environ, "AWS_ENDPOINT_URL_BATCH": batch.url},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def begin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def accepted(self) -> int:
        return self.batch.answers["batch submitjob 200"]

    def refused(self) -> int:
        return self.batch.answers["batch submitjob 429"]

    def end(self) -> tuple[str, str]:
        """Return what it says until its end."""
        return self.process.communicate(timeout=PATIENCE_S)


@pytest.fixture
def client(aws: farcall.local.LocalAWS, tmp_path: Path) -> Iterator[Callable[[str, int], Client]]:
    """Start a client, given its function and its number of tasks."""
    script = tmp_path / "client.py"
    script.write_text(CLIENT)
    with contextlib.ExitStack() as stack:

        def start(function: str, tasks: int) -> Client:
            batch = stack.enter_context(Proxy(aws.endpoint_url))
            made = Client(batch, script, function, tasks)
            stack.callback(made.process.wait)
            stack.callback(made.process.kill)
            return made

        yield start
    aws.configure(submit_rate=50)


def test_clients_that_collide_all_finish_and_none_starves(
    aws: farcall.local.LocalAWS, client: Callable[[str, int], Client]
) -> None:
    clients = [client("lambda x: x * x", TASKS) for _ in range(CLIENTS)]
    aws.configure(submit_rate=CALLS_PER_S)
    for each in clients:
        each.begin()

    until(lambda: all(each.refused() for each in clients))
    before = [each.accepted() for each in clients]
    until(lambda: any(each.accepted() == TASKS for each in clients))
    after = [each.accepted() for each in clients]

    said = [each.end() for each in clients]
    squares = [number**2 for number in range(TASKS)]
    assert [json.loads(values) for values, _ in said] == [squares] * CLIENTS
    assert [each.accepted() for each in clients] == [TASKS] * CLIENTS
    assert all(then > now for then, now in zip(after, before, strict=True))
    assert sum(each.refused() for each in clients) >= TASKS
