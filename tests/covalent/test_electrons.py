"""Electrons as Batch jobs: success, failure, collections, a sublattice, a task group.

Starts the shared Covalent server on the local AWS emulator, because the server builds
sublattices and task groups, and calls the executor. Slow, because a Covalent server takes
seconds to start.
"""

import json
import os
import re
import subprocess
import sys

import covalent as ct
import pytest

from tests.support.commands import FARCALL
from tests.support.proxy import Proxy


@pytest.fixture
def counting(embedded):
    with Proxy(embedded.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def nodes(node):
    """Return a function that returns node ID to electron, optionally only those of a name."""

    def read(result, name=None):
        numbers = sorted(result.lattice.transport_graph._graph.nodes)
        found = {number: node(result, number) for number in numbers}
        return {n: one for n, one in found.items() if name in (None, one.name)}

    return read


# --- executors -----------------------------------------------------------------------------------


@pytest.mark.path
def test_electron_runs_on_batch(run, node, batch):
    @ct.electron(executor=batch())
    def add(left, right):
        print(f"{left} and {right}")
        print("careful", file=sys.stderr)
        return left + right, os.environ["AWS_BATCH_JOB_ID"]

    @ct.lattice
    def flow(one):
        return add(one, right=2)

    result = run(flow, 1)
    assert ct.status.COMPLETED == result.status
    value, job_id = result.result
    assert (3, 36) == (value, len(job_id))
    assert ("add", "COMPLETED", "", "1 and 2\n", "careful\n") == node(result, 0)[:5]


# --- cached results ------------------------------------------------------------------------------


def test_equal_electrons_are_not_run_again(run, node, batch):
    options = {"cache": True, "prefix": "farcall/cached"}

    @ct.electron(executor=batch(**options))
    def job_of(value):
        print("in a job")
        return value, os.environ["AWS_BATCH_JOB_ID"]

    @ct.lattice
    def flow(values, inner):
        return [job_of(value) for value in values], job_of(job_of(inner))

    # No two electrons of a dispatch are equal, because both would run.
    before, nested_before = run(flow, [1, 2], 5).result
    result = run(flow, [3, 1, 2], 5)
    (third, *others), nested = result.result
    assert others == before
    assert third[1] not in dict(others).values()
    assert nested == nested_before
    assert ("job_of", "COMPLETED", "", "", "") == node(result, 2)[:5]


# --- warm workers --------------------------------------------------------------------------------


def test_electrons_share_warm_workers(run, batch):
    on_workers = batch(workers=1, prefix="farcall/warm")

    @ct.electron(executor=on_workers)
    def next_of(value):
        return value + 1, os.environ["FARCALL_JOB_ID"]

    @ct.electron(executor=on_workers)
    def total(*pairs):
        return sum(value for value, _ in pairs), [job_id for _, job_id in pairs]

    @ct.lattice
    def flow(count):
        return total(*[next_of(value) for value in range(count)])

    value, job_ids = run(flow, 3).result
    assert value == 6
    assert all(job_id.startswith("call-") for job_id in job_ids)


# --- nodes that Covalent adds --------------------------------------------------------------------


def test_collection_arguments_start_no_job(run, batch, counting):
    @ct.electron(executor=batch(endpoint_url=counting.url))
    def give(value):
        return value

    @ct.electron(executor=batch(endpoint_url=counting.url))
    def look(*values, **named):
        return repr(values), repr(named)

    @ct.lattice
    def flow(one):
        a = give(one)
        return look([a, 2], (3, a), {4}, {"x": a, "y": [a, {"z": a}]}, [], {}, keys=[a])

    values, named = run(flow, 1).result
    assert "([1, 2], [3, 1], {4}, {'x': 1, 'y': [1, {'z': 1}]}, [], {})" == values
    assert "{'keys': [1]}" == named
    assert 2 == counting.counts["batch submitjob"]


def test_only_electrons_of_sublattice_are_jobs(run, batch, counting):
    on_batch = batch(endpoint_url=counting.url)

    @ct.electron(executor=on_batch)
    def double(value):
        return 2 * value, os.environ["AWS_BATCH_JQ_NAME"]

    @ct.electron
    @ct.lattice
    def inner(value):
        return double(value)

    @ct.electron(executor=on_batch)
    def unpack(pair):
        return [*pair]

    # The outer lattice's workflow executor would build the sublattice's graph.
    @ct.lattice(workflow_executor=on_batch)
    def flow(value):
        return unpack(inner(value))

    assert [6, "farcall-local"] == run(flow, 3).result
    # Only the two electrons are jobs; the server builds and post-processes both lattices itself.
    assert 2 == counting.counts["batch submitjob"]


# --- task groups ---------------------------------------------------------------------------------


def test_failed_packed_electron_keeps_other_results(run, batch, nodes, packing):
    @ct.electron(executor=batch())
    def make():
        print("made")
        return [{"a": 1}]

    @ct.lattice
    def flow():
        made = make()
        return made[0]["a"], made[5]["b"]

    result = run(flow)
    assert ct.status.FAILED == result.status
    made, first, a, failed, left_out = (
        one for one in nodes(result).values() if "make" in one.name or "get_item" in one.name
    )
    assert ["COMPLETED"] * 3 + ["FAILED"] * 2 == [
        one.status for one in (made, first, a, failed, left_out)
    ]
    assert ("made\n", [{"a": 1}], {"a": 1}, 1) == (
        made.stdout,
        made.output,
        first.output,
        a.output,
    )
    assert "IndexError: list index out of range" in failed.error
    assert "farcall_runtime" not in failed.error
    assert re.search("was not run: node [0-9]+, whose result it uses, failed", left_out.error)
    assert "Traceback" not in left_out.error
    assert "" == failed.stdout + failed.stderr + left_out.stdout + left_out.stderr


# --- values --------------------------------------------------------------------------------------


def test_server_never_unpickles_results_or_errors(run, batch, nodes, tmp_path):
    marks = tmp_path / "marks"

    class Marking:
        def __init__(self, value):
            self.value = value

        def __setstate__(self, state):
            with marks.open("a") as file:
                file.write(f"{os.getpid()}\n")
            self.__dict__.update(state)

    class MarkingError(Marking, Exception):
        pass

    @ct.electron(executor=batch())
    def give(value):
        print(os.getpid())
        return Marking(value.value + 1)

    @ct.electron(executor=batch())
    def take(values):
        print(os.getpid())
        raise MarkingError(values)

    @ct.lattice
    def flow(value):
        given = give(value)
        return take([given]), take({"a": given})

    result = run(flow, Marking(0))
    assert [1] == [one.output.value for one in nodes(result, "give").values()]
    failed = nodes(result, "take").values()
    assert [True, True] == ["MarkingError" in one.error for one in failed]
    jobs = {int(one.stdout) for one in nodes(result).values() if one.stdout}
    assert 3 == len(jobs)
    assert jobs | {os.getpid()} == {int(line) for line in marks.read_text().split()}


# --- failure -------------------------------------------------------------------------------------


@pytest.mark.path
def test_describe_shows_electron_and_traceback(run, node, batch):
    @ct.electron(executor=batch(workflow="told"))
    def make():
        return 3

    @ct.electron(executor=batch(workflow="told"))
    def work(number):
        raise ValueError(f"no good: {number}")

    @ct.lattice
    def flow():
        return work(make())

    result = run(flow)
    names = result.lattice.transport_graph.get_node_value
    numbers = sorted(result.lattice.transport_graph._graph.nodes)
    (number,) = (each for each in numbers if names(each, "name") == "work")
    error = node(result, number).error
    assert 'raise ValueError(f"no good: {number}")' in error
    job_id = re.search(r"AWS Batch job (\S+) ", error)[1]
    command = [FARCALL, "describe", "--json", job_id]
    told = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert told["electron"] == number
    why = told["explanation"]
    assert why["message"] == f"node {number} failed: the function raised ValueError: no good: 3"
    assert "in work" in why["traceback"]
    assert "ValueError: no good: 3" in why["traceback"]
