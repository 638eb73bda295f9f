"""A map on the embedded AWS, in a fresh process: ``python -m benchmarks.embedded_client COUNT``.

Prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from benchmarks.client import double
from benchmarks.meter import Meter
from farcall import BatchExecutor

_SETTLE_S = 0.05  # see benchmarks.client


async def _main(count: int) -> dict[str, Any]:
    async with BatchExecutor(vcpu=1) as executor:
        meter = Meter()
        values = await executor.task(double).map(range(count), return_exceptions=True)
        meter.note_last()
    right = sum(value == 2 * number for number, value in enumerate(values))
    errors = sorted({repr(value)[:500] for value in values if isinstance(value, Exception)})
    return {**meter.told(), "failed": count - right, "errors": errors[:5]}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_main(int(sys.argv[1])))))
    time.sleep(_SETTLE_S)
