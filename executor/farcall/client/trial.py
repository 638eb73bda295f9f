"""Trial jobs of ``farcall doctor --run``: a few small jobs with the options in use.

Their functions are nested, so that they are pickled by value: the jobs' image does not contain
this module.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from farcall.aws.findings import finding_of
from farcall.client.executor import BatchExecutor
from farcall.client.job import Job
from farcall.config.settings import Settings
from farcall.engine.session import Session, session_for
from farcall.model.errors import FarcallError, JobCancelledError, JobError, ServiceError
from farcall.model.findings import FAILED, NOT_CHECKED, OK, WARNING, Finding, parted
from farcall.model.jobs import JobDetail
from farcall.model.names import counted
from farcall.packages import environment
from farcall_runtime.contract import run_root

_log = logging.getLogger("farcall")

STEP_LIMIT_S = 20 * 60
"""Maximum duration of a step in seconds; Batch may need minutes to start an instance."""

_END_LIMIT_S = 3 * 60
"""Maximum time in seconds until terminated jobs have ended: 30 s until SIGKILL, and delays."""

_POLL_S = 0.5
_FOLDERS = ("bundles", "outcomes", "attempts", "streams", "values")
"""Folders of a run that the client's IAM policy permits to list and to clear."""

_PACKAGE = "click"
"""Distribution that each client has, without requirements and without compiled files."""

_LINE = "farcall doctor: a line of output"
_ERROR = "raised by farcall doctor"

CLEAN_UP = "clean-up"


@dataclass(frozen=True)
class Step:
    """Result of one step.

    Attributes:
        finding: The verdict.
        duration_s: Its duration in seconds, including the time in the queue.
    """

    finding: Finding
    duration_s: float = 0.0


@dataclass(frozen=True)
class Trial:
    """Result of all trial jobs.

    Attributes:
        steps: The steps, in the order in which they ran.
        vcpu_s: Upper bound of the vCPU-seconds: each job's vCPUs from submission to end.
        gb_s: The same for memory, in GB-seconds.
        requests: Number of requests of this process to the platform and the bucket.
    """

    steps: list[Step]
    vcpu_s: float = 0.0
    gb_s: float = 0.0
    requests: int = 0

    def dollars(self, settings: Settings) -> float | None:
        """Return the maximum cost of the resources in dollars; None without prices."""
        prices = settings.vcpu_hour_price, settings.gb_hour_price
        return (self.vcpu_s * prices[0] + self.gb_s * prices[1]) / 3600 if any(prices) else None


class _WrongError(Exception):
    """A step ended differently than its function requires."""


async def run(settings: Settings, show: Callable[[str, str], None]) -> Trial:
    """Run the trial jobs one after the other, and delete what they leave.

    If the first job fails, the others are not submitted.

    Args:
        settings: Options in use.
        show: Called with the step and each line of its output.

    Returns:
        The results; errors of jobs and of services are findings.
    """
    executor = BatchExecutor(settings, nodes=1, output=False, workflow="farcall-doctor")
    trial = _Jobs(executor, show)
    first, *others = trial.steps
    try:
        async with executor:
            session = await session_for(executor.settings)
            steps: list[Step] = []
            try:
                for name in trial.steps:
                    if steps and steps[0].finding.verdict == FAILED:
                        steps.append(Step(Finding(name, NOT_CHECKED, f"the {first} failed")))
                    else:
                        steps.append(await trial.run(name))
            except asyncio.CancelledError:  # asyncio's form of Ctrl-C
                _log.warning(
                    "cancelling the jobs and deleting their objects; press Ctrl-C to exit at once"
                )
                raise
            finally:
                cleared = await _measured(CLEAN_UP, _clear(session, executor.settings, trial))
            used = [_used(detail) for detail in trial.ended]
            return Trial(
                [*steps, cleared],
                sum(seconds * detail.vcpu for seconds, detail in used),
                sum(seconds * detail.memory_mib for seconds, detail in used) / 1024,
                session.requests,
            )
    except FarcallError as error:  # before the first step
        rest = [Step(Finding(name, NOT_CHECKED, f"the {first} failed")) for name in others]
        return Trial([Step(_failed(first, error)), *rest])


