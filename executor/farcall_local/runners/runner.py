"""The seam between a platform's bookkeeping and whatever runs a container.

Batch or Kubernetes decides when an attempt starts and why it ends; a runner starts it, waits for
it and signals it. `farcall_local.runners.process` runs it as a process of this machine,
`farcall_local.runners.docker` as a container.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol


@dataclass(frozen=True)
class AttemptSpec:
    """What a runner needs to know of an attempt.

    Attributes:
        job_id: The job's ID, or the pod's name.
        task_id: Of the ECS task the attempt is, or the pod's UID.
        command: Argument vector; empty means the image's own command.
        environment: The job's variables and the platform's own, but none of the machine's.
        output: Takes standard output and standard error, one stream, as they come.
        attempt: The attempt's number, where the platform has one for it.
        image: The container's image.
        entrypoint: What takes the place of the image's entry point; empty for that.
        folder: The container's working directory; empty for the image's.
        user: Whom the container runs as; empty for the image's user.
        role_arn: ARN of the job role, None for none.
        in_aws: Whether it is AWS that starts it, and so tells it where AWS is and who it is there.
        mounts: Folders and files of this machine by their paths in the container.
        host: Writes a container's HostConfig for docker, given the machine's processors; may
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
    host: Callable[[int], dict[str, Any]] = lambda _: {"NetworkMode": "host", "Mounts": []}


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


# --- Containers that cannot be started, for whoever wants to see what follows -------------------


class BreakingRunner:
    """Another runner, some of whose containers cannot be started.

    Attributes:
        reasons: What the next attempts say that failed to start, the next one first.
    """

    def __init__(self, runner: Runner) -> None:
        self.reasons: deque[str] = deque()
        self._runner = runner

    async def prepare(self, spec: AttemptSpec) -> None:
        """Fail, or bring the attempt's image here."""
        if self.reasons:
            raise StartError(self.reasons.popleft())
        await self._runner.prepare(spec)

    async def start(self, spec: AttemptSpec) -> Running:
        """Start an attempt."""
        return await self._runner.start(spec)

    async def close(self) -> None:
        """Let go of what the other runner holds."""
        await self._runner.close()
