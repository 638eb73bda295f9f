"""Handles of submitted jobs: status, output and result of a task."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar, Unpack

from farcall.client.frames import frames_hidden
from farcall.config.help import shows_options
from farcall.engine.delivered import Usage
from farcall.engine.logs.sources import TaskOutput
from farcall.engine.run import JobRun, TaskRun
from farcall.model.errors import TaskNotPicklableError
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.output import LOG, LogLine
from farcall.payload.pickling import Call
from farcall.payload.results import CallResult
from farcall.storage.chunks import Chunks
from farcall_runtime.contract import STDERR, STDOUT, STREAMS

if TYPE_CHECKING:
    from farcall.config.settings import Options

R = TypeVar("R")
H = TypeVar("H", bound=JobRun)


class SubmittedJob(Generic[H]):
    """Job that farcall submitted: its name, status and cancellation."""

    def __init__(self, run: H) -> None:
        self._run = run

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}{' done' if self.done() else ''}>"

    @property
    def id(self) -> str:
        """The job's ID, such as ``"6f1c…"``; for an array task ``"<array job>:<index>"``.

        If the task runs again with more memory or in another queue, the newest job's.
        """
        return self._run.id

    @property
    def name(self) -> str:
        """The job's name, which begins with the function's name.

        Empty for an attached job until Batch has described the job.
        """
        return self._run.name

    def done(self) -> bool:
        """Return whether the job is known to have finished, without an API request."""
        return self._run.is_completed

    async def status(self) -> JobStatus:
        """Return the job's current status; concurrent calls for many jobs share requests.

        Raises:
            JobLostError: Batch does not know the job.
            ServiceError: Batch refused the call.
        """
        return (await self.detail()).status

    async def detail(self) -> JobDetail:
        """Return Batch's description of the job: status, reasons, times, log stream.

        Raises:
            JobLostError: Batch does not know the job.
            ServiceError: Batch refused the call.
        """
        return await self._run.detail()

    async def cancel(self, reason: str = "cancelled by its owner") -> None:
        """Cancel the job on all its nodes; a finished job stays as it is.

        The processes get SIGTERM, and SIGKILL 20 seconds (commands: 30 seconds) later. Callers
        that wait for the job get `JobCancelledError`.

        Args:
            reason: Status reason that Batch stores, up to about 1000 characters.

        Raises:
            ServiceError: Batch refused the call.
        """
        await self._run.cancel(reason)


class Job(SubmittedJob[TaskRun], Generic[R]):
    """One task: a single job or an array task.

    Created by `Task.submit`, `BatchExecutor.submit` and `BatchExecutor.attach`. While the task is
    unfinished, only one event loop at a time can wait for a handle; use `BatchExecutor.attach` on
    another loop. After the task has finished, every loop can use the handle.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        raise TaskNotPicklableError(
            "a Job cannot be pickled. Pass the result of await job.result(), or job.id"
        )

    if not TYPE_CHECKING:  # type checkers still report it as an error

        def __await__(self) -> NoReturn:
            raise TypeError("a Job cannot be awaited. Write await job.result()")

    @property
    def is_cached(self) -> bool:
        """Whether the result came from the cache: then there is no job, and `id` is empty."""
        return self._run.is_cached

    async def wait(self) -> None:
        """Wait until the job has finished, without collecting its result.

        Raises:
            ServiceError: AWS refused a call.
        """
        await self._run.wait()

    async def calls(self) -> list[Call]:
        """Return the arguments of the task's calls, as pairs of ``args`` and ``kwargs``.

        A task has several calls if a ``map`` has a ``chunksize``. The arguments are read from the
        bucket, which holds them until the result is collected, and verified with the digest that
        Batch holds before they are unpickled.

        Raises:
            IntegrityError: The arguments in the bucket differ from the submitted ones.
            VersionMismatchError: Another version of farcall or Python submitted the task.
            TaskNotPicklableError: The arguments cannot be unpickled here.
            JobLostError: Batch does not know the job.
            FarcallError: farcall did not submit the job, or its arguments have been deleted.
            ServiceError: AWS refused a call.
        """
        session, submission, index = await self._run.find()
        return await session.bundles.read(submission, index)

    async def result(self) -> R:
        """Wait until the job has finished, and return the function's result.

        Cancelling the wait leaves the job running; `cancel` terminates it. Waiting again returns
        the same result, or raises the same error, without another API request.

        With a ``chunksize``, the job of a ``map`` returns the list of its calls' results. A
        multi-node task returns the list of its nodes' results, in the order of the nodes. If nodes
        fail, the error of the node that failed first, by the nodes' clocks, is raised, with the
        errors of the other nodes as notes.

        Raises:
            Exception: The function's exception, with the remote traceback as a note.
            JobError: The job has no result; the class names the reason.
            ServiceError: AWS refused a call.
        """
        __tracebackhide__ = True
        with frames_hidden():
            values = [result.unwrap() for result in await self._run.results()]
            value: R = values if len(values) > 1 else values[0]  # type: ignore[assignment]
            return value

    async def results(self) -> list[CallResult[Any]]:
        """Wait until the job has finished, and return the value or error of each call.

        A task has several calls if a ``map`` has a ``chunksize``. Unlike `result`, this does not
        raise the calls' exceptions, and calls that returned keep their values. For an attached or
        recovered job, calls that had not started are missing; see `calls`.

        Raises:
            IntegrityError: The stored output differs from the job's output.
            ServiceError: AWS refused a call.
        """
        delivered = await self._run.delivered()
        if not delivered.is_whole and delivered.written is not None:
            session, submission, _ = await self._run.find()
            store = session.stores.of(submission.where.bucket)
            out, err = await delivered.written.whole(store)
            delivered = delivered.with_output(out.data, err.data)
        await self._run.discard(delivered)
        return [
            result.with_place(number, self.id) for number, result in enumerate(delivered.results)
        ]

    async def exception(self) -> BaseException | None:
        """Wait until the job has finished, and return the exception of `result`, or None.

        Raises:
            ServiceError: AWS refused a call.
        """
        errors = (result.error for result in (await self._run.delivered()).results)
        return next((error for error in errors if error is not None), None)

    async def usage(self) -> Usage:
        """Wait until the job has finished; return its duration, CPU time and peak memory.

        For a multi-node task these are the main node's.

        Raises:
            ServiceError: AWS refused a call.
        """
        return (await self._run.delivered()).usage

    async def stdout(self, *, node: int = 0) -> str:
        """Return the task's stdout so far, decoded as UTF-8.

        Invalid bytes become U+FFFD. After `result`, large output is available until the executor's
        block ends, and small output (256 KiB in a few chunks) at any time.

        Args:
            node: Index of a node of a multi-node task; by default the main node.

        Raises:
            ValueError: The node does not exist.
            IntegrityError: The stored output differs from the job's output.
            ServiceError: AWS refused a call.
        """
        return await self._output(STDOUT, node)

    async def stderr(self, *, node: int = 0) -> str:
        """Return the task's stderr so far; see `stdout`.

        Raises:
            ValueError: The node does not exist.
            IntegrityError: The stored output differs from the job's output.
            ServiceError: AWS refused a call.
        """
        return await self._output(STDERR, node)

    async def logs(
        self, *, follow: bool = False, stream: Literal["stdout", "stderr"] | None = None
    ) -> AsyncIterator[str]:
        """Yield the lines that the task has written, without line ends.

        If a progress bar rewrites a line with carriage returns, only its last state is yielded.
        The lines of a multi-node task are the main node's; attach to ``"<job>#<index>"`` for
        another node.

        The container uploads output about every two seconds. After about five minutes of steady
        output it uploads every ten seconds, unless a client follows the output.

        Args:
            follow: Continue until the job has finished.
            stream: Only this stream; by default both, in the order in which they were stored.
                Lines that only CloudWatch has are always yielded, because it merges both streams.

        Raises:
            ServiceError: AWS refused a call.
        """
        wanted = _wanted(stream)
        async with contextlib.aclosing(self.lines(follow=follow)) as batches:
            async for batch in batches:
                for line in batch:
                    if not line.goes_on and (line.stream in wanted or line.stream == LOG):
                        yield line.text

    async def lines(self, *, follow: bool = False) -> AsyncGenerator[list[LogLine], None]:
        """Yield the lines that the task has written, in batches, with all their details.

        Args:
            follow: Continue until the job has finished. Intermediate states of progress bars are
                included; see `LogLine.goes_on`.

        Raises:
            ServiceError: AWS refused a call.
        """
        session, submission, index = await self._run.find()
        waits = follow and not submission.is_other_node(index)
        if waits:
            self._run.watch(session, submission, index)
        kept = self._run.kept()
        if kept is not None:
            store = session.stores.of(submission.where.bucket)
            async for batch in TaskOutput(store, submission, index).collected(kept):
                yield batch
            return
        lines = session.logs.lines(self.id, follow=follow, kept=self._run.kept)
        async with contextlib.aclosing(lines) as batches:
            async for batch in batches:
                yield batch
        if waits:
            await self.wait()

    @shows_options
    async def retry(self, **options: Unpack[Options]) -> Job[R]:
        """Run the failed task again, with all of its calls, and return the new job.

        farcall reads the original function and arguments from the bucket and verifies them. All
        options are the job's own, except those that you give. The new job keeps running when the
        executor's block ends. If it fails, call its own `retry`.

        Args:
            **options: ``vcpu``, ``memory``, ``num_gpus``, ``time_limit``, ``retry_attempts``,
                ``retry_on``, ``queue``, ``priority``, ``share_identifier`` and ``tags``.

        Raises:
            NothingToRetryError: The task has succeeded, has not finished or was retried already,
                or its function and arguments are no longer in the bucket.
            SettingsError: A value is wrong, or a retry cannot change the option.
            SubmissionError: Batch did not accept the job.
            ServiceError: AWS refused a call.
        """
        return Job(await self._run.retry(options))

    async def _delete_outcome(self) -> None:
        """Wait until the job has finished, and delete its result from the bucket.

        `result` does this unless ``keep_artifacts`` is set, which allows saving the result first.
        The outcome of a failed task is kept.

        Raises:
            ServiceError: AWS refused a call.
        """
        settings = self._run.settings.replace(keep_artifacts=False)
        await self._run.discard(await self._run.delivered(), settings)

    async def _output(self, stream: str, node: int) -> str:
        node_output = None
        if self.done():
            delivered = await self._run.delivered()
            node_output = delivered.others.get(node) if node else delivered
        if node_output is not None and (node_output.is_whole or node_output.written is None):
            return node_output.text(stream)
        session, submission, index = await self._run.find()
        if node and not 0 < node < submission.nodes:
            raise ValueError(f"node is {node}; use a node from 0 to {submission.nodes - 1}")
        store = session.stores.of(submission.where.bucket)
        written = node_output.written if node_output is not None else None
        if written is None and not node:
            written = await session.fetcher.written(submission, index)
        if written is not None:
            return await written.text(store, stream)
        return await Chunks(store, submission, node or index).text(stream)


def _wanted(stream: str | None) -> tuple[str, ...]:
    if stream not in (None, *STREAMS):
        raise ValueError(f"stream is {stream!r}; use {' or '.join(STREAMS)}")
    return STREAMS if stream is None else (stream,)
