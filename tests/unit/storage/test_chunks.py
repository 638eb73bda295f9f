import contextlib

import pytest

from farcall.model.errors import IntegrityError
from farcall.storage import chunks as logs
from farcall.storage.chunks import Piece
from farcall_runtime.contract import STREAMS
from farcall_runtime.streams import Limits
from tests.unit.fakes import store_in_memory
from tests.unit.transcripts import SUBMISSION, WHERE, Counted, put, written


@pytest.fixture
def store():
    return store_in_memory()


async def ways(store, what):
    """Return all of stdout, read in two ways."""
    (piece, _), text = await what.whole(store), await what.text(store, "stdout")
    assert (piece.left_out, bytes(piece.data).decode(errors="replace")) == (0, text)
    return bytes(piece.data)


async def test_chunks_are_joined_in_order(store):
    for n in range(12):
        await put(store, "stdout", n, b"%d," % n)
    assert await ways(store, written(11, 23, b"end")) == b"0,1,2,3,4,5,6,7,8,9,10,end"


async def test_forged_chunk_is_rejected_with_key(store):
    await put(store, "stdout", 0, b"x", key=b"other")
    for read in (written(1, 1).whole, written(1, 1).end):
        with pytest.raises(IntegrityError, match=r"streams/bundle/0/1/stdout/00000000 is not"):
            await read(store)


async def test_oversized_chunk_is_not_fetched(store, monkeypatch):
    monkeypatch.setattr(logs, "_LARGEST_CHUNK_BYTES", 10)
    await put(store, "stdout", 0, b"x")
    with pytest.raises(IntegrityError, match=r"00000000 is not what .* \(it has \d+ bytes"):
        await written(1, 1).whole(store)


async def test_deleted_chunk_leaves_note(store):
    for n in (0, 3):
        await put(store, "stdout", n, b"%d," % n)
    found = await ways(store, written(4, 8, b"end"))
    assert found == b"0,\n[farcall: 4 bytes were deleted from the bucket]\n3,end"


async def test_chunks_after_gap_are_streamed(store):
    for n in range(2, 40):
        await put(store, "stdout", n, b"%02d," % n)
    counted = Counted(store)
    async with contextlib.aclosing(written(40, 120)._pieces(counted, "stdout")) as pieces:
        assert await anext(pieces) == b"\n[farcall: 6 bytes were deleted from the bucket]\n"
        assert await anext(pieces) == b"02,"
        assert len(counted.asked) < 10


def test_chunk_size_matches_the_container():
    assert logs.CHUNK_BYTES == Limits().chunk_bytes


async def test_characters_and_gaps_may_span_chunks(store):
    whole = "gr\u00fc\u00dfe \U0001f40d".encode()
    cut = len(whole) // 2 + 1
    await put(store, "stdout", 0, whole[:cut])
    await put(store, "stdout", 1, whole[cut:])
    assert await ways(store, written(2, len(whole))) == whole
    note = b"\n[farcall: 7 bytes could not be stored]\n"
    for at in range(len(whole) + 4):
        found = await ways(store, written(2, len(whole), b"end", [(at, 7)]))
        both = whole + b"end"
        assert found == both[:at] + note + both[at:], at


async def test_end_of_output_reads_last_chunks(store, monkeypatch):
    monkeypatch.setattr(logs, "END_BYTES", 10)
    for n in range(20):
        await put(store, "stdout", n, b"%04d" % n)
    counted = Counted(store)
    piece, _ = await written(20, 80, b"ab").end(counted)
    assert (piece.data, piece.left_out) == (b"00180019ab", 72)
    assert counted.asked == [19, 18]


async def test_end_counts_omitted_bytes_with_notes(store, monkeypatch):
    monkeypatch.setattr(logs, "END_BYTES", 9)
    for n in range(5):
        await put(store, "stdout", n, b"%04d" % n)
    what = written(5, 20, b"t", [(3, 5), (14, 6)])
    whole = await ways(store, what)
    piece, _ = await what.end(store)
    assert len(piece.data) == 9
    assert whole[piece.left_out :] == piece.data


async def test_end_of_short_output_is_complete(store):
    for n in range(3):
        await put(store, "stdout", n, b"%d," % n)
    assert await written(3, 6, b"end").end(store) == (Piece(b"0,1,2,end"), Piece())


async def test_output_in_outcome_needs_no_request(store):
    counted = Counted(store)
    piece, _ = written(3, 600, b"end").here()
    assert (piece, counted.asked) == (Piece(b"end", 600), [])
    piece, _ = await written(0, 0, bytes(100_000)).end(counted)
    assert (len(piece.data), piece.left_out, counted.asked) == (100_000, 0, [])


async def test_chunks_are_listed_in_storing_order(store):
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
    assert [await chunks.text(stream) for stream in STREAMS] == ["abagain", "e"]
    first = await chunks.written(1)
    assert [first.records[stream] for stream in STREAMS] == [
        {"chunks": 2, "stored": 2},
        {"chunks": 1, "stored": 1},
    ]
    assert await first.whole(store) == (Piece(b"ab"), Piece(b"e"))
    assert await chunks.get(2, "stderr", 0) is None
