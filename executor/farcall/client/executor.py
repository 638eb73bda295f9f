"""Executor: the public face, with options, tasks and submissions."""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar, overload

from farcall.client import recovery, shared
from farcall.client.command_job import CommandHandle, CommandJob, group_nodes, name_of
from farcall.client.frames import frames_hidden
from farcall.client.job import Job
from farcall.client.recovery import Recovered, Run
from farcall.client.shared import Shared
from farcall.client.task import Task
from farcall.engine.fetcher import Output
from farcall.engine.sender import launch
from farcall.engine.session import Session, session_for
from farcall.engine.task_handle import TaskHandle, submit
from farcall.engine.watch import is_unseen
from farcall.engine.workspaces import take_along
from farcall.model import names
from farcall.model.commands import Device, Mount, Nodes, Ulimit
from farcall.model.errors import FarcallError, SettingsError, TaskNotPicklableError
from farcall.model.interrupts import left_by
from farcall.model.names import named
from farcall.model.option_signatures import shows_options
from farcall.model.settings import Settings, default_bucket
from farcall.model.start_script import HERE
from farcall.model.submission import CommandSubmission
from farcall.payload.pickling import Call, Packed

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from farcall.model.settings import CommandOptions, Options

_log = logging.getLogger("farcall")

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


_WITHOUT_ASYNC = "in code without async use farcall.BatchPoolExecutor"
_SAID_ELSEWHERE = {
    "map": f"write await executor.task(function).map(...); {_WITHOUT_ASYNC}",
    "starmap": f"write await executor.task(function).starmap(...); {_WITHOUT_ASYNC}",
    "run": f"write await (await executor.submit(function, ...)).result(); {_WITHOUT_ASYNC}",
    "shutdown": f"write async with BatchExecutor(...) as executor:; {_WITHOUT_ASYNC}",
    "close": "leave its block, async with BatchExecutor(...) as executor:",
}
"""What is looked for by those who know other executors, and where it is here."""


