"""Measurements on the played cloud, each of a number of fresh processes one after the other."""

from __future__ import annotations

import json
from dataclasses import dataclass

from benchmarks.fleet import sample_outcome
from benchmarks.stage import Stage

_ARRIVALS, _GAP_S = 80, 0.25


@dataclass(frozen=True)
class Run:
    """What some tasks cost their client, once.

    Attributes:
        cpu_s: CPU of all its threads, deletion included.
        wall_s: Seconds from the first call to the last result.
        stall_s: The longest time for which the event loop did not turn.
        before_bytes: Resident size before the first call.
        peak_bytes: Largest resident size since.
        requests: By operation, all of them.
        connections: Connections opened for them.
    """

    cpu_s: float
    wall_s: float
    stall_s: float
    before_bytes: int
    peak_bytes: int
    requests: dict[str, int]
    connections: int

    @property
    def grown_bytes(self) -> int:
        """How much the resident size grew at its peak."""
        return self.peak_bytes - self.before_bytes

    def count(self, service: str = "") -> int:
        """Return the number of requests to one service, or to all."""
        return sum(n for name, n in self.requests.items() if name.startswith(service))


def client(stage: Stage, work: str, tasks: int) -> Run:
    """Measure farcall's client doing a work of `benchmarks.client`."""
    return _run(stage, "-m", "benchmarks.client", work, str(tasks), "{}")


def floor(stage: Stage, above: Run, tasks: int, calls: int = 1) -> Run:
    """Measure bare obstore requests and pickles, as many as a run of farcall's took.

    Args:
        stage: Where.
        above: The run.
        tasks: Its number of tasks.
        calls: Calls in each of them.
    """
    wanted = {
        name.partition(" ")[2]: count
        for name, count in above.requests.items()
        if name.startswith("s3 ")
    }
    options = {"requests": wanted, "outcome": sample_outcome(calls), "calls": calls}
    return _run(stage, "-m", "benchmarks.client", "floor", str(tasks), json.dumps(options))


def peer(stage: Stage, python: str, tasks: int) -> Run:
    """Measure the peer's client, in its own venv."""
    return _run(stage, "-m", "benchmarks.peer_client", str(tasks), python=python)


def _run(stage: Stage, *arguments: str, **options: str) -> Run:
    stage.ask("reset")
    told = stage.run(*arguments, **options)
    told.pop("told", None)
    counts, connections = stage.ask("counts")["client"], stage.ask("connections")["client"]
    return Run(**told, requests=counts, connections=connections)


def latencies(stage: Stage) -> list[float]:
    """Return the seconds from each of some outcomes' being stored to the caller's having it.

    They are stored one by one after random gaps, while the others' jobs are running.
    """
    options = json.dumps({"gap_s": _GAP_S})
    told = stage.run("-m", "benchmarks.client", "arrivals", str(_ARRIVALS), options)["told"]
    stored = {
        name.rpartition("/")[2]: moment
        for name, moment in stage.ask("stored").items()
        if "/outcomes/" in name
    }
    return [told[index] - stored[index] for index in told]


@dataclass(frozen=True)
class Starts:
    """CPU seconds of some starts of the real container side.

    Attributes:
        supervisor: Of the supervisor, up to the call of the user's function.
        child: Of the child, likewise.
        floor: Of as many interpreters that only import cloudpickle and obstore.
    """

    supervisor: list[float]
    child: list[float]
    floor: list[float]

    @property
    def sums(self) -> list[float]:
        """Supervisor and child together."""
        return [sum(pair) for pair in zip(self.supervisor, self.child, strict=True)]


def starts(stage: Stage, count: int) -> Starts:
    """Measure some starts of the real container side."""
    told = stage.run("-m", "benchmarks.container", str(count))
    return Starts(told["supervisor_s"], told["child_s"], told["floor_s"])
