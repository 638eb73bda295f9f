"""Delivered outcome: what came of a task, and which objects are of no more use to its owner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from farcall.model.endings import About
from farcall.model.output import Bytes
from farcall.payload import results
from farcall.payload.results import Result
from farcall.storage.chunks import Written
from farcall_runtime.contract import STDOUT


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
        stdout: What it wrote, or the end of it; see ``is_whole``.
        stderr: The same of the other stream.
        usage: What it used.
        attempt: Number of the attempt that ended it, from 1; 0 if none began.
        spent: Keys of objects that are of no more use; empty where something failed.
        output: Keys of the output that were kept, which is of no more use as soon as nobody can
            ask for it; empty where something failed.
        is_whole: Whether all that it wrote is here.
        written: What it wrote, as far as is known where it lies.
        meta: What its outcome says; None where there is none.
        others: Of a task on several nodes what came of it on those that are not the main one,
            by index; the rest is the main one's. Those that left nothing are not among them.
    """

    results: list[Result] = field(repr=False)
    stdout: Bytes = field(default=b"", repr=False)
    stderr: Bytes = field(default=b"", repr=False)
    usage: Usage = Usage()
    attempt: int = 0
    spent: list[str] = field(default_factory=list, repr=False)
    output: list[str] = field(default_factory=list, repr=False)
    is_whole: bool = True
    written: Written | None = field(default=None, repr=False)
    meta: dict[str, Any] | None = field(default=None, repr=False)
    others: Mapping[int, Delivered] = field(default_factory=dict, repr=False)

    @property
    def all_spent(self) -> list[str]:
        """Keys of all its objects, for where nobody can ask for its output."""
        return [*self.spent, *self.output] if self.output else self.spent

    def elsewhere(self) -> Written | None:
        """Return where the output is; None if all of it is here, or there is no outcome."""
        return None if self.is_whole or self.meta is None else self.written

    def text(self, stream: str) -> str:
        """Return what it wrote to a stream, as far as that is here, as UTF-8."""
        whole = self.stdout if stream == STDOUT else self.stderr
        return whole.decode(errors="replace")

    def with_output(self, stdout: Bytes, stderr: Bytes) -> Delivered:
        """Return the same with all that the task wrote, each call's part with its result."""
        job = About("", "", stdout=stdout, stderr=stderr)
        if self.meta is not None and "results" in self.meta:
            found = results.shared(self.results, self.meta, job)
        else:
            found = [each._replace(stdout=stdout, stderr=stderr) for each in self.results]
        return replace(self, results=found, stdout=stdout, stderr=stderr, is_whole=True)