class BatchExecutor:
    """Runs functions as AWS Batch jobs.

    ::

        executor = BatchExecutor(vcpu=2, memory=3.75, time_limit=300)

        @executor.task
        def simulate(x, *, steps=10): ...

        async with executor:
            y = await simulate(3)
            ys = await simulate.map(range(10_000))

    ``async with`` opens the clients and checks whether what the options name exists. Leaving the
    block by an exception, Ctrl-C included, terminates the jobs that are unfinished; leaving it
    otherwise leaves them running and logs their IDs, for `attach`. Without the block the clients
    open with the first call and close with the event loop.

    Args:
        settings: Options made before; without them ``options`` are completed from the
            environment and ``farcall.toml``.
        **options: See `farcall.Settings`.

    Raises:
        SettingsError: A value is wrong, or an option is unknown.
    """

    @shows_options
    def __init__(self, settings: Settings | None = None, **options: Unpack[Options]) -> None:
        if settings is not None and not isinstance(settings, Settings):
            raise SettingsError(
                f"settings is a {type(settings).__name__}; a farcall.Settings is allowed, or "
                "options by name, such as BatchExecutor(vcpu=2)",
                option="settings",
            )
        self._settings = settings.replace(**options) if settings else Settings(**options)
        self._unfinished: dict[str, asyncio.AbstractEventLoop] = {}
        # By event loop: those of the blocks that are inside, one in another.
        self._entered: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, list[Session]]
        self._entered = weakref.WeakKeyDictionary()

    @property
    def settings(self) -> Settings:
        """The options."""
        if not self._settings.s3_bucket_name and default_bucket():
            return self._settings.with_options(s3_bucket_name=default_bucket())
        return self._settings

    def __repr__(self) -> str:
        given = sorted(self._settings.model_fields_set)
        options = ", ".join(
            f"{name}=..."  # may hold secrets
            if name == "job_definition_extra"
            else f"{name}={getattr(self.settings, name)!r}"
            for name in given
        )
        return f"BatchExecutor({options})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TaskNotPicklableError(
            "a BatchExecutor cannot travel: it holds open connections; a task may call another "
            "task, which then runs on the spot"
        )

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(self, /, **options: Unpack[Options]) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    @shows_options
    def task(self, function: Any = None, /, **options: Unpack[Options]) -> Any:
        """Make a function a task: ``@executor.task`` or ``@executor.task(vcpu=8, memory=16)``.

        Raises:
            SettingsError: A value is wrong, or an option is unknown.
            TaskNotPicklableError: It is a generator function, or no function at all.
        """
        if not isinstance(self, BatchExecutor):
            raise TypeError(
                "@BatchExecutor.task is of no executor: write executor = BatchExecutor(...), and "
                "then @executor.task"
            )
        executor = self.with_options(**options) if options else self
        if function is None:
            return lambda function: Task(function, executor)
        return Task(function, executor)

    @overload
    def submit(
        self, function: Task[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, Job[R]]: ...

    @overload
    def submit(
        self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, Job[R]]: ...

    def submit(
        self, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Coroutine[Any, Any, Job[Any]]:
        """Submit a call of any function, and return its job once Batch has accepted it.

        Raises:
            TypeError: The arguments don't fit the function.
            SubmissionError: Batch did not accept the job.
            SettingsError: Something the options name does not exist.
            ServiceError: AWS refused a call.
        """
        if isinstance(function, Task):
            function = function.function  # whose executor is asked decides the options
        task: Task[..., Any] = Task(function, self)
        with frames_hidden():
            return task.submission(f"executor.submit({task.name}, ...)", args, kwargs)

    @shows_options
    def with_options(self, **options: Unpack[Options]) -> BatchExecutor:
        """Return an executor with other options that shares clients, tracker and jobs.

        Raises:
            SettingsError: A value is wrong, or an option is unknown.
        """
        copy = BatchExecutor(self.settings, **options)
        copy._unfinished = self._unfinished  # of the same class
        return copy

    async def put(self, value: T) -> Shared[T]:
        """Store a value in the bucket once, to be passed to any number of calls.

        ::

            shared = await executor.put(X)
            ys = await fit.map(itertools.repeat(shared), params)

        What it returns stands for the value anywhere in arguments; the function gets the value
        itself. The bytes are taken now: what is changed afterwards stays as it was for the calls.
        It is stored until it is discarded, or the run ends: its block is left, or the event loop
        ends. Jobs that go on then keep it.

        Large values are stored once without this, too, whenever they are passed; but they are
        hashed for each map, which takes about a second for a GiB. See the page on shared data.

        Args:
            value: What can be pickled.

        Raises:
            TaskNotPicklableError: It cannot be pickled.
            SettingsError: Something the options name does not exist.
            ServiceError: S3 refused or could not be reached.
        """
        return await shared.put(self.settings, value)

    def attach(self, job_id: str) -> Job[Any]:
        """Join a job of farcall's again, from any process and machine.

        Args:
            job_id: The job's ID; of an array job's child ``"<parent>:<index>"``.
        """
        return Job(TaskHandle(job_id, self.settings))

    @shows_options
    async def command(
        self,
        image: str | None = None,
        command: Sequence[str] = (),
        *,
        groups: Sequence[Nodes] | None = None,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        mounts: Sequence[Mount] = (),
        devices: Sequence[Device] = (),
        shm_size: float | None = None,
        ulimits: Sequence[Ulimit] = (),
        secrets: Mapping[str, str] | None = None,
        privileged: bool = False,
        user: str = "",
        workspace: str | os.PathLike[str] | None = None,
        workspace_dir: str = HERE,
        **options: Unpack[CommandOptions],
    ) -> CommandJob:
        """Submit a command in an image, and return its job once Batch has accepted it.

        ::

            job = await executor.command("alpine:3", ["echo", "hi"], vcpu=1, memory=0.5)
            job = await executor.command(image, ["torchrun", "train.py"], nodes=4, num_gpus=8)
            job = await executor.command(groups=[Nodes(1, image, ["ps"]), Nodes(8, image)])

        Nothing of farcall's needs to be in the image, and no bucket is used except a workspace.
        Equal images, mounts and the like share one job definition forever.

        Args:
            image: Image of the containers.
            command: What they run; empty for the image's own.
            groups: In place of image and command, up to five groups of nodes; the first one's
                first node is the main node, which decides how the job ends.
            name: A name to recognise the job by, to which something is added that makes it
                unique; by default the image's.
            env: Environment variables. Whoever may describe the job can read them.
            mounts: Folders and file systems, see `Nodes` for these as for the following.
            devices: Devices.
            shm_size: Size of ``/dev/shm`` in GiB.
            ulimits: Limits of the processes.
            secrets: By variable, ARN of a secret or a parameter.
            privileged: Whether containers have the instance's root.
            user: User in the container.
            workspace: Folder of this machine that the commands start in, except what its
                ``.dockerignore`` names. It is stored in ``s3_bucket_name`` under its hash, once,
                and each container fetches it with the job role; the image needs a shell,
                coreutils, and python3, curl or wget.
            workspace_dir: Where it is unpacked, an absolute path; ``.`` for the image's working
                directory.
            **options: As of `with_options`. ``nodes`` is the number of nodes; ``vcpu``,
                ``memory`` and ``num_gpus`` are those of each.

        Raises:
            SettingsError: A value is wrong, something the options name does not exist, or there
                are both an image and groups, or neither.
            FarcallError: ``cache_dir`` has no room for the workspace's archive.
            TaskTooLargeError: Command and variables exceed 24 KiB, a limit of Batch.
            SubmissionError: Batch did not accept the job.
            ServiceError: AWS refused a call.
        """
        settings = self.settings.replace(**options) if options else self.settings
        alone = {
            "image": image,
            "command": command,
            "env": env,
            "mounts": mounts,
            "devices": devices,
            "shm_size": shm_size,
            "ulimits": ulimits,
            "secrets": secrets,
            "privileged": privileged,
            "user": user,
            "nodes": options.get("nodes"),
        }
        nodes = group_nodes(groups, alone, settings.nodes)
        unique = names.unique(name or name_of(nodes), "command")
        session = await session_for(settings)
        if workspace is not None:
            with session.at_work():
                nodes = await take_along(session, settings, nodes, workspace, workspace_dir)
        job_id = await launch(session, settings, nodes, name=unique)
        submission = CommandSubmission(job_id, unique)
        handle = CommandHandle(job_id, settings, submission, self._note_end)
        handle.watch(session, submission, 0)
        self._unfinished[job_id] = asyncio.get_running_loop()
        return CommandJob(handle)

    def attach_command(self, job_id: str) -> CommandJob:
        """Join a command job of farcall's again, from any process and machine.

        Args:
            job_id: The job's ID.
        """
        return CommandJob(CommandHandle(job_id, self.settings))

    async def run_name(self) -> str:
        """Return the name under which this process's tasks are found by `recover`.

        It is one of the event loop, account and region: executors there share it.

        Raises:
            SettingsError: The profile or the credentials file does not exist.
            ServiceError: There are no credentials.
        """
        return (await session_for(self.settings)).run

    async def runs(self) -> list[Run]:
        """Return the runs that have left tasks in the bucket under ``prefix``, the oldest first.

        Also those whose clients are still at work. A run of which every task was delivered has
        left nothing.

        Raises:
            SettingsError: There is no such bucket.
            ServiceError: AWS refused a call.
        """
        return await recovery.runs(await session_for(self.settings), self.settings)

    async def recover(self, run: str) -> Recovered:
        """Find every task of a run whose client is gone: its process was killed, or its machine.

        Nothing but the bucket and Batch is needed, from any process and machine, and nothing is
        run again: each task that Batch knows and that was not delivered is a `Job` to be waited
        for, finished, running or failed, and `Job.calls` tells which call it is of. A task that
        failed stays in the bucket, so it is found also where its error was delivered.

        Where the client is still at work, both may get a task's value, which is deleted from the
        bucket when either has it; who comes later gets `OutcomeMissingError`. The same is so of
        two that recover one run. And what such a client is about to submit looks unsubmitted.

        The lists that Batch is asked for lag behind, so where a bundle has no job it takes some
        seconds.

        Args:
            run: Its name; `runs` tells those there are.

        Raises:
            FarcallError: No such run has left anything in the bucket.
            SettingsError: There is no such bucket.
            ServiceError: AWS refused a call.
        """
        return await recovery.recover(await session_for(self.settings), self.settings, run)

    async def __aenter__(self) -> Self:
        with frames_hidden():
            session = await session_for(self.settings)
            session.enter_block()
            try:
                if self.settings.s3_bucket_name:
                    await session.submitter(self.settings)
                else:  # for command jobs
                    await session.check(self.settings)
            except BaseException:
                await session.leave_block()
                raise
        self._entered.setdefault(asyncio.get_running_loop(), []).append(session)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        stack: TracebackType | None,
    ) -> None:
        here = asyncio.get_running_loop()
        blocks = self._entered.get(here)
        if not blocks:
            raise FarcallError("this executor's block was not entered on this event loop, or left")
        session = blocks.pop()
        unfinished = [i for i, loop in list(self._unfinished.items()) if loop is here]
        if blocks:
            unfinished.clear()  # they are the outer block's
        try:
            if unfinished and error is not None and not is_unseen(error):
                reason = left_by(error)
                await session.terminations.leave(unfinished, len(unfinished), reason)
            elif unfinished:
                _log.warning(
                    "%s go on; attach or attach_command joins one, and recover(%r) all tasks of "
                    "this run",
                    named(unfinished),
                    session.run,
                )
        finally:
            for job_id in unfinished:
                self._unfinished.pop(job_id, None)
            await session.leave_block()

    if not TYPE_CHECKING:  # to checkers these stay the errors that they are

        def __enter__(self) -> NoReturn:
            raise TypeError(
                "a BatchExecutor is entered by `async with`, inside an async def; in code without "
                "async use `with farcall.BatchPoolExecutor(...) as pool:`"
            )

        def __exit__(self, *_: object) -> None:
            """Be there for `with`, which looks for it before it enters."""

        def __call__(self, *_: object, **__: object) -> NoReturn:
            """Say how a function is decorated."""
            raise TypeError(
                "a BatchExecutor is not called: decorate with @executor.task or with "
                "@executor.task(vcpu=8); await executor.submit(function, ...) is one call"
            )

        def __getattr__(self, name: str) -> NoReturn:
            hint = _SAID_ELSEWHERE.get(name)
            hint = f": {hint}" if hint else ""
            raise AttributeError(f"a BatchExecutor has no {name!r}{hint}", name=name, obj=self)

    async def run_call(
        self, function: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> R:
        """Run a call that was checked, for `Task`; cancelling the await ends its job."""
        __tracebackhide__ = True
        handle = await self._start(function, [(args, kwargs)])
        try:
            # Nobody can ask for its output.
            return await Job[R](handle, Output.NONE, shows=self.settings.output).result()
        except asyncio.CancelledError:
            self._unfinished.pop(handle.id, None)
            session = await handle.session()
            await session.terminations.leave_one(handle.id, "the await on it was cancelled")
            raise

    async def submit_calls(
        self,
        function: Callable[..., R],
        calls: Sequence[Call],
        output: Output = Output.SMALL,
    ) -> Job[R]:
        """Submit calls that were checked as one task, for `Task`; ``output`` is that of `Job`."""
        shows = self.settings.output and output is Output.NONE
        return Job(await self._start(function, calls), output, len(calls), shows=shows)

    async def _start(self, function: Callable[..., Any], calls: Sequence[Call]) -> TaskHandle:
        async def pack(session: Session) -> tuple[Packed, Packed]:
            return await session.packer.pack(function, calls, self.settings)

        name = getattr(function, "__name__", "task")
        handle = await submit(self.settings, name, pack, self._note_end)
        self._unfinished[handle.id] = asyncio.get_running_loop()
        return handle

    def _note_end(self, job_id: str) -> None:
        self._unfinished.pop(job_id, None)
