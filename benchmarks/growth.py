"""How the cost grows with the number of tasks: farcall, the floor and the peer, in turns."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks import measure, peer
from benchmarks.measure import Run
from benchmarks.stage import Stage

MAP, SUBMIT = "farcall, `map`", "farcall, separate `submit`"
FLOOR, PEER = "floor", "peer"
COUNTS = (1, 10, 100, 300, 1000, 10_000)
PEER_COUNTS = (1, 10, 100, 300)
SINGLES = 300
"""Separate submissions of the figure that is to be reached."""

_ONE_TURN = 100
"""From so many tasks on the peer runs once only: minutes."""


@dataclass
class Growth:
    """The runs by client and number of tasks; those at one place in their lists were one turn.

    Attributes:
        runs: The runs.
    """

    runs: dict[tuple[str, int], list[Run]] = field(default_factory=dict)

    def counts(self, name: str) -> list[int]:
        """Return for how many tasks a client was measured."""
        return [count for who, count in self.runs if who == name]

    def middle(self, name: str, count: int, value: Callable[[Run], float]) -> float:
        """Return the median of a value."""
        return statistics.median(map(value, self.runs[name, count]))

    def ratio(
        self, name: str, other: str, count: int, value: Callable[[Run], float] = lambda r: r.cpu_s
    ) -> float:
        """Return the median of the turns' ratios of two clients, by default of their CPU."""
        pairs = zip(self.runs[name, count], self.runs[other, count], strict=False)
        return statistics.median(value(one) / value(two) for one, two in pairs)

    def most(self, name: str, count: int) -> Run:
        """Return the run with the most requests."""
        return max(self.runs[name, count], key=Run.count)


def run(
    say: Callable[[str], object],
    place: Stage,
    *,
    most: int,
    repeats: int,
    long_repeats: int,
    peers: bool,
) -> Growth:
    """Measure.

    Args:
        say: Told what comes next.
        place: The played cloud.
        most: The largest number of tasks.
        repeats: Turns of every number but the largest.
        long_repeats: Turns of the largest.
        peers: Whether to install and measure the peer, too.
    """
    growth = Growth()
    with contextlib.ExitStack() as stack:
        found = stack.enter_context(peer.installed(place)) if peers else None
        for count in [*(each for each in COUNTS if each < most), most]:
            for turn in range(long_repeats if count == most else repeats):
                names = [MAP, SUBMIT]
                if found and count in PEER_COUNTS and not (turn and count >= _ONE_TURN):
                    names.append(PEER)
                say(f"{count:,} tasks, turn {turn + 1}: {', '.join(names)}, {FLOOR} ...")
                _turn(growth, place, found, names[turn % 2 :] + names[: turn % 2], count)
    return growth


def _turn(
    growth: Growth,
    place: Stage,
    found: tuple[Stage, str] | None,
    names: Sequence[str],
    count: int,
) -> None:
    works = {MAP: "sweep", SUBMIT: "singles"}
    runs = {}
    for name in names:
        if name == PEER and found:
            runs[name] = measure.peer(*found, count)
        else:
            runs[name] = measure.client(place, works[name], count)
    runs[FLOOR] = measure.floor(place, runs[MAP], count)
    for name, one in runs.items():
        growth.runs.setdefault((name, count), []).append(one)
