"""What came of a task, and which of its objects are of no more use once its owner has it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

from farcall.errors import FarcallError
from farcall.results import Result
from farcall.store import Store, is_chunk
from farcall_runtime.contract import STREAMS, VALUE_PART_BYTES, Location


@dataclass(frozen=True)
class Usage:
    """What a task used.

    Attributes:
        wall_s: Seconds from the container's start to the end of the function.
        cpu_s: Seconds of CPU of the task's process and the processes it waited for.
        peak_memory_bytes: The largest resident size of one of these processes.
        memory_limit_bytes: The container's limit, or None where there is none.
    """

    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_memory_bytes: int = 0
    memory_limit_bytes: int | None = None


@dataclass(frozen=True)
class Delivered:
    """What came of a task.

    Attributes:
        results: One result for each of its calls.
        stdout: What it wrote.
        stderr: The same of the other stream.
        usage: What it used.
        attempt: Number of the attempt that ended it, from 1; 0 if none began.
        spent: Keys of objects that are of no more use; empty where something failed.
    """

    results: list[Result] = field(repr=False)
    stdout: bytes = field(default=b"", repr=False)
    stderr: bytes = field(default=b"", repr=False)
    usage: Usage = Usage()
    attempt: int = 0
    spent: list[str] = field(default_factory=list, repr=False)


async def spent_keys(store: Store, where: Location, index: int, meta: dict[str, Any]) -> list[str]:
    """Return the keys of a task's objects; some may name nothing that is there.

    Of attempts before the last one output and value are looked for: nobody told of them where the
    host went away.

    Args:
        store: The bucket.
        where: The bundle's place.
        index: Number of the task.
        meta: What its outcome says.
    """
    attempt = int(meta["attempt"])
    keys = [where.outcome_key(index)]
    if "value" in meta:
        parts = range(-(-meta["value"]["size"] // VALUE_PART_BYTES))
        keys += [where.value_key(index, attempt, part) for part in parts]
    for stream in STREAMS:
        count = meta[stream]["chunks"]
        keys += [where.chunk_key(index, attempt, stream, n) for n in range(count)]
    for earlier in range(1, attempt):
        keys.append(where.attempt_key(index, earlier))
        folders = [where.value_prefix(index, earlier)]
        folders += [where.stream_prefix(index, earlier, stream) for stream in STREAMS]
        for prefix in folders:
            with contextlib.suppress(FarcallError):  # what stays there harms nobody
                listed = [key for key, _ in await store.list_keys(prefix)]
                keys += [key for key in listed if is_chunk(key.removeprefix(prefix))]
    return keys
