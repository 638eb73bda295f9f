"""WSGI application and HTTP handler for all services on one port.

After `farcall_local.services.admission` has accepted the sender, Batch requests are handled here,
and all others by moto. As in moto, the signature's credential scope names the service.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import socket
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterable
from email.message import Message
from typing import TYPE_CHECKING, Any, Protocol
from xml.sax.saxutils import escape

from moto.backends import get_backend
from moto.iam.access_control import PermissionResult
from moto.moto_server import werkzeug_app
from moto.moto_server.werkzeug_app import create_backend_app
from moto.s3.models import FakeBucket
from werkzeug.serving import WSGIRequestHandler

from farcall_local import names
from farcall_local.batch.api import Request, Response
from farcall_local.batch.errors import DropConnectionError
from farcall_local.runners import credentials as role_credentials
from farcall_local.runners.credentials import RoleCredentials
from farcall_local.services import bodies, error_responses, objects, signatures
from farcall_local.services.admission import Admission, Caller
from farcall_local.services.error_responses import Reason, RefusedError
from farcall_local.services.signatures import AccessKey
from farcall_runtime.unpacking import NO_ROOM

#: Paths of farcall's own development calls; no bucket's name begins with an underscore.
CONTROL_PATH = "/_farcall/"

#: moto's services that farcall and its jobs use.
SERVICES: tuple[Any, ...] = ("s3", "logs", "iam", "sts")

_FULL = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>NoSpace</Code><Message>The local AWS '
    "emulator has no space in {folder}. Free disk space there, or start it with another TMPDIR."
    "</Message></Error>"
)

#: Key of the sender in a request's environment.
_CALLER = "farcall.caller"

#: Service name in the signatures of development calls.
CONTROL_SERVICE = "farcall"
#: Paths of moto's own API, and of its instance metadata, which includes keys.
_BLOCKED_PATHS = ("/moto-api", "/favicon.ico", "/latest/meta-data", "/latest/api")

if TYPE_CHECKING:
    from farcall_local.runners.runner import Runner
    from farcall_local.services.server import LocalServer

_log = logging.getLogger("farcall")

StartResponse = Callable[..., Any]
Application = Callable[[dict[str, Any], StartResponse], Iterable[bytes]]


class Extension(Protocol):
    """Services and permissions that farcall's tests add.

    Attributes:
        enforces_permissions: Whether jobs have the keys of their roles instead of the account's.
        is_empty: Whether the account starts without the resources that farcall needs.
        environment: Variables for clients, in addition to the emulator's.
    """

    enforces_permissions: bool
    is_empty: bool
    environment: dict[str, str]

    def attach(self, server: LocalServer) -> None:
        """Receive the server, before its first request."""

    async def start(self, runner: Runner, cpus: int) -> None:
        """Start services on Batch's event loop, with its runner and number of CPUs."""

    async def close(self) -> None:
        """Stop these services, before the runner is closed."""

    def respond(
        self, caller: Caller, environ: dict[str, Any], start_response: StartResponse
    ) -> Iterable[bytes]:
        """Handle a request, with `Front.respond` unless it is for another service."""

    def control(self, name: str, document: dict[str, Any]) -> dict[str, Any] | None:
        """Carry out a development call; return None if it is not one of this extension's."""

    def log_objection(
        self, role_arn: str, session: str, action: str, group: str, stream: str
    ) -> str | None:
        """Return the reason why an execution role may not write a log, or None if it may."""


@functools.cache
def _regions() -> frozenset[str]:
    """Return the regions that moto knows; for others its services raise KeyError."""
    return frozenset(get_backend("logs")[names.ACCOUNT_ID].regions)


