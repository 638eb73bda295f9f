"""Functions on several nodes: results, failures and cancellation.

Starts the local AWS emulator, because the nodes of a job communicate and stop each other.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

import farcall_runtime
from farcall import (
    IntegrityError,
    Job,
)
from farcall.engine.session import session_for
from farcall.operations import explain
from farcall_runtime.contract import ExitCode
from tests.service.attacker import Attacker
from tests.support.notes import notes
from tests.support.patience import PATIENCE_S, until_async
from tests.support.tasks import wait_for

pytestmark = pytest.mark.usefixtures("module_travels")


@pytest.fixture
async def gang(make_executor):
    """An executor of tasks on three nodes."""
    async with make_executor(nodes=3) as opened:
        yield opened


# --- values -------------------------------------------------------------------------------------


def who(x: int) -> tuple[int, int, int]:
    node = farcall_runtime.node()
    print(f"node {node.index} says {x}")
    return node.index, node.count, x


@pytest.mark.core
async def test_result_has_value_of_each_node(gang, aws):
    job = await gang.submit(who, 7)
    assert await job.result() == [(0, 3, 7), (1, 3, 7), (2, 3, 7)]
    assert await job.stdout() == "node 0 says 7\n"
    assert await job.stdout(node=2) == "node 2 says 7\n"
    with pytest.raises(ValueError, match="node is 3; use a node from 0 to 2"):
        await job.stdout(node=3)
    detail = await job.detail()
    assert (detail.nodes, detail.environment["FARCALL_BUNDLE"].startswith("s3://")) == (3, True)


def meet(folder: str) -> list[int]:
    """The main node receives a message from each other node at the main address."""
    node = farcall_runtime.node()
    said, renamed = Path(folder, "port.new"), Path(folder, "port")
    if not node.is_main:
        wait_for(str(renamed))
        with socket.create_connection((node.main_address, int(renamed.read_text()))) as peer:
            peer.sendall(bytes([node.index]))
        return []
    found = []
    with socket.create_server((node.main_address, 0)) as server:
        said.write_text(str(server.getsockname()[1]))
        said.rename(renamed)
        for _ in range(node.count - 1):
            peer, _ = server.accept()
            with peer:
                found.append(peer.recv(1)[0])
    return sorted(found)


async def test_nodes_reach_main_address(gang, tmp_path):
    assert await gang.task(meet)(str(tmp_path)) == [[1, 2], [], []]


# --- failures -----------------------------------------------------------------------------------


def fail_on(nodes: tuple[int, ...], folder: str) -> str:
    """Fail on some nodes; on the others sleep, and record why the sleep was interrupted."""
    node = farcall_runtime.node()
    Path(folder, f"pid-{node.index}").write_text(str(os.getppid()))
    if node.index in nodes:
        raise LookupError(f"on node {node.index}")
    try:
        time.sleep(PATIENCE_S)
    except KeyboardInterrupt as error:
        Path(folder, f"told-{node.index}").write_text(str(error))
        raise
    return "slept"


async def _has_ended(job: Job[Any]) -> bool:
    return (await job.status()).is_final


async def test_node_failure_stops_main_node(gang, tmp_path):
    job = await gang.submit(fail_on, (2,), str(tmp_path))
    with pytest.raises(LookupError, match="on node 2") as caught:
        await job.result()
    assert f"{job.id}#2" in str(notes(caught.value))
    assert (tmp_path / "told-0").read_text().startswith("node 2 of this job has failed; its ")
    await until_async(lambda: _has_ended(job))
    detail = await job.detail()
    assert detail.exit_code == ExitCode.RAISED
    session = await session_for(gang.settings)
    why = await explain.explain(session, detail)
    assert why.message == "node 2 failed: the function raised LookupError: on node 2"
    assert "in fail_on" in why.traceback
    of_node = await explain.explain(session, await session.describe(f"{job.id}#2"))
    assert of_node.message == "the function raised LookupError: on node 2"


# --- untrusted parties --------------------------------------------------------------------------


def wait_on_main(path: str) -> int:
    index = farcall_runtime.node().index
    if index == 0:
        wait_for(path)
    return index


async def test_copied_node_outcome_is_rejected(gang, aws, tmp_path):
    job = await gang.submit(wait_on_main, str(tmp_path / "go"))
    attacker = Attacker(aws, tmp_path / "attacked")
    prefix = f"/outcomes/{job.name}/nodes/1/"
    await until_async(lambda: len(attacker.keys(prefix)) == 2)
    first, second = sorted(attacker.keys(prefix))
    attacker.put(second, attacker.get(first))
    (tmp_path / "go").touch()
    error = await job.exception()
    assert isinstance(error, IntegrityError)
    assert f"{job.id}#2" in str(error)
    assert "was not unpickled" in str(error)
