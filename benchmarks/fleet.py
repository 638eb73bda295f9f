"""Simulated containers of all jobs in one process, with the runtime's own code.

Each task is verified, unpickled, called, pickled, signed and stored as in a real container. The
costs of a process per task are omitted: interpreter start, fork, output, and reading the bundle's
index again.
"""

from __future__ import annotations

import json
import os
import pickle
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cloudpickle

from benchmarks.harness import control
from farcall_runtime import contract, envelope, task
from farcall_runtime.bundle import Assignment
from farcall_runtime.envelope import Buffer, Index
from farcall_runtime.storage import Storage

_STREAM = {"chunks": 0, "stored": 0, "dropped": 0}


def main(endpoint: str) -> None:
    """Run jobs until this process is killed."""
    with ThreadPoolExecutor(4) as threads:
        while True:
            _run(control(endpoint, "job", {}), endpoint, threads)


def _run(job: dict[str, Any], endpoint: str, threads: ThreadPoolExecutor) -> None:
    """Run a job, in a real process if the benchmark requests one (``process``)."""
    variables = {"AWS_ENDPOINT_URL": endpoint, contract.ENV_JOB_ID: job["id"]}
    environment = {**os.environ, **job["environment"], **variables}
    if contract.ENV_BUNDLE not in environment:
        _run_peer(environment)
        return
    if job.get("process"):
        command = [sys.executable, "-m", "farcall_runtime"]
        subprocess.run(command, env=environment, stdout=sys.stderr, check=True)
        return
    storage = Storage(Assignment.read(environment).where.bucket, environment)
    for _ in threads.map(lambda each: storage.create(*each), _outcomes(environment, storage, job)):
        pass


def _outcomes(
    environment: dict[str, str], storage: Storage, job: dict[str, Any]
) -> Iterator[tuple[str, list[Buffer]]]:
    """Yield the key and the content of each task's outcome."""
    first = Assignment.read(environment)
    bundle = memoryview(storage.read(first.where.bundle_key, 0, 1 << 40))
    index = Index(bytes(bundle[-envelope.root_size(bundle) :]), first.digest)
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
        yield key, _outcome(assignment, key, *parts)


def _outcome(
    assignment: Assignment, key: str, function: Buffer, arguments: Buffer
) -> list[Buffer]:
    """Call the function and return the signed outcome."""
    started, cpu = time.monotonic(), time.process_time()
    records: list[task.Record] = []
    results: list[list[Buffer]] = []

    def keep(record: task.Record, parts: list[list[Buffer]], _left: int) -> None:
        records.append(record)
        results.extend(parts)

    versions = cloudpickle.__version__, cloudpickle.__version__
    task.run(function, arguments, versions, keep)
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
    return envelope.seal_outcome(assignment.key, key, meta, b"", b"", envelope.pack(results))


def _run_peer(environment: dict[str, str]) -> None:
    """Run a job like the peer's ``covalent_aws_plugins/exec.py``."""
    storage = Storage(environment["S3_BUCKET_NAME"], environment)
    task_file = storage.read(environment["COVALENT_TASK_FUNC_FILENAME"], 0, 1 << 40)
    function, args, kwargs = pickle.loads(task_file)
    name = environment["RESULT_FILENAME"]
    storage.put(name, [cloudpickle.dumps(function(*args, **kwargs))])
    stem = name.rpartition(".")[0].replace("result", "io_output")
    storage.put(f"{stem}.json", [json.dumps(["", "", "", ""]).encode()])


if __name__ == "__main__":
    main(sys.argv[1])
