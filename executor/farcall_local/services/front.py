"""One port for all services: the WSGI application and the HTTP handler under it.

Batch is answered here, everything else by moto, once `farcall_local.services.admission` has let
the sender in. The service is read from the credential scope of the signature, as moto does it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import socket
import threading
import uuid
from collections.abc import Callable, Iterable
from email.message import Message
from typing import TYPE_CHECKING, Any, Protocol

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
from farcall_local.services import bodies, error_responses, logs, objects, signatures
from farcall_local.services.admission import Admission, Caller
from farcall_local.services.error_responses import Reason, RefusedError
from farcall_local.services.signatures import AccessKey

#: Paths of farcall's own development calls; no bucket's name begins with an underscore.
CONTROL_PATH = "/_farcall/"

#: moto's services that farcall and its jobs use.
SERVICES: tuple[Any, ...] = ("s3", "logs", "iam", "sts")

#: Key of the sender in a request's environment.
_CALLER = "farcall.caller"

#: The service that development calls are signed for.
CONTROL_SERVICE = "farcall"
#: moto's own API, and what it puts instead of an instance's metadata, keys included.
_SHUT = ("/moto-api", "/favicon.ico", "/latest/meta-data", "/latest/api")

if TYPE_CHECKING:
    from farcall_local.services.server import LocalServer

_log = logging.getLogger("farcall")

StartResponse = Callable[..., Any]
Application = Callable[[dict[str, Any], StartResponse], Iterable[bytes]]


class Extension(Protocol):
    """Services and permissions that farcall's own tests add.

    Attributes:
        enforces_permissions: Whether jobs have the keys of their roles, and not the account's.
        is_empty: Whether the account begins without the resources that farcall needs.
    """

    enforces_permissions: bool
    is_empty: bool

    def attach(self, server: LocalServer) -> None:
        """Take the server, before its first request."""

    def answer(
        self, caller: Caller, environ: dict[str, Any], start_response: StartResponse
    ) -> Iterable[bytes]:
        """Answer a request, by `Front.answer` unless it is for another service."""

    def control(self, name: str, document: dict[str, Any]) -> dict[str, Any] | None:
        """Carry out a development call; None where it is none of this one's."""

    def log_objection(
        self, role_arn: str, session: str, action: str, group: str, stream: str
    ) -> str | None:
        """Return why an execution role may not write a log; None where it may."""


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
        key: The account's own.
        host: The address the server listens on.
        extension: What tests add; None where every sender may do everything.

    Attributes:
        locks: A lock for each of `SERVICES`.
        connections: The sockets of the open connections.
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
        return self.answer(scope[3], environ, start_response)

    def receive(
        self, environ: dict[str, Any], headers: Message, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Handle a request of another client.

        Args:
            environ: The request, whose body is still to be read.
            headers: As they came.
            start_response: Takes status and headers.
        """
        path, service = environ["PATH_INFO"], _presumed_service(environ)
        try:
            self._admission.turn_away(headers, environ["werkzeug.socket"].getsockname()[0])
            if path.startswith(role_credentials.PATH):
                # Their token stands instead of a signature.
                token = environ.get("HTTP_AUTHORIZATION", "")
                answer = self._credentials.answer(environ["REQUEST_METHOD"], path, token)
                return _send(Response(*answer), start_response)
            caller = environ[_CALLER] = self._identify(environ, headers)
            service = caller.signature.service
            is_motos = service not in self._apps and path.startswith(_SHUT)
            if is_motos or path.startswith(CONTROL_PATH):
                return self._send_control(caller, environ, start_response)
            if self.extension is not None:
                return self.extension.answer(caller, environ, start_response)
            return self.answer(service, environ, start_response)
        except RefusedError as error:
            return _refuse(service, error, start_response)

    def _identify(self, environ: dict[str, Any], headers: Message) -> Caller:
        """Find out who has sent a request; its body is read then, and found to be theirs."""
        target = environ["RAW_URI"]
        if not target.startswith("/"):
            raise RefusedError(Reason.INCOMPLETE, "A request line names a path, and no server.")
        request = signatures.Request(environ["REQUEST_METHOD"], target, headers)
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
        if self._credentials.expired(signature.key_id):
            text = "The security token included in the request is expired"
            raise RefusedError(Reason.EXPIRED, text)
        return caller

    def _send_control(
        self, caller: Caller, environ: dict[str, Any], start_response: StartResponse
    ) -> Iterable[bytes]:
        """Answer a development call, which is the account's own alone."""
        name = environ["PATH_INFO"].removeprefix(CONTROL_PATH)
        if caller.signature.service != CONTROL_SERVICE or caller.identity is not None:
            text = f"{environ['PATH_INFO']} is no call of AWS's."
            raise RefusedError(Reason.DENIED, text)
        document = json.loads(environ["wsgi.input"].read() or b"{}")
        return _send(self._control(name, document), start_response)

    def answer(
        self, service: str, environ: dict[str, Any], start_response: StartResponse
    ) -> Iterable[bytes]:
        """Answer a request whose sender is known."""
        if service == "batch":
            body = environ["wsgi.input"].read()
            method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
            request = Request(method, path, environ["QUERY_STRING"], body)
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
                return app(environ, start_response)  # an object is read when the lock is free
            return list(app(environ, start_response))


# No web page may read a response. `Handler` removes the CORS headers of moto's own services.
_server: Any = werkzeug_app
_server.DISABLE_GLOBAL_CORS = True
logs.install()
# Bucket policies are not evaluated, because moto would ignore their conditions.
_bucket: Any = FakeBucket
_bucket.get_permission = lambda *_: PermissionResult.NEUTRAL


def make_app(service: Any) -> Any:
    """Make moto's application of a service."""
    app = create_backend_app(service)
    app.debug = False  # moto's choice, which looks for mistakes of Flask's users, at a price
    app.config["PROPAGATE_EXCEPTIONS"] = True
    return app


def _sends_content(environ: dict[str, Any]) -> bool:
    """Return whether moto passes an object on, or copies it, without looking at it."""
    if environ["REQUEST_METHOD"] == "GET":
        return True
    is_copy = "HTTP_X_AMZ_COPY_SOURCE" in environ
    return is_copy and "HTTP_X_AMZ_CHECKSUM_ALGORITHM" not in environ


def _presumed_service(environ: dict[str, Any]) -> str:
    """Return the service that a request without a signature may be for, to answer in its form."""
    path, target = environ["PATH_INFO"], environ.get("HTTP_X_AMZ_TARGET", "")
    if path.startswith(("/v1/", CONTROL_PATH)):  # a bucket's name has at least three letters
        return "batch"
    if target:
        return "logs"
    form = environ.get("CONTENT_TYPE", "").startswith("application/x-www-form-urlencoded")
    return "sts" if form and path == "/" else "s3"


def _refuse(service: str, error: RefusedError, start_response: StartResponse) -> list[bytes]:
    status, headers, body = error_responses.answer(service, error)
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


# moto's own handler keeps underscores in S3 metadata; moto 5.2.0 has none.
_Handler: Any = getattr(werkzeug_app, "MotoRequestHandler", WSGIRequestHandler)


class Handler(_Handler):  # type: ignore[misc]
    """Serves many requests on one connection, which werkzeug's own handler does not.

    werkzeug closes after each request because it cannot say whether the application has read
    the whole body. Here that is known, so the next request is known to begin after it.
    A connection has a thread of its own, as everywhere in werkzeug's threaded server.

    Attributes:
        timeout: Seconds after which a connection is closed on which nothing comes or is taken.
    """

    protocol_version = "HTTP/1.1"
    timeout = 60
    disable_nagle_algorithm = True
    wbufsize = -1

    def setup(self) -> None:
        """Remember the connection, so that closing the server can close it."""
        super().setup()
        self.server.app.connections.add(self.connection)

    def handle(self) -> None:
        """Serve a connection to its end."""
        try:
            super().handle()
        except Exception:
            _log.exception("A connection broke")

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
        answer: list[Any] = []
        try:
            environ = self.make_environ()
            stream = environ["wsgi.input"] = bodies.Body(environ)
        except ValueError:  # the address is none, or the length is no number
            self.close_connection = True
            self._answer("400 -", [], [])
            return
        try:
            body = self.server.app.receive(
                environ, self.headers, lambda *given: answer.extend(given)
            )
            stream.drain()
        except (DropConnectionError, bodies.BrokenBodyError):
            self.close_connection = True
            return
        except Exception:
            _log.exception("%r %r broke", self.command, self.path)
            answer, body = ["500 -", []], []
        if not stream.at_end:
            self.close_connection = True
        status, headers = answer[:2]
        self._answer(status, headers, body)

    def _answer(self, status: str, headers: list[tuple[str, str]], body: Iterable[bytes]) -> None:
        code, _, phrase = status.partition(" ")
        self.send_response_only(int(code), phrase)
        if not any(name.lower() == "content-length" for name, _ in headers):
            body = list(body)
            self.send_header("Content-Length", str(sum(map(len, body))))
        for name, value in headers:
            if not name.lower().startswith("access-control-"):  # no page may read an answer
                self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            for chunk in body:
                self.wfile.write(chunk)
        self.wfile.flush()

    def log(self, *_: Any) -> None:
        """Log nothing: who does not have the key writes nothing on the user's terminal."""
