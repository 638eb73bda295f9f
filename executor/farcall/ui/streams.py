"""Server-sent events: what a browser is told as long as it listens.

Source:
    https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from farcall.model.clock import within
from farcall.ui.guard import as_json

HEARTBEAT_S = 15.0
_LAST_WORD_S = 0.5


def event(name: str, data: Any) -> bytes:
    """Return an event as it is sent."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), as_json(data))


class EventStream(Response):
    """An answer that goes on until its events end, the browser leaves or the server stops.

    The next event is asked for when the browser has taken the last one.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], stopping: asyncio.Event) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._events = events
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        sending = asyncio.ensure_future(self._send(send))
        others = [
            asyncio.ensure_future(_gone(receive)),
            asyncio.ensure_future(self._stopping.wait()),
        ]
        try:
            await asyncio.wait({sending, *others}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, *others):
                task.cancel()
            await asyncio.gather(sending, *others, return_exceptions=True)
            await self._events.aclose()
        last = {"type": "http.response.body", "body": b"", "more_body": False}
        with contextlib.suppress(asyncio.TimeoutError):  # a browser that takes nothing
            await within(_LAST_WORD_S, send(last))
        if not sending.cancelled():
            sending.result()

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        async for piece in _with_heartbeats(self._events):
            await send({"type": "http.response.body", "body": piece, "more_body": True})


async def _with_heartbeats(events: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    """Yield events, and comments where there are none for a while."""
    yield b": \n\n"
    while True:
        following = asyncio.ensure_future(anext(events))
        try:
            while not (await asyncio.wait({following}, timeout=HEARTBEAT_S))[0]:
                yield b": \n\n"
        finally:
            if not following.done():
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
        try:
            piece = following.result()
        except StopAsyncIteration:
            return
        yield piece


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
