"""Client processes of the recovery tests: a killed one, and one that recovers its tasks.

``python recover_client.py KIND OPTIONS`` takes its options as JSON and prints one JSON document
for each event.
"""

import asyncio
import json
import os
import secrets
import sys
import time
from pathlib import Path

from farcall import BatchExecutor

FAILING = 3


def work(number, folder):
    """Record the start in a ledger, wait for the test's signal, and return or raise."""
    ledger = os.open(f"{folder}/ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(ledger, f"{number} {secrets.token_hex(8)}\n".encode())
    os.close(ledger)
    print(f"task {number}", flush=True)
    while not Path(f"{folder}/go").exists():
        time.sleep(0.05)
    if number == FAILING:
        raise ValueError(f"task {number} fails")
    return number * number


def say(**what):
    print(json.dumps(what), flush=True)


async def sleep_until_killed():
    say(event="waiting")
    await asyncio.sleep(600)


async def run_map(executor, folder, tasks, stop_after=-1):
    """Collect a map in a loop, and stay in the loop's body after some results."""
    taken = 0
    sweep = executor.task(work).map(range(tasks), [folder] * tasks, return_exceptions=True)
    async for index, _ in sweep:
        say(event="taken", index=index)
        taken += 1
        if taken == stop_after:
            await sleep_until_killed()
    await sleep_until_killed()


async def recover_run(executor, run):
    """Recover a run and print its results."""
    recovered = await executor.recover(run)
    say(
        event="found",
        jobs=[job.id for job in recovered.jobs],
        delivered=recovered.delivered,
    )

    async def tell(job):
        ((args, _),) = await job.calls()
        error = await job.exception()
        value = None if error else await job.result()
        text = f"{type(error).__name__}: {error}" if error else None
        say(event="ended", number=args[0], value=value, error=text, stdout=await job.stdout())

    await asyncio.gather(*map(tell, recovered.jobs))
    await recovered.discard()
    say(event="through")


async def main(kind, **more):
    executor = BatchExecutor(vcpu=1, memory=1, retry_attempts=1, linger_s=0.2)
    if kind == "recover":
        await recover_run(executor, **more)
        return
    async with executor:
        say(event="run", run=await executor.run_name())
        await run_map(executor, **more)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], **json.loads(sys.argv[2])))
