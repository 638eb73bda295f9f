"""Readers of untrusted objects return the content or raise one of two errors."""

import ctypes
import hashlib
import inspect
import json
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from farcall_runtime import envelope
from farcall_runtime.envelope import EnvelopeError, IntegrityError, VersionMismatchError
from tests.contract import make_golden as golden
from tests.support import wire

FILES = golden.files()
DIGEST = FILES["bundle.digest"].decode().strip()
ROOT = FILES["bundle"][-envelope.root_size(FILES["bundle"]) :]
LARGEST_ROOT_BYTES = 16 * 1024 * 1024
"""Maximum size of an index root; a larger one is rejected."""

PLACES = {
    **{name: golden.WHERE.outcome_key(index) for name, (_, index, _) in golden.OUTCOMES.items()},
    "chunk": golden.WHERE.chunk_key(7, 1, "stdout", 0),
}


def open_chunk(data):
    return envelope.open_chunk(golden.KEY, PLACES["chunk"], data)


def open_outcome(data, name="outcome-returned"):
    return envelope.open_outcome(golden.KEY, PLACES[name], data)


def found(reference):
    """Return a value for a reference, limited to 1000 bytes."""
    return bytes(min(reference.size, 1000))


READERS = {
    "root_size": envelope.root_size,
    "Index": lambda data: envelope.Index(bytes(data), DIGEST),
    "open_outcome": open_outcome,
    "open_chunk": open_chunk,
    "receipted": lambda data: envelope.receipted(golden.KEY, "k", data, 7),
    "open_note": lambda data: envelope.open_note(golden.KEY, "k", data),
    "open_worker": lambda data: envelope.open_worker(golden.KEY, "k", data),
    "unpack": envelope.unpack,
    "unpack_shared": lambda data: envelope.unpack_shared(data, found),
    "references": envelope.references,
    "table_size": envelope.table_size,
}


def survives(reader, data):
    try:
        reader(data)
    except (IntegrityError, VersionMismatchError):
        return


TEXT = st.text('ab \0\n"\\\u00fc\u4e16\U0001f600', max_size=20)
HEADS = [data[:size] for data in (ROOT, *map(FILES.get, PLACES)) for size in (8, 10, 12)]


@pytest.mark.parametrize("reader", READERS)
@given(
    data=st.binary(max_size=300)
    | st.builds(bytes.__add__, st.sampled_from(HEADS), st.binary(max_size=300))
)
@example(data=b"")
@example(data=b"\xff" * 4)
@example(data=b"\xff" * 400)
def test_arbitrary_bytes_are_rejected(reader, data):
    for form in (data, bytearray(data), memoryview(data)):
        survives(READERS[reader], form)


@st.composite
def mutated(draw):
    """Draw a golden file with changed, deleted or inserted bytes."""
    data = bytearray(FILES[draw(st.sampled_from(["bundle", *PLACES]))])
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data) - 1))
        match draw(st.integers(0, 3)):
            case 0:
                data[at] ^= draw(st.integers(1, 255))
            case 1:
                del data[at : at + draw(st.integers(1, 100))]
            case 2:
                data[at:at] = draw(st.binary(min_size=1, max_size=100))
            case _:
                data[at : at + 4] = draw(st.sampled_from([b"\0\0\0\0", b"\xff\xff\xff\xff"]))
        data = data or bytearray(1)
    return bytes(data)


@pytest.mark.parametrize("reader", READERS)
@given(data=mutated())
def test_mutated_objects_raise_only_expected_errors(reader, data):
    survives(READERS[reader], data)


@given(digest=st.text("0123456789abcdefABCDEFx \u00fc", max_size=70))
@example(digest="\u00fc" * 64)
@example(digest="\ud800")
def test_invalid_digest_is_rejected(digest):
    with pytest.raises(IntegrityError):
        envelope.Index(ROOT, digest)


@pytest.mark.parametrize("name", ["root", *PLACES])
def test_flipped_bit_is_rejected(name):
    data = ROOT if name == "root" else FILES[name]
    readers = {"root": READERS["Index"], "chunk": open_chunk}
    reader = readers.get(name, lambda data: open_outcome(data, name))
    reader(data)
    passed = []
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            reader(bytes(changed))
        except EnvelopeError:
            continue
        passed.append(bit)
    assert passed == []


