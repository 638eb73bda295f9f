"""Covalent's archives, read and written without Covalent."""

from __future__ import annotations

import base64
import json
import pickle
import struct

import cloudpickle
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farcall_runtime import archive
from farcall_runtime.envelope import IntegrityError
from farcall_runtime.pickles import dump_to

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary(max_size=200),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def make(value):
    """Return the archive that a job would write for a value."""
    encoder = archive.Encoder()
    dump_to(value, encoder)
    return b"".join([archive.head(value, cloudpickle.__version__), *encoder.close()])


def pack(header, text=b"", data=b"", text_at=None, data_at=None):
    at = 16 + len(header)
    return (
        struct.pack(">QQ", at if text_at is None else text_at, data_at or at + len(text))
        + header
        + text
        + data
    )


@given(VALUES)
def test_value_survives_archive_round_trip(value):
    parsed = archive.parse(make(value))
    assert value == pickle.loads(archive.decode(parsed.data))
    assert cloudpickle.__version__ == parsed.cloudpickle
    assert "" == parsed.name


@pytest.fixture
def theirs():
    """Covalent's own class for the content of an archive."""
    return pytest.importorskip("covalent._workflow.transportable_object").TransportableObject


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(VALUES)
def test_archives_are_compatible_with_covalent(theirs, value):
    read = theirs.deserialize(make(value))
    assert value == read.get_deserialized()
    assert make(value) == read.serialize()
    try:
        written = theirs(value).serialize()
    except UnicodeEncodeError:
        return  # half of a surrogate pair, which Covalent cannot write
    parsed = archive.parse(written)
    assert value == pickle.loads(archive.decode(parsed.data))
    assert (theirs(value).object_string, theirs(value).header) == (parsed.text, parsed.header)


@given(st.lists(st.binary(max_size=20)))
def test_pieces_of_any_length_are_encoded(pieces):
    encoder = archive.Encoder()
    assert [len(piece) for piece in pieces] == [encoder.write(piece) for piece in pieces]
    assert base64.b64encode(b"".join(pieces)) == b"".join(encoder.close())


def test_long_data_is_one_encoding():
    encoder = archive.Encoder()
    data = bytes(range(256)) * (4 * archive._ENCODED_BYTES // 256 // 3) + b"rest"
    encoder.write(b"1")
    encoder.write(memoryview(data))
    pieces = encoder.close()
    assert len(pieces) > 1
    assert base64.b64encode(b"1" + data) == b"".join(pieces)


@given(st.binary())
def test_arbitrary_bytes_are_parsed_or_rejected(data):
    try:
        parsed = archive.parse(data)
    except IntegrityError:
        return
    assert isinstance(parsed.header, dict)


@given(st.binary(max_size=60), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_arbitrary_offsets_are_checked(rest, text_at, data_at):
    data = struct.pack(">QQ", text_at, data_at) + rest
    try:
        archive.parse(data)
    except IntegrityError:
        return
    assert 16 <= text_at <= data_at <= len(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"short",
        pack(b"not JSON"),
        pack(b"[]"),
        pack(b"\xff\xfe"),
        pack(b"{}", text_at=3),
        pack(b"{}", data_at=1 << 60),
        pack(b"[" * 100_000),
    ],
)
def test_invalid_archive_is_rejected(data):
    with pytest.raises(IntegrityError):
        archive.parse(data)


@pytest.mark.parametrize("data", [b"a", b"abcde", b"YQ="])
def test_invalid_base64_is_rejected(data):
    with pytest.raises(IntegrityError, match="base64"):
        archive.decode(data)


@pytest.mark.parametrize(
    "header", [{}, {"attrs": None}, {"attrs": {"name": None}}, {"attrs": ["name"]}]
)
def test_header_without_name_is_accepted(header):
    parsed = archive.parse(pack(json.dumps(header).encode()))
    assert ("", "", "") == (parsed.name, parsed.python, parsed.cloudpickle)


def test_value_without_str_is_archived():
    class Shy:
        def __str__(self):
            raise ValueError

        def __getattr__(self, name):
            raise ValueError

    class Odd:
        __name__ = 3
        __doc__ = 4

        def __str__(self):
            return "\ud800"

    assert "<no text: str() raised ValueError>" == archive.parse(archive.head(Shy(), "3")).text
    odd = archive.parse(archive.head(Odd(), "3"))
    assert ("\\ud800", {"doc": "", "name": ""}) == (odd.text, odd.header["attrs"])


@pytest.mark.parametrize("value", ["x" * 3_000_000, b"x" * 3_000_000, list(range(1_000_000))])
def test_text_of_large_value_is_truncated(value):
    assert len(archive.parse(archive.head(value, "3")).text) <= archive._MOST_TEXT + 10


@pytest.mark.parametrize(
    "array",
    [
        np.ones(10_000),
        np.arange(60_000.0).reshape(200, 300),
        np.asfortranarray(np.arange(60_000.0).reshape(200, 300)),
        np.ones((300, 400), np.uint8),
        np.arange(30_000, dtype=">i4"),
        np.arange(60_000)[::3],
        np.zeros(0),
    ],
    ids=["long", "rows", "columns", "bytes", "foreign", "gaps", "empty"],
)
def test_arrays_of_any_kind_are_encoded(array):
    encoder = archive.Encoder()
    dump_to([array, b"x" * 200_000], encoder)
    back, rest = pickle.loads(archive.decode(b"".join(encoder.close())))
    assert (array.dtype, rest) == (back.dtype, b"x" * 200_000)
    np.testing.assert_array_equal(array, back)
