"""Jobs by name or ID prefix, and the requests for them."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from farcall.backends.batch.backend import BatchBackend
from farcall.model.errors import UnknownError
from farcall.model.jobs import JobDetail, JobStatus
from farcall.operations.finding import MOST_PAGES, Finder, short

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
PAGE = 100
RUNNING, DONE = JobStatus.RUNNING, JobStatus.SUCCEEDED


def job(number, name, *, begins="", user="mary", status=DONE, workflow=""):
    """Return a job; a higher number means a newer one."""
    job_id = begins + f"{number:08x}-0000-4000-8000-000000000000"[len(begins) :]
    run = f"{user}-20261122-101500-0a1b2c"
    return JobDetail(
        job_id,
        f"{name}-{number:016x}",
        status,
        environment={
            "FARCALL_BUNDLE": f"s3://bucket/farcall/v1/{run}/bundles/x",
            "FARCALL_WORKFLOW": workflow,
        },
        created_at=NOON + timedelta(seconds=number),
    )


class Jobs:
    """Backend with some jobs, which counts its list and describe requests."""

    capabilities = BatchBackend.capabilities

    def __init__(self, *jobs):
        self.jobs = sorted(jobs, key=lambda job: job.created_at, reverse=True)
        self.lists = self.descriptions = 0

    async def list_jobs(self, queue, since=None, *, named="", foreign=False):
        assert (queue, since, foreign) == ("queue", None, False)
        found = [job for job in self.jobs if job.name.startswith(named)]
        for start in range(0, len(found) or 1, PAGE):
            self.lists += 1
            yield found[start : start + PAGE]

    async def describe(self, job_ids):
        wanted = set(job_ids)
        self.descriptions += bool(wanted)
        return {job.job_id: job for job in self.jobs if job.job_id in wanted}

    def find(self, reference, **how):
        return Finder(self, ["queue"], "mary").find(reference, **how)


async def test_complete_id_needs_no_request():
    jobs = Jobs()
    whole = job(1, "fit").job_id
    for reference in (whole, f"{whole}:17", f"{whole}#2"):
        assert await jobs.find(reference) == (reference, None)
    assert (jobs.lists, jobs.descriptions) == (0, 0)


async def test_id_prefix_finds_any_users_job():
    hers, his = job(1, "fit", begins="64bc33a4"), job(2, "fit", begins="64bc99", user="peter")
    jobs = Jobs(hers, his, *(job(n, "other", begins="aaaa") for n in range(3, 9)))
    for reference, found in (
        ("64bc33a4", hers.job_id),
        ("64bc3", hers.job_id),
        (hers.job_id[:-1], hers.job_id),
        ("64bc9", his.job_id),
        ("64bc33a4:5", f"{hers.job_id}:5"),
        ("64bc33a4#1", f"{hers.job_id}#1"),
    ):
        assert await jobs.find(reference) == (found, None)


class NamedJobs(Jobs):
    """Jobs whose IDs are names, like on a cluster."""

    capabilities = replace(BatchBackend.capabilities, ids_are_names=True)

    def __init__(self, *jobs):
        super().__init__(*(replace(job, job_id=job.name.replace("_", "-")) for job in jobs))


async def test_complete_name_needs_one_request():
    jobs = NamedJobs(job(0x64BC33A4, "fit_svm"), job(2, "other"))
    for part in ("", ":17", "#2"):
        reference = f"fit-svm-0000000064bc33a4{part}"
        assert await jobs.find(reference) == (reference, None)
    assert (jobs.lists, jobs.descriptions) == (0, 3)


async def test_unique_name_part_finds_job():
    older = replace(job(1, "fit"), name="fit-64bc990000000000")
    jobs = NamedJobs(older, replace(job(2, "fit"), name="fit-64bc33a400000000"))
    assert await jobs.find("64bc33a4") == ("fit-64bc33a400000000", None)
    assert await jobs.find("64bc3:4") == ("fit-64bc33a400000000:4", None)
    found, entry = await jobs.find("fit")
    assert (found, entry.function) == ("fit-64bc33a400000000", "fit")
    with pytest.raises(UnknownError):
        await jobs.find("fit-0000000000000000")


async def test_ambiguous_id_prefix_lists_jobs():
    jobs = Jobs(job(1, "fit", begins="64bc33a4"), job(2, "load", begins="64bc99"))
    with pytest.raises(UnknownError) as refused:
        await jobs.find("64bc")
    text = str(refused.value)
    assert text.startswith("'64bc' matches 2 jobs. Name one by its ID:\n  64bc99")
    assert re.search(r"\n  64bc33a4\S{28}  SUCCEEDED  fit, submitted 2026-11-20 12:00 UTC$", text)


async def test_name_finds_users_newest_job():
    older, newer = job(1, "fit"), job(2, "fit")
    jobs = Jobs(older, newer, job(3, "fit", user="peter"), job(4, "fit-all"), job(5, "load"))
    job_id, entry = await jobs.find("fit")
    assert (job_id, entry.detail.name) == (newer.job_id, newer.name)
    assert (jobs.lists, jobs.descriptions) == (1, 1)
    assert (await jobs.find("fit:3"))[0] == f"{newer.job_id}:3"
    assert (await jobs.find("lo"))[0] == jobs.jobs[0].job_id
    assert (await jobs.find(older.name))[0] == older.job_id


async def test_newest_job_does_not_depend_on_list_order():
    """Emulators may list the oldest job first."""
    older, newer = job(1, "fit"), job(2, "fit")
    jobs = Jobs(older, newer)
    jobs.jobs = [older, newer]
    assert (await jobs.find("fit"))[0] == newer.job_id
    assert (await Finder(jobs, ["queue"], "mary").newest()).detail.job_id == newer.job_id


async def test_ambiguous_name_cancels_nothing():
    ended, going = job(1, "fit"), job(2, "fit", status=RUNNING)
    newest = job(3, "fit")
    assert (await Jobs(ended, going, newest).find("fit", to_end=True))[0] == going.job_id
    assert (await Jobs(ended, newest).find("fit", to_end=True))[0] == newest.job_id
    alike = [job(n, "fit", status=RUNNING) for n in range(4, 16)]
    with pytest.raises(UnknownError, match="matches 13 jobs") as refused:
        await Jobs(going, *alike).find("fit", to_end=True)
    assert str(refused.value).endswith("\n  ...")
    with pytest.raises(UnknownError, match="matches 2 jobs"):
        await Jobs(going, job(3, "fitter", status=RUNNING)).find("fi", to_end=True)


@pytest.mark.parametrize("reference", ["", "nothing", "64b", "64bc", "fit:x", "a b", "*", ":1"])
async def test_unknown_reference_names_searched_queue(reference):
    jobs = Jobs(job(1, "fit", user="peter"))
    with pytest.raises(UnknownError, match="no job of mary has a name or an ID") as refused:
        await jobs.find(reference)
    assert "4 characters) in queue queue" in str(refused.value)


async def test_newest_job_is_filtered_by_workflow():
    jobs = Jobs(
        job(1, "a", workflow="nightly"), job(2, "b"), job(3, "c", user="peter", workflow="nightly")
    )
    finder = Finder(jobs, ["queue"], "mary")
    assert (await finder.newest()).function == "b"
    assert (await finder.newest("nightly")).function == "a"
    with pytest.raises(UnknownError, match="no jobs of mary in workflow weekly in queue"):
        await finder.newest("weekly")


async def test_search_requests_are_limited():
    jobs = Jobs(*(job(n, "other", user="peter") for n in range((MOST_PAGES + 5) * PAGE)))
    for look in (
        lambda finder: finder.find("abcd"),
        lambda finder: finder.find("other"),
        lambda finder: finder.newest(),
    ):
        jobs.lists = 0
        with pytest.raises(UnknownError):
            await look(Finder(jobs, ["queue"], "mary"))
        assert jobs.lists <= MOST_PAGES + 1
    finder = Finder(jobs, ["queue"], "mary")
    jobs.lists = 0
    for word in ("00000005", "00000006", "00000007"):
        with pytest.raises(UnknownError):
            await finder.find(word)
    assert jobs.lists == MOST_PAGES + 3  # all searches share the list of the newest jobs


def test_id_is_shortened_to_prefix():
    whole = "64bc33a4-0000-4000-8000-000000000000"
    assert short(whole) == "64bc33a4"
    assert short(f"{whole}:17") == "64bc33a4:17"
    assert short(f"{whole}#2") == "64bc33a4#2"
    assert short("another-form") == "another-form"
