"""The development calls of `farcall_local.controls`, carried out."""

from __future__ import annotations

from collections import deque
from typing import Any

from farcall_local.batch.api import Response
from farcall_local.batch.engine import Engine
from farcall_local.batch.errors import ApiError, ClientError
from farcall_local.batch.jobs import Status
from farcall_local.batch.limits import Limits
from farcall_local.runners.breaking import BreakingRunner
from farcall_local.runners.credentials import RoleCredentials
from farcall_local.runners.execution import Durations


class Control:
    """Carries the development calls out. To be called on the engine's event loop only."""

    def __init__(
        self,
        engine: Engine,
        limits: Limits,
        durations: Durations,
        credentials: RoleCredentials,
        runner: BreakingRunner,
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._durations = durations
        self._credentials = credentials
        self._runner = runner

    def answer(self, name: str, document: dict[str, Any]) -> Response:
        """Carry out a call."""
        calls = {
            "configure": self._configure,
            "fault": self._fault,
            "reclaim": self._reclaim,
            "break_starts": self._break_starts,
        }
        try:
            if name not in calls:
                raise ClientError(f"There is no development call {name!r}.")
            calls[name](document)
        except ApiError as error:
            return Response(error.status, {"message": str(error)}, error.code)
        return Response(200, {})

    def _configure(self, document: dict[str, Any]) -> None:
        delays = document.get("delays", self._durations.delays)
        unknown = set(delays) - {status.value for status in Status if not status.final}
        if unknown:
            raise ClientError(f"There is no delay in {', '.join(sorted(unknown))}.")
        self._durations.delays = delays
        self._durations.stop_grace_s = document.get("stop_grace_s", self._durations.stop_grace_s)
        self._durations.timeout_scale = document.get(
            "timeout_scale", self._durations.timeout_scale
        )
        self._credentials.lifetime_s = document.get(
            "credential_lifetime_s", self._credentials.lifetime_s
        )
        self._durations.stream_s = document.get("stream_s", self._durations.stream_s)
        self._limits.set_rates(document)

    def _fault(self, document: dict[str, Any]) -> None:
        self._limits.add_fault(document["operation"], document["kind"], document["count"])

    def _reclaim(self, document: dict[str, Any]) -> None:
        job = self._engine.jobs.find(document["job_id"])
        if job is None:
            raise ClientError(f"There is no job {document['job_id']}.")
        self._engine.reclaim(job)

    def _break_starts(self, document: dict[str, Any]) -> None:
        self._runner.reasons = deque(document["reasons"])
