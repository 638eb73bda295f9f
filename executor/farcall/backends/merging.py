"""Merging of users' additions into the requests for the options. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def merge(base: Any, extra: Any, labels: Sequence[str]) -> Any:
    """Merge two documents: tables by key, lists of named objects by name.

    Everything else is replaced.

    Args:
        base: A document.
        extra: The additions, which take precedence.
        labels: Keys that identify the members of a list: the first one in all members of both.
    """
    if isinstance(base, dict) and isinstance(extra, dict):
        keys = [*base, *(key for key in extra if key not in base)]
        return {
            key: merge(base[key], extra[key], labels)
            if key in base and key in extra
            else base.get(key, extra.get(key))
            for key in keys
        }
    for label in labels:
        if _is_list_of(label, base) and _is_list_of(label, extra):
            merged = {item[label]: item for item in base}
            for item in extra:
                merged[item[label]] = merge(merged.get(item[label], {}), item, labels)
            return list(merged.values())
    return extra


def _is_list_of(label: str, value: object) -> bool:
    return isinstance(value, list) and all(isinstance(i, dict) and label in i for i in value)
