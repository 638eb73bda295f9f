"""One port for all services: the WSGI application and the HTTP handler under it.

Batch is answered here, everything else by moto. The service is read from the credential scope of
the signature, as moto does it; the signature itself is checked only where permissions are.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import socket
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from moto.backends import get_backend
from moto.moto_server import werkzeug_app
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler

from farcall.local import credentials as role_credentials
from farcall.local import names, receiving, refusals
from farcall.local.actions import Call, doomed_keys
from farcall.local.api import Request, Response
from farcall.local.credentials import RoleCredentials
from farcall.local.errors import DropConnectionError
from farcall.local.permissions import Guard
from farcall.local.refusals import Reason, RefusedError

#: Paths of farcall's own development calls; no bucket's name begins with an underscore.
CONTROL_PATH = "/_farcall/"

#: What farcall, its jobs and its completion events use of moto.
SERVICES: tuple[Any, ...] = ("s3", "logs", "iam", "sts", "events", "sqs")

_SCOPE = re.compile(r"Credential=[^/,\s]+/[^/,\s]+/[^/,\s]+/([^/,\s]+)/aws4_request")

_log = logging.getLogger(__name__)

StartResponse = Callable[..., Any]
Application = Callable[[dict[str, Any], StartResponse], Iterable[bytes]]


class Front:
    """Sends each request to Batch, to the development calls or to moto.

    moto's backends are plain dictionaries, and its S3 looks for an object and then stores it, so
    two conditional writes at once would both succeed. Hence one lock for each service; requests
    of one service follow one another, which costs nothing where one interpreter lock is shared
    anyway. Bodies are received and sent outside of the lock.

    Args:
        batch: Answers a Batch request; called from many threads.
        control: Answers a development call, given its name and document.
        credentials: The keys of the jobs' roles.

    Attributes:
        guard: Checks signatures and permissions; None lets everybody do everything.
        refill: Is given a queue of moto's, under SQS's lock, before messages are taken from it.
        locks: A lock for each of `SERVICES`; ``""`` is for all others.
        connections: The sockets of the open connections.
    """

    def __init__(
        self,
        batch: Callable[[Request], Response],
        control: Callable[[str, dict[str, Any]], Response],
        credentials: RoleCredentials,
    ) -> None:
        self.guard: Guard | None = None
        self.refill: Callable[[Any], None] = lambda queue: None
        self._batch = batch
        self._credentials = credentials
        self._control = control
        # moto's dispatcher lists its own directory for each request, a third of a small PUT.
        self._apps: dict[str, Application] = {name: create_backend_app(name) for name in SERVICES}
        self._dispatcher: Application = DomainDispatcherApplication(create_backend_app)
        self.locks = {name: threading.Lock() for name in (*SERVICES, "")}
        self.locks["events"] = self.locks["sqs"]  # what one is given it puts into the other
        self.connections: set[socket.socket] = set()

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        path = environ["PATH_INFO"]
        service = _service(environ)
        authorization = environ.get("HTTP_AUTHORIZATION", "")
        if path.startswith(role_credentials.PATH):
            method = environ["REQUEST_METHOD"]
            status, answer = self._credentials.answer(method, path, authorization)
            return _send(Response(status, answer), start_response)
        if path.startswith(CONTROL_PATH):
            document = json.loads(environ["wsgi.input"].read() or b"{}")
            return _send(self._control(path[len(CONTROL_PATH) :], document), start_response)
        # A bucket's name has at least three letters, so /v1/ is no path of S3.
        if service is None and path.startswith("/v1/"):
            service = "batch"
        if self._credentials.expired(authorization):
            text = "The security token included in the request is expired"
            return _refuse(service, RefusedError(Reason.EXPIRED, text), start_response)
        if self.guard is not None:
            return self._guarded(self.guard, service, environ, start_response)
        return self._answer(service, environ, start_response)

    def _guarded(
        self,
        guard: Guard,
        service: str | None,
        environ: dict[str, Any],
        start_response: StartResponse,
    ) -> Iterable[bytes]:
        """Answer a request if its sender has the permissions for it."""
        call = _call(service or "", environ)
        answered: list[Any] = []
        try:
            hidden = guard.admit(call)
        except RefusedError as error:
            return _refuse(service, error, start_response, doomed_keys(call))
        body = self._answer(service, environ, lambda *given: answered.extend(given))
        if hidden is not None and answered[0].startswith("404"):
            return _refuse(service, hidden, start_response)
        start_response(*answered)
        return body

    def _answer(
        self, service: str | None, environ: dict[str, Any], start_response: StartResponse
    ) -> Iterable[bytes]:
        if service == "batch":
            body = environ["wsgi.input"].read()
            method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
            request = Request(method, path, environ["QUERY_STRING"], body)
            return _send(self._batch(request), start_response)
        app = self._apps.get(service or "", self._dispatcher)
        if service == "sqs" and receiving.may_wait(environ):
            sqs = get_backend("sqs")[names.ACCOUNT_ID][names.REGION]
            lock = self.locks["sqs"]
            return receiving.receive(sqs, environ, start_response, app, lock, self.refill)
        with self.locks.get(service or "s3", self.locks[""]):
            return list(app(environ, start_response))


def _service(environ: dict[str, Any]) -> str | None:
    found = _SCOPE.search(environ.get("HTTP_AUTHORIZATION", ""))
    return found[1] if found else None


def _call(service: str, environ: dict[str, Any]) -> Call:
    """Return a request as its signature covers it."""
    headers = {
        name.removeprefix("HTTP_").replace("_", "-").title(): value
        for name, value in environ.items()
        if name.startswith("HTTP_") or name in ("CONTENT_TYPE", "CONTENT_LENGTH")
    }
    method, body = environ["REQUEST_METHOD"], b""
    if service != "s3" or method == "POST":
        body = environ["wsgi.input"].read()
        environ["wsgi.input"].seek(0)
    return Call(service, method, environ["RAW_URI"], headers, body)


def _refuse(
    service: str | None,
    error: RefusedError,
    start_response: StartResponse,
    doomed: Sequence[str] = (),
) -> list[bytes]:
    status, headers, body = refusals.answer(service or "s3", error, doomed)
    start_response(status, headers)
    return [body]


def _send(response: Response, start_response: StartResponse) -> list[bytes]:
    body = json.dumps(response.document).encode()
    headers = [
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
        ("Server", names.SERVER),
        ("x-amzn-RequestId", str(uuid.uuid4())),
    ]
    if response.error:
        headers.append(("x-amzn-ErrorType", response.error))
    start_response(f"{response.status} -", headers)
    return [body]


# moto's own handler keeps underscores in S3 metadata; moto before 5.2 has none.
_Handler: Any = getattr(werkzeug_app, "MotoRequestHandler", WSGIRequestHandler)


class Handler(_Handler):  # type: ignore[misc]
    """Serves many requests on one connection, which werkzeug's own handler does not.

    werkzeug closes after each request because it cannot tell whether the application has read
    the whole body. Here the body is read first, so the next request is known to begin after it.
    A connection has a thread of its own, as everywhere in werkzeug's threaded server.
    """

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def setup(self) -> None:
        """Remember the connection, so that closing the server can close it."""
        super().setup()
        self.server.app.connections.add(self.connection)

    def finish(self) -> None:
        """Forget the connection."""
        self.server.app.connections.discard(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def handle_expect_100(self) -> bool:
        """Ask for the body at once: botocore waits a second for this before each upload."""
        going_on = bool(super().handle_expect_100())
        self.wfile.flush()
        return going_on

    def run_wsgi(self) -> None:
        """Answer one request; named and called by werkzeug."""
        environ = self.make_environ()
        length = int(environ.get("CONTENT_LENGTH") or 0)
        chunked = environ.get("wsgi.input_terminated")
        stream = environ["wsgi.input"]
        environ["wsgi.input"] = io.BytesIO(stream.read() if chunked else stream.read(length))
        answer: list[Any] = []
        try:
            body = self.server.app(environ, lambda *given: answer.extend(given))
        except DropConnectionError:
            self.close_connection = True
            return
        except Exception:
            _log.exception("%s %s broke", self.command, self.path)
            answer, body = ["500 -", []], []
        status, headers = answer[:2]
        self._answer(status, headers, body)

    def _answer(self, status: str, headers: list[tuple[str, str]], body: list[bytes]) -> None:
        code, _, phrase = status.partition(" ")
        self.send_response_only(int(code), phrase)
        for name, value in headers:
            self.send_header(name, value)
        if not any(name.lower() == "content-length" for name, _ in headers):
            self.send_header("Content-Length", str(sum(map(len, body))))
        self.end_headers()
        if self.command != "HEAD":
            for chunk in body:
                self.wfile.write(chunk)
        self.wfile.flush()

    def log_message(self, *_: Any) -> None:
        """Log nothing: a poll every quarter of a second would drown the rest."""
