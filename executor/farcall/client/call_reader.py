"""Argument reader: the calls of a sweep, made of iterables that are read while the first ones run.

What is at hand, such as a list, is read where its calls are pickled. Anything else may be slow or
endless, so it is read ahead: plain iterables in one thread of their own, async ones in one task
of the event loop. What has come is taken in blocks, as soon as there is enough, or after a moment.
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
"""Read in no time, and to their end. Of these very classes: others may do anything meanwhile."""

_AT_FIRST = 1000
_MOST_AHEAD = 100_000
_AHEAD_BYTES = 32 * 1024 * 1024
"""How many calls are read ahead: at first, and when it is known how large their pickles are."""

_LONGEST_MOMENT_S = 5.0
_SHARE_OF_TIME = 0.1
"""A moment grows with the time that was read, so a slow source ends up in hundreds of arrays, and
not in thousands."""

_TURN = 100
"""Rows of async iterables, which may never wait, after which the event loop has its turn."""


class Inputs:
    """What the calls of a sweep are made of.

    Args:
        sources: Iterables and async iterables, at least one; a row has an item of each, and the
            shortest ends them.
        arguments: Makes the arguments of a call of its number and its row; by default they are
            the row.

    Attributes:
        size: Number of calls; None where only reading tells.
        is_once: Whether they can be read once only.

    Raises:
        TypeError: One of them is no iterable.
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
        """Read them here; `is_at_hand` says whether that is quick."""
        rows: Iterator[Arguments] = zip(*self._sources, strict=False)
        return map(self._arguments, itertools.count(), rows) if self._arguments else rows

    def ahead(self) -> Ahead:
        """Begin to read them ahead."""
        if not any(map(_is_async, self._sources)):
            return _InThread(self.at_hand)
        return _InTask(self._each)

    async def _each(self) -> AsyncGenerator[Arguments, None]:
        """Read them on the event loop; those that may be slow are read in a thread."""
        plain = [each for each in self._sources if not _is_async(each)]
        others = Inputs(tuple(plain))
        rows = _listed(others.at_hand()) if others.is_at_hand else _from(_InThread(others.at_hand))
        sources = [aiter(each) for each in self._sources if _is_async(each)]  # type: ignore[arg-type]
        places = [_is_async(each) for each in self._sources]
        async with contextlib.aclosing(rows):
            for number in itertools.count():
                try:
                    # First what may end without a wait for the others.
                    row = iter(await anext(rows) if plain else ())
                    found = iter([await anext(each) for each in sources])
                except StopAsyncIteration:
                    return
                call = tuple(next(found if is_async else row) for is_async in places)
                yield self._arguments(number, call) if self._arguments else call


def _is_async(source: Source) -> bool:
    return hasattr(type(source), "__aiter__")


def _size(sources: tuple[Source, ...]) -> int | None:
    try:
        return min(len(source) for source in sources)  # type: ignore[arg-type]
    except Exception:  # a class that has a length for some of its objects alone
        return None


class Ahead:
    """Rows that are read ahead of who takes them, on one event loop.

    Attributes:
        most: How many may lie here.
        task: Where they are read, if that is on the event loop.
    """

    def __init__(self) -> None:
        self.most = _AT_FIRST
        self.task: asyncio.Task[None] | None = None
        self._rows: deque[Arguments] = deque()
        self._has_ended = False
        self._error: BaseException | None = None
        self._news = asyncio.Event()

    async def take(self, step: int = 1, moment_s: float = 0.0) -> list[Arguments]:
        """Wait for rows, and take those that have come.

        Args:
            step: Take a multiple of so many, where there are as many and others follow.
            moment_s: How long to wait, after the first one, for `most` of them.

        Returns:
            Some rows; none at their end.

        Raises:
            BaseException: What came out of an iterable.
        """
        while not self._rows and not self._has_ended:
            await self._hear()
        self._make_room()  # `most` may have grown
        until = clock.now() + moment_s
        while len(self._rows) < self.most and not self._has_ended:
            left_s = until - clock.now()
            if left_s <= 0:
                break
            with contextlib.suppress(asyncio.TimeoutError):
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
        """Wait until there is a first row, or enough of them, or an end."""
        self._news.clear()
        if self._has_ended or len(self._rows) >= self.most:
            return
        await self._news.wait()

    def close(self) -> None:
        """Read no more, as soon as the iterables let that be."""

    def _is_news(self) -> bool:
        return len(self._rows) == 1 or len(self._rows) >= self.most

    def _make_room(self) -> None: ...


class _InThread(Ahead):
    """Reads in a thread of its own, the same one for all rows.

    An iterable may wait forever, and nobody can end that. So the interpreter's end does not wait
    for this thread, and neither does `close`.
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
                if self._is_news():
                    self._tell()
                while len(self._rows) >= self.most and not self._is_closed:
                    self._room.wait()
                    self._room.clear()
                if self._is_closed:
                    return
        except BaseException as error:  # whatever it is, the waiting caller is to have it
            self._error = error
        finally:
            self._has_ended = True
            self._tell()

    def _tell(self) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended, and nobody waits
            self._loop.call_soon_threadsafe(self._news.set)


class _InTask(Ahead):
    """Reads on the event loop, in one task, as an ``async for`` loop there does."""

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
                    if self._is_news():
                        self._news.set()
                    if number % _TURN == 0:
                        await asyncio.sleep(0)
                    while len(self._rows) >= self.most:
                        self._room.clear()
                        await self._room.wait()
        except BaseException as error:  # likewise
            self._error = error
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
        finally:
            self._has_ended = True
            self._news.set()


class CallReader:
    """Reads calls once, block by block, in groups that are a task each.

    Args:
        inputs: What they are made of.
        chunksize: Calls in one group.
        linger_s: For how long a call waits at first for others to come.

    Attributes:
        given: How many calls were given out.
        task: What is to be cancelled and waited for at the end; None where nothing is.
    """

    def __init__(self, inputs: Inputs, chunksize: int, linger_s: float) -> None:
        self.given = 0
        self._given_bytes = 0
        self._chunksize = chunksize
        self._linger_s = linger_s
        self._began = clock.now()
        self._ahead = None if inputs.is_at_hand else inputs.ahead()
        self._block = inputs.at_hand() if inputs.is_at_hand else iter(())
        self.task = self._ahead.task if self._ahead else None

    async def groups(self) -> Iterator[list[Call]] | None:
        """Wait for calls; return the groups of those that have come, to be taken in any thread.

        Groups that are left are in the next answer. Only the last group of each answer may be a
        smaller one.

        Returns:
            None at the end of the calls.

        Raises:
            BaseException: What came out of an iterable.
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

    def note_bytes(self, size_bytes: int) -> None:
        """Take in how large the pickle of a group is: of large ones fewer are read ahead."""
        self._given_bytes += size_bytes
        if self._ahead is not None:
            fitting = _AHEAD_BYTES * self.given // self._given_bytes
            self._ahead.most = max(self._chunksize, min(_MOST_AHEAD, fitting))

    def close(self) -> None:
        """Read no more."""
        if self._ahead is not None:
            self._ahead.close()

    def _grouped(self, calls: Iterator[Arguments]) -> Iterator[list[Call]]:
        while some := list(itertools.islice(calls, self._chunksize)):
            self.given += len(some)
            yield [(args, {}) for args in some]


async def _listed(rows: Iterator[Arguments]) -> AsyncGenerator[Arguments, None]:
    for row in rows:
        yield row


async def _from(ahead: Ahead) -> AsyncGenerator[Arguments, None]:
    try:
        while rows := await ahead.take():
            for row in rows:
                yield row
    finally:
        ahead.close()
