"""Shared data: give every call of a sweep the same table, and upload it once.

What a function uses from around it travels with the function: once for the whole array job.
An argument travels with each call.

    farcall local -- python examples/shared_data.py
"""

import asyncio

import numpy as np

from farcall import BatchExecutor

executor = BatchExecutor(vcpu=1, memory=1)
table = np.random.default_rng(0).normal(size=(100_000, 8))  # 6.4 MB


@executor.task
def column_mean(column, scale):
    return scale * table[:, column].mean()  # `table` is taken along because it is named here


async def main():
    columns = range(table.shape[1])
    async with executor:
        means = await column_mean.map(columns, [2.0] * len(columns))
    assert np.allclose(means, 2 * table.mean(axis=0))
    print(f"{len(means)} jobs have read the same {table.nbytes / 1e6:.1f} MB")


if __name__ == "__main__":
    asyncio.run(main())
