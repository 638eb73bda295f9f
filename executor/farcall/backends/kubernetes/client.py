"""HTTP client of the Kubernetes API: paced requests with retries, and streams.

It uses aiohttp, which is a dependency anyway: the client packages add hundreds of modules for
models that farcall does not need.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import math
import os
import random
import socket
import ssl
import tempfile
import urllib.request
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from multidict import CIMultiDict

from farcall.backends.kubernetes.credentials import Credentials, Proof
from farcall.backends.kubernetes.error_translation import Call, KubeError, broken, place, refused
from farcall.backends.kubernetes.kubeconfig import Connection
from farcall.model import clock
from farcall.model.errors import FarcallError, SettingsError
from farcall.model.pacing import FIRST_WAIT_S, Limiter, Meter, Retries, RetryLog, Ticket
from farcall.model.timing import Timing

_log = logging.getLogger("farcall")

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"

_PER_S = 50.0
"""Maximum requests per second, as in kubectl.

https://github.com/kubernetes/kubernetes/pull/105520
"""

_AT_ONCE = 40
_LONGEST_PAUSE_S = 60.0
_SILENT_S = 120.0
"""Time in seconds after which a silent watch counts as disconnected.

Bookmarks arrive each minute.
"""

_LAST_CONNECTIONS_S = 2.0
_TURN_S = 0.001
_LARGEST_LINE_BYTES = 32 * 1024 * 1024
_SHOWN_CHARACTERS = 300
_UNAUTHORIZED = 401

LAPSE_S = 60.0
"""Time in seconds for which a denial (401, 403) by a starting API server is retried.

