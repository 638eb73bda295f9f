"""Submitted bundles, read back from an in-memory store instead of S3."""

import dataclasses
import gc
from types import SimpleNamespace

import pytest

from farcall.model.errors import (
    FarcallError,
    IntegrityError,
    TaskNotPicklableError,
    VersionMismatchError,
)
from farcall.model.submission import Submission
from farcall.storage.bundles import BundleReader, facts_of, queue_of, texts_of
from farcall_runtime import envelope
from tests.contract import make_golden as golden
from tests.unit.bundles import double, submit
from tests.unit.fakes import store_in_memory


class Gone:
    """Cannot be unpickled."""

    def __reduce__(self):
        return double, ("not", "so")


@pytest.fixture
def store():
    return store_in_memory()


@pytest.fixture
def submitted(store):
    """Return a function that stores a bundle of tasks, and returns its job."""

    async def of(*tasks, **options):
        submission, _ = await submit(store, *tasks, **options)
        return submission

    return of


@pytest.fixture
def requests(store, monkeypatch):
    """Requested keys."""
    found = []
    for name in ("get_end", "get_part"):
        ask = getattr(store, name)

        def note(key, *args, _ask=ask, **options):
            found.append(key)
            return _ask(key, *args, **options)

        monkeypatch.setattr(store, name, note)
    return found


async def test_calls_of_each_task_are_read(store, submitted, requests):
    submission = await submitted(
        [((1,), {}), ((2,), {})], [((3,), {"note": "x"})], *[[((n,), {})] for n in range(200)]
    )
    calls = BundleReader(SimpleNamespace(of=lambda _: store))
    assert await calls.read(submission, 0) == [((1,), {}), ((2,), {})]
    assert await calls.read(submission, 1) == [((3,), {"note": "x"})]
    assert await calls.read(submission, 201) == [((199,), {})]
    assert len(requests) == 1  # a small bundle is read completely, and only once


async def test_large_bundle_is_read_in_parts(store, submitted, requests):
    large = bytes(300 * 1024)
    submission = await submitted(*[[((n, large), {})] for n in range(3)])
    calls = BundleReader(SimpleNamespace(of=lambda _: store))
    for number in (2, 0):
        ((args, _),) = await calls.read(submission, number)
        assert args == (number, large)
    assert len(requests) == 3  # the end of the bundle, and the arguments of two tasks


async def test_bundle_is_released_with_its_job(store, submitted, requests):
    submission = await submitted([((1,), {})])
    calls = BundleReader(SimpleNamespace(of=lambda _: store))
    await calls.read(submission, 0)
    again = dataclasses.replace(submission)
    del submission
    gc.collect()
    await calls.read(again, 0)
    assert len(requests) == 2


async def test_deleted_bundle_raises(store, submitted):
    submission = await submitted([((1,), {})])
    await store.delete([submission.where.bundle_key])
    with pytest.raises(FarcallError, match="no longer exists: input data is deleted when all"):
        await BundleReader(SimpleNamespace(of=lambda _: store)).read(submission, 0)
    assert await facts_of(store, submission) is None


async def test_texts_need_one_request(store, submitted, requests):
    submission = await submitted([((1,), {}), ((2,), {})], [((3,), {"note": "x"})])
    assert ["double(x=1)\ndouble(x=2)", "double(x=3, note='x')"] == await texts_of(
        store, submission
    )
    assert len(requests) == 1


async def test_texts_may_be_missing(store, submitted):
    submission = await submitted([((1,), {})], store_call_summaries=False)
    assert await texts_of(store, submission) is None
    await store.delete([submission.where.bundle_key])
    assert await texts_of(store, submission) is None


async def test_forged_texts_are_rejected(store, submitted):
    """They are forged in another client's bundle, and in the right one."""
    submission = await submitted(*[[((n,), {})] for n in range(3000)])
    data = bytearray(await store.get(submission.where.bundle_key))
    size = envelope.root_size(data)
    part = envelope.Index(bytes(data[-size:]), submission.digest).texts()
    data[part.offset + part.length - 1] ^= 1
    await store.put(submission.where.bundle_key, [data])
    with pytest.raises(envelope.IntegrityError, match="differs from its index"):
        await texts_of(store, submission)
    other = await submitted([((4,), {})])
    await store.put(submission.where.bundle_key, [await store.get(other.where.bundle_key)])
    with pytest.raises(envelope.IntegrityError, match="differs from the digest"):
        await texts_of(store, submission)


async def test_forged_bundle_is_not_unpickled(store, submitted):
    submission = await submitted([((1,), {})])
    forged = await submitted([((Gone(),), {})])
    data = await store.get(forged.where.bundle_key)
    await store.put(submission.where.bundle_key, [data])
    with pytest.raises(IntegrityError, match="is not what was submitted") as caught:
        await BundleReader(SimpleNamespace(of=lambda _: store)).read(submission, 0)
    assert caught.value.job_id == "6f1c"
    with pytest.raises(envelope.IntegrityError):
        await facts_of(store, submission)


async def test_unpicklable_arguments_raise(store, submitted):
    submission = await submitted([((Gone(),), {})])
    with pytest.raises(
        TaskNotPicklableError, match="cannot be unpickled here .TypeError: .*job 6f1c"
    ):
        await BundleReader(SimpleNamespace(of=lambda _: store)).read(submission, 0)


async def test_arguments_of_other_python_are_rejected(store):
    """A golden bundle was written by Python 3.99."""
    where = golden.WHERE
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(golden, "PYTHON", (3, 99))
        files = golden.files()
    await store.put(where.bundle_key, [files["bundle"]])
    digest = files["bundle.digest"].decode().strip()
    submission = Submission("6f1c", "work", where, golden.KEY, len(golden.ENTRIES), digest)
    with pytest.raises(VersionMismatchError, match=r"pickled by Python 3\.99, but this is"):
        await BundleReader(SimpleNamespace(of=lambda _: store)).read(submission, 0)


async def test_facts_are_verified_by_digest(store, submitted):
    submission = await submitted([((1,), {})], time_limit=99, queue="nightly")
    facts = await facts_of(store, submission)
    assert (facts["time_limit_s"], facts["queue"]) == (99, "nightly")


async def test_queue_is_an_unverified_hint(store, submitted):
    submission = await submitted([((1,), {})], queue="nightly")
    assert await queue_of(store, submission.where) == "nightly"


@pytest.mark.parametrize("data", [None, b"", b"x", b"x" * 1000, bytes(100_000)])
async def test_invalid_bundle_gives_no_hint(store, data):
    if data is not None:
        await store.put(golden.WHERE.bundle_key, [data])
    assert await queue_of(store, golden.WHERE) == ""
