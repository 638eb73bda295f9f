"""Arguments that are large together, and the client's memory.

Starts the local AWS emulator. The tests are slow, because they upload gigabytes.
"""

from __future__ import annotations

import sys
import textwrap

import pytest

from tests.support.program import stdout_of

pytestmark = pytest.mark.slow

_CLIENT = """
    import asyncio, resource, sys
    from farcall import BatchExecutor

    COUNT, SIZE = 40, 10_000_000

    class Lazy:
        '''An object that is small in memory and large when pickled.'''

        def __init__(self, number):
            self.number = number

        def __reduce__(self):
            return len, (bytes([self.number]) * SIZE,)

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    async def main():
        executor = BatchExecutor(vcpu=1, memory=2, retry_attempts=1)

        @executor.task
        def size(value):
            return value

        async with executor:
            await size(b"")  # open connections first
            before = peak()
            found = await size.map([Lazy(number) for number in range(COUNT)], chunksize=10)
            print(found == [SIZE] * COUNT, peak() - before)

    asyncio.run(main())
"""


def test_map_arguments_are_streamed(aws):
    right, more = stdout_of(sys.executable, "-c", textwrap.dedent(_CLIENT)).split()
    assert right == "True"
    # The upload is 400 MB. A task's arguments have 100 MB, and 48 parts are sent at a time.
    assert int(more) < 300_000_000


async def test_unpicklable_task_fails_large_upload(executor):
    @executor.task
    def size(value: object) -> int:
        return len(value)  # type: ignore[arg-type]

    broken = [bytes(10_000_000)] * 5 + [(part for part in "ab")]
    with pytest.raises(Exception, match=r"argument 1 \(generator\) cannot be pickled"):
        await size.map(broken)
