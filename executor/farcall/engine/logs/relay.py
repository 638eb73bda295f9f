"""Relay: passes on what tasks print while they run, to whoever waits for their values.

One listing tells what is new of all tasks of a bundle, so a look costs the same for one of them
as for a thousand. What comes too fast to be read is left out, and that is told.
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
from farcall.storage.stores import Stores
from farcall_runtime import envelope
from farcall_runtime.contract import STREAMS

_log = logging.getLogger("farcall")

_MOST_TASKS = 64
"""Maximum tasks that one look reads, chosen at random: nobody can read the lines of more."""

_TOGETHER = 8
_MOST_BYTES = 1024 * 1024
"""Of a stream, what is read at once; what comes before it is left out."""

_LONGER, _LONGEST = 1.5, 4


class Writer(Protocol):
    """Who shows the lines."""

    def write(self, label: str, run: str, lines: list[LogLine], left_out_bytes: int = 0) -> None:
        """Show lines of a task, after so many bytes that are left out."""

    def settle(self) -> None:
        """Tell what was left out: no more is to come for now."""


@dataclass(eq=False, slots=True)
class _Task:
    """A task of which something was read.

    Attributes:
        transcripts: By number, its attempts.
        lock: Whoever reads has it.
    """

    transcripts: dict[int, Transcript] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(eq=False, slots=True)
class _Followed:
    """The tasks of a bundle that are followed.

    Attributes:
        submission: Their job.
        writer: Who shows their lines.
        labels: By index, what those are called that have not ended.
        tasks: By index, those of which something was read.
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
        """Show lines of a task."""
        label = self.labels.get(index)
        if label is not None and (lines or left_out_bytes):
            self.writer.write(label, self.run, lines, left_out_bytes)


class _Chunk(NamedTuple):
    """A chunk in the bucket: of which stream, its number there, and the bytes of output in it."""

    stream: str
    sequence: int
    size: int


