"""From an arrival in the inbox to a value, or to the error that says why there is none."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from farcall import logs, results
from farcall.aws import Aws
from farcall.errors import FarcallError, IntegrityError
from farcall.results import Result
from farcall.states import JobDetail
from farcall.store import Arrived, NoRoomError, Store
from farcall.submission import Submission
from farcall.tracker import Arrival, Ended
from farcall_runtime import envelope
from farcall_runtime.contract import STDERR, STDOUT
from farcall_runtime.envelope import Outcome

_PARALLEL = 32
_INLINE_BYTES = 64 * 1024
"""Signatures of smaller outcomes are checked on the spot: a thread would take longer."""


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


Reader: TypeAlias = "Callable[[dict[str, Any], envelope.Buffer, results.About], list[Result]]"
"""Turns an outcome's description and value into results, given what errors say of the job."""


class Courier:
    """Fetches outcomes.

    Args:
        access: The open clients, for the CloudWatch log.
        describe: Asks Batch for a job.
        threads: Where outcomes are verified and unpickled.
    """

    def __init__(
        self,
        access: Aws,
        describe: Callable[[str], Awaitable[JobDetail | None]],
        threads: Executor,
    ) -> None:
        self._aws = access
        self._describe = describe
        self._threads = threads
        # Fetches share connections: one for each would cost a TLS handshake for each.
        self._places = asyncio.Semaphore(_PARALLEL)

    async def deliver(
        self,
        store: Store,
        submission: Submission,
        index: int,
        arrival: Arrival,
        calls: int = 1,
        *,
        read: Reader = results.read,
        spool: str | None = None,
    ) -> Delivered:
        """Fetch what came of a task.

        Args:
            store: The bucket.
            submission: The task's job.
            index: Its number there.
            arrival: What the tracker saw.
            calls: Number of calls the task makes.
            read: Turns an outcome into results.
            spool: Folder for a large value, which then is a view of an unnamed file there; by
                default it lies in memory.

        Raises:
            ServiceError: S3 refused.
        """
        job = results.About(submission.id_of(index), submission.name)
        try:
            if isinstance(arrival, Ended):
                return await self._explain(store, submission, index, arrival, calls, job)
            outcome = await self._open(store, submission, index, arrival)
            if outcome is None:
                return Delivered([Result(error=results.taken(job))] * calls)
            return await self._unpack(store, submission, index, outcome, calls, job, read, spool)
        except envelope.EnvelopeError as error:
            return Delivered([Result(error=results.unusable(error, job))] * calls)
        except IntegrityError as error:  # a chunk of its output
            return Delivered([Result(error=error)] * calls)

    async def output(
        self, store: Store, submission: Submission, index: int
    ) -> tuple[bytes, bytes] | None:
        """Return what an ended task wrote, and leave its outcome where it is.

        Returns:
            stdout and stderr, or None if there is no outcome (yet, or any more).

        Raises:
            IntegrityError: It is not what the container wrote.
            ServiceError: S3 refused.
        """
        key = submission.where.outcome_key(index)
        data = await store.get(key)
        if data is None:
            return None
        try:
            outcome = await self._verify(submission, key, data)
        except envelope.EnvelopeError as error:
            about = results.About(submission.id_of(index), submission.name)
            raise results.unusable(error, about) from error
        stdout = await self._join(store, submission, index, outcome, STDOUT)
        return stdout, await self._join(store, submission, index, outcome, STDERR)

    # --- with an outcome ----------------------------------------------------------------------

    async def _open(
        self, store: Store, submission: Submission, index: int, arrived: Arrived
    ) -> Outcome | None:
        key = submission.where.outcome_key(index)
        async with self._places:
            data = await store.get(key, arrived.size)
        return None if data is None else await self._verify(submission, key, data)

    async def _unpack(
        self,
        store: Store,
        submission: Submission,
        index: int,
        outcome: Outcome,
        calls: int,
        job: results.About,
        read: Reader,
        spool: str | None,
    ) -> Delivered:
        meta = outcome.meta
        attempt = int(meta["attempt"])
        where = submission.where
        stdout = await self._join(store, submission, index, outcome, STDOUT)
        stderr = await self._join(store, submission, index, outcome, STDERR)
        usage = Usage(**meta["usage"])
        try:
            value = await self._fetch_value(store, submission, index, outcome, spool)
        except NoRoomError as error:  # which takes nothing from what the task has written
            return Delivered([Result(error=error)] * calls, stdout, stderr, usage, attempt)
        job = await self._complete(job, meta, stdout, stderr)
        found = await self._in_thread(read, meta, value, job)
        found = (found * calls)[:calls] if len(found) == 1 else found
        spent = []
        if not any(result.error for result in found):
            spent = [where.outcome_key(index)]
            spent += [where.value_key(index, attempt)] if "value" in meta else []
            for stream in (STDOUT, STDERR):
                count = meta[stream]["chunks"]
                spent += [where.chunk_key(index, attempt, stream, n) for n in range(count)]
        return Delivered(found, stdout, stderr, usage, attempt, spent)

    async def _fetch_value(
        self,
        store: Store,
        submission: Submission,
        index: int,
        outcome: Outcome,
        spool: str | None,
    ) -> envelope.Buffer:
        said = outcome.meta.get("value")
        if said is None:
            return outcome.value
        key = submission.where.value_key(index, int(outcome.meta["attempt"]))
        data, digest = await store.get_large(key, said["size"], spool) or (b"", "")
        if digest != said["sha256"]:
            raise envelope.IntegrityError(f"s3://{store.bucket}/{key} differs from its outcome")
        return data

    async def _join(
        self, store: Store, submission: Submission, index: int, outcome: Outcome, stream: str
    ) -> bytes:
        """Put the chunks of a stream and what the outcome carries of it together."""
        said, tail = outcome.meta[stream], getattr(outcome, stream)
        attempt = int(outcome.meta["attempt"])
        stored = await logs.read_chunks(store, submission, index, attempt, stream, said["chunks"])
        gap = f"\n[farcall: {said['dropped']} bytes could not be stored]\n".encode()
        return stored + (gap if said["dropped"] else b"") + bytes(tail)

    async def _complete(
        self, job: results.About, meta: dict[str, Any], stdout: bytes, stderr: bytes
    ) -> results.About:
        """Add to what an error says, where there will be one."""
        if results.is_success(meta):
            return job
        detail = None
        with contextlib.suppress(FarcallError):  # the error itself matters more
            detail = await self._describe(job.job_id)
        return self._with(job, detail, stdout, stderr, int(meta["attempt"]))

    # --- without one --------------------------------------------------------------------------

    async def _explain(
        self,
        store: Store,
        submission: Submission,
        index: int,
        ended: Ended,
        calls: int,
        job: results.About,
    ) -> Delivered:
        detail = ended.detail
        if ended.error is not None:
            return Delivered([Result(error=ended.error)] * calls)
        if detail is None:
            return Delivered([Result(error=results.lost(job))] * calls)
        kept = await self._last_attempt(store, submission, index, detail)
        stdout = stderr = b""
        usage = Usage()
        if kept is not None:
            stdout = await self._join(store, submission, index, kept, STDOUT)
            stderr = await self._join(store, submission, index, kept, STDERR)
            usage = Usage(**kept.meta["usage"])
        else:
            for _, stream, data in await logs.Tail(store, submission, index).read():
                stdout, stderr = (
                    (stdout + data, stderr) if stream == STDOUT else (stdout, stderr + data)
                )
        if not stdout and not stderr:
            stdout = (await logs.last_lines(self._aws, detail)).encode()
        job = self._with(job, detail, stdout, stderr, detail.attempts)
        error = results.ended(job, detail, stuck=ended.stuck)
        return Delivered([Result(error=error)] * calls, stdout, stderr, usage, detail.attempts)

    async def _last_attempt(
        self, store: Store, submission: Submission, index: int, detail: JobDetail
    ) -> Outcome | None:
        """Return what the last attempt stored of itself when it was told to stop."""
        key = submission.where.attempt_key(index, max(1, detail.attempts))
        data = await store.get(key)
        return None if data is None else await self._verify(submission, key, data)

    def _with(
        self,
        job: results.About,
        detail: JobDetail | None,
        stdout: bytes,
        stderr: bytes,
        attempts: int,
    ) -> results.About:
        return results.About(
            job.job_id,
            job.name,
            reason=detail.reason if detail else "",
            attempts=attempts,
            stdout=stdout.decode(errors="replace"),
            stderr=stderr.decode(errors="replace"),
            log_url=logs.url(self._aws.region, detail)
            if detail and self._aws.has_console
            else None,
        )

    async def _verify(self, submission: Submission, key: str, data: bytearray) -> Outcome:
        if len(data) <= _INLINE_BYTES:
            return envelope.open_outcome(submission.key, key, data)
        outcome: Outcome = await self._in_thread(envelope.open_outcome, submission.key, key, data)
        return outcome

    async def _in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, function, *args)
