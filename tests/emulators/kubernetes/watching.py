"""Watches of the Kubernetes API: a line of JSON for each change, and bookmarks.

Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any

from aiohttp import web

from tests.emulators.kubernetes import tables
from tests.emulators.kubernetes.errors import BadRequestError, ExpiredError
from tests.emulators.kubernetes.kinds import Target
from tests.emulators.kubernetes.selectors import Selector
from tests.emulators.kubernetes.store import Change, Document, Store

#: Default duration of a watch in seconds.
DEFAULT_TIMEOUT_S = 1800
#: Minimum interval between bookmarks in seconds; a real server's is about a minute.
BOOKMARK_S = 5.0


class Watching:
    """Watch of one client.

    Args:
        store: Holds the objects.
        target: Kind and namespace.
        query: Parameters of the request.
        selects: Selector of the objects.
        as_table: Whether each event is a table.

    Raises:
        BadRequestError: A parameter is not a number.
    """

    def __init__(
        self,
        store: Store,
        target: Target,
        query: Mapping[str, str],
        selects: Selector,
        *,
        as_table: bool,
    ) -> None:
        since, timeout = query.get("resourceVersion") or "0", query.get("timeoutSeconds") or "0"
        if not (since.isdigit() and timeout.isdigit()):
            raise BadRequestError(f'Invalid value: "{since}": a watch needs numbers')
        self._store = store
        self._target = target
        self._selects = selects
        self._as_table = as_table
        self._timeout_s = int(timeout) or DEFAULT_TIMEOUT_S
        self._bookmarks = query.get("allowWatchBookmarks") in ("true", "1")
        # kubectl requests the existing objects first, and a bookmark after them.
        self._sends_initial = query.get("sendInitialEvents") in ("true", "1")
        self._since = 0 if self._sends_initial else int(since)

    async def send(self, request: web.BaseRequest) -> web.StreamResponse:
        """Respond until the watch is over."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        try:
            await self._follow(response)
        except ExpiredError as error:
            await response.write(_line("ERROR", error.status()))
        await response.write_eof()
        return response

    async def _follow(self, response: web.StreamResponse) -> None:
        loop = asyncio.get_running_loop()
        end, kind = loop.time() + self._timeout_s, self._target.kind
        since = self._since or self._store.version
        if not self._since:
            await response.write(b"".join(self._initial_events()))
        with self._store.watch(kind, since) as watch:
            reported, bookmarked_at = since, loop.time()
            while (left := end - loop.time()) > 0:
                changes = await watch.changes(min(left, BOOKMARK_S) if self._bookmarks else left)
                lines = [line for change in changes for line in self._lines(change)]
                is_due = self._bookmarks and loop.time() - bookmarked_at >= BOOKMARK_S
                if not lines and is_due and self._store.version > reported:
                    bookmarked_at = loop.time()
                    lines = [self._bookmark()]
                if lines:
                    reported = max(watch.at, self._store.version)
                    await response.write(b"".join(lines))

    def _initial_events(self) -> Iterator[bytes]:
        for document in self._store.list(self._target.kind, self._target.namespace):
            if self._selects(document):
                yield self._event("ADDED", document)
        if self._sends_initial:
            yield self._bookmark({"k8s.io/initial-events-end": "true"})

    def _lines(self, change: Change) -> Iterator[bytes]:
        """Yield the events for a change, as filtered by the selector."""
        matched = change.before is not None and self._selects(change.before)
        matches = change.type != "DELETED" and self._selects(change.document)
        if matched or matches:
            type_ = "MODIFIED" if matched and matches else "ADDED" if matches else "DELETED"
            yield self._event(type_, change.document)

    def _event(self, type_: str, document: Document) -> bytes:
        if self._as_table:
            document = tables.render(self._target.kind, document)
        return _line(type_, document)

    def _bookmark(self, annotations: Mapping[str, str] | None = None) -> bytes:
        kind = self._target.kind
        metadata: dict[str, Any] = {"resourceVersion": str(self._store.version)}
        if annotations:
            metadata["annotations"] = annotations
        document = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}
        if self._as_table:
            document = {**tables.render(kind, {"metadata": metadata, "items": []})}
        return _line("BOOKMARK", document)


def _line(type_: str, document: Document) -> bytes:
    return json.dumps({"type": type_, "object": document}).encode() + b"\n"