class Relay:
    """The tasks of one session whose output is passed on."""

    def __init__(self, stores: Stores, timing: Timing) -> None:
        self._stores = stores
        self._timing = timing
        self._followed: dict[str, _Followed] = {}
        self._looking: asyncio.Task[None] | None = None

    def follow(self, submission: Submission, labels: Mapping[int, str], writer: Writer) -> None:
        """Pass on what tasks of a job print, until they are finished or left."""
        key = submission.where.bundle_key
        followed = self._followed.setdefault(key, _Followed(submission, writer))
        followed.labels.update(labels)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._look_on())

    async def finish(self, submission: Submission, index: int, delivered: Delivered) -> None:
        """Pass on the rest of what a task printed, whose end was fetched and still lies there.

        One that is not followed is none of this one's business. What cannot be read is no
        failure: the task's value is there.
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
                    _log.warning(
                        "output of %s cannot be shown: %s", submission.id_of(index), error
                    )
        self.leave(submission, [index])

    def leave(self, submission: Submission, indexes: Iterable[int]) -> None:
        """Pass nothing more on of some tasks."""
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
        """Pass nothing more on."""
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
                except FarcallError as error:  # the rest comes with the values
                    _log.debug("output cannot be looked for: %s", error)
                    some, others = 1, 0
                listed, read = listed + some, read + others
            longest_s = timing.log_pause_s * _LONGEST
            pause_s = timing.log_pause_s if read else min(pause_s * _LONGER, longest_s)
            pause_s = max(pause_s, listed * timing.outcome_pause_s)

    async def _look_at(self, followed: _Followed) -> tuple[int, int]:
        """Read what is new of a bundle's tasks; return how many pages were listed, and tasks read.

        Raises:
            FarcallError: It cannot be listed.
        """
        submission = followed.submission
        store = self._stores.of(submission.where.bucket)
        prefix = submission.where.streams_prefix(0).removesuffix("0/")
        listed = await store.list_keys(prefix)
        news: dict[int, dict[int, list[_Chunk]]] = {}
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
                news.setdefault(index, {}).setdefault(attempt, []).append(chunk)
        chosen = random.sample(list(news), min(len(news), _MOST_TASKS))
        for start in range(0, len(chosen), _TOGETHER):
            some = chosen[start : start + _TOGETHER]
            await asyncio.gather(*(self._read(followed, index, news[index]) for index in some))
        return 1 + len(listed) // 1000, len(news)

    async def _read(
        self, followed: _Followed, index: int, news: Mapping[int, list[_Chunk]]
    ) -> None:
        """Read new chunks of a task, up to so many bytes of each stream."""
        task = followed.tasks.get(index)
        if task is None:
            return
        async with task.lock:
            for attempt in sorted(news):
                if index not in followed.labels:  # what it printed has gone out meanwhile
                    return
                if any(number > attempt for number in task.transcripts):
                    continue
                followed.write(index, self._end_others(task, attempt))
                transcript = self._transcript(followed, index, task, attempt)
                for stream in STREAMS:
                    chunks = [chunk for chunk in news[attempt] if chunk.stream == stream]
                    try:
                        followed.write(index, *await _news(transcript, chunks))
                    except FarcallError as error:  # the rest comes with the value
                        _log.debug("output cannot be read: %s", error)

    def _transcript(
        self, followed: _Followed, index: int, task: _Task, attempt: int
    ) -> Transcript:
        found = task.transcripts.get(attempt)
        if found is None:
            store = self._stores.of(followed.submission.where.bucket)
            chunks = Chunks(store, followed.submission, index)
            found = task.transcripts[attempt] = Transcript(chunks, attempt, self._timing)
        return found

    @staticmethod
    def _end_others(task: _Task, attempt: int) -> list[LogLine]:
        """Return the last lines of attempts before one."""
        before = [number for number in sorted(task.transcripts) if number < attempt]
        return [line for number in before for line in task.transcripts.pop(number).end()]

    # --- at their end -------------------------------------------------------------------------

    async def _finish(
        self, followed: _Followed, index: int, task: _Task, delivered: Delivered
    ) -> None:
        attempt = delivered.attempt or max(task.transcripts, default=1)
        lines, left_out = self._end_others(task, attempt), 0
        transcript = self._transcript(followed, index, task, attempt)
        written = delivered.elsewhere()
        try:
            if delivered.meta is None:  # no more is known than what lies there
                for stream in STREAMS:
                    lines += await transcript.look_at(stream, None)
                lines += transcript.end()
            elif written is None:
                lines += transcript.close_with(delivered.stdout, delivered.stderr)
            else:
                for stream in STREAMS:
                    said = written.said[stream]
                    unread = said["stored"] - transcript.seen(stream)
                    if unread > _MOST_BYTES:
                        left_out += unread
                        lines += transcript.skip(stream, said["chunks"], unread)
                lines += await transcript.close(written, with_notes=True) or []
        finally:
            followed.write(index, lines, left_out)


async def _news(transcript: Transcript, chunks: list[_Chunk]) -> tuple[list[LogLine], int]:
    """Return the lines of a stream's new chunks, and how many bytes before them are left out."""
    kept = _last(chunks)
    if not kept:
        return [], 0
    stream, first, _ = kept[0]
    skipped = sum(chunk.size for chunk in chunks) - sum(chunk.size for chunk in kept)
    lines = transcript.skip(stream, first, skipped) if skipped else []
    return lines + await transcript.look_at(stream, kept[-1].sequence + 1), skipped


def _last(chunks: list[_Chunk]) -> list[_Chunk]:
    """Return the last chunks of a stream that are not too many bytes, the very last one always."""
    kept: list[_Chunk] = []
    size = 0
    for chunk in reversed(chunks):
        size += chunk.size
        if kept and size > _MOST_BYTES:
            break
        kept.append(chunk)
    return kept[::-1]
