"""Failures and retries: repeated attempts, and errors that you can catch.

By default, an exception of your function is final. With `retry_on="failure"`, the function runs up
to `retry_attempts` times. The last attempt's exception is re-raised in your program, with its
original class and the remote traceback.

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
        os._exit(7)  # the process exits without an exception, as if a C library had crashed
    return x**0.5


async def main():
    async with executor:
        print("flaky ended well in attempt", await flaky())
        # With return_exceptions, a failed call does not stop the others; the list has its error.
        for result in await root.map([4, -1, 101], return_exceptions=True):
            if isinstance(result, ChildKilledError):
                print(f"job {result.job_id} died with exit code {result.exit_code}")
            else:
                print(repr(result))


if __name__ == "__main__":
    asyncio.run(main())
