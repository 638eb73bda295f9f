"""Memory of the payload: shared values are stored once, and writes change only one copy."""

from __future__ import annotations

import tempfile

import pytest

from farcall_runtime import envelope, task
from farcall_runtime.envelope import Reference

ONE, OTHER = Reference(b"1" * 32, 100), Reference(b"2" * 32, 5000)


@pytest.fixture
def memory():
    frames = [
        b"".join(envelope.pack([[b"a", ONE, b"b"], [OTHER]])),
        b"".join(envelope.pack([[OTHER], [ONE]])),
    ]
    with tempfile.TemporaryFile() as file:
        file.write(b"".join(frames).ljust(640))
        for place, letter in ((640, b"x"), (768, b"y")):
            file.seek(place)
            file.write(letter * {640: ONE.size, 768: OTHER.size}[place])
        file.flush()
        made = task.Memory(file.fileno())
        made.record_shared(frames, 640)
        yield made


def test_each_reference_has_its_own_copy(memory):
    found = [memory.find(ONE) for _ in range(3)]
    assert [bytes(each) for each in found] == [b"x" * 100] * 3
    found[0][:3] = b"abc"
    assert [bytes(each[:3]) for each in found] == [b"abc", b"xxx", b"xxx"]
    assert bytes(memory.find(OTHER)) == b"y" * 5000


def test_references_may_exceed_open_file_limit(memory):
    found = [memory.find(OTHER) for _ in range(3000)]
    found[-1][0] = 1
    assert {bytes(each) for each in found[:-1]} == {b"y" * 5000}
