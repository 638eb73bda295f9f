"""Joint pickling of calls that are submitted at the same time."""

from __future__ import annotations

import asyncio
import pickle
import threading

import pytest

from farcall.config.settings import Settings
from farcall.engine.packer import FunctionCall, Packer
from farcall.model.errors import TaskNotPicklableError
from farcall_runtime import envelope, pickles
from tests.support.patience import until_async
from tests.unit.fakes import joined


def double(x):
    return 2 * x


def unpickled(packed):
    return pickles.load(envelope.unpack(joined(packed)))


class Threads:
    """Counts the runs in a thread; `hold` blocks them."""

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


async def test_each_call_has_its_own_arguments(pack):
    found = await asyncio.gather(*(pack(number) for number in range(1000)))
    assert [unpickled(arguments) for _, arguments in found] == [
        [((number,), {})] for number in range(1000)
    ]


async def test_thousand_calls_need_few_thread_runs(pack, threads):
    await asyncio.gather(*(pack(number) for number in range(1000)))
    assert threads.ways <= 5


async def test_function_is_pickled_once_per_batch(pack, threads):
    pickled = []

    class Counted:
        def __call__(self, x):
            return x

        def __reduce__(self):
            pickled.append(self)
            return Counted, ()

    function = Counted()
    found = await asyncio.gather(*(pack(number, function=function) for number in range(200)))
    assert len(pickled) <= 2  # the first batch had begun when the others arrived
    assert len({id(packed) for packed, _ in found}) <= 2


async def test_unpicklable_call_fails_alone(pack):
    lock = threading.Lock()
    found = await asyncio.gather(pack(1), pack(lock), pack(3), return_exceptions=True)
    assert isinstance(found[1], TaskNotPicklableError)
    assert "argument 1 (lock)" in str(found[1])
    assert [unpickled(found[number][1]) for number in (0, 2)] == [[((n,), {})] for n in (1, 3)]


async def test_cancelled_call_does_not_block_others(pack, threads):
    threads.hold.clear()
    calls = [asyncio.ensure_future(pack(number)) for number in range(3)]
    await asyncio.sleep(0)
    calls[1].cancel()
    threads.hold.set()
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(found[1], asyncio.CancelledError)
    assert unpickled(found[2][1]) == [((2,), {})]


async def test_sent_pickles_are_released(pack):
    _, arguments = await pack(pickle.PickleBuffer(bytearray(1_000_000)))
    (view,) = [piece for piece in arguments.pieces if isinstance(piece, memoryview)]
    buffer = view.obj
    del arguments, view

    def is_free() -> bool:
        try:
            buffer.clear()
        except BufferError:  # a view still exists
            return False
        return True

    await until_async(is_free)
