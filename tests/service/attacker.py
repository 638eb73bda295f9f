"""An untrusted party with full access to the bucket.

It reads, writes and deletes any object, and has no outcome key and no digest of a job.
"""

from __future__ import annotations

import hashlib
import pathlib
import pickle
from collections.abc import Callable
from pathlib import Path

import boto3

import farcall_local
from farcall_runtime import envelope
from farcall_runtime.contract import CallStatus, OutcomeStatus

WRONG_KEY = bytes(32)
"""A key that does not match; the attacker does not know the job's outcome key."""


class _Bomb:
    """An object that creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self._marker = str(marker)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return pathlib.Path.write_text, (pathlib.Path(self._marker), "the attacker's code ran")


class Attacker:
    """An attacker that forges objects without the job's outcome key and digest.

    Args:
        aws: Local AWS emulator with the bucket.
        marker: File that the attacker's code creates if it runs.
    """

    def __init__(self, aws: farcall_local.LocalAWS, marker: Path) -> None:
        self.marker = marker
        self._s3 = boto3.client("s3")
        self._bucket = aws.environment["FARCALL_S3_BUCKET_NAME"]

    # --- the bucket ---------------------------------------------------------------------------

    def keys(self, part: str) -> list[str]:
        """Return the keys that contain a text."""
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=self._bucket)
        found = [item["Key"] for page in pages for item in page.get("Contents", [])]
        return [key for key in found if part in key]

    def get(self, key: str) -> bytes:
        return bytes(self._s3.get_object(Bucket=self._bucket, Key=key)["Body"].read())

    def put(self, key: str, data: bytes) -> None:
        self._s3.put_object(Bucket=self._bucket, Key=key, Body=data)

    def delete(self, key: str) -> None:
        self._s3.delete_object(Bucket=self._bucket, Key=key)

    # --- forgeries ----------------------------------------------------------------------------

    def pickle(self) -> bytes:
        """Return a pickle that runs the attacker's code when it is unpickled."""
        return pickle.dumps(_Bomb(self.marker))

    def packed(self, size: int | None = None) -> bytes:
        """Return a packed pickle, padded to a size if one is given."""
        bomb = self.pickle()
        data = b"".join(envelope.pack([[bomb]]))
        if size is None:
            return data
        assert size >= len(data), "what is replaced is too small for the attacker"
        return b"".join(envelope.pack([[bomb + bytes(size - len(data))]]))

    def bundle(self, tasks: int = 1) -> bytes:
        """Return a valid bundle with the attacker's function and arguments."""
        bomb = self.packed()
        digest = hashlib.sha256(bomb).digest()
        meta = {"cloudpickle": "3.1.1", "attempts": 1, "time_limit_s": 300}
        entries = [(0, len(bomb), digest)] * tasks
        sealed = envelope.seal_index(meta, [(len(bomb), digest)], entries)
        return b"".join([envelope.bundle_start(), bomb * tasks, sealed.pages, bomb, sealed.root])

    def outcome(self, key: str) -> bytes:
        """Return an outcome for a key, signed with the wrong outcome key."""
        record = {
            "status": CallStatus.RETURNED,
            "first": 0,
            "count": 1,
            "wall_s": 0.0,
            "cpu_s": 0.0,
        }
        stream = {"chunks": 0, "stored": 0, "dropped": 0}
        meta = {
            "status": OutcomeStatus.DONE,
            "code": 0,
            "attempt": 1,
            "job_id": "",
            "child_status": 0,
            "usage": {},
            "stdout": stream,
            "stderr": stream,
            "results": [record],
            "begun": 1,
        }
        pieces = envelope.seal_outcome(WRONG_KEY, key, meta, b"", b"", [self.packed()])
        return b"".join(pieces)

    def outcome_with_value(self, data: bytes) -> bytes:
        """Replace the result in an outcome with the attacker's pickle."""
        bomb = self.packed()
        changed = bytearray(data)
        changed[-len(bomb) :] = bomb
        return bytes(changed)

    def chunk(self, key: str) -> bytes:
        return b"".join(envelope.seal_chunk(WRONG_KEY, key, self.pickle()))
