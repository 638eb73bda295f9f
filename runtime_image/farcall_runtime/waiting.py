"""Threads of the supervisor's, and waiting for a call that may never return in one of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

_Value = TypeVar("_Value")

LOOK_S = 0.25
"""How often a deadline is looked at; signals may change it."""


class NoAnswerError(Exception):
    """A call was given up, or could not be made as things are in this process."""


class NoThreadError(NoAnswerError):
    """The container's limit of processes, or of memory for stacks, has no room for a thread."""


def calm(call: Callable[[], _Value]) -> _Value:
    """Call into Rust, where a panic is no `Exception` and would pass every handler.

    Raises:
        NoAnswerError: It panicked; where the container may have no more threads, for one.
        Exception: Whatever else the call raises.
    """
    try:
        return call()
    except (Exception, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as panic:
        raise NoAnswerError(f"{type(panic).__name__}: {panic}") from panic


def start_thread(run: Callable[[], object], name: str) -> threading.Thread:
    """Start a thread that the process does not wait for at its end.

    Raises:
        NoThreadError: The container has no room for another one.
    """
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # a limit of processes, or of memory for stacks
        raise NoThreadError(f"no thread: {error}") from error
    return thread


def ask(call: Callable[[], _Value], patience_s: float, deadline: Callable[[], float]) -> _Value:
    """Call something that lets other threads run, such as obstore.

    It runs in a thread of its own and this one waits. So a signal is handled at once, which a call
    into Rust would keep waiting, and the call can be given up; its thread is left to itself then.

    Args:
        call: What to call.
        patience_s: For how long to wait, in seconds.
        deadline: Tells when not to wait any longer, `time.monotonic`. It is asked again and again.

    Raises:
        NoAnswerError: The call was given up or panicked.
        NoThreadError: There was no thread for it.
        Exception: Whatever else the call raises.
    """
    began = time.monotonic()
    values: list[_Value] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            values.append(calm(call))
        except BaseException as error:  # the caller's to handle
            errors.append(error)
        done.set()

    start_thread(run, "farcall-request")
    while not done.wait(LOOK_S):
        now = time.monotonic()
        if now > min(began + patience_s, deadline()):
            raise NoAnswerError(f"no answer for {now - began:.0f} s")
    if errors:
        raise errors[0]
    return values[0]
