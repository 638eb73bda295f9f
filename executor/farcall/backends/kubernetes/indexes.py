"""Indexes of a Job as its status lists them: ``1,3-5``. No I/O.

Source:
    https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/job-v1/#JobStatus
"""

from __future__ import annotations

import functools


@functools.lru_cache(maxsize=16)
def parse_indexes(text: str | None) -> frozenset[int]:
    """Return the listed indexes; None is an empty list."""
    ranges = (part.partition("-") for part in (text or "").split(",") if part)
    return frozenset(
        index for first, _, last in ranges for index in range(int(first), int(last or first) + 1)
    )
