"""Arguments and failure reasons of jobs, on the fake cloud."""

import asyncio

import pytest

from farcall.model.errors import ServiceError
from farcall.model.jobs import JobStatus
from farcall.operations import json_view
from farcall.operations.describe import of as described
from farcall.operations.reasons import Reasons
from farcall.storage import bundles, outcomes
from farcall.testing import OutOfMemory


def fit(lr, depth=3):
    if lr > 1:
        raise ValueError(f"singular matrix {lr}")
    if lr < 0:
        raise KeyError("lr")
    return lr * depth


@pytest.fixture
def reasons_of(session, found):
    """Return a function that describes a job after its end."""

    async def tell(job, reasons=None):
        entry = await found(getattr(job, "id", job))
        (entry,) = await (reasons or Reasons(session)).fill([entry])
        return entry.why

    return tell


@pytest.fixture
def requests(monkeypatch):
    """Recorded requests to the bucket."""
    seen = []
    for module, name in ((bundles, "texts_of"), (outcomes, "fetch")):
        ask = getattr(module, name)

        def note(*args, _ask=ask, _name=name, **options):
            seen.append(_name)
            return _ask(*args, **options)

        monkeypatch.setattr(module, name, note)
    return seen


async def array_of(executor, *rates):
    jobs = await asyncio.gather(*(executor.submit(fit, lr) for lr in rates))
    (parent,) = {job.id.partition(":")[0] for job in jobs}
    return parent


async def test_raised_call_has_error(executor, reasons_of):
    why = await reasons_of(await executor.submit(fit, 2.5, depth=4))
    assert why == ("fit(lr=2.5, depth=4)", "ValueError: singular matrix 2.5", (), None)


async def test_returned_call_has_no_error(executor, reasons_of):
    job = await executor.submit(fit, 0.5)
    assert await reasons_of(job) == ("fit(lr=0.5)", None, (), None)
    assert await job.result() == 1.5


async def test_missing_outcome_uses_platform_reason(executor, reasons_of, cloud):
    cloud.next_job(OutOfMemory())
    why = await reasons_of(await executor.submit(fit, 0.5))
    assert why.error == "OutOfMemoryError: the container ran out of memory"


async def test_array_groups_errors_of_tasks(executor, reasons_of, session, found):
    parent = await array_of(executor, 2, 0.5, 3, -1, 0.5)
    entry = await found(parent)
    why = await reasons_of(parent)
    assert why.error == "ValueError x2, KeyError x1"
    first, second = why.errors
    assert (first["count"], second["count"]) == (2, 1)
    assert first["text"].startswith("ValueError: singular matrix ")
    calls = await Reasons(session).calls(entry.detail)
    assert sorted(calls) == sorted(
        ["fit(lr=2)", "fit(lr=0.5)", "fit(lr=3)", "fit(lr=-1)", "fit(lr=0.5)"]
    )
    assert calls[second["example"]] == second["call"] == "fit(lr=-1)"
    pages = session.backend.list_children(entry.detail.job_id, JobStatus.FAILED)
    listed = [child async for page in pages for child in page]
    reasons = Reasons(session)
    errors = await reasons.errors(entry.detail, listed)
    assert sorted(reason.kind for reason in errors.values()) == ["KeyError", *["ValueError"] * 2]
    job = json_view.job((await Reasons(session).fill([entry]))[0])
    assert (job["error"], job["call"], len(job["errors"])) == (why.error, None, 2)
    shown = await described(session, entry)
    assert shown["job"]["errors"] == list(why.errors)


async def test_finished_jobs_are_read_once(executor, reasons_of, session, found, requests):
    parent = await array_of(executor, 2, 0.5, 3)
    reasons = Reasons(session)
    first = await reasons_of(parent, reasons)
    assert sorted(requests) == ["fetch", "fetch", "texts_of"]
    children = [await found(f"{parent}:{index}") for index in range(3)]
    filled = await reasons.fill(children)
    assert {entry.why.call for entry in filled} == {"fit(lr=2)", "fit(lr=0.5)", "fit(lr=3)"}
    assert await reasons_of(parent, reasons) == first
    assert sorted(requests) == ["fetch", "fetch", "texts_of"]


async def test_forged_texts_are_reported_not_shown(executor, reasons_of, session, found):
    job = await executor.submit(fit, 2)
    other = await executor.submit(fit, 3)
    entry, forged = await found(job.id), await found(other.id)
    store = session.stores.of(executor.settings.s3_bucket_name)
    keys = [
        each.detail.environment["FARCALL_BUNDLE"].partition("/farcall/")[2]
        for each in (entry, forged)
    ]
    data = await store.get(f"farcall/{keys[1]}")
    assert b"FARCALL" in bytes(data)
    await store.put(f"farcall/{keys[0]}", [data])
    why = await reasons_of(job)
    assert why.call is None
    assert why.error == "ValueError: singular matrix 2"
    assert "differs from what was submitted" in why.trouble
    assert "Find out who writes to the bucket" in why.trouble


async def test_forged_outcome_is_reported(executor, reasons_of, session, found):
    job = await executor.submit(fit, 2)
    entry = await found(job.id)
    store = session.stores.of(executor.settings.s3_bucket_name)
    url = entry.detail.environment["FARCALL_BUNDLE"]
    root, _, name = url.partition("s3://")[2].partition("/")[2].partition("/bundles/")
    await store.put(f"{root}/outcomes/{name}/0", [b"FARCALLO" + bytes(100)])
    why = await reasons_of(job)
    assert why.error.startswith(("IntegrityError: ", "VersionMismatchError: "))
    assert "singular" not in why.error


async def test_without_bucket_access_platform_reason_remains(executor, reasons_of, monkeypatch):
    async def refuse(*_args, **_options):
        raise ServiceError("not allowed", operation="GetObject", code="AccessDenied", status=403)

    monkeypatch.setattr(bundles, "texts_of", refuse)
    monkeypatch.setattr(outcomes, "fetch", refuse)
    why = await reasons_of(await executor.submit(fit, 2))
    assert why.call is None
    assert why.error.startswith("JobError: ")
    assert why.trouble == "not allowed"


async def test_transient_failure_is_retried(executor, reasons_of, session, monkeypatch):
    reasons = Reasons(session)
    job = await executor.submit(fit, 2)
    with monkeypatch.context() as patched:

        async def fail(*_args, **_options):
            raise ServiceError("slow down", operation="GetObject", code="SlowDown", status=503)

        patched.setattr(bundles, "texts_of", fail)
        patched.setattr(outcomes, "fetch", fail)
        why = await reasons_of(job, reasons)
        assert (why.call, why.trouble) == (None, "slow down")
        assert why.error.startswith("JobError: ")
    why = await reasons_of(job, reasons)
    assert why == ("fit(lr=2)", "ValueError: singular matrix 2", (), None)
