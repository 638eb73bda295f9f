"""GPU: request a GPU, and list the GPUs that the job can use.

`num_gpus` needs a queue whose instances have GPUs, and an image with the libraries for them
(docs/image.md). On the local AWS emulator, jobs use this machine's GPUs, if it has any.

    farcall local -- python examples/gpu.py
"""

import asyncio
import shutil
import subprocess

from farcall import BatchExecutor

executor = BatchExecutor(vcpu=4, memory=16, num_gpus=1)


@executor.task
def devices():
    """Return the names of the GPUs that this process can use."""
    if shutil.which("nvidia-smi") is None:
        return []
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return listing.stdout.splitlines() if listing.returncode == 0 else []


async def main():
    async with executor:
        found = await devices()
    for device in found or ["no GPU: the job would have to compute on the CPU here"]:
        print(device)


if __name__ == "__main__":
    asyncio.run(main())
