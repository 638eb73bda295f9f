"""Debouncer: lets tasks through together while they keep coming one by one."""

from __future__ import annotations

import asyncio

from farcall.model import clock

_BURST_S = 1.0
_QUIET_S = 0.3
_FIRST_HOLD_S, _LONGEST_HOLD_S = 0.2, 2.0


class Debouncer:
    """Holds tasks back for a moment, but only where others came just before them.

    Covalent's server hands over the tasks of a dispatch one after the other, some 0.1 to 0.2 s
    apart, so what comes within ``linger_s`` is one task. The first one passes at once. Those that
    follow are let through together: when none has come for a moment, or after a time that doubles
    up to two seconds while they keep coming.
    """

    def __init__(self) -> None:
        self._last = float("-inf")
        self._hold_s = _FIRST_HOLD_S
        self._opening: asyncio.Task[None] | None = None

    def announce(self) -> None:
        """Note that a task is about to come."""
        if self._opening is not None:
            self._last = clock.now()

    async def passing(self) -> None:
        """Wait until it is time to go on."""
        now = clock.now()
        is_burst = now - self._last < _BURST_S
        self._last = now
        if not is_burst:
            self._hold_s = _FIRST_HOLD_S
            return
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open())
        await asyncio.shield(self._opening)

    async def _open(self) -> None:
        latest = clock.now() + self._hold_s
        self._hold_s = min(2 * self._hold_s, _LONGEST_HOLD_S)
        while (until := min(self._last + _QUIET_S, latest)) > clock.now():  # noqa: ASYNC110
            await asyncio.sleep(until - clock.now())
        self._opening = None
