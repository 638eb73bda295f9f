import farcall

executor = farcall.BatchExecutor(memory=4, retry_attempts=2)


@executor.task
def simulate(x: int) -> int:
    print("simulating", x)
    return x * x


async def simulate_anyway(x: int) -> int:
    try:
        return await simulate(x)
    except farcall.OutOfMemoryError:
        return await simulate.with_options(memory=32)(x)
