"""Fake backend: jobs that are processes of this machine, a bucket that is a folder, scripted ends.

For tests of code that uses farcall, which get it by `farcall.testing`. It needs no server, no
network and no account. What farcall does is all there: functions travel pickled, the container's
side (`farcall_runtime`) runs them in a process of their own, and outcomes are signed and verified.
What Batch does is kept in memory, and told in Batch's words: what a job asks for is checked as
`farcall.backends.batch.documents` does, and why one ended is told by the tables of
`farcall.backends.batch.endings`.

Jobs outlive the session and the event loop that submitted them. So all that is known of them
belongs to an event loop in a thread of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import collections
import concurrent.futures
import functools
import hashlib
import logging
import math
import os
import secrets
import shutil
import tempfile
import threading
import uuid
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, TypeVar, cast

import obstore
from obstore.exceptions import GenericError
from obstore.store import LocalStore, MemoryStore, S3Store

from farcall.aws.access import Access
from farcall.aws.findings import OK, Finding
from farcall.aws.paced_client import Meter, Ticket
from farcall.aws.s3 import NO_UPLOAD, Listed, Operations, Page
from farcall.backends.base import Backend, Capabilities, JobSpec, Log, LogLine
from farcall.backends.batch.describe import BatchJob
from farcall.backends.batch.documents import LARGEST_ARRAY, job_request
from farcall.backends.batch.endings import EXITED
from farcall.local.batch import retries
from farcall.local.batch.resources import Resources
from farcall.local.batch.retries import RetryStrategy
from farcall.local.iam.signatures import AccessKey
from farcall.local.runners.credentials import RoleCredentials
from farcall.local.runners.process import ProcessRunner
from farcall.local.runners.runner import AttemptSpec, Running, StartError
from farcall.model.endings import OWN_REASON
from farcall.model.errors import ServiceError, SubmissionError
from farcall.model.jobs import Attempt, JobDetail, JobStatus
from farcall.model.settings import Settings
from farcall.model.timing import in_force
from farcall_runtime import contract

_JOBS_IN_PAGE, _CHILDREN_IN_PAGE, _KEYS_IN_PAGE = 100, 1000, 1000
_DESCRIBED = 100
_LOG_LINE_BYTES = 256 * 1024
_STOP_GRACE_S = 30.0
"""From SIGTERM to SIGKILL, as on Batch."""

_NOT_ACCEPTED = "ClientException"
_THROTTLED = "TooManyRequestsException"

_log = logging.getLogger("farcall")

T = TypeVar("T")


# --- what can be scripted ---------------------------------------------------------------------


@dataclass(frozen=True)
class Ending:
    """How an attempt ends whose function does not run, in Batch's words.

    Attributes:
        status_reason: The attempt's ``statusReason``.
        container_reason: The container's ``reason``; empty for none.
        exit_code: The container's exit code; None where nobody could tell it.
    """

    status_reason: str = EXITED
    container_reason: str = ""
    exit_code: int | None = None

    may_be_retried: ClassVar[bool] = True
    was_started: ClassVar[bool] = True
    is_by_somebody: ClassVar[bool] = False


@dataclass(frozen=True)
class HostLost(Ending):
    """The machine goes away, as a reclaimed spot instance does: `farcall.HostLostError`."""

    status_reason: str = "Host EC2 (instance i-0123456789abcdef0) terminated."


@dataclass(frozen=True)
class OutOfMemory(Ending):
    """The container exceeds its memory: `farcall.OutOfMemoryError`."""

    container_reason: str = "OutOfMemoryError: Container killed due to memory usage"
    exit_code: int | None = 137


@dataclass(frozen=True)
class ImageFailed(Ending):
    """The container is not started: `farcall.ImageError`."""

    status_reason: str = "Task failed to start"
    container_reason: str = "CannotPullContainerError: the image is not to be had"

    was_started: ClassVar[bool] = False


@dataclass(frozen=True)
class TimedOut(Ending):
    """The attempt exceeds ``time_limit``: `farcall.JobTimeoutError`. It is never retried."""

    status_reason: str = "Job attempt duration exceeded timeout"
    exit_code: int | None = 137

    may_be_retried: ClassVar[bool] = False


@dataclass(frozen=True)
class OutcomeMissing(Ending):
    """The job succeeds, and its outcome is gone: `farcall.OutcomeMissingError`."""

    exit_code: int | None = 0


@dataclass(frozen=True)
class Cancelled(Ending):
    """Somebody else ends the job: `farcall.JobCancelledError`. It is never retried.

    Attributes:
        status_reason: The reason that they gave.
    """

    status_reason: str = "ended by hand"
    exit_code: int | None = 143

    may_be_retried: ClassVar[bool] = False
    is_by_somebody: ClassVar[bool] = True


@dataclass(frozen=True)
class Stuck:
    """The job cannot be placed: `farcall.JobStuckError` after ``stuck_timeout_s``, if that is set.

    Attributes:
        reason: Batch's words on why, such as ``"MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT"``.
        for_s: Seconds after which it is placed after all; infinite for never.
    """

    reason: str = (
        "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - Service cannot fulfill the capacity requested"
    )
    for_s: float = math.inf


@dataclass(frozen=True)
class Refused:
    """The job is not accepted: `farcall.SubmissionError`, or `farcall.ServiceError` by its code.

    Attributes:
        message: What SubmitJob says.
        code: ``"ClientException"`` for the job itself, ``"AccessDeniedException"`` for whoever
            submits it.
    """

    message: str = "Job size must be less than 30 KiB"
    code: str = _NOT_ACCEPTED


@dataclass(frozen=True)
class Throttled:
    """SubmitJob is refused for coming too fast, and sent again: the job is late.

    Attributes:
        times: How often it is refused.
    """

    times: int = 1


Happening: TypeAlias = Ending | Stuck | Refused | Throttled
"""What can happen to a job."""


@dataclass
class _Script:
    """What happens to one job: at its submission, while it waits, and to its first attempts."""

    refused: Refused | None = None
    throttled: int = 0
    stuck: Stuck | None = None
    endings: tuple[Ending, ...] = ()
    task: int | None = None

    @classmethod
    def of(cls, happenings: Iterable[Happening], task: int | None) -> _Script:
        script = cls(task=task)
        for each in happenings:
            if isinstance(each, Refused):
                script.refused = each
            elif isinstance(each, Throttled):
                script.throttled += each.times
            elif isinstance(each, Stuck):
                script.stuck = each
            elif isinstance(each, Ending):
                script.endings += (each,)
            else:
                raise TypeError(
                    f"{each!r} cannot happen to a job; HostLost(), Stuck() and others of "
                    "farcall.testing can"
                )
        return script

    def concerns(self, index: int) -> bool:
        return self.task in (None, index)


# --- jobs -------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Job:
    """A job that was accepted; of an array the parent."""

    job_id: str
    spec: JobSpec
    script: _Script
    strategy: RetryStrategy
    resources: Resources
    created_at: datetime
    tasks: list[_Task] = field(default_factory=list)

    @property
    def queue(self) -> str:
        return self.spec.settings.batch_queue

    @property
    def is_array(self) -> bool:
        return self.spec.size > 1

    def detail(self) -> BatchJob:
        """Tell of the job as a whole."""
        if not self.is_array:
            return self.tasks[0].detail()
        counts = collections.Counter(task.status.value for task in self.tasks)
        ended = [task for task in self.tasks if task.status.is_final]
        status, reason = JobStatus.PENDING, ""
        if len(ended) == len(self.tasks):
            failed = counts[JobStatus.FAILED.value]
            status = JobStatus.FAILED if failed else JobStatus.SUCCEEDED
            reason = "Array Child Job failed" if failed else ""
        stopped = [task.stopped_at for task in ended if task.stopped_at is not None]
        return replace(
            self.blank(self.job_id),
            status=status,
            status_reason=reason,
            stopped_at=max(stopped) if status.is_final and stopped else None,
            array_size=len(self.tasks),
            status_summary={each.value: counts[each.value] for each in JobStatus},
        )

    def blank(self, job_id: str) -> BatchJob:
        """Tell what was submitted."""
        settings = self.spec.settings
        return BatchJob(
            job_id=job_id,
            name=self.spec.name,
            status=JobStatus.SUBMITTED,
            attempts_allowed=self.strategy.attempts,
            created_at=self.created_at,
            log_group=settings.batch_job_log_group_name,
            environment=dict(self.spec.environment),
            queue=self.queue,
            definition="farcall-fake:1",
            image=settings.container_image_uri,
            vcpu=self.resources.vcpus,
            memory_mib=self.resources.memory_mib,
            gpus=self.resources.gpus,
            time_limit_s=settings.time_limit,
            tags=dict(settings.tags),
        )


@dataclass(eq=False)
class _Task:
    """A plain job, or a child of an array: what becomes of it."""

    job: _Job
    index: int
    status: JobStatus = JobStatus.SUBMITTED
    status_reason: str = ""
    tried: list[Attempt] = field(default_factory=list)
    started_at: datetime | None = None
    stopped_at: datetime | None = None
    log_stream: str = ""
    stop_reason: str | None = None
    was_started: bool = False
    running: Running | None = None
    killing: asyncio.TimerHandle | None = None
    going: asyncio.Task[None] | None = None

    @property
    def job_id(self) -> str:
        return f"{self.job.job_id}:{self.index}" if self.job.is_array else self.job.job_id

    def detail(self) -> BatchJob:
        last = self.tried[-1] if self.tried else Attempt()
        return replace(
            self.job.blank(self.job_id),
            status=self.status,
            status_reason=self.status_reason or last.status_reason,
            exit_code=last.exit_code,
            container_reason=last.container_reason,
            tried=tuple(self.tried),
            started_at=self.started_at,
            stopped_at=self.stopped_at,
            is_cancelled=self.stop_reason is not None and not self.was_started,
            is_terminated=self.stop_reason is not None,
            log_stream=self.log_stream,
        )


def _listed(detail: BatchJob) -> JobDetail:
    """Return what a list tells: less than a description."""
    return replace(detail, environment={}, tags={}, tried=())


class _Output(list[LogLine]):
    """What an attempt's container has written, line by line."""

    def __init__(self) -> None:
        super().__init__()
        self._rest = b""

    def write(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        now = _now()
        self.extend(LogLine(now, line.decode(errors="replace")) for line in lines)

    def end(self) -> None:
        if self._rest:
            self.write(b"\n")


class FakePlatform:
    """Where the jobs are, and what becomes of them.

    Attributes:
        url: Of the folder that has the buckets.
    """

    def __init__(self) -> None:
        self._scripts: collections.deque[_Script] = collections.deque()
        self._jobs: dict[str, _Job] = {}
        self._names: dict[str, _Job] = {}
        self._logs: dict[str, _Output] = {}
        folder = Path(tempfile.mkdtemp(prefix="farcall-fake-")).resolve()
        self.url = folder.as_uri()
        self._clean_up = functools.partial(shutil.rmtree, folder, ignore_errors=True)
        # A session that outlives the platform may store something all the same.
        atexit.register(self._clean_up)
        self._loop = asyncio.new_event_loop()
        self._places = asyncio.Semaphore(os.cpu_count() or 1)
        self._is_closed = False
        self._closing = threading.Lock()
        # No job gets a key: it has no role here, and its bucket needs none.
        credentials = RoleCredentials(lambda *_: None, AccessKey("", ""), enforced=True)
        self._runner = ProcessRunner(self.url, credentials)
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="farcall-fake", daemon=True
        )
        self._thread.start()

    def script(self, script: _Script) -> None:
        """Say what happens to a job to come."""
        self._scripts.append(script)

    async def open(self, settings: Settings) -> tuple[Access, Backend]:
        """Open a session's side of it."""
        return _Access(self, settings.region), FakeBackend(self)

    def close(self) -> None:
        """End the jobs, and let go of the bucket."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        with self._closing:
            self._is_closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._clean_up()

    def call(self, function: Callable[[], T]) -> concurrent.futures.Future[T]:
        """Run a function where the jobs are; on the spot once nothing runs there any more."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)

        with self._closing:
            if not self._is_closed:
                self._loop.call_soon_threadsafe(run)
                return future
        run()
        return future

    # --- what is asked on its event loop ------------------------------------------------------

    def jobs(self) -> list[JobDetail]:
        """Tell of all jobs, in the order of their submission; an array is one."""
        return [job.detail() for job in self._jobs.values()]

    def find(self, name: str, queue: str) -> list[str]:
        """Return the IDs of jobs of one name."""
        return [job.job_id for job in self.jobs_of(queue) if job.spec.name == name]

    def describe(self, job_id: str) -> BatchJob | None:
        """Tell of a job, or of a child."""
        found = self._look_up(job_id)
        return None if found is None else found.detail()

    def submit(self, spec: JobSpec) -> str:
        """Accept a job, or refuse it as was scripted.

        Raises:
            SubmissionError: The job is not accepted.
            ServiceError: SubmitJob is refused otherwise.
        """
        self._refuse_closed("SubmitJob")
        script = self._scripts[0] if self._scripts else _Script()
        if script.throttled:
            script.throttled -= 1
            raise _service_error("SubmitJob", "Too Many Requests", _THROTTLED, 429)
        if self._scripts:
            self._scripts.popleft()
        if script.refused is not None:
            said = script.refused
            if said.code != _NOT_ACCEPTED:
                raise _service_error("SubmitJob", said.message, said.code, 403)
            raise SubmissionError(
                f"job {spec.name} was not accepted: SubmitJob: {said.message} ({said.code})"
            )
        asked = _asked(spec)
        job = _Job(_new_id(), spec, script, asked.strategy, asked.resources, _now())
        job.tasks = [_Task(job, index) for index in range(spec.size)]
        self._jobs[job.job_id] = self._names[spec.name] = job
        for task in job.tasks:
            task.going = asyncio.ensure_future(self._run(task))
        return job.job_id

    def terminate(self, job_id: str, reason: str) -> None:
        """End a job, an array with all its children, or one child."""
        found = self._look_up(job_id)
        tasks = found.tasks if isinstance(found, _Job) else [found] if found else []
        for task in tasks:
            if task.status.is_final or task.stop_reason is not None:
                continue
            task.stop_reason = reason
            if task.running is not None:
                task.running.terminate()
                task.killing = self._loop.call_later(_STOP_GRACE_S, task.running.kill)
            elif task.going is not None:
                task.going.cancel()

    def job(self, job_id: str) -> _Job | None:
        """Return a plain job, or an array."""
        return self._jobs.get(job_id)

    def jobs_of(self, queue: str) -> list[_Job]:
        """Return the jobs of a queue, the newest first."""
        return [job for job in reversed(self._jobs.values()) if job.queue == queue]

    def log(self, stream: str) -> _Output | None:
        """Return what an attempt has written."""
        return self._logs.get(stream)

    def _look_up(self, job_id: str) -> _Job | _Task | None:
        parent, _, index = job_id.partition(":")
        job = self._jobs.get(parent)
        if job is None or not index:
            return job
        is_child = job.is_array and index.isdecimal() and int(index) < len(job.tasks)
        return job.tasks[int(index)] if is_child else None

    def _refuse_closed(self, operation: str) -> None:
        if self._is_closed:
            raise _service_error(operation, "the fake cloud was closed", _NOT_ACCEPTED, 400)

    def is_going(self, name: str, index: int) -> bool:
        """Tell whether a task has not ended, by its job's name; from any thread."""
        job = self._names.get(name)
        return job is not None and index < len(job.tasks) and not job.tasks[index].status.is_final

    # --- what becomes of a task ---------------------------------------------------------------

    async def _run(self, task: _Task) -> None:
        """Bring a task to its end."""
        try:
            await self._wait(task)
            endings = iter(task.job.script.endings if task.job.script.concerns(task.index) else ())
            while True:
                ending = await self._attempt(task, next(endings, None))
                self._note(task, ending)
                if not self._has_another(task, ending):
                    break
                task.status = JobStatus.RUNNABLE
        except asyncio.CancelledError:
            if task.stop_reason is None:
                raise
        task.stopped_at = _now()
        well = task.stop_reason is None and task.tried[-1].exit_code == 0
        task.status_reason = task.stop_reason or ""
        task.status = JobStatus.SUCCEEDED if well else JobStatus.FAILED

    async def _wait(self, task: _Task) -> None:
        task.status = JobStatus.RUNNABLE
        stuck = task.job.script.stuck
        if stuck is not None and task.job.script.concerns(task.index):
            task.status_reason = stuck.reason
            await (asyncio.sleep(stuck.for_s) if math.isfinite(stuck.for_s) else _for_ever())
            task.status_reason = ""

    async def _attempt(self, task: _Task, scripted: Ending | None) -> Ending:
        number = len(task.tried) + 1
        async with self._places:
            task.status = JobStatus.STARTING
            task.started_at, task.log_stream = None, ""
            if scripted is None or scripted.was_started:
                task.was_started = True
                task.started_at = _now()
                task.log_stream = f"fake/{task.job_id}/{number}"
                self._logs[task.log_stream] = _Output()
            if scripted is not None:
                return scripted
            try:
                return await self._run_process(task, number)
            except StartError as error:
                return Ending(error.status_reason, error.reason or "")
            except Exception as error:  # a fault of ours must not leave a job running for ever
                _log.exception("the fake cloud failed to run job %s", task.job_id)
                return Ending(f"the fake cloud failed: {error!r}")

    async def _run_process(self, task: _Task, number: int) -> Ending:
        output = self._logs[task.log_stream]
        environment = {
            **task.job.spec.environment,
            contract.ENV_JOB_ID: task.job_id,
            contract.ENV_ATTEMPT: str(number),
        }
        if task.job.is_array:
            environment[contract.ENV_ARRAY_INDEX] = str(task.index)
        spec = AttemptSpec(
            job_id=task.job_id,
            task_id=secrets.token_hex(16),
            container={},
            fargate=False,
            command=(),
            environment=environment,
            resources=task.job.resources,
            output=output.write,
        )
        task.running = await self._runner.start(spec)
        task.status = JobStatus.RUNNING
        try:
            found = await task.running.wait()
        finally:
            task.running = None
            if task.killing is not None:
                task.killing.cancel()
            output.end()
        return Ending(EXITED, found.reason or "", found.code)

    def _note(self, task: _Task, ending: Ending) -> None:
        if ending.is_by_somebody and task.stop_reason is None:
            task.stop_reason = ending.status_reason
        task.tried.append(
            Attempt(
                task.stop_reason or ending.status_reason,
                ending.container_reason,
                ending.exit_code,
                task.log_stream,
                task.started_at,
                _now(),
            )
        )

    def _has_another(self, task: _Task, ending: Ending) -> bool:
        code = ending.exit_code
        if code == 0 or task.stop_reason is not None or not ending.may_be_retried:
            return False
        return task.job.strategy.wants_another(
            len(task.tried),
            status_reason=ending.status_reason,
            reason=ending.container_reason,
            exit_code="" if code is None else str(code),
        )

    async def _end(self) -> None:
        """Kill what runs, and end what waits."""
        tasks = [task for job in self._jobs.values() for task in job.tasks]
        going = []
        for task in tasks:
            if task.going is None or task.going.done():
                continue
            going.append(task.going)
            task.stop_reason = task.stop_reason or f"{OWN_REASON}the fake cloud was closed"
            if task.running is not None:
                task.running.kill()
            else:
                task.going.cancel()
        await asyncio.gather(*going, return_exceptions=True)
        await self._runner.close()


