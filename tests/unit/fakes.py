"""Scripted AWS clients, and the container as a separate process."""

import inspect
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import botocore.exceptions
from obstore.store import MemoryStore

import farcall_runtime
from farcall.aws.buckets import place
from farcall.backends.batch.backend import BatchBackend, _platform
from farcall.backends.batch.preflight import Resources
from farcall.model.failure_reasons import About
from farcall.model.timing import Timing
from farcall.payload import pickling, results, unpickling
from farcall.storage.lost_responses import LostResponses
from farcall.storage.store import Store
from farcall.testing.bucket import StoreOperations
from farcall_runtime import envelope

TIMING = Timing()
RUNTIME_ROOT = Path(farcall_runtime.__file__).parents[1]


def store_in_memory(**timing):
    """Return a store on obstore's in-memory store instead of S3.

    Args:
        **timing: Waits and limits to override.
    """
    return Store("bucket", access_in_memory(Timing(**timing)))


def access_in_memory(timing=TIMING, memory=None):
    """Return AWS access for a session, with one in-memory store for all buckets.

    Args:
        timing: Waits and limits.
        memory: Another obstore store.
    """

    async def close(): ...

    memory = MemoryStore() if memory is None else memory
    return SimpleNamespace(
        timing=timing,
        close=close,
        store=lambda bucket, sending=False: memory,
        operations=lambda bucket: StoreOperations(memory),
        locate=lambda bucket: False,
        overruled="",
        region="us-east-1",
        place=lambda bucket: place(bucket, "us-east-1"),
    )


class Clock:
    """Clock of one event loop, which advances at once when the loop would sleep.

    A request to the bucket may wait for a thread, while its timer would let the clock run ahead.
    """

    def __init__(self, loop, monkeypatch):
        monkeypatch.setattr(LostResponses, "watch", lambda _: None)
        self._now = 1000.0
        select = loop._selector.select

        def pass_time(timeout=None):
            if timeout is not None and timeout > 0:
                events = select(0)
                if not events:
                    self._now += timeout
                return events
            return select(timeout)

        monkeypatch.setattr(loop._selector, "select", pass_time)
        monkeypatch.setattr(loop, "time", self.now)

    def now(self):
        return self._now


class _Operations(dict):
    """botocore's map of method names, for every method that a test may call."""

    def __missing__(self, method):
        return "".join(word.title() for word in method.split("_"))


class Client:
    """A botocore client whose operations a test scripts, and that records its requests.

    Args:
        **operations: For each operation, a function or coroutine function of its parameters,
            or a list of replies, in which exceptions are raised.
    """

    def __init__(self, **operations):
        self.meta = SimpleNamespace(
            method_to_api_mapping=_Operations(),
            endpoint_url="https://batch.us-east-1.amazonaws.com",
        )
        self.calls = []
        if "terminate_job" in operations:  # a Batch without the bulk call
            unknown = refusal("UnknownOperationException", 404)
            operations.setdefault("terminate_jobs", lambda **_: unknown)
        for name, script in operations.items():
            setattr(self, name, self._scripted(name, script))

    def asked(self, operation):
        """Return the parameters of each call of an operation."""
        return [parameters for name, parameters in self.calls if name == operation]

    def _scripted(self, name, script):
        replies = iter(script) if isinstance(script, list) else None

        async def call(**parameters):
            self.calls.append((name, parameters))
            reply = script(**parameters) if replies is None else next(replies)
            if inspect.isawaitable(reply):
                reply = await reply
            if isinstance(reply, BaseException):
                raise reply
            return reply

        return call


class ScriptedBatch(BatchBackend):
    """The Batch backend on a scripted client; queue, roles and log group are assumed to exist.

    Args:
        client: The client.
        batch: Replacement for the object that calls the client.
        timing: Waits and limits.
    """

    def __init__(self, client, batch=None, timing=TIMING):
        super().__init__(
            SimpleNamespace(
                batch=client,
                timing=timing,
                region="us-east-1",
                region_and_origin="us-east-1 (from AWS_REGION)",
                has_console=False,
            )
        )
        self._batch = batch or self._batch

    async def check(self, settings):
        self._resources[_platform(settings)] = Resources("arn:job-role", "arn:exec-role")


def refusal(code, status, message="No."):
    """Return an error response of a service, as botocore raises it."""
    return botocore.exceptions.ClientError(
        {
            "Error": {"Code": code, "Message": message},
            "ResponseMetadata": {"HTTPStatusCode": status, "RequestId": "r-1"},
        },
        "Operation",
    )


def no_answer():
    """Return botocore's error for a request that was sent but not answered."""
    return botocore.exceptions.ReadTimeoutError(endpoint_url="https://batch.example")


def not_sent():
    """Return botocore's error for a connection that could not be made."""
    place = SimpleNamespace(host="batch.example", port=443, ssl=True)
    error = ConnectionRefusedError(111, "Connection refused")
    return _unconnected(aiohttp.ClientConnectorError(place, error))


def broken():
    """Return botocore's error for a connection that was reset after the request."""
    return _unconnected(aiohttp.ClientOSError(104, "Connection reset by peer"))


def _unconnected(error):
    return botocore.exceptions.EndpointConnectionError(
        endpoint_url="https://batch.example", error=error
    )


_CONTAINER = """
    import json, os, sys
    import cloudpickle
    from farcall_runtime import envelope, task

    def receive():
        return sys.stdin.buffer.read(int.from_bytes(sys.stdin.buffer.read(8), "big"))

    def send(data):
        sys.stdout.buffer.write(len(data).to_bytes(8, "big") + data)
        sys.stdout.buffer.flush()

    while function := receive():
        arguments = receive()
        pid = os.fork()
        if pid == 0:
            records, parts = [], []

            def keep(record, its_parts, left):
                records.append(record)
                parts.extend(its_parts)

            task.run(function, arguments, ("3", "3"), keep)
            send(json.dumps(records).encode())
            send(b"".join(envelope.pack(parts)))
            os._exit(0)
        os.waitpid(pid, 0)
"""


class Container:
    """A process in which only the runtime is installed; each run has its own process."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(_CONTAINER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(RUNTIME_ROOT)},
            cwd="/",
        )

    def close(self):
        self._process.communicate()

    def run(self, function, calls):
        """Run calls; return the outcome's records and value."""
        (arguments,) = pickling.pack_calls([calls])
        for packed in (pickling.pack_function(function), arguments):
            self._process.stdin.write(packed.size.to_bytes(8, "big") + joined(packed))
        self._process.stdin.flush()
        return json.loads(self._receive()), bytearray(self._receive())

    def call(self, function, *args, **kwargs):
        """Run one call and read its outcome; return its `farcall.payload.results.Result`."""
        records, value = self.run(function, [(args, kwargs)])
        (result,) = results.read(done(*records), value, JOB)
        return result

    def _receive(self):
        size = int.from_bytes(self._process.stdout.read(8), "big")
        return self._process.stdout.read(size)


JOB = About("job-1", "simulate", attempts=1)


def done(*records):
    """Return the description of an outcome whose calls finished."""
    return {"status": "done", "results": list(records)}


def joined(packed):
    """Return the bytes of packed data."""
    return b"".join(packed.pieces)


def unpickled(packed):
    """Return what the container unpickles from packed data."""
    return unpickling.load(envelope.unpack(joined(packed)))
