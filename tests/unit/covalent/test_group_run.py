"""How long farcall tries to fetch the outcome of a task group."""

import asyncio

import pytest

from farcall.covalent.group_run import GroupRun
from farcall.engine.run import TaskRun
from farcall.model.errors import ServiceError
from tests.unit.covalent.account import SETTINGS


class Unfetchable(TaskRun):
    """Job whose outcome exists, but S3 refuses to return it."""

    def __init__(self, code, status=400):
        super().__init__("job-0", SETTINGS)
        self.error = ServiceError("GetObject of it failed", code=code, status=status)
        self.tries = 0

    async def delivered(self):
        self.tries += 1
        raise self.error


async def test_lasting_fetch_failure_raises_eventually(opened):
    texts = []
    run = GroupRun(SETTINGS, [("d", 1)], Unfetchable("ExpiredToken"))
    run.on_trouble = texts.append
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(
        ServiceError, match="GetObject.*; the stored results of job job-0 are kept"
    ):
        await run.ends()
    assert 590 < loop.time() - began < 620
    assert all("GetObject of it failed; retrying" in text for text in texts[:-1])
    assert ("", 11) == (texts[-1], len(texts) - 1)  # once a minute


@pytest.mark.parametrize("code", ["AccessDenied", "InvalidArgument"])
async def test_permanent_fetch_failure_raises_at_once(opened, code):
    job = Unfetchable(code, 403)
    with pytest.raises(ServiceError, match="GetObject"):
        await GroupRun(SETTINGS, [("d", 1)], job).ends()
    assert 1 == job.tries
