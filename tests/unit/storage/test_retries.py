"""Notes on retries, in an in-memory bucket."""

from __future__ import annotations

import pytest

from farcall.engine import retry
from farcall.engine.retry import Note
from farcall.engine.session import Session
from farcall.model.submission import Submission
from farcall_runtime import envelope
from farcall_runtime.contract import Location
from tests.unit.fakes import ScriptedBatch, access_in_memory

OLD = Location("bucket", "prefix/v1/run", "fit-0")
NEW = Location("bucket", "prefix/v1/other", "fit-1")
JOB = Submission("job", "fit-0", OLD, bytes(32), 10)
NOTE = Note(NEW, "queue", (3, 7), "another job")


@pytest.fixture
async def store(timing):
    made = Session(access_in_memory(timing), ScriptedBatch(None))
    yield made.stores.of("bucket")
    await made.close()


async def test_newest_note_is_read(store):
    await retry.write(store, JOB, Note(NEW, "queue", (3, 7)))
    await retry.write(store, JOB, NOTE)
    assert await retry.read(store, JOB) == [NOTE]


async def test_foreign_notes_are_ignored(store):
    await retry.write(store, JOB, NOTE)
    key = OLD.retry_key("fit-2")
    written = await store.get(OLD.retry_key("fit-1"))
    await store.put(key, [written])  # signed for another key
    await store.put(OLD.retry_key("fit-3"), [b"FARCALL"])
    await store.put(OLD.retry_key("fit-4/x"), [written])
    for number, content in enumerate(
        ({}, {"bundle": 3}, {"bundle": NEW.url, "queue": "", "origin": 1})
    ):
        place = OLD.retry_key(f"fit-5{number}")
        await store.put(place, envelope.seal_note(JOB.key, place, content))
    place = OLD.retry_key("fit-6")
    await store.put(place, envelope.seal_note(bytes(31) + b"x", place, {}))
    assert await retry.read(store, JOB) == [NOTE]
