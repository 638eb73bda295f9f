"""Merging of documents: what users add to the requests that options make. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def merge(base: Any, extra: Any, labels: Sequence[str]) -> Any:
    """Merge two documents: tables key by key, lists of named things by name, the rest replaced.

    Args:
        base: A document.
        extra: What is said of it beside; where both say something, this counts.
        labels: Keys that tell the members of a list apart: the first that all of both have.
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
