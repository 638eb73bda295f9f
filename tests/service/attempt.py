"""One attempt of one task.

Starts the real runtime as a process, with a proxy between it and S3.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path

import obstore
from obstore.store import S3Store

import farcall_runtime
from farcall import Settings
from farcall.engine.delivered import Usage
from farcall.model.workflows import Workflow
from farcall.payload import pickling, unpickling
from farcall.payload.bundle import Bundle
from farcall_runtime import envelope
from farcall_runtime.contract import module_arguments
from tests.support.patience import PATIENCE_S

ENTRY = module_arguments("farcall_runtime")
RUNTIME_ROOT = Path(farcall_runtime.__file__).parents[1]

#: The container's entry point with custom times instead of Batch's.
TIMED = """
import os, sys
from farcall_runtime import __main__, runner, times
__main__.leave(runner.run(os.environ, times.Times(*map(float, sys.argv[1:]))))
"""


#: The container's entry point with a time limit that expires when a file exists.
LATE = """
import os, sys, time
from farcall_runtime import __main__, runner, times

class Late(times.Times):
    is_late = False
    def due(self):
        if not self.is_late and os.path.exists(sys.argv[1]):
            told_at, _ = self._limit()
            self.is_late, self.started = True, self.started - (told_at - time.monotonic())
        return super().due()

__main__.leave(runner.run(os.environ, Late()))
"""


_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


def value_of(outcome):
    """Return the result in an outcome that `Attempt.outcome` has verified."""
    return unpickling.load(envelope.unpack(outcome.value))


class Attempt:
    """A task's bundle in the bucket, and the process that runs it."""

    def __init__(
        self,
        aws,
        proxy,
        function,
        *args,
        calls=None,
        tasks=1,
        time_limit=300,
        pack=pickling.pack_calls,
        facts=None,
    ):
        bucket = aws.environment["FARCALL_S3_BUCKET_NAME"]
        settings = Settings(s3_bucket_name=bucket, retry_attempts=1)
        (arguments,) = pack([calls or [(args, {})]])
        self.shared = {}  # key to data of the bundle's shared values
        self._bundle = Bundle(
            settings.model_copy(update={"time_limit": time_limit}),
            "v1/attempts",
            "attempt",
            iter([(pickling.pack_function(function), arguments)] * tasks),
            Workflow("attempts"),
            facts,
            most=10_000,
            share=self._share,
        )
        self.where = self._bundle.where
        self._url = f"{proxy.url}/{bucket}"
        self._keys = {name: os.environ.get(name, "") for name in _KEYS}
        self._bucket = S3Store(
            bucket,
            config={"endpoint": aws.endpoint_url, "region": "us-east-1"},
            client_options={"allow_http": True},
        )
        obstore.put(self._bucket, self.where.bundle_key, b"".join(self._bundle.pieces()))
        for key, value in self.shared.items():
            self.put(key, value)
        self.process = None

    def _share(self, piece):
        self.shared[self.where.shared_key(piece.hexdigest, "generation")] = bytes(piece.data)
        generation = Future()
        generation.set_result("generation")
        return generation

    def put(self, key, data):
        """Store an object directly, without the proxy."""
        obstore.put(self._bucket, key, data)

    def data(self, key):
        """Return an object's content."""
        return bytes(obstore.get(self._bucket, key).bytes())

    def delete(self, key):
        """Delete an object directly, without the proxy."""
        obstore.delete(self._bucket, key)

    def objects(self, prefix):
        """Return key to content of the objects below a prefix."""
        listed = obstore.list(self._bucket, prefix).collect()
        keys = [each["path"] for each in listed]
        return {key: self.data(key) for key in keys}

    @property
    def key(self):
        """The bundle's outcome key."""
        return self._bundle.key

    def receipt(self, *indexes, number=0, key=None):
        """Store a delivery receipt for some tasks, as a client does."""
        name = self.where.receipt_key(number)
        bits = sum(1 << index for index in indexes).to_bytes(2, "little")
        pieces = envelope.seal_receipt(key or self._bundle.key, name, bits)
        self.put(name, b"".join(pieces))

    def start(self, *times, wrapper=(), entry=ENTRY, **options):
        """Start the process; `times` are the arguments of `farcall_runtime.times.Times`."""
        entry = ["-c", TIMED, *map(str, times)] if times else entry
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(RUNTIME_ROOT),
            **self._keys,
            **self._bundle.environment(url=self._url, region="us-east-1"),
            **options.pop("environment", {}),
        }
        self.process = subprocess.Popen(
            [*wrapper, sys.executable, *entry],
            env={name: value for name, value in environment.items() if value},
            **{"cwd": "/", "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, **options},
        )
        return self

    def end(self):
        """Wait for the exit; return the exit code and stderr without the usage line."""
        _, stderr = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, without_usage((stderr or b"").decode())

    def outcome(self, key=None):
        """Return the verified outcome, or None if it does not exist."""
        key = key or self.where.outcome_key(0)
        try:
            data = self.data(key)
        except FileNotFoundError:
            return None
        return envelope.open_outcome(self._bundle.key, key, data)

    def stdout(self, outcome):
        """Return an attempt's complete stdout, beginning with its chunks."""
        data = b""
        for number in range(outcome.meta["stdout"]["chunks"]):
            key = self.where.chunk_key(0, 1, "stdout", number)
            chunk = self.data(key)
            data += envelope.open_chunk(self._bundle.key, key, chunk)
        return data + outcome.stdout

    def stopped_outcome(self):
        """Return the outcome of a stopped attempt."""
        return self.outcome(self.where.attempt_key(0, 1))

    def close(self):
        if self.process is not None:
            self.process.kill()
            self.process.communicate()


def without_usage(stderr: str) -> str:
    """Remove the line with the task's usage from a container's stderr."""
    lines = stderr.splitlines(keepends=True)
    return "".join(line for line in lines if Usage.logged([line.rstrip("\n")]) is None)
