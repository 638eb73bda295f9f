"""The function that the tasks of a chaos run call, and its results.

The function is sent to the containers with its module, which therefore imports little.
"""

import json
import os
import secrets
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

EXIT_CODE = 3
PRINTED = 200

#: Number from which the bytes of the shared argument are made.
SHARED = 99_999_999


def note(path, **line):
    """Add a line to a file of several writers, or to a `Bucket` that other machines reach."""
    if isinstance(path, dict):
        Bucket(path).put(line | {"at": time.time()})
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, json.dumps({**line, "at": time.time()}).encode() + b"\n")
    finally:
        os.close(descriptor)


def read(path):
    """Return the lines that `note` has written so far."""
    if isinstance(path, dict):
        return Bucket(path).lines()
    if not Path(path).exists():
        return []
    with Path(path).open("rb") as file:
        return [json.loads(line) for line in file if line.endswith(b"\n")]


class Bucket:
    """A ledger with one object per line, for tasks that do not run on this machine.

    Args:
        place: Its bucket, prefix, endpoint and region.
    """

    def __init__(self, place):
        from obstore.store import S3Store

        config = {"region": place["region"]}
        if place["endpoint"]:
            config |= {"endpoint": place["endpoint"], "virtual_hosted_style_request": False}
        plain = {"allow_http": True}
        self._store = S3Store(
            place["bucket"], prefix=place["prefix"], config=config, client_options=plain
        )

    def put(self, line):
        """Store a line."""
        self._store.put(secrets.token_hex(16), json.dumps(line).encode())

    def lines(self):
        """Return all lines, in the order of their times."""
        keys = [each["path"] for page in self._store.list() for each in page]
        with ThreadPoolExecutor(16) as pool:
            new = [key for key in keys if key not in _seen]
            bodies = pool.map(lambda key: bytes(self._store.get(key).bytes()), new)
            _seen.update(zip(new, map(json.loads, bodies), strict=True))
        return sorted((_seen[key] for key in keys), key=lambda line: line["at"])

    def delete(self):
        """Delete all lines."""
        for page in self._store.list():
            self._store.delete([each["path"] for each in page])


_seen = {}
"""Lines that were read from a bucket, which do not change, by key."""


def work(call, ledger, argument=b"", shared=b""):
    """Carry out a call, and note in the ledger that it began and that it ended."""
    number, kind = call["number"], call["kind"]
    line = {"task": number, **whose(), "token": secrets.token_hex(4)}
    note(ledger, what="begin", **line)
    if argument != bulk(number, call["argument"]):
        raise RuntimeError(f"task {number} has the argument of another task")
    if shared != bulk(SHARED, call["shared"]):
        raise RuntimeError(f"task {number} lacks the shared argument")
    time.sleep(call["seconds"])
    if kind == "print":
        print(printed(number), end="", flush=True)
    # Of the first size; a task does not see its memory.
    if kind == "hungry" and os.environ["OMP_NUM_THREADS"] == "1":
        run_out_of_memory()
    if kind == "raise":
        raise ValueError(f"task {number} raises")
    if kind == "exit":
        os._exit(EXIT_CODE)
    if kind == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    note(ledger, what="end", **line)
    return value(number, call["size"])


def run_out_of_memory():
    """End the container as the kernel does if it exceeds its memory."""
    os.killpg(os.getsid(0), signal.SIGKILL)
    time.sleep(5)  # the signal arrives at once where it has an effect
    bytearray(3 * 2**29)  # in a cluster, whose first process cannot be killed from inside


def whose():
    """Return this container's job and attempt, from the platform's environment variables."""
    known = os.environ
    if "AWS_BATCH_JOB_ID" in known:
        return {"job": known["AWS_BATCH_JOB_ID"], "attempt": int(known["AWS_BATCH_JOB_ATTEMPT"])}
    index = known.get("FARCALL_INDEX", "")
    failures = ("FARCALL_FAILED_ATTEMPTS", "FARCALL_IGNORED_ATTEMPTS")
    attempt = 1 + sum(int(known.get(name) or 0) for name in failures)
    return {"job": known["FARCALL_JOB_ID"] + (index and f":{index}"), "attempt": attempt}


def value(number, size):
    """Return the result of a call, which no other call has."""
    return {"task": number, "bulk": bulk(number, size)}


def bulk(number, size):
    return (b"%08d" % number * (size // 8 + 1))[:size]


def printed(number):
    return "".join(f"task {number} line {line}\n" for line in range(PRINTED))
