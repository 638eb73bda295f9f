"""One start of farcall's image, by farcall's client; prints the probe's answer as JSON."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import cloudpickle

from benchmarks import container_probe
from farcall import BatchExecutor


async def _start() -> dict[str, Any]:
    async with BatchExecutor(vcpu=1) as executor:
        return await executor.task(container_probe.probe)()


if __name__ == "__main__":
    cloudpickle.register_pickle_by_value(container_probe)  # the image has no `benchmarks`
    print(json.dumps(asyncio.run(_start())))
