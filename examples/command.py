"""Command job: run a program in an image, without your own Python code.

The local AWS emulator runs the command on this machine; with `farcall local --docker` it runs in a
container of the image.

    farcall local -- python examples/command.py
"""

import asyncio

from farcall import BatchExecutor

executor = BatchExecutor(vcpu=1, memory=0.5)
SCRIPT = "for word in $WORDS; do echo $word; done"


async def main():
    async with executor:
        job = await executor.command("alpine:3", ["sh", "-c", SCRIPT], env={"WORDS": "one two"})
        async for line in job.logs(follow=True):
            print("it printed:", line.text)
        result = await job.wait()  # raises farcall.CommandError if the command fails
    print("its exit code:", result.exit_codes[0])


if __name__ == "__main__":
    asyncio.run(main())
