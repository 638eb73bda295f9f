"""How long the end of a task group is waited for where it cannot be fetched."""

from __future__ import annotations

import asyncio

import pytest

from farcall.covalent.group_run import GroupRun
from farcall.engine.run import TaskRun
from farcall.model.errors import ServiceError
from tests.unit.covalent.account import SETTINGS


class Unfetchable(TaskRun):
    """A job whose answer is there, and S3 refuses to hand it out."""

    def __init__(self, code, status=400):
        super().__init__("job-0", SETTINGS)
        self.error = ServiceError("GetObject of it failed", code=code, status=status)
        self.tries = 0

    async def delivered(self):
        self.tries += 1
        raise self.error


async def test_what_cannot_be_fetched_for_a_while_is_told_and_given_up_at_last(opened):
    told = []
    run = GroupRun(SETTINGS, [("d", 1)], Unfetchable("ExpiredToken"))
    run.tell = told.append
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(
        ServiceError, match="GetObject.*; the stored results of job job-0 are kept"
    ):
        await run.ends()
    assert 590 < loop.time() - began < 620
    assert all("GetObject of it failed; retrying" in text for text in told[:-1])
    assert ("", 11) == (told[-1], len(told) - 1)  # once a minute


@pytest.mark.parametrize("code", ["AccessDenied", "InvalidArgument"])
async def test_what_can_never_be_fetched_is_given_up_at_once(opened, code):
    job = Unfetchable(code, 403)
    with pytest.raises(ServiceError, match="GetObject"):
        await GroupRun(SETTINGS, [("d", 1)], job).ends()
    assert 1 == job.tries
