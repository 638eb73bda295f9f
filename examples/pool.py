"""Pool: code without async, using the interface of `concurrent.futures`.

Replace ThreadPoolExecutor or ProcessPoolExecutor with this pool to run your calls as Batch jobs.

    farcall local -- python examples/pool.py
"""

from concurrent.futures import as_completed

from farcall import BatchPoolExecutor


def collatz(n):
    """Return the number of Collatz steps from n to 1."""
    steps = 0
    while n > 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


if __name__ == "__main__":
    with BatchPoolExecutor(vcpu=1, memory=1) as pool:
        starts = {pool.submit(collatz, n): n for n in (7, 27, 97)}
        for future in as_completed(starts):
            print(f"{starts[future]}: {future.result()} steps, job {future.job_id}")
        longest = max(pool.map(collatz, range(1, 1000), chunksize=250))
    print(f"the longest way from below 1000 has {longest} steps")
