"""Byte budget: limit of the fetched results in memory."""

from __future__ import annotations

import asyncio


class ByteBudget:
    """Admission of tasks up to a number of bytes, first come, first served.

    At least one task is always admitted, however large it is.

    Args:
        size_bytes: Maximum total size in bytes.
        most: Maximum number of tasks.
    """

    def __init__(self, size_bytes: int, most: int) -> None:
        self._size_bytes = size_bytes
        self._most = most
        self._used_bytes = 0
        self._inside = 0
        self._turn = asyncio.Lock()
        self._less = asyncio.Event()

    async def enter(self, size_bytes: int) -> Reservation:
        """Wait for capacity, and reserve it."""
        place = Reservation(self)
        await place.grow(size_bytes)
        return place

    async def _take(self, size_bytes: int) -> None:
        async with self._turn:
            while not self._has_room(size_bytes):
                self._less.clear()
                await self._less.wait()
            self._note(size_bytes, 1)

    def _give_back(self, size_bytes: int) -> None:
        self._note(-size_bytes, -1)
        self._less.set()

    def _has_room(self, size_bytes: int) -> bool:
        return not self._inside or (
            self._inside < self._most and self._used_bytes + size_bytes <= self._size_bytes
        )

    def _note(self, size_bytes: int, number: int) -> None:
        self._used_bytes += size_bytes
        self._inside += number


class Reservation:
    """One task's share of a budget.

    Attributes:
        size_bytes: Size of the share in bytes.
    """

    def __init__(self, budget: ByteBudget) -> None:
        self.size_bytes = 0
        self._budget = budget
        self._is_inside = False

    async def grow(self, more_bytes: int) -> None:
        """Wait for more capacity.

        The current share is returned first, because several waiting tasks would otherwise block
        each other.
        """
        if self._is_inside and not more_bytes:
            return
        size_bytes = self.size_bytes + more_bytes
        self.leave()
        await self._budget._take(size_bytes)
        self.size_bytes, self._is_inside = size_bytes, True

    def leave(self) -> None:
        """Return the share; a second call does nothing."""
        if self._is_inside:
            self._is_inside = False
            self._budget._give_back(self.size_bytes)
            self.size_bytes = 0
