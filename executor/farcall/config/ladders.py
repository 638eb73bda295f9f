"""Ladders: lists of values for an option, of which a failed task gets the next one."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from farcall.model.errors import SettingsError

LADDERS = ("memory", "vcpu", "queue")
"""Options whose value can be a list."""

_MIB = 1 / 1024
"""A MiB in GiB: platforms round to MiB."""

_RUNG = re.compile(r"(memory|queue)=([1-9]\d{0,3})/([1-9]\d{0,3})", re.ASCII)


class Rung(NamedTuple):
    """Position of a job's value in an option's list.

    Attributes:
        number: The position, from 1.
        of: Length of the list.
    """

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number} of {self.of}"


class Ladders(NamedTuple):
    """All values of the options that were given as lists; empty for the others.

    Attributes:
        memory: Sizes in GiB, for tasks that ran out of memory.
        vcpu: vCPUs for each of these sizes.
        queue: Queues, for tasks whose host was lost.
    """

    memory: tuple[float, ...] = ()
    vcpu: tuple[float, ...] = ()
    queue: tuple[str, ...] = ()

    def more_memory(self, gib: float) -> dict[str, float]:
        """Return the options of the next size above another; empty for the largest size."""
        for number, size in enumerate(self.memory):
            if size > gib + _MIB:
                vcpu = {"vcpu": self.vcpu[number]} if self.vcpu else {}
                return {"memory": size, **vcpu}
        return {}

    def next_queue(self, queue: str) -> dict[str, str]:
        """Return the option with the queue after another; empty for the last queue."""
        at = self._queue_number(queue) or len(self.queue)
        return {"queue": self.queue[at]} if at < len(self.queue) else {}

    def rungs(self, gib: float, queue: str) -> str:
        """Describe a job's positions in the lists, for `read_rungs`; empty without lists."""
        positions = {
            "memory": Rung(sum(size <= gib + _MIB for size in self.memory), len(self.memory)),
            "queue": Rung(self._queue_number(queue), len(self.queue)),
        }
        return ",".join(
            f"{name}={rung.number}/{rung.of}" for name, rung in positions.items() if rung.number
        )

    def _queue_number(self, queue: str) -> int:
        """Return a queue's position, from 1; 0 for another queue."""
        # Platforms report ARNs, whose last part is the name.
        names = [each.rpartition("/")[2] for each in self.queue]
        name = queue.rpartition("/")[2]
        return names.index(name) + 1 if name in names else 0


def read_rungs(text: str) -> dict[str, Rung]:
    """Return the positions by option; users can set any text, of which nothing is used."""
    matches = filter(None, map(_RUNG.fullmatch, text.split(",")))
    rungs = {match[1]: Rung(int(match[2]), int(match[3])) for match in matches}
    return {name: rung for name, rung in rungs.items() if rung.number <= rung.of}


def split(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Return options with the first value of each list, and the lists.

    Raises:
        SettingsError: A list is empty.
    """
    first, lists = dict(values), {}
    for name in LADDERS:
        steps = _steps(values.get(name))
        if steps is None:
            continue
        if not steps:
            raise SettingsError(f"{name} is an empty list; use at least one value", option=name)
        first[name] = steps[0]
        if len(steps) > 1:
            lists[name] = steps
    return first, lists


def _steps(value: Any) -> list[Any] | None:
    """Return the values of a list, also of one in a text; None for a single value."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):  # rejected as a value of the option
            return None
    if isinstance(value, str) and "," in value:
        return [each.strip() for each in value.split(",")]
    return list(value) if isinstance(value, (list, tuple)) else None


def check(ladders: Ladders, queue_patience: float | None) -> None:
    """Check the relations between the values.

    Raises:
        SettingsError: The sizes do not grow, there is not one vcpu for each size, or no next queue
            to which an impatient task could move.
    """
    memory, vcpu, queue = ladders
    if any(after <= before for before, after in itertools.pairwise(memory)):
        raise SettingsError(
            f"memory is {_shown(memory)}: each value must be larger than the one before it, "
            "because a task that runs out of memory gets the next one",
            option="memory",
        )
    if vcpu and len(vcpu) != len(memory):
        raise SettingsError(
            f"vcpu is {_shown(vcpu)}: use one value, or one for each of the "
            f"{max(1, len(memory))} values of memory",
            option="vcpu",
        )
    if len(set(queue)) < len(queue):
        raise SettingsError(f"queue is {_shown(queue)}: name each queue once", option="queue")
    if queue_patience is not None and not queue:
        raise SettingsError(
            f"queue_patience is {queue_patience:g} s, but there is no next queue: use a list of "
            'queues, such as queue=["spot", "on-demand"], or remove queue_patience',
            option="queue_patience",
        )


def _shown(values: tuple[Any, ...]) -> str:
    return ", ".join(f"{each:g}" if isinstance(each, float) else str(each) for each in values)
