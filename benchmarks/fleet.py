"""Plays the containers of all jobs in one process, with the runtime's own code.

For each task it verifies and unpickles the payload, calls the function, pickles what it returns,
signs the outcome and stores it, as the container does. What it leaves out is the process for each
task, unless it is told otherwise: interpreter start, fork, output, and reading the bundle's index
again for each child.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pickle
import platform
import random
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cloudpickle

from benchmarks.cloud import CONTROL
from farcall_runtime import contract, envelope, task
from farcall_runtime.bundle import Assignment
from farcall_runtime.envelope import Buffer, Index
from farcall_runtime.storage import SINGLE_PUT_BYTES, Storage

_THREADS = 4
_STREAM = {"chunks": 0, "stored": 0, "dropped": 0}


def main(endpoint: str) -> None:
    """Play jobs forever."""
    with ThreadPoolExecutor(_THREADS) as threads:
        while True:
            with urllib.request.urlopen(f"{endpoint}{CONTROL}job") as reply:
                _take(json.load(reply), endpoint, threads)


def _take(job: dict[str, Any], endpoint: str, threads: ThreadPoolExecutor) -> None:
    """Play one job: as fast as it goes, or its tasks one by one after random gaps.

    Or have the real container side run a plain job, in a process of its own (``process``).
    """
    environment = {
        **os.environ,
        **job["environment"],
        "AWS_ENDPOINT_URL": endpoint,
        contract.ENV_JOB_ID: job["id"],
    }
    if contract.ENV_BUNDLE not in environment:
        _play_peer(environment)
        return
    if job.get("process"):
        command = [sys.executable, "-m", "farcall_runtime"]
        subprocess.run(command, env=environment, stdout=sys.stderr, check=True)
        return
    storage = Storage(Assignment.read(environment).where.bucket, environment)
    outcomes = _play(environment, storage, job)
    gap_s = job.get("gap_s")
    if gap_s is None:
        for _ in threads.map(lambda outcome: storage.create(*outcome), outcomes):
            pass
        return
    for outcome in outcomes:
        time.sleep(random.expovariate(1 / gap_s))
        storage.create(*outcome)


def _play(
    environment: dict[str, str], storage: Storage, job: dict[str, Any]
) -> Iterator[tuple[str, list[Buffer]]]:
    """Yield key and content of each task's outcome."""
    first = Assignment.read(environment)
    bundle = memoryview(storage.read(first.where.bundle_key, 0, 1 << 40))
    index = Index(bytes(bundle[-envelope.root_size(bundle) :]), first.digest)
    shared = {
        bytes.fromhex(sha256): _shared(storage, first.where, sha256, *named)
        for sha256, named in index.meta.get(contract.SHARED, {}).items()
    }
    for number in range(job["size"]):
        if job["is_array"]:
            environment[contract.ENV_ARRAY_INDEX] = str(number)
            environment[contract.ENV_JOB_ID] = f"{job['id']}:{number}"
        assignment = Assignment.read(environment)
        page = index.page(number)
        entry = index.entry(number, bundle[page.offset : page.offset + page.length])
        parts = []
        for part in (index.function(entry.function), entry):
            parts.append(bundle[part.offset : part.offset + part.length])
            part.check(parts[-1])
        key = assignment.where.outcome_key(assignment.number)
        yield key, _run(assignment, key, *parts, storage, shared)


def _shared(
    storage: Storage, where: contract.Location, sha256: str, generation: str, size: int
) -> Buffer:
    """Fetch a shared value, once for all tasks of a job, and verify it."""
    data = bytearray(size)
    at = 0
    for piece in storage.stream(where.shared(sha256).data_key(generation), 0, size):
        data[at : at + len(piece)] = piece
        at += len(piece)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise envelope.IntegrityError("a shared value is not what it is called")
    return memoryview(data)


def _run(
    assignment: Assignment,
    key: str,
    function: Buffer,
    arguments: Buffer,
    storage: Storage | None = None,
    shared: Mapping[bytes, Buffer] | None = None,
) -> list[Buffer]:
    started, cpu = time.monotonic(), time.process_time()
    records: list[task.Record] = []
    results: list[list[Buffer]] = []

    def keep(record: task.Record, parts: list[list[Buffer]], _left: int) -> None:
        records.append(record)
        results.extend(parts)

    found = shared or {}
    versions = cloudpickle.__version__, cloudpickle.__version__
    task.run(function, arguments, versions, keep, lambda reference: found[reference.sha256])
    meta = {
        "status": contract.OutcomeStatus.DONE,
        "code": contract.ExitCode.RETURNED.value,
        "attempt": assignment.attempt,
        "job_id": assignment.job_id,
        "python": platform.python_version(),
        "child_status": 0,
        "usage": {
            "wall_s": time.monotonic() - started,
            "cpu_s": time.process_time() - cpu,
            "peak_memory_bytes": 20 << 20,
            "memory_limit_bytes": None,
        },
        "stdout": _STREAM,
        "stderr": _STREAM,
        "results": records,
        "begun": len(records),
    }
    value = envelope.pack(results)
    if storage is not None and (size := envelope.size(value)) > SINGLE_PUT_BYTES:
        where = assignment.where
        place = functools.partial(where.value_key, assignment.number, assignment.attempt)
        meta["value"] = {"size": size, "sha256": storage.put_large(place, value)}
        value = []
    return envelope.seal_outcome(assignment.key, key, meta, b"", b"", value)


def _play_peer(environment: dict[str, str]) -> None:
    """Do what the peer's ``covalent_aws_plugins/exec.py`` does."""
    storage = Storage(environment["S3_BUCKET_NAME"], environment)
    task_file = storage.read(environment["COVALENT_TASK_FUNC_FILENAME"], 0, 1 << 40)
    function, args, kwargs = pickle.loads(task_file)
    name = environment["RESULT_FILENAME"]
    storage.put(name, [cloudpickle.dumps(function(*args, **kwargs))])
    stem = name.rpartition(".")[0].replace("result", "io_output")
    storage.put(f"{stem}.json", [json.dumps(["", "", "", ""]).encode()])


def sample_outcome(calls: int = 1) -> str:
    """Return text as long as the outcome of a trivial task of so many calls."""
    assignment = Assignment(
        contract.Location("bucket", "farcall/v1/somebody-20260101-000000-abcdef", "0" * 16),
        hashlib.sha256().hexdigest(),
        bytes(32),
        1234,
        1,
        "12345678-1234-1234-1234-123456789012:1234",
    )
    empty = b"".join(envelope.pack([[cloudpickle.dumps(abs)]]))
    arguments = b"".join(envelope.pack([[cloudpickle.dumps([((1,), {})] * calls)]]))
    key = assignment.where.outcome_key(assignment.number)
    return "x" * envelope.size(_run(assignment, key, empty, arguments))


if __name__ == "__main__":
    main(sys.argv[1])
