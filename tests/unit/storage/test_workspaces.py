"""Archives in the bucket: each is stored once, and again where it is not what it was or is old."""

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


def test_archives_lie_beside_the_runs():
    assert key_of("a/b", "1" * 64) == f"a/b/v1/workspaces/{'1' * 64}.tar.gz"
    assert key_of("", "1" * 64) == f"v1/workspaces/{'1' * 64}.tar.gz"


async def test_an_archive_is_stored_once(archive):
    store = store_in_memory()
    assert await put_once(store, KEY, archive)
    assert await store.get(KEY) == b"archive"
    assert not await put_once(store, KEY, archive)


async def test_what_lies_there_with_another_size_is_replaced(archive):
    store = store_in_memory()
    await store.put(KEY, [b"another client's"])
    assert await put_once(store, KEY, archive)
    assert await store.get(KEY) == b"archive"


async def test_an_old_archive_is_stored_anew_before_a_lifecycle_rule_deletes_it(
    archive, monkeypatch
):
    store = store_in_memory()
    await put_once(store, KEY, archive)
    monkeypatch.setattr(workspaces, "FRESH", timedelta(0))
    assert await put_once(store, KEY, archive)
