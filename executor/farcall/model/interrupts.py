"""SIGINT handler while jobs are being ended: whoever presses Ctrl-C again wants to leave.

SIGINT has one handler in a process, and several sessions may end jobs at overlapping times. So
all of them share one handler, which is there as long as any of them wants to know.
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
"""Who wants to know, and how often. All are of the main thread, which alone sets handlers."""


def is_ctrl_c(error: BaseException) -> bool:
    """Return whether an error may be somebody's Ctrl-C, which Python raises in the main thread."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and isinstance(error, KeyboardInterrupt)


def left_by(error: BaseException) -> str:
    """Say by what somebody has left: asyncio passes Ctrl-C on as a cancellation."""
    if isinstance(error, KeyboardInterrupt):
        return "left by Ctrl-C"
    if isinstance(error, asyncio.CancelledError):
        return "left by Ctrl-C or a cancellation"
    return f"left by {type(error).__name__}"


class Interrupts:
    """Tells of Ctrl-C before it does what it would do anyway; only while somebody wants to know.

    On another thread than the main one it tells nothing.

    Args:
        on_interrupt: Is told, in a signal handler: it has to be brief.
    """

    def __init__(self, on_interrupt: Callable[[], None]) -> None:
        self.on_interrupt = on_interrupt

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        _wanted[self] += 1
        if _wanted.total() > 1:
            return  # the handler is there, or the program has set another since
        now = signal.getsignal(signal.SIGINT)
        if isinstance(now, _Relay):  # of an earlier time, which the program has put back
            _Relay.active = now
        elif callable(now):  # else it is ignored, or not Python's affair
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
    """The handler. A program that has kept it may call it forever: it always passes on.

    Attributes:
        active: The one that tells, or None.
        before: What does what Ctrl-C would do anyway.
    """

    active: ClassVar[_Relay | None] = None

    def __init__(self, before: _Handler) -> None:
        self.before = before

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self is _Relay.active:
            for each in list(_wanted):
                each.on_interrupt()
        self.before(number, frame)
