"""Paging of lists, with the next page's position as its token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from farcall_local.batch.errors import ClientError

T = TypeVar("T")


def size(document: dict[str, Any], most: int) -> int:
    """Return the page size: `maxResults`, limited to 1 to `most`."""
    wanted: int | None = document.get("maxResults")
    if wanted is None:
        return most
    if wanted < 1:
        raise ClientError("maxResults must be at least 1.")
    return min(wanted, most)


def position(document: dict[str, Any]) -> int | None:
    """Return the position in `nextToken`, or None for the first page."""
    token = document.get("nextToken")
    if token and not token.isdecimal():
        raise ClientError("nextToken is not valid.")
    return int(token) if token else None


def page(
    items: Sequence[T], document: dict[str, Any], most: int
) -> tuple[list[T], dict[str, str]]:
    """Return a page of a list that only grows at its end.

    Returns:
        The items, and the response's ``nextToken`` member unless this is the last page.
    """
    start = position(document) or 0
    end = start + size(document, most)
    return list(items[start:end]), {"nextToken": str(end)} if end < len(items) else {}
