"""Watches of the Kubernetes API: a line of JSON for each change, bookmarks, and their end.

Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from aiohttp import web

from farcall_local.kubernetes import tables
from farcall_local.kubernetes.errors import BadRequestError, ExpiredError
from farcall_local.kubernetes.faults import Faults, OpenWatch
from farcall_local.kubernetes.paths import Target
from farcall_local.kubernetes.selectors import Selector
from farcall_local.kubernetes.store import Change, Document, Store, Watch

#: Seconds of a watch that says no number.
DEFAULT_TIMEOUT_S = 1800
#: Seconds after which whoever wants bookmarks is told of a newer version.
BOOKMARK_S = 5.0

_INITIAL_END = {"k8s.io/initial-events-end": "true"}


class Asked(NamedTuple):
    """What a watch is to tell, and in which form."""

    target: Target
    query: Mapping[str, str]
    form: tables.Form

    @property
    def bookmarks(self) -> bool:
        """Whether it is to be told how far it is."""
        return self.query.get("allowWatchBookmarks") in ("true", "1")

    @property
    def initial(self) -> bool:
        """Whether what is there is to be told first, and that it was all."""
        return self.query.get("sendInitialEvents") in ("true", "1")


async def send(
    store: Store, request: web.BaseRequest, asked: Asked, selects: Selector, faults: Faults
) -> web.StreamResponse:
    """Answer a watch until it is over.

    Raises:
        BadRequestError: Its version is none.
    """
    since = asked.query.get("resourceVersion") or "0"
    timeout = asked.query.get("timeoutSeconds") or "0"
    if not (since.isdigit() and timeout.isdigit()):
        raise BadRequestError(f'Invalid value: "{since}": a watch needs numbers')
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    loop = asyncio.get_running_loop()
    end = loop.time() + (int(timeout) or DEFAULT_TIMEOUT_S)
    version = int(since)
    if version == 0 or asked.initial:
        version = store.version
        await response.write(b"".join(_first(store, asked, selects)))
    try:
        with (
            store.watch(asked.target.kind, version) as watch,
            faults.watching(request, watch) as open_,
        ):
            follower = _Follower(store, response, asked, selects)
            await follower.follow(watch, open_, end)
    except ExpiredError as error:
        await response.write(_line("ERROR", error.status()))
    await response.write_eof()
    return response


class _Follower(NamedTuple):
    """Tells what happens, as it happens."""

    store: Store
    response: web.StreamResponse
    asked: Asked
    selects: Selector

    async def follow(self, watch: Watch, open_: OpenWatch, end: float) -> None:
        """Tell it until a time of the loop's, or until it is to be over."""
        loop, told, bookmarks = asyncio.get_running_loop(), watch.at, self.asked.bookmarks
        while (left := end - loop.time()) > 0 and not open_.is_ended:
            changes = await watch.changes(min(left, BOOKMARK_S) if bookmarks else left)
            lines = [
                line for change in changes for line in _lines(change, self.asked, self.selects)
            ]
            if lines:
                told = watch.at
            elif bookmarks and self.store.version > told:
                told = self.store.version
                lines = [_bookmark(self.asked, told)]
            if lines:
                await self.response.write(b"".join(lines))


def _first(store: Store, asked: Asked, selects: Selector) -> Iterator[bytes]:
    for document in store.list(asked.target.kind, asked.target.namespace):
        if selects(document):
            yield _event("ADDED", document, asked)
    if asked.initial and asked.bookmarks:
        yield _bookmark(asked, store.version, _INITIAL_END)


def _lines(change: Change, asked: Asked, selects: Selector) -> Iterator[bytes]:
    """Tell a change as it is seen through a selector."""
    was = change.before is not None and selects(change.before)
    is_ = change.type != "DELETED" and selects(change.document)
    if was or is_:
        type_ = "MODIFIED" if was and is_ else "ADDED" if is_ else "DELETED"
        yield _event(type_, change.document, asked)


def _event(type_: str, document: Document, asked: Asked) -> bytes:
    return _line(type_, tables.render(asked.form, asked.target, document))


def _bookmark(asked: Asked, version: int, annotations: Mapping[str, str] | None = None) -> bytes:
    kind = asked.target.kind
    metadata: dict[str, Any] = {"resourceVersion": str(version), "creationTimestamp": None}
    if annotations:
        metadata["annotations"] = annotations
    document = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}
    if asked.form.is_table:
        table = tables.table(kind, [], str(version))
        return _line("BOOKMARK", table)
    return _line("BOOKMARK", document)


def _line(type_: str, document: Document) -> bytes:
    return json.dumps({"type": type_, "object": document}).encode() + b"\n"
