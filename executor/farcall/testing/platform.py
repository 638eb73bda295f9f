"""AWS Batch of the fake cloud: the local emulator's engine, without a server.

Jobs outlive the session and the event loop that submitted them, so they belong to an event loop
in a separate thread.
"""

from __future__ import annotations

import asyncio
import atexit
import collections
import concurrent.futures
import functools
import json
import math
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from farcall.backends.batch.describe import from_describe
from farcall.model.commands import ENV_RUN
from farcall.model.failure_reasons import OWN_REASON
from farcall.model.jobs import JobDetail
from farcall.model.start_script import unwrap
from farcall.testing.script import Happening, Script, ScriptedFailure
from farcall_local import names
from farcall_local.batch.api import BatchApi
from farcall_local.batch.describe import detail
from farcall_local.batch.engine import Engine
from farcall_local.batch.errors import ApiError, ThrottledError
from farcall_local.batch.jobs import Job, Node, Submission
from farcall_local.batch.limits import Limits
from farcall_local.batch.queues import Queues, Resource
from farcall_local.runners import execution
from farcall_local.runners.credentials import RoleCredentials
from farcall_local.runners.execution import Durations, Execution, World
from farcall_local.runners.logs import LogStream
from farcall_local.runners.process import IdleForkServer, ProcessRunner
from farcall_local.runners.runner import AttemptSpec, Running, StartError
from farcall_local.services.signatures import AccessKey

_IN_WORKSPACE = 'tar -xzpf "$0" && exec "$@"'
"""Replacement of the start script, because a workspace's archive is a local file."""

_NO_IMAGE = "CannotStartContainerError: the fake cloud has no images, so each job needs a command"

T = TypeVar("T")


class RefusedError(ApiError):
    """Rejected request."""

    def __init__(self, message: str, code: str, status: int) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


class _Queues(Queues):
    """Queues that exist as soon as a request names them."""

    def queue(self, reference: str) -> Resource:
        name = reference.rpartition("/")[2]
        if name not in self.queues.by_name:
            view = {"jobQueueName": name, "state": "ENABLED", "computeEnvironmentOrder": []}
            arn = names.batch_arn(f"job-queue/{name}")
            self.queues.by_name[name] = Resource(name, arn, view)
        return self.queues.by_name[name]


class _Logs:
    """CloudWatch Logs, where every log group exists."""

    def __init__(self) -> None:
        self._streams: dict[str, list[dict[str, Any]]] = {}

    def open(
        self,
        configuration: dict[str, Any] | None,
        definition: str,
        task_id: str,
        role_arn: str | None,
    ) -> LogStream:
        name = f"fake/default/{task_id}"
        lines = self._streams[name] = []
        return LogStream(name, lines.extend)

    def get_events(self, document: dict[str, Any]) -> dict[str, Any]:
        """Handle GetLogEvents."""
        lines, token = self._lines(document["logStreamName"]), document.get("nextToken")
        if document["startFromHead"]:
            first, last = int(token or 0), len(lines)
        else:
            last = len(lines) if token is None else int(token)
            first = max(0, last - document["limit"])
        since = document.get("startTime", 0)
        return {
            "events": [line for line in lines[first:last] if line["timestamp"] >= since],
            "nextForwardToken": str(last),
            "nextBackwardToken": str(first),
        }

    def _lines(self, stream: str) -> list[dict[str, Any]]:
        if stream not in self._streams:
            message = "The specified log stream does not exist."
            raise RefusedError(message, "ResourceNotFoundException", 400)
        return self._streams[stream]


_IDLE = IdleForkServer()


class _Runner(ProcessRunner):
    """Runner of commands without images, with workspaces from the bucket's folder."""

    def __init__(self, folder: Path) -> None:
        # No job gets a key: it has no role here, and its bucket needs none.
        credentials = RoleCredentials(lambda *_: None, AccessKey("", ""), enforced=True)
        super().__init__(folder.as_uri(), credentials, idle=_IDLE)
        self._folder = folder

    async def prepare(self, spec: AttemptSpec) -> None:
        """Do nothing: there are no images."""

    async def start(self, spec: AttemptSpec) -> Running:
        fetched, command = unwrap(spec.command)
        if fetched is not None:
            archive = self._folder / fetched.bucket / fetched.key
            command = ["sh", "-c", _IN_WORKSPACE, str(archive), *command]
        if not command and ENV_RUN in spec.environment:
            raise StartError(_NO_IMAGE)
        spec = replace(spec, command=tuple(command), image="", role_arn=None, mounts={})
        return await super().start(spec)


