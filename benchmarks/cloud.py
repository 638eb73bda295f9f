"""S3, Batch and STS of the benchmarks: one process, in memory, that counts what it is asked.

It listens on two ports, one for the client that is measured and one for its jobs, so that their
requests are counted apart. No signature is checked and nothing is encrypted.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from aiohttp import web

from benchmarks.batch import ACCOUNT, Queue
from benchmarks.bucket import Buckets

CONTROL = "/_bench/"

_IDENTITY = (
    '<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
    f"<GetCallerIdentityResult><Account>{ACCOUNT}</Account><UserId>benchmark</UserId>"
    f"<Arn>arn:aws:iam::{ACCOUNT}:user/benchmark</Arn></GetCallerIdentityResult>"
    "<ResponseMetadata><RequestId>1</RequestId></ResponseMetadata></GetCallerIdentityResponse>"
)


class Cloud:
    """Answers requests and counts them by side and operation."""

    def __init__(self) -> None:
        self._buckets = Buckets()
        self._queue = Queue()
        self._counts: dict[str, Counter[str]] = {}
        self._peers: dict[str, set[tuple[str, int]]] = {}
        self._options: dict[str, Any] = {}
        self._may_run = asyncio.Event()
        self._reset({})

    async def answer(self, side: str, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request that came to the port of ``side``."""
        body = await request.content.read()
        path = request.path
        if path.startswith(CONTROL):
            reply = await self._control(path[len(CONTROL) :], json.loads(body or b"{}"))
            return web.json_response(reply)
        if request.transport is not None:
            self._peers[side].add(request.transport.get_extra_info("peername"))
        if path.startswith("/v1/"):
            name, document = self._queue.answer(path, json.loads(body or b"{}"))
            self._counts[side][f"batch {name}"] += 1
            return web.json_response(document)
        if path == "/":
            self._counts[side]["sts GetCallerIdentity"] += 1
            return web.Response(text=_IDENTITY, content_type="text/xml")
        place = path.strip("/")
        name, (status, headers, content) = self._buckets.answer(
            request.method, place, request.query, request.headers, body
        )
        self._counts[side][f"s3 {name}"] += 1
        if name in ("PutObject", "CompleteMultipartUpload"):
            self._queue.note_stored(place)
        return web.Response(status=status, headers=headers, body=content)

    async def _control(self, name: str, document: dict[str, Any]) -> Any:
        if name == "reset":
            return self._reset(document)
        if name == "fill":
            return self._buckets.fill(
                document["name"], document["count"], document["data"].encode()
            )
        simple: dict[str, Callable[[], Any]] = {
            "counts": lambda: self._counts,
            "connections": lambda: {side: len(peers) for side, peers in self._peers.items()},
            "stored": lambda: self._buckets.stored,
            "taken": lambda: self._buckets.taken_bytes,
            "release": self._may_run.set,
            "hold": self._may_run.clear,
        }
        if name in simple:
            return simple[name]()
        job = await self._queue.waiting.get()
        await self._may_run.wait()
        return {
            "id": job.id,
            "environment": job.environment,
            "size": job.size,
            "is_array": job.is_array,
            **self._options,
        }

    def _reset(self, options: dict[str, Any]) -> None:
        """Forget counts and objects; the options go to whoever plays the next jobs.

        With ``held`` among them nobody gets a job to play before ``release``.
        """
        if options.get("held"):
            self._may_run.clear()
        else:
            self._may_run.set()
        self._counts = {"client": Counter(), "jobs": Counter()}
        self._peers = {"client": set(), "jobs": set()}
        self._options = options
        self._buckets.clear()


async def _serve() -> None:
    cloud = Cloud()
    ports = {}
    for side in ("client", "jobs"):
        server = web.Server(partial(cloud.answer, side), access_log=None)
        listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
        ports[side] = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    print(json.dumps(ports), flush=True)
    await asyncio.to_thread(sys.stdin.buffer.read)  # ends with whoever started it


if __name__ == "__main__":
    asyncio.run(_serve())