class _Jobs:
    """The steps, and the jobs that they have submitted.

    Attributes:
        job_ids: IDs of the submitted jobs.
        ended: Descriptions of these jobs after their end.
    """

    def __init__(self, executor: BatchExecutor, show: Callable[[str, str], None]) -> None:
        self._executor = executor
        self._show = show
        self.job_ids: list[str] = []
        self.ended: list[JobDetail] = []
        self.steps: dict[str, Callable[[str], Awaitable[str]]] = {
            "call": self._call,
            "array": self._array,
            "failing call": self._failing_call,
            "cancel": self._cancel,
            "packages": self._packages,
        }

    async def run(self, name: str) -> Step:
        """Run a step."""
        return await _measured(name, self._limited(name))

    async def _limited(self, name: str) -> Finding:
        before = len(self.job_ids)
        try:
            async with asyncio.timeout(STEP_LIMIT_S):
                return Finding(name, OK, await self.steps[name](name))
        except TimeoutError:
            text = f"not finished within {STEP_LIMIT_S // 60} minutes"
            return await self._unfinished(name, text, self.job_ids[before:])

    async def _unfinished(self, name: str, text: str, job_ids: list[str]) -> Finding:
        session = await session_for(self._executor.settings)
        details = [await session.detail(job_id) for job_id in job_ids]
        for detail in filter(None, details):
            text += f"; job {detail.job_id} is {detail.status}"
            if detail.status_reason:
                text += f" ({detail.status_reason})"
            if detail.remedy:
                return Finding(name, FAILED, text, detail.remedy)
        return Finding(name, FAILED, text, "check the queue and its compute resources")

    async def _submit(self, function: Callable[..., Any], *args: Any, **options: Any) -> Job[Any]:
        executor = self._executor.with_options(**options) if options else self._executor
        job = await executor.submit(function, *args)
        self.job_ids.append(job.id)
        return job

    async def _follow(self, name: str, job: Job[Any]) -> list[str]:
        lines = []
        async for line in job.logs(follow=True):
            self._show(name, line)
            lines.append(line)
        return lines

    async def _call(self, name: str) -> str:
        def double(x: int, line: str) -> int:
            print(line)  # noqa: T201  # the job's output
            return 2 * x

        job = await self._submit(double, 21, _LINE)
        lines = await self._follow(name, job)
        _expect("its result is", await job.result(), 42)
        if _LINE not in lines:
            raise _WrongError(
                "it returned its result, but its output did not arrive; check the permissions for "
                "streams/ in the job role's policy and in yours"
            )
        return "returned its result and its output"

    async def _array(self, name: str) -> str:
        def square(x: int) -> int:
            print(f"task {x}")  # noqa: T201  # the job's output
            return x * x

        sweep = self._executor.task(square).map([2, 3])
        values = {}
        try:
            async for result in sweep.results():
                if result.error is not None:
                    raise result.error
                values[result.index] = result.value
                for line in result.stdout.splitlines():
                    self._show(name, line)
        finally:
            self.job_ids += sweep.job_ids
        _expect("its results are", values, {0: 4, 1: 9})
        return "both tasks returned their results"

    async def _failing_call(self, name: str) -> str:
        def fail(text: str) -> None:
            raise ValueError(text)

        job = await self._submit(fail, _ERROR, retry_attempts=1)
        await self._follow(name, job)
        error = await job.exception()
        if isinstance(error, FarcallError):
            raise error
        _expect("its exception is", repr(error), repr(ValueError(_ERROR)))
        return "its exception was raised here"

    async def _cancel(self, name: str) -> str:
        def sleep(line: str) -> None:
            import time

            print(line, flush=True)  # noqa: T201  # the job's output
            time.sleep(600)  # until the job is cancelled

        job = await self._submit(sleep, _LINE)
        async with contextlib.aclosing(job.lines(follow=True)) as batches:
            async for _ in batches:  # the function runs
                self._show(name, _LINE)
                break
        await job.cancel("cancelled by farcall doctor")
        error = await job.exception()
        if not isinstance(error, JobCancelledError):
            raise error or _WrongError("the job was cancelled, but returned a result")
        return "was cancelled while it ran"

    async def _packages(self, name: str) -> str:
        def version_of(name: str) -> str:
            from importlib import import_module, metadata

            import_module(name)
            return metadata.version(name)

        pin = f"{_PACKAGE}=={metadata.version(_PACKAGE)}"
        settings = self._executor.settings.with_options(extra_packages=[])
        sent = environment.with_pins(settings, [pin])
        options = {key: getattr(sent, key) for key in ("packages", "exclude_packages")}
        job = await self._submit(version_of, _PACKAGE, extra_packages=[], **options)
        await self._follow(name, job)
        _expect("the job imported", f"{_PACKAGE}=={await job.result()}", pin)
        return f"{pin} was sent and imported"