class _Execution(Execution):
    """Attempt that ends as scripted, without a process."""

    def __init__(
        self,
        scripted: ScriptedFailure,
        terminate: Callable[[Job, str], None],
        job: Job,
        world: World,
        on_running: Callable[[], None] | None,
    ) -> None:
        super().__init__(job, world, on_running)
        self._scripted = scripted
        self._terminate = terminate

    async def _start_and_wait(self) -> None:
        scripted = self._scripted
        if not scripted.was_started:
            raise StartError(scripted.container_reason, scripted.status_reason)
        stream = self._open_resources()
        self.ending = execution.AttemptEnd(
            scripted.status_reason, final=not scripted.may_be_retried, can_succeed=True
        )
        self._enter_running(stream)
        if scripted.is_by_somebody:
            self._terminate(_whole(self._job), scripted.status_reason)
        self.attempt.exit_code = scripted.exit_code
        self.attempt.reason = scripted.container_reason or None


class _Engine(Engine):
    """Engine whose jobs follow scripts.

    Attributes:
        scripts: Scripts by job ID.
    """

    def __init__(self, world: World, cpus: int) -> None:
        super().__init__(world, cpus)
        self.scripts: dict[str, Script] = {}

    def submit(self, submission: Submission) -> Job:
        # Each job uses one processor, so that a wide job does not wait for other jobs.
        return super().submit(replace(submission, vcpus=1))

    def _script(self, job: Job) -> Script:
        script = self.scripts[job.submission.job_id]
        return script if script.concerns(job.index) else Script()

    def enqueue(self, job: Job, *, again: bool) -> None:
        stuck = self._script(job).stuck
        if again or stuck is None:
            super().enqueue(job, again=again)
            return
        job.status_reason = stuck.reason
        if math.isfinite(stuck.for_s):
            asyncio.get_running_loop().call_later(stuck.for_s, self._place, job)

    def _place(self, job: Job) -> None:
        if not job.status.is_final:
            job.status_reason = None
        super().enqueue(job, again=False)

    def execute(self, job: Job, on_running: Callable[[], None] | None = None) -> Execution:
        whole, is_main = _whole(job), not isinstance(job, Node) or job.is_main
        endings = self._script(whole).endings[len(whole.attempts) :]
        if endings and is_main:
            return _Execution(endings[0], self.terminate, job, self.world, on_running)
        return super().execute(job, on_running)


def _whole(job: Job) -> Job:
    """Return the job that a node belongs to, or the job itself."""
    return job.whole if isinstance(job, Node) else job


