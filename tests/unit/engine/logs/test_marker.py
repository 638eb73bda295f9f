"""The marker that makes a container upload its output sooner."""

from __future__ import annotations

import asyncio

import pytest

from farcall.engine.logs.sources import Marker
from farcall.model.errors import ServiceError
from farcall_runtime.contract import FOLLOWED_S, SOON_CHUNKS
from tests.unit.fakes import Clock


class Bucket:
    def __init__(self, error=None):
        self.stored, self.deleted, self._error = [], [], error

    async def put(self, key, pieces, *, quick):
        self.stored.append(key)
        if self._error is not None:
            raise self._error

    def delete_later(self, keys):
        self.deleted += keys


@pytest.fixture
def clock(monkeypatch):
    async def start():
        return Clock(asyncio.get_running_loop(), monkeypatch)

    return start


async def follow(mark, seconds, chunks):
    """Renew the marker twice a second, like a reader."""
    for _ in range(int(seconds * 2)):
        mark.renew({"stdout": chunks, "stderr": 0})
        await asyncio.sleep(0.5)


async def test_short_output_needs_no_marker(clock):
    await clock()
    bucket = Bucket()
    mark = Marker(bucket, "followed")
    await follow(mark, 600, SOON_CHUNKS // 2 - 1)
    await mark.remove()
    assert (bucket.stored, bucket.deleted) == ([], [])


async def test_marker_is_renewed_then_deleted(clock):
    await clock()
    bucket = Bucket()
    mark = Marker(bucket, "followed")
    await follow(mark, 4 * FOLLOWED_S, SOON_CHUNKS)
    await mark.remove()
    assert len(bucket.stored) == 10
    assert bucket.deleted == ["followed"]


@pytest.mark.parametrize(("code", "times"), [("AccessDenied", 1), ("SlowDown", 10)])
async def test_forbidden_marker_is_tried_once(clock, code, times):
    await clock()
    bucket = Bucket(ServiceError("no", operation="PutObject", code=code))
    mark = Marker(bucket, "followed")
    await follow(mark, 4 * FOLLOWED_S, SOON_CHUNKS)
    await mark.remove()
    assert len(bucket.stored) == times
