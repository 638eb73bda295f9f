"""A proxy before a Batch endpoint that counts its requests, by operation and by answer."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import botocore.session

_OF_ONE_CONNECTION = ("connection", "keep-alive", "transfer-encoding", "content-length")


class Counted:
    """What went through.

    Attributes:
        url: Where to send requests.
        requests: Number of requests by operation.
        refused: Number of those that were answered with HTTP 429.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._lock = threading.Lock()

    def note(self, operation: str, status: int) -> None:
        """Count a request."""
        with self._lock:
            self.requests[operation] += 1
            if status == http.client.TOO_MANY_REQUESTS:
                self.refused[operation] += 1


@contextlib.contextmanager
def counted(endpoint: str) -> Iterator[Counted]:
    """Have a proxy before an endpoint, on a free port of the loopback."""
    operations = _operations()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {k: v for k, v in self.headers.items() if k.lower() != "connection"}
            connection = http.client.HTTPConnection(urlsplit(endpoint).netloc)
            try:
                connection.request("POST", self.path, body, headers)
                answer = connection.getresponse()
                content = answer.read()
            finally:
                connection.close()
            told.note(operations.get(self.path, self.path), answer.status)
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _OF_ONE_CONNECTION:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        told = Counted(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield told
        finally:
            server.shutdown()
            thread.join()


def _operations() -> dict[str, str]:
    """Return the names of Batch's operations by the path of their requests."""
    model = botocore.session.get_session().get_service_model("batch")
    return {model.operation_model(n).http["requestUri"]: n for n in model.operation_names}
