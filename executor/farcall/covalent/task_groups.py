"""Registry of Covalent's task groups that are running on Batch.

Covalent creates a new executor for each call, so the running groups are stored per event loop.
This module does not need Covalent.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

from farcall.backends.base import raise_first
from farcall.client import recovery
from farcall.config.settings import Settings
from farcall.covalent.assets import TaskGroup
from farcall.covalent.group_run import CancelledGroupError, GroupRun, Key, wanted
from farcall.engine.calls import submit
from farcall.engine.run import TaskRun
from farcall.engine.session import Session, session_for
from farcall.engine.submitter import Planned
from farcall.model import clock
from farcall.model.errors import FarcallError
from farcall.model.submission import Submission
from farcall.model.workflows import NodeOf, Workflow
from farcall.packages import environment
from farcall.packages.wanted import AUTO, LOCAL
from farcall.payload.pickling import Packed
from farcall_runtime.contract import Location

# --- Debouncer: batches tasks that arrive one by one --------------------------------------------


_BURST_S = 1.0
_QUIET_S = 0.3
_FIRST_HOLD_S, _LONGEST_HOLD_S = 0.2, 2.0


class Debouncer:
    """Delay that batches tasks into array jobs if other tasks arrived just before.

    Covalent's server passes a dispatch's tasks one by one, about 0.1 to 0.2 s apart, so
    ``linger_s`` alone would create a job for each task. The first task passes at once. Later tasks
    pass together: when none has arrived for a moment, or after a time that doubles up to two
    seconds while they keep arriving.
    """

    def __init__(self) -> None:
        self._last = float("-inf")
        self._hold_s = _FIRST_HOLD_S
        self._opening: asyncio.Task[None] | None = None

    def announce(self) -> None:
        """Record that a task is about to arrive."""
        if self._opening is not None:
            self._last = clock.now()

    async def passing(self) -> None:
        """Wait until the task may pass."""
        now = clock.now()
        is_burst = now - self._last < _BURST_S
        self._last = now
        if not is_burst:
            self._hold_s = _FIRST_HOLD_S
            return
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open())
        await asyncio.shield(self._opening)

    async def _open(self) -> None:
        latest = clock.now() + self._hold_s
        self._hold_s = min(2 * self._hold_s, _LONGEST_HOLD_S)
        while (until := min(self._last + _QUIET_S, latest)) > clock.now():  # noqa: ASYNC110
            await asyncio.sleep(until - clock.now())
        self._opening = None


_log = logging.getLogger("farcall")

_MOST_REMEMBERED = 20_000
"""Maximum number of remembered nodes that were cancelled early or have finished."""

_REASON = "cancelled through Covalent"

_INSTALLER = re.compile(r'"(PIP|UV)_')
"""Variables of a job that configure pip or uv, such as an index."""

_PLANNED = "planned:"
"""Prefix of a stored handle without a job ID; bundle and task index follow."""


class TaskGroups:
    """Covalent task groups of one event loop.

    Attributes:
        debouncer: Groups tasks that arrive one by one into array jobs.
    """

    def __init__(self) -> None:
        self._runs: dict[Key, GroupRun] = {}
        self._cancelled: dict[Key, None] = {}
        self._ended: dict[Key, None] = {}
        self._searches: dict[str, asyncio.Task[Submission | None]] = {}
        self.debouncer = Debouncer()

    def find(self, key: Key) -> GroupRun | None:
        """Return the run of a node, or None if it does not run here."""
        return self._runs.get(key)

    def add(
        self,
        settings: Settings,
        keys: Sequence[Key],
        group: TaskGroup,
        workflow: Workflow | None = None,
    ) -> GroupRun:
        """Add a task group for submission.

        Args:
            settings: The options.
            keys: The group's nodes.
            group: The group's functions.
            workflow: The lattice that the nodes belong to; None if Covalent's server is not
                involved. The option ``workflow`` takes precedence over the lattice's name.
        """
        run = GroupRun(settings, keys)
        run.group = group
        if workflow is not None:
            run.workflow = workflow._replace(name=settings.workflow or workflow.name)
        run.cancelled = any(key in self._cancelled for key in keys)
        self._runs |= dict.fromkeys(keys, run)
        return run

    async def submit(self, run: GroupRun, planned: Planned | None = None) -> str:
        """Submit a task group, together with others that arrive within ``linger_s``.

        Args:
            run: The return value of `add`.
            planned: Called with the bundle and the task's index before SubmitJob.

        Returns:
            The job's ID.

        Raises:
            CancelledGroupError: The group was cancelled meanwhile; none of its jobs runs.
            IntegrityError: An asset is not in Covalent's format.
            SettingsError: A resource named in the options does not exist.
            SubmissionError: Batch rejected the job.
            ServiceError: An AWS call failed.
        """
        group, run.group = run.group, None
        if run.cancelled or group is None:
            self.forget(run.keys)
            raise CancelledGroupError
        run.submitting = asyncio.ensure_future(self._submit(run, group, planned))
        try:
            run.handle = await run.submitting
        except BaseException as error:
            self.forget(run.keys)
            run.submitting.cancel()  # if this wait was cancelled
            if run.cancelled and isinstance(error, asyncio.CancelledError):
                raise CancelledGroupError from None
            raise
        return run.handle.id

    def adopt(self, settings: Settings, key: Key, job_id: str) -> GroupRun | None:
        """Resume waiting for a job that an earlier process submitted.

        Returns:
            The run; None if the node is running or has finished here, so that its end is not
            reported twice.
        """
        if key in self._runs or key in self._ended:
            return None
        for run in self._runs.values():
            if run.handle is not None and run.handle.id == job_id:
                run.keys = [*run.keys, key]
                break
        else:
            run = GroupRun(settings, [key], TaskRun(job_id, settings, wanted=wanted(settings)))
        self._runs[key] = run
        return run

    def forget(self, keys: Sequence[Key], *, ended: bool = True) -> None:
        """Forget nodes.

        Args:
            keys: The nodes.
            ended: Whether Covalent has the nodes' results.
        """
        for key in keys:
            self._runs.pop(key, None)
            if ended:
                _remember(self._ended, key)

    async def cancel(self, settings: Settings, key: Key, job_id: str | None) -> bool:
        """Cancel the run of a node in any state.

        Args:
            settings: The options, for a job of an earlier process.
            key: The node.
            job_id: Covalent's stored handle of the job, for `find_job`.

        Returns:
            Whether a job is being terminated or will not be started.
        """
        run = self._runs.get(key)
        if run is None and key in self._ended:
            return False
        if run is not None:
            if run.take_back():
                return True
            handle = run.accepted
            if handle is None or handle.is_cached:
                return False
            job_id = handle.id
        try:
            job_id = await self.find_job(settings, job_id)
            if job_id is None:
                _remember(self._cancelled, key)
                return True
            session = await session_for(settings)
            raise_first(await session.terminations.end([job_id], _REASON))
        except FarcallError as error:
            _log.warning("job %s may still run: %s", job_id, error)
            return False
        return True

    async def find_job(self, settings: Settings, handle: str | None) -> str | None:
        """Return a job's ID for its stored handle.

        Args:
            settings: The options.
            handle: The job's ID; or a `planned_handle`, if the server stopped before there was an
                ID; or None.

        Returns:
            The ID; None if there is no job.

        Raises:
            FarcallError: Whether there is a job cannot be determined.
        """
        if handle is None or not handle.startswith(_PLANNED):
            return handle
        url, _, index = handle.removeprefix(_PLANNED).rpartition("#")
        searching = self._searches.get(url)  # shared by all tasks of an array
        if searching is None or (
            searching.done() and (searching.cancelled() or searching.exception())
        ):
            searching = self._searches[url] = asyncio.ensure_future(_find(settings, url))
        submission = await asyncio.shield(searching)
        return None if submission is None else submission.id_of(int(index))

    async def _submit(self, run: GroupRun, group: TaskGroup, planned: Planned | None) -> TaskRun:
        settings = run.settings
        if settings.packages == AUTO:
            pins = group.pins  # None if the client has no farcall, and its imports are unknown
            settings = (
                settings.with_options(packages=LOCAL)
                if pins is None
                else environment.with_pins(settings, pins)
            )
        settings, group = await _travelling(settings, group)
        return await submit(
            _GroupCall(group, self.debouncer),
            settings,
            wanted(settings),
            planned=planned,
            workflow=run.workflow,
            node=None if run.workflow is None else NodeOf(*run.keys[-1]),
        )


@dataclass(frozen=True)
class _GroupCall:
    """The function call of a task group's job."""

    group: TaskGroup
    debouncer: Debouncer

    @property
    def name(self) -> str:
        return self.group.name

    async def pack(self, session: Session) -> tuple[Packed, Packed]:
        packed = await session.threads.run(self.group.pack)
        await self.debouncer.passing()
        return packed


