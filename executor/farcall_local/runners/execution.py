"""Attempt of a job, from STARTING to its end.

Sources:
    https://docs.aws.amazon.com/batch/latest/userguide/job_timeouts.html
    https://docs.aws.amazon.com/batch/latest/userguide/job_env_vars.html
    https://docs.aws.amazon.com/batch/latest/userguide/mnp-env-vars.html
    https://docs.aws.amazon.com/AmazonECS/latest/APIReference/API_RunTask.html
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import re
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from farcall.model.jobs import JobStatus
from farcall_local import names
from farcall_local.batch.jobs import Attempt, Job, Node
from farcall_local.runners import host_config
from farcall_local.runners.logs import LogStream, OpenLog
from farcall_local.runners.runner import AttemptSpec, Exit, Runner, Running, StartError

#: Maximum size of the overrides of an ECS task, including JSON formatting.
MAX_OVERRIDES_LENGTH = 8192
#: Maximum length of a container's reason.
MAX_REASON_LENGTH = 255

EXITED = "Essential container in task exited"
TIMED_OUT = "Job attempt duration exceeded timeout"
OVERRIDES_TOO_LONG = f"Container Overrides length must be at most {MAX_OVERRIDES_LENGTH}"
SPOT_INTERRUPTED = "Your Spot Task was interrupted."

#: Variable that sets the interval in farcall's runtime; `farcall_runtime.contract.ENV_STREAM_S`.
STREAM_S = "FARCALL_STREAM_S"

_log = logging.getLogger("farcall")

_PLACEHOLDER = re.compile(r"Ref::([A-Za-z0-9_-]+)")


@dataclass
class Durations:
    """Durations, which tests change.

    Attributes:
        delays: Minimum time of a job in a state in seconds, by the state's name; in RUNNING it
            counts from the end of its process.
        stop_grace_s: Time from SIGTERM to SIGKILL in seconds. Batch waits 30 s.
        timeout_scale: Factor on every job's timeout, whose minimum is 60 s.
        stream_s: Interval between two output chunks that farcall's runtime stores, in seconds;
            None for its default.
    """

    delays: dict[str, float] = field(default_factory=dict)
    stop_grace_s: float = 30.0
    timeout_scale: float = 1.0
    stream_s: float | None = None


@dataclass(frozen=True)
class World:
    """Environment of all attempts of a server.

    Attributes:
        runner: Starts containers.
        open_log: Creates the log stream of an attempt; see `CloudWatchLogs.open`.
        assumable: Returns whether ECS may assume a role, by its ARN.
        environment_name: Returns the name of a job queue's compute environment.
        durations: Durations of states and grace periods.
        failing_starts: Reasons of the next attempts that fail to start, in order; set by tests.
    """

    runner: Runner
    open_log: OpenLog
    assumable: Callable[[str], bool]
    environment_name: Callable[[Job], str]
    durations: Durations
    failing_starts: deque[str] = field(default_factory=deque)


@dataclass(frozen=True)
class AttemptEnd:
    """Reason for stopping an attempt.

    Attributes:
        status_reason: Status reason of the attempt and the job.
        final: Whether Batch does not retry, regardless of the rules.
        host_lost: Whether the host is lost, so that the exit code is unknown.
        can_succeed: Whether exit code 0 still counts as success.
    """

    status_reason: str
    final: bool = False
    host_lost: bool = False
    can_succeed: bool = False


class Execution:
    """Run of one attempt of a job with a container.

    Args:
        job: A single job, child job or node.
        world: Environment of the attempt.
        on_running: Called when its container runs.

    Attributes:
        attempt: Record of the attempt.
        ending: Reason for stopping it; None if it was not stopped.
    """

    def __init__(
        self, job: Job, world: World, on_running: Callable[[], None] | None = None
    ) -> None:
        self._job = job
        self._world = world
        self._on_running = on_running
        fargate = job.submission.definition.fargate
        self.attempt = Attempt(
            instance_arn=None if fargate else names.ecs_arn("container-instance")
        )
        self.ending: AttemptEnd | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._running: Running | None = None
        #: Set when the process has exited, so that a stop has no effect.
        self._over = False
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def succeeded(self) -> bool:
        """Whether the attempt succeeded."""
        return self.attempt.exit_code == 0 and (self.ending is None or self.ending.can_succeed)

    @property
    def final(self) -> bool:
        """Whether a failure is not retried."""
        return self.ending is not None and self.ending.final

    async def run(self) -> None:
        """Start the container, wait for its end and record the result."""
        await self._linger(JobStatus.STARTING)
        if self.ending is None and _overrides_length(self._job) > MAX_OVERRIDES_LENGTH:
            self.ending = AttemptEnd(OVERRIDES_TOO_LONG, final=True)
        if self.ending is None:
            try:
                await self._start_and_wait()
            except StartError as error:
                self.attempt.reason = error.reason and error.reason[:MAX_REASON_LENGTH]
                self.attempt.status_reason = error.status_reason
            except Exception:
                # An error in the emulator must not leave a job running forever.
                _log.exception("The attempt of job %s broke", self._job.id)
                self.ending = AttemptEnd("The emulated Batch failed; see its log.", final=True)
        if self.ending is not None:
            self.attempt.status_reason = self.ending.status_reason
        self.attempt.stopped_at = names.now_ms()

    def stop(self, ending: AttemptEnd) -> None:
        """Stop the attempt: SIGTERM to its main process, and SIGKILL to all later."""
        if self.ending is not None or self._over:
            return
        self._end(ending)
        if self._running is not None:
            self._signal(self._running)

    def lose_host(self) -> None:
        """Remove the host, as a spot reclaim does.

        On EC2 the instance is lost, so the exit code is unknown. Fargate stops the task like any
        other and reports its exit code.
        """
        if self.ending is not None or self._over:
            return
        if self._job.submission.definition.fargate:
            self.stop(AttemptEnd(SPOT_INTERRUPTED, can_succeed=True))
            return
        instance = f"i-{secrets.token_hex(8)}0"
        self._end(AttemptEnd(f"Host EC2 (instance {instance}) terminated.", host_lost=True))
        if self._running is not None:
            self._running.kill()

    def _end(self, ending: AttemptEnd) -> None:
        self.ending = ending
        if self._preparing is not None:
            self._preparing.cancel()

    async def clear(self) -> None:
        """Wait until all processes of the attempt have exited: already true after `run`."""

    async def _start_and_wait(self) -> None:
        stream = self._open_resources()
        container = self._job.container.properties
        spec = AttemptSpec(
            job_id=self._job.id,
            task_id=self.attempt.task_id,
            attempt=str(self._job.attempt_number),
            image=container.get("image", ""),
            command=_command(self._job),
            environment=self._environment(),
            user=container.get("user", ""),
            role_arn=container.get("jobRoleArn"),
            mounts=host_config.folders(container),
            memory_mib=self._job.container.resources.memory_mib,
            gpus=self._job.container.resources.gpus,
            host=functools.partial(
                host_config.host_config, container, self._job.container.resources
            ),
            output=stream.write if stream is not None else _discard,
        )
        await self._prepare(spec)
        if self.ending is not None:
            return
        running = await self._world.runner.start(spec)
        self._enter_running(stream)
        try:
            exit_code, reason = await self._wait(running)
        finally:
            if stream is not None:
                stream.close()
        await self._linger(JobStatus.RUNNING)
        if self.ending is None or not self.ending.host_lost:
            self.attempt.exit_code = exit_code
            self.attempt.reason = reason and reason[:MAX_REASON_LENGTH]
        self.attempt.status_reason = EXITED

    async def _prepare(self, spec: AttemptSpec) -> None:
        """Wait for the image, or until the attempt is stopped."""
        if self._world.failing_starts:
            raise StartError(self._world.failing_starts.popleft())
        self._preparing = asyncio.ensure_future(self._world.runner.prepare(spec))
        try:
            await self._preparing
        except asyncio.CancelledError:
            if self.ending is None:
                raise  # the server is closing
        finally:
            self._preparing = None

    def _open_resources(self) -> LogStream | None:
        container = self._job.container.properties
        host_config.refuse_secrets(container)
        for role in (container.get("executionRoleArn"), container.get("jobRoleArn")):
            if role and not self._world.assumable(role):
                raise StartError(
                    None,
                    f"ECS was unable to assume the role '{role}' that was provided for this task. "
                    "Please verify that the role being passed has the proper trust relationship "
                    "and permissions and that your IAM user has permissions to pass this role.",
                )
        return self._world.open_log(
            container.get("logConfiguration"),
            self._job.submission.definition.name,
            self.attempt.task_id,
            container.get("executionRoleArn"),
        )

    def _enter_running(self, stream: LogStream | None) -> None:
        self.attempt.started_at = self._job.started_at = names.now_ms()
        self.attempt.log_stream = stream.name if stream is not None else None
        self._job.enter(JobStatus.RUNNING)
        if self._on_running is not None:
            self._on_running()

    async def _wait(self, running: Running) -> Exit:
        loop = asyncio.get_running_loop()
        limit = self._job.timeout_s
        if limit is not None:
            limit *= self._world.durations.timeout_scale
            self._timers.append(
                loop.call_later(limit, self.stop, AttemptEnd(TIMED_OUT, final=True))
            )
        self._running = running
        if self.ending is not None:
            self._signal(running)
        try:
            return await running.wait()
        finally:
            self._over = True
            for timer in self._timers:
                timer.cancel()

    def _signal(self, running: Running) -> None:
        running.terminate()
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_later(self._world.durations.stop_grace_s, running.kill))

    async def _linger(self, status: JobStatus) -> None:
        delay = self._world.durations.delays.get(status.value, 0)
        if delay:
            await asyncio.sleep(delay)

    def _environment(self) -> dict[str, str]:
        variables = {
            item["name"]: item.get("value", "")
            for item in self._job.container.properties.get("environment", ())
        }
        if self._world.durations.stream_s is not None:
            variables[STREAM_S] = str(self._world.durations.stream_s)
        fargate = self._job.submission.definition.fargate
        variables["AWS_EXECUTION_ENV"] = "AWS_ECS_FARGATE" if fargate else "AWS_ECS_EC2"
        variables["AWS_BATCH_JOB_ID"] = self._job.id
        variables["AWS_BATCH_JOB_ATTEMPT"] = str(self._job.attempt_number)
        variables["AWS_BATCH_JQ_NAME"] = self._job.submission.queue.name
        variables["AWS_BATCH_CE_NAME"] = self._world.environment_name(self._job)
        if self._job.parent is not None:
            variables["AWS_BATCH_JOB_ARRAY_INDEX"] = str(self._job.index)
            variables["AWS_BATCH_JOB_ARRAY_SIZE"] = str(len(self._job.parent.children))
        if isinstance(self._job, Node):
            variables["AWS_BATCH_JOB_NODE_INDEX"] = str(self._job.index)
            variables["AWS_BATCH_JOB_NUM_NODES"] = str(len(self._job.submission.containers))
            variables["AWS_BATCH_JOB_MAIN_NODE_INDEX"] = str(self._job.submission.main_node)
            if not self._job.is_main:
                variables["AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"] = names.NODE_ADDRESS
        return variables


def _command(job: Job) -> tuple[str, ...]:
    """Return the command with its placeholders replaced, except those without a value."""
    parameters = job.submission.parameters
    return tuple(
        _PLACEHOLDER.sub(lambda match: parameters.get(match[1], match[0]), word)
        for word in job.container.properties.get("command") or ()
    )


def _overrides_length(job: Job) -> int:
    """Return the length of the overrides in the request to ECS.

    Batch's own additions are not documented; they do not count here, so the limit is not stricter
    than the real one.
    """
    overrides: dict[str, Any] = {"containerOverrides": [{"name": "default"}]}
    overrides["containerOverrides"][0].update(job.container.overrides)
    return len(json.dumps(overrides, separators=(",", ":")))


def _discard(data: bytes) -> None:
    """Discard the output of a job whose log driver is not awslogs."""
