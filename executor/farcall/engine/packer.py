"""Pickling of submitted calls, in batches and in threads.

Without batches, ten thousand simultaneous submissions would need ten thousand round trips to a
thread and pickle the same function as often.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from farcall.config.settings import Settings
from farcall.payload import pickling
from farcall.payload.call_texts import CallTexts
from farcall.payload.pickling import Call, Packed
from farcall.payload.project import Pickling
from farcall.payload.shared import Digests

# --- Thread pool of a session: for work that would block the event loop, such as pickling -------


_THREADS = 4

T = TypeVar("T")


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


# --- Batcher: combines concurrent requests of many coroutines -----------------------------------


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Batcher(Generic[K, V]):
    """Joins requests of one event loop into batches, which run one after another.

    Args:
        answer: Returns a result or an exception per request, in their order. If it raises, all
            requests of the batch fail with that exception.
        most: Maximum size of a batch; None for no limit.
        wait_s: Time in seconds that a batch waits for more requests before it starts.
    """

    def __init__(
        self,
        answer: Callable[[list[K]], Awaitable[Sequence[V | Exception]]],
        most: int | None = None,
        wait_s: float = 0.0,
    ) -> None:
        self._answer = answer
        self._most = most
        self._wait_s = wait_s
        self._requests: dict[K, asyncio.Future[V]] = {}
        self._answering: asyncio.Task[None] | None = None

    def add(self, key: K) -> asyncio.Future[V]:
        """Add a request; equal keys share a result.

        Returns:
            The result. If it is cancelled before its batch starts, the request is not made;
            callers that share a result must shield it.
        """
        future = self._requests.get(key)
        if future is None or future.cancelled():
            future = self._requests[key] = asyncio.get_running_loop().create_future()
        if self._answering is None or self._answering.done():
            self._answering = asyncio.ensure_future(self._run())
        return future

    async def close(self, error: Exception) -> None:
        """Cancel the running batch, and raise an error in all callers."""
        if self._answering is not None:
            self._answering.cancel()
            await asyncio.gather(self._answering, return_exceptions=True)
        for future in self._requests.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # its callers may have left; this suppresses asyncio's warning
        self._requests.clear()

    async def finish(self) -> None:
        """Wait for the results of all requests; repeat those that a cancellation interrupted."""
        while self._requests or self._answering is not None:
            if self._answering is None or self._answering.done():
                self._answering = asyncio.ensure_future(self._run())
            await asyncio.gather(self._answering, return_exceptions=True)

    async def _run(self) -> None:
        while self._requests:
            # Wait at least one iteration of the loop, because resumed callers may block it.
            await asyncio.sleep(self._wait_s)
            keys = list(islice(self._requests, self._most))
            batch = {key: self._requests.pop(key) for key in keys}
            await self._answer_batch({k: f for k, f in batch.items() if not f.cancelled()})
            del keys, batch  # they hold requests and responses
        self._answering = None  # it holds the loop

    async def _answer_batch(self, batch: dict[K, asyncio.Future[V]]) -> None:
        answers: Sequence[V | Exception]
        try:
            answers = await self._answer(list(batch))
        except asyncio.CancelledError:
            self._requests.update(batch)  # for `close`
            raise
        except Exception as error:  # no caller may wait forever
            answers = [error] * len(batch)
        for future, answer in zip(batch.values(), answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
                future.exception()  # as in `close`
            else:
                future.set_result(answer)


_TOGETHER = 256
"""Maximum calls pickled in one batch.

Their callers resume together, which blocks the event loop.
"""


@dataclass(frozen=True, eq=False, slots=True)
class FunctionCall:
    """Calls of a function that one task makes.

    Attributes:
        function: The function.
        calls: Arguments of each call.
        settings: Options of the job.
    """

    function: Callable[..., Any]
    calls: Sequence[Call]
    settings: Settings

    @property
    def name(self) -> str:
        """Name of the function."""
        return getattr(self.function, "__name__", "task")

    async def pack(self, session: Packing) -> tuple[Packed, Packed]:
        """Pickle the function and the arguments.

        Raises:
            TaskNotPicklableError: The function or an argument cannot be pickled.
            NoRoomError: ``cache_dir`` has no room.
        """
        return await session.packer.pack(self)


class Packing(Protocol):
    """The session's interface to calls."""

    packer: Packer


class Packer:
    """Pickles functions and arguments of one event loop."""

    def __init__(self, threads: WorkerThreads) -> None:
        self._batcher: Batcher[FunctionCall, tuple[Packed, Packed]] = Batcher(
            partial(threads.run, _pack_all), _TOGETHER
        )

    async def pack(self, call: FunctionCall) -> tuple[Packed, Packed]:
        """Pickle a function and the arguments of the calls that one task makes.

        Raises:
            TaskNotPicklableError: The function or an argument cannot be pickled; the message names
                it.
            NoRoomError: ``cache_dir`` has no room.
        """
        return await self._batcher.add(call)


def _pack_all(some: list[FunctionCall]) -> list[tuple[Packed, Packed] | Exception]:
    """Pickle a batch; an unpicklable call gets its error in place of its pickles."""
    functions: dict[tuple[int, str], Packed] = {}
    texts: dict[int, CallTexts] = {}
    digests = Digests()  # the calls of a batch are concurrent
    done: list[tuple[Packed, Packed] | Exception] = []
    using: dict[str, Pickling] = {}
    for wanted in some:
        function, settings = wanted.function, wanted.settings
        option = repr((settings.sources, settings.exclude_sources))
        key = id(function), option
        try:
            if option not in using:
                using[option] = Pickling.of(settings)
            if key not in functions:
                functions[key] = pickling.pack_function(
                    function, None, digests, using=using[option]
                )
                texts[id(function)] = CallTexts(function)
            to_text = texts[id(function)].of if settings.store_call_summaries else None
            call = next(
                pickling.pack_calls(
                    [wanted.calls], settings.cache_dir, to_text, digests, using=using[option]
                )
            )
            done.append((functions[key], call))
        except Exception as error:  # the caller receives it
            done.append(error)
    return done
