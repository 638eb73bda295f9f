"""Executor: the public face, with options, tasks and submissions."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from farcall.client import recovery
from farcall.client.job import Job
from farcall.client.recovery import Recovered, Run
from farcall.client.task import Task
from farcall.engine.fetcher import Output
from farcall.engine.session import Session, session_for
from farcall.engine.task_handle import TaskHandle, submit
from farcall.engine.watch import is_unseen
from farcall.model.errors import FarcallError, SettingsError, TaskNotPicklableError
from farcall.model.settings import Settings
from farcall.model.wording import named
from farcall.payload.pickling import Packed

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from farcall.model.settings import Options

_log = logging.getLogger("farcall")

P = ParamSpec("P")
R = TypeVar("R")


class BatchExecutor:
    """Runs functions as AWS Batch jobs.

    ::

        executor = BatchExecutor(vcpu=2, memory=3.75, time_limit=300)

        @executor.task
        def simulate(x, *, steps=10): ...

        async with executor:
            y = await simulate(3)
            ys = await simulate.map(range(10_000))

    ``async with`` opens the clients and looks whether what the options name exists. Leaving the
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

    def __init__(self, settings: Settings | None = None, **options: Unpack[Options]) -> None:
        if settings is not None and not isinstance(settings, Settings):
            raise SettingsError(
                f"settings is a {type(settings).__name__}; a farcall.Settings is allowed, or "
                "options by name, such as BatchExecutor(vcpu=2)",
                option="settings",
            )
        self.settings = settings.replace(**options) if settings else Settings(**options)
        self._unfinished: dict[str, asyncio.AbstractEventLoop] = {}
        # By event loop: those of the blocks that are inside, one in another.
        self._entered: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, list[Session]]
        self._entered = weakref.WeakKeyDictionary()

    def __repr__(self) -> str:
        given = sorted(self.settings.model_fields_set)
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

    def task(self, function: Any = None, /, **options: Unpack[Options]) -> Any:
        """Make a function a task: ``@executor.task`` or ``@executor.task(vcpu=8, memory=16)``.

        Raises:
            SettingsError: A value is wrong, or an option is unknown.
            TaskNotPicklableError: It is a generator function, or no function at all.
        """
        executor = self.with_options(**options) if options else self
        if function is None:
            return lambda function: Task(function, executor)
        return Task(function, executor)

    @overload
    async def submit(
        self, function: Task[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Job[R]: ...

    @overload
    async def submit(
        self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Job[R]: ...

    async def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Job[Any]:
        """Submit a call of any function, and return its job once Batch has accepted it.

        Raises:
            TypeError: The arguments don't fit the function.
            SubmissionError: Batch did not accept the job.
            SettingsError: Something the options name does not exist.
            ServiceError: AWS refused a call.
        """
        if isinstance(function, Task):
            function = function.function  # whose executor is asked decides the options
        return await Task(function, self).submit(*args, **kwargs)

    def with_options(self, **options: Unpack[Options]) -> BatchExecutor:
        """Return an executor with other options that shares clients, tracker and jobs.

        Raises:
            SettingsError: A value is wrong, or an option is unknown.
        """
        copy = BatchExecutor(self.settings, **options)
        copy._unfinished = self._unfinished  # of the same class
        return copy

    def attach(self, job_id: str) -> Job[Any]:
        """Join a job of farcall's again, from any process and machine.

        Args:
            job_id: The job's ID; of an array job's child ``"<parent>:<index>"``.
        """
        return Job(TaskHandle(job_id, self.settings))

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
        session = await session_for(self.settings)
        session.enter_block()
        try:
            await session.submitter(self.settings)
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
                reason = f"left by {type(error).__name__}"
                await session.terminations.leave(unfinished, len(unfinished), reason)
            elif unfinished:
                _log.warning(
                    "%s go on; attach joins a job, and recover(%r) all of this run",
                    named(unfinished, "task"),
                    session.run,
                )
        finally:
            for job_id in unfinished:
                self._unfinished.pop(job_id, None)
            await session.leave_block()

    async def run_call(
        self, function: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> R:
        """Run a call that was checked, for `Task`; cancelling the await ends its job."""
        handle = await self._start(function, args, kwargs)
        try:
            return await Job[R](handle, Output.NONE).result()  # nobody can ask for its output
        except asyncio.CancelledError:
            self._unfinished.pop(handle.id, None)
            session = await handle.session()
            await session.terminations.leave_one(handle.id, "the await on it was cancelled")
            raise

    async def submit_call(
        self, function: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Job[R]:
        """Submit a call that was checked, for `Task`."""
        return Job(await self._start(function, args, kwargs))

    async def _start(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> TaskHandle:
        async def pack(session: Session) -> tuple[Packed, Packed]:
            return await session.packer.pack(function, (args, kwargs), self.settings.cache_dir)

        name = getattr(function, "__name__", "task")
        handle = await submit(self.settings, name, pack, self._note_end)
        self._unfinished[handle.id] = asyncio.get_running_loop()
        return handle

    def _note_end(self, job_id: str) -> None:
        self._unfinished.pop(job_id, None)
