"""Queue of what a controller has to look at: each key once, and not too often.

Sources:
    https://pkg.go.dev/k8s.io/client-go/util/workqueue
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")

_log = logging.getLogger("farcall")


class WorkQueue(Generic[K]):
    """Has keys handled on the event loop, soon or after a pause.

    Args:
        handle: Looks at what a key names; what it raises is logged, and ends nothing.
        pause_s: Least seconds between two looks at one key; asked each time.
    """

    def __init__(self, handle: Callable[[K], None], pause_s: Callable[[], float]) -> None:
        self._handle = handle
        self._pause_s = pause_s
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[K, asyncio.TimerHandle] = {}
        self._looked_at: dict[K, float] = {}

    def add(self, key: K, delay_s: float = 0.0) -> None:
        """Have a key handled, at the latest after so many seconds."""
        due = self._loop.time() + delay_s
        last = self._looked_at.get(key)
        if last is not None:
            due = max(due, last + self._pause_s())
        waiting = self._waiting.get(key)
        if waiting is not None:
            if waiting.when() <= due:
                return
            waiting.cancel()
        self._waiting[key] = self._loop.call_at(due, self._look, key)

    def forget(self, key: K) -> None:
        """Drop a key that is no more."""
        self._looked_at.pop(key, None)
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            waiting.cancel()

    def close(self) -> None:
        """Handle nothing any more."""
        for waiting in self._waiting.values():
            waiting.cancel()
        self._waiting.clear()

    def _look(self, key: K) -> None:
        del self._waiting[key]
        self._looked_at[key] = self._loop.time()
        try:
            self._handle(key)
        except Exception:
            _log.exception("The embedded Kubernetes could not handle %s", key)
