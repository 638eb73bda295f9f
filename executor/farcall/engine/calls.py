"""Calls: a task of one call is submitted, unless its result is cached."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, Protocol

from farcall.config.settings import Settings
from farcall.engine.cache import CachedResults, Keep
from farcall.engine.delivered import Delivered, Wanted
from farcall.engine.fetcher import Room, no_bound
from farcall.engine.run import JobRun, PackedCall, TaskRun
from farcall.engine.session import Session, session_for
from farcall.engine.submitter import Planned
from farcall.engine.tracked_job import Completion
from farcall.model.errors import FarcallError, NothingToRetryError
from farcall.model.jobs import JobDetail
from farcall.model.workflows import NodeOf, Workflow
from farcall.payload.pickling import Packed
from farcall.storage.cache_packs import Entry
from farcall_runtime.envelope import EnvelopeError

_log = logging.getLogger("farcall")

_NO_JOB = "the result of this call came from the cache, so there is no job"


class Call(Protocol):
    """The function call of a task."""

    @property
    def name(self) -> str:
        """Name of the function."""

    async def pack(self, session: Session) -> tuple[Packed, Packed]:
        """Pickle the function and its arguments, after the options were checked.

        Raises:
            TaskNotPicklableError: The function or an argument cannot be pickled.
        """


async def submit(
    call: Call,
    settings: Settings,
    wanted: Wanted,
    *,
    on_end: Callable[[JobRun], None] | None = None,
    planned: Planned | None = None,
    workflow: Workflow | None = None,
    node: NodeOf | None = None,
) -> TaskRun:
    """Submit a call, or take its result from the cache; see `TaskRun.submit`.

    Raises:
        TaskNotPicklableError: The function or an argument cannot be pickled.
        SettingsError: A resource that the options name does not exist.
        SubmissionError: Batch refused the job.
        ServiceError: AWS refused a call.
    """
    session = await session_for(settings)
    with session.at_work():
        await session.submitter(settings)  # checks the options
        packed = PackedCall(call.name, *await call.pack(session))
        if packed.function.code and settings.nodes == 1:
            cached = await session.cache.of(settings, call.name, packed.function)
            digest, entry = cached.find(packed.arguments)
            delivered = None if entry is None else await _fetch(cached, entry, call.name, wanted)
            if delivered is not None:
                return CachedRun(settings, delivered, wanted)
            wanted = replace(wanted, keep=Keep(cached, digest))
        return await TaskRun.submit(
            session,
            packed,
            settings,
            wanted,
            on_end=on_end,
            planned=planned,
            workflow=workflow,
            node=node,
        )


async def _fetch(
    cached: CachedResults, entry: Entry, name: str, wanted: Wanted
) -> Delivered | None:
    """Return a cached result; None if its value must not be used."""
    try:
        return await cached.fetch(entry, name, wanted)
    except EnvelopeError as error:
        _log.warning("a call of %s is computed again: %s", name, error)
        return None


class CachedRun(TaskRun):
    """A call whose result came from the cache."""

    __slots__ = ("_cached",)

    is_cached = True

    def __init__(self, settings: Settings, delivered: Delivered, wanted: Wanted) -> None:
        super().__init__("", settings, wanted=wanted)
        self._cached = delivered

    @property
    def is_completed(self) -> bool:
        """True: there is a result."""
        return True

    async def delivered(self) -> Delivered:
        """Return the cached result."""
        return self._cached

    async def results(self) -> list[Any]:
        """Return the cached result of each call."""
        return self._cached.results

    async def wait(self) -> None:  # type: ignore[override]
        """Return at once."""
        return

    async def find(self) -> NoReturn:
        """Raise an error, because there is no job."""
        raise FarcallError(_NO_JOB)

    async def detail(self) -> JobDetail:
        """Raise an error, because there is no job."""
        raise FarcallError(_NO_JOB)

    async def cancel(self, reason: str) -> None:
        """Do nothing, because there is no job."""

    async def end(self, reason: str) -> bool:
        """Return True, because there is no job."""
        return True

    async def discard(self, delivered: Delivered, settings: Settings | None = None) -> None:
        """Keep the result, which later calls may use."""

    async def discard_keys(self, deletable: list[str], output: Sequence[str] = ()) -> None:
        """Do nothing, because there is no job."""

    async def retry(self, options: Mapping[str, Any]) -> TaskRun:
        """Raise an error, because the call has succeeded."""
        raise NothingToRetryError(f"{_NO_JOB} to retry")


class CachedTasks:
    """Tasks of a map whose results are cached, instead of a `TaskGroup`.

    Args:
        cached: The function's cached results.
        name: Name of the function.
        function: The pickled function, to compute a result that must not be used.
        settings: Options of the map.

    Attributes:
        cached: The function's cached results.
    """

    def __init__(
        self, cached: CachedResults, name: str, function: Packed, settings: Settings
    ) -> None:
        self.cached = cached
        self._name = name
        self._function = function
        self.settings = settings
        self._entries: list[tuple[Entry, Packed | None]] = []
        self._runs: dict[int, TaskRun] = {}

    def id_of(self, index: int) -> str:
        """Return the ID of a task's job; empty if its result was cached."""
        run = self._runs.get(index)
        return "" if run is None else run.id

    def find(self, arguments: Packed) -> tuple[bytes, int | None]:
        """Return the digest of a task's calls, and its index if its result is cached."""
        digest, entry = self.cached.find(arguments)
        if entry is None:
            return digest, None
        # A value in a pack is verified already; a large one may have to be computed again.
        self._entries.append((entry, arguments if entry.place is not None else None))
        return digest, len(self._entries) - 1

    async def deliver(
        self, index: int, end: Completion, wanted: Wanted, room: Room = no_bound
    ) -> Delivered:
        """Return a cached result; if it must not be used, compute it again.

        Raises:
            SubmissionError: Batch refused the job.
            ServiceError: S3 refused a request.
        """
        entry, arguments = self._entries[index]
        if entry.place is not None:
            await room(entry.place.size)
        delivered = await _fetch(self.cached, entry, self._name, wanted)
        if delivered is not None:
            return delivered
        assert arguments is not None  # noqa: S101 - only a large value may be unusable
        keep = Keep(self.cached, self.cached.find(arguments)[0])
        session = await session_for(self.settings)
        call = PackedCall(self._name, self._function, arguments)
        run = await TaskRun.submit(session, call, self.settings, replace(wanted, keep=keep))
        self._runs[index] = run
        try:
            return await run.delivered()
        except BaseException:
            run.end_chances()
            await session.terminations.leave_one(run.id, "the map was cancelled")
            raise

    def discard(self, index: int, deletable: list[str]) -> None:
        """Delete the objects of a task that was computed again."""
        if index in self._runs and (place := self._runs[index].place) is not None:
            group, number = place
            group.discard(number, deletable)
