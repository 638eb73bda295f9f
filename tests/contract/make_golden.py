"""Writes the golden files in ``v1/``: ``python tests/contract/make_golden.py``.

They are written once for each protocol version, with fixed names and keys and a fixed Python
version. Files of a released version never change; ``test_golden.py`` checks that they remain
readable.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import pickle
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from farcall_runtime import electron, envelope
from farcall_runtime.contract import PROTOCOL_VERSION, STDOUT, Location, run_root

FOLDER = Path(__file__).parent / f"v{PROTOCOL_VERSION}"
PYTHON = (3, 12)
WHERE = Location("bucket", run_root("prefix", "run"), "work-0011223344556677")
KEY = bytes(range(32))

FUNCTIONS = [b"function 0", b"function 1" * 20]
ENTRIES = [
    (0, b"arguments 0"),
    (1, b""),
    (0, b"arguments 2" * 100),
    *((number % 2, b"arguments %d" % number) for number in range(3, envelope.PAGE_ROWS + 2)),
]
"""Entries that fill the first page of the index and begin a second page."""
BUNDLE_META = {
    "python": "3.12.4",
    "cloudpickle": "3.1.1",
    "attempts": 3,
    "retry_on": "failure",
    "time_limit_s": 300,
    "queue": "queue",
}
USAGE = {
    "wall_s": 1.5,
    "cpu_s": 0.25,
    "peak_memory_bytes": 50331648,
    "memory_limit_bytes": None,
}
STREAM_META = {"chunks": 1, "stored": 13, "dropped": 0}
OUTCOME_META = {
    "attempt": 1,
    "job_id": "8f1c:7",
    "python": "3.12.4",
    "usage": USAGE,
    "stdout": STREAM_META,
    "stderr": {"chunks": 0, "stored": 0, "dropped": 0},
    "begun": 1,
}
RETURNED = {
    **OUTCOME_META,
    "status": "done",
    "code": 0,
    "child_status": 0,
    "results": [{"status": "returned", "wall_s": 1.0, "cpu_s": 0.2, "first": 0, "count": 2}],
}
RAISED = {
    **OUTCOME_META,
    "status": "done",
    "code": 1,
    "child_status": 0,
    "results": [
        {
            "status": "raised",
            "wall_s": 1.0,
            "cpu_s": 0.2,
            "first": 0,
            "count": 1,
            "chain": [
                {"type": "ValueError", "message": "wrong \u00fc", "relation": None, "part": 0},
                {"type": "lab.LabError", "message": "why", "relation": "cause", "part": None},
            ],
            "traceback": "Traceback (most recent call last):\nValueError: wrong \u00fc\n",
        }
    ],
}
KILLED = {**OUTCOME_META, "status": "killed", "code": 71, "child_status": -11, "results": []}
CHUNK_OF_CALLS = {
    **KILLED,
    "results": [
        {
            "status": "returned",
            "wall_s": 1.0,
            "cpu_s": 0.2,
            "first": number,
            "count": 1,
            "ended": [10 * number + 10, 5],
        }
        for number in range(2)
    ],
    "begun": 3,
    "stdout": {"chunks": 1, "stored": 13, "dropped": 7, "gaps": [[4, 7]]},
}

_NOT_RUN = {
    "type": "farcall_runtime.electron.NotRunError",
    "message": "add was not run: node 3, whose value it takes, failed",
    "relation": None,
    "part": None,
}
GROUP = {
    **OUTCOME_META,
    "status": "done",
    "code": 1,
    "child_status": 0,
    "results": [
        {
            "status": "raised",
            "wall_s": 1.0,
            "cpu_s": 0.2,
            "first": 0,
            "count": 1,
            "chain": [_NOT_RUN],
            "nodes": [
                {"status": "returned", "node": 1, "wall_s": 0.5, "began": [0, 0]},
                {
                    "status": "raised",
                    "node": 4,
                    "wall_s": 0.0,
                    "began": [10, 5],
                    "chain": [_NOT_RUN],
                    "traceback": "NotRunError\n",
                },
            ],
        }
    ],
}

SHARED_VALUES = [b"a shared value" * 10, b"in the middle of the pickle, "]
GENERATIONS = ["0123456789abcdef0123456789abcdef", "generation"]

VALUE_PARTS = [b"pickle", bytes(range(256)) * 5]
"""Stand-ins for pickles: bytes that do not depend on the Python version."""

OUTCOMES = {
    "outcome-returned": (RETURNED, 7, VALUE_PARTS),
    "outcome-raised": (RAISED, 8, [b"pickled exception"]),
    "outcome-killed": (KILLED, 9, None),
    "outcome-chunk": (CHUNK_OF_CALLS, 11, [b"pickle of call 0", b"pickle of call 1"]),
    "outcome-group": (GROUP, 10, [b"archive of node 1"]),
}
OUTPUT, ERRORS, CHUNK = b"to stdout\n", "to stderr \u00fc\n".encode(), b"a chunk of it"


def electrons() -> bytes:
    """Return the client's pickle of a task group: its function and its only call."""
    length = electron.Code("len", base64.b64encode(pickle.dumps(len, protocol=4)), [], [])
    node = electron.Node(5, [2], {})
    value = base64.b64encode(pickle.dumps([1, 2, 3], protocol=4))
    call = ([[node], {2: value}], {})
    return pickle.dumps([functools.partial(electron.run_group, [length]), call], protocol=4)


