import asyncio

import farcall
import pytest
from farcall.testing import HostLost, OutOfMemory, Refused, fake_cloud
from pipeline import simulate, simulate_anyway


@pytest.fixture
def cloud():
    with fake_cloud() as cloud:
        yield cloud


def test_simulation_returns_the_square(cloud):
    assert asyncio.run(simulate_anyway(3)) == 9
    assert cloud.jobs[0].memory_mib == 4096


def test_out_of_memory_retries_with_more_memory(cloud):
    cloud.next_job(OutOfMemory(), OutOfMemory())  # both attempts of the first job
    assert asyncio.run(simulate_anyway(3)) == 9
    assert [job.memory_mib for job in cloud.jobs] == [4096, 32768]


def test_lost_host_uses_an_attempt(cloud):
    cloud.next_job(HostLost())
    assert asyncio.run(simulate_anyway(3)) == 9
    assert cloud.jobs[0].attempts == 2


def test_rejected_submission_raises(cloud):
    cloud.next_job(Refused("Job size must be less than 30 KiB"))
    with pytest.raises(farcall.SubmissionError):
        asyncio.run(simulate_anyway(3))


def test_output_is_stored(cloud):
    async def printed() -> str:
        job = await simulate.submit(3)
        await job.result()
        return await job.stdout()

    assert asyncio.run(printed()) == "simulating 3\n"
