"""Shared values of a session: the bundles that need them, and their deletion."""

from __future__ import annotations

import asyncio
import hashlib
import os
from dataclasses import replace

import pytest

from farcall.engine import shared as module
from farcall.engine.shared import SharedValues
from farcall.model.errors import FarcallError
from farcall.payload.shared import Piece
from farcall.storage import shared as rule
from farcall_runtime.contract import Location, bundles_prefix, run_root
from tests.unit.fakes import store_in_memory

DATA = os.urandom(3000)
DIGEST = hashlib.sha256(DATA)
PIECE = Piece(DIGEST.digest(), len(DATA), DATA)
ROOT = run_root("farcall", "run")
WHERE = Location("bucket", ROOT, "work-1")
PLACE = WHERE.shared(DIGEST.hexdigest())


class World:
    """Shared values of sessions, and their bucket."""

    def __init__(self, timing):
        self.store = store_in_memory()
        self.timing = timing
        self.values = self.session("run")
        self.sessions = [self.values]

    def session(self, run):
        return SharedValues(run, self.timing)

    async def use(self, piece=PIECE, values=None):
        """Use a value like a bundle, whose pieces are made in a thread."""
        use = (values or self.values).use(self.store, ROOT)
        future = await asyncio.to_thread(use, piece)
        return use, await asyncio.wrap_future(future)

    async def stored(self):
        return [key for key, _ in await self.store.list_keys(PLACE.data_prefix)]

    async def markers(self):
        return [key for key, _ in await self.store.list_keys(PLACE.held_prefix)]


@pytest.fixture
async def here(timing):
    made = World(timing)
    yield made
    await made.values.close()


async def test_value_is_checked_once_then_cached(here, monkeypatch):
    asked = []

    async def hold(*args, **options):
        asked.append(args[3].sha256)
        return await real(*args, **options)

    real = rule.hold
    monkeypatch.setattr(rule, "hold", hold)
    _, first = await here.use()
    _, second = await here.use()
    assert first == second
    assert len(asked) == len(await here.stored()) == 1


@pytest.mark.timing(shared_mark_s=0.0)
async def test_old_marker_is_renewed(here):
    _, first = await here.use()
    await here.store.delete([PLACE.data_key(first)])
    _, second = await here.use()
    assert second != first
    assert await here.stored() == [PLACE.data_key(second)]


async def test_concurrent_uses_store_one_value(here):
    found = await asyncio.gather(*(here.use() for _ in range(20)))
    assert len({generation for _, generation in found}) == 1
    assert len(await here.stored()) == 1


async def test_unused_value_is_deleted_at_close(here):
    use, _ = await here.use()
    use.record_submitted(WHERE)
    other, _ = await here.use()
    other.release()
    here.values.record_deleted(WHERE)
    assert await here.stored()  # kept for the next map
    await here.values.close()
    assert not await here.stored()
    assert not await here.markers()


async def test_kept_bundle_keeps_its_values(here):
    use, generation = await here.use()
    use.record_submitted(WHERE)
    await here.values.close()
    assert await here.stored() == [PLACE.data_key(generation)]
    assert await here.markers() == [PLACE.held_key("run")]


async def test_put_value_stays_until_discarded(here):
    await here.values.pin(here.store, ROOT, [PIECE])
    await here.values.pin(here.store, ROOT, [PIECE])
    await here.values.discard(here.store, ROOT, [PIECE.sha256])
    assert await here.stored()  # it was put twice
    await here.values.discard(here.store, ROOT, [PIECE.sha256])
    assert not await here.stored()


async def test_discarded_value_waits_for_its_bundles(here):
    await here.values.pin(here.store, ROOT, [PIECE])
    use, _ = await here.use(replace(PIECE, data=None))
    use.record_submitted(WHERE)
    await here.values.discard(here.store, ROOT, [PIECE.sha256])
    assert await here.stored()
    here.values.record_deleted(WHERE)
    await here.values.close()
    assert not await here.stored()


async def test_unstorable_value_is_not_held(here):
    wrong = replace(PIECE, data=b"y" * len(DATA))
    with pytest.raises(FarcallError, match="was changed while"):
        await here.values.pin(here.store, ROOT, [wrong])
    use = here.values.use(here.store, ROOT)
    with pytest.raises(FarcallError, match="was changed while"):
        await asyncio.wrap_future(await asyncio.to_thread(use, wrong))
    use.release()
    await here.values.close()
    assert await here.store.list_keys("farcall/") == []


async def test_value_held_by_other_run_stays(here):
    other = here.session("other")
    use, generation = await here.use(values=other)
    use.record_submitted(WHERE)
    mine, same = await here.use()
    mine.release()
    assert same == generation
    for values in (here.values, other):
        await values.close()
    assert await here.stored() == [PLACE.data_key(generation)]
    assert await here.markers() == [PLACE.held_key("other")]


async def test_failed_task_makes_values_checked_again(here):
    use, first = await here.use()
    use.record_submitted(WHERE)
    await here.store.delete([PLACE.data_key(first)])  # a container did not find it
    here.values.forget(WHERE)
    _, second = await here.use()
    assert await here.stored() == [PLACE.data_key(second)]


async def test_retried_bundle_uses_same_generation(here):
    use, generation = await here.use()
    again, user = here.session("again"), object()
    named = {DIGEST.hexdigest(): [generation, len(DATA)]}
    await again.confirm(here.store, ROOT, named, user)
    use.release()
    await here.values.close()
    assert await here.stored() == [PLACE.data_key(generation)]
    again.release(user)
    await again.close()
    with pytest.raises(FarcallError, match="put it again"):
        await again.confirm(here.store, ROOT, named, user)


@pytest.mark.timing(shared_mark_s=0.01, shared_kept_s=0.0)
async def test_idle_values_are_deleted_others_renewed(here):
    kept = replace(PIECE, sha256=hashlib.sha256(b"z").digest(), size=1, data=b"z")
    use, _ = await here.use()
    await here.use(kept)
    marker = WHERE.shared(kept.sha256.hex()).held_key("run")
    await here.store.delete([marker])
    use.release()
    while await here.stored() or await here.store.stored(marker) is None:
        await asyncio.sleep(0.01)


async def test_values_of_killed_run_are_deleted(here, monkeypatch):
    left = WHERE.shared("0" * 64)
    kept = WHERE.shared("1" * 64)
    for place, run in ((left, "killed"), (kept, "failed")):
        await here.store.put(place.data_key("1"), [b"left"])
        await here.store.put(place.held_key(run), [b""])
    await here.store.put(f"{bundles_prefix(run_root('farcall', 'failed'))}work", [b""])
    monkeypatch.setattr(rule, "ABANDONED", type(rule.ABANDONED)(0))
    await here.use()
    while await here.store.list_keys(f"{left.root}/"):
        await asyncio.sleep(0.01)
    assert await here.store.list_keys(f"{kept.root}/")


def test_elapsed_time_uses_the_faster_clock():
    mono, wall = module._now()
    assert module._since((mono - 50, wall)) >= 50
    assert module._since((mono, wall - 50)) >= 50
