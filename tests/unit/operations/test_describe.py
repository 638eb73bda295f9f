"""Complete descriptions of jobs as JSON, on the fake cloud."""

import base64
import json
import os
import sys
import time
from pathlib import Path

import cloudpickle
import pytest

from farcall.engine.calls import submit
from farcall.engine.delivered import Wanted
from farcall.model.jobs import JobStatus
from farcall.model.workflows import NodeOf, Workflow
from farcall.operations import describe, json_view
from farcall.operations.catalog import Catalog
from farcall.payload import pickling
from farcall.testing import HostLost
from farcall_runtime.electron import Code, Node, run_group
from tests.support.patience import PATIENCE_S


async def test_finished_job_is_described_completely(executor, session, found, cloud):
    cloud.next_job(HostLost())
    job = await executor.with_options(retry_attempts=2, workflow="nightly").submit(pow, 2, 3)
    entry = await found(job.id)
    shown = json.loads(json.dumps(await describe.of(session, entry)))
    assert (shown["job"]["id"], shown["job"]["state"]) == (job.id, "SUCCEEDED")
    assert (shown["job"]["function"], shown["job"]["workflow"]) == ("pow", "nightly")
    assert shown["explanation"]["kind"] == "returned"
    assert shown["usage"] == shown["explanation"]["usage"]
    assert shown["usage"]["wall_s"] >= 0
    assert [each["attempt"] for each in shown["attempts"]] == [1, 2]
    assert [each["exit_code"] for each in shown["attempts"]] == [None, 0]
    assert shown["log"] == {"group": entry.detail.log_group, "stream": entry.detail.log_stream}
    assert shown["log"]["stream"]
    assert shown["bundle"] == entry.detail.environment["FARCALL_BUNDLE"]
    assert (shown["position"], shown["nodes"], shown["links"]) == (None, [], {})


async def test_waiting_job_has_position_without_attempts(executor, session, found):
    count = os.cpu_count() or 1
    jobs = [await executor.submit(time.sleep, 600) for _ in range(count + 2)]
    last = await found(jobs[-1].id, JobStatus.RUNNABLE)
    shown = await describe.of(session, last)
    assert shown["position"] == 2
    assert shown["explanation"]["kind"] == "waiting"
    assert (shown["attempts"], shown["usage"]) == ([], None)
    await session.backend.terminate([job.id for job in jobs], "enough")


# --- maps -------------------------------------------------------------------------------------


def raise_second(number, folder):
    """Return from call 0, raise from call 1, and keep running otherwise."""
    if number == 1:
        raise KeyError("no such thing")
    if number:
        Path(folder, "runs").touch()
        time.sleep(PATIENCE_S)
    return number


@pytest.fixture
async def failed_map(executor, found, tmp_path):
    with pytest.raises(KeyError) as raised:
        await executor.task(raise_second).map(range(5), [str(tmp_path)] * 5)
    failure = raised.value.map_failure
    (job_id,) = failure.job_ids
    return failure, await found(job_id)


async def test_map_with_error_has_failed(failed_map, session):
    failure, entry = failed_map
    shown = await describe.of(session, entry)
    assert shown["job"]["state"] == "FAILED"
    assert shown["job"]["detail"] == failure.message
    assert failure.message.startswith("1 of 5 raised KeyError; ")
    assert shown["job"]["cancelled_with_map"] == failure.cancelled > 0
    why = shown["explanation"]
    assert (why["kind"], why["error"]) == ("failed", "JobError")
    assert why["message"] == f"a call of its map raised an exception: {failure.message}"
    # The failed task comes before those that were cancelled because of it.
    assert why["children"][0]["error"] == "KeyError"
    ids = [f"{entry.detail.job_id}:{index}" for index in range(5)]
    known = await Catalog(session.backend).describe(ids)
    states = [json_view.state(known[job_id].detail) for job_id in ids]
    assert states[1] == "FAILED"
    # One of them may have returned before it was terminated.
    assert 0 < states.count("CANCELLED") <= failure.cancelled


# --- electrons --------------------------------------------------------------------------------


def make_nothing():
    return None


def divide_by_nothing():
    return 1 / 0


@pytest.fixture
def group(executor, found):
    """Return a function that runs functions as the nodes of a task group, numbered from 4."""

    async def run(*functions):
        # Covalent's server does the same
        cloudpickle.register_pickle_by_value(sys.modules[__name__])
        texts = [base64.b64encode(cloudpickle.dumps(each)) for each in functions]
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
        codes = [Code(f.__name__, text, (), ()) for f, text in zip(functions, texts, strict=True)]
        nodes = [Node(number, (), {}) for number in range(4, 4 + len(functions))]
        dispatch = "0f1e2d3c-0000-0000-0000-000000000000"

        class Electrons:
            name = "electrons"

            async def pack(self, session):
                function = pickling.pack_function(run_group)
                return function, next(pickling.pack_calls([[((codes, nodes, {}), {})]], ""))

        submitted = await submit(
            Electrons(),
            executor.settings,
            Wanted(),
            workflow=Workflow("lattice", dispatch),
            node=NodeOf(dispatch, nodes[-1].number),
        )
        return await found(submitted.id)

    return run


async def test_failed_electron_has_node_and_traceback(group, session):
    shown = json.loads(json.dumps(await describe.of(session, await group(divide_by_nothing))))
    why = shown["explanation"]
    assert (shown["electron"], why["error"], why["kind"]) == (4, "ZeroDivisionError", "failed")
    expected = "node 4 failed: the function raised ZeroDivisionError: division by zero"
    assert why["message"] == expected
    assert why["traceback"].startswith("Traceback (most recent call last):\n")
    assert "in divide_by_nothing" in why["traceback"]


async def test_failed_node_of_group_is_named(group, session):
    entry = await group(make_nothing, divide_by_nothing, make_nothing)
    shown = await describe.of(session, entry)
    assert shown["electron"] == 6
    assert shown["explanation"]["message"] == (
        "node 5 failed: the function raised ZeroDivisionError: division by zero "
        "(1 of the 3 nodes of its task group have no result)"
    )
    assert "in divide_by_nothing" in shown["explanation"]["traceback"]
