"""Indexes of a Job as its status lists them: ``1,3-5``. No I/O.

Source:
    https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/job-v1/#JobStatus
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Iterator


@functools.lru_cache(maxsize=256)
def _ranges(text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the first and the last of each range, in their order."""
    pairs = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        pairs.append((int(first), int(last or first)))
    pairs.sort()
    return tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)


def holds(text: str | None, index: int) -> bool:
    """Tell whether an index is listed.

    Args:
        text: The list; None for an empty one.
        index: The index.
    """
    firsts, lasts = _ranges(text or "")
    place = bisect_right(firsts, index) - 1
    return place >= 0 and index <= lasts[place]


def count(text: str | None) -> int:
    """Return how many are listed."""
    firsts, lasts = _ranges(text or "")
    return sum(last - first + 1 for first, last in zip(firsts, lasts, strict=True))


def listed(text: str | None) -> Iterator[int]:
    """Yield those that are listed, the least first."""
    for first, last in zip(*_ranges(text or ""), strict=True):
        yield from range(first, last + 1)
