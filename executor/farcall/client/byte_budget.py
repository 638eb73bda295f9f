"""Byte budget: how much may be held at once of what is fetched. No I/O."""

from __future__ import annotations

import asyncio
from collections import deque


class ByteBudget:
    """Lets tasks in up to a number of bytes, first come, first served.

    One at least is always inside, however large it is.

    Args:
        size_bytes: The bytes of all that are inside.
        most: Their number, however small they are.
    """

    def __init__(self, size_bytes: int, most: int) -> None:
        self._size_bytes = size_bytes
        self._most = most
        self._used_bytes = 0
        self._inside = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def enter(self, size_bytes: int) -> Reservation:
        """Wait for room, and take it."""
        place = Reservation(self)
        await place.grow(size_bytes)
        return place

    async def _take(self, size_bytes: int) -> None:
        if not self._waiting and self._has_room(size_bytes):
            self._note(size_bytes, 1)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it came in the same moment
                self._give_back(size_bytes)
            else:
                self._admit()
            raise

    def _give_back(self, size_bytes: int) -> None:
        self._note(-size_bytes, -1)
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            size_bytes, turn = self._waiting[0]
            if not turn.cancelled():
                if not self._has_room(size_bytes):
                    return
                self._note(size_bytes, 1)
                turn.set_result(None)
            self._waiting.popleft()

    def _has_room(self, size_bytes: int) -> bool:
        return not self._inside or (
            self._inside < self._most and self._used_bytes + size_bytes <= self._size_bytes
        )

    def _note(self, size_bytes: int, number: int) -> None:
        self._used_bytes += size_bytes
        self._inside += number


class Reservation:
    """The room that one task has in a budget.

    Attributes:
        size_bytes: How much it is.
    """

    def __init__(self, budget: ByteBudget) -> None:
        self.size_bytes = 0
        self._budget = budget
        self._is_inside = False

    async def grow(self, more_bytes: int) -> None:
        """Wait for more room.

        What it had goes back before: of several that wait for more, each would keep the others
        from it.
        """
        if self._is_inside and not more_bytes:
            return
        size_bytes = self.size_bytes + more_bytes
        self.leave()
        await self._budget._take(size_bytes)
        self.size_bytes, self._is_inside = size_bytes, True

    def leave(self) -> None:
        """Give the room back; doing so again does nothing."""
        if self._is_inside:
            self._is_inside = False
            self._budget._give_back(self.size_bytes)
            self.size_bytes = 0
