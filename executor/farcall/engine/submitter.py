"""Submission batcher: combines tasks of equal jobs into one SubmitJob request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from farcall.aws.access import Access
from farcall.backends.base import Backend, JobSpec, Runtime
from farcall.config.settings import Settings
from farcall.engine.group import Services, TaskGroup
from farcall.engine.packages import Runtimes, TaskPackages
from farcall.engine.sender import Sender
from farcall.engine.shared import SharedValues
from farcall.engine.upload_report import reported
from farcall.model.errors import FarcallError
from farcall.model.pacing import Ticket
from farcall.model.submission import Submission
from farcall.model.workflows import NODES, NodeOf, Workflow, list_nodes
from farcall.payload.bundle import Bundle
from farcall.payload.pickling import Origin, Packed
from farcall.payload.shared import Piece
from farcall.storage.packages import confirm as confirm_packages
from farcall.storage.store import Store
from farcall_runtime.contract import ENV_LOG_LEVEL, ENV_THREADS, LOG_LEVEL, PACKAGES, Location

_log = logging.getLogger("farcall")

_LARGEST_GATHERED_BYTES = 256 * 1024 * 1024
_QUICK = 500
_QUICK_BYTES = 1024 * 1024
"""Limits up to which bundles are packed on the event loop; a thread takes longer."""

_RESUMED_TOGETHER = 256
_CANCELLED = "cancelled while it was submitted"


Planned: TypeAlias = Callable[[Location, int], Awaitable[None]]
"""Called with bundle and task index before SubmitJob, and again after a rename.
A caller that stores both can find the job after a crash; see `farcall.client.recovery`.
"""

_Key: TypeAlias = "tuple[str, Origin, str, Workflow]"
"""Common properties of the tasks of one job.

