"""Registry of the fake backend's jobs, and the event loop that runs them.

Jobs outlive the session and the event loop that submitted them. So all that is known of them
belongs to an event loop in a thread of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import collections
import concurrent.futures
import functools
import logging
import math
import os
import secrets
import shutil
import tempfile
import threading
import uuid
from collections.abc import (
    Callable,
)
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

from farcall.backends.base import JobSpec, LogLine
from farcall.backends.batch.describe import BatchJob
from farcall.backends.batch.documents import job_request
from farcall.backends.batch.endings import EXITED
from farcall.backends.fake.script import (
    Ending,
    Happening,
    Script,
)
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
from farcall_runtime import contract

_STOP_GRACE_S = 30.0
"""From SIGTERM to SIGKILL, as on Batch."""

_NOT_ACCEPTED = "ClientException"
_THROTTLED = "TooManyRequestsException"

_log = logging.getLogger("farcall")

T = TypeVar("T")


@dataclass(eq=False)
class _Job:
    """A job that was accepted; of an array the parent."""

    job_id: str
    spec: JobSpec
    script: Script
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


def listed(detail: BatchJob) -> JobDetail:
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
        self._scripts: collections.deque[Script] = collections.deque()
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

    def script(self, script: Script) -> None:
        """Say what happens to a job to come."""
        self._scripts.append(script)

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
        script = self._scripts[0] if self._scripts else Script()
        if script.throttled:
            script.throttled -= 1
            raise service_error("SubmitJob", "Too Many Requests", _THROTTLED, 429)
        if self._scripts:
            self._scripts.popleft()
        if script.refused is not None:
            said = script.refused
            if said.code != _NOT_ACCEPTED:
                raise service_error("SubmitJob", said.message, said.code, 403)
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
            raise service_error(operation, "the fake cloud was closed", _NOT_ACCEPTED, 400)

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


def request_of(spec: JobSpec) -> dict[str, Any]:
    """Write the SubmitJob request of a job, which is checked by that."""
    return job_request(
        spec.settings,
        name=spec.name,
        definition_arn="farcall-fake:1",
        environment=spec.environment,
        size=spec.size,
    )


def _asked(spec: JobSpec) -> _Asked:
    request = request_of(spec)
    wanted = {
        each["type"]: each["value"]
        for each in request["containerOverrides"]["resourceRequirements"]
    }
    resources = Resources(float(wanted["VCPU"]), int(wanted["MEMORY"]), int(wanted.get("GPU", 0)))
    return _Asked(retries.parse(request["retryStrategy"]), resources)


def service_error(operation: str, message: str, code: str, status: int) -> ServiceError:
    """Return a refusal as AWS's are told."""
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
        self._platform.script(Script.of(happenings, task))
