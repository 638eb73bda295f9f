"""Events for a browser that reads slowly."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from farcall.ui.watchers import Feed, Watcher


async def test_slow_listener_gets_changes_once():
    feed: Feed[int] = Feed(lambda key: key != 7)
    for _ in range(1000):
        feed.note(range(10))
    assert [0, 1, 2, 3] == await feed.take(4, 60)
    assert feed.is_behind
    feed.note([1])
    assert [4, 5, 6, 8, 9, 1] == await feed.take(100, 60)
    assert not feed.is_behind


async def test_event_without_key_wakes_listener():
    feed: Feed[int] = Feed(lambda key: True)
    feed.note([])
    assert [] == await feed.take(100, 60)
    assert [] == await feed.take(100, 0.01)


class Counting(Watcher[int]):
    """Counts its polls."""

    looks = 0

    def keys(self):
        return []

    def is_active(self):
        return False

    async def poll(self):
        self.looks += 1


async def test_last_listener_leaving_stops_polling(clock):
    watcher = Counting(SimpleNamespace(trouble="", last_minute=0))
    with watcher.listen():
        await asyncio.sleep(15)
        watcher.poll_soon()
    looks = watcher.looks
    await asyncio.sleep(600)
    assert watcher.looks == looks
