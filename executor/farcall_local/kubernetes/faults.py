"""Faults of the Kubernetes emulator's API for tests, and its request counts."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator

from aiohttp import web

from farcall_local.kubernetes.errors import TooManyRequestsError


class Faults:
    """Pending faults.

    Attributes:
        requests: Number of requests by verb and resource: ``create jobs``.
    """

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self._lost = 0
        self._throttled = 0
        self._retry_after_s = 1
        self._watches: set[asyncio.Transport] = set()

    def lose_answer(self, count: int = 1) -> None:
        """Carry out the next creations, and close their connections without a response."""
        self._lost = count

    def throttle(self, count: int = 1, retry_after_s: int = 1) -> None:
        """Respond to the next requests with 429."""
        self._throttled, self._retry_after_s = count, retry_after_s

    def cut_watches(self) -> None:
        """Close the connections of all watches."""
        for transport in list(self._watches):
            transport.abort()

    def check_throttle(self) -> None:
        """Reject a request if it must be throttled.

        Raises:
            TooManyRequestsError: The request is throttled.
        """
        if self._throttled > 0:
            self._throttled -= 1
            self.requests["429"] += 1
            raise TooManyRequestsError(self._retry_after_s)

    def lose(self, request: web.BaseRequest) -> None:
        """Close the connection of a completed request if its response must be lost.

        Raises:
            ConnectionResetError: The response is lost.
        """
        if self._lost > 0:
            self._lost -= 1
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("its answer was to be lost")

    @contextlib.contextmanager
    def watching(self, request: web.BaseRequest) -> Iterator[None]:
        """Register a request as an open watch."""
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client has disconnected")
        self._watches.add(transport)
        try:
            yield
        finally:
            self._watches.discard(transport)
