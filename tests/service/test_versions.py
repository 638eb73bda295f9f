"""Versions of workflow and image that do not match.

Starts the local AWS emulator, because the container compares versions before it unpickles.
"""

import sys

import pytest

from farcall import VersionMismatchError

PRETENDER = """
import runpy, sys
sys.version_info = (3, 99, 0, "final", 0)
sys.argv = ["farcall_runtime"]
runpy.run_module("farcall_runtime", run_name="__main__", alter_sys=True)
"""


async def test_other_python_version_is_rejected(make_executor):
    command = [sys.executable, "-c", PRETENDER]
    extra = {"containerProperties": {"command": command}}
    options = {"retry_attempts": 3, "retry_on": "failure"}
    async with make_executor(job_definition_extra=extra, **options) as executor:
        job = await executor.submit(lambda: None)

        ours = f"{sys.version_info.major}.{sys.version_info.minor}"
        with pytest.raises(
            VersionMismatchError, match=rf"Python {ours}.*this image runs Python 3\.99"
        ) as caught:
            await job.result()
        detail = await job.detail()

    assert 67 == caught.value.exit_code
    assert 1 >= detail.attempts  # another attempt would end the same way
