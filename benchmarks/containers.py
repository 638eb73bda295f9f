"""Starts of real containers, farcall's and the peer's, one after the other and in turns.

Each is timed by the user's function itself (`benchmarks.container_probe`) and watched from outside
(`benchmarks.watch`). Linux only, with a docker engine on this machine.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import farcall_local
from benchmarks import container_probe, peer
from benchmarks.images import Image, Images, built, docker
from benchmarks.stage import Stage, environment
from benchmarks.watch import Watch

PEER_STARTS = 5
BARE = "base: Python alone"
FLOOR = "farcall's image: `import cloudpickle, obstore`"
FARCALL = "farcall"
PEER_FLOOR = "peer's image: `import cloudpickle, boto3`"
PEER_PLAIN = "peer, a function that needs no Covalent"
PEER = "peer, as Covalent dispatches"
_FORMS = {PEER_PLAIN: "plain", PEER: "dispatched"}


@dataclass
class Costs:
    """Starts of one kind, a figure each.

    Attributes:
        cpu_s: CPU from the interpreter's start to the first line of the user's function.
        wall_s: Seconds from the container's creation to that line.
        engine_s: Of these, until the engine said that the program runs.
        life_s: CPU of the whole container.
    """

    cpu_s: list[float] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)
    engine_s: list[float] = field(default_factory=list)
    life_s: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Containers:
    """All that was measured.

    Attributes:
        images: The images.
        costs: By what was started.
        shares: What docker leaves in the clock of each floor's first process, seconds.
    """

    images: list[Image]
    costs: dict[str, Costs]
    shares: list[float]

    def cpu_s(self, name: str) -> float:
        """Return the median of the CPU up to the function."""
        return statistics.median(self.costs[name].cpu_s)


def measure(say: Callable[[str], object], starts: int, *, peers: bool) -> Containers:
    """Build the images, start each so many times (the peer's fewer), and remove everything.

    Raises:
        benchmarks.images.NoContainersError: There is no engine, or no image.
    """
    say("images ...")
    with (
        built(peer=peers) as images,
        farcall_local.start(docker=True) as aws,
        Watch(images.label) as watch,
        _peer(peers) as python,
    ):
        run = _Run(images, aws.environment, watch, python)
        run.warm()
        for turn in range(starts):
            say(f"containers, turn {turn + 1} of {starts} ...")
            run.turn(peers=peers and turn < PEER_STARTS)
    return Containers(images.all, run.told(), run.shares)


@contextlib.contextmanager
def _peer(wanted: bool) -> Iterator[tuple[Stage, str] | None]:
    """Install the peer's client, where it is wanted."""
    if not wanted:
        yield None
        return
    with peer.installed(Stage("", environment(""))) as installed:
        yield installed


class _Run:
    """The starts, and what is known of them."""

    def __init__(
        self,
        images: Images,
        cloud: dict[str, str],
        watch: Watch,
        installed: tuple[Stage, str] | None,
    ) -> None:
        self._images = images
        self._cloud = cloud
        self._watch = watch
        self._installed = installed
        self._costs: dict[str, Costs] = {}
        self.shares: list[float] = []

    def warm(self) -> None:
        """Start each once, uncounted: the first reads the image's files from the disk."""
        self.turn(peers=self._images.peer is not None)
        self._costs.clear()
        self.shares.clear()

    def turn(self, *, peers: bool) -> None:
        """Start each once."""
        self._floor(BARE, self._images.base, "sys")
        self._floor(FLOOR, self._images.farcall, "cloudpickle, obstore")
        stage = Stage("", self._environment(environment("")))
        self._note(FARCALL, stage.run("-m", "benchmarks.container_start"))
        if peers and self._images.peer and self._installed:
            self._floor(PEER_FLOOR, self._images.peer, "cloudpickle, boto3")
            home, python = self._installed
            stage = Stage("", self._environment(home.environment))
            for name, form in _FORMS.items():
                arguments = ("-m", "benchmarks.peer_start", form, self._images.peer.tag)
                self._note(name, stage.run(*arguments, python=python))

    def told(self) -> dict[str, Costs]:
        """Return the figures; docker's share is taken off the CPU of those it is in."""
        share_s = statistics.median(self.shares)
        for name in (FARCALL, *_FORMS):
            if name in self._costs:
                costs = self._costs[name]
                costs.cpu_s = [cpu_s - share_s for cpu_s in costs.cpu_s]
        return self._costs

    def _environment(self, given: dict[str, str]) -> dict[str, str]:
        return {
            **given,
            **self._cloud,
            "FARCALL_IMAGE": self._images.farcall.tag,
        }

    def _floor(self, name: str, image: Image, modules: str) -> None:
        """Start an interpreter under a shell, whose clock then has docker's share in it."""
        source = inspect.getsource(container_probe.probe)
        code = f"import {modules}\nAny = object\n{source}\nfound = probe()\n"
        code += "import json\nprint(json.dumps(found))"
        limits = ("--network", "host", "--cpus", "1", "--label", self._images.label)
        shell = ("--entrypoint", "sh", image.tag, "-c", 'python3 -c "$0"; exit $?', code)
        told = json.loads(docker("run", "--rm", *limits, *shell))
        self.shares.append(told["cpu_s"]["1"])
        told["cpu_s"] = {"": told["cpu_s"][told["pid"]]}
        self._note(name, told)

    def _note(self, name: str, told: dict[str, Any]) -> None:
        life = self._watch.next()
        costs = self._costs.setdefault(name, Costs())
        costs.cpu_s.append(sum(told["cpu_s"].values()))
        costs.wall_s.append(told["moment"] - life.created)
        costs.engine_s.append(life.started - life.created)
        costs.life_s.append(life.cpu_s)
