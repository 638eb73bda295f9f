"""Weak references to holders of objects: what nobody can ask for any more is deleted."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import weakref

from farcall.storage.store import Store


class Held:
    """What is in the bucket for the sake of those who hold on to a job, on one event loop."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._held: dict[int, tuple[Store, list[str]]] = {}

    def hold(self, holder: object, store: Store, keys: list[str]) -> None:
        """Keep objects until their holder is gone."""
        number = next(self._numbers)
        self._held[number] = store, keys
        loop = asyncio.get_running_loop()
        weakref.finalize(holder, _tell, weakref.ref(self), loop, number).atexit = False

    def let_go(self) -> None:
        """Have all of them deleted."""
        for number in list(self._held):
            self._release(number)

    def _release(self, number: int) -> None:
        if number in self._held:
            store, keys = self._held.pop(number)
            store.delete_later(keys)


def _tell(reference: weakref.ref[Held], loop: asyncio.AbstractEventLoop, number: int) -> None:
    """Have objects deleted by the event loop: a holder may come to its end in any thread."""
    held = reference()
    if held is not None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it the session
            loop.call_soon_threadsafe(held._release, number)
