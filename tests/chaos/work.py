"""What the tasks of a chaos run do, and what each must come to.

The function travels to the containers with its module, so that imports its own are few.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import time
from pathlib import Path

#: What a task may do. "forever" is ended by its owner, the others end by themselves; "fixes"
#: raises until its owner, who is about to have it run again, has fixed it.
KINDS = ("return", "sleep", "print", "raise", "exit", "segfault", "large", "forever", "fixes")

EXIT_CODE = 3
PRINTED = 200


def note(path, **line):
    """Append a line to a file that several processes write to: one write is never torn."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, json.dumps({**line, "at": time.time()}).encode() + b"\n")
    finally:
        os.close(descriptor)


def read(path):
    """Return what `note` has written so far."""
    if not Path(path).exists():
        return []
    with Path(path).open("rb") as file:
        return [json.loads(line) for line in file if line.endswith(b"\n")]


#: Whose bytes the argument has that calls share.
NOBODY = 99_999_999


def work(call, ledger, argument=b"", shared=b""):
    """Do what a task is told to, and note in the ledger that it began and that it ended."""
    number, kind = call["number"], call["kind"]
    line = {
        "task": number,
        **whose(),
        "token": secrets.token_hex(4),
    }
    note(ledger, what="begin", **line)
    if argument != bulk(number, call["argument"]):
        raise RuntimeError(f"task {number} has another's argument")
    if shared != bulk(NOBODY, call["shared"]):
        raise RuntimeError(f"task {number} has not the argument that all share")
    time.sleep(call["seconds"])
    if kind == "print":
        print(printed(number), end="", flush=True)
    if kind == "raise" or (kind == "fixes" and not is_mended(ledger, number)):
        raise ValueError(f"task {number} raises")
    if kind == "exit":
        os._exit(EXIT_CODE)
    if kind == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    note(ledger, what="end", **line)
    return value(number, call["size"])


def whose():
    """Return which job this is, and in which attempt, by the words of its platform."""
    known = os.environ
    if "AWS_BATCH_JOB_ID" in known:
        return {"job": known["AWS_BATCH_JOB_ID"], "attempt": int(known["AWS_BATCH_JOB_ATTEMPT"])}
    index = known.get("FARCALL_INDEX", "")
    failures = ("FARCALL_FAILED_ATTEMPTS", "FARCALL_IGNORED_ATTEMPTS")
    attempt = 1 + sum(int(known.get(name) or 0) for name in failures)
    return {"job": known["FARCALL_JOB_ID"] + (index and f":{index}"), "attempt": attempt}


def mend(ledger, number):
    """Note that from now on a task that "fixes" is to give its value."""
    note(f"{ledger}.fixed", task=number)


def is_mended(ledger, number):
    return any(line["task"] == number for line in read(f"{ledger}.fixed"))


def value(number, size):
    """What a task returns; nobody else's looks the same."""
    return {"task": number, "bulk": bulk(number, size)}


def bulk(number, size):
    return (b"%08d" % number * (size // 8 + 1))[:size]


def printed(number):
    return "".join(f"task {number} line {line}\n" for line in range(PRINTED))
