"""Shared values of a session: the bundles that need them, and their deletion."""

import asyncio
import hashlib
import os
from dataclasses import replace
from datetime import timedelta

import pytest

from farcall.engine import shared as module
from farcall.engine.shared import SharedValues
from farcall.model.errors import FarcallError
from farcall.payload.shared import Piece
from farcall_runtime.contract import Location, run_root
from tests.unit.fakes import store_in_memory

DATA = os.urandom(3000)
DIGEST = hashlib.sha256(DATA)
PIECE = Piece(DIGEST.digest(), len(DATA), DATA)
WITHOUT_DATA = replace(PIECE, data=None)
ROOT = run_root("farcall", "run")
WHERE = Location("bucket", ROOT, "work-1")


def key_of(generation):
    return WHERE.shared_key(DIGEST.hexdigest(), generation)


class World:
    """Shared values of sessions, and their bucket."""

    def __init__(self, timing):
        self.store = store_in_memory()
        self.timing = timing
        self.values = self.session()

    def session(self):
        return SharedValues(self.timing)

    async def use(self, piece=PIECE, values=None):
        """Use a value like a bundle, whose pieces are made in a thread."""
        use = (values or self.values).use(self.store, ROOT)
        future = await asyncio.to_thread(use, piece)
        return use, await asyncio.wrap_future(future)

    async def stored(self):
        return [key for key, _ in await self.store.list_keys("farcall/")]


@pytest.fixture
async def here(timing):
    made = World(timing)
    yield made
    await made.values.close()


async def test_concurrent_uses_store_one_value(here):
    found = await asyncio.gather(*(here.use() for _ in range(20)))
    (generation,) = {generation for _, generation in found}
    assert await here.stored() == [key_of(generation)]


async def test_unused_value_is_deleted_at_close(here):
    use, _ = await here.use()
    other, _ = await here.use()
    other.release()
    use.release()
    assert await here.stored()  # kept for the next map
    await here.values.close()
    assert not await here.stored()


async def test_kept_bundle_keeps_its_values(here):
    _, generation = await here.use()
    await here.values.close()
    assert await here.stored() == [key_of(generation)]


async def test_put_value_stays_until_discarded(here):
    await here.values.pin(here.store, ROOT, [PIECE])
    await here.values.pin(here.store, ROOT, [PIECE])
    await here.values.discard(here.store, ROOT, [PIECE.sha256])
    assert await here.stored()  # it was put twice
    await here.values.discard(here.store, ROOT, [PIECE.sha256])
    assert not await here.stored()


async def test_discarded_value_waits_for_its_bundles(here):
    await here.values.pin(here.store, ROOT, [PIECE])
    use, _ = await here.use(WITHOUT_DATA)
    await here.values.discard(here.store, ROOT, [PIECE.sha256])
    assert await here.stored()
    use.release()
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
    assert await here.stored() == []


async def test_two_sessions_store_separate_values(here):
    other = here.session()
    _, theirs = await here.use(values=other)
    use, mine = await here.use()
    use.release()
    await here.values.close()
    assert mine != theirs
    assert await here.stored() == [key_of(theirs)]


async def test_value_missed_by_task_is_stored_again(here):
    use, first = await here.use()
    use.doubt()
    assert (await here.use())[1] == first  # another value was missing, or another error
    await here.store.delete([key_of(first)])
    use.doubt()
    _, second = await here.use()
    assert await here.stored() == [key_of(second)]


async def test_missing_value_without_bytes_is_error(here):
    await here.values.pin(here.store, ROOT, [PIECE])
    use, generation = await here.use(WITHOUT_DATA)
    await here.store.delete([key_of(generation)])
    use.doubt()
    with pytest.raises(FarcallError, match=r"no longer at .*; put it again"):
        await here.use(WITHOUT_DATA)


async def test_old_value_is_copied_before_use(here, monkeypatch):
    use, first = await here.use()
    monkeypatch.setattr(module, "FRESH", timedelta(0))
    again, second = await here.use(WITHOUT_DATA)
    assert set(await here.stored()) == {key_of(first), key_of(second)}  # older bundles name it
    use.release()
    again.release()
    await here.values.close()
    assert not await here.stored()


async def test_retried_bundle_names_same_generation(here):
    use, generation = await here.use()
    user = object()
    named = {DIGEST.hexdigest(): [generation, len(DATA)]}
    await here.values.confirm(here.store, ROOT, named, user)
    use.release()
    await here.values.close()
    assert await here.stored() == [key_of(generation)]
    again = here.session()
    await again.confirm(here.store, ROOT, named, user)
    with pytest.raises(FarcallError, match="put it again"):
        await again.confirm(here.store, ROOT, {DIGEST.hexdigest(): [generation, 1]}, user)


@pytest.mark.timing(shared_kept_s=0.02)
async def test_idle_values_are_deleted(here):
    kept = replace(PIECE, sha256=hashlib.sha256(b"z").digest(), size=1, data=b"z")
    use, _ = await here.use()
    _, generation = await here.use(kept)
    use.release()
    left = WHERE.shared_key(kept.hexdigest, generation)
    while await here.stored() != [left]:
        await asyncio.sleep(0.01)
