"""Faults of the local Kubernetes emulator's API for tests, and the count of its requests."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from aiohttp import web

from farcall_local.kubernetes.errors import TooManyRequestsError
from farcall_local.kubernetes.store import Store, Watch


class OpenWatch:
    """A watch that is being answered.

    Attributes:
        request: Its request.
        is_ended: Whether its answer is to come to an end.
    """

    def __init__(self, request: web.BaseRequest, watch: Watch) -> None:
        self.request = request
        self.is_ended = False
        self._watch = watch

    def end(self) -> None:
        """Have its answer come to an end."""
        self.is_ended = True
        self._watch.news.set()


class Faults:
    """What is to go wrong next.

    Attributes:
        requests: How many there were, by verb and resource: ``create jobs``.
    """

    def __init__(self, store: Store) -> None:
        self.requests: Counter[str] = Counter()
        self._store = store
        self._lost = 0
        self._throttled = 0
        self._retry_after_s = 1
        self._watches: set[OpenWatch] = set()

    def lose_answer(self, count: int = 1) -> None:
        """Carry the next creations out, and close their connections without an answer."""
        self._lost = count

    def throttle(self, count: int = 1, retry_after_s: int = 1) -> None:
        """Answer the next requests with 429."""
        self._throttled, self._retry_after_s = count, retry_after_s

    def compact(self) -> None:
        """Forget what was: watches and pages of lists from before are refused with 410."""
        self._store.compact()

    def cut_all(self, *, clean: bool = False) -> None:
        """End all watches.

        Args:
            clean: Whether their answers come to an end, as after their time; else their
                connections are cut within them.
        """
        for open_ in list(self._watches):
            if clean:
                open_.end()
            else:
                _cut(open_.request)

    def count(self, what: str) -> None:
        """Count a request."""
        self.requests[what] += 1

    def check_throttle(self) -> None:
        """Refuse a request if it is one of those.

        Raises:
            TooManyRequestsError: It is.
        """
        if self._throttled > 0:
            self._throttled -= 1
            self.requests["429"] += 1
            raise TooManyRequestsError(self._retry_after_s)

    def lose(self, request: web.BaseRequest) -> None:
        """Cut the connection of a request that was carried out, if it is one of those.

        Raises:
            ConnectionResetError: It is.
        """
        if self._lost > 0:
            self._lost -= 1
            _cut(request)
            raise ConnectionResetError("its answer was to be lost")

    @contextlib.contextmanager
    def watching(self, request: web.BaseRequest, watch: Watch) -> Iterator[OpenWatch]:
        """Know a request as an open watch."""
        open_ = OpenWatch(request, watch)
        self._watches.add(open_)
        try:
            yield open_
        finally:
            self._watches.discard(open_)


def _cut(request: web.BaseRequest) -> None:
    if request.transport is not None:
        request.transport.abort()
