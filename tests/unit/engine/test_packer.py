"""What is submitted in one moment is pickled in one go; each caller has its own pickles."""

from __future__ import annotations

import asyncio
import pickle
import threading
from types import SimpleNamespace

import pytest

from farcall.engine.packer import FunctionCall, Packer
from farcall.model.errors import TaskNotPicklableError
from farcall.model.settings import Settings
from farcall_runtime import envelope, pickles
from tests.support.patience import until_async
from tests.unit.fakes import joined


def double(x):
    return 2 * x


def unpickled(packed):
    return pickles.load(envelope.unpack(joined(packed)))


class Threads:
    """Counts the ways to a thread; `hold` keeps them waiting."""

    def __init__(self):
        self.ways = 0
        self.hold = asyncio.Event()
        self.hold.set()

    async def run(self, function, *args):
        self.ways += 1
        await self.hold.wait()
        return await asyncio.to_thread(function, *args)


@pytest.fixture
async def threads():
    return Threads()


@pytest.fixture
def pack(threads, tmp_path):
    packer = Packer(threads)

    def one(*args, function=double):
        call = FunctionCall(function, [(args, {})], Settings(cache_dir=str(tmp_path)))
        return packer.pack(call)

    return one


async def test_each_caller_has_the_arguments_of_its_own_call(pack):
    found = await asyncio.gather(*(pack(number) for number in range(1000)))
    assert [unpickled(arguments) for _, arguments in found] == [
        [((number,), {})] for number in range(1000)
    ]


async def test_a_thousand_at_once_take_a_few_ways_to_a_thread(pack, threads):
    await asyncio.gather(*(pack(number) for number in range(1000)))
    assert threads.ways <= 5


async def test_a_function_is_pickled_once_for_those_that_come_together(pack, threads):
    pickled = []

    class Counted:
        def __call__(self, x):
            return x

        def __reduce__(self):
            pickled.append(self)
            return Counted, ()

    function = Counted()
    found = await asyncio.gather(*(pack(number, function=function) for number in range(200)))
    assert len(pickled) <= 2  # the first had begun when the others came
    assert len({id(packed) for packed, _ in found}) <= 2


async def test_what_cannot_be_pickled_is_its_own_callers_affair(pack):
    lock = threading.Lock()
    found = await asyncio.gather(pack(1), pack(lock), pack(3), return_exceptions=True)
    assert isinstance(found[1], TaskNotPicklableError)
    assert "argument 1 (lock)" in str(found[1])
    assert [unpickled(found[number][1]) for number in (0, 2)] == [[((n,), {})] for n in (1, 3)]


async def test_a_call_that_was_cancelled_meanwhile_holds_up_nobody(pack, threads):
    threads.hold.clear()
    calls = [asyncio.ensure_future(pack(number)) for number in range(3)]
    await asyncio.sleep(0)
    calls[1].cancel()
    threads.hold.set()
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(found[1], asyncio.CancelledError)
    assert unpickled(found[2][1]) == [((2,), {})]


async def test_where_no_thread_is_to_be_had_the_callers_are_told(tmp_path):
    async def closed(*_):
        raise RuntimeError("cannot schedule new futures after shutdown")

    packer = Packer(SimpleNamespace(run=closed))
    calls = [
        packer.pack(FunctionCall(double, [((n,), {})], Settings(cache_dir=str(tmp_path))))
        for n in range(300)
    ]
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert {str(error) for error in found} == {"cannot schedule new futures after shutdown"}


async def test_pickles_that_were_handed_over_are_let_go(pack):
    _, arguments = await pack(pickle.PickleBuffer(bytearray(1_000_000)))
    (view,) = [piece for piece in arguments.pieces if isinstance(piece, memoryview)]
    buffer = view.obj
    del arguments, view

    def is_free() -> bool:
        try:
            buffer.clear()
        except BufferError:  # a view of it exists
            return False
        return True

    await until_async(is_free)
