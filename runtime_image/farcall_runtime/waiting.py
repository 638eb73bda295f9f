"""Waiting for a call that may never return, without being held by it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

_Value = TypeVar("_Value")

LOOK_S = 0.25
"""How often a deadline is looked at; signals may change it."""


class NoAnswerError(Exception):
    """A call was given up."""


def ask(call: Callable[[], _Value], patience_s: float, deadline: Callable[[], float]) -> _Value:
    """Call something that lets other threads run, such as obstore.

    It runs in a thread of its own and this one waits. So a signal is handled at once, which a call
    into Rust would keep waiting, and the call can be given up; its thread is left to itself then.

    Args:
        call: What to call.
        patience_s: For how long to wait, in seconds.
        deadline: Tells when not to wait any longer, `time.monotonic`. It is asked again and again.

    Raises:
        NoAnswerError: The call was given up.
        BaseException: Whatever the call raises.
    """
    began = time.monotonic()
    values: list[_Value] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            values.append(call())
        except BaseException as error:  # the caller's to handle
            errors.append(error)
        done.set()

    threading.Thread(target=run, name="farcall-request", daemon=True).start()
    while not done.wait(LOOK_S):
        now = time.monotonic()
        if now > min(began + patience_s, deadline()):
            raise NoAnswerError(f"no answer for {now - began:.0f} s")
    if errors:
        raise errors[0]
    return values[0]
