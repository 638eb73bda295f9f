"""The seam between Batch's bookkeeping and whatever runs a container.

Batch decides when an attempt starts and why it ends; a runner starts it, waits for it and
signals it. `farcall.local.process` runs it as a process of this machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from farcall.local.resources import Resources


@dataclass(frozen=True)
class AttemptSpec:
    """What a runner needs to know of an attempt.

    Attributes:
        image: The image the definition names.
        command: Argument vector; empty means the image's own command.
        environment: The job's variables and Batch's own, but none of the machine's.
        resources: What the attempt may use.
        output: Takes standard output and standard error, one stream, as they come.
    """

    image: str
    command: tuple[str, ...]
    environment: dict[str, str]
    resources: Resources
    output: Callable[[bytes], None]


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

    async def wait(self) -> int:
        """Wait for the end, pass on the rest of the output, and return the exit code.

        A container whose main process was killed by signal N reports ``128 + N``.
        """

    def terminate(self) -> None:
        """Send SIGTERM to the main process alone, as ``docker stop`` does to PID 1."""

    def kill(self) -> None:
        """Kill every process of the container."""


class Runner(Protocol):
    """Starts containers."""

    async def start(self, spec: AttemptSpec) -> Running:
        """Start an attempt.

        Raises:
            StartError: The command cannot be run.
        """
