"""The function that the tasks of a chaos run call, and its results.

The function is sent to the containers with its module, which therefore imports little.
"""

import json
import os
import secrets
import signal
import time
from pathlib import Path

EXIT_CODE = 3
PRINTED = 200

#: Number from which the bytes of the shared argument are made.
SHARED = 99_999_999


def note(path, **line):
    """Append a line to a file of several writers with a single atomic write."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, json.dumps({**line, "at": time.time()}).encode() + b"\n")
    finally:
        os.close(descriptor)


def read(path):
    """Return the lines that `note` has written so far."""
    if not Path(path).exists():
        return []
    with Path(path).open("rb") as file:
        return [json.loads(line) for line in file if line.endswith(b"\n")]


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
    if kind == "raise":
        raise ValueError(f"task {number} raises")
    if kind == "exit":
        os._exit(EXIT_CODE)
    if kind == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    note(ledger, what="end", **line)
    return value(number, call["size"])


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
