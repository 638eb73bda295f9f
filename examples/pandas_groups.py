"""pandas: one job for each group of a data frame, and one frame of results.

Data frames can be arguments and results like other objects. Install pandas in your environment
(`pip install pandas`) and in the image (docs/image.md).

    farcall local -- python examples/pandas_groups.py
"""

import asyncio

import pandas as pd

from farcall import BatchExecutor

executor = BatchExecutor(vcpu=1, memory=2)


@executor.task
def describe(shop, sales):
    print(f"{shop}: {len(sales)} days")
    return pd.DataFrame({"shop": [shop], "days": [len(sales)], "mean": [sales["sold"].mean()]})


async def main():
    days = pd.DataFrame({"shop": ["north", "south", "south"] * 100, "sold": range(300)})
    shops, frames = zip(*days.groupby("shop"), strict=True)
    async with executor:
        answers = await describe.map(shops, frames)
    print(pd.concat(answers).sort_values("shop").to_string(index=False))


if __name__ == "__main__":
    asyncio.run(main())
