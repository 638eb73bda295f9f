"""Batcher: combines concurrent requests of many coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from itertools import islice
from typing import Generic, TypeVar

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
