"""Relay: forwards the output of running tasks to callers that await results.

One listing returns the new output of all tasks of a bundle, so a poll costs the same for one task
as for a thousand. Output that is too fast to read is dropped, and the dropped amount is reported.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from farcall.engine.delivered import Delivered
from farcall.engine.logs.transcript import Transcript
from farcall.model.errors import FarcallError
from farcall.model.output import LogLine
from farcall.model.submission import Submission
from farcall.model.timing import Timing
from farcall.storage.chunks import Chunks, chunk_in
from farcall.storage.store import Stores
from farcall_runtime import envelope
from farcall_runtime.contract import STREAMS

_log = logging.getLogger("farcall")

_MOST_TASKS = 64
"""Maximum tasks that one poll reads, chosen at random; people cannot read more."""

_TOGETHER = 8
_MOST_BYTES = 1024 * 1024
"""Maximum bytes of a stream read at once; earlier bytes are dropped."""

_LONGER, _LONGEST = 1.5, 4


class Writer(Protocol):
    """Output of the lines."""

    def write(self, label: str, run: str, lines: list[LogLine], left_out_bytes: int = 0) -> None:
        """Print lines of a task, after a number of dropped bytes."""

    def settle(self) -> None:
        """Report dropped output, because no more follows for now."""


@dataclass(eq=False, slots=True)
class _Task:
    """A task whose output was read in part.

    Attributes:
        transcripts: The task's attempts, by number.
        lock: Held by the current reader.
    """

    transcripts: dict[int, Transcript] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(eq=False, slots=True)
class _Followed:
    """The followed tasks of a bundle.

    Attributes:
        submission: The tasks' job.
        writer: Prints the lines.
        labels: Prefixes of unfinished tasks, by index.
        tasks: Tasks whose output was read in part, by index.
    """

    submission: Submission
    writer: Writer
    labels: dict[int, str] = field(default_factory=dict)
    tasks: dict[int, _Task] = field(default_factory=dict)

    @property
    def run(self) -> str:
        """The run's name."""
        return self.submission.where.root.rpartition("/")[2]

    def write(self, index: int, lines: list[LogLine], left_out_bytes: int = 0) -> None:
        """Print lines of a task."""
        label = self.labels.get(index)
        if label is not None and (lines or left_out_bytes):
            self.writer.write(label, self.run, lines, left_out_bytes)


class _Chunk(NamedTuple):
    """A chunk in the bucket: stream, number in the stream, output size in bytes."""

    stream: str
    sequence: int
    size: int


