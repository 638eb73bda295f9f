"""SIGINT handler during terminations: another Ctrl-C means that the user leaves.

SIGINT has one handler per process, and several sessions may terminate jobs at overlapping times.
So they share one handler, which is installed while at least one of them listens.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any, ClassVar, TypeAlias

_Handler: TypeAlias = Callable[[int, FrameType | None], Any]

_wanted: Counter[Interrupts] = Counter()
"""Active listeners and their counts, on the main thread, which sets signal handlers."""


def is_ctrl_c(error: BaseException) -> bool:
    """Return whether an error may be a Ctrl-C, which Python raises in the main thread."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and isinstance(error, KeyboardInterrupt)


def left_by(error: BaseException) -> str:
    """Return how the user left; asyncio turns Ctrl-C into a cancellation."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted by Ctrl-C"
    if isinstance(error, asyncio.CancelledError):
        return "interrupted by Ctrl-C or a cancellation"
    return f"interrupted by {type(error).__name__}"


class Interrupts:
    """Context manager that reports Ctrl-C before its usual effect.

    Outside the main thread, it does nothing.

    Args:
        on_interrupt: Called in a signal handler, so it must be brief.
    """

    def __init__(self, on_interrupt: Callable[[], None]) -> None:
        self.on_interrupt = on_interrupt

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        _wanted[self] += 1
        if _wanted.total() > 1:
            return  # the handler is installed, or the program has set another since
        now = signal.getsignal(signal.SIGINT)
        if isinstance(now, _Relay):  # an earlier handler that the program has restored
            _Relay.active = now
        elif callable(now):  # otherwise SIGINT is ignored, or handled outside of Python
            _Relay.active = _Relay(now)
            signal.signal(signal.SIGINT, _Relay.active)

    def __exit__(self, *error: object) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        _wanted[self] -= 1
        if not _wanted[self]:
            del _wanted[self]
        if _wanted:
            return
        _Relay.active = None
        now = signal.getsignal(signal.SIGINT)
        if isinstance(now, _Relay):  # the program has set no other since
            signal.signal(signal.SIGINT, now.before)


class _Relay:
    """Signal handler. A program may keep it forever, so it always calls its predecessor.

    Attributes:
        active: The handler that notifies listeners, or None.
        before: The previous handler, with Ctrl-C's usual effect.
    """

    active: ClassVar[_Relay | None] = None

    def __init__(self, before: _Handler) -> None:
        self.before = before

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self is _Relay.active:
            for each in list(_wanted):
                each.on_interrupt()
        self.before(number, frame)
