"""Threads of the supervisor, and calls in threads that may never return."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

_Value = TypeVar("_Value")

POLL_S = 0.25
"""Interval between checks of a deadline in seconds; signals may change the deadline."""


class NoResponseError(Exception):
    """A call was abandoned, or could not be made in this process's current state."""


class NoThreadError(NoResponseError):
    """The container's limit of processes or of memory allows no further thread."""


def convert_panic(call: Callable[[], _Value]) -> _Value:
    """Call into Rust; a panic is not an `Exception` and would pass every handler.

    Raises:
        NoResponseError: It panicked, for example because the process may not start more threads.
        Exception: Any other exception of the call.
    """
    try:
        return call()
    except (Exception, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as panic:
        raise NoResponseError(f"{type(panic).__name__}: {panic}") from panic


def start_thread(run: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon thread.

    Raises:
        NoThreadError: The container allows no further thread.
    """
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # a limit of processes, or of memory for stacks
        raise NoThreadError(f"cannot start a thread: {error}") from error
    return thread


def call_in_thread(
    call: Callable[[], _Value], patience_s: float, deadline: Callable[[], float]
) -> _Value:
    """Make a call that does not block other threads, such as obstore's.

    It runs in a separate thread while this thread waits. So signals are handled at once, which a
    call into Rust would delay, and the call can be abandoned; its thread then continues.

    Args:
        call: The call.
        patience_s: Maximum wait in seconds.
        deadline: Returns when to stop waiting, `time.monotonic`. It is called repeatedly.

    Raises:
        NoResponseError: The call was abandoned or panicked.
        NoThreadError: There was no thread for it.
        Exception: Any other exception of the call.
    """
    began = time.monotonic()
    values: list[_Value] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            values.append(convert_panic(call))
        except BaseException as error:  # handled by the caller
            errors.append(error)
        done.set()

    start_thread(run, "farcall-request")
    while not done.wait(POLL_S):
        now = time.monotonic()
        if now > min(began + patience_s, deadline()):
            raise NoResponseError(f"no response for {now - began:.0f} s")
    if errors:
        raise errors[0]
    return values[0]