An API server denies requests until it has read the roles. It may be starting if a connection
ended within this time, or if it allowed the same request before.
"""

KUEUE_GROUP = "kueue.x-k8s.io"
_KUEUE_VERSION, _OLDER_KUEUE_VERSION = "v1beta2", "v1beta1"
_AGENT = "farcall"


def _nothing() -> None:
    return None


_UNANSWERED = (aiohttp.ClientError, OSError)


class Kube:
    """Requests to one API server, as one user.

    Args:
        connection: The server and the credentials.
        namespace: The jobs' namespace; empty for the connection's.
        timing: Retry limits.
        meter: Counter of the requests.

    Attributes:
        connection: The server and the credentials.
        namespace: The jobs' namespace.
        meter: Counter of the requests.
    """

    def __init__(
        self,
        connection: Connection,
        namespace: str,
        timing: Timing,
        meter: Meter | None = None,
    ) -> None:
        self.connection = connection
        self.namespace = namespace or connection.namespace
        self.meter = meter or Meter()
        self._timing = timing
        self._credentials = Credentials(connection)
        self._proxy = _proxy(connection)
        self._limiter = Limiter(_PER_S)
        self._retry_log = RetryLog()
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._paused_until = 0.0
        self._http: aiohttp.ClientSession | None = None
        self._certificate = ("", "")
        self._opening = asyncio.Lock()
        self._old: list[aiohttp.ClientSession] = []
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._is_closed = False
        self._allowed: set[tuple[str, str]] = set()
        self._cut_at = -math.inf
        self._kueue_version = ""

    @property
    def place(self) -> str:
        """The server and context, for messages."""
        return place(self.connection)

    def path(self, resource: str, name: str = "", *, group: str = "", version: str = "v1") -> str:
        """Return the path of a resource in the namespace.

        Args:
            resource: Such as ``pods``.
            name: Name of one object, optionally with a subresource after a slash.
            group: Such as ``batch``; empty for the core group.
            version: Version of the group.
        """
        root = f"/apis/{group}/{version}" if group else f"/api/{version}"
        end = f"/{name}" if name else ""
        return f"{root}/namespaces/{self.namespace}/{resource}{end}"

    async def kueue_path(self, resource: str, name: str = "") -> str:
        """Return the path of a Kueue resource, in the newest version that the cluster serves.

        Raises:
            KubeError: The server does not respond.
        """
        if not self._kueue_version:
            version = _KUEUE_VERSION
            try:
                await self.request("GET", f"/apis/{KUEUE_GROUP}/{version}")
            except KubeError as error:
                if error.is_missing:
                    version = _OLDER_KUEUE_VERSION
                elif not error.is_denial:
                    raise
            self._kueue_version = version
        return self.path(resource, name, group=KUEUE_GROUP, version=self._kueue_version)

    # --- single responses ----------------------------------------------------------------------

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        ticket: Ticket | None = None,
        retry_s: float | None = None,
    ) -> dict[str, Any]:
        """Make a request, with retries if the server fails temporarily.

        Every request may be repeated: a repeated create is refused because its name exists. A
        denial is retried, too, for `LAPSE_S`, if the server may be starting.

        Args:
            method: HTTP method.
            path: Path from the server's root.
            params: The query.
            body: JSON document to send.
            content_type: Media type of the body.
            ticket: The caller's handle to withdraw the request.
            retry_s: Maximum time from the first failure to the last retry, in seconds; by
                default from the timing.

        Raises:
            KubeError: The server refused, or failed each time.
            SettingsError: There are no credentials.
        """
        params = params or {}
        call = Call.of(method, path, params)
        limit_s = self._timing.call_retry_s if retry_s is None else retry_s
        longest_lapse_s = LAPSE_S if retry_s is None else min(retry_s, LAPSE_S)
        tries = _Tries(limit_s, self._retry_log)
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        while True:
            try:
                async with self._room:
                    return await self._once(call, method, path, params, data, content_type, ticket)
            except KubeError as error:
                if error.is_throttling:
                    await self._pause(error)
                    tries.record_throttled(error, self._timing.throttled_for_s)
                else:
                    if ticket is not None and not error.sent and not tries.was_sent:
                        ticket.record_refused()
                    may_start = error.is_denial and self._may_be_starting(call)
                    await tries.wait_after(error, longest_lapse_s if may_start else 0)

    async def _once(
        self,
        call: Call,
        method: str,
        path: str,
        params: Mapping[str, Any],
        data: bytes | None,
        content_type: str,
        ticket: Ticket | None,
    ) -> dict[str, Any]:
        await self._turn()
        pace = await self._limiter.turn()
        if ticket is not None:
            ticket.record_sent()
        try:
            async with self._answer(call, method, path, params, data, content_type) as answer:
                text = await answer.read()
        except KubeError as error:
            if error.is_throttling:
                self._limiter.throttled(pace)
                self.meter.record_throttled()
                if ticket is not None:
                    ticket.record_refused()
            raise
        except _UNANSWERED as error:
            raise self._broken(call, error) from error
        if call.namespace:
            self._allowed.add((call.verb, call.resource))
        return _parsed(call, self.connection, text)

    def _may_be_starting(self, call: Call) -> bool:
        """Return whether the server may deny a request because it is starting."""
        was_cut = clock.now() - self._cut_at < LAPSE_S
        return was_cut or (call.verb, call.resource) in self._allowed

    def _broken(self, call: Call, error: BaseException) -> KubeError:
        self._cut_at = clock.now()
        return broken(call, self.connection, error)

    async def _turn(self) -> None:
        while (wait_s := self._paused_until - clock.now()) > 0:  # noqa: ASYNC110  # may grow
            await asyncio.sleep(wait_s)

    async def _pause(self, error: KubeError) -> None:
        """Pause all requests for the server's delay, with jitter to spread the clients."""
        wait_s = min(error.retry_after_s or 1.0, _LONGEST_PAUSE_S)
        wait_s *= random.uniform(1, 1.5)  # noqa: S311  # no secret
        self._paused_until = max(self._paused_until, clock.now() + wait_s)

    # --- streams ------------------------------------------------------------------------------

    async def watch(
        self, path: str, params: Mapping[str, Any], opened: Callable[[], object] = _nothing
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the events of a watch until the server ends it.

        Args:
            path: Path of the list.
            params: Its query.
            opened: Called when the server has accepted the request.

        Raises:
            KubeError: The server refused, or the connection broke; there are no retries.
        """
        wanted = {**params, "watch": "true", "allowWatchBookmarks": "true"}
        call = Call.of("GET", path, wanted)
        async with contextlib.aclosing(self.stream(path, wanted, opened=opened)) as lines:
            async for line in lines:
                event = _parsed(call, self.connection, line)
                if event.get("type") == "ERROR":
                    status = event.get("object") or {}
                    raise refused(
                        call, self.connection, int(status.get("code") or 500), status, None
                    )
                yield event
        self._cut_at = clock.now()  # a server that stops ends its watches

    async def stream(
        self,
        path: str,
        params: Mapping[str, Any],
        *,
        silent_s: float = _SILENT_S,
        opened: Callable[[], object] = _nothing,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a response as they arrive, without line ends.

        Args:
            path: Path from the server's root.
            params: The query.
            silent_s: Time without data after which the connection is abandoned, in seconds.
            opened: Called when the server has accepted the request.

        Raises:
            KubeError: The server refused, or the connection broke; there are no retries.
        """
        call = Call.of("GET", path, params)
        await self._turn()
        await self._limiter.turn()
        try:
            async with self._answer(call, "GET", path, params, None, JSON, silent_s) as answer:
                opened()
                async for line in _lines(answer.content):
                    yield line
        except KubeError as error:
            if error.is_throttling:
                await self._pause(error)
            raise
        except _UNANSWERED as error:
            raise self._broken(call, error) from error

    # --- connections ---------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _answer(
        self,
        call: Call,
        method: str,
        path: str,
        params: Mapping[str, Any],
        data: bytes | None,
        content_type: str,
        silent_s: float | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request; renew the credentials if the server rejects them."""
        for is_last in (False, True):
            proof = await self._credentials.current()
            http = await self._session(proof)
            headers = CIMultiDict(self.connection.acts_as)
            headers["Accept"] = JSON
            if proof.authorization:
                headers["Authorization"] = proof.authorization
            if data is not None:
                headers["Content-Type"] = content_type
            self.meter.record_sent()
            sent_at = clock.now()
            async with http.request(
                method,
                f"{self.connection.server}{path}",
                params={name: str(value) for name, value in params.items()},
                data=data,
                headers=headers,
                timeout=self._timeout(silent_s),
                allow_redirects=False,
                proxy=self._proxy,
                server_hostname=self.connection.server_name or None,
            ) as answer:
                if answer.status < 300:
                    self.meter.record_answered(clock.now() - sent_at)
                    yield answer
                    return
                error = await self._refusal(call, answer)
            if is_last or answer.status != _UNAUTHORIZED or not self._credentials.may_renew:
                raise error
            self._credentials.expire(proof)

    async def _refusal(self, call: Call, answer: aiohttp.ClientResponse) -> KubeError:
        text = (await answer.read()).decode(errors="replace")
        document: Any
        try:
            document = json.loads(text)
        except ValueError:
            document = text.strip()[:_SHOWN_CHARACTERS]
        after = answer.headers.get("Retry-After")
        return refused(call, self.connection, answer.status, document, after)

    def _timeout(self, silent_s: float | None) -> aiohttp.ClientTimeout:
        timing = self._timing
        connect_s = timing.connect_timeout_s
        return aiohttp.ClientTimeout(
            total=None if silent_s else timing.request_timeout_s,
            sock_connect=connect_s,
            sock_read=silent_s or timing.read_timeout_s,
        )

    async def _session(self, proof: Proof) -> aiohttp.ClientSession:
        """Return the session for a certificate; a renewed one gets a new session."""
        async with self._opening:
            if self._is_closed:
                raise FarcallError("the connection to Kubernetes is closed")
            if self._http is None or proof.certificate != self._certificate:
                context = await asyncio.to_thread(_tls, self.connection, proof.certificate)
                if self._http is not None:
                    self._old.append(self._http)
                connector = aiohttp.TCPConnector(
                    limit=0, ssl=context, socket_factory=self._open_socket
                )
                self._http = aiohttp.ClientSession(
                    connector=connector,
                    headers={"User-Agent": _AGENT},
                    cookie_jar=aiohttp.DummyCookieJar(),
                )
                self._certificate = proof.certificate
            return self._http

    async def close(self) -> None:
        """Close all connections."""
        async with self._opening:
            self._is_closed = True
            for each in (*self._old, self._http):
                if each is not None:
                    await each.close()
        await self._last_connections()

    def _open_socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = address
        opened = socket.socket(family, kind, protocol)
        self._sockets.add(opened)
        return opened

    @property
    def _has_open(self) -> bool:
        return any(each.fileno() >= 0 for each in self._sockets)

    async def _last_connections(self) -> None:
        """Wait for connections of abandoned requests; aiohttp waits only for idle ones."""
        until = clock.now() + _LAST_CONNECTIONS_S
        while self._has_open and clock.now() < until:  # noqa: ASYNC110  # aiohttp reports none
            await asyncio.sleep(_TURN_S)


class _Tries(Retries):
    """Retries of one request, with the fact whether an attempt may have had an effect."""

    was_sent = False
    _throttled_since: float | None = None

    async def wait_after(self, error: KubeError, lapse_s: float) -> None:
        """Wait before the next retry; see `Retries.wait`.

        Args:
            error: Error of the last attempt.
            lapse_s: Time from the first failure for which a refusal may be temporary, in seconds.

        Raises:
            KubeError: No further retry is useful; it reports whether an attempt may have had an
                effect.
        """
        self._throttled_since = None
        self.was_sent = self.was_sent or error.sent
        self._limit_s = max(self._limit_s, lapse_s)
        may_pass = error.may_pass or self.spent_s < lapse_s
        if not await self.wait(
            error, may_pass=may_pass, first_s=error.retry_after_s or FIRST_WAIT_S
        ):
            raise self._last(error)

    def record_throttled(self, error: KubeError, limit_s: float) -> None:
        """Record that an attempt was throttled, so that it had no effect.

        Raises:
            KubeError: All attempts were throttled for the maximum time.
        """
        now = clock.now()
        self._throttled_since = self._throttled_since or now
        if now - self._throttled_since > limit_s:
            raise error

    def _last(self, error: KubeError) -> KubeError:
        is_refusal = not error.may_pass
        # A refusal describes the current state: no earlier attempt had an effect.
        error.sent = error.sent or (self.was_sent and not is_refusal)
        if self.count > 1 and not is_refusal:
            error.args = (f"{error.args[0]}; tried {self.count} times in {self.spent_s:.0f} s",)
        return error


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield lines as they arrive; large pods exceed the length limit of aiohttp's own."""
    begun: list[bytes] = []
    size = 0
    async for chunk in content.iter_any():
        first, *others = chunk.split(b"\n")
        begun.append(first)
        size += len(first)
        if size > _LARGEST_LINE_BYTES:
            raise aiohttp.ClientPayloadError("a line is too long")
        if others:
            yield b"".join(begun)
            for line in others[:-1]:
                yield line
            begun, size = [others[-1]], len(others[-1])
    if size:
        yield b"".join(begun)


def _parsed(call: Call, connection: Connection, text: bytes) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        shown = text[:_SHOWN_CHARACTERS].decode(errors="replace")
        raise refused(call, connection, 502, shown, None)
    return document


def _proxy(connection: Connection) -> str | None:
    """Return the proxy's URL from the kubeconfig, or from the environment."""
    if connection.proxy:
        return connection.proxy
    parts = urlsplit(connection.server)
    if _is_here(parts.hostname or ""):  # as in kubectl
        return None
    if urllib.request.proxy_bypass(parts.netloc):
        return None
    return urllib.request.getproxies().get(parts.scheme)


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _tls(connection: Connection, certificate: tuple[str, str]) -> ssl.SSLContext:
    """Return the TLS context of a connection.

    Raises:
        SettingsError: A certificate cannot be used.
    """
    try:
        context = ssl.create_default_context(cadata=connection.authority or None)
        if not connection.is_verified:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        # Python 3.13 requires extensions that the authorities of many clusters lack, for example
        # EKS's, and that Go does not require:
        # https://github.com/kubernetes-client/python/issues/2394
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if certificate[0]:
            _load(context, *certificate)
    except (ssl.SSLError, ValueError) as error:
        raise SettingsError(
            f"the certificates of {place(connection)} cannot be used: {error}; check "
            "certificate-authority, client-certificate and client-key in the kubeconfig file",
            option="kubeconfig",
        ) from error
    return context


def _load(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Load a certificate and its key into a context; ssl reads them only from a file."""
    handle, path = tempfile.mkstemp(prefix="farcall-", suffix=".pem")  # private by default
    try:
        with os.fdopen(handle, "w") as file:
            file.write(f"{certificate}\n{key}")
        context.load_cert_chain(path)
    finally:
        Path(path).unlink()


_KINDS = {"Job": "jobs", "Service": "services"}


def path_of(kube: Kube, document: Mapping[str, Any]) -> str:
    """Return the path of the list that contains an object."""
    group, _, version = str(document["apiVersion"]).rpartition("/")
    kind = str(document["kind"])
    return kube.path(_KINDS.get(kind, f"{kind.lower()}s"), group=group, version=version)