They are the options, the Python that pickled the tasks, the function's name and the workflow. So
the job's name is right for all of its tasks, and a job never belongs to two workflows.
"""


class Again(NamedTuple):
    """A job whose tasks are submitted again.

    Attributes:
        job_id: The job's ID; empty for a first submission.
        definition: Its job definition, which the new job reuses; empty for one from the options.
        shared: Shared values that its bundle references, which must still exist.
    """

    job_id: str = ""
    definition: str = ""
    shared: Mapping[str, Any] = {}


@dataclass(eq=False)
class _Pending:
    """A task that is being submitted.

    Attributes:
        name: Name of the function.
        function: The pickled function.
        arguments: The pickled arguments.
        planned: Called with the task's location before submission.
        node: Node of the Covalent workflow.
        place: The job that includes the task, and the task's index in it.
    """

    name: str
    function: Packed
    arguments: Packed
    planned: Planned | None
    node: NodeOf | None
    place: asyncio.Future[tuple[TaskGroup, int]]


@dataclass(eq=False)
class _Gathering:
    settings: Settings
    workflow: Workflow
    tasks: list[_Pending] = field(default_factory=list)
    shared: set[Piece] = field(default_factory=set)
    size: int = 0
    wanted: int = 0
    timer: asyncio.TimerHandle | None = None
    submitting: asyncio.Task[TaskGroup] | None = None


class Submitter:
    """Submits the tasks of one event loop, account and bucket.

    Args:
        access: Open connections.
        backend: Platform that runs the jobs.
        services: The session's parts that the submitted groups use.
        store: The bucket.
        root: Key prefix of the run.
        shared: Values that several tasks reference.
        packages: Packages that tasks need.
        runtimes: Task runners for images without one.
    """

    def __init__(
        self,
        access: Access,
        backend: Backend,
        services: Services,
        store: Store,
        root: str,
        shared: SharedValues,
        packages: TaskPackages,
        runtimes: Runtimes,
    ) -> None:
        self._access = access
        self._backend = backend
        self._services = services
        self._store = store
        self._root = root
        self._most = backend.capabilities.largest_array
        self._shared = shared
        self._packages = packages
        self._runtimes = runtimes
        self._sender = Sender(backend, store, access.timing)
        self._gatherings: dict[_Key, _Gathering] = {}
        self._flushing: set[asyncio.Task[None]] = set()

    async def submit(
        self,
        settings: Settings,
        name: str,
        function: Packed,
        arguments: Packed,
        planned: Planned | None = None,
        workflow: Workflow | None = None,
        node: NodeOf | None = None,
    ) -> tuple[TaskGroup, int]:
        """Submit one task, together with other tasks that arrive within ``linger_s``.

        Cancelling the wait withdraws the task if it has not been submitted; otherwise its job is
        terminated.

        Args:
            settings: Options of the job.
            name: Name of the function.
            function: The pickled function.
            arguments: The pickled arguments.
            planned: Called with the task's location in the bucket before its job is submitted.
            workflow: Workflow of the job; by default from the options.
            node: Node of the Covalent workflow. The tasks of a job are in the order of their
                nodes.

        Returns:
            The job that includes the task, which is tracked, and the task's index in it.

        Raises:
            SettingsError: A resource that the options name does not exist.
            SubmissionError: Batch refused the job.
            ServiceError: AWS refused a call.
        """
        workflow = workflow or Workflow(settings.workflow_name)
        key = (settings.fingerprint, function.origin, name, workflow)
        gathering = self._gatherings.get(key)
        if gathering is None:
            gathering = self._gatherings[key] = _Gathering(settings, workflow)
            gathering.timer = asyncio.get_running_loop().call_later(
                settings.linger_s, self._flush, key
            )
        place: asyncio.Future[tuple[TaskGroup, int]]
        place = asyncio.get_running_loop().create_future()
        gathering.tasks.append(_Pending(name, function, arguments, planned, node, place))
        new = {*function.shared, *arguments.shared} - gathering.shared
        gathering.shared |= new
        gathering.size += function.size + arguments.size + sum(value.size for value in new)
        gathering.wanted += 1
        if (
            len(gathering.tasks) >= self._most_of(settings)
            or gathering.size >= _LARGEST_GATHERED_BYTES
        ):
            self._flush(key)
        try:
            return await place
        except asyncio.CancelledError:
            gathering.wanted -= 1
            if not gathering.wanted and gathering.submitting is not None:
                gathering.submitting.cancel()
            # The job was submitted a moment before, and its ID was not returned yet.
            if place.done() and not place.cancelled() and place.exception() is None:
                group, index = place.result()
                job_id = group.submission.id_of(index)
                await self._services.terminations.leave_one(job_id, _CANCELLED)
            raise

    async def adding(self, settings: Settings, requirements: Sequence[str]) -> Settings | None:
        """Add packages to the bundle if the image lacks them and they can be uploaded.

        Args:
            settings: Options of the job.
            requirements: Requirements such as ``numpy>=2``.

        Returns:
            The options for the task; None if its container has to install the packages.

        Raises:
            ServiceError: AWS refused a call.
        """
        if not await self._backend.needs_runtime(settings):
            return None  # packages would be synced even if the image has them
        return await self._packages.adding(self._store, self._root, settings, requirements)

    def _most_of(self, settings: Settings) -> int:
        """Return the maximum number of tasks of a job; multi-node jobs have no arrays."""
        return 1 if settings.nodes > 1 or settings.instance_type else self._most

    def _flush(self, key: _Key) -> None:
        gathering = self._gatherings.pop(key)
        if gathering.timer is not None:
            gathering.timer.cancel()
        task = asyncio.ensure_future(self._submit_gathered(gathering))
        self._flushing.add(task)
        task.add_done_callback(self._flushing.discard)

    async def _submit_gathered(self, gathering: _Gathering) -> None:
        wanted = [task for task in gathering.tasks if not task.place.done()]
        if not wanted:
            return

        async def notify_planned(where: Location) -> None:
            notified = (task.planned and task.planned(where, n) for n, task in enumerate(wanted))
            await asyncio.gather(*filter(None, notified))

        wanted.sort(key=lambda task: task.node or ())  # this also makes the list of nodes shorter
        nodes = [task.node for task in wanted if task.node]
        # A bundle with shared values waits for the event loop to store them.
        is_quick = not gathering.shared and gathering.size < _QUICK_BYTES
        gathering.submitting = asyncio.ensure_future(
            self.submit_together(
                gathering.settings,
                wanted[0].name,
                [(task.function, task.arguments) for task in wanted],
                quick=is_quick and len(wanted) < _QUICK,
                planned=notify_planned,
                workflow=gathering.workflow,
                facts={NODES: list_nodes(nodes)} if len(nodes) == len(wanted) else {},
            )
        )
        try:
            group = await gathering.submitting
        except Exception as error:  # the tasks' callers receive it
            for task in wanted:
                if not task.place.done():
                    task.place.set_exception(error)
            return
        group.track()
        await self._resolve(group, wanted)

    async def _resolve(self, group: TaskGroup, wanted: list[_Pending]) -> None:
        late: list[int] = []
        for index, task in enumerate(wanted):
            if index % _RESUMED_TOGETHER == _RESUMED_TOGETHER - 1:
                await asyncio.sleep(0)  # resumed callers would block the loop
            if task.place.done():  # cancelled meanwhile
                late.append(index)
            else:
                task.place.set_result((group, index))
        if late:
            try:
                await group.cancel(_CANCELLED, late)
            except FarcallError as error:
                _log.warning("cancelled tasks may still run: %s", error)

    async def submit_together(
        self,
        settings: Settings,
        name: str,
        tasks: Iterable[tuple[Packed, Packed]],
        *,
        quick: bool = False,
        planned: Callable[[Location], Awaitable[None]] | None = None,
        workflow: Workflow | None = None,
        facts: Mapping[str, Any] | None = None,
        on_sent: Callable[[int], object] | None = None,
        again: Again | None = None,
    ) -> TaskGroup:
        """Submit tasks as one job: single, or an array of up to `largest_array` tasks.

        A multi-node job has one task.

        Cancelling the wait stops the upload or withdraws the request; a job that is accepted
        anyway is terminated.

        From an iterator, it reads as many tasks as fit into the job, and the group reports their
        number. Tasks are uploaded while they are read and not kept in memory.

        Args:
            settings: Options of the job.
            name: Prefix of the job's name.
            tasks: Function and arguments of each task, at least one.
            quick: Whether the tasks can be read without a thread.
            planned: Called with the tasks' location in the bucket before the job is submitted, and
                again if the bundle is renamed.
            workflow: Workflow of the job; by default from the options.
            facts: Additional JSON metadata of the bundle.
            on_sent: Called with the number of uploaded bytes since the last call; by default a
                long upload is reported on stderr.
            again: The job whose tasks are submitted again.

        Raises:
            SettingsError: A resource that the options name does not exist, or packages are
                missing.
            TaskNotPicklableError: Raised by ``tasks``.
            SubmissionError: Batch refused the job.
            ServiceError: AWS refused a call.
        """
        belongs_to = workflow or Workflow(settings.workflow_name)
        most = self._most_of(settings)
        before = again or Again()
        packages = await self._packages_of(settings, facts or {}, again)
        use = self._shared.use(self._store, self._root)
        bundle = Bundle(
            settings,
            self._root,
            name,
            iter(tasks),
            belongs_to,
            facts,
            most=most,
            share=use,
            packages=packages,
            retry_of=before.job_id,
        )

        runtime = await self._runtimes.stored(settings, self._store, self._root)

        def write(size: int) -> JobSpec:
            job = job_of(bundle, settings, self._access, size=size, runtime=runtime)
            return replace(job, definition=before.definition)

        # Reject an invalid job here, before its bundle is uploaded.
        job = write(most)
        for each in (job.settings, *job.settings.later()):
            await self._backend.prepare(replace(job, settings=each))
        ticket = Ticket()

        try:
            key = bundle.where.bundle_key
            await use.confirm(before.shared)
            async with reported(f"arguments of {name}") as record:
                await self._store.put(key, bundle.pieces(), quick=quick, on_sent=on_sent or record)
            if planned is not None:
                await planned(bundle.where)
            job_id = await self._sender.send(bundle, lambda: write(bundle.size), ticket, planned)
        except BaseException:
            if ticket.withdraw():  # no job may use it any more
                self._store.delete_later(bundle.keys)
                use.release()
            raise
        where = bundle.where
        submission = Submission(
            job_id,
            where.bundle,
            where,
            bundle.key,
            bundle.size,
            bundle.digest,
            settings.nodes,
            bundle.texts,
        )
        held = None if use.is_empty else use
        return TaskGroup(self._services, submission, settings, held, is_own=True)

    async def _packages_of(
        self, settings: Settings, facts: Mapping[str, Any], again: Again | None
    ) -> Sequence[Any] | None:
        """Upload a job's packages if needed, and return the bundle's entry for them.

        A retried job keeps its packages, regardless of the current options.
        """
        if again is None:
            return await self._packages.store(self._store, self._root, settings)
        fact: Sequence[Any] | None = facts.get(PACKAGES)
        if fact is not None:
            await confirm_packages(self._store, self._root, fact)
        return fact

    async def close(self) -> None:
        """Wait until submissions in progress have finished."""
        for key in list(self._gatherings):
            self._flush(key)
        await asyncio.gather(*self._flushing, return_exceptions=True)
        await self._sender.close()


def job_of(
    bundle: Bundle,
    settings: Settings,
    access: Access,
    *,
    size: int,
    runtime: Runtime | None = None,
) -> JobSpec:
    """Build the JobSpec for a bundle.

    Args:
        bundle: The bundle; its metadata is final after its pieces were read.
        settings: Options of the job.
        access: Provides the location of the bucket.
        size: Number of tasks.
        runtime: Archive that the containers download first; None if their image has it.

    Raises:
        SettingsError: A variable of ``environment`` is not set in this process.
    """
    url, region = access.place(bundle.where.bucket)
    environment = bundle.environment(url=url, region=region)
    settings = settings.with_environment()
    environment[ENV_THREADS] = str(max(1, int(settings.vcpu)))
    if settings.log_level != LOG_LEVEL:
        environment[ENV_LOG_LEVEL] = settings.log_level
    return JobSpec(bundle.where.bundle, size, environment, settings, runtime=runtime)
