"""Pollers that run while browsers listen, one poll for all browsers.

A change is recorded by its key. A slow browser has each key once in its list, however often the
value changes meanwhile, and receives the current value when it reads again.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Generic, TypeVar

from farcall.aws import error_translation
from farcall.backends.base import platform_of
from farcall.config.settings import Settings
from farcall.engine.session import Session, open_session
from farcall.model import clock
from farcall.model.clock import within
from farcall.model.errors import FarcallError, ServiceError
from farcall.operations.json_view import moment
from farcall.operations.reasons import Reasons

_log = logging.getLogger("farcall")

ACTIVE_S = 2.0
QUIET_S = 10.0
TROUBLE_S = 5.0
_REFUSED_FOR_S = 10.0

K = TypeVar("K")


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


class Feed(Generic[K]):
    """Pending changes of one browser.

    Args:
        wants: Returns whether the browser needs a key.
    """

    def __init__(self, wants: Callable[[K], bool]) -> None:
        self._wants = wants
        self._pending: dict[K, None] = {}
        self._changed = asyncio.Event()

    def note(self, keys: Iterable[K]) -> None:
        """Record changes, and that a poll was made."""
        self._pending.update((key, None) for key in keys if self._wants(key))
        self._changed.set()

    async def take(self, most: int, timeout_s: float) -> list[K]:
        """Wait some time for news; return the keys of changes, if there are any."""
        if not self._pending:
            with contextlib.suppress(TimeoutError):
                await within(timeout_s, self._changed.wait())
        self._changed.clear()
        keys = list(islice(self._pending, most))
        for key in keys:
            del self._pending[key]
        return keys

    @property
    def is_behind(self) -> bool:
        """Whether more changes are ready to be sent."""
        return bool(self._pending)


class Watcher(abc.ABC, Generic[K]):
    """Poller that runs while a browser listens.

    Attributes:
        account: The account to poll.
        error: Failure reason of the last poll and time of the next one; otherwise empty.
        is_complete: Whether a first poll has finished.
        on_change: Called with the keys of changes.
    """

    def __init__(self, account: Account) -> None:
        self.account = account
        self.on_change: Callable[[list[K]], object] = lambda _: None
        self.error = ""
        self.is_complete = False
        self._feeds: set[Feed[K]] = set()
        self._running: asyncio.Task[None] | None = None
        self._hurried = asyncio.Event()
        self._lock = asyncio.Lock()
        self._polled_at = 0.0

    @contextlib.contextmanager
    def listen(self, wants: Callable[[K], bool] = lambda _: True) -> Iterator[Feed[K]]:
        """Yield a feed that begins with all keys; polling stops with the last listener."""
        feed: Feed[K] = Feed(wants)
        feed.note(self.keys())
        self._feeds.add(feed)
        self.poll_soon()
        if self._running is None:
            self._running = asyncio.ensure_future(self._run())
        try:
            yield feed
        finally:
            self._feeds.discard(feed)
            if not self._feeds and self._running is not None:
                self._running.cancel()
                self._running = None

    @property
    def is_heard(self) -> bool:
        """Whether a browser listens."""
        return bool(self._feeds)

    def poll_soon(self) -> None:
        """Schedule a poll soon."""
        self._hurried.set()

    async def refresh(self) -> None:
        """Poll now, even without listeners.

        Raises:
            FarcallError: AWS rejected a call or cannot be reached.
        """
        async with self._lock:
            await self.poll()

    def state(self) -> dict[str, Any]:
        """Return the poller's state for the browser."""
        return {
            "loading": not self.is_complete,
            "error": self.error or self.account.trouble,
            "at": moment(datetime.now(UTC)),
            "requests": {"last_minute": self.account.last_minute},
        }

    def notify(self, keys: Iterable[K]) -> None:
        """Notify listeners of changes."""
        keys = list(keys)
        if keys:
            self.on_change(keys)
        for feed in self._feeds:
            feed.note(keys)

    @abc.abstractmethod
    def keys(self) -> Iterable[K]:
        """Return the keys of all values."""

    @abc.abstractmethod
    def is_active(self) -> bool:
        """Return whether a change is likely."""

    @abc.abstractmethod
    async def poll(self) -> None:
        """Poll once, and notify listeners of changes."""

    async def poll_details(self) -> None:
        """Read low-priority data, after each poll."""

    async def _run(self) -> None:
        while True:
            # Reloading the page repeatedly does not call AWS each time.
            await asyncio.sleep(self._polled_at + ACTIVE_S - clock.now())
            self._hurried.clear()
            await self._poll_once()
            self._polled_at = clock.now()
            self.notify([])  # notifies of the new state only
            pause_s = TROUBLE_S if self.error else ACTIVE_S if self.is_active() else QUIET_S
            with contextlib.suppress(TimeoutError):
                await within(pause_s, self._hurried.wait())

    async def _poll_once(self) -> None:
        try:
            await self.refresh()
            await self.poll_details()
        except FarcallError as error:
            self.error = f"{error}; retrying every {TROUBLE_S:.0f} s"
            await self.account.renew(error)
        except Exception as error:  # the web UI continues and shows the error
            _log.exception("the web UI could not poll %s", type(self).__name__)
            self.error = (
                f"internal error of farcall: {error!r}; see the output in the terminal for details"
            )
        else:
            self.error = ""
