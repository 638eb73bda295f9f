"""Packs of cached results: what is verified before they are used."""

import pytest

from farcall.storage.cache_packs import Entry, Place, open_pack, seal
from farcall_runtime.contract import VALUE_PART_BYTES
from farcall_runtime.envelope import IntegrityError

KEY, FOLDER = b"k" * 32, "farcall/v1/cache/double-1/"
ENTRIES = {
    b"a" * 32: Entry([{"first": 0, "count": 1}], b"small"),
    b"b" * 32: Entry([{"first": 0, "count": 1}], place=Place("f00d", 70_000, "0" * 64, 9, 70_009)),
}


def test_pack_returns_its_results():
    opened = open_pack(KEY, FOLDER, seal(KEY, FOLDER, ENTRIES))
    assert bytes(opened[b"a" * 32].value) == b"small"
    assert opened[b"b" * 32].place == ENTRIES[b"b" * 32].place
    assert opened[b"b" * 32].records == [{"first": 0, "count": 1}]


@pytest.mark.parametrize(
    ("key", "folder", "change"),
    [
        (b"l" * 32, FOLDER, lambda data: data),
        (KEY, "farcall/v1/cache/double-2/", lambda data: data),
        (KEY, FOLDER, lambda data: data[:-1]),
        (KEY, FOLDER, lambda data: data[:10]),
        (KEY, FOLDER, lambda data: data.replace(b"small", b"large")),
        (KEY, FOLDER, lambda data: data.replace(b"FARCALLC", b"FARCALLO")),
    ],
    ids=["other key", "other function", "truncated", "head only", "changed", "other kind"],
)
def test_pack_of_others_is_refused(key, folder, change):
    with pytest.raises(IntegrityError):
        open_pack(key, folder, change(seal(KEY, FOLDER, ENTRIES)))


def test_value_is_stored_in_parts():
    place = Place("f00d", 2 * VALUE_PART_BYTES + 1, "0" * 64)
    assert place.sizes() == [VALUE_PART_BYTES, VALUE_PART_BYTES, 1]
    assert place.key(FOLDER, 2) == f"{FOLDER}large/f00d/00000002"
