"""Workspace archives in the bucket: stored once, and again if they differ or are old."""

from __future__ import annotations

import tempfile
from datetime import timedelta

import pytest

from farcall.engine import workspaces
from farcall.engine.workspaces import key_of, put_once
from farcall.payload.archive import Archive
from tests.unit.fakes import store_in_memory

KEY = key_of("farcall", "0" * 64)


@pytest.fixture
def archive():
    with tempfile.TemporaryFile() as file:
        file.write(b"archive")
        file.flush()
        yield Archive(file, "0" * 64, 7, 1, 7)


def test_archives_are_stored_next_to_runs():
    assert key_of("a/b", "1" * 64) == f"a/b/v1/workspaces/{'1' * 64}.tar.gz"
    assert key_of("", "1" * 64) == f"v1/workspaces/{'1' * 64}.tar.gz"


async def test_archive_is_stored_once(archive):
    store = store_in_memory()
    assert await put_once(store, KEY, archive)
    assert await store.get(KEY) == b"archive"
    assert not await put_once(store, KEY, archive)


async def test_archive_of_other_size_is_replaced(archive):
    store = store_in_memory()
    await store.put(KEY, [b"another client's"])
    assert await put_once(store, KEY, archive)
    assert await store.get(KEY) == b"archive"


async def test_old_archive_is_stored_again(archive, monkeypatch):
    """A lifecycle rule would delete it soon."""
    store = store_in_memory()
    await put_once(store, KEY, archive)
    monkeypatch.setattr(workspaces, "FRESH", timedelta(0))
    assert await put_once(store, KEY, archive)
