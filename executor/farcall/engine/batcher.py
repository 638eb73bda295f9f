"""Batcher: what many coroutines ask for within a moment is asked for together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from itertools import islice
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Batcher(Generic[K, V]):
    """Puts requests of one event loop together; one batch goes behind the other.

    Args:
        answer: Answers some of them, each with its value or what it has to raise, in their
            order; what it raises itself is the answer to all.
        most: How many it is given at once; by default all.
        wait_s: How long a batch waits for others before it begins.
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
        self._asked: dict[K, asyncio.Future[V]] = {}
        self._answering: asyncio.Task[None] | None = None

    def ask(self, key: K) -> asyncio.Future[V]:
        """Ask for something; equal keys share an answer.

        Returns:
            The answer. Cancelled before its batch begins it is not asked for; who shares it
            shields it.
        """
        future = self._asked.get(key)
        if future is None or future.cancelled():
            future = self._asked[key] = asyncio.get_running_loop().create_future()
        if self._answering is None or self._answering.done():
            self._answering = asyncio.ensure_future(self._run())
        return future

    async def _run(self) -> None:
        while self._asked:
            # At least a turn of the loop: what those do next who have waited holds it up.
            await asyncio.sleep(self._wait_s)
            keys = list(islice(self._asked, self._most))
            batch = {key: self._asked.pop(key) for key in keys}
            await self._answer_batch({k: f for k, f in batch.items() if not f.cancelled()})
            del keys, batch  # which hold what was asked and answered
        self._answering = None  # which holds the loop

    async def _answer_batch(self, batch: dict[K, asyncio.Future[V]]) -> None:
        answers: Sequence[V | Exception]
        try:
            answers = await self._answer(list(batch))
        except Exception as error:  # whatever it is, nobody is to wait for ever
            answers = [error] * len(batch)
        for future, answer in zip(batch.values(), answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
