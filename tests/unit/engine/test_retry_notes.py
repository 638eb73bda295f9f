"""Notes on retries: newest content, and foreign objects between them."""

import pytest

from farcall.engine import retry_notes
from farcall.engine.retry_notes import Note
from farcall.model.submission import Submission
from farcall_runtime import envelope
from farcall_runtime.contract import Location

OLD = Location("bucket", "prefix/v1/run", "fit-0")
NEW = Location("bucket", "prefix/v1/other", "fit-1")
JOB = Submission("job", "fit-0", OLD, bytes(32), 10)
NOTE = Note(NEW, "queue", (3, 7), "another job")


async def test_newest_note_is_read(session):
    store = session.stores.of("bucket")
    await retry_notes.write(store, JOB, Note(NEW, "queue", (3, 7)))
    await retry_notes.write(store, JOB, NOTE)
    assert await retry_notes.read(store, JOB) == [NOTE]


async def test_foreign_notes_are_neither_read_nor_in_the_way(session, monkeypatch):
    store = session.stores.of("bucket")
    await retry_notes.write(store, JOB, NOTE)
    (key,) = [key for key, _ in await store.list_keys(OLD.retries_prefix)]
    for number in range(1001):  # listed before the note
        await store.put(f"{OLD.retries_prefix}0-{number}", [b"FARCALL"])
    await store.put(key.replace("fit-1", "fit-2"), [await store.get(key)])
    read = []
    get_dated = store.get_dated
    monkeypatch.setattr(store, "get_dated", lambda key, **_: read.append(key) or get_dated(key))
    assert await retry_notes.read(store, JOB) == [NOTE]
    assert read == [key]


@pytest.mark.parametrize(
    "content", [{}, {"bundle": 3}, {"bundle": NEW.url, "queue": "", "origin": 1}, b"FARCALL"]
)
async def test_unreadable_note_is_ignored(session, content):
    store = session.stores.of("bucket")
    await retry_notes.write(store, JOB, NOTE)
    (key,) = [key for key, _ in await store.list_keys(OLD.retries_prefix)]
    data = content if isinstance(content, bytes) else envelope.seal_note(JOB.key, key, content)
    await store.put(key, data if isinstance(data, list) else [data])
    assert await retry_notes.read(store, JOB) == []
