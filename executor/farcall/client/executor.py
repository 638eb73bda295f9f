"""Executor for async code: options, tasks, submissions and recovery."""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, Self, TypeVar, Unpack, overload

from farcall.client import live_output, recovery, shared
from farcall.client.command_job import CommandJob, group_nodes, name_of
from farcall.client.frames import frames_hidden
from farcall.client.job import Job
from farcall.client.recovery import Recovered, Run
from farcall.client.shared import Shared
from farcall.client.task import Task
from farcall.config.help import shows_options
from farcall.config.settings import Settings, default_bucket
from farcall.engine.calls import submit
from farcall.engine.delivered import Output, Wanted
from farcall.engine.launcher import launch
from farcall.engine.packer import FunctionCall
from farcall.engine.run import CommandRun, JobRun, TaskRun
from farcall.engine.session import Session, session_for
from farcall.engine.tracked_job import is_unseen
from farcall.engine.workspaces import with_workspace
from farcall.model import names
from farcall.model.commands import Device, Mount, Nodes, Ulimit
from farcall.model.errors import FarcallError, SettingsError, TaskNotPicklableError
from farcall.model.interrupts import left_by
from farcall.model.names import named
from farcall.model.start_script import HERE
from farcall.model.submission import CommandSubmission
from farcall.payload.pickling import Call

if TYPE_CHECKING:
    from farcall.config.settings import CommandOptions, Options

_log = logging.getLogger("farcall")

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


_WITHOUT_ASYNC = "in code without async, use farcall.BatchPoolExecutor"
_HINTS = {
    "map": f"write await executor.task(function).map(...); {_WITHOUT_ASYNC}",
    "starmap": f"write await executor.task(function).starmap(...); {_WITHOUT_ASYNC}",
    "run": f"write await (await executor.submit(function, ...)).result(); {_WITHOUT_ASYNC}",
    "shutdown": f"write async with BatchExecutor(...) as executor:; {_WITHOUT_ASYNC}",
    "close": "exit its block, async with BatchExecutor(...) as executor:",
}
"""Methods of other executors, and their replacements."""


