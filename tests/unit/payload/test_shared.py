"""Parts of pickles that are shared: their names, and what arrives."""

import gc
import hashlib
import pickle
import weakref

import numpy as np
import pytest

from farcall.payload import shared, unpickling
from farcall.payload.pickling import pack_calls, pack_function
from farcall.payload.shared import Digests, Value
from farcall_runtime import envelope, pickles
from farcall_runtime.contract import SHARED_LEAST_BYTES as LEAST
from tests.unit.fakes import joined


def opened(packed, values=()):
    """Unpickle packed data; each reference gets its own bytes."""
    known = {piece.sha256: bytes(piece.data) for piece in (*packed.shared, *values) if piece.data}

    def find(wanted):
        return bytearray(known[wanted.sha256])

    return unpickling.load_pieces(envelope.unpack_shared(joined(packed), find))


def arrived(*args):
    packed = next(pack_calls([[(args, {})]]))
    (((*found,), _),) = opened(packed)
    return packed, found


@pytest.fixture
def hashed(monkeypatch):
    """Sizes of the values that were hashed."""
    sizes = []
    whole = shared.sha256

    def note(data):
        sizes.append(len(data))
        return whole(data)

    monkeypatch.setattr(shared, "sha256", note)
    return sizes


LARGE = {
    "array": np.arange(LEAST // 8 + 5.0),
    "columns": np.asfortranarray(np.arange(LEAST / 4).reshape(512, -1)),
    "read-only": np.frombuffer(bytes(LEAST), np.uint8),
    "bytes": bytes(range(256)) * (LEAST // 256 + 1),
    "bytearray": bytearray(range(256)) * (LEAST // 256 + 1),
    "str": "\u00fc" * LEAST,
    "nested": {"a": [np.zeros(LEAST, np.uint8), b"x" * LEAST, 3]},
}


@pytest.mark.parametrize("name", LARGE)
def test_large_value_is_shared_and_arrives(name):
    packed, (found,) = arrived(LARGE[name])
    np.testing.assert_equal(found, LARGE[name])
    assert packed.shared
    assert packed.size == len(joined(packed)) < 4096
    for piece in packed.shared:
        assert (hashlib.sha256(piece.data).digest(), len(piece.data)) == (piece.sha256, piece.size)


@pytest.mark.parametrize("value", [b"x" * (LEAST - 1), np.zeros(LEAST - 1, np.uint8), "x" * 100])
def test_small_value_stays_in_bundle(value):
    packed, (found,) = arrived(value)
    np.testing.assert_equal(found, value)
    assert packed.shared == ()
    parts = pickles.dump([((value,), {})])
    assert joined(packed) == b"".join(envelope.pack(parts))


def test_array_keeps_its_writeable_flag():
    _, (plain, fixed) = arrived(LARGE["array"], LARGE["read-only"])
    assert (plain.flags.writeable, fixed.flags.writeable) == (True, False)


def test_equal_values_share_only_their_name():
    packed, (one, other) = arrived(LARGE["array"], LARGE["array"].copy())
    assert len(packed.shared) == 1
    assert len(envelope.references(joined(packed))) == 2
    one[0] = 77
    assert other[0] == 0


def test_function_shares_values_it_holds():
    held = LARGE["array"]
    packed = pack_function(lambda: held)
    assert [piece.sha256 for piece in packed.shared] == [hashlib.sha256(held).digest()]
    np.testing.assert_equal(opened(packed)(), held)


# --- digests ----------------------------------------------------------------------------------


def test_repeated_array_is_hashed_once(hashed):
    views = [LARGE[name] for name in ("array", "columns", "bytes")]
    groups = [[((view, number), {})] for number in range(100) for view in views]
    packed = list(pack_calls(groups))
    assert sorted(hashed) == sorted(memoryview(view).nbytes for view in views)
    assert len({each.shared[0].sha256 for each in packed}) == 3


def test_recreated_view_is_hashed_once(hashed):
    whole = np.arange(LEAST)
    digests = Digests()
    for _ in range(5):
        next(pack_calls([[((whole[:-8],), {})]], None, None, digests))
        next(pack_calls([[((whole[8:],), {})]], None, None, digests))
    assert hashed == [whole[8:].nbytes] * 2


def test_parts_of_one_object_are_distinct():
    class Part:
        def __init__(self, data):
            self.data = data

        def __reduce_ex__(self, protocol):
            return bytes, (pickle.PickleBuffer(self.data),)

    whole = memoryview(bytearray(b"a" * LEAST + b"b" * LEAST))
    digests = Digests()
    for start, letter in ((0, b"a"), (LEAST, b"b")):
        packed = next(
            pack_calls([[((Part(whole[start : start + LEAST]),), {})]], None, None, digests)
        )
        assert packed.shared[0].sha256 == hashlib.sha256(letter * LEAST).digest()


@pytest.mark.parametrize(
    "make",
    [lambda n: np.full(LEAST, n, np.uint8), lambda n: bytes([n]) * LEAST],
    ids=["array", "bytes"],
)
def test_reused_id_does_not_reuse_digest(make):
    digests = Digests()
    for number in range(30):
        value = make(number)
        packed = next(pack_calls([[((value,), {})]], None, None, digests))
        assert packed.shared[0].sha256 == hashlib.sha256(value).digest()
        del value, packed


def test_digests_keep_at_most_one_value():
    class Bytes(bytes):
        pass

    digests = Digests()
    values = [Bytes(bytes([number]) * LEAST) for number in range(4)]
    watched = [weakref.ref(np.frombuffer(value)) for value in values]
    for value in values:
        digests.of(value)
    del value, values
    digests.of(b"z" * LEAST)
    digests.of(b"y" * LEAST)
    gc.collect()
    assert len(digests._known) <= 2
    assert not any(each() for each in watched)


def test_number_of_shared_values_is_limited():
    digests = Digests(most=2)
    values = [bytes([number]) * LEAST for number in range(4)]
    packed = [
        next(pack_calls([[((value,), {})]], None, None, digests)) for value in (*values, values[0])
    ]
    assert [len(each.shared) for each in packed] == [1, 1, 0, 0, 1]
    assert [opened(each)[0][0][0] for each in packed] == [*values, values[0]]


# --- stored values ----------------------------------------------------------------------------


class Handle:
    """Handle like the one that `put` returns."""

    def __init__(self, value):
        self.value = value

    def __reduce_ex__(self, protocol):
        return self.value.reduce()


@pytest.mark.parametrize("name", LARGE)
def test_stored_value_is_referenced_not_sent(name):
    bare = next(pack_calls([[((LARGE[name],), {})]]))
    value = Value.of(LARGE[name])
    stored = value.pieces
    value.forget()
    packed = next(pack_calls([[((Handle(value), [Handle(value)]), {})]]))
    assert set(packed.shared) == set(bare.shared)
    assert {piece.data for piece in packed.shared} == {None}
    (((first, (again,)), _),) = opened(packed, stored)
    for found in (first, again):
        np.testing.assert_equal(found, LARGE[name])
        if isinstance(found, np.ndarray):
            assert found.flags.writeable == LARGE[name].flags.writeable


def test_small_parts_are_stored_as_snapshot():
    small, large = np.arange(2000), np.zeros(LEAST)
    value = Value.of((small, large))
    small[:] = 9
    packed = next(pack_calls([[((Handle(value),), {})]]))
    ((((found, _),), _),) = opened(packed, value.pieces)
    np.testing.assert_equal(found, np.arange(2000))
    found[0] = 5


def test_stored_value_needs_no_bytes():
    value = Value.of(LARGE["array"])
    value.forget()
    for args in ((Handle(value), LARGE["array"]), (LARGE["array"], Handle(value))):
        packed = next(pack_calls([[(args, {})]]))
        assert [piece.data for piece in packed.shared] == [None]


def test_small_stored_value_is_sent_inline():
    value = Value.of({"a": 1})
    assert value.pieces == ()
    packed = next(pack_calls([[((Handle(value),), {})]]))
    assert opened(packed) == [(({"a": 1},), {})]


def test_other_picklers_cannot_pickle_handle():
    data = pickle.dumps(Handle(Value.of(LARGE["array"])), protocol=5)
    with pytest.raises(pickle.UnpicklingError, match="only farcall can pickle"):
        pickle.loads(data)
