"""Containers that cannot be started, for whoever wants to see what follows."""

from __future__ import annotations

from collections import deque

from farcall_local.runners.runner import AttemptSpec, Runner, Running, StartError


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
