"""Sessions: the open clients of an account on an event loop, shared by executors."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import logging
import re
import secrets
import weakref
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar, cast

from farcall.aws.access import Access
from farcall.aws.clients import Aws
from farcall.backends import open_backend
from farcall.backends.base import Backend
from farcall.config.settings import Settings
from farcall.engine.cache import Cache
from farcall.engine.fetcher import Fetcher
from farcall.engine.group import Services
from farcall.engine.launcher import Launcher
from farcall.engine.logs.reader import LogReader
from farcall.engine.logs.relay import Relay
from farcall.engine.packages import Runtimes, TaskPackages
from farcall.engine.packer import Packer
from farcall.engine.retries import Retries
from farcall.engine.second_chances import SecondChances
from farcall.engine.shared import SharedValues
from farcall.engine.submitter import Submitter
from farcall.engine.terminations import Terminations
from farcall.engine.tracker import Tracker
from farcall.engine.unguarded_modules import check_import
from farcall.engine.warm_calls import WarmBackend
from farcall.engine.worker_threads import WorkerThreads
from farcall.model import clock
from farcall.model.clock import within
from farcall.model.errors import FarcallError, JobLostError, UnknownError
from farcall.model.jobs import JobDetail
from farcall.storage.bucket import reason
from farcall.storage.bundles import BundleReader
from farcall.storage.store import Store, Stores
from farcall_runtime.contract import run_root

_log = logging.getLogger("farcall")

_LAST_TURNS = 100
"""Event loop iterations at shutdown, to deliver cancellations and responses."""

_LAST_REPORT_S = 0.05
_COPIED_AT_ONCE = 2
_CONNECTION_OPTIONS = frozenset(
    {
        *("backend", "profile", "region", "credentials", "endpoint_url"),
        *("s3_encryption", "s3_kms_key_id", "kubeconfig", "context", "namespace"),
    }
)
_PLATFORM_OPTIONS = (
    "queue",
    "batch_job_role_name",
    "batch_execution_role_name",
    "batch_job_log_group_name",
    *("scheduler", "service_account", "priority_class", "s3_secret"),
)

# Implemented in C, because each submission calls them.
_connection_of = attrgetter(*_CONNECTION_OPTIONS)
_platform_of = attrgetter(*_PLATFORM_OPTIONS)
_place_of = attrgetter("s3_bucket_name", "prefix", *_PLATFORM_OPTIONS)

T = TypeVar("T")

Opener: TypeAlias = Callable[[Settings], Awaitable[tuple[Access, Backend]]]
"""Opens the clients of a session."""


class Session:
    """Clients, tracker and submitters of one account on one event loop.

    Sessions are found by `session_for`. A session closes its clients when its last block is left,
    or when its event loop ends (`asyncio.run` cancels the task that waits for that).

    Attributes:
        aws: Open clients.
        timing: Intervals and limits of waits and retries.
        backend: Platform that runs the jobs.
        stores: Buckets.
        threads: Threads for work that would block the event loop.
        tracker: Tracks all tasks.
        logs: Reads the output of jobs.
        terminations: Terminates jobs.
        launcher: Submits command jobs.
        retries: Runs failed tasks again.
        packer: Pickles functions and arguments.
        fetcher: Fetches outcomes.
        relay: Prints the output of running tasks.
        shared: Values that several tasks refer to.
        packages: Synced packages.
        cache: Cached results.
        warm: Jobs whose tasks warm workers run.
        runtimes: farcall's runtime, for jobs whose image contains only Python.
        services: The parts that groups of tasks use.
        bundles: Reads submitted bundles.
        run: Name of this process's run, its folder in the bucket.
        copying: Limits concurrent copies of bundles. Each one occupies a thread of the event
            loop's pool, and the copies need other threads of the pool to finish.
    """

    def __init__(self, access: Access, backend: Backend) -> None:
        if access.overruled:
            _log.warning("%s", access.overruled)
        self.aws = access
        self.stores = Stores(access)
        self.warm = WarmBackend(backend, self.stores)
        backend = self.backend = cast("Backend", self.warm)
        self.timing = access.timing
        self.tracker = Tracker(
            backend, self.stores, access.timing, on_outcome=self.warm.record_outcome
        )
        self.warm.on_change = self.tracker.poll_soon
        self.logs = LogReader(
            backend, self.stores, self.tracker.detail, self.tracker.trouble, access.timing
        )
        moment = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        self.run = f"{this_user()}-{moment}-{secrets.token_hex(3)}"
        self.threads = WorkerThreads()
        self.packer = Packer(self.threads)
        self.runtimes = Runtimes(backend, access)
        self.fetcher = Fetcher(backend, self.stores, self.tracker, self.threads)
        self.relay = Relay(self.stores, access.timing)
        self.shared = SharedValues(access.timing)
        self.packages = TaskPackages(self.threads)
        self.cache = Cache(self.stores, self.packages, self.threads)
        self.bundles = BundleReader(self.stores)
        self.copying = asyncio.Semaphore(_COPIED_AT_ONCE)
        self._submitters: dict[tuple[Any, ...], asyncio.Future[Submitter]] = {}
        self._checks: dict[tuple[Any, ...], asyncio.Future[None]] = {}
        self.terminations = Terminations(backend, self.tracker, self.stores)
        self.services = Services(
            self.stores,
            self.tracker,
            self.fetcher,
            self.relay,
            self.terminations,
            self._record_failed,
        )
        self.launcher = Launcher(backend, access.timing)
        self.retries = Retries(self)
        self.chances = SecondChances(self)
        self._keeper = asyncio.ensure_future(self._keep())
        self._is_closing = False
        self._at_work = 0
        self._blocks = 0
        self._less = asyncio.Event()

    @property
    def requests(self) -> int:
        """Number of requests sent to the platform and the buckets."""
        return self.backend.meter.total + sum(store.requests for store in self.stores)

    async def submitter(self, settings: Settings) -> Submitter:
        """Return the submitter for some settings, after a first check of their resources.

        Raises:
            SettingsError: A resource that the options name does not exist.
            ServiceError: AWS refused a call.
        """
        key = _place_of(settings)
        return await _once(self._submitters, key, lambda: self._open_submitter(settings))

    async def check(self, settings: Settings) -> None:
        """Check once that queue, roles and log group exist; a command job needs no more.

        Raises:
            SettingsError: A resource that the options name does not exist.
            ServiceError: AWS refused a call.
        """
        key = _platform_of(settings)
        await _once(self._checks, key, lambda: self.backend.check(settings))

    async def _open_submitter(self, settings: Settings) -> Submitter:
        store = self.stores.of(settings.s3_bucket_name)
        root = run_root(settings.prefix, self.run)
        await asyncio.gather(store.check(root), self.check(settings))
        return Submitter(
            *(self.aws, self.backend, self.services, store, root),
            *(self.shared, self.packages, self.runtimes),
        )

    def _record_failed(self) -> None:
        """Check synced packages again, because a failed task may have missed one."""
        self.packages.forget()
        self.runtimes.forget()

    async def detail(self, job_id: str) -> JobDetail | None:
        """Return Batch's description of a job, or None if Batch does not know the job.

        Raises:
            ServiceError: Batch refused the call.
        """
        return await self.tracker.detail(job_id)

    async def describe(self, job_id: str) -> JobDetail:
        """Return Batch's description of a job.

        Raises:
            JobLostError: Batch does not know the job.
            UnknownError: The array job has no such task.
            ServiceError: Batch refused the call.
        """
        detail = await self.detail(job_id)
        if detail is None:
            parent, _, index = job_id.partition(":")
            array = await self.detail(parent) if index else None
            if array is not None and array.array_size:
                raise UnknownError(
                    f"array job {parent} has no task {index}: it has {array.array_size} tasks, "
                    f"0 to {array.array_size - 1}"
                )
            raise JobLostError(self.backend.unknown(job_id), job_id=job_id)
        return detail

    def enter_block(self) -> None:
        """Count a block (``async with``) that is entered."""
        self._blocks += 1

    async def leave_block(self) -> None:
        """Count a block that is left; the last one closes the session."""
        self._blocks -= 1
        self._less.set()
        if not self._blocks:
            await self.close()

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Keep the clients open during a submission; `close` waits for its end."""
        self._at_work += 1
        try:
            yield
        finally:
            self._at_work -= 1
            self._less.set()

    async def close(self) -> None:
        """Finish pending requests, and close the clients. Jobs continue."""
        if not self._is_closing:  # a second close would interrupt the first one
            self._is_closing = True
            _forget(self)
            self._keeper.cancel()
        # Cancelling the wait does not interrupt it, either.
        await asyncio.shield(asyncio.gather(self._keeper, return_exceptions=True))

    async def _keep(self) -> None:
        try:
            await asyncio.get_running_loop().create_future()  # never done
        finally:
            self._is_closing = True
            try:
                await self._finish()
            except asyncio.CancelledError:  # the event loop ends, which cancels all tasks
                await self._finish()
            finally:
                await self.backend.close()
                await self.aws.close()
                self.threads.close()

    async def _finish(self) -> None:
        """Finish the requests on which results or terminations depend."""
        # When the event loop ends, every task is cancelled at once: let the owners of jobs
        # terminate them before the clients close. They find this session, and do not open another.
        if self._blocks:  # code inside a block may have to clean up first
            with contextlib.suppress(TimeoutError):
                await within(self.timing.last_blocks_s, self._until(lambda: not self._blocks))
        await _yield_to_others()
        _forget(self)
        await self.terminations.settle()
        await self._close_submitters()  # at once, without waiting for further tasks
        await self.warm.close_workers()
        await self.tracker.close()
        self.logs.close()
        await self.relay.close()
        await self._until(lambda: not self._at_work)
        started: list[asyncio.Future[Any]]
        started = [*self._submitters.values(), *self._checks.values()]
        openings = [each for each in started if not each.done()]
        for opening in openings:  # its caller has left
            opening.cancel()
        await asyncio.gather(*openings, return_exceptions=True)
        await self._close_submitters()
        await self.launcher.close()
        await _yield_to_others()  # the notified callers may terminate their jobs, too
        await self.terminations.settle()
        await self._store_cache()
        for store in self.stores:
            with contextlib.suppress(Exception):  # remaining objects do no harm
                await self._flush(store)
        await self._release_shared()
        await self._last_reports()

    async def _store_cache(self) -> None:
        limit_s = self.timing.last_deletions_s
        try:
            await within(limit_s, self.cache.close())
        except TimeoutError:
            _log.warning("results were not cached: the bucket did not respond in %g s", limit_s)

    async def _flush(self, store: Store) -> None:
        limit_s = self.timing.last_deletions_s
        try:
            await within(limit_s, store.close())
        except TimeoutError:
            text = (
                "delivered objects remain in s3://%s, which did not respond within %g s; a "
                "lifecycle "
            )
            _log.warning(f"{text}rule can delete them", store.bucket, limit_s)

    async def _release_shared(self) -> None:
        limit_s = self.timing.last_deletions_s
        try:
            await within(limit_s, self.shared.close())
        except TimeoutError:
            text = "shared values remain in the bucket, which did not respond within %g s; a "
            _log.warning(f"{text}lifecycle rule can delete them", limit_s)
        except FarcallError as error:
            _log.warning("shared values remain in the bucket (%s)", reason(error))

    async def _until(self, is_so: Callable[[], bool]) -> None:
        """Wait for a condition, checked when a block or a submission ends."""
        while not is_so():
            self._less.clear()
            await self._less.wait()

    async def _last_reports(self) -> None:
        """Keep the event loop open for requests that were abandoned recently.

        obstore's threads report the end of such requests to the event loop, at an unknown time.
        """
        left_s = self.stores.given_up_at + _LAST_REPORT_S - clock.now()
        if left_s > 0:
            await asyncio.sleep(left_s)

    async def _close_submitters(self) -> None:
        for future in list(self._submitters.values()):
            if _is_good(future):
                await future.result().close()


