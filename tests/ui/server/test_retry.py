"""A retry through the web UI's API, which unpickles nothing.

Starts the web UI and jobs on the local AWS emulator, because the retry is a new job.
"""

import pytest

from tests.support.patience import until_async
from tests.ui.server.screen import get

UNKNOWN_ID = "00000000-0000-4000-8000-000000000000"


async def post(page, path, body):
    async with page.post(path, json=body) as answer:
        return answer.status, await answer.json()


@pytest.fixture
async def failed(executor, tmp_path):
    """A job that fails until a file exists; another file shows if the web UI unpickles it."""
    fixed = tmp_path / "fixed"

    class OnlyThere:
        def __init__(self, here):
            self.here = here

        def __reduce__(self):
            return _refuse, (str(self.here),)

    here = tmp_path / "here"

    def _refuse(path):
        import sys
        from pathlib import Path

        if "farcall.ui" in sys.modules:
            Path(path).touch()
        return 3

    def work(x):
        if not fixed.exists():
            raise ValueError(x)
        return x

    async with executor() as opened:
        job = await opened.submit(work, OnlyThere(here))
        assert isinstance(await job.exception(), ValueError)
        yield opened, job, fixed, here


async def test_failed_job_is_retried_with_options(page, failed):
    executor, job, fixed, here = failed

    async def said():
        found = await get(page, f"/api/jobs/{job.id}/retry")
        return found if found["tasks"] else None

    found = await until_async(said)
    assert (found["job"], found["function"], found["refused"]) == (job.id, "work", "")
    assert (found["tasks"], found["total"], found["cancelled"]) == (1, 1, 0)
    values = {each["name"]: each["value"] for each in found["options"]}
    assert (values["memory"], values["vcpu"], values["retry_attempts"]) == (1, 1, 1)
    assert found["retries"] == []
    for body, text in (
        ({"options": {"memory": "much"}}, "memory is 'much'"),
        ({"options": {"nodes": 2}}, "'nodes' is not an option of a retry"),
        ({"options": {"memory": [2]}}, "memory must be a number"),
        ({"options": [1]}, "options must be an object"),
        ({"failed": 1}, "failed true or false"),
    ):
        status, answer = await post(page, f"/api/jobs/{job.id}/retry", body)
        assert (status, text in answer["error"]) == (400, True), answer
    fixed.touch()

    status, done = await post(page, f"/api/jobs/{job.id}/retry", {"options": {"memory": "2"}})

    assert status == 200, done
    assert not here.exists()  # nothing was unpickled
    assert done["message"] == f"job {done['id']} runs again 1 of 1 task of work: memory 1 -> 2"
    assert await executor.attach(done["id"]).result() == 3
    shown = await get(page, f"/api/jobs/{done['id']}")
    assert (shown["job"]["retry_of"], shown["job"]["memory_mib"]) == (job.id, 2048)
    shown = await get(page, f"/api/jobs/{job.id}")
    assert shown["retries"] == [done["id"]]
    status, answer = await post(page, f"/api/jobs/{job.id}/retry", {})
    assert (status, "no task of job" in answer["error"]) == (409, True)
    found = await get(page, f"/api/jobs/{job.id}/retry")
    assert (found["tasks"], "no task of job" in found["refused"]) == (0, True)


async def test_unknown_job_is_not_retried(page):
    assert (await post(page, f"/api/jobs/{UNKNOWN_ID}/retry", {}))[0] == 404
    assert (await post(page, "/api/jobs/no%20body/retry", {}))[0] == 400
    async with page.get(f"/api/jobs/{UNKNOWN_ID}/retry") as answer:
        assert answer.status == 404
