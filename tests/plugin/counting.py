"""A proxy before the embedded AWS that counts what comes through it, and may change answers."""

from __future__ import annotations

import http.client
import http.server
import json
import re
import threading
import urllib.parse
from collections import Counter
from collections.abc import Callable
from typing import Any

_SCOPE = re.compile(r"Credential=[^/,\s]+/[^/,\s]+/([^/,\s]+)/([^/,\s]+)/aws4_request")
_PASSED_ON = ("connection", "transfer-encoding", "content-length", "keep-alive")


class Counting:
    """Counts requests; a context manager.

    Attributes:
        url: Its address, to be given to an executor as ``endpoint_url``.
        counts: Requests by service and operation, such as ``batch submitjob``; of S3 by method
            and the part of the key that says what an object is, such as ``s3 PUT bundles``.
        regions: The same by region, such as ``us-east-1 batch submitjob``.
        changes: For an operation of Batch a function that is given its answer and changes it.
    """

    def __init__(self, target: str) -> None:
        self.counts: Counter[str] = Counter()
        self.regions: Counter[str] = Counter()
        self.changes: dict[str, Callable[[dict[str, Any]], None]] = {}
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"target": target, "counting": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

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

    def note(self, method: str, target: str, headers: http.client.HTTPMessage) -> None:
        found = _SCOPE.search(headers.get("Authorization", ""))
        region, service = found.groups() if found else ("", "s3")
        with self._lock:
            operation = f"{service} {_operation(service, method, target)}"
            self.counts[operation] += 1
            self.regions[f"{region} {operation}"] += 1


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
    counting: Counting

    def _pass_on(self) -> None:
        self.counting.note(self.command, self.path, self.headers)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(self.target).netloc)
        connection.request(self.command, self.path, body, dict(self.headers))
        reply = connection.getresponse()
        content = self.counting.change(self.path, reply.read())
        self.send_response(reply.status, reply.reason)
        for name, value in reply.getheaders():
            if name.lower() not in _PASSED_ON:
                self.send_header(name, value)
        length = reply.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        connection.close()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on  # noqa: N815

    def log_message(self, *args: object) -> None: ...
