"""HTTP server with scripted responses, to test the client."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import yaml
from aiohttp import web

from farcall.backends.kubernetes.client import Kube
from farcall.backends.kubernetes.kubeconfig import read
from farcall.testing import Timing


class ApiServer:
    """Answers each request with the next entry of `answers`, and records it.

    Attributes:
        requests: Method, path, query and body of each request.
        answers: Next answers, in order; the last one stays.
        headers: Headers of the last request.
    """

    def __init__(self):
        self.requests = []
        self.answers = []
        self.headers = {}
        self.url = ""
        self._runner = None

    async def start(self, port=0):
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        return self

    async def stop(self):
        await self._runner.cleanup()

    async def _answer(self, request):
        body = await request.read()
        self.headers = request.headers
        self.requests.append(
            (request.method, request.path, dict(request.query), json.loads(body or "null"))
        )
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return await answer(request)

    def counted(self, method):
        return sum(each[0] == method for each in self.requests)


def give(document, status=200, **headers):
    """Return an answer with a document."""

    async def answer(_):
        return web.json_response(document, status=status, headers=headers)

    return answer


def refuse(status, reason, message="no", details=None, **headers):
    """Return an answer with a Status."""
    document = {"kind": "Status", "status": "Failure", "reason": reason, "code": status}
    return give({**document, "message": message, "details": details or {}}, status, **headers)


async def cut(request):
    """Break the connection after reading the request."""
    request.transport.close()
    return web.Response()


def tell(*events, then="end"):
    """Return an answer to a watch: events, then the end, a cut within an event, or silence."""

    async def answer(request):
        response = web.StreamResponse()
        await response.prepare(request)
        for kind, document in events:
            text = json.dumps({"type": kind, "object": document}).encode() + b"\n"
            await response.write(text[:9])
            await response.write(text[9:])
        if then == "cut":
            await response.write(b'{"type": "MODI')
            request.transport.close()
        elif then == "stay":
            await asyncio.sleep(3600)
        return response

    return answer


def opened(path, context="", **times):
    """Return a client for a kubeconfig file."""
    return Kube(read(str(path), context), "", replace(Timing.fast(), **times))


def kubeconfig(path: Path, url: str, user=None, **cluster):
    """Write a file with one context."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": url, **cluster}}],
        "users": [{"name": "u", "user": user or {"token": "secret"}}],
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "ml"}}
        ],
    }
    path.write_text(yaml.safe_dump(document))
    return path
