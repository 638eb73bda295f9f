"""One of several clients of an account: ``python -m benchmarks.sharing_client COUNT``.

It says that it is ready, waits for a line, and submits its tasks at once, each by a SubmitJob of
its own. At last it prints a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from benchmarks.client import double
from farcall import BatchExecutor
from farcall.engine.session import session_for

_SETTLE_S = 0.05  # see benchmarks.client


async def _main(count: int) -> dict[str, Any]:
    calls: list[tuple[float, int]] = []

    def note(http_response: Any, **_: Any) -> None:
        calls.append((time.monotonic(), http_response.status_code))

    async with BatchExecutor(vcpu=1, linger_s=0) as executor:
        session = await session_for(executor.settings)
        session.aws.batch.meta.events.register("after-call.batch.SubmitJob", note)
        # Tasks whose jobs would look the same are gathered; with a tag of its own each is one.
        each = [executor.with_options(tags={"number": str(number)}) for number in range(count)]
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        tasks = [one.task(double)(number) for number, one in enumerate(each)]
        values = await asyncio.gather(*tasks, return_exceptions=True)
    right = sum(value == 2 * number for number, value in enumerate(values))
    errors = sorted({repr(value)[:500] for value in values if isinstance(value, Exception)})
    return {"failed": count - right, "errors": errors[:5], "calls": calls}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_main(int(sys.argv[1])))), flush=True)
    time.sleep(_SETTLE_S)
