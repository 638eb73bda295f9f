"""A proxy in front of the local AWS emulator: counts requests and injects faults."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp
import yarl
from aiohttp import web

from tests.support.faults import FAULTS, SLOW_S, Fault, Faults, Request, refusal
from tests.support.signing import signed

__all__ = ["FAULTS", "SLOW_S", "Fault", "Proxy", "Request"]

_OF_ONE_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "expect", "date", "server"}
_AUTOMATIC = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_BACKLOG = 1024
_THREADS = 256
_TURNS = 10


class Proxy:
    """Forwards requests and injects faults; a context manager with its own thread.

    The fault of a request is decided in this order: `rule`, `faults` (the next of a list),
    `lasting` (always), ``chances`` (at random). See `faults.Request` for operations and
    `faults.Fault` for faults; an operation may be a pattern, such as ``"s3 *"``::

        with Proxy(aws.endpoint_url, {"batch *": {"lost": 0.02, "error": 0.02}}, seed=7) as proxy:
            proxy.faults["batch submitjob"] += ["lost", "throttled"]
            proxy.lasting["s3 GET outcomes"] = "error"
            async with BatchExecutor(endpoint_url=proxy.url) as executor: ...
        print(proxy.injected)

    Args:
        target: URL of the server behind the proxy.
        chances: Operation to the probability of each fault; the sum is from 0 to 1. The first
            matching pattern counts.
        seed: With the same seed, the n-th request of an operation has the same fault.

    Attributes:
        port: Port on the loopback interface.
        url: URL of the proxy, for an executor's ``endpoint_url``.
        counts: Number of requests by operation, such as ``batch submitjob`` and
            ``s3 PUT bundles``.
        answers: Number of the server's responses by operation and status, such as
            ``s3 PUT outcomes 200``.
        seen: Every request.
        injected: Number of faults, such as ``batch submitjob lost``.
        changes: Name of a Batch operation to a function that changes its response; the function
            may block.
        rule: Function that returns the fault of a request, or an empty string.
        faults: Operation to the faults of its next requests.
        lasting: Operation to the fault of every request.
        ignored: Names of headers that are removed from S3 requests.
        keys: Credentials, by environment variable, with which such a request is signed again.
        chances: The argument; may be changed.
    """

    def __init__(
        self,
        target: str,
        chances: Mapping[str, Mapping[Fault, float]] | None = None,
        seed: object = 0,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self.seen: list[Request] = []
        self.changes: dict[str, Callable[[dict[str, Any]], object]] = {}
        self.rule: Callable[[Request], Fault] = lambda request: ""
        self.ignored: set[str] = set()
        self.keys: Mapping[str, str] = {}
        self._policy = Faults(chances, seed)
        self.faults = self._policy.scripted
        self.lasting = self._policy.lasting
        self.chances = self._policy.chances
        self.injected = self._policy.injected
        self._target = target.rstrip("/")
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._is_open = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._released = asyncio.Event()
        self._threads = ThreadPoolExecutor(_THREADS)
        self._onward: aiohttp.ClientSession
        self._server: asyncio.Server
        self._web: web.Server[web.BaseRequest]
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        self._is_open.wait()
        return self

    def __exit__(self, *error):
        self.close()

    def close(self) -> None:
        """Close the port and every connection, and stop the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def refuse(self) -> None:
        """Close the port and every connection, so that new connections are refused."""
        self._in_loop(self._close_port)

    def hang(self) -> None:
        """Accept requests, but do not respond to them."""
        self.lasting["*"] = "hang"

    def release(self) -> None:
        """Forward the held requests."""
        self._in_loop(self._released.set)

    def of(self, service: str) -> dict[str, int]:
        """Return the number of requests of one service, by operation."""
        start = f"{service} "
        return {k.removeprefix(start): n for k, n in self.counts.items() if k.startswith(start)}

    def note(self, request: Request) -> None:
        """Record and count a request."""
        self.counts[request.operation] += 1
        self.seen.append(request)

    # --- thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        loop = self._loop
        loop.run_until_complete(self._open())
        self._is_open.set()
        try:
            loop.run_forever()
        finally:
            loop.run_until_complete(self._end())
            loop.close()

    async def _open(self) -> None:
        # Each request has its own connection to the server, because a kept connection that is
        # closed meanwhile would be an additional fault.
        self._onward = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            skip_auto_headers=_AUTOMATIC,
        )
        # The server would log connection errors, which are intended here.
        quiet = logging.getLogger("farcall.tests.proxy")
        quiet.disabled = True
        self._web = web.Server(
            self._handle,
            access_log=None,
            logger=quiet,
            keepalive_timeout=3600,
            tcp_keepalive=False,
        )
        self._server = await self._loop.create_server(
            self._web, sock=self._listener, backlog=_BACKLOG
        )

    async def _end(self) -> None:
        self._server.close()
        for _ in range(_TURNS):  # until pending accepts have become connections
            await asyncio.sleep(0)
        self._close_port()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._web.shutdown(0)
        await self._onward.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _in_loop(self, act: Callable[[], None]) -> None:
        async def run() -> None:
            act()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def _close_port(self) -> None:
        self._server.close()
        for connection in self._web.connections:
            if connection.transport is not None:
                connection.transport.abort()

    # --- one request --------------------------------------------------------------------------

    async def _handle(self, received: web.BaseRequest) -> web.StreamResponse:
        path = received.raw_path
        body: Any = received.content
        is_data = "/s3/" in received.headers.get("Authorization", "") and "?delete" not in path
        if not is_data or not received.can_read_body:
            body = await received.content.read()
        whole = body if isinstance(body, bytes) else b""
        request = Request.read(received.method, path, received.headers, whole)
        self.note(request)
        fault = self._policy.meet(request.operation, self.rule(request))
        refused = refusal(request.service, fault, whole)
        if refused is not None:
            await received.content.read()
            status, headers, text = refused
            return web.Response(status=status, headers=headers, body=text)
        if fault == "reset":
            return _hang_up(received, reset=True)
        if fault == "hang":
            await self._loop.create_future()  # never done
        if fault == "held":
            await self._released.wait()
        if fault == "slow" or isinstance(fault, (int, float)):
            await asyncio.sleep(SLOW_S if fault == "slow" else fault)
        try:
            return await self._pass_on(received, request, body, fault)
        except (aiohttp.ClientError, ConnectionError):  # the server or the client is gone
            return _hang_up(received)

    async def _pass_on(
        self, received: web.BaseRequest, request: Request, body: Any, fault: Fault
    ) -> web.StreamResponse:
        headers = {
            k: v for k, v in received.headers.items() if k.lower() not in _OF_ONE_CONNECTION
        }
        url = yarl.URL(self._target + request.path, encoded=True)
        kept = {k: v for k, v in headers.items() if k.lower() not in self.ignored}
        if request.service == "s3" and kept != headers:
            headers = signed("s3", request.method, str(url), self.keys, headers=kept)
        async with self._onward.request(
            request.method, url, headers=headers, data=body or None, allow_redirects=False
        ) as reply:
            self.answers[f"{request.operation} {reply.status}"] += 1
            change = self._change_for(request, fault)
            if change is None and fault not in ("lost", "truncated"):
                return await self._stream(received, reply)
            content = await reply.read()
        if fault == "lost":
            return _hang_up(received)
        if change is not None and reply.status == 200:
            content = await self._loop.run_in_executor(self._threads, _changed, content, change)
        if fault == "truncated":
            return await _break_off(received, reply, content)
        passed = _headers(reply)
        passed.pop("Content-Length", None)
        return web.Response(status=reply.status, headers=passed, body=content)

    async def _stream(
        self, received: web.BaseRequest, reply: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        answer = web.StreamResponse(status=reply.status, headers=_headers(reply))
        await answer.prepare(received)
        if received.method != "HEAD":
            async for piece in reply.content.iter_any():
                await answer.write(piece)
        await answer.write_eof()
        return answer

    def _change_for(
        self, request: Request, fault: Fault
    ) -> Callable[[dict[str, Any]], object] | None:
        if fault == "empty":
            return _without_lists
        if request.service != "batch":
            return None
        return self.changes.get(request.operation.partition(" ")[2])


def _changed(content: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    document = json.loads(content)
    change(document)
    return json.dumps(document).encode()


def _without_lists(document: dict[str, Any]) -> None:
    document.pop("nextToken", None)
    for value in document.values():
        if isinstance(value, list):
            value.clear()


def _headers(reply: aiohttp.ClientResponse) -> Any:
    headers = reply.headers.copy()
    for name in _OF_ONE_CONNECTION:
        headers.popall(name, None)
    return headers


def _hang_up(received: web.BaseRequest, *, reset: bool = False) -> web.Response:
    """Close the connection, so that the returned response is lost."""
    if (transport := received.transport) is not None:
        if reset:
            own = transport.get_extra_info("socket")
            with contextlib.suppress(OSError):
                own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    return web.Response()


async def _break_off(
    received: web.BaseRequest, reply: aiohttp.ClientResponse, content: bytes
) -> web.Response:
    """Send half of the response's body, or half of the status line without a body."""
    transport = received.transport
    assert transport is not None
    half = f"HTTP/1.1 {reply.status} "
    if content:
        headers = {**reply.headers, "Content-Length": str(len(content))}
        kept = (f"{k}: {v}\r\n" for k, v in headers.items() if k.lower() not in _OF_ONE_CONNECTION)
        half += f"{reply.reason}\r\n{''.join(kept)}\r\n"
    transport.write(half.encode() + content[: len(content) // 2])
    transport.close()  # after the data is sent
    return web.Response()
