"""Smallest run of the benchmarks' in-process cloud.

Starts that cloud, because its containers run as threads and must follow each change of the bundle
or outcome format.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from benchmarks import measure
from benchmarks.stage import Stage, stage

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what it costs")

TASKS = 12


@pytest.fixture(scope="module")
def place() -> Iterator[Stage]:
    with stage() as started:
        yield started


@pytest.mark.parametrize("work", ["singles", "sweep"])
def test_the_played_containers_run_a_clients_tasks(place: Stage, work: str) -> None:
    """The client checks the values."""
    run = measure.client(place, work, TASKS)
    assert run.requests["s3 GetObject"] == TASKS
    assert run.requests["batch SubmitJob"] == 1
    assert run.requests["s3 PutObject"] == 1
    assert run.cpu_s > 0


def test_the_real_container_side_is_started(place: Stage) -> None:
    assert len(measure.starts(place, 1).sums) == 1
