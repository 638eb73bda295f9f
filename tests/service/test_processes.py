"""`multiprocessing` in a task.

Starts the local AWS emulator, because child processes must import functions that were pickled by
value.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import pytest

STEP = 10


class Point:
    def __init__(self, x: int) -> None:
        self.x = x

    def moved(self, by: int) -> Point:
        return Point(self.x + by)


class OddError(ValueError):
    pass


def stepped(x: int) -> int:
    if x == 7:
        raise OddError("seven")
    return x + STEP + offset()


def offset() -> int:
    return 100


def set_up(value: int) -> None:
    global PREPARED
    PREPARED = value


def prepared(x: int) -> int:
    return x + PREPARED  # defined only where `set_up` ran


def pass_on(inbox, outbox) -> None:
    point = inbox.get()
    outbox.put((os.getpid(), point.moved(1), lambda: point.x))


def everything(method: str) -> dict[str, object]:
    """Use `multiprocessing` in a task in the usual ways; return the results."""
    context = multiprocessing.get_context(method)
    got: dict[str, object] = {}
    with context.Pool(2) as pool:
        got["pool"] = pool.map(stepped, range(3))
        got["lambda"] = pool.map(lambda x: x * STEP, [4])
        got["partial"] = pool.apply(functools.partial(stepped, 5))
        (moved,) = pool.map(functools.partial(Point.moved, by=2), [Point(1)])
        got["class"] = type(moved) is Point and moved.x == 3
        try:
            pool.apply(stepped, (7,))
        except OddError as error:
            got["error"] = str(error)
    with ProcessPoolExecutor(2, mp_context=context, initializer=set_up, initargs=(1000,)) as pool:
        got["initializer"] = list(pool.map(prepared, range(2)))
        got["here"] = "PREPARED" in globals()
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=pass_on, args=(inbox, outbox))
    process.start()
    inbox.put(Point(1))
    pid, point, read = outbox.get(timeout=60)
    process.join()
    got["queue"] = (pid == process.pid, type(point) is Point, point.x, read())
    return got


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
async def test_child_processes_use_pickled_functions(executor, method):
    assert await executor.task(everything)(method) == {
        "pool": [110, 111, 112],
        "lambda": [40],
        "partial": 115,
        "class": True,
        "error": "seven",
        "initializer": [1000, 1001],
        "here": False,
        "queue": (True, True, 2, 1),
    }
