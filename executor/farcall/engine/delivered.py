"""Fetched outcomes of tasks, and what is fetched of them."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from farcall.model import failure_reasons
from farcall.model.failure_reasons import About
from farcall.model.output import Bytes
from farcall.model.submission import Submission
from farcall.payload import results
from farcall.payload.results import Result
from farcall.payload.spill import FolderFor
from farcall.storage import outcomes
from farcall.storage.chunks import Written
from farcall.storage.store import Store
from farcall_runtime import envelope
from farcall_runtime.contract import STDOUT

if TYPE_CHECKING:
    from farcall.engine.logs.relay import Writer
    from farcall.engine.tracked_job import Completion


@dataclass(frozen=True)
class Usage:
    """Resources that a task used.

    Attributes:
        wall_s: Seconds from the container's start to the end of the function.
        cpu_s: CPU seconds of the task's process and of the child processes that it waited for.
        peak_memory_bytes: Largest resident size of one of these processes.
        memory_limit_bytes: The container's memory limit; None if it has none.
    """

    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_memory_bytes: int = 0
    memory_limit_bytes: int | None = None

    @classmethod
    def logged(cls, lines: Iterable[str]) -> Usage | None:
        """Return the usage in the last line of a task's log that has one.

        Only numbers of a plausible length are accepted, because a task can write any line.

        Args:
            lines: The log's last lines, the oldest first.
        """
        matches = [match for match in map(_LOGGED.fullmatch, lines) if match]
        if not matches:
            return None
        wall_s, cpu_s, memory_mib = map(float, matches[-1].groups())
        return cls(wall_s, cpu_s, int(memory_mib * 2**20))


_LOGGED = re.compile(
    r"farcall: the task took ([0-9]{1,9}\.[0-9]{2}) s, ([0-9]{1,9}\.[0-9]{2}) s of CPU time and "
    r"([0-9]{1,9}\.[0-9]) MiB"
)
"""See `farcall_runtime.contract.usage_text`."""


@dataclass(frozen=True)
class Delivered:
    """Outcome of a task.

    Attributes:
        results: One result per call.
        stdout: The task's stdout, or its end; see ``is_whole``.
        stderr: The task's stderr, or its end.
        usage: Resources that the task used.
        attempt: Number of the last attempt, from 1; 0 if none started.
        deletable: Keys of objects to delete; empty if a call failed.
        output: Keys of stored output that is deleted when no caller can request it any more; empty
            if a call failed.
        is_whole: Whether ``stdout`` and ``stderr`` are complete.
        written: Where the output is stored, if known.
        meta: Metadata of the outcome; None if there is none.
        others: For a multi-node task, the outcomes of the other nodes by index; the remaining
            attributes are the main node's. Nodes without an outcome are missing.
    """

    results: list[Result] = field(repr=False)
    stdout: Bytes = field(default=b"", repr=False)
    stderr: Bytes = field(default=b"", repr=False)
    usage: Usage = Usage()
    attempt: int = 0
    deletable: list[str] = field(default_factory=list, repr=False)
    output: list[str] = field(default_factory=list, repr=False)
    is_whole: bool = True
    written: Written | None = field(default=None, repr=False)
    meta: dict[str, Any] | None = field(default=None, repr=False)
    others: Mapping[int, Delivered] = field(default_factory=dict, repr=False)

    @property
    def all_deletable(self) -> list[str]:
        """Keys of all objects, if no caller can request the output later."""
        return [*self.deletable, *self.output] if self.output else self.deletable

    def elsewhere(self) -> Written | None:
        """Return where the output is; None if all of it is local, or there is no outcome."""
        return None if self.is_whole or self.meta is None else self.written

    def text(self, stream: str) -> str:
        """Return a stream, as far as it was fetched, decoded as UTF-8."""
        whole = self.stdout if stream == STDOUT else self.stderr
        return whole.decode(errors="replace")

    def with_output(self, stdout: Bytes, stderr: Bytes) -> Delivered:
        """Return a copy with the complete output, split among the results of the calls."""
        job = About("", "", stdout=stdout, stderr=stderr)
        if self.meta is not None and "results" in self.meta:
            shared = results.shared(self.results, self.meta, job)
        else:
            shared = [each._replace(stdout=stdout, stderr=stderr) for each in self.results]
        return replace(self, results=shared, stdout=stdout, stderr=stderr, is_whole=True)


async def fetch_written(
    store: Store, submission: Submission, index: int, key: str, threads: Executor | None = None
) -> Written | None:
    """Return the output that an outcome describes; None if the outcome does not exist.

    Raises:
        IntegrityError: The outcome is not what the container wrote.
        ServiceError: S3 refused a request.
    """
    try:
        stored = await outcomes.fetch(store, submission, key, threads=threads)
    except envelope.EnvelopeError as error:
        about = About(submission.id_of(index), submission.name)
        raise failure_reasons.unusable(error).error(about) from error
    return None if stored is None else Written.of(submission, index, stored.outcome, stored.at)


Reader: TypeAlias = "Callable[[dict[str, Any], envelope.Buffer, About], list[Result]]"
"""Turns an outcome's metadata and value into results; errors get the job's facts."""


class Keep(Protocol):
    """Keeps the result of a task for later calls with the same arguments."""

    def reading(self, read: Reader) -> Reader:
        """Return a reader that also notes the values."""

    async def store(
        self, submission: Submission, index: int, end: Completion, delivered: Delivered
    ) -> None:
        """Keep the result, unless a call failed."""


class Output(enum.Enum):
    """Part of a task's output that is fetched in addition to the part in its outcome."""

    NONE = enum.auto()
    """No output; for a failed task the end, for the error."""
    SMALL = enum.auto()
    """Complete output if it is small; otherwise the same as `NONE`."""
    WHOLE = enum.auto()


@dataclass(frozen=True, slots=True)
class Wanted:
    """Parts of a task's outcome that are fetched.

    Attributes:
        calls: Number of calls in the task, if known.
        output: Part of the task's output that is fetched with the result. The rest can be fetched
            later, except with `Output.NONE`, which deletes it with the result.
        read: Reads the results from the outcome.
        folder_for: Folder for a large result; by default ``cache_dir`` if memory is short.
        writer: Prints the task's output while a caller waits for the result.
        keep: With the option ``cache``, keeps the result for later calls.
    """

    calls: int = 1
    output: Output = Output.SMALL
    read: Reader = results.read
    folder_for: FolderFor | None = None
    writer: Writer | None = None
    keep: Keep | None = None
