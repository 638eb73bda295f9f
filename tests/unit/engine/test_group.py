"""Groups of tasks: reports of ends, and when the objects and the bundle of a task are deleted."""

import pytest

from farcall import Settings
from farcall.engine.group import Services, TaskGroup
from farcall.engine.tracked_job import Ended, UnseenError
from farcall.model.submission import Submission
from farcall.storage.store import Arrived, Stores
from farcall_runtime.contract import Location
from tests.unit.fakes import access_in_memory

ROOT = "farcall/v1/run"
SETTINGS = Settings()
DONE = ["o"]


class Use:
    """Shared values of a bundle."""

    def __init__(self):
        self.calls = []

    def doubt(self):
        self.calls.append("doubt")

    def release(self):
        self.calls.append("release")


class Owner:
    """Session of groups, and its bucket."""

    def __init__(self):
        stores = Stores(access_in_memory())
        self.store = stores.of("bucket")
        self.failures = 0
        self.tracked = []
        self.services = Services(stores, self, None, None, None, self._record_failed)

    def _record_failed(self):
        self.failures += 1

    def watch(self, job, indexes, settings, callback, is_full=None):
        self.tracked += indexes

    def is_watched(self, job_id, index, callback):
        return index in self.tracked

    async def submit(self, name, size=1, use=None, *, is_own=True):
        where = Location("bucket", ROOT, name)
        await self.store.put(where.bundle_key, [b"bundle"])
        submission = Submission(f"job-{name}", name, where, b"key", size)
        return TaskGroup(self.services, submission, SETTINGS, use, is_own=is_own)

    async def bundles_left(self):
        await self.store.flush()
        listed = await self.store.list_keys(f"{ROOT}/bundles/")
        names = (key.removeprefix(f"{ROOT}/bundles/") for key, _ in listed)
        return [name for name in names if "/" not in name]  # other keys are receipts


@pytest.fixture
async def owner():
    return Owner()


# --- ends -------------------------------------------------------------------------------------


async def test_end_before_its_listener_is_reported(owner):
    group = await owner.submit("job", 2)
    group.track()
    group._record_end(1, Arrived("job", 1, 10))
    ends = []
    group.follow(0, lambda *end: ends.append(end))
    group.follow(1, lambda *end: ends.append(end))
    group._record_end(0, Ended(None))
    assert ends == [(1, Arrived("job", 1, 10)), (0, Ended(None))]
    assert (group.unfinished, owner.tracked) == (0, [0, 1])


async def test_unseen_task_is_unfinished(owner):
    group = await owner.submit("job")
    group.track()
    group._record_end(0, Ended(None, UnseenError("no answer")))
    assert (group.unfinished, group.is_unseen) == (1, True)


# --- deletions --------------------------------------------------------------------------------


async def test_bundle_is_deleted_after_successful_tasks(owner):
    uses = Use(), Use()
    well, badly = await owner.submit("well", 2, uses[0]), await owner.submit("badly", 2, uses[1])
    for group, index, deletable in ((well, 0, DONE), (badly, 0, []), (badly, 1, DONE)):
        group.discard(index, deletable)
    assert await owner.bundles_left() == ["badly", "well"]
    well.discard(1, DONE)
    assert await owner.bundles_left() == ["badly"]
    assert [use.calls for use in uses] == [["release"], ["doubt"]]
    assert owner.failures == 1


async def test_bundle_of_another_session_is_kept(owner):
    group = await owner.submit("theirs", is_own=False)
    group.discard(0, DONE)
    assert await owner.bundles_left() == ["theirs"]


async def test_unfetched_output_is_deleted_at_close(owner):
    group = await owner.submit("one")
    await owner.store.put("chunk", [b"output"])
    group.discard(0, DONE, ["chunk"])
    await owner.store.flush()
    assert await owner.store.get("chunk") is not None
    await owner.store.close()
    assert await owner.store.get("chunk") is None