async def _once(
    made: dict[tuple[Any, ...], asyncio.Future[T]],
    key: tuple[Any, ...],
    make: Callable[[], Awaitable[T]],
) -> T:
    """Create a value once per key, and again if that failed."""
    task = made.get(key)
    if task is None or (task.done() and not _is_good(task)):
        task = made[key] = asyncio.ensure_future(make())
    return task.result() if task.done() else await asyncio.shield(task)


_sessions: weakref.WeakKeyDictionary[
    asyncio.AbstractEventLoop, dict[tuple[Any, ...], asyncio.Future[Session]]
] = weakref.WeakKeyDictionary()


async def session_for(settings: Settings) -> Session:
    """Return the running event loop's session for some settings; open it if needed.

    Raises:
        SettingsError: The profile or the credentials file does not exist.
        ServiceError: There are no credentials.
        UnguardedModuleError: A command is importing the module that requests the session.
    """
    check_import()
    here = _sessions.setdefault(asyncio.get_running_loop(), {})
    given = _CONNECTION_OPTIONS & settings.model_fields_set
    key = _opener, given, _connection_of(settings)
    return await _once(here, key, lambda: open_session(settings))


async def open_session(settings: Settings) -> Session:
    """Open a session that is not shared.

    Raises:
        SettingsError: The profile or the credentials file does not exist.
        ServiceError: There are no credentials.
    """
    return Session(*await _opener(settings))


async def _open_aws(settings: Settings) -> tuple[Access, Backend]:
    access = await Aws.open(settings)
    return access, open_backend(settings, access)


# --- openers ------------------------------------------------------------------------------------

_opener: Opener = _open_aws


@contextlib.contextmanager
def opening(opener: Opener) -> Iterator[None]:
    """Open this process's sessions with another function while the block runs.

    Open sessions keep their clients and are not found in the block.
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


async def _yield_to_others() -> None:
    """Let tasks that were cancelled or notified continue."""
    for _ in range(_LAST_TURNS):
        await asyncio.sleep(0)


def this_user() -> str:
    """Return the user's name for the beginning of run names."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # the container has no user with this ID
        name = "user"
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:32] or "user"
