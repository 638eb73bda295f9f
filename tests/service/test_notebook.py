"""Cells of a notebook.

Starts a Jupyter kernel and the local AWS emulator. The test is slow, because it starts that
kernel.
"""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel

from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.slow

DEFINE = """
import time
import farcall
executor = farcall.BatchExecutor(vcpu=1, memory=1, retry_attempts=1)

def check(x):
    if x % 2:
        raise ValueError(f"{x} is odd")

@executor.task
def halve(x):
    check(x)
    return x // 2

@executor.task
def sleep(x):
    time.sleep(600)  # until the test ends it
"""

POOL = """
with farcall.BatchPoolExecutor(vcpu=1, memory=1, retry_attempts=1) as pool:
    print(list(pool.map(halve, [2, 4])))
    pool.submit(halve, 3).result()
"""


class Notebook:
    """A Jupyter kernel and its client."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager = manager
        self.client = client

    def run(self, cell: str) -> list[dict[str, Any]]:
        """Run a cell; return its outputs: texts, displays and errors."""
        given: list[dict[str, Any]] = []

        def take(message: dict[str, Any]) -> None:
            if message["msg_type"] in ("stream", "display_data", "execute_result", "error"):
                given.append(message["content"])
            if message["msg_type"] == "update_display_data":
                given[-1]["data"] = message["content"]["data"]

        self.client.execute_interactive(cell, output_hook=take, timeout=PATIENCE_S)
        return given

    def error(self, cell: str) -> str:
        """Run a cell that fails; return the displayed traceback."""
        shown = self.run(cell)[-1]["traceback"]
        return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(shown))


@pytest.fixture(scope="module")
def notebook(embedded):
    environment = {**os.environ, **embedded.environment}
    manager, client = start_new_kernel(startup_timeout=PATIENCE_S, env=environment)
    try:
        made = Notebook(manager, client)
        assert made.run(DEFINE) == []
        yield made
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_cells_show_progress_and_errors(notebook):
    (shown,) = notebook.run("halve(2)")
    assert shown["data"]["text/plain"].startswith("<call of halve, not awaited: write await")

    bar, value = notebook.run("await halve.map(range(0, 8, 2), progress=True)")
    assert value["data"]["text/plain"] == "[0, 1, 2, 3]"
    assert bar["data"]["text/plain"].startswith("halve: 4 of 4 done, 0 failed, 0 running")
    assert 'value="4" max="4"' in bar["data"]["text/html"]

    for cell in ("await halve(3)", "async for _ in halve.map([3]): pass", POOL):
        error = notebook.error(cell)
        assert "ValueError: 3 is odd\nRaised in AWS Batch job" in error
        assert "in check\n" in error
        assert "/farcall/" not in error

    assert "Write `await halve(...)`" in notebook.error("halve.run(2)")
