"""Functions that can be called, and their results.

Starts the local AWS emulator, because closures, methods and packages must be unpickled in another
process.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from project import models


async def test_function_of_own_package_runs(executor):
    job = await executor.submit(models.scale, 7)

    point = await job.result()

    assert models.Point(21) == point
    assert type(point) is models.Point


async def test_keywords_named_like_options_are_passed(executor):
    def work(vcpu: int, *, memory: int, self: int, function: int) -> tuple[int, ...]:
        return vcpu, memory, self, function

    job = await executor.submit(work, vcpu=1, memory=2, self=3, function=4)

    assert await job.result() == (1, 2, 3, 4)
