"""Paging of lists, with an opaque token for the next page."""

from __future__ import annotations

import base64
import binascii
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
    if not token:
        return None
    try:
        return int(base64.urlsafe_b64decode(token))
    except (ValueError, binascii.Error):
        raise ClientError("nextToken is not valid.") from None


def token(place: int) -> str:
    """Return the token for a position."""
    return base64.urlsafe_b64encode(str(place).encode()).decode()


def page(
    items: Sequence[T], document: dict[str, Any], most: int
) -> tuple[list[T], dict[str, str]]:
    """Return a page of a list that only grows at its end.

    Returns:
        The items, and the response's ``nextToken`` member unless this is the last page.
    """
    start = position(document) or 0
    end = start + size(document, most)
    return list(items[start:end]), {"nextToken": token(end)} if end < len(items) else {}
