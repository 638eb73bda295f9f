"""Shared values in a bucket: stored once, held by markers, deleted without them.

Concurrent requests of several clients are tried in every order, with a crash at any point.
"""

from __future__ import annotations

import hashlib
import itertools
import types
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from farcall.model.errors import FarcallError
from farcall.payload.shared import Piece
from farcall.storage import shared
from farcall_runtime.contract import Location, run_root
from tests.unit.fakes import store_in_memory

DATA = b"x" * 3000
DIGEST = hashlib.sha256(DATA)
PIECE = Piece(DIGEST.digest(), len(DATA), DATA)
WITHOUT_DATA = replace(PIECE, data=None)
ROOT = run_root("farcall", "run")
PLACE = Location("bucket", ROOT, "work").shared(DIGEST.hexdigest())


async def here(function, *args):
    return function(*args)


async def hold(store, run="run", piece=PIECE):
    return await shared.hold(store, PLACE, run, piece, thread=here)


async def keys(store):
    return [key for key, _ in await store.list_keys("farcall/")]


@pytest.fixture
def store():
    return store_in_memory()


def age(store, monkeypatch, by):
    """Make the bucket's objects look older."""
    real = type(store)

    async def stored(self, prefix):
        found = await real.list_stored(self, prefix)
        return {name: (size, at - by) for name, (size, at) in found.items()}

    async def times(self, prefix):
        return {name: at - by for name, at in (await real.list_times(self, prefix)).items()}

    monkeypatch.setattr(store, "list_stored", types.MethodType(stored, store))
    monkeypatch.setattr(store, "list_times", types.MethodType(times, store))


# --- sequential requests ----------------------------------------------------------------------


async def test_value_is_stored_once_with_markers(store):
    first = await hold(store, "one")
    assert await hold(store, "two") == first
    assert await store.get(PLACE.data_key(first)) == DATA
    assert await keys(store) == sorted(
        [PLACE.data_key(first), PLACE.held_key("one"), PLACE.held_key("two")]
    )


async def test_value_without_bytes_must_exist(store):
    with pytest.raises(FarcallError, match=r"no longer at .*; put it again"):
        await hold(store, piece=WITHOUT_DATA)
    generation = await hold(store)
    assert await hold(store, "other", WITHOUT_DATA) == generation


async def test_value_is_deleted_with_last_marker(store):
    generation = await hold(store, "one")
    await hold(store, "two")
    await shared.release(store, PLACE, "one")
    assert not await shared.collect(store, PLACE)
    assert await store.get(PLACE.data_key(generation)) == DATA
    await shared.release(store, PLACE, "two")
    assert await shared.collect(store, PLACE)
    assert await keys(store) == []


async def test_condemned_value_is_not_used(store):
    first = await hold(store, "one")
    await store.put(PLACE.condemned_key(first), [b""])
    second = await hold(store, "two")
    assert second != first
    with pytest.raises(FarcallError, match="put it again"):
        await shared.confirm(store, PLACE, "three", first, len(DATA))
    await shared.confirm(store, PLACE, "three", second, len(DATA))
    assert PLACE.held_key("three") in await keys(store)


async def test_value_of_other_size_is_ignored(store):
    await store.put(PLACE.data_key("forged"), [b"y"])
    generation = await hold(store)
    assert generation != "forged"
    with pytest.raises(FarcallError, match="put it again"):
        await shared.confirm(store, PLACE, "two", "forged", len(DATA))


async def test_value_changed_during_upload_is_rejected(store):
    data = bytearray(DATA)
    data[-1] ^= 1
    with pytest.raises(FarcallError, match="was changed while it was being sent"):
        await hold(store, piece=replace(PIECE, data=data))
    assert await keys(store) == [PLACE.held_key("run")]


async def test_expiring_value_is_copied_first(store, monkeypatch):
    first = await hold(store)
    age(store, monkeypatch, shared.FRESH)
    second = await hold(store, "other", WITHOUT_DATA)
    assert second != first
    assert await store.get(PLACE.data_key(second)) == DATA


async def test_marker_of_killed_run_lasts_day(store, monkeypatch):
    await hold(store, "killed")
    age(store, monkeypatch, shared.ABANDONED - timedelta(minutes=1))
    assert not await shared.collect(store, PLACE)
    age(store, monkeypatch, shared.ABANDONED)
    assert await shared.collect(store, PLACE)
    assert await keys(store) == []


async def test_kept_bundle_holds_value_longer(store, monkeypatch):
    bundle = Location("bucket", run_root("farcall", "killed"), "work-1").bundle_key
    await store.put(bundle, [b"bundle"])
    await hold(store, "killed")
    age(store, monkeypatch, shared.ABANDONED)
    assert not await shared.collect(store, PLACE)
    await store.delete([bundle])
    assert await shared.collect(store, PLACE)
    assert await keys(store) == []


async def test_interrupted_deletion_is_completed(store):
    await store.put(PLACE.condemned_key("gone"), [b""])
    await store.put(PLACE.condemned_key("left"), [b""])
    await store.put(PLACE.data_key("left"), [DATA])
    assert await shared.collect(store, PLACE)
    assert await keys(store) == []


