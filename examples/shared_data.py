"""Shared data: use the same table in all calls of a sweep, and upload it once.

Global variables that a function uses are uploaded with the function, once per array job. Arguments
are uploaded with each call.

    farcall local -- python examples/shared_data.py
"""

import asyncio

import numpy as np

from farcall import BatchExecutor

executor = BatchExecutor(vcpu=1, memory=1)
table = np.random.default_rng(0).normal(size=(100_000, 8))  # 6.4 MB


@executor.task
def column_mean(column, scale):
    return scale * table[:, column].mean()  # `table` is uploaded because the function uses it


async def main():
    columns = range(table.shape[1])
    async with executor:
        means = await column_mean.map(columns, [2.0] * len(columns))
    assert np.allclose(means, 2 * table.mean(axis=0))
    print(f"{len(means)} jobs have read the same {table.nbytes / 1e6:.1f} MB")


if __name__ == "__main__":
    asyncio.run(main())
