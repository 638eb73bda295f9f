"""One attempt of one task: the real runtime as a process, with faults on its way to S3."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import obstore
from obstore.store import S3Store

import farcall_runtime
from farcall import Settings, payload
from farcall.submission import Bundle
from farcall_runtime import envelope

RUNTIME_ROOT = Path(farcall_runtime.__file__).parents[1]

#: The container's entry point with other times than Batch's.
TIMED = """
import os, sys
from farcall_runtime import __main__, runner, times
__main__.leave(runner.run(os.environ, times.Times(*map(float, sys.argv[1:]))))
"""


def wait_until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


class Road:
    """The way to the embedded AWS: passes requests on, one a connection, and spoils some.

    Attributes:
        seen: Method, path and Authorization of each request.
        stored: Paths of the PUTs that S3 answered with 200.
        spoil: Given method and path, returns how to spoil the request: None, ``"hang"``,
            ``"lose"`` (S3's answer breaks off in the middle), or status and S3's error code, or
            200 and a JSON document.
    """

    def __init__(self, endpoint):
        self._target = urlsplit(endpoint).netloc
        self.seen = []
        self.stored = []
        self.spoil = lambda method, path: None
        self._closed = threading.Event()
        road = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                road._handle(self)

            do_PUT = do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815

            def log_message(self, *_args):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self._fillers = []
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def refuse(self):
        """Refuse connections from now on."""
        self._server.shutdown()
        self._server.server_close()

    def vanish(self):
        """Leave connections unanswered from now on: the kernel drops SYNs to a full queue."""
        self.refuse()
        listener = socket.create_server(("127.0.0.1", self.port), backlog=0)
        self._fillers.append(listener)
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", self.port))
            self._fillers.append(filler)

    def hang(self):
        """Take requests from now on and answer none."""
        self.spoil = lambda method, path: "hang"

    def count(self, method, part):
        """Return how many requests there were."""
        return sum(method == row[0] and part in row[1] for row in list(self.seen))

    def close(self):
        self._closed.set()
        for filler in self._fillers:
            filler.close()
        if not self._fillers:
            self.refuse()

    def _handle(self, request):
        length = int(request.headers.get("Content-Length") or 0)
        body = request.rfile.read(length)
        self.seen.append((request.command, request.path, request.headers["Authorization"]))
        fault = self.spoil(request.command, request.path)
        if fault == "hang":
            self._closed.wait()
            return
        if isinstance(fault, tuple):
            status, said = fault
            text = f"<Error><Code>{said}</Code><Message>Spoilt.</Message></Error>"
            if status == 200:
                text = json.dumps(said)
            _answer(request, status, {}, text.encode())
            return
        with contextlib.closing(http.client.HTTPConnection(self._target)) as onward:
            onward.request(request.command, request.path, body, dict(request.headers))
            reply = onward.getresponse()
            text = reply.read()
        if request.command == "PUT" and reply.status == 200:
            self.stored.append(request.path)
        if fault == "lose":
            request.wfile.write(b"HTTP/1.1 200 O")
            return
        headers = {k: v for k, v in reply.getheaders() if k.lower() != "transfer-encoding"}
        _answer(request, reply.status, headers, text)


def _answer(request, status, headers, text):
    request.send_response_only(status)
    for name, value in {**headers, "Content-Length": str(len(text))}.items():
        request.send_header(name, value)
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(text)


class Attempt:
    """A task's bundle in the bucket, and the process that runs it."""

    def __init__(self, aws, road, function, *args, calls=None, time_limit=300):
        bucket = aws.environment["FARCALL_S3_BUCKET_NAME"]
        settings = Settings(s3_bucket_name=bucket, retry_attempts=1)
        (arguments,) = payload.pack_calls([calls or [(args, {})]])
        self._bundle = Bundle(
            settings.model_copy(update={"time_limit": time_limit}),
            "v1/attempts",
            iter([(payload.pack_function(function), arguments)]),
        )
        self.where = self._bundle.where
        self._endpoint = road.url
        self._bucket = S3Store(
            bucket,
            config={
                "endpoint": aws.endpoint_url,
                "region": "us-east-1",
                "access_key_id": "test",
                "secret_access_key": "test",
            },
            client_options={"allow_http": True},
        )
        obstore.put(self._bucket, self.where.bundle_key, b"".join(self._bundle.pieces()))
        self.process = None

    def start(self, *times, wrapper=(), **options):
        """Start the process; `times` are the arguments of `farcall_runtime.times.Times`."""
        entry = ["-c", TIMED, *map(str, times)] if times else ["-m", "farcall_runtime"]
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(RUNTIME_ROOT),
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            **self._bundle.environment(endpoint=self._endpoint, region="us-east-1"),
            **options.pop("environment", {}),
        }
        self.process = subprocess.Popen(
            [*wrapper, sys.executable, *entry],
            env={name: value for name, value in environment.items() if value},
            cwd="/",
            **{"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, **options},
        )
        return self

    def end(self):
        """Wait for the end; return exit code and stderr."""
        _, stderr = self.process.communicate(timeout=60)
        return self.process.returncode, (stderr or b"").decode()

    def outcome(self, key=None):
        """Return the outcome, verified; None where there is none."""
        key = key or self.where.outcome_key(0)
        try:
            data = bytes(obstore.get(self._bucket, key).bytes())
        except FileNotFoundError:
            return None
        return envelope.open_outcome(self._bundle.key, key, data)

    def stdout(self, outcome):
        """Return all of an attempt's stdout, its chunks first."""
        data = b""
        for number in range(outcome.meta["stdout"]["chunks"]):
            key = self.where.chunk_key(0, 1, "stdout", number)
            chunk = bytes(obstore.get(self._bucket, key).bytes())
            data += envelope.open_chunk(self._bundle.key, key, chunk)
        return data + outcome.stdout

    def stopped_outcome(self):
        """Return the outcome of an attempt that was told to stop."""
        return self.outcome(self.where.attempt_key(0, 1))

    def close(self):
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
