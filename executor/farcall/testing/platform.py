"""Registry of the fake backend's jobs, and the event loop that runs them.

Of a job on several nodes the task itself is the main node; the others begin and end with it.
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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

from farcall.backends.base import JobSpec, LogLine
from farcall.backends.batch.describe import BatchJob
from farcall.backends.batch.documents import definition, job_request
from farcall.backends.batch.endings import EXITED
from farcall.model.commands import ENV_RUN
from farcall.model.endings import OWN_REASON
from farcall.model.errors import ServiceError, SubmissionError
from farcall.model.jobs import Attempt, JobDetail, JobStatus, NodeGroup
from farcall.model.start_script import unwrap
from farcall.testing.script import (
    Ending,
    Happening,
    Script,
)
from farcall_local import names
from farcall_local.batch import retries
from farcall_local.batch.resources import Resources
from farcall_local.batch.retries import RetryStrategy
from farcall_local.runners.credentials import RoleCredentials
from farcall_local.runners.process import ProcessRunner
from farcall_local.runners.runner import AttemptSpec, Running, StartError
from farcall_local.services.signatures import AccessKey
from farcall_runtime import contract

_STOP_GRACE_S = 30.0
"""From SIGTERM to SIGKILL, as on Batch."""

_NOT_ACCEPTED = "ClientException"
_THROTTLED = "TooManyRequestsException"

_MAIN_NODE_ENDED = "the main node ended"
_IN_WORKSPACE = 'tar -xzpf "$0" && exec "$@"'
"""Instead of the start script: the archive lies in a folder, and nobody needs a key."""

_NO_IMAGE = (
    "CannotStartContainerError: the fake cloud has no images, so each command has to be given"
)

_log = logging.getLogger("farcall")

T = TypeVar("T")


@dataclass(eq=False)
class _Job:
    """A job that was accepted; of an array the parent."""

    job_id: str
    spec: JobSpec
    script: Script
    strategy: RetryStrategy
    resources: tuple[Resources, ...]
    created_at: datetime
    tasks: list[_Task] = field(default_factory=list)
    stop_reason: str = ""
    """Why an array was ended as a whole, by whoever did."""

    @property
    def queue(self) -> str:
        return self.spec.settings.queue

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
            reason = (self.stop_reason or "Array Child Job failed") if failed else ""
        stopped = [task.stopped_at for task in ended if task.stopped_at is not None]
        return replace(
            self.blank(self.job_id),
            status=status,
            status_reason=reason,
            is_terminated=bool(self.stop_reason),
            stopped_at=max(stopped) if status.is_final and stopped else None,
            array_size=len(self.tasks),
            status_summary={each.value: counts[each.value] for each in JobStatus},
        )

    def place(self, node: int) -> int:
        """Return which group of nodes one of them is in."""
        ends = accumulate(group.count for group in self.spec.groups)
        return sum(node >= end for end in ends)

    def command(self, node: int) -> tuple[str, ...]:
        """Return what a node runs; empty for the task runner."""
        groups = self.spec.groups
        return tuple(groups[self.place(node)].command) if groups else ()

    def environment(self, node: int) -> dict[str, str]:
        """Return the variables that a node is given."""
        groups = self.spec.groups
        given = groups[self.place(node)].env if groups else {}
        return {**given, **self.spec.environment}

    def blank(self, job_id: str, node: int = 0) -> BatchJob:
        """Tell what was submitted."""
        spec, settings = self.spec, self.spec.settings
        resources = self.resources[self.place(node)]
        environment = self.environment(node)
        return BatchJob(
            job_id=job_id,
            name=spec.name,
            status=JobStatus.SUBMITTED,
            attempts_allowed=self.strategy.attempts,
            created_at=self.created_at,
            log_group=settings.batch_job_log_group_name,
            environment=environment,
            queue=self.queue,
            definition="farcall-fake:1",
            image=spec.groups[self.place(node)].image if spec.groups else settings.image,
            command=self.command(node),
            vcpu=resources.vcpus,
            memory_mib=resources.memory_mib,
            gpus=resources.gpus,
            time_limit_s=settings.time_limit,
            instance_type=settings.instance_type,
            tags=dict(settings.tags),
            is_command=ENV_RUN in environment,
        )

    def groups(self) -> tuple[NodeGroup, ...]:
        """Tell of the nodes; empty for a plain job."""
        if not self.spec.is_multi_node:
            return ()
        counts = [group.count for group in self.spec.groups] or [self.spec.nodes]
        found = []
        for end, count in zip(accumulate(counts), counts, strict=True):
            said = self.blank(self.job_id, end - 1)
            found.append(
                NodeGroup(
                    first=end - count,
                    last=end - 1,
                    image=said.image,
                    command=said.command,
                    vcpu=said.vcpu,
                    memory_mib=said.memory_mib,
                    gpus=said.gpus,
                    environment=said.environment,
                )
            )
        return tuple(found)


@dataclass(eq=False)
class _Task:
    """A plain job, a child of an array, or a node: what becomes of it."""

    job: _Job
    index: int
    node: int = 0
    others: list[_Task] = field(default_factory=list)
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
        return replace(self._detail(self.job_id), groups=self.job.groups())

    def node_detail(self) -> BatchJob:
        """Tell of it as one of several nodes."""
        return self._detail(f"{self.job_id}#{self.node}")

    def _detail(self, job_id: str) -> BatchJob:
        last = self.tried[-1] if self.tried else Attempt()
        return replace(
            self.job.blank(job_id, self.node),
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
        self._folder = folder = Path(tempfile.mkdtemp(prefix="farcall-fake-")).resolve()
        self.url = folder.as_uri()
        self._clean_up = functools.partial(shutil.rmtree, folder, ignore_errors=True)
        # A session that outlives the platform may store something anyway.
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
        """Tell of a job, of a child, or of a node."""
        whole, mark, node = job_id.partition("#")
        found = self._look_up(whole)
        if found is None or not mark:
            return None if found is None else found.detail()
        tasks = found.tasks if isinstance(found, _Job) else [found]
        nodes = [each for task in tasks for each in (task, *task.others)]
        known = found.detail().groups and node.isdecimal() and int(node) < len(nodes)
        return nodes[int(node)].node_detail() if known else None

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
        for task in job.tasks:
            task.others = [_Task(job, task.index, node) for node in range(1, spec.nodes)]
        self._jobs[job.job_id] = self._names[spec.name] = job
        for task in job.tasks:
            task.going = asyncio.ensure_future(self._run(task))
        return job.job_id

    def terminate(self, job_id: str, reason: str) -> None:
        """End a job, an array with all its children, or one child."""
        found = self._look_up(job_id)
        tasks = found.tasks if isinstance(found, _Job) else [found] if found else []
        if isinstance(found, _Job) and not all(task.status.is_final for task in tasks):
            found.stop_reason = found.stop_reason or reason
        for task in tasks:
            if task.status.is_final or task.stop_reason is not None:
                continue
            for each in (task, *task.others):
                each.stop_reason = reason
                self._stop(each)

    def _stop(self, task: _Task) -> None:
        """End a task's process, or what is about to start it."""
        if task.running is not None:
            task.running.terminate()
            task.killing = self._loop.call_later(_STOP_GRACE_S, task.running.kill)
        elif task.going is not None:
            task.going.cancel()

    def job(self, job_id: str) -> _Job | None:
        """Return a plain job, or an array."""
        return self._jobs.get(job_id)

    def queues(self) -> list[str]:
        """Return the queues of all jobs."""
        return sorted({job.queue for job in self._jobs.values()})

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
        """Return whether a task has not ended, by its job's name; from any thread."""
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
        for each in (task, *task.others):
            self._close(each)

    def _close(self, task: _Task) -> None:
        """Note that no attempt follows."""
        task.stopped_at = _now()
        well = task.stop_reason is None and task.tried and task.tried[-1].exit_code == 0
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
            if scripted is not None:
                self._begin(task, number, was_started=scripted.was_started)
                return scripted
            for other in task.others:
                other.going = asyncio.ensure_future(self._run_other(other, number))
            try:
                return await self._run_once(task, number)
            finally:
                for other in task.others:
                    self._stop(other)
                going = [other.going for other in task.others if other.going is not None]
                await asyncio.gather(*going, return_exceptions=True)

    async def _run_other(self, task: _Task, number: int) -> None:
        """Run another node than the main one, which may stop it at any time."""
        ending = Ending(_MAIN_NODE_ENDED)
        try:
            ending = await self._run_once(task, number)
        finally:
            self._note(task, ending)
            self._close(task)

    def _begin(self, task: _Task, number: int, *, was_started: bool) -> None:
        task.status = JobStatus.STARTING
        task.started_at, task.log_stream = None, ""
        if was_started:
            task.was_started = True
            task.started_at = _now()
            task.log_stream = f"fake/{task.node_detail().job_id}/{number}"
            self._logs[task.log_stream] = _Output()

    async def _run_once(self, task: _Task, number: int) -> Ending:
        self._begin(task, number, was_started=True)
        try:
            return await self._run_process(task, number)
        except StartError as error:
            return Ending(error.status_reason, error.reason or "")
        except Exception as error:  # a fault of ours must not leave a job running forever
            _log.exception("the fake cloud failed to run job %s", task.job_id)
            return Ending(f"the fake cloud failed: {error!r}")

    async def _run_process(self, task: _Task, number: int) -> Ending:
        output, job = self._logs[task.log_stream], task.job
        fetched, command = unwrap(job.command(task.node))
        if fetched is not None:
            archive = self._folder / fetched.bucket / fetched.key
            command = ["sh", "-c", _IN_WORKSPACE, str(archive), *command]
        if job.spec.groups and not command:
            raise StartError(_NO_IMAGE)
        environment = {
            **job.environment(task.node),
            contract.ENV_JOB_ID: task.job_id,
            contract.ENV_ATTEMPT: str(number),
        }
        if job.is_array:
            environment[contract.ENV_ARRAY_INDEX] = str(task.index)
        if job.spec.is_multi_node:
            environment |= _node_variables(task.node, job.spec.nodes)
        spec = AttemptSpec(
            job_id=task.job_id,
            task_id=secrets.token_hex(16),
            attempt=str(number),
            command=tuple(command),
            environment=environment,
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
        jobs = self._jobs.values()
        tasks = [each for job in jobs for task in job.tasks for each in (task, *task.others)]
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
    """What a job asks for, as Batch reads it; resources of each group of nodes."""

    strategy: RetryStrategy
    resources: tuple[Resources, ...]


def request_of(spec: JobSpec) -> dict[str, Any]:
    """Write the SubmitJob request of a job, which is checked by that, as its definition is."""
    image = spec.settings.image
    definition(spec, image=image, region="", job_role="", execution_role="")
    return job_request(spec, "farcall-fake:1")


def _asked(spec: JobSpec) -> _Asked:
    request = request_of(spec)
    if spec.is_multi_node:
        ranges = request["nodeOverrides"]["nodePropertyOverrides"]
        overrides = [each["containerOverrides"] for each in ranges]
    else:
        overrides = [request["containerOverrides"]]
    resources = tuple(_resources(each["resourceRequirements"]) for each in overrides)
    return _Asked(retries.parse(request["retryStrategy"]), resources)


def _resources(asked: Iterable[Mapping[str, str]]) -> Resources:
    wanted = {each["type"]: each["value"] for each in asked}
    return Resources(float(wanted["VCPU"]), int(wanted["MEMORY"]), int(wanted.get("GPU", 0)))


def _node_variables(node: int, count: int) -> dict[str, str]:
    """Return what Batch tells each node."""
    told = {
        "AWS_BATCH_JOB_NODE_INDEX": str(node),
        "AWS_BATCH_JOB_NUM_NODES": str(count),
        "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0",
    }
    if node:
        told["AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"] = names.NODE_ADDRESS
    return told


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
