"""The measurements, each a number of fresh processes one after the other."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from typing import Any

from benchmarks import peer
from benchmarks.fleet import sample_outcome
from benchmarks.stage import BUCKET, Stage

PEER_COUNTS = (1, 10, 100)
_ARRIVALS, _GAP_S = 80, 0.25


@dataclass(frozen=True)
class Cost:
    """What some tasks cost their client; medians over the runs.

    Attributes:
        name: Whose client, doing what.
        tasks: Number of tasks.
        runs: CPU in milliseconds a task, each run.
        wall_s: Seconds from the first call to the last result.
        peak_bytes: Largest resident size.
        before_bytes: The same, before the first task.
        stall_s: The longest time for which the event loop did not turn.
        requests: By operation, all of them.
        connections: Connections opened for them.
    """

    name: str
    tasks: int
    runs: list[float]
    wall_s: float
    peak_bytes: float
    before_bytes: float
    stall_s: float
    requests: dict[str, int]
    connections: int

    @property
    def cpu_ms(self) -> float:
        """CPU in milliseconds a task."""
        return statistics.median(self.runs)

    def per_task(self, service: str = "") -> float:
        """Return the requests a task to one service, or to all."""
        return sum(n for name, n in self.requests.items() if name.startswith(service)) / self.tasks

    @classmethod
    def of(
        cls,
        name: str,
        tasks: int,
        told: list[dict[str, Any]],
        requests: list[dict[str, int]],
        connections: list[int],
    ) -> Cost:
        """Take the medians; of the requests the run with the most."""

        def middle(key: str) -> float:
            return statistics.median(run.get(key, 0.0) for run in told)

        return cls(
            name,
            tasks,
            [1000 * run["cpu_s"] / tasks for run in told],
            middle("wall_s"),
            middle("peak_bytes"),
            middle("before_bytes"),
            middle("stall_s"),
            max(requests, key=lambda counts: sum(counts.values())),
            max(connections),
        )


def client(stage: Stage, name: str, work: str, tasks: int, repeats: int) -> Cost:
    """Measure farcall's client."""
    return _cost(stage, name, tasks, repeats, ["-m", "benchmarks.client", work, str(tasks), "{}"])


def floor(stage: Stage, above: Cost, repeats: int) -> Cost:
    """Measure bare obstore requests and pickles, as many as a measurement took."""
    wanted = {
        name.partition(" ")[2]: count
        for name, count in above.requests.items()
        if name.startswith("s3 ")
    }
    filling = {"name": f"{BUCKET}/filled", "count": above.tasks, "data": sample_outcome()}
    arguments = ["-m", "benchmarks.client", "floor", str(above.tasks), json.dumps(wanted)]
    name = f"floor of {above.name}"
    return _cost(stage, name, above.tasks, repeats, arguments, filling=filling)


def peers(stage: Stage, repeats: int) -> list[Cost]:
    """Install and measure the peer."""
    with peer.installed(stage) as (home, python):
        return [
            _cost(
                home,
                f"peer, {tasks} at once",
                tasks,
                repeats if tasks < max(PEER_COUNTS) else 1,
                [str(peer.SCRIPT), str(tasks)],
                python=python,
            )
            for tasks in PEER_COUNTS
        ]


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


def _cost(
    stage: Stage,
    name: str,
    tasks: int,
    repeats: int,
    arguments: list[str],
    *,
    filling: dict[str, Any] | None = None,
    **options: str,
) -> Cost:
    told, requests, connections = [], [], []
    for _ in range(repeats):
        stage.ask("reset")
        if filling is not None:
            stage.ask("fill", filling)
        told.append(stage.run(*arguments, **options))
        requests.append(stage.ask("counts")["client"])
        connections.append(stage.ask("connections")["client"])
    return Cost.of(name, tasks, told, requests, connections)
