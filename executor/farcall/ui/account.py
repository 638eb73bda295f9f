"""Account that the web UI shows: its session, and the Batch requests."""

from __future__ import annotations

import asyncio

from farcall.aws import error_translation
from farcall.backends.base import platform_of
from farcall.engine.session import Session, open_session
from farcall.model import clock
from farcall.model.errors import FarcallError, ServiceError
from farcall.model.settings import Settings
from farcall.operations.reasons import Reasons

_REFUSED_FOR_S = 10.0


class Account:
    """Session holder that opens a new session when the credentials have expired.

    Attributes:
        settings: The options.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._opening = asyncio.Lock()
        self._session: Session | None = None
        self._reasons: Reasons | None = None

    async def session(self) -> Session:
        """Return the session, which only this object uses and closes.

        Raises:
            SettingsError: The profile or the credentials file does not exist.
            ServiceError: There are no credentials.
        """
        async with self._opening:
            if self._session is None:
                self._session = await open_session(self.settings)
                self._reasons = None
            return self._session

    async def reasons(self) -> Reasons:
        """Return the reader of call and error texts for the session.

        Raises:
            SettingsError: The profile or the credentials file does not exist.
            ServiceError: There are no credentials.
        """
        session = await self.session()
        if self._reasons is None:
            self._reasons = Reasons(session)
        return self._reasons

    async def renew(self, error: FarcallError) -> None:
        """Drop a session whose credentials have expired, because files may hold new ones."""
        expired = isinstance(error, ServiceError) and error_translation.is_expired(error)
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
        """Number of Batch requests within the last minute."""
        return 0 if self._session is None else self._session.backend.meter.last_minute

    @property
    def trouble(self) -> str:
        """Message while the platform throttles requests; otherwise empty."""
        session = self._session
        if session is None:
            return ""
        throttled_at = session.backend.meter.throttled_at
        if throttled_at is None or clock.now() - throttled_at > _REFUSED_FOR_S:
            return ""
        return (
            f"{platform_of(session.backend)} rejects some requests, because there are too "
            "many; the data shown here may be a few seconds old"
        )
