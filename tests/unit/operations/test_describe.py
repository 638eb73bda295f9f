"""All there is to know of a job, as JSON has words for it; the jobs are a fake cloud's."""

from __future__ import annotations

import json
import os
import time

from farcall.model.jobs import JobStatus
from farcall.operations import describe
from farcall.testing import HostLost


async def test_a_job_that_has_ended_is_told_whole(executor, session, found, cloud):
    cloud.next_job(HostLost())
    job = await executor.with_options(retry_attempts=2, workflow="nightly").submit(pow, 2, 3)
    entry = await found(job.id)
    told = json.loads(json.dumps(await describe.of(session, entry)))
    assert (told["job"]["id"], told["job"]["state"]) == (job.id, "SUCCEEDED")
    assert (told["job"]["function"], told["job"]["workflow"]) == ("pow", "nightly")
    assert told["explanation"]["kind"] == "returned"
    assert told["usage"] == told["explanation"]["usage"]
    assert told["usage"]["wall_s"] >= 0
    assert [each["attempt"] for each in told["attempts"]] == [1, 2]
    assert [each["exit_code"] for each in told["attempts"]] == [None, 0]
    assert told["log"] == {"group": entry.detail.log_group, "stream": entry.detail.log_stream}
    assert told["log"]["stream"]
    assert told["bundle"] == entry.detail.environment["FARCALL_BUNDLE"]
    assert (told["position"], told["nodes"], told["links"]) == (None, [], {})


async def test_a_waiting_job_has_a_place_and_no_attempt(executor, session, found):
    count = os.cpu_count() or 1
    jobs = [await executor.submit(time.sleep, 600) for _ in range(count + 2)]
    last = await found(jobs[-1].id, JobStatus.RUNNABLE)
    told = await describe.of(session, last)
    assert told["position"] == 2
    assert told["explanation"]["kind"] == "waiting"
    assert (told["attempts"], told["usage"]) == ([], None)
    await session.backend.terminate([job.id for job in jobs], "enough")
