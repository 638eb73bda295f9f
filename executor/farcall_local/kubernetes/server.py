"""HTTPS server of the Kubernetes API, on the event loop of its controllers.

Sources:
    https://kubernetes.io/docs/reference/using-api/api-concepts/
    https://kubernetes.io/docs/reference/kubernetes-api/
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from aiohttp import web

from farcall_local.kubernetes import access, discovery, paths, tables, watching
from farcall_local.kubernetes.access import Access, User
from farcall_local.kubernetes.errors import (
    BadRequestError,
    MethodNotAllowedError,
    StatusError,
    TooManyRequestsError,
)
from farcall_local.kubernetes.faults import Faults
from farcall_local.kubernetes.kinds import POD
from farcall_local.kubernetes.log_answers import Logs, send_log
from farcall_local.kubernetes.paths import Target
from farcall_local.kubernetes.place import Place
from farcall_local.kubernetes.resources import Answer, Asked, Resources, parsed
from farcall_local.kubernetes.store import Store

#: As the real server's limit, of etcd.
MAX_BODY = 3 * 1024 * 1024

_ROLES_S = 0.5
"""After its start the server has read no roles; a real one takes about a second."""

_log = logging.getLogger("farcall")


class ApiServer:
    """Answers requests for the objects of a store.

    Args:
        store: Has the objects.
        place: Where to listen, and whose tokens are good.
        resources: Carries requests out.
        logs: What pods have written.

    Attributes:
        access: Who may do what.
        faults: What is to go wrong, and how much was asked.
    """

    def __init__(self, store: Store, place: Place, resources: Resources, logs: Logs) -> None:
        self.access = Access(store, place.administrator)
        self.access.add("restricted", place.restricted)
        self.faults = Faults(store)
        self._store = store
        self._place = place
        self._resources = resources
        self._logs = logs
        self._runner: web.ServerRunner | None = None
        self._started_at = 0.0

    async def start(self) -> None:
        """Take connections, again after a `stop`."""
        listener = self._place.listener
        if listener.fileno() < 0:
            listener = self._place.reopen()
        server = web.Server(self._handle, handler_cancellation=True)
        self._runner = web.ServerRunner(server, access_log=None)
        await self._runner.setup()
        site = web.SockSite(self._runner, listener, ssl_context=self._place.tls(), backlog=1024)
        await site.start()
        self._started_at = time.monotonic()

    async def stop(self) -> None:
        """Cut all connections and take no more; the objects stay."""
        if self._runner is None:
            return
        runner, self._runner = self._runner, None
        self.faults.cut_all()
        server = runner.server
        if server is not None:
            for connection in list(server.connections):
                if connection.transport is not None:
                    connection.transport.abort()
        await runner.cleanup()  # which closes the socket, too

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except StatusError as error:
            return _refusal(error)
        except asyncio.CancelledError:
            raise
        except ConnectionError:  # the client has disconnected
            return web.Response()
        except Exception:
            _log.exception("The local Kubernetes emulator has failed")
            return _refusal(StatusError("an error on the server has prevented the request"))

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        user = self.access.user(request.headers.get("Authorization", ""))
        self.faults.check_throttle()
        if path in ("/healthz", "/livez", "/readyz"):
            return web.Response(text="ok")
        plain = discovery.answer(path)
        if plain is not None:
            if request.method not in ("GET", "HEAD"):
                raise MethodNotAllowedError
            self.faults.count(f"get {path}")
            return _json(plain)
        body = await _body(request)
        if kind := discovery.review(path):
            self.faults.count(f"create {path.rpartition('/')[2]}")
            return self._review(request, user, kind, body)
        return await self._resource(request, user, body)

    async def _resource(
        self, request: web.BaseRequest, user: User, body: bytes
    ) -> web.StreamResponse:
        query = dict(request.query)
        target = paths.parse(request.method, request.path, query)
        self.faults.count(f"{target.verb} {target.resource}")
        has_roles = time.monotonic() - self._started_at > _ROLES_S
        self.access.check(user, target, _selected_name(query), has_roles=has_roles)
        form = tables.wanted(request.headers.get("Accept", ""), query.get("includeObject", ""))
        if target.verb == "watch":
            selects = self._resources.selected(target, query)
            asked = watching.Asked(target, query, form)
            return await watching.send(self._store, request, asked, selects, self.faults)
        if target.subresource == "log":
            pod = self._resources.answer(
                Asked(Target("get", POD, target.namespace, target.name), {}, "", b"")
            ).document
            return await send_log(self._logs, request, pod)
        answer = self._resources.answer(Asked(target, query, _content_type(request), body))
        if target.verb == "create" and query.get("dryRun") != "All":
            self.faults.lose(request)
        return _shown(answer, target, form)

    def _review(
        self, request: web.BaseRequest, user: User, kind: str, body: bytes
    ) -> web.Response:
        if request.method != "POST":
            raise MethodNotAllowedError
        document = parsed(body, _content_type(request))
        if not isinstance(document, dict) or document.get("kind", kind) != kind:
            raise BadRequestError(f"the object provided is no {kind}")
        spec = document.get("spec") or {}
        status = access.review(self.access, user, kind, spec)
        return _json({**document, "status": status}, 201)


def _content_type(request: web.BaseRequest) -> str:
    return request.content_type if "Content-Type" in request.headers else ""


def _selected_name(query: dict[str, str]) -> str:
    """Return the one name that a field selector asks for."""
    selector = query.get("fieldSelector", "")
    name, _, value = selector.partition("=")
    return value.lstrip("=") if name == "metadata.name" and "," not in value else ""


def _shown(answer: Answer, target: Target, form: tables.Form) -> web.Response:
    document = tables.render(form, target, answer.document)
    response = _json(document, answer.status)
    for warning in answer.warnings:
        told = warning.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{told}"')
    return response


def _refusal(error: StatusError) -> web.Response:
    response = _json(error.status(), error.code)
    if isinstance(error, TooManyRequestsError):
        response.headers["Retry-After"] = str(error.details["retryAfterSeconds"])
    return response


def _json(document: dict[str, Any], status: int = 200) -> web.Response:
    return web.json_response(document, status=status)


async def _body(request: web.BaseRequest) -> bytes:
    parts, size = [], 0
    async for part in request.content.iter_any():
        size += len(part)
        if size > MAX_BODY:
            error = StatusError(f"Request entity too large: limit is {MAX_BODY}")
            error.code, error.reason = 413, "RequestEntityTooLarge"
            raise error
        parts.append(part)
    return b"".join(parts)
