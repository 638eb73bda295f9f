"""Sweep: call one function for many inputs, and use each result as it arrives.

A `map` is one array job, regardless of the number of calls.

    farcall local -- python examples/sweep.py
"""

import asyncio
import random

from farcall import BatchExecutor

executor = BatchExecutor(vcpu=1, memory=1)


@executor.task
def estimate_pi(seed, points=20_000):
    draw = random.Random(seed).random
    inside = sum(draw() ** 2 + draw() ** 2 < 1 for _ in range(points))
    return 4 * inside / points


async def main():
    async with executor:
        estimates = []
        # With chunksize, each task runs ten calls, because each task has to start a container.
        async for seed, estimate in estimate_pi.map(range(40), chunksize=10, progress=True):
            estimates.append(estimate)
            if seed % 10 == 0:
                print(f"seed {seed}: {estimate:.3f}")
    print(f"pi is about {sum(estimates) / len(estimates):.2f}, from {len(estimates)} calls")


if __name__ == "__main__":
    asyncio.run(main())
