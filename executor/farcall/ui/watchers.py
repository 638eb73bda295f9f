"""Looks at something again and again while browsers listen, once for all of them.

What changed is told by its key. A browser that is slow to listen has a key once in its list,
however often that changed meanwhile, and is told what is true when it listens again.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone
from itertools import islice
from typing import Any, Generic, TypeVar

from farcall.model import clock
from farcall.model.clock import within
from farcall.model.errors import FarcallError
from farcall.operations.json_view import moment
from farcall.ui.account import Account

_log = logging.getLogger("farcall")

ACTIVE_S = 2.0
QUIET_S = 10.0
TROUBLE_S = 5.0
_LIVELY_S = 30.0
"""So long after a change another one is expected."""

K = TypeVar("K")


class Feed(Generic[K]):
    """What one browser has not been told yet.

    Args:
        wants: Tells whether it is to hear of a key.
    """

    def __init__(self, wants: Callable[[K], bool]) -> None:
        self._wants = wants
        self._pending: dict[K, None] = {}
        self._news = asyncio.Event()

    def note(self, keys: Iterable[K]) -> None:
        """Note what changed, and that a look was taken."""
        self._pending.update((key, None) for key in keys if self._wants(key))
        self._news.set()

    async def take(self, most: int, patience_s: float) -> list[K]:
        """Wait for news, some time; return keys of what changed, if anything did."""
        if not self._pending:
            with contextlib.suppress(asyncio.TimeoutError):
                await within(patience_s, self._news.wait())
        self._news.clear()
        keys = list(islice(self._pending, most))
        for key in keys:
            del self._pending[key]
        return keys

    @property
    def is_behind(self) -> bool:
        """Whether there is more to be told at once."""
        return bool(self._pending)


class Watcher(abc.ABC, Generic[K]):
    """Looks while somebody listens.

    Attributes:
        account: The same.
        error: Why the last look failed, and when it will be tried again; else empty.
        is_complete: Whether a first look has come to its end.
        on_change: Is given the keys of what changed.
    """

    def __init__(self, account: Account) -> None:
        self.account = account
        self.on_change: Callable[[list[K]], object] = lambda _: None
        self.error = ""
        self.is_complete = False
        self._feeds: set[Feed[K]] = set()
        self._running: asyncio.Task[None] | None = None
        self._hurried = asyncio.Event()
        self._looking = asyncio.Lock()
        self._changed_at = 0.0
        self._looked_at = 0.0

    @contextlib.contextmanager
    def listen(self, wants: Callable[[K], bool] = lambda _: True) -> Iterator[Feed[K]]:
        """Lend a feed that begins with all there is; whoever leaves last ends the watching."""
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
        """Whether somebody listens."""
        return bool(self._feeds)

    def poll_soon(self) -> None:
        """Look again soon."""
        self._hurried.set()

    async def refresh(self) -> None:
        """Look now, whether or not somebody listens.

        Raises:
            FarcallError: AWS refused, or cannot be reached.
        """
        async with self._looking:
            await self.look()

    def state(self) -> dict[str, Any]:
        """Return how the watching goes, as a browser is told."""
        return {
            "loading": not self.is_complete,
            "error": self.error or self.account.trouble,
            "at": moment(datetime.now(timezone.utc)),
            "requests": {"last_minute": self.account.last_minute},
        }

    def tell(self, keys: Iterable[K]) -> None:
        """Tell those who listen what changed."""
        keys = list(keys)
        if keys:
            self._changed_at = clock.now()
            self.on_change(keys)
        for feed in self._feeds:
            feed.note(keys)

    @abc.abstractmethod
    def keys(self) -> Iterable[K]:
        """Return the keys of all there is to tell of."""

    @abc.abstractmethod
    def is_active(self) -> bool:
        """Return whether something is likely to change."""

    @abc.abstractmethod
    async def look(self) -> None:
        """Look once, and tell what changed."""

    async def look_beside(self) -> None:
        """Look at what nobody has to wait for, after each look."""

    async def _run(self) -> None:
        while True:
            # Who reloads the page again and again does not ask AWS each time.
            await asyncio.sleep(self._looked_at + ACTIVE_S - clock.now())
            self._hurried.clear()
            await self._look_once()
            self._looked_at = clock.now()
            self.tell([])  # of the state
            lively = self.is_active() or clock.now() < self._changed_at + _LIVELY_S
            pause_s = TROUBLE_S if self.error else ACTIVE_S if lively else QUIET_S
            with contextlib.suppress(asyncio.TimeoutError):
                await within(pause_s, self._hurried.wait())

    async def _look_once(self) -> None:
        try:
            await self.refresh()
            await self.look_beside()
        except FarcallError as error:
            self.error = f"{error}; trying again every {TROUBLE_S:.0f} s"
            await self.account.renew(error)
        except Exception as error:  # the page is to go on, and to say what it met
            _log.exception("the page could not look at %s", type(self).__name__)
            self.error = (
                f"an error of farcall's own: {error!r}; its output in the terminal says more"
            )
        else:
            self.error = ""