@pytest.mark.parametrize("name", ["root", *PLACES])
def test_truncated_or_extended_object_is_rejected(name):
    data = ROOT if name == "root" else FILES[name]
    readers = {"root": READERS["Index"], "chunk": open_chunk}
    reader = readers.get(name, lambda data: open_outcome(data, name))
    for other in [*(data[:size] for size in range(len(data))), data + b"\0", data + data]:
        with pytest.raises(IntegrityError):
            reader(other)


def test_wrong_kind_or_place_is_rejected():
    for reader in (open_chunk, READERS["Index"]):
        with pytest.raises(IntegrityError, match="another kind"):
            reader(FILES["outcome-returned"])
    with pytest.raises(IntegrityError, match="another kind"):
        open_outcome(FILES["chunk"])
    with pytest.raises(IntegrityError, match="content and place"):
        open_outcome(FILES["outcome-returned"], "outcome-raised")
    with pytest.raises(IntegrityError, match="content and place"):
        envelope.open_outcome(b"other", PLACES["outcome-raised"], FILES["outcome-raised"])
    with pytest.raises(IntegrityError, match="content and place"):
        envelope.open_chunk(golden.KEY, PLACES["chunk"].replace("0", "1"), FILES["chunk"])


@pytest.mark.parametrize(
    ("name", "reader"),
    [
        ("root", READERS["Index"]),
        ("chunk", open_chunk),
        ("outcome-returned", open_outcome),
    ],
)
def test_other_protocol_version_is_reported(name, reader):
    data = bytearray(ROOT if name == "root" else FILES[name])
    data[8:10] = (2).to_bytes(2, "big")
    with pytest.raises(VersionMismatchError, match="protocol version 2, this side uses 1"):
        reader(bytes(data))


