"""Large objects are transferred in parts, with an in-memory store instead of S3."""

import hashlib
import random

import pytest

from farcall.storage.transfers import PARALLEL_PARTS, PART_BYTES, SINGLE_PUT_BYTES, joined
from farcall_runtime.contract import VALUE_PART_BYTES
from tests.unit.fakes import store_in_memory


@pytest.fixture
def store():
    return store_in_memory()


#: Sizes of one part plus one byte, and of more parts than are transferred in parallel.
SIZES = [PART_BYTES + 1, (PARALLEL_PARTS + 3) * PART_BYTES + 17]


PART = "value/{}".format


async def put_parts(store, data):
    for number, start in enumerate(range(0, len(data), VALUE_PART_BYTES)):
        await store.put(PART(number), [data[start : start + VALUE_PART_BYTES]])


@pytest.mark.parametrize("size", SIZES)
async def test_large_object_is_uploaded_in_parts(size, store):
    data = random.Random(1).randbytes(size)
    pieces = (data[start : start + 5_000_000] for start in range(0, size, 5_000_000))
    await store.put("large", pieces)
    assert await store.get("large") == data


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("in_a_file", [False, True])
async def test_large_value_is_downloaded_in_parts(size, in_a_file, store, tmp_path):
    data = random.Random(1).randbytes(size)
    await put_parts(store, data)
    folder = str(tmp_path / "cache") if in_a_file else None
    found, digest = await store.get_large(PART, size, folder)
    assert (bytes(found) == data, digest) == (True, hashlib.sha256(data).hexdigest())
    found[:4] = b"free"  # arrays that use this memory may be changed
    assert bytes(found[:5]) == b"free" + data[4:5]
    assert list(tmp_path.rglob("*")) == ([tmp_path / "cache"] if in_a_file else [])


async def test_missing_large_object_is_none(store):
    await put_parts(store, bytes(3 * VALUE_PART_BYTES))
    await store.delete([PART(1)])
    assert await store.get_large(PART, 3 * VALUE_PART_BYTES) is None


@pytest.mark.parametrize("size", [10, 3 * SINGLE_PUT_BYTES])
async def test_error_during_upload_reaches_caller(size, store):
    def pieces():
        yield bytes(size)
        yield bytes(size)
        raise KeyError("of the user")

    with pytest.raises(KeyError, match="of the user"):
        await store.put("broken", pieces())
    assert await store.get("broken") is None


async def test_only_small_pieces_are_joined(store):
    large = memoryview(bytes(1024 * 1024))
    pieces = [b"a", b"b", large, b"c" * 60_000, *[b"d" * 60_000] * 20, b""]
    chunks = list(joined(pieces))
    assert b"".join(chunks) == b"".join(pieces)
    assert chunks[1] is large
    assert len(chunks) == 4
