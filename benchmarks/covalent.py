"""Cost of lattices for a Covalent server: farcall, the peer and floors."""

from __future__ import annotations

import contextlib
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.cloud import REGION
from benchmarks.harness import BUCKET, PEER, PREFIX, Run, Settings, Stage, played
from benchmarks.meter import cpu_s, memory_bytes, restart_peak
from benchmarks.report import Part, Row
from tests.support.covalent_server import CovalentServer

TITLE = "What farcall costs a Covalent server"
FLOOR, FARCALL = "floor", "farcall"

_CLASSES = {FLOOR: "IdleExecutor", FARCALL: "AWSBatchExecutor", PEER: "AWSBatchExecutor"}
_PLUGINS = Path(__file__).with_name("covalent_plugins")
_MAX_ELECTRONS = 50
_SETTLE_S = 1.0  # time in which executors delete their objects

_HEADINGS = (
    *("electrons", "run by", "wall s", "server CPU s", "above the floor: wall s"),
    *("above the floor: CPU s", "server's peak MB", "requests by operation"),
)

_VALUES = {"wall_s": ("time", 1.0), "cpu_s": ("server's CPU", 0.5)}  # targets in seconds

Turn = dict[str, Run]
"""One lattice with each executor; CPU and memory are the server's."""


def measure(settings: Settings) -> Part:
    """Measure lattices on one server with farcall, and on another with the peer."""
    count = min(_MAX_ELECTRONS, settings.tasks)
    with played() as stage:
        turns = _turns(settings, stage, sys.executable, FARCALL, count)
        once = replace(settings, repeats=1)
        peers = _turns(once, stage, settings.peer, PEER, count) if settings.peer else []
    rows = []
    for value, (what, target) in _VALUES.items():
        found, peer = _above(turns, FARCALL, value), _above(peers, PEER, value)
        name = f"one lattice of {count} trivial electrons: {what} above the floor"
        rows.append(Row(name, target, statistics.median(found), "s", *peer))
    lines = [_line(each, name, count) for each in (turns, peers) if each for name in each[0]]
    return Part(TITLE, rows, _HEADINGS, lines)


def _turns(settings: Settings, stage: Stage, python: str, executor: str, count: int) -> list[Turn]:
    """Start a server, and run lattices with the floor and an executor in turn."""
    turns = []
    with _server(stage, python) as (server, clients):
        for name in (FLOOR, executor):  # the first electron opens clients
            _run(server, clients, python, name, 1)
        for number in range(settings.repeats):
            settings.say(f"{count} electrons by {executor}, repeat {number + 1} ...")
            names = (executor, FLOOR) if number % 2 else (FLOOR, executor)
            turns.append({each: _run(server, clients, python, each, count) for each in names})
    return turns


def _run(server: CovalentServer, stage: Stage, python: str, executor: str, count: int) -> Run:
    """Dispatch a lattice and wait until it has finished."""
    options: dict[str, Any] = {}
    if executor == PEER:
        options = {"region": REGION, "s3_bucket_name": BUCKET, "batch_queue": "benchmark"}
        options |= {"poll_freq": 1, "cache_dir": str(server.home / "peer")}
    arguments = (_CLASSES[executor], json.dumps(options), str(count))
    stage.ask("reset")
    restart_peak(server.pid)
    before, before_s = memory_bytes(server.pid)["rss"], cpu_s(server.pid)
    client = "benchmarks.covalent_client"
    dispatch = stage.run(client, *arguments, python=python)
    time.sleep(_SETTLE_S)
    used_s, peak = cpu_s(server.pid) - before_s, memory_bytes(server.pid)["peak"]
    found = stage.run(client, dispatch["dispatch_id"], python=python)
    if found["value"] != [None if executor == FLOOR else 2 * number for number in range(count)]:
        raise RuntimeError(f"{executor}: {found}\n{server.log[-4000:]}")
    return Run(used_s, found["ended"] - dispatch["began"], 0, before, peak, stage.ask("counts"))


@contextlib.contextmanager
def _server(stage: Stage, python: str) -> Iterator[tuple[CovalentServer, Stage]]:
    """Start a server with the floor's executor; yield it and a stage for its clients."""
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
        home = Path(folder, "server")
        shutil.copytree(_PLUGINS, home / "config" / "executor_plugins")
        environment = {"PYTHONPATH": "", **stage.variables(python), "HOME": folder}
        with CovalentServer(home, environment, python=python) as server:
            yield server, replace(stage, environment={**environment, **server.environment})


def _above(turns: list[Turn], name: str, value: str) -> list[float]:
    """Return the difference between an executor and the floor for each repetition."""
    return [getattr(turn[name], value) - getattr(turn[FLOOR], value) for turn in turns]


def _line(turns: list[Turn], name: str, count: int) -> Sequence[str]:
    runs = [turn[name] for turn in turns]
    above = (_above(turns, name, value) if name != FLOOR else [] for value in _VALUES)
    return (
        str(count),
        name,
        *(report.runs([getattr(run, value) for run in runs], ".2f") for value in _VALUES),
        *(report.runs(values, ".2f") if values else "" for values in above),
        f"{max(run.peak_bytes for run in runs) / 1e6:.0f}",
        report.requests(max(runs, key=Run.count).requests),
    )