@dataclass(frozen=True)
class _Asked:
    """What a job asks for, as Batch reads it."""

    strategy: RetryStrategy
    resources: Resources


def _request(spec: JobSpec) -> dict[str, Any]:
    return job_request(
        spec.settings,
        name=spec.name,
        definition_arn="farcall-fake:1",
        environment=spec.environment,
        size=spec.size,
    )


def _asked(spec: JobSpec) -> _Asked:
    request = _request(spec)
    wanted = {
        each["type"]: each["value"]
        for each in request["containerOverrides"]["resourceRequirements"]
    }
    resources = Resources(float(wanted["VCPU"]), int(wanted["MEMORY"]), int(wanted.get("GPU", 0)))
    return _Asked(retries.parse(request["retryStrategy"]), resources)


def _service_error(operation: str, message: str, code: str, status: int) -> ServiceError:
    text = f"{operation}: {message} ({code})"
    return ServiceError(text, operation=operation, code=code, status=status, sent=False)


def _new_id() -> str:
    """Return a job's ID, which looks like Batch's."""
    return str(uuid.uuid4())


def _now() -> datetime:
    return datetime.now(timezone.utc)


async def _for_ever() -> None:
    await asyncio.get_running_loop().create_future()


class FakeCloud:
    """What a test says to a fake cloud, and asks of it; `farcall.testing.fake_cloud` makes one.

    What is scripted comes true for the jobs that are submitted next, one `next_job` for each job.
    All others run their functions, as do the attempts behind those that are scripted. Tasks that
    are submitted within ``linger_s``, and those of a map, are one job: an array.
    """

    def __init__(self, platform: FakePlatform) -> None:
        self._platform = platform

    @property
    def jobs(self) -> list[JobDetail]:
        """The jobs that were submitted, as they are by now, in their order; an array is one."""
        return self._platform.call(self._platform.jobs).result()

    def next_job(self, *happenings: Happening, task: int | None = None) -> None:
        """Say what happens to the next job that is submitted and of which nothing was said yet.

        Args:
            *happenings: What happens. Each `Ending` is that of an attempt, the first one first;
                whether another one follows is up to ``retry_attempts`` and ``retry_on``.
            task: Number of the task to which it happens, where the job has several; by default it
                happens to each of them.

        Raises:
            TypeError: Something else was given.
        """
        self._platform.script(_Script.of(happenings, task))


