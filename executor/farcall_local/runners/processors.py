"""Which waiting job gets processors next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Processors(Generic[T]):
    """First come, first served, over all queues.

    Only the job at the head may start, and it starts as soon as the processors it needs are
    free; nothing overtakes it. So no job starves: once a job is at the head, processors are
    given back and none are given out, hence it starts at the latest when every job that runs at
    that moment has ended; and each job has a finite number of jobs ahead of it, to which only
    retries are added, of which there are at most nine for each job that was ahead. The price is
    that a wide job at the head leaves processors idle while it waits.

    A need above the number of processors counts as all of them, so such a job runs alone.

    Args:
        count: Processors there are.
        waits: Says whether an item still wants processors; one that does not, because it was
            cancelled, is dropped when it reaches the head.
    """

    def __init__(self, count: int, waits: Callable[[T], bool]) -> None:
        self._count = float(count)
        self._free = float(count)
        self._waits = waits
        self._queue: deque[tuple[float, T]] = deque()

    def __iter__(self) -> Iterator[T]:
        """Iterate over what waits, head first."""
        return (item for _, item in self._queue if self._waits(item))

    def add(self, item: T, need: float, *, front: bool = False) -> None:
        """Let an item wait, at the front if it is tried again."""
        entry = (min(need, self._count), item)
        if front:
            self._queue.appendleft(entry)
        else:
            self._queue.append(entry)

    def take(self) -> T | None:
        """Give the head its processors and return it, or None when it must wait."""
        while self._queue:
            need, item = self._queue[0]
            if not self._waits(item):
                self._queue.popleft()
                continue
            if need > self._free:
                return None
            self._queue.popleft()
            self._free -= need
            return item
        return None

    def give_back(self, need: float) -> None:
        """Take back the processors of an item that has ended."""
        self._free += min(need, self._count)
