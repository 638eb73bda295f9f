"""The account the page looks at: its session, and the requests that are made of Batch."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from farcall.aws import refusals
from farcall.aws.clients import Aws
from farcall.aws.paced_client import is_throttling
from farcall.engine.session import Session
from farcall.model import clock
from farcall.model.errors import FarcallError, ServiceError
from farcall.model.settings import Settings

_MINUTE_S = 60.0
_REFUSED_FOR_S = 10.0


class Account:
    """Gives the session, and opens a new one where the credentials have expired.

    Args:
        settings: The options.

    Attributes:
        settings: The same.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._times: deque[float] = deque()
        self._refused_at: float | None = None
        self._opening = asyncio.Lock()
        self._session: Session | None = None

    async def session(self) -> Session:
        """Return the session, which nobody else has: it is closed here.

        Raises:
            SettingsError: The profile or the credentials file does not exist.
            ServiceError: There are no credentials.
        """
        async with self._opening:
            if self._session is None:
                self._session = Session(await Aws.open(self.settings))
                events = self._session.aws.batch.meta.events
                events.register("before-send.batch", self._note_sent)
                events.register("response-received.batch", self._note_answered)
            return self._session

    async def renew(self, error: FarcallError) -> None:
        """Forget a session whose credentials have expired: files may hold new ones by now.

        Args:
            error: What a call met.
        """
        expired = isinstance(error, ServiceError) and refusals.is_expired(error)
        if expired and self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def close(self) -> None:
        """Close the session."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @property
    def last_minute(self) -> int:
        """Number of requests made of Batch within the last minute."""
        self._forget()
        return len(self._times)

    @property
    def trouble(self) -> str:
        """What to say while Batch answers that requests come too fast; else empty."""
        if self._refused_at is None or clock.now() - self._refused_at > _REFUSED_FOR_S:
            return ""
        return (
            "Batch refuses some requests, because the account makes too many; "
            "what is shown here may be some seconds late"
        )

    def _note_sent(self, **_: Any) -> None:
        self._times.append(clock.now())
        self._forget()

    def _forget(self) -> None:
        while self._times and self._times[0] < clock.now() - _MINUTE_S:
            self._times.popleft()

    def _note_answered(self, parsed_response: dict[str, Any] | None = None, **_: Any) -> None:
        said = parsed_response or {}
        status = said.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if status == 429 or is_throttling(str(said.get("Error", {}).get("Code", ""))):
            self._refused_at = clock.now()