@given(
    data=st.binary(max_size=200),
    at=st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
    meta=st.integers(0, 60),
    functions=st.integers(0, 3),
    entries=st.integers(0, 300),
    page=st.binary(max_size=60),
)
def test_signed_malformed_index_is_rejected(data, at, meta, functions, entries, page):
    length = meta + 32 * -(-entries // envelope.PAGE_ROWS) + wire.ROW.size * functions
    body = (data + bytes(length))[:length] + bytes(4)
    root = wire.root(ROOT[:12], at, (meta, functions, entries), body)
    try:
        opened = envelope.Index(root, hashlib.sha256(root).hexdigest())
    except IntegrityError:
        return
    for number in (-1, 0, opened.entries):
        with pytest.raises(IntegrityError):
            opened.entry(number, page)
    with pytest.raises(IntegrityError):
        opened.function(functions)


def signed_outcome(length, body):
    """Return an outcome with a valid signature and any content."""
    prefix = FILES["outcome-returned"][:12]
    return wire.outcome(golden.KEY, PLACES["outcome-returned"], prefix, length, body)


META = b'{"status": "done"}'
HUGE = [2**16, 2**31, 2**32 - 1]
HUGER = [*HUGE, 2**32, 2**60, 2**63, 2**64 - 1]


@given(
    length=st.integers(0, 80) | st.sampled_from(HUGE),
    body=st.binary(max_size=200)
    | st.builds(bytes.__add__, st.sampled_from([META, b"[]", b"[" * 9, b"1" * 60]), st.binary()),
)
@example(length=len(META), body=META)
@example(length=len(META), body=META + bytes(4))
@example(length=100_000, body=b"[" * 100_000)
@example(length=5_000, body=b"1" * 5_000)
@example(length=4, body=b"\xff\xfe\xfd\xfc")
@example(length=len(META), body=META + b"".join(envelope.pack([[b"a"], [b"b"]])))
def test_signed_malformed_outcome_is_rejected(length, body):
    with pytest.raises(IntegrityError):
        open_outcome(signed_outcome(length, body))


def test_signed_valid_outcome_is_read():
    whole = envelope.pack([[b"out"], [b"err"], [b"value"]])
    found = open_outcome(signed_outcome(len(META), META + b"".join(whole)))
    assert (found.meta, found.stdout, found.value) == ({"status": "done"}, b"out", b"value")


@given(data=st.binary(max_size=200))
def test_chunk_round_trips(data):
    assert open_chunk(b"".join(envelope.seal_chunk(golden.KEY, PLACES["chunk"], data))) == data


@given(
    count=st.integers(0, 12) | st.sampled_from(HUGE),
    lengths=st.lists(st.integers(0, 300) | st.sampled_from(HUGER), max_size=10),
    rest=st.binary(max_size=300),
)
def test_unpacked_buffers_stay_within_data(count, lengths, rest):
    data = wire.packed(count, lengths)
    try:
        found = envelope.unpack(data + rest)
    except IntegrityError:
        return
    assert sum(map(len, found)) <= len(data + rest)


REFERS, GOES_ON = 1 << 63, 1 << 62


@given(
    count=st.integers(0, 12) | st.sampled_from(HUGE),
    lengths=st.lists(
        st.builds(
            int.__or__,
            st.integers(0, 300) | st.sampled_from(HUGER),
            st.sampled_from([0, REFERS, GOES_ON, REFERS | GOES_ON]),
        ),
        max_size=10,
    ),
    rest=st.binary(max_size=600),
)
def test_references_are_rejected_or_resolved(count, lengths, rest):
    data = wire.packed(count, lengths) + rest
    asked = []

    def find(reference):
        asked.append(reference)
        return found(reference)

    try:
        parts = envelope.unpack_shared(data, find)
    except IntegrityError:
        return
    assert asked == envelope.references(data)
    assert [len(part) for part in parts] == [
        1 + next((n for n, after in enumerate(rest) if not after & GOES_ON), len(rest))
        for at, length in enumerate(lengths[:count])
        if not length & GOES_ON
        for rest in [lengths[at + 1 : count]]
    ]
    assert envelope.table_size(data) <= 4 + 40 * count


@settings(max_examples=50)
@given(
    st.lists(
        st.lists(st.binary(max_size=200) | st.binary(min_size=1, max_size=99).map(bytearray)),
        max_size=5,
    )
)
def test_references_round_trip(parts):
    """Each bytearray in ``parts`` is packed as a reference."""
    values = {hashlib.sha256(each).digest(): bytes(each) for part in parts for each in part}
    framed = [
        [
            envelope.Reference(hashlib.sha256(each).digest(), len(each))
            if isinstance(each, bytearray)
            else each
            for each in part
        ]
        for part in parts
    ]
    data = b"".join(envelope.pack(framed))
    back = envelope.unpack_shared(data, lambda reference: values[reference.sha256])
    assert [b"".join(part) for part in back] == [b"".join(part) for part in parts]
    if envelope.references(data):
        with pytest.raises(IntegrityError):
            envelope.unpack(data)


@pytest.mark.parametrize(
    "entry",
    [None, [], {}, "generation", ["generation"], [1, 100], ["g", 99], ["g", "100"], ["g", 100, 0]],
)
def test_shared_entry_needs_generation_and_size(entry):
    value = envelope.Reference(bytes(32), 100)

    def opened(shared):
        _, root = envelope.seal_index({"shared": shared}, [], [])
        return envelope.Index(root, hashlib.sha256(root).hexdigest())

    assert opened({value.sha256.hex(): ["g", 100]}).shared(value) == "g"
    for shared in ({value.sha256.hex(): entry}, entry, {}):
        with pytest.raises(IntegrityError, match="does not name"):
            opened(shared).shared(value)


@given(said=st.dictionaries(TEXT, TEXT | st.integers()), other=st.binary(max_size=50))
def test_note_is_bound_to_its_place(said, other):
    data = b"".join(envelope.seal_note(golden.KEY, "k", said))
    assert envelope.open_note(golden.KEY, "k", data) == said
    nonsense = b"".join(envelope.seal_chunk(golden.KEY, "k", other))
    for key, place, found in (
        (golden.KEY, "l", data),
        (bytes(32), "k", data),
        (golden.KEY, "k", nonsense),
    ):
        with pytest.raises(IntegrityError):
            envelope.open_note(key, place, found)


@pytest.mark.parametrize(
    "said",
    [7, "", [], {}, ["0" * 64], ["0" * 64, 0], ["0" * 63, 7], ["A" * 64, 7], ["0" * 64, "7"]],
)
def test_packages_entry_needs_digest_and_size(said):
    def opened(packages):
        _, root = envelope.seal_index({"packages": packages}, [], [])
        return envelope.Index(root, hashlib.sha256(root).hexdigest())

    assert opened(["0" * 64, 7]).packages() == envelope.Reference(bytes(32), 7)
    assert opened(None).packages() is None
    with pytest.raises(IntegrityError, match="the packages that"):
        opened(said).packages()


def declared_sizes():
    """Yield readers, each with an object that declares far more bytes than it has."""
    root = bytearray(ROOT)
    for size in HUGE:
        if size > LARGEST_ROOT_BYTES:
            yield envelope.root_size, wire.ROOT_SIZE.pack(size)
        yield open_outcome, signed_outcome(size, META)
        yield envelope.unpack, wire.packed(size, []) + bytes(100)
        for field in (28, 32, 36):  # bytes of meta, functions, entries
            root[field : field + 4] = size.to_bytes(4, "big")
            data = bytes(root)
            yield (lambda data: envelope.Index(data, hashlib.sha256(data).hexdigest())), data
    for size in HUGER:
        yield envelope.unpack, envelope.pack_head([size]) + bytes(100)


def test_declared_sizes_allocate_no_memory():
    objects = list(declared_sizes())
    refused = 0
    tracemalloc.start()
    try:
        for reader, data in objects:
            with pytest.raises(IntegrityError):
                reader(data)
            refused += 1
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused == len(objects) > 20
    assert peak < 2**20


def test_every_decoder_is_tested():
    """Add a new function that reads bytes from the bucket to `READERS`."""
    encoding = {"bundle_start", "seal_index", "seal_outcome", "seal_chunk", "pack", "pack_head"}
    encoding |= {
        "seal_receipt",
        "pack_shared",
        "places_of",
        "seal_note",
        "seal_worker",
        "encrypted",
    }
    public = {
        name
        for name, value in vars(envelope).items()
        if inspect.isfunction(value) and value.__module__ == envelope.__name__
        if not name.startswith("_")
    }
    assert public - encoding - {"size", "portions"} | {"Index"} == set(READERS)
    methods = {name for name, value in vars(envelope.Index).items() if inspect.isfunction(value)}
    named = {"page", "entry", "texts", "function", "shared", "packages"}
    assert methods == {"__init__", *named}


def test_index_page_is_bound_to_position():
    bundle = FILES["bundle"]
    index = envelope.Index(ROOT, DIGEST)
    pages = []
    for number in (0, envelope.PAGE_ROWS):
        part = index.page(number)
        pages.append(bundle[part.offset : part.offset + part.length])
        index.entry(number, pages[-1])
    first, second = pages
    changed = first[:-1] + bytes([first[-1] ^ 1])
    for number, page in (
        (0, second),
        (envelope.PAGE_ROWS, first),
        (0, first[:-1]),
        (0, changed),
    ):
        with pytest.raises(IntegrityError):
            index.entry(number, page)


def address(buffer):
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


@settings(max_examples=50)
@given(st.lists(st.lists(st.binary(max_size=200), max_size=3), max_size=5))
def test_packed_buffers_are_aligned(parts):
    data = bytearray(b"".join(envelope.pack(parts)))
    found = envelope.unpack(data)
    assert [bytes(part) for part in found] == [b"".join(part) for part in parts]
    begin, *starts = [address(part) for part in (data, *found) if part]
    assert {(start - begin) % envelope.ALIGNMENT for start in starts} <= {0}


def test_trailing_bytes_are_rejected():
    for parts in ([], [[b"a"]]):
        data = b"".join(envelope.pack(parts))
        with pytest.raises(IntegrityError, match="followed by other bytes"):
            envelope.unpack(data + b"x")


@settings(max_examples=50)
@given(
    st.dictionaries(TEXT, TEXT | st.integers() | st.none(), max_size=4),
    st.binary(max_size=100),
    st.binary(max_size=100),
    st.binary(max_size=100),
)
def test_outcome_round_trips(meta, stdout, stderr, value):
    data = b"".join(envelope.seal_outcome(b"k", "place", meta, stdout, stderr, [value]))
    outcome = envelope.open_outcome(b"k", "place", data)
    assert json.dumps(outcome.meta) == json.dumps(meta)
    assert (outcome.stdout, outcome.stderr, outcome.value) == (stdout, stderr, value)
