"""Workspaces of commands: their variables, and their archives in the bucket."""

import tempfile
from datetime import timedelta

import pytest

from farcall.config.settings import Settings
from farcall.engine import workspaces
from farcall.engine.session import Session
from farcall.engine.workspaces import key_of, put_once
from farcall.model.errors import SettingsError
from farcall.payload.archive import Archive
from farcall.storage import packages
from tests.unit.fakes import ScriptedBatch, access_in_memory

HASH = "5" * 64
KEY = key_of("farcall", HASH)


@pytest.fixture
def archive():
    with tempfile.TemporaryFile() as file:
        file.write(b"archive")
        file.flush()
        yield Archive(file, HASH, 7, 1, 7)


@pytest.fixture
async def session(timing):
    made = Session(access_in_memory(timing), ScriptedBatch(None))
    yield made
    await made.close()


@pytest.fixture
async def store(session):
    return session.stores.of("bucket")


def test_planned_location_depends_only_on_options(archive):
    settings = Settings(
        s3_bucket_name="mine", prefix="a", region="eu-west-1", batch_job_role_name="role"
    )
    found = workspaces.planned(settings, archive, "/work")
    assert found._asdict() == {
        "region": "eu-west-1",
        "url": "https://mine.s3.eu-west-1.amazonaws.com",
        "bucket": "mine",
        "key": f"a/v1/workspaces/{HASH}.tar.gz",
        "sha256": HASH,
        "folder": "/work",
    }
    elsewhere = settings.replace(endpoint_url="http://127.0.0.1:1")
    assert workspaces.planned(elsewhere, archive).url == "http://127.0.0.1:1/mine"


def test_job_without_role_is_rejected(archive):
    with pytest.raises(SettingsError, match="batch_job_role_name is empty, but"):
        workspaces.planned(Settings(batch_job_role_name=""), archive)


def test_missing_bucket_is_rejected(archive):
    with pytest.raises(SettingsError, match="s3_bucket_name is empty, but"):
        workspaces.planned(Settings(s3_bucket_name=""), archive)


def test_relative_folder_is_rejected(archive):
    with pytest.raises(SettingsError, match="is 'work'. Use an absolute path"):
        workspaces.planned(Settings(batch_job_role_name="role"), archive, "work")


async def test_stored_location_uses_actual_bucket_region(session, archive):
    settings = Settings(s3_bucket_name="bucket", region="eu-west-1", batch_job_role_name="role")
    planned = workspaces.planned(settings, archive)
    found = await workspaces.store(session, planned, archive)
    assert await session.stores.of("bucket").get(found.key) == b"archive"
    assert (found.url, found.region) == session.aws.place("bucket")
    assert found.region != planned.region
    assert found._replace(region=planned.region, url=planned.url) == planned


@pytest.mark.parametrize("option", ["s3_secret", "service_account"])
def test_kubernetes_needs_secret_or_service_account(archive, option):
    mine = Settings(backend="kubernetes", s3_bucket_name="mine")
    with pytest.raises(SettingsError, match="s3_secret and service_account are empty"):
        workspaces.planned(mine, archive)
    given = mine.replace(**{option: "trainer"})
    assert workspaces.planned(given, archive).bucket == "mine"


# --- archives in the bucket -------------------------------------------------------------------


def test_archives_are_stored_next_to_runs():
    assert key_of("a/b", "1" * 64) == f"a/b/v1/workspaces/{'1' * 64}.tar.gz"
    assert key_of("", "1" * 64) == f"v1/workspaces/{'1' * 64}.tar.gz"


async def test_archive_is_stored_once(store, archive):
    assert await put_once(store, KEY, archive)
    assert await store.get(KEY) == b"archive"
    assert not await put_once(store, KEY, archive)


async def test_archive_of_other_size_is_replaced(store, archive):
    await store.put(KEY, [b"another client's"])
    assert await put_once(store, KEY, archive)
    assert await store.get(KEY) == b"archive"


async def test_old_archive_is_stored_again(store, archive, monkeypatch):
    """A lifecycle rule would delete it soon."""
    await put_once(store, KEY, archive)
    monkeypatch.setattr(packages, "FRESH", timedelta(0))
    assert await put_once(store, KEY, archive)
