"""Interface between a platform's state machine and the code that runs containers.

Batch or Kubernetes decides when an attempt starts and why it ends; a runner starts it, waits for
it and signals it. `farcall_local.runners.process` runs it as a process of this machine,
`farcall_local.runners.docker` as a container.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol


@dataclass(frozen=True)
class AttemptSpec:
    """Specification of an attempt for a runner.

    Attributes:
        job_id: The job's ID, or the pod's name.
        task_id: ID of the attempt's ECS task, or the pod's UID.
        command: Argument vector; empty for the image's own command.
        environment: The job's variables and the platform's own, but none of the machine's.
        output: Called with standard output and standard error, as one stream.
        attempt: The attempt's number, if the platform counts attempts.
        image: The container's image.
        entrypoint: Replaces the image's entry point; empty for the image's own.
        folder: The container's working directory; empty for the image's.
        user: The container's user; empty for the image's user.
        role_arn: ARN of the job role, None for none.
        in_aws: Whether AWS starts the attempt, and so provides endpoint and credentials.
        mounts: Folders and files of this machine by their paths in the container.
        memory_mib: Limit of memory in MiB; 0 for none.
        gpus: Number of GPUs.
        host: Returns a container's HostConfig for docker, given the machine's processors; may
            raise `StartError`.
    """

    job_id: str
    task_id: str
    command: tuple[str, ...]
    environment: dict[str, str]
    output: Callable[[bytes], None]
    attempt: str = ""
    image: str = ""
    entrypoint: tuple[str, ...] = ()
    folder: str = ""
    user: str = ""
    role_arn: str | None = None
    in_aws: bool = True
    mounts: Mapping[str, str] = field(default_factory=dict)
    memory_mib: int = 0
    gpus: int = 0
    host: Callable[[int], dict[str, Any]] = lambda _: {"NetworkMode": "host", "Mounts": []}


class Exit(NamedTuple):
    """Result of a container.

    Attributes:
        code: The exit code; ``128 + N`` if signal N killed the main process; None if unknown.
        reason: The container's reason, usually empty.
    """

    code: int | None
    reason: str | None = None


class StartError(Exception):
    """The container could not be started.

    Attributes:
        reason: The container's reason, None if the task itself was rejected.
        status_reason: The attempt's reason.
    """

    def __init__(self, reason: str | None, status_reason: str = "Task failed to start") -> None:
        super().__init__(reason or status_reason)
        self.reason = reason
        self.status_reason = status_reason


class Running(Protocol):
    """Started container."""

    async def wait(self) -> Exit:
        """Wait for the end, and forward the rest of the output."""

    def terminate(self) -> None:
        """Send SIGTERM only to the main process, as ``docker stop`` does to PID 1."""

    def kill(self) -> None:
        """Kill every process of the container."""


class Runner(Protocol):
    """Interface for starting containers."""

    async def prepare(self, spec: AttemptSpec) -> None:
        """Pull the attempt's image, which may take minutes and can be cancelled.

        Raises:
            StartError: The image is not available.
        """

    async def start(self, spec: AttemptSpec) -> Running:
        """Start an attempt.

        Raises:
            StartError: The command cannot be run.
        """

    async def close(self) -> None:
        """Release the runner's resources, when no container runs any more."""
