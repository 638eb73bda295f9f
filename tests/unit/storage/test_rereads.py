"""Objects that are read again if they arrive incomplete."""

import pytest

from farcall.model.submission import Submission
from farcall.storage.outcomes import fetch
from farcall.storage.rereads import until_intact
from farcall_runtime.envelope import IntegrityError
from tests.contract import make_golden as golden
from tests.unit.fakes import store_in_memory


class Reader:
    """Reads an object that is not intact for some times."""

    def __init__(self, broken):
        self.reads = 0
        self._broken = broken

    async def read(self):
        self.reads += 1
        if self.reads <= self._broken:
            raise IntegrityError("it has 7 bytes")
        return "value"


@pytest.mark.parametrize("broken", [0, 1, 2])
async def test_incomplete_object_is_read_again(clock, broken):
    reader = Reader(broken)
    assert await until_intact(reader.read) == "value"
    assert reader.reads == broken + 1


async def test_changed_object_is_rejected(clock):
    reader = Reader(99)
    with pytest.raises(IntegrityError, match="it has 7 bytes"):
        await until_intact(reader.read)
    assert reader.reads == 3


@pytest.mark.parametrize("is_size_known", [True, False])
async def test_half_an_outcome_is_read_again(clock, is_size_known):
    """With the status of a complete response, as behind a proxy that loses its connection."""
    meta, index, parts = golden.OUTCOMES["outcome-returned"]
    store, key = store_in_memory(), golden.WHERE.outcome_key(index)
    submission = Submission("job", "work", golden.WHERE, golden.KEY, 100)
    content = golden.outcome(meta, index, parts)
    halves = [content[: len(content) // 2]]
    get_dated = store.get_dated

    async def cut(*arguments, **options):
        await store.put(key, [halves.pop() if halves else content])
        return await get_dated(*arguments, **options)

    store.get_dated = cut
    found = await fetch(store, submission, key, size=len(content) if is_size_known else None)
    assert found.size == len(content)
