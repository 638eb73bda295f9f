"""The signals that end programs, handled for a while."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def handling(handler: Callable[[int], object]) -> Iterator[None]:
    """Handle SIGINT, SIGTERM and SIGHUP, and give them back afterwards.

    To be called from the main thread.
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
