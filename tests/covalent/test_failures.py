"""A failed electron: its error in Covalent, and in ``farcall describe``.

Starts the shared Covalent server on the local AWS emulator, because the server stores the error.
The table of failures is in tests/unit/covalent/test_node_results.py. Slow, because a Covalent
server takes seconds to start.
"""

from __future__ import annotations

import json
import re
import subprocess

import covalent as ct
import pytest

from tests.support.commands import FARCALL


@pytest.fixture
def batch(embedded, monkeypatch):
    """Make an executor for small jobs: ``batch(**options)``."""
    for name, value in embedded.environment.items():
        monkeypatch.setenv(name, value)
    return make_executor


def make_executor(**options):
    small = {"vcpu": 1, "memory": 1, "retry_attempts": 1, "linger_s": 0.02, "poll_freq": 1}
    return ct.executor.AWSBatchExecutor(**{**small, **options})


def test_describe_shows_the_traceback_and_the_node_of_an_electron(run, node, batch):
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
    assert why["sentence"] == f"node {number} failed: the function raised ValueError: no good: 3"
    assert "in work" in why["traceback"]
    assert "ValueError: no good: 3" in why["traceback"]
