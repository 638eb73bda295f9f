"""Indexes of a Job as Kubernetes writes them: ``1,3-5``.

Source:
    https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode
"""

from __future__ import annotations

from collections.abc import Iterable


def written(indexes: Iterable[int]) -> str:
    """Write indexes as numbers and ranges. Two in succession are no range: ``1,2``."""
    parts: list[list[int]] = []
    for index in sorted(indexes):
        if parts and parts[-1][1] == index - 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    return ",".join(_part(first, last) for first, last in parts)


def _part(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first},{last}" if last == first + 1 else f"{first}-{last}"


def read(text: str) -> set[int]:
    """Return the indexes of a text that `written` made."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found
