"""Pickling batcher: what many coroutines submit at once is pickled together, in one thread.

Ten thousand submissions of a moment would otherwise be ten thousand ways to a thread and back,
and the same function pickled as often.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from farcall.payload import pickling
from farcall.payload.pickling import Call, Packed

_TOGETHER = 256
"""Calls pickled in one go; those that wait for them go on together, which holds up the loop."""


class _Wanted(NamedTuple):
    function: Callable[..., Any]
    call: Call
    cache_dir: str
    packed: asyncio.Future[tuple[Packed, Packed]]


class Packer:
    """Pickles functions and arguments of one event loop.

    Args:
        in_thread: Runs a function in a thread.
    """

    def __init__(self, in_thread: Callable[..., Awaitable[Any]]) -> None:
        self._in_thread = in_thread
        self._wanted: list[_Wanted] = []
        self._packing: asyncio.Task[None] | None = None

    async def pack(
        self, function: Callable[..., Any], call: Call, cache_dir: str
    ) -> tuple[Packed, Packed]:
        """Pickle a function and the arguments of one call.

        Args:
            function: The function.
            call: The arguments.
            cache_dir: Folder for a pickle that is too large for the memory.

        Raises:
            TaskNotPicklableError: Something cannot be pickled; the message says what.
            NoRoomError: There is no room in that folder.
        """
        packed = asyncio.get_running_loop().create_future()
        self._wanted.append(_Wanted(function, call, cache_dir, packed))
        if self._packing is None or self._packing.done():
            self._packing = asyncio.ensure_future(self._pack_waiting())
        found: tuple[Packed, Packed] = await packed
        return found

    async def _pack_waiting(self) -> None:
        while self._wanted:
            some, self._wanted = self._wanted[:_TOGETHER], self._wanted[_TOGETHER:]
            some = [wanted for wanted in some if not wanted.packed.done()]  # cancelled meanwhile
            done: list[tuple[Packed, Packed] | Exception]
            try:
                done = await self._in_thread(_pack_all, some)
            except Exception as error:  # whatever it is, nobody is to wait for ever
                done = [error] * len(some)
            for wanted, found in zip(some, done, strict=True):
                if wanted.packed.done():
                    continue
                if isinstance(found, Exception):
                    wanted.packed.set_exception(found)
                else:
                    wanted.packed.set_result(found)
            del some, done  # which hold the pickles
            await asyncio.sleep(0)


def _pack_all(some: list[_Wanted]) -> list[tuple[Packed, Packed] | Exception]:
    """Pickle; what cannot be pickled has its error in the place of its pickles."""
    functions: dict[int, Packed] = {}
    done: list[tuple[Packed, Packed] | Exception] = []
    with pickling.project_by_value():
        for function, call, cache_dir, _ in some:
            try:
                if id(function) not in functions:
                    functions[id(function)] = pickling.pack_function(function)
                done.append((functions[id(function)], pickling.pack_call([call], cache_dir)))
            except Exception as error:  # the caller is to have it
                done.append(error)
    return done
