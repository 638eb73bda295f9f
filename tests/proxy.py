"""A proxy before the embedded AWS: it counts what comes through, and lets things go wrong."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import re
import socket
import threading
import time
import urllib.parse
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

_SCOPE = re.compile(r"Credential=[^/,\s]+/[^/,\s]+/([^/,\s]+)/([^/,\s]+)/aws4_request")
_PASSED_ON = ("connection", "transfer-encoding", "content-length", "keep-alive")

#: How a request may go wrong: answered 500 or 503 or after some seconds; not passed on and the
#: connection closed; passed on and the connection closed without an answer, or within one.
FAULTS = ("error", "slow down", "slow", "reset", "lost", "truncated")
SLOW_S = 2.0


class Proxy:
    """Passes requests on; a context manager.

    Attributes:
        port: Its port of the loopback.
        url: Its address, to be given to an executor as ``endpoint_url``.
        counts: Requests by service and operation, such as ``batch submitjob``; of S3 by method
            and the part of the key that says what an object is, such as ``s3 PUT bundles``.
        regions: The same by region, such as ``us-east-1 batch submitjob``.
        answers: How often each operation was answered how, such as ``s3 PUT outcomes 200``.
        changes: For an operation of Batch a function that is given its answer and changes it.
        faults: For an operation, named as in `counts`, what its next requests meet: `FAULTS`.
    """

    def __init__(self, target: str) -> None:
        self.counts: Counter[str] = Counter()
        self.regions: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self.changes: dict[str, Callable[[dict[str, Any]], None]] = {}
        self.faults: defaultdict[str, list[str]] = defaultdict(list)
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        handler = type("Handler", (_Handler,), {"target": target, "proxy": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self.vanish()

    def vanish(self) -> None:
        """Close the port and every connection, as a network that is gone does."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def remembered(self, connection: http.client.HTTPConnection) -> Iterator[None]:
        """Have `vanish` close a connection, as long as the block lasts."""
        connection.connect()
        own = connection.sock
        self._connections.add(own)
        try:
            yield
        finally:
            self._connections.discard(own)

    def of(self, service: str) -> dict[str, int]:
        """Return the requests of one service, by operation."""
        start = f"{service} "
        return {k.removeprefix(start): n for k, n in self.counts.items() if k.startswith(start)}

    def change(self, target: str, content: bytes) -> bytes:
        """Return what is to be answered."""
        change = self.changes.get(target.rpartition("/")[2])
        if change is None:
            return content
        document = json.loads(content)
        change(document)
        return json.dumps(document).encode()

    def note(self, method: str, target: str, headers: http.client.HTTPMessage) -> tuple[str, str]:
        """Count a request; return its operation, and the fault it meets or an empty string."""
        found = _SCOPE.search(headers.get("Authorization", ""))
        region, service = found.groups() if found else ("", "s3")
        operation = f"{service} {_operation(service, method, target)}"
        with self._lock:
            self.counts[operation] += 1
            self.regions[f"{region} {operation}"] += 1
            faults = self.faults[operation]
            return operation, faults.pop(0) if faults else ""


def _operation(service: str, method: str, target: str) -> str:
    url = urllib.parse.urlsplit(target)
    if service == "batch":
        return url.path.rpartition("/")[2]
    if service != "s3":
        return method
    query = dict(urllib.parse.parse_qsl(url.query))
    kind = re.search(r"/v1/[^/]+/([a-z]+)", f"{url.path}/{query.get('prefix', '')}")
    return f"{'LIST' if 'prefix' in query else method} {kind[1] if kind else ''}".strip()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    target = ""
    proxy: Proxy

    def setup(self) -> None:
        super().setup()
        self.proxy._connections.add(self.connection)

    def finish(self) -> None:
        self.proxy._connections.discard(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def _pass_on(self) -> None:
        operation, fault = self.proxy.note(self.command, self.path, self.headers)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if fault in ("error", "slow down"):
            code, name = (500, "InternalError") if fault == "error" else (503, "SlowDown")
            self._answer(code, [], f"<Error><Code>{name}</Code></Error>".encode())
            return
        if fault == "slow":
            time.sleep(SLOW_S)
        if fault == "reset":
            self._hang_up()
            return
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(self.target).netloc)
        try:
            with contextlib.closing(connection), self.proxy.remembered(connection):
                connection.request(self.command, self.path, body, dict(self.headers))
                reply = connection.getresponse()
                content = self.proxy.change(self.path, reply.read())
        except ConnectionError:  # the proxy vanished, or what is behind it
            self.close_connection = True
            return
        with self.proxy._lock:
            self.proxy.answers[f"{operation} {reply.status}"] += 1
        if fault == "lost":
            self._hang_up()
            return
        length = reply.getheader("Content-Length") if self.command == "HEAD" else None
        self._answer(reply.status, reply.getheaders(), content, length, cut=fault == "truncated")

    def _answer(
        self,
        status: int,
        headers: list[tuple[str, str]],
        content: bytes,
        length: str | None = None,
        *,
        cut: bool = False,
    ) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in _PASSED_ON:
                self.send_header(name, value)
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            self._hang_up()

    def _hang_up(self) -> None:
        self.wfile.flush()
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on  # noqa: N815

    def log_message(self, *args: object) -> None: ...
