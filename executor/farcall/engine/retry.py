"""Retry: run a job's failed tasks again, with the bundle that is still in S3.

AWS Batch and the bucket determine which tasks these are: the tasks that Batch reports as failed,
except those whose outcome contains a result for each call, and those that an earlier retry has
run. A task runs again with all calls of its chunk. The function and arguments are copied from the
old bundle, verified by the digest in Batch, into a new one. They are not unpickled, so any farcall
can retry the tasks of any Python version.

Each task has one lineage: after a retry has run it, only that retry can be retried, so no more
than one level of retries has to be read. If two clients retry a task at the same time, each of
them stores a note first and then lists the notes. At least one of them sees the other's note, and
gives up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from farcall.config.settings import Settings
from farcall.engine.failed_tasks import LARGE_BYTES, FailedTask
from farcall.engine.group import TaskGroup
from farcall.engine.retry_notes import ClaimedError, Note, key_of, read, write
from farcall.engine.retry_plan import Plan, differs
from farcall.engine.submitter import Again
from farcall.model.errors import FarcallError
from farcall.model.failure_reasons import About
from farcall.model.submission import Submission
from farcall.model.workflows import NODES, list_nodes, node_at
from farcall.payload.bundle import FIXED
from farcall.payload.pickling import Packed
from farcall.storage import bundles
from farcall.storage.bundles import Bundle
from farcall.storage.store import Store
from farcall_runtime import envelope
from farcall_runtime.contract import PACKAGES, SHARED, Location
from farcall_runtime.envelope import Buffer, Part

if TYPE_CHECKING:
    from farcall.engine.session import Session


_IN_FLIGHT = timedelta(seconds=60)
"""Age up to which the client of a note may still be about to submit its job."""


_SAME = (FIXED, PACKAGES, SHARED)
"""Facts of a bundle that apply to any subset of its tasks."""

_AHEAD = 32

T = TypeVar("T")


class Retried(NamedTuple):
    """A retry that was submitted.

    Attributes:
        group: The new job, which is not tracked yet.
        origin: For each of its tasks, the index of the task that it runs again.
    """

    group: TaskGroup
    origin: tuple[int, ...]

    @property
    def submission(self) -> Submission:
        """The new job's submission."""
        return self.group.submission


async def submit(session: Session, plan: Plan, settings: Settings) -> list[Retried]:
    """Submit a plan as one job, or as several if one bundle would be too large.

    Cancelling the wait withdraws the request; a job that is accepted anyway is terminated.

    Args:
        session: The event loop's session.
        plan: The tasks to run again.
        settings: The options of the new job, as `Plan.with_options` returns them.

    Raises:
        NothingToRetryError: The plan has no tasks.
        IntegrityError: The bucket's content differs from the submission.
        SettingsError: A resource that the options name does not exist, or the options are invalid.
        SubmissionError: Batch refused the job.
        ServiceError: AWS refused a call.
    """
    plan.refuse()
    async with session.copying:  # each copy occupies a thread
        with session.at_work():
            return await _submit(session, plan, settings)


async def _submit(session: Session, plan: Plan, settings: Settings) -> list[Retried]:
    left = deque(plan.tasks)
    done: list[Retried] = []
    store = session.stores.of(plan.submission.where.bucket)
    submitter = await session.submitter(settings)
    texts = None
    with contextlib.suppress(FarcallError, envelope.EnvelopeError):  # they are only displayed
        texts = await bundles.texts_of(store, plan.submission)
    while left:
        copied = _Copied(session, plan, left, texts or [])
        claim = _Claim(store, plan, settings.queue, copied)
        again = Again(_job_id_of(plan), plan.detail.definition, plan.facts.get(SHARED) or {})
        try:
            group = await submitter.submit_together(
                settings,
                plan.function,
                copied.tasks(),
                planned=claim.take,
                workflow=plan.workflow,
                facts=_facts(plan, left),
                again=again,
            )
        except asyncio.CancelledError:
            await claim.release()
            raise
        except envelope.EnvelopeError as error:
            about = About(plan.submission.job_id, plan.submission.name)
            raise differs(error, about, plan.submission) from error
        submission = group.submission
        done.append(Retried(group, tuple(copied.taken)))
        note = Note(submission.where, settings.queue, done[-1].origin, submission.job_id)
        with contextlib.suppress(FarcallError):  # without it, the job is found by its name
            await write(store, plan.submission, note)
    return done


def _facts(plan: Plan, left: Iterable[FailedTask]) -> dict[str, Any]:
    """Return the facts of the new bundle."""
    facts = {name: plan.facts[name] for name in _SAME if name in plan.facts}
    nodes = [node_at(plan.facts.get(NODES), task.number) for task in left]
    if all(nodes):
        facts[NODES] = list_nodes([node for node in nodes if node is not None])
    return facts