class Front:
    """Router of requests to Batch, the development calls or moto.

    moto's backends are plain dictionaries, and its S3 checks for an object before it stores it, so
    two concurrent conditional writes would both succeed. So each service has a lock. Its requests
    run in sequence, which costs nothing, because the interpreter lock is shared anyway. Bodies are
    received and sent without the lock.

    Args:
        batch: Handles a Batch request; called from many threads.
        control: Handles a development call, given its name and document.
        credentials: Keys of the jobs' roles.
        key: The account's own access key.
        host: Address that the server listens on.
        extension: Extension of tests; None if every sender may do everything.

    Attributes:
        locks: A lock for each of `SERVICES`.
        connections: Sockets of the open connections.
    """

    def __init__(
        self,
        batch: Callable[[Request], Response],
        control: Callable[[str, dict[str, Any]], Response],
        credentials: RoleCredentials,
        key: AccessKey,
        host: str,
        extension: Extension | None,
    ) -> None:
        self.extension = extension
        self._batch = batch
        self._credentials = credentials
        self._control = control
        self._apps: dict[str, Application] = {name: make_app(name) for name in SERVICES}
        self.locks = {name: threading.Lock() for name in SERVICES}
        self.connections: set[socket.socket] = set()
        self._admission = Admission(key, host, self.locks["iam"], self.locks["sts"])

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Handle a request of the server itself; other clients' requests go to `receive`."""
        scope = environ["HTTP_AUTHORIZATION"].split("/")
        return self.respond(scope[3], environ, start_response)

    def receive(
        self, environ: dict[str, Any], headers: Message, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Handle a request of another client.

        Args:
            environ: The request, whose body is unread.
            headers: Headers as received.
            start_response: Receives status and headers.
        """
        path, service = environ["PATH_INFO"], _presumed_service(environ)
        try:
            self._admission.reject_pages(headers, environ["werkzeug.socket"].getsockname()[0])
            if path.startswith(role_credentials.PATH):
                # They have a token instead of a signature.
                token = environ.get("HTTP_AUTHORIZATION", "")
                response = self._credentials.respond(environ["REQUEST_METHOD"], path, token)
                return _send(Response(*response), start_response)
            caller = environ[_CALLER] = self._identify(environ, headers)
            service = caller.signature.service
            is_motos = service not in self._apps and path.startswith(_BLOCKED_PATHS)
            if is_motos or path.startswith(CONTROL_PATH):
                return self._send_control(caller, environ, start_response)
            if self.extension is not None:
                return self.extension.respond(caller, environ, start_response)
            return self.respond(service, environ, start_response)
        except RefusedError as error:
            return _refuse(service, error, start_response)

    def _identify(self, environ: dict[str, Any], headers: Message) -> Caller:
        """Return the verified sender of a request, after reading and verifying its body."""
        request = signatures.Request(environ["REQUEST_METHOD"], environ["RAW_URI"], headers)
        caller = self._admission.find(request)
        signature = caller.signature
        if signature.service == "s3":
            signatures.verify(request, signature, caller.secret)
            bodies.receive(environ, request, caller)
        else:
            body = bodies.read(environ)
            signatures.verify(request, signature, caller.secret, hashlib.sha256(body).hexdigest())
        environ.pop(
            "HTTP_X_MOTO_ACCOUNT_ID", None
        )  # with this header, moto lets a client choose any account
        if signature.region not in _regions():
            text = f"There is no region {signature.region!r}; the emulator is in {names.REGION}."
            raise RefusedError(Reason.NO_REGION, text)
        if self._credentials.expired(signature.key_id):
            text = "The security token included in the request is expired"
            raise RefusedError(Reason.EXPIRED, text)
        return caller

    def _send_control(
        self, caller: Caller, environ: dict[str, Any], start_response: StartResponse
    ) -> Iterable[bytes]:
        """Respond to a development call, which only the account itself may make."""
        name = environ["PATH_INFO"].removeprefix(CONTROL_PATH)
        if caller.signature.service != CONTROL_SERVICE or caller.identity is not None:
            text = f"{environ['PATH_INFO']} is no call of AWS's."
            raise RefusedError(Reason.DENIED, text)
        document = json.loads(environ["wsgi.input"].read() or b"{}")
        return _send(self._control(name, document), start_response)

    def respond(
        self, service: str, environ: dict[str, Any], start_response: StartResponse
    ) -> Iterable[bytes]:
        """Respond to a request whose sender is verified."""
        if service == "batch":
            body = environ["wsgi.input"].read()
            request = Request(environ["REQUEST_METHOD"], environ["PATH_INFO"], body)
            return _send(self._batch(request), start_response)
        if service not in self._apps:
            text = f"The local AWS emulator has no service {service!r}."
            return _refuse(service, RefusedError(Reason.DENIED, text), start_response)
        app = self._apps[service]
        with self.locks[service], contextlib.ExitStack() as stack:
            if bodies.CONTENT in environ:
                stack.enter_context(objects.taking(environ[bodies.CONTENT]))
            if service == "s3" and _sends_content(environ):
                stack.enter_context(objects.sending())
                return app(environ, start_response)  # objects are read after the lock is released
            return list(app(environ, start_response))


# No web page may read a response. `Handler` removes the CORS headers of moto's own services.
_server: Any = werkzeug_app
_server.DISABLE_GLOBAL_CORS = True
# Bucket policies are not evaluated, because moto would ignore their conditions.
_bucket: Any = FakeBucket
_bucket.get_permission = lambda *_: PermissionResult.NEUTRAL


def make_app(service: Any) -> Any:
    """Create moto's application for a service."""
    app = create_backend_app(service)
    app.debug = False  # moto enables slow checks for Flask developers
    app.config["PROPAGATE_EXCEPTIONS"] = True
    return app


def _sends_content(environ: dict[str, Any]) -> bool:
    """Return whether moto forwards or copies an object without reading it."""
    if environ["REQUEST_METHOD"] == "GET":
        return True
    is_copy = "HTTP_X_AMZ_COPY_SOURCE" in environ
    return is_copy and "HTTP_X_AMZ_CHECKSUM_ALGORITHM" not in environ


def _presumed_service(environ: dict[str, Any]) -> str:
    """Return the probable service of an unsigned request, for the response's format."""
    path, target = environ["PATH_INFO"], environ.get("HTTP_X_AMZ_TARGET", "")
    if path.startswith(("/v1/", CONTROL_PATH)):  # a bucket's name has at least three letters
        return "batch"
    if target:
        return "logs"
    form = environ.get("CONTENT_TYPE", "").startswith("application/x-www-form-urlencoded")
    return "sts" if form and path == "/" else "s3"


def _refuse(service: str, error: RefusedError, start_response: StartResponse) -> list[bytes]:
    status, headers, body = error_responses.render(service, error)
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


# moto's own handler keeps underscores in S3 metadata; moto 5.2.0 lacks it.
_Handler: Any = getattr(werkzeug_app, "MotoRequestHandler", WSGIRequestHandler)


@functools.cache
def _warn_once(folder: str) -> None:
    _log.warning("no space in %s: free disk space, or start with another TMPDIR", folder)


def _full_disk() -> tuple[list[Any], list[bytes]]:
    """Return a response for a full disk, which clients do not repeat."""
    folder = tempfile.gettempdir()
    _warn_once(folder)
    data = _FULL.format(folder=escape(folder)).encode()
    return ["400 -", [("Content-Type", "application/xml")]], [data]


class Handler(_Handler):  # type: ignore[misc]
    """HTTP handler with persistent connections, unlike werkzeug's own handler.

    werkzeug closes the connection after each request, because it does not know whether the
    application has read the complete body. Here that is known, so the next request can follow.
    Each connection has its own thread, as usual in werkzeug's threaded server.

    Attributes:
        timeout: Time in seconds after which an idle connection is closed.
    """

    protocol_version = "HTTP/1.1"
    timeout = 60
    disable_nagle_algorithm = True
    wbufsize = -1

    def setup(self) -> None:
        """Register the connection, so that closing the server can close it."""
        super().setup()
        self.server.app.connections.add(self.connection)

    def handle(self) -> None:
        """Serve a connection to its end."""
        try:
            super().handle()
        except Exception:
            _log.exception("A connection broke")

    def finish(self) -> None:
        """Unregister the connection."""
        self.server.app.connections.discard(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def handle_expect_100(self) -> bool:
        """Request the body at once, because botocore waits up to a second for this."""
        is_accepted = bool(super().handle_expect_100())
        self.wfile.flush()
        return is_accepted

    def run_wsgi(self) -> None:
        """Respond to one request; called by werkzeug."""
        head: list[Any] = []
        try:
            environ = self.make_environ()
            stream = environ["wsgi.input"] = bodies.Body(environ)
        except ValueError:  # the address is invalid, or the length is not a number
            self.close_connection = True
            self._write("400 -", [], [])
            return
        try:
            body = self.server.app.receive(
                environ, self.headers, lambda *given: head.extend(given)
            )
            stream.drain()
        except (DropConnectionError, bodies.BrokenBodyError):
            self.close_connection = True
            return
        except Exception as error:
            if getattr(error, "errno", None) in NO_ROOM:
                head, body = _full_disk()
                with contextlib.suppress(bodies.BrokenBodyError):
                    stream.drain()
            else:
                _log.exception("%r %r broke", self.command, self.path)
                head, body = ["500 -", []], []
        if not stream.at_end:
            self.close_connection = True
        status, headers = head[:2]
        self._write(status, headers, body)

    def _write(self, status: str, headers: list[tuple[str, str]], body: Iterable[bytes]) -> None:
        code, _, phrase = status.partition(" ")
        self.send_response_only(int(code), phrase)
        if not any(name.lower() == "content-length" for name, _ in headers):
            body = list(body)
            self.send_header("Content-Length", str(sum(map(len, body))))
        for name, value in headers:
            if not name.lower().startswith("access-control-"):  # no web page may read a response
                self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            for chunk in body:
                self.wfile.write(chunk)
        self.wfile.flush()

    def log(self, *_: Any) -> None:
        """Log nothing: senders without the key must not write to the user's terminal."""