# --- what a session asks ----------------------------------------------------------------------


class FakeBackend:
    """One session's side of it; see `farcall.backends.base.Backend` for the methods.

    Args:
        platform: Where the jobs are.
    """

    name = "fake"
    capabilities = Capabilities(
        largest_array=LARGEST_ARRAY,
        described_together=_DESCRIBED,
        longest_log_line_bytes=_LOG_LINE_BYTES,
    )

    def __init__(self, platform: FakePlatform) -> None:
        self._platform = platform
        self.meter = Meter()

    async def _ask(self, function: Callable[[], T]) -> T:
        self.meter.note_sent()
        return await asyncio.wrap_future(self._platform.call(function))

    # --- before a job is paid for -------------------------------------------------------------

    async def check(self, settings: Settings) -> None:
        """Do nothing: whatever the options name is there."""

    async def reach(self) -> list[Finding]:
        """Tell that there is a cloud."""
        return [Finding("backend", OK, "a fake one, in this process")]

    def examine(
        self, settings: Settings, *, answers: bool
    ) -> Mapping[str, Awaitable[Iterable[Finding]]]:
        """Check nothing: whatever the options name is there."""
        return {}

    async def plan(self, job: JobSpec, *, offline: bool = False) -> dict[str, Any]:
        """Return the SubmitJob request that Batch would get."""
        return {"SubmitJob": _request(job)}

    # --- jobs ---------------------------------------------------------------------------------

    async def prepare(self, job: JobSpec) -> None:
        """See that the request is within Batch's limits."""
        _request(job)

    async def submit(self, job: JobSpec, ticket: Ticket) -> str:
        """Hand a job over, and return its ID."""
        ticket.note_sent()
        try:
            return await self._ask(functools.partial(self._platform.submit, job))
        except SubmissionError:
            ticket.note_refused()
            raise
        except ServiceError as error:
            if error.code == _THROTTLED:
                self.meter.note_throttled()
            raise

    async def find(self, name: str, queue: str) -> list[str]:
        """Return the IDs of a queue's jobs of one name."""
        return await self._ask(lambda: self._platform.find(name, queue))

    async def describe(self, job_ids: Iterable[str]) -> dict[str, JobDetail]:
        """Return what is known of jobs."""
        wanted = list(job_ids)
        found = await self._ask(lambda: {each: self._platform.describe(each) for each in wanted})
        return {job_id: detail for job_id, detail in found.items() if detail is not None}

    async def terminate(self, job_ids: Sequence[str], reason: str) -> dict[str, ServiceError]:
        """End jobs; none is refused."""
        wanted = list(job_ids)

        def end() -> None:
            for job_id in wanted:
                self._platform.terminate(job_id, f"{OWN_REASON}{reason}")

        await self._ask(end)
        return {}

    def note_ended(self, job_ids: Iterable[str], reason: str) -> None:
        """Do nothing: the cloud keeps the reasons."""

    def unknown(self, job_id: str) -> str:
        """Say that the cloud does not know a job."""
        return f"the fake cloud does not know job {job_id}; did another one run it?"

    # --- lists --------------------------------------------------------------------------------

    async def list_jobs(
        self, queue: str, since: datetime | None = None
    ) -> AsyncGenerator[list[JobDetail], None]:
        """Yield the jobs of a queue, in pages of up to 100."""

        def look() -> list[JobDetail]:
            return [_listed(job.detail()) for job in self._platform.jobs_of(queue)]

        found = await self._ask(look)
        if since is not None:
            found = [job for job in found if job.created_at and job.created_at >= since]
        for start in range(0, len(found), _JOBS_IN_PAGE):
            yield found[start : start + _JOBS_IN_PAGE]

    async def list_children(
        self, job_id: str, status: JobStatus
    ) -> AsyncIterator[list[JobDetail]]:
        """Yield the children of an array that have a status, in pages of up to 1000."""

        def look() -> list[JobDetail]:
            job = self._platform.job(job_id)
            children = job.tasks if job is not None and job.is_array else []
            return [_listed(each.detail()) for each in children if each.status is status]

        found = await self._ask(look)
        for start in range(0, len(found), _CHILDREN_IN_PAGE):
            yield found[start : start + _CHILDREN_IN_PAGE]

    async def position(self, detail: JobDetail) -> int | None:
        """Return the place of a RUNNABLE job in its queue."""
        if detail.status is not JobStatus.RUNNABLE:
            return None

        def look() -> list[str]:
            waiting = reversed(self._platform.jobs_of(detail.queue))
            return [j.job_id for j in waiting if j.detail().status is JobStatus.RUNNABLE]

        front = await self._ask(look)
        return front.index(detail.job_id) + 1 if detail.job_id in front else None

    # --- beside -------------------------------------------------------------------------------

    def links(self, detail: JobDetail) -> dict[str, str]:
        """Return nothing: it has no pages."""
        return {}

    def log(self, detail: JobDetail, stream: str) -> Log:
        """Return what an attempt's container has written."""
        return _FakeLog(functools.partial(self._ask, lambda: self._platform.log(stream)))

    async def close(self) -> None:
        """Do nothing: jobs go on."""


