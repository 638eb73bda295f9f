"""Use so far: what a running task says of its memory and processor time, read and checked.

A container stores it while somebody looks. The task itself, and whoever else has its key, may say
anything there: what is no plausible number counts for nothing, and nothing is decided by the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from farcall.model.errors import FarcallError
from farcall.model.submission import Submission
from farcall.storage.outcomes import verified
from farcall.storage.store import Store
from farcall_runtime import envelope

_MOST_OBJECT_BYTES = 4096
_MOST_MEMORY_BYTES = 2**50
"""A pebibyte: more than any machine has."""

_MOST_CPU_S = 1e10
"""Thousands of processors for as many days."""


@dataclass(frozen=True)
class UsageNow:
    """What a running task used up to a moment.

    Attributes:
        memory_bytes: Memory in use at that moment.
        peak_memory_bytes: The most that was in use whenever somebody looked, or that the task's
            own process has had resident.
        memory_limit_bytes: The container's limit, or None where there is none.
        cpu_s: Seconds of CPU of the task's processes so far.
        at: The moment, as S3 tells it.
    """

    memory_bytes: int
    peak_memory_bytes: int
    memory_limit_bytes: int | None
    cpu_s: float
    at: datetime


async def now(store: Store, submission: Submission, index: int, attempt: int) -> UsageNow | None:
    """Return what a running task uses, by one request; None where that is not known.

    Args:
        store: The bucket.
        submission: The task's job.
        index: Number of the task, or of the node.
        attempt: The attempt that runs, from 1; what another one has left counts for nothing.
    """
    key = submission.where.usage_key(index)
    try:
        found = await store.get_dated(key, most=_MOST_OBJECT_BYTES)
        if found is None:
            return None
        data, at = found
        said = await verified(envelope.open_usage, submission, key, data)
    except (envelope.EnvelopeError, FarcallError):  # it is but a help
        return None
    return checked(said, attempt, at)


def checked(said: dict[str, Any], attempt: int, at: datetime) -> UsageNow | None:
    """Return what an object says of an attempt, where all of it is plausible."""
    values: list[Any] = [said.get(name) for name in _NAMES]
    memory, peak, limit, cpu_s = values
    is_plausible = (
        said.get("attempt") == attempt
        and is_memory(memory)
        and is_memory(peak)
        and (limit is None or is_memory(limit))
        and isinstance(cpu_s, (int, float))
        and not isinstance(cpu_s, bool)
        and 0 <= cpu_s <= _MOST_CPU_S
    )
    return UsageNow(memory, peak, limit or None, float(cpu_s), at) if is_plausible else None


_NAMES = ("memory_bytes", "peak_memory_bytes", "memory_limit_bytes", "cpu_s")


def is_memory(said: object) -> bool:
    """Tell whether something that a container says is a size of memory in bytes."""
    return type(said) is int and 0 <= said <= _MOST_MEMORY_BYTES
