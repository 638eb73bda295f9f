"""Wording: numbers and names, as a sentence has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_MOST_NAMED = 5


def counted(number: int, noun: str, plural: str = "s") -> str:
    """Return a number with what it counts, in the plural where it is not one."""
    return f"{number} {noun}{plural * (number != 1)}"


def named(names: Sequence[str], noun: str = "job") -> str:
    """Say how many there are, and name the first of them."""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{counted(len(names), noun)} ({', '.join(names[:_MOST_NAMED])}{more})"


def in_queues(queues: Iterable[str]) -> str:
    """Return " in queue a, b"; empty where jobs have no queue, as on Kubernetes."""
    names = ", ".join(filter(None, queues))
    return f" in queue {names}" if names else ""