class _FakeLog:
    """The log of one attempt; see `farcall.backends.base.Log`."""

    def __init__(self, look: Callable[[], Awaitable[list[LogLine] | None]]) -> None:
        self._look = look
        self._read = 0
        self.exists: bool | None = None

    async def read(self) -> AsyncIterator[list[LogLine]]:
        lines = await self._lines()
        if new := lines[self._read :]:
            self._read = len(lines)
            yield new

    async def last(self, number: int) -> list[LogLine]:
        return (await self._lines())[-number:] if number else []

    async def _lines(self) -> list[LogLine]:
        found = await self._look()
        self.exists = found is not None
        return list(found or ())


class _Access:
    """One session's buckets; see `farcall.aws.access.Access`."""

    has_console = False
    overruled = ""

    def __init__(self, platform: FakePlatform, region: str) -> None:
        self._platform = platform
        self.region = region
        self.s3_endpoint = platform.url
        self.timing = in_force()

    def store(self, bucket: str, *, sending: bool = False) -> S3Store:
        return cast("S3Store", LocalStore.from_url(f"{self.s3_endpoint}/{bucket}", mkdir=True))

    def operations(self, bucket: str) -> Operations:
        return _Operations(cast("LocalStore", self.store(bucket)), self._platform)

    def bucket_region(self, bucket: str) -> str:
        return self.region

    async def locate(self, bucket: str) -> bool:
        return False

    async def account(self) -> str:
        return "000000000000"

    async def close(self) -> None: ...


