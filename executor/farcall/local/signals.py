"""The signals that end programs, handled for a while."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def handling(handler: Callable[[int], object]) -> Iterator[None]:
    """Handle SIGINT, SIGTERM and SIGHUP, and give them back afterwards.

    To be called from the main thread.

    Args:
        handler: Is given the signal's number.
    """
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    former = {
        number: signal.signal(number, lambda received, _: handler(received)) for number in numbers
    }
    try:
        yield
    finally:
        for number, action in former.items():
            # None stands for a handler that is not Python's, which cannot be put back.
            signal.signal(number, signal.SIG_DFL if action is None else action)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Let signals wait, so that a handler that raises does not come between two steps.

    In other threads than the main one nothing is to be done: handlers run there alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    try:
        with handling(held.append):
            yield
    finally:
        for number in held:
            signal.raise_signal(number)
