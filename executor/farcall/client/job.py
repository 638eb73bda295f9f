"""Future of one task that was submitted: its status, output and result."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar

from farcall.client import live_output
from farcall.client.frames import frames_hidden
from farcall.client.submitted_job import SubmittedJob
from farcall.engine import retry
from farcall.engine.delivered import Delivered, Usage
from farcall.engine.fetcher import Output
from farcall.engine.logs.attempt_history import AttemptHistory
from farcall.engine.logs.reader import LogReader
from farcall.engine.logs.transcript import LOG, Line, Transcript
from farcall.engine.session import Session
from farcall.engine.task_handle import TaskHandle
from farcall.engine.watch import Arrival
from farcall.model.errors import FarcallError, TaskNotPicklableError
from farcall.model.option_signatures import shows_options
from farcall.model.settings import Settings
from farcall.model.submission import Submission
from farcall.payload.pickling import Call
from farcall.payload.results import CallResult, Result
from farcall.payload.spill import where_needed
from farcall.storage.chunks import Chunks
from farcall_runtime.contract import STDERR, STDOUT, STREAMS

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from farcall.model.settings import Options

R = TypeVar("R")


class Job(SubmittedJob[TaskHandle], Generic[R]):
    """One task: an AWS Batch job, or one child of an array job.

    Made by `Task.submit`, `BatchExecutor.submit` and `BatchExecutor.attach`. One event loop at a
    time waits by a handle: on another one `BatchExecutor.attach` makes another. Once that has
    ended, or the result is there, any loop will do.

    Args:
        handle: The task.
        output: How much of what it wrote is fetched with its value. The rest may be asked for
            later; with `Output.NONE` nobody can, and it is deleted with the value.
        calls: How many calls the task makes, where that is known.
        on_spent: Is called when its value was handed over and is deleted from the bucket.
        shows: Whether who waits for its value is shown what it prints; see the option ``output``.

    Attributes:
        id: The job's ID, such as ``"6f1c…"``; an array child's is ``"<parent>:<index>"``.
    """

    def __init__(
        self,
        handle: TaskHandle,
        output: Output = Output.SMALL,
        calls: int = 1,
        on_spent: Callable[[], None] = lambda: None,
        *,
        shows: bool = False,
    ) -> None:
        super().__init__(handle)
        self._fetched = output
        self._calls = calls
        self._on_spent = on_spent
        self._shows = shows
        self._is_discarded = False

    def __reduce__(self) -> tuple[Any, ...]:
        raise TaskNotPicklableError(
            "a Job cannot travel: pass what await job.result() gives, or job.id"
        )

    if not TYPE_CHECKING:  # to checkers it stays the error that it is

        def __await__(self) -> NoReturn:
            raise TypeError("a Job is not awaited itself: write await job.result()")

    async def wait(self) -> None:
        """Wait for the job's end; what came of it is fetched when it is asked for.

        Raises:
            ServiceError: AWS refused a call.
        """
        await self._handle.wait()

    async def calls(self) -> list[Call]:
        """Return the calls that the task makes, as pairs of ``args`` and ``kwargs``.

        It is one, or several where a ``map`` has a ``chunksize``. They are read from the bucket
        as long as the task has not been delivered, and verified by what Batch says of the job
        before they are unpickled.

        Raises:
            IntegrityError: The bucket does not hold what was submitted.
            VersionMismatchError: It was submitted by another farcall or Python.
            TaskNotPicklableError: The arguments cannot be unpickled here.
            JobLostError: Batch does not know the job.
            FarcallError: farcall did not submit it, or its arguments have been deleted.
            ServiceError: AWS refused a call.
        """
        session, submission, index = await self._handle.find()
        return await session.bundles.read(submission, index)

    async def result(self) -> R:
        """Wait for the job's end and return the function's value.

        Cancelling the wait leaves the job running; `cancel` ends the job. Waiting again gives
        the same value, or raises the same error, without asking AWS again.

        The job of a ``map`` with a ``chunksize`` gives the values of its calls as a list. A task
        on several nodes gives the list of their values, in the order of the nodes; the failure
        of the one that failed first, by the nodes' own clocks, is raised, and the failures of
        others are in its notes.

        Raises:
            Exception: What the function raised, with the remote traceback as a note.
            JobError: The job ended badly; its class says how.
            OutcomeError: The job ended, and its answer cannot be used.
            ServiceError: AWS refused a call.
        """
        __tracebackhide__ = True
        with frames_hidden():
            values = [result.unwrap() for result in await self.outcome()]
            value: R = values if len(values) > 1 else values[0]  # type: ignore[assignment]
            return value

    async def outcome(self) -> list[Result]:
        """Wait for the job's end and return the results that `result` makes its value of.

        Raises:
            ServiceError: AWS refused a call.
        """
        async with self._shown() if self._shows else contextlib.nullcontext():
            delivered = await self._delivered()
        await self._discard(delivered, self._handle.settings)
        return delivered.results

    @contextlib.asynccontextmanager
    async def _shown(self) -> AsyncIterator[None]:
        """Show what it prints, for as long as a block lasts."""
        session, submission, index = await self._handle.find()
        name = self.name.rpartition("-")[0] or self.name
        label = f"{name}[{index}]" if submission.size > 1 else name
        session.relay.follow(submission, {index: label}, live_output.writer)
        try:
            yield
        finally:
            session.relay.leave(submission, [index])

    async def results(self) -> list[CallResult[Any]]:
        """Wait for the job's end and return what came of each call that the task makes.

        The job of a ``map`` with a ``chunksize`` makes several. Other than from `result`, their
        errors are not raised, and those that came to their end keep their values. Of an attached
        or recovered job, calls that were not begun are left out; see `calls`.

        Raises:
            IntegrityError: Output is not what the job wrote.
            ServiceError: AWS refused a call.
        """
        delivered = await self._delivered()
        if not delivered.is_whole and delivered.written is not None:
            session, submission, _ = await self._handle.find()
            store = session.stores.of(submission.where.bucket)
            out, err = await delivered.written.whole(store)
            delivered = delivered.with_output(out.data, err.data)
        await self._discard(delivered, self._handle.settings)
        return [result.tell(number, self.id) for number, result in enumerate(delivered.results)]

    async def exception(self) -> BaseException | None:
        """Wait for the job's end and return what `result` would raise, or None.

        Raises:
            ServiceError: AWS refused a call.
        """
        errors = (result.error for result in (await self._delivered()).results)
        return next((error for error in errors if error is not None), None)

    async def usage(self) -> Usage:
        """Wait for the job's end and return what it used: time, CPU, peak memory.

        Of a task on several nodes it is what the main one used.

        Raises:
            ServiceError: AWS refused a call.
        """
        return (await self._delivered()).usage

    async def stdout(self, *, node: int = 0) -> str:
        """Return what the task has written to stdout, up to now or in all, as UTF-8.

        Bytes that are no UTF-8 appear as U+FFFD. After `result` it can be asked for as long as
        the executor's block is not left; small output (256 KiB in a few chunks) at any time.

        Args:
            node: Of a task on several nodes, which one's; by default the main one's.

        Raises:
            ValueError: There is no such node.
            IntegrityError: Output is not what the job wrote.
            ServiceError: AWS refused a call.
        """
        return await self._output(STDOUT, node)

    async def stderr(self, *, node: int = 0) -> str:
        """Return what the task has written to stderr; see `stdout`.

        Raises:
            ValueError: There is no such node.
            IntegrityError: Output is not what the job wrote.
            ServiceError: AWS refused a call.
        """
        return await self._output(STDERR, node)

    async def logs(
        self, *, follow: bool = False, stream: Literal["stdout", "stderr"] | None = None
    ) -> AsyncIterator[str]:
        """Yield the lines the task has written, without their line ends.

        Of a line that a progress bar has rewritten, by carriage returns, it is the last state.
        Of a task on several nodes they are the main one's; `BatchExecutor.attach` to
        ``"<job>#<index>"`` gives those of another one.

        While the task runs, the container stores output about every two seconds. After some five
        minutes of steady output it is every ten, unless somebody follows.

        Args:
            follow: Go on until the job's end.
            stream: Only this one; by default both, in the order in which they were stored. What
                only CloudWatch has is yielded in any case: there they are one.

        Raises:
            ServiceError: AWS refused a call.
        """
        wanted = _wanted(stream)
        async with contextlib.aclosing(self.lines(follow=follow)) as batches:
            async for batch in batches:
                for line in batch:
                    if not line.goes_on and (line.stream in wanted or line.stream == LOG):
                        yield line.text

    async def lines(self, *, follow: bool = False) -> AsyncGenerator[list[Line], None]:
        """Yield the lines the task has written, as they come, with all that is known of each.

        Args:
            follow: Go on until the job's end. What progress bars show on the way there is among
                them, see `Line.goes_on`.

        Raises:
            ServiceError: AWS refused a call.
        """
        session, submission, index = await self._handle.find()
        waits = follow and not submission.is_other_node(index)
        if waits:
            self._handle.watch(session, submission, index)
        kept = self._handle.kept()
        if kept is not None:
            chunks = Chunks(session.stores.of(submission.where.bucket), submission, index)
            transcript = Transcript(chunks, kept.attempt, session.timing)
            ending = kept.ending()
            if ending is not None:
                async for lines in transcript.catch_up():
                    yield lines
            yield await transcript.close_kept(ending, kept.stdout, kept.stderr)
            return
        detail = await session.describe(self.id)
        history = AttemptHistory(
            self._handle.session, session, submission, index, detail, self._handle.kept
        )
        reading = LogReader(history, follow=follow)
        async with contextlib.aclosing(reading.read()) as batches:
            async for batch in batches:
                yield batch or []
        if waits:
            await self.wait()

    @shows_options
    async def retry(self, **options: Unpack[Options]) -> Job[R]:
        """Run the failed task again, with all of its calls, and return the new job.

        Function and arguments are read from the bucket as they were submitted, and verified; all
        options are those of this job, except those that are given. The new job continues when the
        executor's block is left. If it fails, call its own `retry`.

        Args:
            **options: ``vcpu``, ``memory``, ``num_gpus``, ``time_limit``, ``retry_attempts``,
                ``retry_on``, ``queue``, ``priority``, ``share_identifier`` and ``tags``.

        Raises:
            NothingToRetryError: The task has succeeded, has not finished or was retried already,
                or what was submitted is no longer in the bucket.
            SettingsError: A value is wrong, or the option is not one of these.
            SubmissionError: Batch did not accept the job.
            ServiceError: AWS refused a call.
        """
        session = await self._handle.session()
        detail = await session.describe(self.id)
        if self.done() or detail.is_terminated or detail.is_cancelled:
            await retry.until_ended(session, self.id)
        plan = await retry.look(session, self._handle.settings, self.id)
        settings = plan.with_options(options)
        ((submission, _),) = await retry.submit(session, plan, settings)
        session.cleaner.note_submission(submission)
        handle = TaskHandle(submission.job_id, settings, (submission, 0))
        handle.watch(session, submission, 0)
        return Job(handle, self._fetched, self._calls, shows=self._shows)

    async def delete_outcome(self) -> None:
        """Wait for the job's end and have its outcome deleted from the bucket.

        `result` does that by itself, but where ``keep_artifacts`` is set: then the value can be
        brought where it is safe before. The outcome of a task that failed stays.

        Raises:
            ServiceError: AWS refused a call.
        """
        settings = self._handle.settings.replace(keep_artifacts=False)
        await self._discard(await self._delivered(), settings)

    async def _delivered(self) -> Delivered:
        return await self._handle.delivered(self._fetch)

    async def _fetch(
        self, session: Session, submission: Submission, index: int, arrived: Arrival
    ) -> Delivered:
        delivered = await session.fetcher.deliver(
            submission,
            index,
            arrived,
            self._calls,
            folder_for=where_needed(self._handle.settings.cache_dir),
            output=self._fetched,
        )
        await session.relay.finish(submission, index, delivered)
        return delivered

    async def _discard(self, delivered: Delivered, settings: Settings) -> None:
        """Have what lies in the bucket deleted: who asked for the result has it now.

        Output that is not here stays as long as somebody may ask for it by this handle.
        """
        if not self._is_discarded and not settings.keep_artifacts:
            self._is_discarded = True
            with contextlib.suppress(FarcallError):  # what stays there harms nobody
                session, submission, index = await self._handle.find()
                spent, output, holder = delivered.all_spent, [], None
                if self._fetched is not Output.NONE and not delivered.is_whole:
                    spent, output, holder = delivered.spent, delivered.output, self
                peak = delivered.usage.peak_memory_bytes
                session.cleaner.discard(settings, submission, index, spent, output, holder, peak)
            if delivered.spent:
                self._on_spent()

    async def _output(self, stream: str, node: int) -> str:
        if node:
            return await self._output_of(stream, node)
        written = None
        if self.done():
            delivered = await self._delivered()
            written = delivered.written
            if delivered.is_whole or written is None:
                return delivered.text(stream)
        session, submission, index = await self._handle.find()
        store = session.stores.of(submission.where.bucket)
        written = written or await session.fetcher.written(submission, index)
        if written is not None:
            return await written.text(store, stream)
        return await Chunks(store, submission, index).text(stream)

    async def _output_of(self, stream: str, node: int) -> str:
        """Return what was written on a node that is not the main one."""
        session, submission, _ = await self._handle.find()
        if not 0 < node < submission.nodes:
            raise ValueError(f"node is {node}; the job has nodes 0 to {submission.nodes - 1}")
        store = session.stores.of(submission.where.bucket)
        if self.done():
            found = (await self._delivered()).others.get(node)
            if found is not None and found.written is not None:
                if found.is_whole:
                    return found.text(stream)
                return await found.written.text(store, stream)
        return await Chunks(store, submission, node).text(stream)


def _wanted(stream: str | None) -> tuple[str, ...]:
    if stream not in (None, *STREAMS):
        raise ValueError(f"stream is {stream!r}; {' or '.join(STREAMS)} is allowed")
    return STREAMS if stream is None else (stream,)
