"""Lattices through real Covalent servers: CPU, memory and requests of what runs their electrons.

Linux only: what a process costs is read from ``/proc``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import peer
from benchmarks.batch import REGION
from benchmarks.processes import descendants, memory_bytes, restart_peak
from benchmarks.stage import BUCKET, Stage, stage
from tests.support.covalent_server import CovalentServer

if TYPE_CHECKING:
    from typing_extensions import Self

_PLUGINS = Path(__file__).with_name("covalent_plugins")
FLOOR, MANAGED_FLOOR = "floor, `run`", "floor, managed"
BARE_FLOOR = "floor, managed, no copies"
PEERS_FLOOR = "floor in the peer's server"
FLOORS = (FLOOR, MANAGED_FLOOR, BARE_FLOOR)
FARCALL = "farcall"
PEER = "peer"

_CLASSES = {
    FLOOR: "IdleExecutor",
    MANAGED_FLOOR: "IdleManagedExecutor",
    BARE_FLOOR: "IdleManagedExecutor",
    PEERS_FLOOR: "IdleExecutor",
    FARCALL: "AWSBatchExecutor",
    PEER: "AWSBatchExecutor",
}
COUNTS, MOST = (1, 10, 50), 150
_LONGEST_TURNS = 2
LARGE_BYTES = 500_000_000

_SETTLE_S = 1.0  # in which executors delete what they stored, and a server comes to rest
_SAMPLE_S = 0.02
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Lattice:
    """What one dispatch cost.

    Attributes:
        executor: What ran its electrons.
        wall_s: Seconds from the call of dispatch to the server's COMPLETED.
        dispatch_s: Of these, in the client's call of dispatch.
        cpu_s: CPU of the server's process.
        children_s: CPU of its children.
        peak_bytes: The process's largest resident size.
        anonymous_bytes: The same without mapped files, as seen 50 times a second.
        before_bytes: Its resident size before.
        client_bytes: The client's largest resident size.
        requests: By operation.
    """

    executor: str
    wall_s: float
    dispatch_s: float
    cpu_s: float
    children_s: float
    peak_bytes: int
    anonymous_bytes: int
    before_bytes: int
    client_bytes: int
    requests: dict[str, int]


@dataclass
class Door:
    """A running server and how it is dispatched to.

    Attributes:
        server: The server.
        stage: With the environment of its clients.
        python: Interpreter of its venv.
        folder: For files of a benchmark.
    """

    server: CovalentServer
    stage: Stage
    python: str
    folder: Path

    def run(self, executor: str, shape: str, count: int, *, check: bool = False) -> Lattice:
        """Dispatch one lattice and wait for its end."""
        options: dict[str, Any] = {}
        if executor == PEER:
            options = {
                "region": REGION,
                "s3_bucket_name": BUCKET,
                "queue": "benchmark",
                "poll_freq": 1,
                "cache_dir": str(self.folder / "cache"),
            }
        elif "Idle" in _CLASSES[executor] and shape == "result":
            options = {"answer": str(self.folder / "answer.tobj")}
        if executor == BARE_FLOOR:
            options["copies"] = False
        work = {
            "executor": _CLASSES[executor],
            "options": options,
            "shape": shape,
            "count": count,
        }
        self.stage.ask("reset")
        with _Watch(self.server.pid) as watch:
            told = self._client(work)
            time.sleep(_SETTLE_S)
        if told["status"] != "COMPLETED":
            raise RuntimeError(f"{executor}: {told['status']}\n{self.server.log[-4000:]}")
        lattice = Lattice(
            executor,
            self._completed(told["dispatch_id"]) - told["began"],
            told["dispatched"] - told["began"],
            *watch.cpu_s,
            watch.peak_bytes,
            watch.anonymous_bytes,
            watch.before_bytes,
            told["client_peak_bytes"],
            self.stage.ask("counts")["client"],
        )
        if check and executor in (FARCALL, PEER):
            value = self._client({"value_of": told["dispatch_id"]})["value"]
            if value != [2 * number for number in range(count)]:
                raise AssertionError("wrong values")
        return lattice

    def _client(self, work: dict[str, Any]) -> dict[str, Any]:
        arguments = ("-m", "benchmarks.covalent_client", json.dumps(work))
        return self.stage.run(*arguments, python=self.python)

    def _completed(self, dispatch_id: str) -> float:
        """Return when the server noted the end."""
        path = self.server.environment["COVALENT_DATABASE"]
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            query = "SELECT completed_at FROM lattices WHERE dispatch_id = ?"
            ((moment,),) = database.execute(query, [dispatch_id])
        return datetime.fromisoformat(moment).replace(tzinfo=timezone.utc).timestamp()


@contextlib.contextmanager
def door(stage: Stage, python: str = sys.executable) -> Iterator[Door]:
    """Start a server that has the do-nothing executors, too; end it."""
    with tempfile.TemporaryDirectory(prefix="farcall-benchmark-") as folder:
        home = Path(folder) / "server"
        shutil.copytree(
            _PLUGINS, home / "config" / "executor_plugins", ignore=shutil.ignore_patterns("__*")
        )
        given = {k: v for k, v in stage.environment.items() if not k.startswith("COVALENT_")}
        environment = {"PYTHONPATH": "", **given, "HOME": folder}
        with CovalentServer(home, environment, python=python) as server:
            client = replace(stage, environment={**environment, **server.environment})
            yield Door(server, client, python, Path(folder))


class _Watch:
    """Reads what a process and its children consume."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._sample)
        self.anonymous_bytes = 0

    def __enter__(self) -> Self:
        restart_peak(self._pid)
        self.before_bytes = memory_bytes(self._pid)["rss"]
        self._before = self._cpu_s()
        self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._sampler.join()
        self.cpu_s = [b - a for a, b in zip(self._before, self._cpu_s(), strict=True)]
        self.peak_bytes = memory_bytes(self._pid)["peak"]

    def _sample(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            anonymous = memory_bytes(self._pid)["anonymous"]
            self.anonymous_bytes = max(self.anonymous_bytes, anonymous)

    def _cpu_s(self) -> tuple[float, float]:
        """Return CPU of the process, and of all its children, living or gone."""
        own, gone = _times(self._pid)
        return own, gone + sum(sum(_times(each)) for each in descendants(self._pid))


def _times(pid: int) -> tuple[float, float]:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system, child_user, child_system = map(int, fields[11:15])
    return (user + system) / _TICKS, (child_user + child_system) / _TICKS


# --- the measurements -------------------------------------------------------------------------

Runs = dict[tuple[str, int], list[list[Lattice]]]
"""By shape and number: of each run one lattice by each executor."""


def measure(
    say: Callable[[str], object], repeats: int, *, peers: bool, long: bool, large: bool
) -> Runs:
    """Measure lattices of all sizes.

    Args:
        say: Told what comes next.
        repeats: Runs of the lattices up to the largest of `COUNTS`.
        peers: Whether to install and measure the peer, too.
        long: Whether to have the peer run the longest lattice, too.
        large: Whether to measure large values, too.
    """
    runs: Runs = {}
    with _home() as home, contextlib.ExitStack() as stack:
        place = stack.enter_context(stage(home))
        found = stack.enter_context(peer.installed(place)) if peers else None
        _trivial(runs, say, place, sys.executable, (*FLOORS, FARCALL), repeats, MOST)
        if found:
            _trivial(runs, say, *found, (PEERS_FLOOR, PEER), repeats, MOST if long else COUNTS[-1])
        for shape in ("argument", "result") if large else ():
            for executor in (*FLOORS, FARCALL, *((PEER,) if found else ())):
                say(f"{LARGE_BYTES // 1_000_000} MB as {shape}: {executor} ...")
                where = found if found and executor == PEER else (place, sys.executable)
                with door(*where) as one:
                    lattice = one.run(executor, shape, LARGE_BYTES)
                runs.setdefault((shape, LARGE_BYTES), []).append([lattice])
    return runs


def _trivial(
    runs: Runs,
    say: Callable[[str], object],
    place: Stage,
    python: str,
    executors: Sequence[str],
    repeats: int,
    most: int,
) -> None:
    """Measure trivial electrons on one server, by one executor after the other in turn."""
    with door(place, python) as one:
        for executor in executors:  # the first electron of a server opens clients
            runs.setdefault(("first", 1), []).append([one.run(executor, "trivial", 1, check=True)])
        for count in (*COUNTS, MOST):
            if count > most:
                continue
            turns = min(repeats, _LONGEST_TURNS) if count == MOST else repeats
            if PEER in executors and count >= COUNTS[-1]:
                turns = 1
            for number in range(turns):
                say(f"{count} electrons by {', '.join(executors)}, run {number + 1} ...")
                turn = number % len(executors)
                order = [*executors[turn:], *executors[:turn]]
                check = number == 0
                found = {each: one.run(each, "trivial", count, check=check) for each in order}
                runs.setdefault(("trivial", count), []).append([found[e] for e in executors])


@contextlib.contextmanager
def _home() -> Iterator[dict[str, str]]:
    """Give whatever imports Covalent a home that is not the user's."""
    with tempfile.TemporaryDirectory(prefix="farcall-benchmark-") as folder:
        yield {"HOME": folder, "COVALENT_CONFIG_DIR": f"{folder}/configuration"}
