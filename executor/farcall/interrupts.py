"""Ctrl-C while jobs are being ended: whoever presses it again wants to leave."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeAlias

_Handler: TypeAlias = Callable[[int, FrameType | None], Any]


class Interrupts:
    """Tells of Ctrl-C before it does what it would do anyway; only while somebody wants to know.

    Args:
        on_interrupt: Is told, in a signal handler: it has to be brief.
    """

    def __init__(self, on_interrupt: Callable[[], None]) -> None:
        self._on_interrupt = on_interrupt
        self._wanted = 0
        self._before: _Handler | None = None

    def __enter__(self) -> None:
        self._wanted += 1
        if self._wanted > 1 or threading.current_thread() is not threading.main_thread():
            return  # only the main thread may set handlers, and gets signals
        before = signal.getsignal(signal.SIGINT)
        if callable(before):  # else it is ignored, or not Python's affair
            self._before = before
            signal.signal(signal.SIGINT, self._handle)

    def __exit__(self, *error: object) -> None:
        self._wanted -= 1
        if self._wanted or self._before is None:
            return
        if signal.getsignal(signal.SIGINT) == self._handle:  # nobody has set another since
            signal.signal(signal.SIGINT, self._before)
        self._before = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._on_interrupt()
        if self._before is not None:
            self._before(number, frame)
