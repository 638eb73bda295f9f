"""Session: all that is open for one account and bucket on one event loop, shared by executors."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import getpass
import logging
import math
import re
import secrets
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from typing import Any, TypeAlias, TypeVar

from farcall.aws.access import Access
from farcall.aws.clients import Aws
from farcall.backends import open_backend
from farcall.backends.base import Backend
from farcall.engine.delivered import Delivered
from farcall.engine.fetcher import Fetcher, Output, Reader, Room, no_bound
from farcall.engine.packer import Packer
from farcall.engine.submitter import Submitter
from farcall.engine.terminations import Terminations
from farcall.engine.tracker import Tracker
from farcall.engine.watch import Arrival
from farcall.model import clock
from farcall.model.clock import within
from farcall.model.errors import JobLostError
from farcall.model.jobs import JobDetail
from farcall.model.settings import Settings
from farcall.model.submission import Submission
from farcall.payload.spill import where_needed
from farcall.storage.bundles import BundleReader
from farcall.storage.chunks import Written
from farcall.storage.held import Held
from farcall.storage.store import Store
from farcall_runtime.contract import run_root

_log = logging.getLogger("farcall")

_THREADS = 4
_LAST_TURNS = 100
"""Turns of the event loop in which a cancel, or an answer, reaches whoever it is for: one for each
task on the way there, however long they take."""

_LAST_BLOCKS_S = 1.0
"""For how long the end of the event loop waits for blocks to be left, which some never are."""

_LAST_REPORT_S = 0.05
_LAST_DELETIONS_S = 10.0
_MOST_UNDELIVERED = 20_000
"""Bundles that are deleted after their last task is delivered. Of jobs that nobody ever asks for
a result there may be more; the oldest are left to the bucket's lifecycle rule."""
_CONNECTION_OPTIONS = ("backend", "profile", "region", "credentials", "endpoint_url")
_PLACE_OPTIONS = (
    "s3_bucket_name",
    "batch_queue",
    "prefix",
    "batch_job_role_name",
    "batch_execution_role_name",
    "batch_job_log_group_name",
)
Opener: TypeAlias = Callable[[Settings], Awaitable[tuple[Access, Backend]]]
"""Opens what a session works with."""

T = TypeVar("T")


