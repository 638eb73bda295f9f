"""Arguments that are large together, and the client's memory.

Starts the local AWS emulator. The tests are slow, because they upload gigabytes.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from farcall import BatchExecutor
from farcall.payload import spill
from farcall_local import LocalAWS

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


def test_map_arguments_are_streamed(aws: LocalAWS) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_CLIENT)],
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    right, more = done.stdout.split()
    assert right == "True"
    # The upload is 400 MB. A task's arguments have 100 MB, and 48 parts are sent at a time.
    assert int(more) < 300_000_000


async def test_unpicklable_task_fails_large_upload(
    executor: BatchExecutor,
) -> None:
    @executor.task
    def size(value: object) -> int:
        return len(value)  # type: ignore[arg-type]

    broken = [bytes(10_000_000)] * 5 + [(part for part in "ab")]
    with pytest.raises(Exception, match=r"argument 1 \(generator\) cannot be pickled"):
        await size.map(broken)


def is_mapped(folder: Path) -> bool:
    return str(folder) in Path("/proc/self/maps").read_text(encoding="utf-8")


async def test_huge_result_is_mapped_from_file(
    make_executor: Callable[..., BatchExecutor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spill, "is_needed", lambda size: size > 2**26)
    folder = tmp_path / "cache"
    async with make_executor(cache_dir=str(folder), memory=4) as executor:

        @executor.task
        def count(size: int) -> np.ndarray:
            return np.arange(size)

        array = await count(2**24)

    assert folder.is_dir()
    assert list(folder.iterdir()) == []  # the file has no name
    array[0] = 7  # changes memory, not the file
    assert (array[0], array[-1], array.sum()) == (7, 2**24 - 1, 2**23 * (2**24 - 1) + 7)
    assert is_mapped(folder)
    del array
    gc.collect()
    assert not is_mapped(folder)