class _Claim:
    """One retry's notes, which show other clients that it runs the tasks.

    Args:
        store: The bucket.
        plan: The tasks to run again.
        queue: Queue of the retry.
        copied: The tasks in the retry's bundle.
    """

    def __init__(self, store: Store, plan: Plan, queue: str, copied: _Copied) -> None:
        self._store = store
        self._plan = plan
        self._queue = queue
        self._copied = copied
        self._own: set[str] = set()

    async def take(self, where: Location) -> None:
        """Store a note for a bundle, before its job is submitted.

        Raises:
            ClaimedError: Another client retries some of the tasks at the same time.
            ServiceError: S3 refused.
        """
        of = self._plan.submission
        self._own.add(where.bundle)
        await write(self._store, of, Note(where, self._queue, tuple(self._copied.taken)))
        notes = await read(self._store, of)
        if any(self._competes(note, notes) for note in notes):
            await self.release()
            raise ClaimedError(
                f"job {of.job_id} ({of.name}) is being retried by another client. Run "
                f"`farcall describe {of.job_id}` in a minute to see that client's job; if it is "
                "not there, retry again."
            )

    async def release(self) -> None:
        """Delete the notes, so that other clients can retry the tasks at once."""
        with contextlib.suppress(FarcallError):  # others can retry a minute later
            of = self._plan.submission
            await self._store.delete([key_of(of, bundle) for bundle in self._own])

    def _competes(self, note: Note, notes: list[Note]) -> bool:
        """Return whether a note's retry runs the same tasks, and has or will have a job."""
        if note.where.bundle in self._own or set(note.origin).isdisjoint(self._copied.taken):
            return False
        own = [each.at for each in notes if each.where.bundle in self._own and each.at]
        since = max(own, default=datetime.now(UTC))  # S3's clock, if the note was read
        return note.where.bundle not in self._plan.noted or (
            note.at is not None and note.at > since - _IN_FLIGHT
        )


def _job_id_of(plan: Plan) -> str:
    """Return the ID that the retry records: the task's if there is only one."""
    if len(plan.tasks) == 1:
        return plan.submission.id_of(plan.tasks[0].number)
    return plan.submission.job_id


class _Copied:
    """Tasks copied from one bundle into another; in a thread, during the upload.

    Args:
        session: The event loop's session.
        plan: The tasks to run again.
        left: The tasks still to be copied; copied tasks are removed.
        texts: The summary of each task of the old job, if known.

    Attributes:
        taken: Indexes of the copied tasks in the old job.
    """

    def __init__(
        self, session: Session, plan: Plan, left: deque[FailedTask], texts: Sequence[str]
    ) -> None:
        self.taken: list[int] = []
        where = plan.submission.where
        store = session.stores.of(where.bucket)
        self._bundle = Bundle(store, where, plan.submission.digest)
        self._origin = plan.origin
        self._left = left
        self._texts = texts
        self._loop = asyncio.get_running_loop()
        self._functions: dict[int, Packed] = {}

    def tasks(self) -> Iterator[tuple[Packed, Packed]]:
        """Yield the function and arguments of each task, as they were submitted."""
        ahead: deque[tuple[int, Future[tuple[Part, Buffer]]]] = deque()
        coming = (task.number for task in list(self._left))
        try:
            while True:
                while len(ahead) < _AHEAD and (index := next(coming, None)) is not None:
                    ahead.append((index, self._in_loop(self._task(index))))
                if not ahead:
                    return
                index, reading = ahead.popleft()
                packed = self._packed(index, *reading.result())
                self._left.popleft()
                self.taken.append(index)
                yield packed
        finally:
            for _, each in ahead:
                each.cancel()

    def _in_loop(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def _task(self, index: int) -> tuple[Part, Buffer]:
        entry, data = await self._bundle.entry(index)
        if len(data) < entry.length <= LARGE_BYTES:
            data = await self._bundle.part(entry)
        return entry, data

    def _packed(self, index: int, entry: Part, data: Buffer) -> tuple[Packed, Packed]:
        function = self._functions.get(entry.function)
        if function is None:
            part, code = self._in_loop(self._bundle.function(entry.function)).result()
            part.check(code)
            function = self._functions[entry.function] = Packed([code], len(code), self._origin)
        if len(data) < entry.length:
            data = self._in_loop(self._bundle.part(entry)).result()
        entry.check(data)
        text = self._texts[index] if index < len(self._texts) else ""
        return function, Packed([data], len(data), self._origin, text=text)
