"""The seam between Batch's bookkeeping and whatever runs a container.

Batch decides when an attempt starts and why it ends; a runner starts it, waits for it and
signals it. `farcall.local.runners.process` runs it as a process of this machine,
`farcall.local.runners.docker` as a container.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from farcall.local.batch.resources import Resources


@dataclass(frozen=True)
class AttemptSpec:
    """What a runner needs to know of an attempt.

    Attributes:
        job_id: The job's ID.
        task_id: Of the ECS task the attempt is.
        container: containerProperties with the submission's overrides.
        fargate: Whether the job is for Fargate.
        command: Argument vector; empty means the image's own command.
        environment: The job's variables and Batch's own, but none of the machine's.
        resources: What the attempt may use.
        output: Takes standard output and standard error, one stream, as they come.
    """

    job_id: str
    task_id: str
    container: dict[str, Any]
    fargate: bool
    command: tuple[str, ...]
    environment: dict[str, str]
    resources: Resources
    output: Callable[[bytes], None]

    @property
    def role_arn(self) -> str | None:
        """ARN of the job role, None for none."""
        return self.container.get("jobRoleArn")


class Exit(NamedTuple):
    """How a container ended.

    Attributes:
        code: The exit code; ``128 + N`` where signal N killed the main process; None if nobody
            can tell.
        reason: What the container's reason says, mostly nothing.
    """

    code: int | None
    reason: str | None = None


class StartError(Exception):
    """The container could not be started.

    Attributes:
        reason: The container's reason, None when the task itself was refused.
        status_reason: The attempt's reason.
    """

    def __init__(self, reason: str | None, status_reason: str = "Task failed to start") -> None:
        super().__init__(reason or status_reason)
        self.reason = reason
        self.status_reason = status_reason


class Running(Protocol):
    """A started container."""

    async def wait(self) -> Exit:
        """Wait for the end, and pass on the rest of the output."""

    def terminate(self) -> None:
        """Send SIGTERM to the main process alone, as ``docker stop`` does to PID 1."""

    def kill(self) -> None:
        """Kill every process of the container."""


class Runner(Protocol):
    """Starts containers."""

    async def prepare(self, spec: AttemptSpec) -> None:
        """Bring the attempt's image here, which may take minutes; it may be cancelled.

        Raises:
            StartError: The image is not to be had.
        """

    async def start(self, spec: AttemptSpec) -> Running:
        """Start an attempt.

        Raises:
            StartError: The command cannot be run.
        """

    async def close(self) -> None:
        """Let go of what the runner holds; nothing runs any more."""
