"""When the objects and the bundle of a task are deleted."""

import pytest

from farcall import Settings
from farcall.engine.fetcher import Cleaner
from farcall.model.submission import Submission
from farcall.storage.store import Stores
from farcall_runtime.contract import Location
from tests.unit.fakes import access_in_memory

ROOT = "farcall/v1/run"
SETTINGS = Settings()


class Owner:
    """Cleaner and the bucket that it cleans."""

    def __init__(self, timing):
        stores = Stores(access_in_memory())
        self.store = stores.of("bucket")
        self.deleted, self.failed = [], []
        self.cleaner = Cleaner(stores, timing, self.deleted.append, self.failed.append)

    async def submit(self, name, size=1):
        where = Location("bucket", ROOT, name)
        await self.store.put(where.bundle_key, [b"bundle"])
        submission = Submission(f"job-{name}", name, where, b"key", size)
        self.cleaner.record_submission(submission)
        return submission

    async def bundles_left(self):
        await self.store.flush()
        found = await self.store.list_keys(f"{ROOT}/bundles/")
        names = (key.removeprefix(f"{ROOT}/bundles/") for key, _ in found)
        return [name for name in names if "/" not in name]  # other keys are receipts


@pytest.fixture
async def owner(timing):
    return Owner(timing)


async def test_bundle_is_deleted_after_successful_tasks(owner):
    discard = owner.cleaner.discard
    well, badly = await owner.submit("well", 2), await owner.submit("badly", 2)
    for submission, index, deletable in ((well, 0, ["o"]), (badly, 0, []), (badly, 1, ["o"])):
        discard(SETTINGS, submission, index, deletable)
    assert await owner.bundles_left() == ["badly", "well"]
    assert owner.deleted == []
    discard(SETTINGS, well, 1, ["o"])
    assert await owner.bundles_left() == ["badly"]
    assert (owner.deleted, owner.failed) == ([well.where], [badly.where])


async def test_kept_artifacts_are_not_deleted(owner):
    kept = await owner.submit("kept")
    await owner.store.put("o", [b"outcome"])
    owner.cleaner.discard(Settings(keep_artifacts=True), kept, 0, ["o"])
    assert await owner.bundles_left() == ["kept"]
    assert await owner.store.get("o") is not None


@pytest.mark.timing(most_undelivered=3)
async def test_bundles_without_fetched_results_are_forgotten(owner):
    done = ["o"]
    busy = await owner.submit("busy", 4)
    others = []
    for n in range(3):
        owner.cleaner.discard(SETTINGS, busy, n, done)  # so it stays remembered
        others.append(await owner.submit(f"{n}"))
    for submission in (*others, busy):
        owner.cleaner.discard(SETTINGS, submission, submission.size - 1, done)
    assert await owner.bundles_left() == ["0"]


async def test_unfetched_output_is_deleted_at_close(owner):
    task = await owner.submit("one")
    await owner.store.put("chunk", [b"output"])
    owner.cleaner.discard(SETTINGS, task, 0, ["o"], ["chunk"])
    await owner.store.flush()
    assert await owner.store.get("chunk") is not None
    owner.cleaner.close()
    await owner.store.flush()
    assert await owner.store.get("chunk") is None
