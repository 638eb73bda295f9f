"""Submission batcher: gathers tasks whose jobs would look the same into one SubmitJob."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from farcall.aws.access import Access
from farcall.aws.paced_client import Ticket
from farcall.backends.base import Backend, JobSpec, Runtime, raise_first
from farcall.engine.packages import TaskPackages
from farcall.engine.runtimes import Runtimes
from farcall.engine.sender import Sender
from farcall.engine.shared import SharedValues
from farcall.engine.terminations import Terminations
from farcall.model.errors import FarcallError
from farcall.model.settings import Settings
from farcall.model.submission import Submission
from farcall.model.workflows import NODES, NodeOf, Workflow, list_nodes
from farcall.payload.bundle import Bundle
from farcall.payload.pickling import Origin, Packed
from farcall.payload.shared import Piece
from farcall.storage.store import Store
from farcall_runtime.contract import ENV_LOG_LEVEL, LOG_LEVEL, PACKAGES, Location

_log = logging.getLogger("farcall")

_LARGEST_GATHERED_BYTES = 256 * 1024 * 1024
_QUICK = 500
_QUICK_BYTES = 1024 * 1024
"""A bundle of fewer tasks and bytes is put together on the spot: a thread would take longer."""

_TOLD_TOGETHER = 256
_CANCELLED = "cancelled while it was submitted"


Planned: TypeAlias = Callable[[Location, int], Awaitable[None]]
"""Is told the bundle of a task and its number there, before its job is submitted; again where the
bundle gets another name. Whoever notes it where it outlives this process finds the job again; see
`farcall.client.recovery`."""

_Key: TypeAlias = "tuple[str, Origin, str, Workflow]"
"""What tasks of one job have in common: the options, the Python that pickled them, the function's
name and the workflow. So each job has a name that is true of all its children, and a workflow's
jobs are its own."""


class Again(NamedTuple):
    """A job whose tasks are submitted again.

    Attributes:
        job_id: Its ID; empty where there is none.
        definition: Its definition, which the new one has, too; empty for the one that the options
            make.
        shared: The shared values that its bundle names, which have to be there still.
    """

    job_id: str = ""
    definition: str = ""
    shared: Mapping[str, Any] = {}


@dataclass(eq=False)
class _Pending:
    """A task on its way to Batch.

    Attributes:
        name: The function's name.
        function: The pickled function.
        arguments: The pickled arguments.
        planned: Is told where it lies, before it is submitted.
        node: Which of Covalent's nodes it is.
        place: The submission it became part of, and its number there.
    """

    name: str
    function: Packed
    arguments: Packed
    planned: Planned | None
    node: NodeOf | None
    place: asyncio.Future[tuple[Submission, int]]


@dataclass(eq=False)
class _Gathering:
    settings: Settings
    workflow: Workflow
    tasks: list[_Pending] = field(default_factory=list)
    shared: set[Piece] = field(default_factory=set)
    size: int = 0
    wanted: int = 0
    timer: asyncio.TimerHandle | None = None
    submitting: asyncio.Task[Submission] | None = None


class Submitter:
    """Submits the tasks of one event loop, account and bucket.

    Args:
        access: The open clients.
        backend: Where the jobs run.
        terminations: Ends jobs of tasks that were cancelled too late to be taken back.
        store: The bucket.
        root: Key prefix of the run.
        shared: The values that several tasks refer to.
        packages: The packages that tasks need.
        runtimes: What jobs fetch of farcall's whose image holds Python alone.
    """

    def __init__(
        self,
        access: Access,
        backend: Backend,
        terminations: Terminations,
        store: Store,
        root: str,
        shared: SharedValues,
        packages: TaskPackages,
        runtimes: Runtimes,
    ) -> None:
        self._access = access
        self._backend = backend
        self._terminations = terminations
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
    ) -> tuple[Submission, int]:
        """Submit one task, together with others that come within ``linger_s``.

        Cancelling the wait takes the task out again if it has not been submitted; otherwise its
        job is terminated.

        Args:
            settings: The options.
            name: The function's name.
            function: The pickled function.
            arguments: The pickled arguments.
            planned: Is told where the task lies in the bucket, before its job is submitted.
            workflow: What it belongs to; by default what the options say.
            node: Which of Covalent's nodes it is. A job has its nodes in their order.

        Returns:
            The submission it became part of, and its number there.

        Raises:
            SettingsError: Something the options name does not exist.
            SubmissionError: Batch refused the job.
            ServiceError: AWS refused a call.
        """
        workflow = workflow or Workflow.of(settings)
        key = (settings.fingerprint, function.origin, name, workflow)
        gathering = self._gatherings.get(key)
        if gathering is None:
            gathering = self._gatherings[key] = _Gathering(settings, workflow)
            gathering.timer = asyncio.get_running_loop().call_later(
                settings.linger_s, self._flush, key
            )
        place: asyncio.Future[tuple[Submission, int]]
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
            # Submitted a moment before, with the answer not handed over yet.
            if place.done() and not place.cancelled() and place.exception() is None:
                submission, index = place.result()
                try:
                    await self._terminations.leave_one(submission.id_of(index), _CANCELLED)
                finally:
                    self._terminations.note_end(submission, index)
            raise

    async def adding(self, settings: Settings, requirements: Sequence[str]) -> Settings | None:
        """See to it that packages travel besides, where the image holds none and they can.

        Args:
            settings: The options.
            requirements: Such as ``numpy>=2``.

        Returns:
            The options for the task; None where its container is to install them.

        Raises:
            ServiceError: AWS refused a call.
        """
        if not await self._backend.needs_runtime(settings):
            return None  # what the image has in a fitting version would be sent anyway
        return await self._packages.adding(self._store, self._root, settings, requirements)

    def _most_of(self, settings: Settings) -> int:
        """Return how many tasks a job has at most: no array has children on several nodes."""
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

        async def tell_places(where: Location) -> None:
            told = (task.planned and task.planned(where, n) for n, task in enumerate(wanted))
            await asyncio.gather(*filter(None, told))

        wanted.sort(key=lambda task: task.node or ())  # which also takes few words to list
        nodes = [task.node for task in wanted if task.node]
        # A bundle with shared values waits, as it is made, for the event loop to store them.
        is_quick = not gathering.shared and gathering.size < _QUICK_BYTES
        gathering.submitting = asyncio.ensure_future(
            self.submit_together(
                gathering.settings,
                wanted[0].name,
                [(task.function, task.arguments) for task in wanted],
                quick=is_quick and len(wanted) < _QUICK,
                planned=tell_places,
                workflow=gathering.workflow,
                facts={NODES: list_nodes(nodes)} if len(nodes) == len(wanted) else {},
            )
        )
        try:
            submission = await gathering.submitting
        except Exception as error:  # whatever it is, the tasks' callers are to have it
            for task in wanted:
                if not task.place.done():
                    task.place.set_exception(error)
            return
        self._terminations.note_children(submission)
        await self._tell(submission, wanted)

    async def _tell(self, submission: Submission, wanted: list[_Pending]) -> None:
        late: dict[int, str] = {}
        for index, task in enumerate(wanted):
            if index % _TOLD_TOGETHER == _TOLD_TOGETHER - 1:
                await asyncio.sleep(0)  # what each of them does next would hold up the loop
            if task.place.done():  # cancelled meanwhile
                late[index] = submission.id_of(index)
            else:
                task.place.set_result((submission, index))
        if late:
            try:
                raise_first(await self._terminations.end(late.values(), _CANCELLED))
            except FarcallError as error:
                _log.warning("cancelled tasks may still run: %s", error)
            for index in late:
                self._terminations.note_end(submission, index)

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
        on_sent: Callable[[int], object] = lambda _: None,
        again: Again | None = None,
    ) -> Submission:
        """Submit tasks as one job: a plain one, or an array of up to `largest_array`.

        One on several nodes has one task.

        Cancelling the wait ends the upload, or takes the request back; a job that is accepted all
        the same is terminated.

        Of an iterator it takes as many as the job has, which the submission tells. They are
        uploaded while they come, and nothing of them is kept.

        Args:
            settings: The options.
            name: A name to recognise the job by.
            tasks: Function and arguments of each, at least one.
            quick: Whether they come so quickly that they need no thread.
            planned: Is told where they lie in the bucket, before the job is submitted; again where
                they get another name.
            workflow: What they belong to; by default what the options say.
            facts: What the bundle says of them besides, JSON.
            on_sent: Is told how many bytes more of the bundle were sent.
            again: The job whose tasks they were.

        Raises:
            SettingsError: Something the options name does not exist, or packages cannot be had.
            TaskNotPicklableError: What comes out of ``tasks``.
            SubmissionError: Batch refused the job.
            ServiceError: AWS refused a call.
        """
        belongs_to = workflow or Workflow.of(settings)
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

        # A job that cannot be taken is refused here, before its bundle is uploaded.
        await self._backend.prepare(write(most))
        ticket = Ticket()

        try:
            key = bundle.where.bundle_key
            await self._shared.confirm(self._store, self._root, before.shared, use)
            await self._store.put(key, bundle.pieces(), quick=quick, on_sent=on_sent)
            if planned is not None:
                await planned(bundle.where)
            job_id = await self._sender.send(bundle, lambda: write(bundle.size), ticket, planned)
        except BaseException:
            if ticket.withdraw():  # no job will ask for it, and none that turns up is to run
                self._store.delete_later(bundle.keys)
                use.release()
            raise
        where = bundle.where
        use.note_submitted(where)
        if before.shared:
            self._shared.note_submitted(use, where)
        return Submission(
            job_id,
            where.bundle,
            where,
            bundle.key,
            bundle.size,
            bundle.digest,
            settings.nodes,
            bundle.texts,
        )

    async def _packages_of(
        self, settings: Settings, facts: Mapping[str, Any], again: Again | None
    ) -> Sequence[Any] | None:
        """See to it that a job's packages are in the bucket; return what its bundle says of them.

        What runs again has those that it had, whatever the options say by now.
        """
        if again is None:
            return await self._packages.store(self._store, self._root, settings)
        fact: Sequence[Any] | None = facts.get(PACKAGES)
        if fact is not None:
            await self._packages.confirm(self._store, self._root, fact)
        return fact

    async def close(self) -> None:
        """Wait until what is being submitted is."""
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
    """Say what job carries a bundle.

    Args:
        bundle: The bundle; what is said of it is true once its pieces are through.
        settings: The options.
        access: Tells where the bucket is.
        size: Number of tasks.
        runtime: What its containers fetch first; None where their image holds it.
    """
    url, region = access.place(bundle.where.bucket)
    environment = bundle.environment(url=url, region=region)
    if settings.log_level != LOG_LEVEL:
        environment[ENV_LOG_LEVEL] = settings.log_level
    return JobSpec(bundle.where.bundle, size, environment, settings, runtime=runtime)