async def _travelling(settings: Settings, group: TaskGroup) -> tuple[Settings, TaskGroup]:
    """Sync the packages that a group would install (``ct.DepsPip``), if possible.

    If the job's variables configure the installer, the packages are installed in the job.
    """
    requirements = group.requirements
    variables = json.dumps([settings.job_definition_extra, settings.environment])
    if not requirements or _INSTALLER.search(variables):
        return settings, group
    session = await session_for(settings)
    with session.at_work():
        submitter = await session.submitter(settings)
        added = await submitter.adding(settings, requirements)
    return (settings, group) if added is None else (added, group.without_pip())


_groups_of_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, TaskGroups]
_groups_of_loops = weakref.WeakKeyDictionary()


def groups_of_loop() -> TaskGroups:
    """Return the task groups of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _groups_of_loops:
        _groups_of_loops[loop] = TaskGroups()
    return _groups_of_loops[loop]


def planned_handle(where: Location, index: int) -> str:
    """Return the handle to store for a job without an ID, for `TaskGroups.find_job`."""
    return f"{_PLANNED}{where.url}#{index}"


async def _find(settings: Settings, url: str) -> Submission | None:
    return await recovery.find(await session_for(settings), settings, Location.parse(url))


def _remember(keys: dict[Key, None], key: Key) -> None:
    """Remember a key, and drop the oldest one if there are too many."""
    keys[key] = None
    if len(keys) > _MOST_REMEMBERED:
        del keys[next(iter(keys))]