class FakePlatform:
    """Jobs, logs and buckets, for all sessions of one fake cloud.

    Attributes:
        url: URL of the folder that contains the buckets.
    """

    def __init__(self) -> None:
        self._scripts: collections.deque[Script] = collections.deque()
        self._names: dict[str, Job] = {}
        folder = Path(tempfile.mkdtemp(prefix="farcall-fake-")).resolve()
        self.url = folder.as_uri()
        self._clean_up = functools.partial(shutil.rmtree, folder, ignore_errors=True)
        # A session that outlives the platform may still store objects.
        atexit.register(self._clean_up)
        self._loop = asyncio.new_event_loop()
        self._is_closed = False
        self._closing = threading.Lock()
        self._durations = Durations()
        self._logs = _Logs()
        self._runner = _Runner(folder)
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="farcall-fake", daemon=True
        )
        self._thread.start()
        self._engine = self.call(self._make_engine).result()
        self._queues = _Queues()
        limits = Limits(submit_rate=None, api_rate=None)
        self._api = BatchApi(self._engine, self._queues, limits)

    def _make_engine(self) -> _Engine:
        world = World(
            runner=self._runner,
            open_log=self._logs.open,
            assumable=lambda _: True,
            environment_name=lambda _: "fake",
            durations=self._durations,
        )
        return _Engine(world, os.cpu_count() or 1)

    def script(self, script: Script) -> None:
        """Script a job that is not submitted yet."""
        self._scripts.append(script)

    def close(self) -> None:
        """Terminate the jobs, and delete the buckets."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        with self._closing:
            self._is_closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._clean_up()

    async def _end(self) -> None:
        self._durations.stop_grace_s = 0
        for job in self._engine.jobs.submitted:
            self._engine.terminate(job, f"{OWN_REASON}the fake cloud was closed")
        await self._engine.finish()
        await self._runner.close()

    def call(self, function: Callable[[], T]) -> concurrent.futures.Future[T]:
        """Run a function on the jobs' event loop, or directly after the loop has ended."""
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

    def jobs(self) -> list[JobDetail]:
        """Return all jobs in the order of their submission; an array is one job."""
        return [from_describe(detail(job)) for job in self._engine.jobs.submitted]

    def is_going(self, name: str, index: int) -> bool:
        """Return whether a task of the named job is unfinished; callable from any thread."""
        job = self._names.get(name)
        if job is None or index >= max(1, len(job.children)):
            return False
        return not (job.children[index] if job.children else job).status.is_final

    def answer(self, operation: str, document: dict[str, Any]) -> dict[str, Any]:
        """Carry out an operation of Batch or CloudWatch Logs on the jobs' event loop.

        Documents are copied, as they would be on the wire.

        Raises:
            ApiError: The request is rejected.
        """
        body = json.dumps(document)
        reply: dict[str, Any] = json.loads(
            json.dumps(self._answer(operation, json.loads(body), len(body)))
        )
        return reply

    def _answer(self, operation: str, document: dict[str, Any], size: int) -> dict[str, Any]:
        if operation == "GetLogEvents":
            return self._logs.get_events(document)
        if operation == "SubmitJob":
            return self._submit(document, size)
        return self._api.call(operation, document, size)

    def _submit(self, document: dict[str, Any], size: int) -> dict[str, Any]:
        """Accept a job, or reject it as scripted."""
        if self._is_closed:
            raise RefusedError("the fake cloud was closed", "ServiceUnavailable", 400)
        script = self._scripts[0] if self._scripts else Script()
        if script.throttled:
            script.throttled -= 1
            raise ThrottledError
        if self._scripts:
            self._scripts.popleft()
        if script.refused is not None:
            status = 400 if script.refused.code == "ClientException" else 403
            raise RefusedError(script.refused.message, script.refused.code, status)
        # A queue has a fair-share policy if the job names a share.
        queue = self._queues.queue(document["jobQueue"])
        queue.view["schedulingPolicyArn"] = document.get("shareIdentifier")
        reply = self._api.call("SubmitJob", document, size)
        job = self._engine.jobs.find(reply["jobId"])
        assert job is not None  # noqa: S101 - for the type checker
        self._engine.scripts[job.id] = script
        self._names[document["jobName"]] = job
        return reply


class FakeCloud:
    """Jobs and scripts of a fake cloud, created by `farcall.testing.fake_cloud`.

    Scripts apply to the jobs that are submitted next, one `next_job` for each job. All other jobs
    run their functions, and so do the attempts after the scripted ones. Tasks that are submitted
    within ``linger_s``, and the tasks of a map, are one array job.
    """

    def __init__(self, platform: FakePlatform) -> None:
        self._platform = platform

    @property
    def jobs(self) -> list[JobDetail]:
        """Submitted jobs in their current state, in order; an array is one job."""
        return self._platform.call(self._platform.jobs).result()

    def next_job(self, *happenings: Happening, task: int | Iterable[int] | None = None) -> None:
        """Script the next job that is submitted and has no script yet.

        Args:
            *happenings: Scripted events. Each `ScriptedFailure` ends one attempt, in this order;
                ``retry_attempts`` and ``retry_on`` decide whether another attempt follows.
            task: Index of the only task of the job that the script applies to, or several; by
                default it applies to each task.

        Raises:
            TypeError: An argument is not a scripted event.
        """
        self._platform.script(Script.of(happenings, task))
