"""HTTPS server of the Kubernetes API, on the event loop of its controllers.

Sources:
    https://kubernetes.io/docs/reference/using-api/api-concepts/
    https://kubernetes.io/docs/reference/kubernetes-api/
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping

from aiohttp import web

from tests.emulators.kubernetes import kinds, selectors, tables
from tests.emulators.kubernetes.access import Access
from tests.emulators.kubernetes.endpoint import ClusterEndpoint
from tests.emulators.kubernetes.errors import (
    InternalError,
    NotFoundError,
    StatusError,
    TooManyRequestsError,
)
from tests.emulators.kubernetes.log_answers import PodLog, send_log
from tests.emulators.kubernetes.resources import ApiRequest, Resources
from tests.emulators.kubernetes.store import Store
from tests.emulators.kubernetes.watching import Watching

_log = logging.getLogger("farcall")


class Faults:
    """Faults that tests inject, and the counts of requests.

    Attributes:
        counts: Number of requests by verb and resource: ``create jobs``.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._lost = 0
        self._throttled = 0
        self._retry_after_s = 1

    def requests(self) -> dict[str, int]:
        """Return the number of requests since the start, such as ``{"create jobs": 2}``.

        ``429`` counts the requests that `throttle` rejected, which no other entry includes.
        """
        return dict(self.counts)

    def lose_response(self, count: int = 1) -> None:
        """Carry out the next creations, and close their connections without a response."""
        self._lost = count

    def throttle(self, count: int = 1, retry_after_s: int = 1) -> None:
        """Respond to the next requests with 429."""
        self._throttled, self._retry_after_s = count, retry_after_s

    def check_throttle(self) -> None:
        """Reject a request if it must be throttled.

        Raises:
            TooManyRequestsError: The request is throttled.
        """
        if self._throttled > 0:
            self._throttled -= 1
            self.counts["429"] += 1
            raise TooManyRequestsError(self._retry_after_s)

    def lose(self, request: web.BaseRequest) -> None:
        """Close the connection of a completed request if its response must be lost.

        Raises:
            ConnectionResetError: The response is lost.
        """
        if self._lost > 0:
            self._lost -= 1
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the response is lost")


class ApiServer:
    """API server for the objects of a store.

    Args:
        store: Holds the objects.
        endpoint: Address and tokens.
        logs: Output of pods by UID.

    Attributes:
        faults: Faults to inject, and the count of requests.
    """

    def __init__(
        self, store: Store, endpoint: ClusterEndpoint, logs: Mapping[str, PodLog]
    ) -> None:
        self.faults = Faults()
        self._access = Access(store, endpoint.tokens)
        self._store = store
        self._endpoint = endpoint
        self._resources = Resources(store)
        self._logs = logs
        self._runner: web.ServerRunner | None = None

    async def start(self) -> None:
        """Accept connections, again after a `stop`."""
        listener = self._endpoint.listener
        if listener.fileno() < 0:
            listener = self._endpoint.reopen()
        server = web.Server(self._handle, handler_cancellation=True)
        self._runner = web.ServerRunner(server, access_log=None)
        await self._runner.setup()
        site = web.SockSite(self._runner, listener, ssl_context=self._endpoint.tls(), backlog=1024)
        await site.start()

    async def restart(self) -> None:
        """Stop and start; the Roles are read again."""
        await self.stop()
        self._access.restart()
        await self.start()

    async def stop(self) -> None:
        """Close all connections and accept no more; the objects stay."""
        if self._runner is None:
            return
        self.cut_connections()
        runner, self._runner = self._runner, None
        await runner.cleanup()  # which closes the socket, too

    def cut_connections(self) -> None:
        """Close all connections, including those of watches."""
        server = self._runner.server if self._runner is not None else None
        for connection in server.connections if server is not None else ():
            if connection.transport is not None:
                connection.transport.abort()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._respond(request)
        except StatusError as error:
            return _refusal(error)
        except ConnectionError:  # the client has disconnected
            return web.Response()
        except web.HTTPException:  # the body is too large
            raise
        except Exception:
            _log.exception("The local Kubernetes emulator has failed")
            return _refusal(InternalError("an error on the server has prevented the request"))

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        path, query = request.path, dict(request.query)
        user = self._access.user(request.headers.get("Authorization", ""))
        self.faults.check_throttle()
        found = kinds.discover(path) if request.method == "GET" else None
        if found is not None:
            self.faults.counts[f"get {path}"] += 1
            return web.json_response(found)
        body = await request.read()
        if (request.method, path) == ("POST", kinds.REVIEW_PATH):
            self.faults.counts["create selfsubjectaccessreviews"] += 1
            return web.json_response(self._access.review(user, json.loads(body)), status=201)
        target = kinds.parse(request.method, path, query)
        if target is None:
            raise NotFoundError("the server could not find the requested resource")
        self.faults.counts[f"{target.verb} {target.resource}"] += 1
        self._access.check(user, target)
        if target.subresource == "log":
            pod = self._resources.get(target)
            return await send_log(self._logs.get(pod["metadata"]["uid"]), request, pod)
        as_table = tables.is_wanted(request.headers.get("Accept", ""))
        if target.verb == "watch":
            selects = selectors.of(target, query)
            watching = Watching(self._store, target, query, selects, as_table=as_table)
            return await watching.send(request)
        wanted = ApiRequest(target, query, request.content_type, body)
        status, document = self._resources.handle(wanted)
        if target.verb == "create" and query.get("dryRun") != "All":
            self.faults.lose(request)
        if as_table:
            document = tables.render(target.kind, document)
        return web.json_response(document, status=status)


def _refusal(error: StatusError) -> web.Response:
    response = web.json_response(error.status(), status=error.code)
    if isinstance(error, TooManyRequestsError):
        response.headers["Retry-After"] = str(error.details["retryAfterSeconds"])
    return response
