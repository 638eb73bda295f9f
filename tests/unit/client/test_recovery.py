"""What is found of a run whose client is gone: in a bucket in memory, and by a scripted Batch."""

from __future__ import annotations

from datetime import datetime, timezone
from types import SimpleNamespace

import pytest

from farcall import Settings
from farcall.backends.batch.backend import BatchBackend
from farcall.client import recovery
from farcall.model.errors import FarcallError, ServiceError, UnknownError
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.timing import Timing
from farcall_runtime import envelope
from tests.unit import bundles
from tests.unit.fakes import store_in_memory

RUN = "mary-20261122-101500-0a1b2c"
ROOT = f"farcall/v1/{RUN}"
SETTINGS = Settings(s3_bucket_name="bucket")


class Backend:
    """Batch with the operations that recovery calls.

    Attributes:
        known: What it says of jobs, by ID.
        queues: By bundle, in which queue its jobs are.
        succeeded: By array, the numbers of its children that have succeeded.
        refuses: What listing a queue raises, by queue.
        asked: What was looked for, where.
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
    """A bucket and a backend, and what a client has left there."""

    def __init__(self, **timing):
        self._bucket = store_in_memory()
        self.backend = Backend()
        self.stores = SimpleNamespace(of=lambda _: self._bucket)
        self.timing = Timing(recover_looks_s=(0.0, 0.0), **timing)

    def store(self, bucket="bucket"):
        return self._bucket

    async def submit(self, tasks=1, job_id="6f1c", status=JobStatus.RUNNING, queue=SETTINGS.queue):
        """Store a bundle, and have Batch know its job."""
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


async def test_runs_are_told_by_what_they_have_left(account):
    assert await recovery.runs(account, SETTINGS) == []
    await account.submit(job_id="a")
    await account.submit(job_id="b")
    await account.store().put("farcall/v1/no run/bundles/x", [b"a stranger's"])
    (run,) = await recovery.runs(account, SETTINGS)
    assert (run.name, run.bundles) == (RUN, 2)
    assert run.stored_at <= datetime.now(timezone.utc)


@pytest.mark.parametrize("run", ["other", "", "../x", "a/b", "a\x1bb"])
async def test_an_unknown_run_is_told_with_those_there_are(account, run):
    await account.submit()
    with pytest.raises(UnknownError, match=f"has nothing left .*Existing runs: {RUN}"):
        await account.recover(run)


# --- the tasks of a run -----------------------------------------------------------------------


async def test_a_job_that_runs_is_waited_for_and_one_whose_outcome_is_there_has_ended(account):
    await account.submit(job_id="running")
    ended = await account.submit(job_id="ended", status=JobStatus.FAILED)
    await account.put_outcome(ended)
    recovered = await account.recover()
    assert {job.id: job.done() for job in recovered.jobs} == {"running": False, "ended": True}
    assert (recovered.delivered, recovered.unsubmitted, recovered.forgotten) == (0, [], [])


async def test_a_success_without_an_outcome_was_delivered(account):
    array = await account.submit(3, "array", JobStatus.SUCCEEDED)
    await account.put_outcome(array, 1)
    recovered = await account.recover()
    assert ids(recovered) == ["array:1"]
    assert recovered.delivered == 2


async def test_of_an_array_that_goes_on_its_children_are_asked_for(account):
    await account.submit(3, "array")
    account.backend.succeeded["array"] = [2]
    recovered = await account.recover()
    assert (ids(recovered), recovered.delivered) == (["array:0", "array:1"], 1)


async def test_a_receipt_tells_what_was_delivered_and_a_stranger_s_does_not(account):
    submission = await account.submit(3, "array")
    own, forged = submission.where.receipt_key(0), submission.where.receipt_key(1)
    await account.store().put(own, envelope.seal_receipt(submission.key, own, bytes([0b101])))
    await account.store().put(forged, envelope.seal_receipt(b"k" * 32, forged, bytes([0b111])))
    recovered = await account.recover()
    assert (ids(recovered), recovered.delivered) == (["array:1"], 2)


async def test_a_bundle_without_a_job_has_not_been_submitted(account):
    submission = await account.submit()
    account.backend.known.clear()
    recovered = await account.recover()
    assert (recovered.jobs, recovered.unsubmitted) == ([], [submission.where.bundle])
    assert len(account.backend.asked) == 2  # lists lag behind


async def test_a_bundle_whose_job_may_have_run_is_forgotten(account):
    submission = await account.submit()
    account.backend.known.clear()
    await account.put_outcome(submission)
    recovered = await account.recover()
    assert (recovered.unsubmitted, recovered.forgotten) == ([], [submission.where.bundle])


async def test_a_bundle_that_is_older_than_what_batch_remembers_is_forgotten():
    account = Account(remembered_s=-3600.0)
    submission = await account.submit()
    account.backend.known.clear()
    assert (await account.recover()).forgotten == [submission.where.bundle]


async def test_a_job_of_somebody_else_by_that_name_is_none(account):
    submission = await account.submit()
    detail = account.backend.known["6f1c"]
    account.backend.known["6f1c"] = JobDetail("6f1c", detail.name, JobStatus.RUNNING)
    recovered = await account.recover()
    assert (recovered.jobs, recovered.unsubmitted) == ([], [submission.where.bundle])


async def test_a_job_is_looked_for_in_the_queue_of_its_bundle_first(account):
    submission = await account.submit(queue="nightly")
    recovered = await account.recover()
    assert ids(recovered) == ["6f1c"]
    assert account.backend.asked == [(submission.where.bundle, "nightly")]


async def test_a_queue_that_is_gone_leaves_a_bundle_in_doubt(account, caplog):
    submission = await account.submit(queue="gone")
    account.backend.refuses["gone"] = ServiceError(
        "No such queue.", code="ClientException", status=400
    )
    recovered = await account.recover()
    assert (recovered.unsubmitted, recovered.forgotten) == ([], [submission.where.bundle])
    assert "was in queue gone, which cannot be listed: No such queue." in caplog.text


async def test_what_was_recovered_goes_when_all_of_it_is_spent(account):
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


# --- the job of one bundle --------------------------------------------------------------------


async def test_the_job_of_a_bundle_is_found(account):
    submission = await account.submit()
    assert (await account.find(submission)).job_id == "6f1c"
    assert await account.store().get(submission.where.bundle_key) is not None


async def test_who_is_told_that_there_is_no_job_may_submit_again(account):
    """A job that turns up anyway finds no bundle, and runs nothing."""
    submission = await account.submit()
    account.backend.known.clear()
    assert await account.find(submission) is None
    assert await account.store().list_keys(f"{ROOT}/bundles/") == []


async def test_where_its_queue_does_not_answer_nothing_is_told(account):
    submission = await account.submit(queue="gone")
    account.backend.refuses["gone"] = ServiceError("No.", code="ClientException", status=400)
    with pytest.raises(FarcallError, match="cannot tell .*: its queue could not be listed"):
        await account.find(submission)
    assert await account.store().get(submission.where.bundle_key) is not None


async def test_a_job_that_has_begun_and_is_not_listed_is_not_submitted_again(account):
    submission = await account.submit()
    account.backend.known.clear()
    await account.put_outcome(submission)
    with pytest.raises(FarcallError, match="has started, but Batch does not list it"):
        await account.find(submission)
