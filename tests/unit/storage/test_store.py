"""The store, in memory instead of S3."""

import asyncio
import hashlib
import random

import pytest

from farcall.model.errors import ServiceError
from farcall.storage import store as module
from farcall.storage.store import Arrived
from farcall.storage.transfers import PART_BYTES
from farcall_runtime import envelope
from tests.unit.fakes import store_in_memory

ROOT = "farcall/v1/run"


@pytest.fixture
def store():
    return store_in_memory()


async def arrivals(store, *where):
    found, _ = await store.list_outcomes(ROOT, *where)
    return set(found)


async def keys(store):
    return [key for key, _ in await store.list_keys(f"{ROOT}/")]


async def test_pieces_are_stored_as_one_object(store):
    await store.put("a/b", [b"one", memoryview(b"two"), bytearray(b"three")])
    assert await store.get("a/b") == b"onetwothree"
    assert await store.get("a/b", 11) == b"onetwothree"


async def test_progress_of_upload_is_reported(store):
    sent = []
    await store.put("small", [b"one", b"two"], on_sent=sent.append)
    assert sent == [6]

    class Parts:
        async def begin_upload(self, _key):
            return "upload"

        async def upload_part(self, _key, _upload, number, data, _digest):
            assert sum(sent) < 3 * PART_BYTES  # progress counts only uploaded parts
            return f"{number}"

        async def complete_upload(self, _key, _upload, parts):
            digests = [hashlib.sha256(bytes(n)).hexdigest() for n in (PART_BYTES, 1000)]
            assert parts == [("1", digests[0]), ("2", digests[0]), ("3", digests[1])]

    store._operations = Parts()
    sent.clear()
    await store.put("large", [bytes(PART_BYTES)] * 2 + [bytes(1000)], on_sent=sent.append)
    assert sorted(sent) == [1000, PART_BYTES, PART_BYTES]


async def test_large_object_is_returned_writable(store):
    data = bytes(range(256)) * 4 * 9000  # longer than one piece of a stream
    await store.put("large", [data])
    found = await store.get("large", len(data))
    assert (type(found), bytes(found) == data) == (bytearray, True)


@pytest.mark.parametrize("stored", [PART_BYTES - 1, PART_BYTES + 1])
async def test_object_of_other_size_is_rejected(stored, store):
    await store.put("large", [bytes(stored)])
    with pytest.raises(envelope.IntegrityError, match=f"it has {stored} bytes"):
        await store.get_large(lambda _: "large", PART_BYTES)
    with pytest.raises(envelope.IntegrityError, match=f"it has {stored} bytes"):
        await store.get("large", PART_BYTES)


async def test_oversized_object_is_not_fetched():
    store = store_in_memory(largest_outcome_bytes=10)
    await store.put("large", [bytes(11)])
    with pytest.raises(envelope.IntegrityError, match="it has 11 bytes"):
        await store.get("large", 11)


async def test_missing_object_is_none(store):
    assert await store.get("nothing") is None


async def test_inbox_lists_only_outcomes(store):
    for key in (
        "outcomes/one/0",
        "outcomes/two/17",
        "outcomes/two/note",
        "attempts/one/0/1",
        "values/one/0/1",
        "bundles/one",
    ):
        await store.put(f"{ROOT}/{key}", [b"1234"])
    await store.put("farcall/v1/other/outcomes/three/0", [b"1"])
    assert await arrivals(store) == {Arrived("one", 0, 4), Arrived("two", 17, 4)}


async def test_inbox_is_filtered_by_key(store):
    for name in ("b/1", "b/2", "b/10", "b-c/3", "bc/4", "a/5"):
        await store.put(f"{ROOT}/outcomes/{name}", [b"x"])
    assert await arrivals(store, "b") == {Arrived("b", n, 1) for n in (1, 2, 10)}
    assert await arrivals(store, "b", "b/1") == {Arrived("b", n, 1) for n in (2, 10)}
    assert await arrivals(store, "b", "b/") == {Arrived("b", n, 1) for n in (1, 2, 10)}
    assert await arrivals(store, "", "b/10") == {Arrived("b", 2, 1), Arrived("bc", 4, 1)}


async def test_inbox_is_listed_in_pages(store):
    names = [*(f"outcomes/b/{n}" for n in range(1005)), "outcomes/b/1a"]
    await asyncio.gather(*(store.put(f"{ROOT}/{name}", [b"x"]) for name in names))
    page, last = await store.list_outcomes(ROOT)
    rest, end = await store.list_outcomes(ROOT, "", last)
    assert len(page) + len(rest) == 1005
    assert {arrived.index for arrived in page + rest} == set(range(1005))
    assert (last, end) == (sorted(name.removeprefix("outcomes/") for name in names)[999], "")


async def test_object_is_copied(store):
    await store.put("a", [b"data"])
    await store.copy("a", "b")
    assert [await store.get(key) for key in "ab"] == [b"data"] * 2
    with pytest.raises(ServiceError, match="CopyObject of s3://bucket/c failed: it no longer"):
        await store.copy("c", "d")


async def test_uncopyable_object_is_uploaded_again(store, monkeypatch):
    async def refuse(*_args):
        raise OSError("status 400: <Error><Code>InvalidRequest</Code><Message>5 GB</Message>")

    monkeypatch.setattr(module.obstore, "copy_async", refuse)
    data = random.Random(2).randbytes(2 * PART_BYTES + 17)
    await store.put("a", [data])
    await store.copy("a", "b")
    assert await store.get("b") == data


async def test_without_delete_permission_object_is_emptied(store, monkeypatch):
    async def refuse(*_args, **_options):
        raise OSError("<Error><Code>AccessDenied</Code><Message>no</Message></Error>")

    await store.put("a", [b"data"])
    await store.delete(["is-not-there"])
    monkeypatch.setattr(module.obstore, "delete_async", refuse)
    await store.delete(["a"])
    assert await store.get("a") == b""


async def test_only_objects_marked_for_deletion_go(store, clock):
    for key in "abc":
        await store.put(f"{ROOT}/{key}", [b"x"])
    store.delete_later([f"{ROOT}/a"])
    store.delete_later([f"{ROOT}/b", f"{ROOT}/is-gone"])
    await store.flush()
    assert await keys(store) == [f"{ROOT}/c"]
