"""Smallest run of the benchmarks, whose fleet must follow each change of the wire formats."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.harness import Stage, played

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the benchmarks read CPU and memory from Linux's /proc"
)

TASKS = 12


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with played() as started:
        yield started


@pytest.mark.parametrize("work", ["map", "submit"])
@pytest.mark.slow
def test_fleet_runs_a_clients_tasks(stage: Stage, work: str) -> None:
    """The client checks the values."""
    run = stage.measure(work, TASKS, jobs={})
    assert run.requests["s3 GetObject"] == TASKS
    assert run.requests["batch SubmitJob"] == 1
    assert run.requests["s3 PutObject"] == 1
    assert run.cpu_s > 0


@pytest.mark.slow
def test_real_container_side_runs_as_process(stage: Stage) -> None:
    (both,) = stage.measure("starts", 1, jobs={"process": True}).result
    assert len(both) == 2


def test_published_part_leaves_others_unchanged(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    text = "## How it was measured\n\nSlowly.\n"
    top = "# What farcall costs\n\n| what | more |\n\nAll.\n\n"
    page.write_text(f"{top}# Mine\n\n{text}\n# Other\n")
    row = report.Row("CPU", 1, 2, "s", peer=3)
    for _ in range(2):
        report.publish(page, report.Part("Mine", [row], ["a"], [["b"]]), ["Mine", "Other"], "run")
    written = page.read_text()
    assert written.count("| CPU | at most 1 s | 2 s | **no** | 3 s | [below](#mine) |") == 1
    assert written.endswith(f"| b |\n\n{text}\n# Other\n")
    assert "\nAll.\n" in written
