"""Client of ``python -m benchmarks --only warm``: prints its measurements as JSON."""

from __future__ import annotations

import json
import sys
import time

from farcall import BatchPoolExecutor

_OPTIONS = {"vcpu": 1, "memory": 0.5, "linger_s": 0.01}
_WORKERS = 4


def double(x: int) -> int:
    """Return twice a number."""
    return 2 * x


def main(calls: int, mapped: int) -> None:
    """Call one after another on warm workers, then map on them and on jobs."""
    times = []
    with BatchPoolExecutor(**_OPTIONS, workers=_WORKERS) as pool:
        pool.submit(double, 1).result()
        for number in range(calls):
            began = time.monotonic()
            pool.submit(double, number).result()
            times.append(time.monotonic() - began)
        workers_s = _map(pool, mapped)
    with BatchPoolExecutor(**_OPTIONS) as pool:
        jobs_s = _map(pool, mapped)
    print(json.dumps({"times": times, "workers_s": workers_s, "jobs_s": jobs_s}))


def _map(pool: BatchPoolExecutor, calls: int) -> float:
    began = time.monotonic()
    assert list(pool.map(double, range(calls))) == [2 * n for n in range(calls)]
    return time.monotonic() - began


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