class Relay:
    """Output forwarding for the tasks of one session."""

    def __init__(self, stores: Stores, timing: Timing) -> None:
        self._stores = stores
        self._timing = timing
        self._followed: dict[str, _Followed] = {}
        self._looking: asyncio.Task[None] | None = None

    def follow(self, submission: Submission, labels: Mapping[int, str], writer: Writer) -> None:
        """Forward the output of a job's tasks until they are finished or left."""
        key = submission.where.bundle_key
        followed = self._followed.setdefault(key, _Followed(submission, writer))
        followed.labels.update(labels)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._look_on())

    async def finish(self, submission: Submission, index: int, delivered: Delivered) -> None:
        """Forward the rest of a task's output, after its outcome was fetched.

        Tasks that are not followed are ignored. Unreadable output is not a failure, because the
        task's result is available.
        """
        followed = self._followed.get(submission.where.bundle_key)
        if followed is None or index not in followed.labels:
            return
        task = followed.tasks.setdefault(index, _Task())
        async with task.lock:
            if index in followed.labels:
                try:
                    await self._finish(followed, index, task, delivered)
                except FarcallError as error:
                    _log.warning("cannot show output of %s: %s", submission.id_of(index), error)
        self.leave(submission, [index])

    def leave(self, submission: Submission, indexes: Iterable[int]) -> None:
        """Stop forwarding the output of some tasks."""
        key = submission.where.bundle_key
        followed = self._followed.get(key)
        if followed is None:
            return
        for index in indexes:
            followed.labels.pop(index, None)
            followed.tasks.pop(index, None)
        if not followed.labels:
            del self._followed[key]
            followed.writer.settle()

    async def close(self) -> None:
        """Stop forwarding."""
        self._followed.clear()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    # --- while they run -----------------------------------------------------------------------

    async def _look_on(self) -> None:
        timing = self._timing
        pause_s = timing.log_pause_s
        while self._followed:
            await asyncio.sleep(pause_s)
            listed = read = 0
            for followed in list(self._followed.values()):
                try:
                    some, others = await self._look_at(followed)
                except FarcallError as error:  # the rest arrives with the results
                    _log.debug("cannot search for output: %s", error)
                    some, others = 1, 0
                listed, read = listed + some, read + others
            longest_s = timing.log_pause_s * _LONGEST
            pause_s = timing.log_pause_s if read else min(pause_s * _LONGER, longest_s)
            pause_s = max(pause_s, listed * timing.outcome_pause_s)

    async def _look_at(self, followed: _Followed) -> tuple[int, int]:
        """Read a bundle's new output; return the numbers of listed pages and read tasks.

        Raises:
            FarcallError: The bundle cannot be listed.
        """
        submission = followed.submission
        store = self._stores.of(submission.where.bucket)
        prefix = submission.where.streams_prefix(0).removesuffix("0/")
        listed = await store.list_keys(prefix)
        new_chunks: dict[int, dict[int, list[_Chunk]]] = {}
        wanted = {str(index): index for index in followed.labels}
        for key, size in listed:
            name, _, rest = key[len(prefix) :].partition("/")
            place = chunk_in(rest)
            if place is None or name not in wanted:
                continue
            attempt, stream, sequence = place
            index = wanted[name]
            known = followed.tasks.setdefault(index, _Task()).transcripts.get(attempt)
            if known is None or sequence >= known.next[stream]:
                held = max(0, size - envelope.CHUNK_HEAD_BYTES)
                chunk = _Chunk(stream, sequence, held)
                new_chunks.setdefault(index, {}).setdefault(attempt, []).append(chunk)
        chosen = random.sample(list(new_chunks), min(len(new_chunks), _MOST_TASKS))
        for start in range(0, len(chosen), _TOGETHER):
            some = chosen[start : start + _TOGETHER]
            await asyncio.gather(
                *(self._read(followed, index, new_chunks[index]) for index in some)
            )
        return 1 + len(listed) // 1000, len(new_chunks)

    async def _read(
        self, followed: _Followed, index: int, new_chunks: Mapping[int, list[_Chunk]]
    ) -> None:
        """Read a task's new chunks, up to a number of bytes per stream."""
        task = followed.tasks.get(index)
        if task is None:
            return
        async with task.lock:
            for attempt in sorted(new_chunks):
                if index not in followed.labels:  # its output was printed meanwhile
                    return
                if any(number > attempt for number in task.transcripts):
                    continue
                followed.write(index, self._end_others(task, attempt))
                transcript = self._transcript(followed, index, task, attempt)
                for stream in STREAMS:
                    chunks = [chunk for chunk in new_chunks[attempt] if chunk.stream == stream]
                    try:
                        followed.write(index, *await _read_new(transcript, chunks))
                    except FarcallError as error:  # the rest arrives with the result
                        _log.debug("cannot read output: %s", error)

    def _transcript(
        self, followed: _Followed, index: int, task: _Task, attempt: int
    ) -> Transcript:
        transcript = task.transcripts.get(attempt)
        if transcript is None:
            store = self._stores.of(followed.submission.where.bucket)
            chunks = Chunks(store, followed.submission, index)
            transcript = task.transcripts[attempt] = Transcript(chunks, attempt)
        return transcript

    @staticmethod
    def _end_others(task: _Task, attempt: int) -> list[LogLine]:
        """Return the last lines of earlier attempts."""
        before = [number for number in sorted(task.transcripts) if number < attempt]
        return [line for number in before for line in task.transcripts.pop(number).end()]

    # --- after their end ----------------------------------------------------------------------

    async def _finish(
        self, followed: _Followed, index: int, task: _Task, delivered: Delivered
    ) -> None:
        attempt = delivered.attempt or max(task.transcripts, default=1)
        lines, left_out = self._end_others(task, attempt), 0
        transcript = self._transcript(followed, index, task, attempt)
        written = delivered.elsewhere()
        try:
            if delivered.meta is None:  # only the stored chunks are known
                async for new_lines in transcript.read_new():
                    lines += new_lines
                lines += transcript.end()
            else:
                for stream, record in written.records.items() if written is not None else ():
                    unread = record["stored"] - transcript.seen(stream)
                    if unread > _MOST_BYTES:
                        left_out += unread
                        lines += transcript.skip(stream, record["chunks"], unread)
                lines += await transcript.close_delivered(delivered)
        finally:
            followed.write(index, lines, left_out)


async def _read_new(transcript: Transcript, chunks: list[_Chunk]) -> tuple[list[LogLine], int]:
    """Return a stream's new lines, and the number of dropped bytes before them."""
    kept = _last(chunks)
    if not kept:
        return [], 0
    stream, first, _ = kept[0]
    skipped = sum(chunk.size for chunk in chunks) - sum(chunk.size for chunk in kept)
    lines = transcript.skip(stream, first, skipped) if skipped else []
    async for new_lines in transcript.read_stream(stream, kept[-1].sequence + 1):
        lines += new_lines
    return lines, skipped


def _last(chunks: list[_Chunk]) -> list[_Chunk]:
    """Return a stream's last chunks up to a size, and always the last one."""
    kept: list[_Chunk] = []
    size = 0
    for chunk in reversed(chunks):
        size += chunk.size
        if kept and size > _MOST_BYTES:
            break
        kept.append(chunk)
    return kept[::-1]
