"""Argument reader: reads a sweep's iterables while the first calls run.

Collections such as lists are read while their calls are pickled. Other iterables may be slow or
endless, so they are read ahead: plain iterables in a separate thread, async iterables in a task of
the event loop. Rows are taken in blocks, as soon as there are enough, or after a delay.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Iterator
from typing import Any, TypeAlias

from farcall.client.arguments import check_iterables
from farcall.model import clock
from farcall.payload.pickling import Call

Arguments: TypeAlias = "tuple[Any, ...]"
"""Positional arguments of a call."""

Source: TypeAlias = "Iterable[Any] | AsyncIterable[Any]"

_AT_HAND: tuple[type, ...] = (
    *(list, tuple, range, dict, set, frozenset, deque, str, bytes, bytearray),
    *(type({}.keys()), type({}.values()), type({}.items())),
)
"""Finite classes that are quick to read, without subclasses, which may run any code."""

_AT_FIRST = 1000
_MOST_AHEAD = 100_000
_AHEAD_BYTES = 32 * 1024 * 1024
"""Limits of reading ahead: a number at first, then bytes, once pickle sizes are known."""

_LONGEST_MOMENT_S = 5.0
_SHARE_OF_TIME = 0.1
"""Delay as a share of the reading time, so that slow sources create few arrays."""

_TURN = 100
"""Rows of an async iterable after which the event loop runs other tasks."""


class Inputs:
    """Sources of a sweep's calls.

    Args:
        sources: Iterables and async iterables, at least one; a row has an item of each, and the
            shortest ends them.
        arguments: Returns a call's arguments for its number and its row; by default they are the
            row.

    Attributes:
        size: Number of calls; None if it is known only after reading.
        is_once: Whether the sources can be read only once.

    Raises:
        TypeError: A source is not iterable.
    """

    def __init__(
        self,
        sources: tuple[Source, ...],
        arguments: Callable[[int, Arguments], Arguments] | None = None,
    ) -> None:
        __tracebackhide__ = True
        check_iterables(sources, ("iter", "aiter"))
        self.size = _size(sources)
        self.is_once = any(hasattr(each, n) for each in sources for n in ("__next__", "__anext__"))
        self.is_at_hand = all(type(each) in _AT_HAND for each in sources)
        self._sources = sources
        self._arguments = arguments

    def at_hand(self) -> Iterator[Arguments]:
        """Read the calls in this thread; `is_at_hand` is whether that is quick."""
        rows: Iterator[Arguments] = zip(*self._sources, strict=False)
        return map(self._arguments, itertools.count(), rows) if self._arguments else rows

    def ahead(self) -> Ahead:
        """Start reading the calls ahead."""
        if not any(map(_is_async, self._sources)):
            return _InThread(self.at_hand)
        return _InTask(self._each)

    async def _each(self) -> AsyncGenerator[Arguments, None]:
        """Read the sources on the event loop, the slow ones in a thread."""
        plain = [each for each in self._sources if not _is_async(each)]
        rows = _from(_InThread(Inputs(tuple(plain)).at_hand if plain else lambda: iter(())))
        sources = [aiter(each) for each in self._sources if _is_async(each)]  # type: ignore[arg-type]
        places = [_is_async(each) for each in self._sources]
        async with contextlib.aclosing(rows):
            for number in itertools.count():
                try:
                    # Read first the iterables that can end without waiting for the others.
                    row = iter(await anext(rows) if plain else ())
                    row_values = iter([await anext(each) for each in sources])
                except StopAsyncIteration:
                    return
                call = tuple(next(row_values if is_async else row) for is_async in places)
                yield self._arguments(number, call) if self._arguments else call


def _is_async(source: Source) -> bool:
    return hasattr(type(source), "__aiter__")


def _size(sources: tuple[Source, ...]) -> int | None:
    try:
        return min(len(source) for source in sources)  # type: ignore[arg-type]
    except Exception:  # a class whose objects do not all have a length
        return None


class Ahead:
    """Rows that are read ahead of the consumer, on one event loop.

    Attributes:
        most: Maximum number of rows kept here.
        task: The reading task, if rows are read on the event loop.
    """

    def __init__(self) -> None:
        self.most = _AT_FIRST
        self.task: asyncio.Task[None] | None = None
        self._rows: deque[Arguments] = deque()
        self._has_ended = False
        self._error: BaseException | None = None
        self._changed = asyncio.Event()

    async def take(self, step: int = 1, moment_s: float = 0.0) -> list[Arguments]:
        """Wait for rows, and return the available ones.

        Args:
            step: Return a multiple of this number, if enough rows are available and others follow.
            moment_s: Seconds to wait, after the first row, until there are `most` rows.

        Returns:
            Rows; none at the end.

        Raises:
            BaseException: The exception of an iterable.
        """
        while not self._rows and not self._has_ended:
            await self._hear()
        self._make_room()  # `most` may have grown
        until = clock.now() + moment_s
        while len(self._rows) < self.most and not self._has_ended:
            left_s = until - clock.now()
            if left_s <= 0:
                break
            with contextlib.suppress(TimeoutError):
                await clock.within(left_s, self._hear())
        if self._error is not None:
            raise self._error
        size = min(len(self._rows), self.most)
        if size > step and not self._has_ended:
            size -= size % step
        taken = [self._rows.popleft() for _ in range(size)]
        self._make_room()
        return taken

    async def _hear(self) -> None:
        """Wait for a first row, enough rows, or the end."""
        self._changed.clear()
        if self._has_ended or len(self._rows) >= self.most:
            return
        await self._changed.wait()

    def close(self) -> None:
        """Stop reading as soon as the iterables permit it."""

    def _has_changed(self) -> bool:
        return len(self._rows) == 1 or len(self._rows) >= self.most

    def _make_room(self) -> None: ...


class _InThread(Ahead):
    """Reader in a separate thread, the same one for all rows.

    An iterable may block forever and cannot be interrupted, so neither `close` nor the
    interpreter's exit waits for this thread.
    """

    def __init__(self, read: Callable[[], Iterator[Arguments]]) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._room = threading.Event()
        self._is_closed = False
        run = contextvars.copy_context().run
        name = "farcall-arguments"
        threading.Thread(target=run, args=(self._read, read), name=name, daemon=True).start()

    def close(self) -> None:
        self._is_closed = True
        self._room.set()

    def _make_room(self) -> None:
        self._room.set()

    def _read(self, read: Callable[[], Iterator[Arguments]]) -> None:
        try:
            for row in read():
                self._rows.append(row)
                if self._has_changed():
                    self._notify()
                while len(self._rows) >= self.most and not self._is_closed:
                    self._room.wait()
                    self._room.clear()
                if self._is_closed:
                    return
        except BaseException as error:  # the waiting caller receives any error
            self._error = error
        finally:
            self._has_ended = True
            self._notify()

    def _notify(self) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended, and no caller waits
            self._loop.call_soon_threadsafe(self._changed.set)


class _InTask(Ahead):
    """Reader in one task on the event loop, with an ``async for`` loop."""

    def __init__(self, read: Callable[[], AsyncGenerator[Arguments, None]]) -> None:
        super().__init__()
        self._room = asyncio.Event()
        self.task = asyncio.ensure_future(self._read(read()))

    def close(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def _make_room(self) -> None:
        self._room.set()

    async def _read(self, rows: AsyncGenerator[Arguments, None]) -> None:
        number = 0
        try:
            async with contextlib.aclosing(rows):
                async for row in rows:
                    number += 1
                    self._rows.append(row)
                    if self._has_changed():
                        self._changed.set()
                    if number % _TURN == 0:
                        await asyncio.sleep(0)
                    while len(self._rows) >= self.most:
                        self._room.clear()
                        await self._room.wait()
        except BaseException as error:  # the waiting caller receives any error
            self._error = error
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
        finally:
            self._has_ended = True
            self._changed.set()


class CallReader:
    """Reader of calls, once and block by block, in groups that become one task each.

    Args:
        inputs: Sources of the calls.
        chunksize: Calls in one group.
        linger_s: Initial time in seconds that a call waits for others.

    Attributes:
        given: Number of returned calls.
    """

    def __init__(self, inputs: Inputs, chunksize: int, linger_s: float) -> None:
        self.given = 0
        self._given_bytes = 0
        self._chunksize = chunksize
        self._linger_s = linger_s
        self._began = clock.now()
        self._ahead = None if inputs.is_at_hand else inputs.ahead()
        self._block = inputs.at_hand() if inputs.is_at_hand else iter(())

    async def groups(self) -> Iterator[list[Call]] | None:
        """Wait for calls; return the available groups, which any thread may consume.

        The next call returns the groups that were not consumed. Only the last group of each return
        value may be smaller.

        Returns:
            The groups; None at the end of the calls.

        Raises:
            BaseException: The exception of an iterable.
        """
        while True:
            for first in self._block:
                return self._grouped(itertools.chain([first], self._block))
            if self._ahead is None:
                return None
            moment_s = max(self._linger_s, _SHARE_OF_TIME * (clock.now() - self._began))
            moment_s = min(moment_s, _LONGEST_MOMENT_S)
            taken = await self._ahead.take(self._chunksize, moment_s)
            if not taken:
                return None
            self._block = iter(taken)

    def record_bytes(self, size_bytes: int) -> None:
        """Record a group's pickled size, because fewer large calls are read ahead."""
        self._given_bytes += size_bytes
        if self._ahead is not None:
            fitting = _AHEAD_BYTES * self.given // self._given_bytes
            self._ahead.most = max(self._chunksize, min(_MOST_AHEAD, fitting))

    async def close(self) -> None:
        """Stop reading."""
        if self._ahead is not None:
            self._ahead.close()
            if self._ahead.task is not None:
                await asyncio.gather(self._ahead.task, return_exceptions=True)

    def _grouped(self, calls: Iterator[Arguments]) -> Iterator[list[Call]]:
        while some := list(itertools.islice(calls, self._chunksize)):
            self.given += len(some)
            yield [(args, {}) for args in some]


async def _from(ahead: Ahead) -> AsyncGenerator[Arguments, None]:
    try:
        while rows := await ahead.take():
            for row in rows:
                yield row
    finally:
        ahead.close()
