"""Recovery of runs whose client is gone, with an in-memory bucket and a scripted Batch."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from farcall import Settings
from farcall.backends.batch.backend import BatchBackend
from farcall.client import recovery
from farcall.engine import retry_notes
from farcall.engine.warm_calls import WarmBackend
from farcall.model.errors import FarcallError, ServiceError, UnknownError
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.timing import Timing
from farcall_runtime import envelope
from farcall_runtime.contract import ENV_RETRY_OF
from tests.unit import bundles
from tests.unit.fakes import store_in_memory

RUN = "mary-20261122-101500-0a1b2c"
ROOT = f"farcall/v1/{RUN}"
SETTINGS = Settings(s3_bucket_name="bucket")


class Backend:
    """Batch with the operations that recovery calls.

    Attributes:
        known: Job details by job ID.
        queues: Queue of each bundle's jobs.
        succeeded: Indexes of succeeded array tasks, by array job.
        refuses: Error raised by listing, by queue.
        asked: Recorded (name, queue) of each search.
    """

    name = "batch"
    capabilities = BatchBackend.capabilities

    def __init__(self):
        self.known, self.queues, self.succeeded, self.refuses = {}, {}, {}, {}
        self.asked = []

    async def find(self, name, queue):
        self.asked.append((name, queue))
        if queue in self.refuses:
            raise self.refuses[queue]
        return [
            job_id
            for job_id, detail in self.known.items()
            if detail.name == name and self.queues.get(job_id, SETTINGS.queue) == queue
        ]

    async def describe(self, job_ids):
        return {job_id: self.known[job_id] for job_id in job_ids if job_id in self.known}

    async def list_children(self, job_id, status):
        for index in self.succeeded.get(job_id, ()):
            yield [JobDetail(f"{job_id}:{index}", "n", status)]


class Account:
    """Bucket and backend, with helpers that store what a client leaves there."""

    def __init__(self, **timing):
        self._bucket = store_in_memory()
        self.backend = Backend()
        self.stores = SimpleNamespace(of=lambda _: self._bucket)
        self.warm = WarmBackend(self.backend, self.stores)
        self.timing = Timing(recover_polls_s=(0.0, 0.0), **timing)

    def store(self, bucket="bucket"):
        return self._bucket

    async def submit(self, tasks=1, job_id="6f1c", status=JobStatus.RUNNING, queue=SETTINGS.queue):
        """Store a bundle and register its job with Batch."""
        calls = [[((number,), {})] for number in range(tasks)]
        submission, environment = await bundles.submit(
            self.store(), *calls, root=ROOT, job_id=job_id, queue=queue
        )
        self.backend.known[job_id] = JobDetail(
            job_id,
            submission.name,
            status,
            environment=environment,
            array_size=tasks if tasks > 1 else 0,
        )
        self.backend.queues[job_id] = queue
        return submission

    async def put_outcome(self, submission, index=0):
        await self.store().put(submission.where.outcome_key(index), [b"outcome"])

    async def recover(self, run=RUN):
        return await recovery.recover(self, SETTINGS, run)

    async def find(self, submission):
        return await recovery.find(self, SETTINGS, submission.where)


@pytest.fixture
def account(monkeypatch):
    made = Account()

    async def find(settings):
        return made

    monkeypatch.setattr(recovery, "session_for", find)
    return made


def ids(recovered):
    return [job.id for job in recovered.jobs]


# --- runs -------------------------------------------------------------------------------------


async def test_runs_are_listed_from_bucket(account):
    assert await recovery.runs(account, SETTINGS) == []
    await account.submit(job_id="a")
    await account.submit(job_id="b")
    await account.store().put("farcall/v1/no run/bundles/x", [b"a stranger's"])
    (run,) = await recovery.runs(account, SETTINGS)
    assert (run.name, run.bundles) == (RUN, 2)
    assert run.stored_at <= datetime.now(UTC)


@pytest.mark.parametrize("run", ["other", "", "../x", "a/b", "a\x1bb"])
async def test_unknown_run_error_lists_existing_runs(account, run):
    await account.submit()
    with pytest.raises(UnknownError, match=f"has nothing left .*Existing runs: {RUN}"):
        await account.recover(run)


# --- tasks of a run ---------------------------------------------------------------------------


async def test_stored_outcome_marks_job_as_done(account):
    await account.submit(job_id="running")
    ended = await account.submit(job_id="ended", status=JobStatus.FAILED)
    await account.put_outcome(ended)
    recovered = await account.recover()
    assert {job.id: job.done() for job in recovered.jobs} == {"running": False, "ended": True}
    assert (recovered.delivered, recovered.unsubmitted, recovered.forgotten) == (0, [], [])


async def test_success_without_outcome_counts_as_delivered(account):
    array = await account.submit(3, "array", JobStatus.SUCCEEDED)
    await account.put_outcome(array, 1)
    recovered = await account.recover()
    assert ids(recovered) == ["array:1"]
    assert recovered.delivered == 2


async def test_running_array_lists_its_succeeded_tasks(account):
    await account.submit(3, "array")
    account.backend.succeeded["array"] = [2]
    recovered = await account.recover()
    assert (ids(recovered), recovered.delivered) == (["array:0", "array:1"], 1)


async def test_receipt_marks_tasks_as_delivered(account):
    """A forged receipt has no effect."""
    submission = await account.submit(3, "array")
    own, forged = submission.where.receipt_key(0), submission.where.receipt_key(1)
    await account.store().put(own, envelope.seal_receipt(submission.key, own, bytes([0b101])))
    await account.store().put(forged, envelope.seal_receipt(b"k" * 32, forged, bytes([0b111])))
    recovered = await account.recover()
    assert (ids(recovered), recovered.delivered) == (["array:1"], 2)


async def test_unreadable_receipts_are_ignored(account, monkeypatch, caplog):
    """One is too large, one is garbage, and one is in an archive."""
    submission = await account.submit(3, "array")
    store = account.store()
    keys = [f"{submission.where.bundle_key}.delivered/{number}" for number in range(3)]
    for key, body in zip(keys, (bytes(2 << 20), b"x", b"cold"), strict=True):
        await store.put(key, [body])
    get = store.get_dated

    async def refuse_cold(key, *args, **options):
        if key == keys[2]:
            text = f"GetObject of {key} failed"
            raise ServiceError(text, code="InvalidObjectState", status=403, sent=False)
        return await get(key, *args, **options)

    monkeypatch.setattr(store, "get_dated", refuse_cold)
    recovered = await account.recover()
    assert (len(recovered.jobs), recovered.delivered) == (3, 0)
    assert ".delivered/2 failed; skipped" in caplog.text


async def test_bundle_without_job_is_unsubmitted(account):
    submission = await account.submit()
    account.backend.known.clear()
    recovered = await account.recover()
    assert (recovered.jobs, recovered.unsubmitted) == ([], [submission.where.bundle])
    assert len(account.backend.asked) == 2  # lists are eventually consistent


async def test_bundle_with_outcome_is_forgotten(account):
    submission = await account.submit()
    account.backend.known.clear()
    await account.put_outcome(submission)
    recovered = await account.recover()
    assert (recovered.unsubmitted, recovered.forgotten) == ([], [submission.where.bundle])


async def test_bundle_older_than_retention_is_forgotten():
    account = Account(remembered_s=-3600.0)
    submission = await account.submit()
    account.backend.known.clear()
    assert (await account.recover()).forgotten == [submission.where.bundle]


async def test_foreign_job_is_ignored(account):
    submission = await account.submit()
    detail = account.backend.known["6f1c"]
    account.backend.known["6f1c"] = JobDetail("6f1c", detail.name, JobStatus.RUNNING)
    recovered = await account.recover()
    assert (recovered.jobs, recovered.unsubmitted) == ([], [submission.where.bundle])


async def test_queue_of_bundle_is_searched_first(account):
    submission = await account.submit(queue="nightly")
    recovered = await account.recover()
    assert ids(recovered) == ["6f1c"]
    assert account.backend.asked == [(submission.where.bundle, "nightly")]


async def test_missing_queue_leaves_bundle_unresolved(account, caplog):
    submission = await account.submit(queue="gone")
    account.backend.refuses["gone"] = ServiceError(
        "No such queue.", code="ClientException", status=400
    )
    recovered = await account.recover()
    assert (recovered.unsubmitted, recovered.forgotten) == ([], [submission.where.bundle])
    assert "was in queue gone, which cannot be listed: No such queue." in caplog.text


async def test_discard_deletes_fully_delivered_run(account):
    submission = await account.submit(2, "array", JobStatus.SUCCEEDED)
    receipt = submission.where.receipt_key(0)
    await account.store().put(
        receipt, envelope.seal_receipt(submission.key, receipt, bytes([0b11]))
    )
    recovered = await account.recover()
    assert (recovered.jobs, recovered.delivered) == ([], 2)
    await recovered.discard()
    await account.store().flush()
    assert await account.store().list_keys(f"{ROOT}/bundles/") == []


# --- job of one bundle ------------------------------------------------------------------------


async def test_job_of_bundle_is_found(account):
    submission = await account.submit()
    assert (await account.find(submission)).job_id == "6f1c"
    assert await account.store().get(submission.where.bundle_key) is not None


async def test_bundle_without_job_is_deleted(account):
    """The caller may submit again: a job that appears later finds no bundle."""
    submission = await account.submit()
    account.backend.known.clear()
    assert await account.find(submission) is None
    assert await account.store().list_keys(f"{ROOT}/bundles/") == []


async def test_unlistable_queue_raises_and_keeps_bundle(account):
    submission = await account.submit(queue="gone")
    account.backend.refuses["gone"] = ServiceError("No.", code="ClientException", status=400)
    with pytest.raises(FarcallError, match="cannot tell .*: its queue could not be listed"):
        await account.find(submission)
    assert await account.store().get(submission.where.bundle_key) is not None


async def test_started_unlisted_job_is_not_resubmitted(account):
    submission = await account.submit()
    account.backend.known.clear()
    await account.put_outcome(submission)
    with pytest.raises(FarcallError, match="has started, but Batch does not list it"):
        await account.find(submission)


@pytest.mark.parametrize("is_collected", [False, True])
async def test_retried_task_is_recovered_once(account, is_collected):
    """The job of a task's second chance is in the run, too, unless its result was collected."""
    first = await account.submit(3, "first")
    again = await account.submit(1, "again")
    account.backend.known["again"].environment[ENV_RETRY_OF] = "first:1"
    note = retry_notes.Note(again.where, SETTINGS.queue, (1,), "again")
    await retry_notes.write(account.store(), first, note)
    if is_collected:
        await account.store().delete([again.where.bundle_key])
    recovered = await account.recover()
    rest = [] if is_collected else ["again"]
    assert sorted(ids(recovered)) == [*rest, "first:0", "first:2"]
    assert recovered.delivered == is_collected