class BatchExecutor:
    """Runs functions as AWS Batch or Kubernetes jobs, for async code.

    ::

        executor = BatchExecutor(vcpu=2, memory=3.75, time_limit=300)

        @executor.task
        def simulate(x, *, steps=10): ...

        async with executor:
            y = await simulate(3)
            ys = await simulate.map(range(10_000))

    ``async with`` opens the connections and checks that the resources which the options name
    exist. If the block ends with an exception, including Ctrl-C, farcall terminates its unfinished
    jobs. Otherwise unfinished jobs keep running, and farcall logs their IDs for `attach`. Without
    the block, connections open at the first call and close with the event loop.

    Args:
        settings: Existing options. By default, ``options`` are completed from the environment and
            ``farcall.toml``.
        **options: See `farcall.Settings`.

    Raises:
        SettingsError: A value is wrong, or an option is unknown.
    """

    @shows_options
    def __init__(self, settings: Settings | None = None, **options: Unpack[Options]) -> None:
        with frames_hidden():
            self._settings = _settings_of(settings, options)
        self._unfinished: dict[JobRun, asyncio.AbstractEventLoop] = {}
        # By event loop: the jobs of nested blocks.
        self._entered: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, list[Session]]
        self._entered = weakref.WeakKeyDictionary()

    @property
    def settings(self) -> Settings:
        """Options of this executor."""
        if not self._settings.s3_bucket_name and default_bucket():
            return self._settings.with_options(s3_bucket_name=default_bucket())
        return self._settings

    def __repr__(self) -> str:
        shown = self._settings.__repr_args__()  # without options that may hold secrets
        given = (f"{k}={v!r}" for k, v in shown if k in self._settings.model_fields_set)
        return f"BatchExecutor({', '.join(given)})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TaskNotPicklableError(
            "a BatchExecutor cannot be pickled: it holds open connections. A task can call "
            "another task, which then runs in the same process"
        )

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(self, /, **options: Unpack[Options]) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    @shows_options
    def task(self, function: Any = None, /, **options: Unpack[Options]) -> Any:
        """Turn a function into a task: ``@executor.task`` or ``@executor.task(vcpu=8)``.

        Raises:
            SettingsError: A value is wrong, or an option is unknown.
            TaskNotPicklableError: The object is a generator function or not callable.
        """
        if not isinstance(self, BatchExecutor):
            raise TypeError(
                "@BatchExecutor.task needs an executor: write executor = BatchExecutor(...), and "
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
        """Submit a call of any function, and return its job when Batch has accepted it.

        Raises:
            TypeError: The arguments do not fit the function's signature.
            SubmissionError: Batch did not accept the job.
            SettingsError: A resource that the options name does not exist.
            ServiceError: AWS refused a call.
        """
        if isinstance(function, Task):
            function = function.function  # this executor's options apply, not the task's
        task: Task[..., Any] = Task(function, self)
        with frames_hidden():
            return task._submission(f"executor.submit({task.name}, ...)", args, kwargs)

    @shows_options
    def with_options(self, **options: Unpack[Options]) -> BatchExecutor:
        """Return an executor with other options.

        It uses this executor's connections. If an exception leaves the ``async with`` block of
        either executor, the unfinished jobs of both are terminated.

        Raises:
            SettingsError: A value is wrong, or an option is unknown.
        """
        copy = BatchExecutor(self.settings, **options)
        copy._unfinished = self._unfinished  # a copy has the same class
        return copy

    async def put(self, value: T) -> Shared[T]:
        """Store a value in the bucket once, and pass it to any number of calls.

        ::

            shared = await executor.put(X)
            ys = await fit.map(itertools.repeat(shared), params)

        The returned object represents the value anywhere in the arguments; the function receives
        the value itself. The value is pickled now, so later changes do not reach the calls. It is
        deleted by `Shared.discard`, or when the run ends: on leaving the block, or with the event
        loop. Jobs that are still running keep it.

        farcall also stores large values only once without `put`, but it must hash them for each
        map, which takes about a second per GiB.

        Args:
            value: Any picklable value.

        Raises:
            TaskNotPicklableError: The value cannot be pickled.
            SettingsError: A resource that the options name does not exist.
            ServiceError: S3 refused a request or could not be reached.
        """
        return await shared.put(self.settings, value)

    def attach(self, job_id: str) -> Job[Any]:
        """Return a handle of a farcall job, from any process and machine.

        Args:
            job_id: The job's ID; for an array task ``"<array job>:<index>"``.
        """
        return Job(TaskRun(job_id, self.settings))

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
        """Submit a command in an image, and return its job when Batch has accepted it.

        ::

            job = await executor.command("alpine:3", ["echo", "hi"], vcpu=1, memory=0.5)
            job = await executor.command(image, ["torchrun", "train.py"], nodes=4, num_gpus=8)
            job = await executor.command(groups=[Nodes(1, image, ["ps"]), Nodes(8, image)])

        The image does not need farcall, and only a workspace needs the bucket. Jobs with equal
        images, mounts and so on share one job definition, which is kept.

        Args:
            image: Image of the containers.
            command: Command and arguments; empty for the image's own.
            groups: Up to five groups of nodes, in place of image and command. The first node of
                the first group is the main node; its exit decides how the job ends.
            name: Name of the job, to which farcall adds a unique suffix; by default the image's
                name.
            env: Environment variables. Everyone who may describe the job can read them.
            mounts: Folders and file systems; see `Nodes` for this and the following options.
            devices: Devices of the instance.
            shm_size: Size of ``/dev/shm`` in GiB.
            ulimits: Resource limits of the processes.
            secrets: Variable name to ARN of a secret or a parameter.
            privileged: Whether the containers have root rights on the instance.
            user: User in the container.
            workspace: Local folder in which the command starts, without the files that its
                ``.dockerignore`` names. farcall uploads it to ``s3_bucket_name`` once per content,
                and each container downloads it with the job role. The image needs a shell,
                coreutils, and python3, curl or wget.
            workspace_dir: Absolute path where the workspace is unpacked; ``.`` for the image's
                working directory.
            **options: See `with_options`. ``nodes`` is the number of nodes; ``vcpu``, ``memory``
                and ``num_gpus`` apply to each node.

        Raises:
            SettingsError: A value is wrong, a resource that the options name does not exist, or
                both or none of ``image`` and ``groups`` are given.
            FarcallError: ``cache_dir`` has no space for the workspace's archive.
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
                nodes = await with_workspace(session, settings, nodes, workspace, workspace_dir)
        job_id = await launch(session, settings, nodes, name=unique)
        submission = CommandSubmission(job_id, unique)
        run = CommandRun(job_id, settings, submission, self._record_end)
        run.watch(session, submission, 0)
        self._unfinished[run] = asyncio.get_running_loop()
        return CommandJob(run)

    def attach_command(self, job_id: str) -> CommandJob:
        """Return the handle of a command job that farcall submitted, in any process or machine.

        Args:
            job_id: The job's ID.
        """
        return CommandJob(CommandRun(job_id, self.settings))

    async def run_name(self) -> str:
        """Return the name of this run, with which `recover` finds its tasks.

        All executors that use the same event loop, account and region share one run.

        Raises:
            SettingsError: The profile or the credentials file does not exist.
            ServiceError: There are no credentials.
        """
        return (await session_for(self.settings)).run

    async def runs(self) -> list[Run]:
        """Return the runs with tasks in the bucket under ``prefix``, the oldest first.

        The list includes runs whose client is still active. A run is missing once all of its
        results have been collected.

        Raises:
            SettingsError: The bucket does not exist.
            ServiceError: AWS refused a call.
        """
        return await recovery.runs(await session_for(self.settings), self.settings)

    async def recover(self, run: str) -> Recovered:
        """Find every task of a run whose client died.

        Recovery needs only the bucket and Batch, works from any process and machine, and runs no
        task again. Each task that Batch knows and whose result was not collected becomes a `Job`,
        whether it is running, finished or failed; `Job.calls` returns its arguments. A task that
        ran again is one `Job`: its last attempt. Failed tasks stay in the bucket, so they are
        found even if their error was collected.

        If the old client is still active, or two clients recover one run, each result goes to the
        client that collects it first; the other raises `OutcomeMissingError`. Tasks that the old
        client is about to submit appear as not submitted.

        Batch's lists lag behind, so a bundle without a job takes some seconds.

        Args:
            run: Name of the run; see `runs`.

        Raises:
            FarcallError: The bucket has no tasks of such a run.
            SettingsError: The bucket does not exist.
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
            raise FarcallError(
                "this executor's block was not entered on this event loop, or was exited already"
            )
        session = blocks.pop()
        runs = [run for run, loop in list(self._unfinished.items()) if loop is here]
        if blocks:
            runs.clear()  # the outer block takes over
        unfinished = [run.id for run in runs]
        try:
            if unfinished and error is not None and not is_unseen(error):
                for run in runs:
                    if isinstance(run, TaskRun):
                        run.end_chances()
                reason = left_by(error)
                await session.terminations.leave(unfinished, len(unfinished), reason)
            elif unfinished:
                _log.warning(
                    "%s will continue; collect one job's result with attach or attach_command, or "
                    "all tasks of this run with recover(%r)",
                    named(unfinished),
                    session.run,
                )
        finally:
            for run in runs:
                self._unfinished.pop(run, None)
            await session.leave_block()

    if not TYPE_CHECKING:  # type checkers still report them as errors

        def __enter__(self) -> NoReturn:
            raise TypeError(
                "a BatchExecutor does not support `with`; use `async with` in an async def, or in "
                "code without async `with farcall.BatchPoolExecutor(...) as pool:`"
            )

        def __exit__(self, *_: object) -> None:
            """Do nothing; `with` looks this method up before it calls ``__enter__``."""

        def __call__(self, *_: object, **__: object) -> NoReturn:
            """Raise an error that shows how to decorate a function."""
            raise TypeError(
                "a BatchExecutor cannot be called: decorate with @executor.task or with "
                "@executor.task(vcpu=8), or submit one call with await "
                "executor.submit(function, ...)"
            )

        def __getattr__(self, name: str) -> NoReturn:
            hint = _HINTS.get(name)
            hint = f": {hint}" if hint else ""
            raise AttributeError(f"a BatchExecutor has no {name!r}{hint}", name=name, obj=self)

    async def _run_call(
        self, function: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> R:
        """Run a checked call for `Task`; cancelling the await terminates its job."""
        __tracebackhide__ = True
        # The caller cannot request its output later.
        run = await self._start_run(function, [(args, kwargs)], Output.NONE)
        try:
            return await Job[R](run).result()
        except asyncio.CancelledError:
            self._unfinished.pop(run, None)
            run.end_chances()
            session = await run.session()
            await session.terminations.leave_one(run.id, "the await on the call was cancelled")
            raise

    async def _submit_calls(self, function: Callable[..., R], calls: Sequence[Call]) -> Job[R]:
        """Submit checked calls as one task, for `Task`."""
        return Job(await self._start_run(function, calls, Output.SMALL))

    async def _start_run(
        self, function: Callable[..., Any], calls: Sequence[Call], output: Output
    ) -> TaskRun:
        """Submit checked calls as one task, whose run fetches this part of the output."""
        prints = self.settings.output and output is Output.NONE
        wanted = Wanted(len(calls), output, writer=live_output.writer if prints else None)
        call = FunctionCall(function, calls, self.settings)
        run = await submit(call, self.settings, wanted, on_end=self._record_end)
        if not run.is_cached:
            self._unfinished[run] = asyncio.get_running_loop()
        return run

    def _record_end(self, run: JobRun) -> None:
        self._unfinished.pop(run, None)


def _settings_of(settings: Settings | None, options: Options) -> Settings:
    if settings is not None and not isinstance(settings, Settings):
        raise SettingsError(
            f"settings is a {type(settings).__name__}; use a farcall.Settings, or options by "
            "name, such as BatchExecutor(vcpu=2)",
            option="settings",
        )
    return settings.replace(**options) if settings else Settings(**options)