class StoreOperations:
    """Asks one of obstore's own stores as S3 is asked; see `farcall.aws.s3.Operations`.

    Args:
        store: The store.
    """

    def __init__(self, store: LocalStore | MemoryStore) -> None:
        self._store = store
        self._uploads: dict[str, dict[int, bytes]] = {}

    async def page(
        self, prefix: str, *, after: str = "", delimiter: str = "", token: str = ""
    ) -> Page:
        """Return a page of up to 1000 keys, or all folders."""
        if delimiter:
            level = await self._store.list_with_delimiter_async(prefix)
            return Page([], sorted(f"{each}/" for each in level["common_prefixes"]), "")
        found = await self._below(prefix)
        found = sorted(each for each in found if each.key > (token or after))
        page = found[:_KEYS_IN_PAGE]
        return Page(page, [], page[-1].key if len(found) > len(page) else "")

    async def _below(self, prefix: str) -> list[Listed]:
        # Not by `list`, which waits for a store in memory with the interpreter's lock in its
        # hand: one of obstore's threads may have the store's and wait for the interpreter's.
        level = await self._store.list_with_delimiter_async(prefix)
        found = [
            Listed(each["path"], each["size"], _as_s3_tells(each["last_modified"]))
            for each in level["objects"]
        ]
        for folder in level["common_prefixes"]:
            found += await self._below(folder)
        return found

    async def begin_upload(self, key: str) -> str:
        """Begin an upload."""
        upload = secrets.token_hex(8)
        self._uploads[upload] = {}
        return upload

    async def upload_part(
        self, key: str, upload: str, number: int, data: bytes, digest: str
    ) -> str:
        """Keep a part."""
        if hashlib.sha256(data).hexdigest() != digest:
            raise GenericError("status 400: <Code>XAmzContentSHA256Mismatch</Code>")
        self._parts(upload)[number] = bytes(data)
        return f"{upload}-{number}"

    async def complete_upload(self, key: str, upload: str, parts: Sequence[str]) -> None:
        """Make an object of all parts."""
        sent = self._parts(upload)
        if list(parts) != [f"{upload}-{number}" for number in sorted(sent)]:
            raise GenericError("status 400: <Code>InvalidPart</Code>")
        await obstore.put_async(self._store, key, [sent[number] for number in sorted(sent)])
        del self._uploads[upload]

    async def abort_upload(self, key: str, upload: str) -> None:
        """Forget the parts."""
        self._parts(upload)
        del self._uploads[upload]

    def _parts(self, upload: str) -> dict[int, bytes]:
        if upload not in self._uploads:
            raise GenericError(f"status 404: <Code>{NO_UPLOAD}</Code>")
        return self._uploads[upload]


class _Operations(StoreOperations):
    """Lists no outcome before its task has ended: who has a value finds its job at its end."""

    def __init__(self, store: LocalStore, platform: FakePlatform) -> None:
        super().__init__(store)
        self._platform = platform

    async def page(
        self, prefix: str, *, after: str = "", delimiter: str = "", token: str = ""
    ) -> Page:
        page = await super().page(prefix, after=after, delimiter=delimiter, token=token)
        there = [each for each in page.objects if not self._is_early(each.key)]
        return page._replace(objects=there)

    def _is_early(self, key: str) -> bool:
        _, is_outcome, place = key.rpartition("/outcomes/")
        bundle, _, index = place.partition("/")
        return bool(
            is_outcome and index.isdecimal() and self._platform.is_going(bundle, int(index))
        )


def _as_s3_tells(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