class Session:
    """Clients, tracker and submitters of one account on one event loop.

    Sessions are found by `session_for`. A session closes its clients when its event loop ends
    (`asyncio.run` cancels the task that waits for that) or when it is told to.

    Attributes:
        aws: The open clients.
        backend: Where the jobs run.
        tracker: Follows every task.
        terminations: Ends jobs.
        packer: Pickles what is submitted.
        bundles: Reads back what was submitted.
        run: This process's name in the bucket.
    """

    def __init__(self, access: Access, backend: Backend) -> None:
        if access.overruled:
            _log.warning("%s", access.overruled)
        self.aws = access
        self.backend = backend
        self.tracker = Tracker(backend, self.store)
        moment = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
        self.run = f"{this_user()}-{moment}-{secrets.token_hex(3)}"
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="farcall")
        self.packer = Packer(self.in_thread)
        self._fetcher = Fetcher(backend, self.tracker.detail, self._threads)
        self._stores: dict[str, Store] = {}
        self.bundles = BundleReader(self.store)
        self._submitters: dict[tuple[Any, ...], asyncio.Future[Submitter]] = {}
        self._held = Held()
        self._undelivered: dict[str, tuple[int, bool]] = {}
        self.terminations = Terminations(backend, self.tracker)
        self._keeper = asyncio.ensure_future(self._keep())
        self._is_closing = self._is_closed = False
        self._at_work = 0
        self._blocks = 0
        self._less = asyncio.Event()
        self._delivering = 0

    def store(self, bucket: str) -> Store:
        """Return the store of a bucket."""
        if bucket not in self._stores:
            reopen = functools.partial(self.aws.store, bucket)
            operations = self.aws.operations(bucket)
            locate = functools.partial(self.aws.locate, bucket)
            timing = self.aws.timing
            self._stores[bucket] = Store(bucket, reopen(), operations, timing, reopen, locate)
        return self._stores[bucket]

    async def submitter(self, settings: Settings) -> Submitter:
        """Return the submitter for some settings, after a first look at what they name.

        Raises:
            SettingsError: Something the options name does not exist.
            ServiceError: AWS refused a call.
        """
        key = tuple(getattr(settings, name) for name in _PLACE_OPTIONS)
        found = self._submitters.get(key)
        if found is None or (found.done() and not _is_good(found)):
            found = self._submitters[key] = asyncio.ensure_future(self._open_submitter(settings))
        return found.result() if found.done() else await asyncio.shield(found)

    async def _open_submitter(self, settings: Settings) -> Submitter:
        store = self.store(settings.s3_bucket_name)
        root = run_root(settings.prefix, self.run)
        await asyncio.gather(store.check(root), self.backend.check(settings))
        return Submitter(self.aws, self.backend, self.terminations, store, root)

    async def deliver(
        self,
        settings: Settings,
        submission: Submission,
        index: int,
        arrival: Arrival,
        calls: int = 1,
        room: Room = no_bound,
        output: Output = Output.NONE,
    ) -> Delivered:
        """Fetch what came of a task, and leave its objects where they are, for `discard`.

        Args:
            settings: The options it was made with.
            submission: The task's job.
            index: Its number there.
            arrival: What the tracker saw.
            calls: Number of calls the task makes.
            room: Is waited for before anything is fetched but the object that arrived.
            output: How much of what the task wrote is fetched with it.

        Raises:
            ServiceError: S3 refused.
        """
        store = self.store(submission.where.bucket)
        folder_for = where_needed(settings.cache_dir)
        with self._in_delivery():
            return await self._fetcher.deliver(
                store,
                submission,
                index,
                arrival,
                calls,
                folder_for=folder_for,
                room=room,
                output=output,
            )

    async def fetch(
        self, submission: Submission, index: int, arrival: Arrival, read: Reader, spool: str
    ) -> Delivered:
        """Do the same with a way of one's own to read an outcome.

        Args:
            submission: The task's job.
            index: Its number there.
            arrival: What the tracker saw.
            read: Turns the outcome into results.
            spool: Folder where a large value may lie meanwhile.

        Raises:
            ServiceError: S3 refused.
        """
        store = self.store(submission.where.bucket)
        with self._in_delivery():
            return await self._fetcher.deliver(
                store, submission, index, arrival, read=read, folder_for=lambda _: spool
            )

    def discard(
        self,
        settings: Settings,
        submission: Submission,
        index: int,
        spent: list[str],
        output: Sequence[str] = (),
        holder: object | None = None,
    ) -> None:
        """Have the objects of a task deleted whose result its owner has, where all went well.

        Whoever is killed before finds them again; see `farcall.BatchExecutor.recover`.

        Args:
            settings: The options it was made with.
            submission: Its job.
            index: Its number there.
            spent: Keys of what is of no more use; see `farcall.engine.fetcher.Delivered`.
            output: Keys of output that may still be asked for.
            holder: By whom: it stays as long as this lives and the session is open.
        """
        bundle = submission.where.bundle_key
        store = self.store(submission.where.bucket)
        spent = [] if settings.keep_artifacts else spent
        if spent:
            store.delete_delivered(submission, index, spent)
            if output and holder is not None:
                self._held.hold(holder, store, list(output))
        if bundle in self._undelivered:
            left, well = self._undelivered.pop(bundle)
            left, well = left - 1, well and bool(spent)
            if left:
                self._undelivered[bundle] = left, well
            else:
                store.end_bundle(submission.where, delete=well)

    async def written(self, submission: Submission, index: int) -> Written | None:
        """Return what an ended task wrote, without taking its outcome; None if there is none.

        Raises:
            IntegrityError: It is not what the container wrote.
            ServiceError: S3 refused.
        """
        store = self.store(submission.where.bucket)
        return await self._fetcher.written(store, submission, index)

    def note_submission(self, submission: Submission) -> None:
        """Count the tasks of a job submitted here, to know when its bundle is of no more use."""
        self._undelivered.setdefault(submission.where.bundle_key, (submission.size, True))
        if len(self._undelivered) > _MOST_UNDELIVERED:
            del self._undelivered[next(iter(self._undelivered))]

    async def in_thread(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function that takes long in one of the session's threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    async def detail(self, job_id: str) -> JobDetail | None:
        """Return what Batch says of a job, or None if it does not know it.

        Raises:
            ServiceError: Batch refused the call.
        """
        return await self.tracker.detail(job_id)

    async def describe(self, job_id: str) -> JobDetail:
        """Return what Batch says of a job that there has to be.

        Raises:
            JobLostError: Batch does not know it.
            ServiceError: Batch refused the call.
        """
        detail = await self.detail(job_id)
        if detail is None:
            raise JobLostError(self.backend.unknown(job_id), job_id=job_id)
        return detail

    def enter_block(self) -> None:
        """Count a block (``async with``) that is entered."""
        self._blocks += 1

    async def leave_block(self) -> None:
        """Count a block out that has asked for what it wants; the last one closes the session."""
        self._blocks -= 1
        self._less.set()
        if not self._blocks:
            await self.close()

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Keep the clients open while something is submitted: `close` waits for its end."""
        self._at_work += 1
        try:
            yield
        finally:
            self._at_work -= 1
            self._less.set()

    @contextlib.contextmanager
    def _in_delivery(self) -> Iterator[None]:
        """Keep the threads while something is delivered, which `close` does not wait for."""
        self._delivering += 1
        try:
            yield
        finally:
            self._delivering -= 1
            self._end_threads()

    async def close(self) -> None:
        """Finish what is on its way, and close the clients. Jobs go on."""
        if not self._is_closing:  # a second time would cut the first one short
            self._is_closing = True
            _forget(self)
            self._keeper.cancel()
        # Who cancels the wait cuts nothing short either.
        await asyncio.shield(asyncio.gather(self._keeper, return_exceptions=True))

    async def _keep(self) -> None:
        try:
            await asyncio.get_running_loop().create_future()  # never done
        finally:
            self._is_closing = True
            try:
                await self._finish()
            except asyncio.CancelledError:  # the event loop ends, and cancels all others too
                await self._finish()
            finally:
                await self.backend.close()
                await self.aws.close()
                self._is_closed = True
                self._end_threads()

    async def _finish(self) -> None:
        """Bring to their end the requests that something depends on."""
        # When the event loop ends, every task is cancelled at once: let those that own jobs
        # ask for their end before the clients close. They find this session, and open no other.
        if self._blocks:  # who is inside may have to clean up before
            with contextlib.suppress(asyncio.TimeoutError):
                await within(_LAST_BLOCKS_S, self._until(lambda: not self._blocks))
        await _give_way()
        _forget(self)
        await self.terminations.settle()
        await self._close_submitters()  # at once, without waiting for more to come
        await self.tracker.close()
        await self._until(lambda: not self._at_work)
        openings = [each for each in self._submitters.values() if not each.done()]
        for opening in openings:  # whoever wanted it has left
            opening.cancel()
        await asyncio.gather(*openings, return_exceptions=True)
        await self._close_submitters()
        await _give_way()  # those that were told may end their jobs too
        await self.terminations.settle()
        self._held.let_go()
        for store in self._stores.values():
            with contextlib.suppress(Exception):  # what stays there harms nobody
                await _flush(store)
        await self._last_reports()

    async def _until(self, is_so: Callable[[], bool]) -> None:
        """Wait for what comes of fewer blocks, or of less that is submitted."""
        while not is_so():
            self._less.clear()
            await self._less.wait()

    async def _last_reports(self) -> None:
        """Leave the loop open for requests that were given up a moment ago.

        obstore's threads may be about to report their end to the loop, and nobody sees when they
        have.
        """
        given_up = max((store.given_up_at for store in self._stores.values()), default=-math.inf)
        left_s = given_up + _LAST_REPORT_S - clock.now()
        if left_s > 0:
            await asyncio.sleep(left_s)

    async def _close_submitters(self) -> None:
        for future in list(self._submitters.values()):
            if _is_good(future):
                await future.result().close()

    def _end_threads(self) -> None:
        if self._is_closed and not self._delivering:
            self._threads.shutdown(wait=False, cancel_futures=True)


_sessions: weakref.WeakKeyDictionary[
    asyncio.AbstractEventLoop, dict[tuple[Any, ...], asyncio.Future[Session]]
] = weakref.WeakKeyDictionary()


async def session_for(settings: Settings) -> Session:
    """Return the running event loop's session for some settings, opened if there is none.

    Raises:
        SettingsError: The profile or the credentials file does not exist.
        ServiceError: There are no credentials.
    """
    here = _sessions.setdefault(asyncio.get_running_loop(), {})
    options = (
        getattr(settings, name) if name in settings.model_fields_set else None
        for name in _CONNECTION_OPTIONS
    )
    key = (_opener, *options)
    found = here.get(key)
    if found is None or (found.done() and not _is_good(found)):
        found = here[key] = asyncio.ensure_future(open_session(settings))
    return found.result() if found.done() else await asyncio.shield(found)


async def open_session(settings: Settings) -> Session:
    """Return a session of one's own, for some settings.

    Raises:
        SettingsError: The profile or the credentials file does not exist.
        ServiceError: There are no credentials.
    """
    return Session(*await _opener(settings))


async def _open_aws(settings: Settings) -> tuple[Access, Backend]:
    access = await Aws.open(settings)
    return access, open_backend(settings.backend, access)


_opener: Opener = _open_aws


@contextlib.contextmanager
def opening(opener: Opener) -> Iterator[None]:
    """Have this process's sessions opened in another way, for as long as a block lasts.

    Those that are open keep what they have, and are not found in the block.
    """
    global _opener
    before, _opener = _opener, opener
    try:
        yield
    finally:
        _opener = before


def _forget(session: Session) -> None:
    here = _sessions.get(asyncio.get_running_loop(), {})
    for key, future in list(here.items()):
        if _is_good(future) and future.result() is session:
            del here[key]


def _is_good(future: asyncio.Future[Any]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


async def _flush(store: Store) -> None:
    try:
        await within(_LAST_DELETIONS_S, store.flush())
    except asyncio.TimeoutError:
        _log.warning(
            "delivered objects stay in s3://%s, which did not answer for %g s; a lifecycle rule "
            "can delete them",
            store.bucket,
            _LAST_DELETIONS_S,
        )


async def _give_way() -> None:
    """Let those go on who were cancelled or told something."""
    for _ in range(_LAST_TURNS):
        await asyncio.sleep(0)


def this_user() -> str:
    """Return what the names of this user's runs begin with."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # no such user in a container with a bare uid
        name = "user"
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:32] or "user"
