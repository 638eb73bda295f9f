"""Requests whose response was lost, because a thread of obstore ran out of memory.

obstore passes each response to the event loop from a thread of its own. If Python cannot allocate
memory there, the error is only printed, and the caller would wait forever.

Source:
    https://docs.rs/pyo3-async-runtimes/latest/src/pyo3_async_runtimes/generic.rs.html
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

_INTERVAL_S = 5.0
_ASYNCIO = str(Path(asyncio.__file__).parent)


class LostResponses:
    """Ends the waits of one event loop's tasks for responses that were lost."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Task[Any], int] = {}
        self._lost: dict[asyncio.Task[Any], BaseException] = {}
        self._checks = 0
        self._last = printed_error()
        self._timer: asyncio.TimerHandle | None = None

    def enter(self) -> asyncio.Task[Any]:
        """Begin the current task's wait for a response; return the task."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # says so to the type checker
        self._waiting[task] = self._checks
        if self._timer is None:
            self._last = printed_error()
            self.watch()
        return task

    def watch(self) -> None:
        """Schedule the next `check`."""
        self._timer = asyncio.get_running_loop().call_later(_INTERVAL_S, self.check)

    def leave(self, task: asyncio.Task[Any]) -> BaseException | None:
        """End a task's wait; return the error if its response was lost."""
        self._waiting.pop(task, None)
        error = self._lost.pop(task, None)
        if error is not None:
            task.uncancel()
        return error

    def check(self) -> None:
        """Cancel the waits that began before the last check, if an error was printed since.

        One that is cancelled although its response was not lost fails, too: other threads may run
        out of memory next.
        """
        error, self._timer = printed_error(), None
        if error is not None and error is not self._last:
            early = [task for task, began in self._waiting.items() if began < self._checks]
            for task in early:
                self._lost[task] = error
                task.cancel()
            if len(early) == len(self._waiting):
                self._last = error
        self._checks += 1
        if self._waiting:
            self.watch()


def printed_error() -> BaseException | None:
    """Return the last MemoryError that a thread of obstore has printed."""
    error, trace = getattr(sys, "last_value", None), getattr(sys, "last_traceback", None)
    if not isinstance(error, MemoryError):
        return None
    # Tracebacks that a notebook prints begin in a file of its own.
    is_foreign = trace is None or trace.tb_frame.f_code.co_filename.startswith(_ASYNCIO)
    return error if is_foreign else None
