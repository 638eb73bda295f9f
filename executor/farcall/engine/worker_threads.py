"""Thread pool of a session, for work that would block the event loop, such as pickling."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

_THREADS = 4


class WorkerThreads:
    """Thread pool of a session that stays open after `close` while it is in use.

    Attributes:
        executor: The pool.
    """

    def __init__(self) -> None:
        self.executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="farcall")
        self._holders = 0
        self._is_closed = False

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self.executor, function, *args)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep the threads open while the block runs."""
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
            self._end()

    def close(self) -> None:
        """Stop the threads as soon as no block uses them."""
        self._is_closed = True
        self._end()

    def _end(self) -> None:
        if self._is_closed and not self._holders:
            self.executor.shutdown(wait=False, cancel_futures=True)
