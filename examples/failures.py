"""Failures and retries: repeated attempts, and the errors that your program gets.

A function's own exception is final, unless `retry_on="failure"` asks for up to `retry_attempts`
in all. The last one's is raised here as it was there: the same class, with the remote traceback.

    farcall local -- python examples/failures.py
"""

import asyncio
import os

from farcall import BatchExecutor, ChildKilledError

executor = BatchExecutor(vcpu=1, memory=1, retry_attempts=2, retry_on="failure")


@executor.task
def flaky():
    attempt = os.environ["AWS_BATCH_JOB_ATTEMPT"]
    if attempt == "1":
        raise ConnectionError("the first attempt has no luck")
    return attempt


@executor.task(retry_attempts=1)
def root(x):
    if x < 0:
        raise ValueError(f"{x} has no root")
    if x > 100:
        os._exit(7)  # the process ends without a word, as when a library in C crashes
    return x**0.5


async def main():
    async with executor:
        print("flaky ended well in attempt", await flaky())
        # With return_exceptions a failed call leaves the others alone: its error is in the list.
        for result in await root.map([4, -1, 101], return_exceptions=True):
            if isinstance(result, ChildKilledError):
                print(f"job {result.job_id} died with exit code {result.exit_code}")
            else:
                print(repr(result))


if __name__ == "__main__":
    asyncio.run(main())