def _expect(what: str, value: object, expected: object) -> None:
    if value != expected:
        raise _WrongError(f"{what} {value!r} instead of {expected!r}; report this bug in farcall")


async def _measured(name: str, finding: Awaitable[Finding]) -> Step:
    began = time.monotonic()
    try:
        found = await finding
    except Exception as error:  # the clean-up must run anyway
        found = _failed(name, error)
    return Step(found, time.monotonic() - began)


def _failed(name: str, error: Exception) -> Finding:
    if isinstance(error, JobError):
        found, _, remedy = str(error).partition(" To do: ")
        return Finding(name, FAILED, found, remedy)
    if isinstance(error, ServiceError | _WrongError):  # a denied request is a failure here
        return Finding(name, FAILED, *parted(str(error)))
    return finding_of(name, error)


def _used(detail: JobDetail) -> tuple[float, JobDetail]:
    """Return the seconds of a job's tasks from submission to end, with its description."""
    if detail.created_at is None or detail.stopped_at is None:
        return 0.0, detail
    seconds = (detail.stopped_at - detail.created_at).total_seconds()
    return seconds * max(detail.array_size, 1), detail


async def _clear(session: Session, settings: Settings, trial: _Jobs) -> Finding:
    """Terminate unfinished jobs, and delete the run's objects and the platform's jobs."""
    await session.terminations.end(trial.job_ids, "farcall doctor has ended")
    try:
        async with asyncio.timeout(_END_LIMIT_S):
            ended = [await _end_of(session, job_id) for job_id in trial.job_ids]
    except TimeoutError:
        text = f"jobs have not ended within {_END_LIMIT_S // 60} minutes: "
        text += ", ".join(trial.job_ids)
        return Finding(CLEAN_UP, WARNING, text, "cancel them with `farcall cancel JOB`")
    trial.ended = [detail for detail in ended if detail is not None]
    store = session.stores.of(settings.s3_bucket_name)
    root = run_root(settings.prefix, session.run)
    keys = await _keys(store, root)
    store.delete_later(keys)
    await store.flush()
    left = await _keys(store, root)
    if left:
        text = f"{counted(len(left), 'object')} remain under s3://{store.bucket}/{root}"
        remedy = "grant s3:DeleteObject, or let a lifecycle rule delete them"
        return Finding(CLEAN_UP, WARNING, text, remedy)
    try:
        for detail in trial.ended:
            await session.backend.forget(detail)
    except ServiceError as error:  # the platform deletes them later
        return Finding(CLEAN_UP, WARNING, *parted(str(error)))
    return Finding(CLEAN_UP, OK, f"deleted the objects of {counted(len(trial.ended), 'job')}")


async def _end_of(session: Session, job_id: str) -> JobDetail | None:
    detail = await session.detail(job_id)
    while detail is not None and not detail.status.is_final:
        await asyncio.sleep(_POLL_S)
        detail = await session.detail(job_id)
    return detail


async def _keys(store: Any, root: str) -> list[str]:
    pages = [await store.list_keys(f"{root}/{folder}/") for folder in _FOLDERS]
    return [key for page in pages for key, _ in page]