def bundle(
    meta: dict[str, object], functions: list[bytes], entries: list[tuple[int, bytes]]
) -> tuple[bytes, str]:
    """Return a bundle and the digest of its index."""
    pages, root = envelope.seal_index(
        meta,
        [(len(data), hashlib.sha256(data).digest()) for data in functions],
        [(number, len(data), hashlib.sha256(data).digest()) for number, data in entries],
    )
    bodies = [data for _, data in entries]
    data = b"".join([envelope.bundle_start(), *bodies, pages, *functions, root])
    return data, hashlib.sha256(root).hexdigest()


def referring() -> tuple[bytes, str]:
    """Return a bundle whose function and arguments refer to shared values, and its digest."""
    one, other = (envelope.Reference(hashlib.sha256(v).digest(), len(v)) for v in SHARED_VALUES)
    function = b"".join(envelope.pack([[b"function"], [one]]))
    arguments = [[b"pickle, ", other, b"its end"], [one], [], [b"buffer"], [one]]
    meta = {
        **BUNDLE_META,
        "shared": {
            value.sha256.hex(): [generation, value.size]
            for value, generation in zip((one, other), GENERATIONS, strict=True)
        },
    }
    entries = [(0, b"".join(envelope.pack(arguments)))]
    return bundle(meta, [function], entries)


def outcome(meta: dict[str, object], index: int, parts: list[bytes] | None) -> bytes:
    """Return an outcome; without parts, the outcome of a task without results."""
    value = [] if parts is None else envelope.pack([[part] for part in parts])
    key = WHERE.outcome_key(index)
    return b"".join(envelope.seal_outcome(KEY, key, meta, OUTPUT, ERRORS, value))


def chunk() -> bytes:
    """Return a chunk of output."""
    return b"".join(envelope.seal_chunk(KEY, WHERE.chunk_key(7, 1, STDOUT, 0), CHUNK))


def files() -> dict[str, bytes]:
    """Return file name to content of each golden file, as this version writes it."""
    with mock.patch.object(envelope, "sys", SimpleNamespace(version_info=(*PYTHON, 4))):
        data, digest = bundle(BUNDLE_META, FUNCTIONS, ENTRIES)
        shared, its_digest = referring()
        return {
            "bundle": data,
            "bundle.digest": f"{digest}\n".encode(),
            "bundle-shared": shared,
            "bundle-shared.digest": f"{its_digest}\n".encode(),
            **{name: outcome(*parts) for name, parts in OUTCOMES.items()},
            "chunk": chunk(),
            "electrons": electrons(),
        }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, data in files().items():
        (FOLDER / name).write_bytes(data)
