"""Cancel markers with an in-memory bucket: validation and deletion."""

import os

import pytest
from obstore.store import from_url

from farcall.engine.cancel_markers import mark_cancelled
from farcall.model.submission import Submission
from farcall.storage.store import Store
from farcall_runtime.bundle import Assignment, is_cancelled
from farcall_runtime.contract import CANCELLED, Location
from farcall_runtime.storage import Storage
from tests.unit.fakes import access_in_memory

WHERE = Location("bucket", "v1/run", "fit-0")
JOB = Submission("job", "fit-0", WHERE, b"k" * 32, 9)


@pytest.fixture
def folder(tmp_path):
    return tmp_path.as_uri()


@pytest.fixture
async def store(folder, timing):
    return Store("bucket", access_in_memory(timing, from_url(folder)))


def sees(folder, index, key=JOB.key):
    job = Assignment(WHERE, "", key, index, 2, f"job:{index}", may_be_cancelled=True)
    return is_cancelled(job, Storage("bucket", {**os.environ, "FARCALL_BUCKET_URL": folder}))


async def test_container_sees_only_its_own_marker(store, folder):
    await mark_cancelled(store, JOB, [3, 7], "enough")
    assert [index for index in range(9) if sees(folder, index)] == [3, 7]


async def test_foreign_markers_are_ignored(store, folder):
    await mark_cancelled(store, JOB, [3], "enough")
    signed = await store.get(WHERE.cancelled_key(3))
    await store.put(WHERE.cancelled_key(4), [signed])  # signed for another task
    await store.put(WHERE.cancelled_key(5), [b"cancelled"])
    await store.put(WHERE.cancelled_key(6), [b""])
    assert not any(sees(folder, index) for index in (4, 5, 6))
    assert not sees(folder, 3, key=b"x" * 32)


@pytest.mark.timing(delete_after_s=0.0)
@pytest.mark.parametrize("delete", [True, False])
async def test_markers_are_deleted_with_bundle(store, delete):
    other = Submission("other", "fit-1", WHERE._replace(bundle="fit-1"), b"k" * 32, 9)
    await mark_cancelled(store, JOB, [3, 7], "enough")
    await mark_cancelled(store, other, [1], "enough")
    store.end_bundle(WHERE, delete=delete)
    await store.flush()
    assert len(await store.list_keys(f"{WHERE.bundle_key}{CANCELLED}")) == (0 if delete else 2)
    assert len(await store.list_keys(f"{other.where.bundle_key}{CANCELLED}")) == 1