async def test_only_valid_value_names_are_found(store):
    await hold(store)
    for name in ("UPPER", "0" * 63, "g" * 64):
        await store.put(f"farcall/v1/shared/{name}/data/1", [b""])
    assert await shared.values_in(store, "farcall/v1/shared/") == [PLACE]


# --- every order of requests -------------------------------------------------------------------


@types.coroutine
def turn():
    yield


class Stepped:
    """Bucket whose requests are carried out one at a time, when it is their sender's turn."""

    bucket = "bucket"

    def __init__(self, objects=()):
        self.objects = {key: len(DATA) for key in objects}
        self.responses = []

    async def put(self, key, pieces, **_):
        size = sum(map(len, pieces))
        await turn()
        self.objects[key] = size

    async def list_stored(self, prefix):
        await turn()
        now = datetime.now(timezone.utc)
        keys = [key for key in self.objects if key.startswith(prefix)]
        self.responses.append(tuple(sorted(keys)))
        return {key[len(prefix) :]: (self.objects[key], now) for key in keys}

    async def list_times(self, prefix):
        return {name: at for name, (_, at) in (await self.list_stored(prefix)).items()}

    async def delete(self, some):
        for key in some:  # S3 deletes keys in any order
            await turn()
            self.objects.pop(key, None)


class User:
    """Run that uses a value, and continues to use it."""

    def __init__(self, store, name):
        self.generation = None
        self._store, self._name = store, name

    async def run(self):
        self.generation = await hold(self._store, self._name)

    def has_lost(self):
        return self.generation and PLACE.data_key(self.generation) not in self._store.objects


class Leaver(User):
    """Run that has used a value, and has ended."""

    async def run(self):
        await super().run()
        self.generation = None
        await shared.release(self._store, PLACE, self._name)
        await shared.collect(self._store, PLACE)


class Deleter(User):
    """Client that checks for values to delete."""

    async def run(self):
        await shared.collect(self._store, PLACE)


def replay(objects, kinds, order):
    """Carry out requests in an order; return the state, and which clients may continue.

    Returns:
        The objects and each client's progress; unfinished clients; clients that lost a value.
    """
    store = Stepped(objects)
    actors = [kind(store, f"run{number}") for number, kind in enumerate(kinds)]
    going = {}
    counts = [itertools.count() for _ in kinds]
    for number, actor in enumerate(actors):
        going[number] = actor.run()
    seen = [[] for _ in kinds]
    original = shared.new_generation
    try:
        for number in [*range(len(kinds)), *order]:
            shared.new_generation = lambda n=number: f"{n}-{next(counts[n])}"
            try:
                going[number].send(None)
            except StopIteration:
                del going[number]
            # Clients with the same responses continue in the same way.
            seen[number].append(tuple(store.responses))
            store.responses.clear()
    finally:
        shared.new_generation = original
    histories = tuple(map(tuple, seen))
    lost = [number for number, actor in enumerate(actors) if actor.has_lost()]
    left = list(going)
    for each in going.values():
        each.close()
    return (tuple(sorted(store.objects)), histories), left, lost


def explore(objects, *kinds):
    """Try every order; a client that crashes gets no further turns.

    Returns:
        The number of states.
    """
    reached = set()
    orders = [()]
    while orders:
        order = orders.pop()
        state, left, lost = replay(objects, kinds, order)
        assert not lost, f"run {lost} lost its value in the order {order}"
        if state not in reached:
            reached.add(state)
            orders += [(*order, number) for number in left]
    return len(reached)


THERE = PLACE.data_key("0")
BEGUN = (THERE, PLACE.condemned_key("0"))


@pytest.mark.parametrize("objects", [(), (THERE,), BEGUN], ids=["nothing", "data", "condemned"])
@pytest.mark.parametrize("other", [Deleter, Leaver])
def test_no_order_of_requests_loses_value(objects, other):
    assert explore(objects, User, other) > 20


@pytest.mark.parametrize("kinds", [(User, User, Deleter), (User, Deleter, Deleter)])
def test_no_order_of_three_loses_value(kinds):
    assert explore((THERE,), *kinds) > 200


@pytest.mark.parametrize("broken", ["no second look", "data first"])
def test_broken_rules_lose_the_value(monkeypatch, broken):
    """Without either of two steps, the search must find the order that fails."""
    if broken == "no second look":
        held = shared._is_held

        async def once(store, place):
            if not getattr(store, "has_looked", False):
                store.has_looked = True
                return await held(store, place)
            return False

        monkeypatch.setattr(shared, "_is_held", once)
    else:

        async def hold_wrongly(store, place, run, piece, **_):
            await store.put(place.held_key(run), [b""])
            there = await store.list_stored(place.data_prefix)
            condemned = await store.list_stored(place.condemned_prefix)
            usable = [name for name in there if name not in condemned]
            if usable:
                return usable[0]
            generation = shared.new_generation()
            await store.put(place.data_key(generation), [DATA])
            return generation

        monkeypatch.setattr(shared, "hold", hold_wrongly)
    with pytest.raises(AssertionError, match="lost its value"):
        explore((THERE,), User, Deleter)
