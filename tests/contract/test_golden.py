"""This version reads the objects that every released version wrote."""

import hashlib
import pickle

import pytest

from farcall_runtime import archive, envelope
from tests.contract import make_golden as golden

V1 = golden.FOLDER.parent / "v1"
DIGEST = (V1 / "bundle.digest").read_text().strip()


def read(name):
    return (V1 / name).read_bytes()


def open_index():
    data = read("bundle")
    return envelope.Index(data[-envelope.root_size(data) :], DIGEST)


def test_bundle_index_is_read():
    index = open_index()
    assert (index.python, index.meta) == ((3, 12), golden.BUNDLE_META)
    assert (index.functions, index.entries) == (2, len(golden.ENTRIES))
    assert index.end == len(read("bundle"))


def test_digest_covers_index_root():
    data = read("bundle")
    assert hashlib.sha256(data[-envelope.root_size(data) :]).hexdigest() == DIGEST


@pytest.mark.parametrize("number", [0, 1, 2, 127, 128, 129])
def test_bundle_parts_are_found(number):
    index, data = open_index(), read("bundle")
    page = index.page(number)
    entry = index.entry(number, data[page.offset : page.offset + page.length])
    function = index.function(entry.function)
    found = [data[part.offset : part.offset + part.length] for part in (function, entry)]
    wanted, arguments = golden.ENTRIES[number]
    assert found == [golden.FUNCTIONS[wanted], arguments]
    function.check(found[0])
    entry.check(found[1])


def test_shared_references_are_resolved():
    data, digest = read("bundle-shared"), read("bundle-shared.digest").decode().strip()
    index = envelope.Index(data[-envelope.root_size(data) :], digest)
    values = {hashlib.sha256(value).digest(): value for value in golden.SHARED_VALUES}
    asked = []

    def find(wanted):
        asked.append(index.shared(wanted))
        return values[wanted.sha256]

    page = index.page(0)
    entry = index.entry(0, data[page.offset : page.offset + page.length])
    function, arguments = (
        [b"".join(part) for part in envelope.unpack_shared(frame, find)]
        for each in (index.function(entry.function), entry)
        if (frame := data[each.offset : each.offset + each.length])
    )
    one, other = golden.SHARED_VALUES
    assert function == [b"function", one]
    assert arguments == [b"pickle, " + other + b"its end", one, b"", b"buffer", one]
    first, second = golden.GENERATIONS
    assert asked == [first, second, first, first]


@pytest.mark.parametrize("name", golden.OUTCOMES)
def test_outcome_is_read(name):
    meta, index, parts = golden.OUTCOMES[name]
    outcome = envelope.open_outcome(golden.KEY, golden.WHERE.outcome_key(index), read(name))
    assert (outcome.python, outcome.meta) == ((3, 12), meta)
    assert (bytes(outcome.stdout), bytes(outcome.stderr)) == (golden.OUTPUT, golden.ERRORS)
    assert (list(envelope.unpack(outcome.value)) if outcome.value else None) == parts


def test_outcome_buffers_are_aligned():
    data = read("outcome-returned")
    outcome = envelope.open_outcome(golden.KEY, golden.WHERE.outcome_key(7), data)
    array = envelope.unpack(outcome.value)[1]
    assert data.index(bytes(array)) % envelope.ALIGNMENT == 0


def test_chunk_is_read():
    key = golden.WHERE.chunk_key(7, 1, "stdout", 0)
    assert envelope.open_chunk(golden.KEY, key, read("chunk")) == golden.CHUNK


def test_task_group_is_read_and_run():
    function, (args, kwargs) = pickle.loads(read("electrons"))
    encoded = function(*args, **kwargs)
    assert (encoded.status, [node["node"] for node in encoded.details["nodes"]]) == (
        "returned",
        [5],
    )
    value = archive.parse(b"".join(encoded.parts[0]))
    assert pickle.loads(archive.decode(value.data)) == 3


def test_golden_files_are_reproduced():
    assert golden.files() == {path.name: path.read_bytes() for path in V1.iterdir()}
