from __future__ import annotations

import pytest

from farcall import logs
from farcall.errors import IntegrityError
from unit.fakes import store_in_memory
from unit.transcripts import SUBMISSION, WHERE, put


@pytest.fixture
def store():
    return store_in_memory()


async def test_chunks_are_joined_in_their_order(store):
    for n in range(12):
        await put(store, "stdout", n, b"%d," % n)
    found = await logs.read_chunks(store, SUBMISSION, 0, 1, "stdout", {"chunks": 11, "stored": 23})
    assert found == b"0,1,2,3,4,5,6,7,8,9,10,"


async def test_a_forged_chunk_is_refused_with_its_key(store):
    await put(store, "stdout", 0, b"x", key=b"other")
    with pytest.raises(IntegrityError, match=r"streams/bundle/0/1/stdout/00000000 is not"):
        await logs.read_chunks(store, SUBMISSION, 0, 1, "stdout", {"chunks": 1, "stored": 1})


async def test_a_deleted_chunk_leaves_a_note(store):
    for n in (0, 3):
        await put(store, "stdout", n, b"%d," % n)
    found = await logs.read_chunks(store, SUBMISSION, 0, 1, "stdout", {"chunks": 4, "stored": 8})
    assert found == b"0,\n[farcall: 4 bytes were deleted from the bucket]\n3,"


async def test_chunks_are_listed_in_the_order_of_their_storing(store):
    for stream, sequence, data in [("stdout", 0, b"a"), ("stderr", 0, b"e"), ("stdout", 1, b"b")]:
        await put(store, stream, sequence, data)
    await put(store, "stdout", 0, b"again", attempt=2)
    await store.put(WHERE.followed_key(0), [b"mark"])
    chunks = logs.Chunks(store, SUBMISSION, 0)

    places = await chunks.places()
    assert [place[:3] for place in places] == [
        (1, "stdout", 0),
        (1, "stderr", 0),
        (1, "stdout", 1),
        (2, "stdout", 0),
    ]
    assert await chunks.places(2) == places[3:]
    assert [data async for _, data in chunks.read(places)] == [b"a", b"e", b"b", b"again"]
    assert await chunks.joined() == (b"abagain", b"e")
    assert await chunks.joined(2) == (b"again", b"")
    assert await chunks.get(2, "stderr", 0) is None
