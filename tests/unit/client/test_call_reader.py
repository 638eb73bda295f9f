"""Reading calls directly, in a thread or on the event loop, and the read-ahead limits."""

import asyncio
import contextvars
import itertools
import threading
from types import SimpleNamespace

import pytest

from farcall.client import call_reader
from farcall.client.call_reader import CallReader, Inputs
from farcall.model.clock import within
from tests.support.patience import PATIENCE_S


async def each(count, seen=None):
    for number in range(count):
        if seen is not None:
            seen.append(threading.get_ident())
        await asyncio.sleep(0)
        yield number


def reader(*sources, chunksize=1, linger_s=0.0, arguments=None):
    return CallReader(Inputs(sources, arguments), chunksize, linger_s)


async def rest(made):
    """Read to the end; return the argument groups of each block."""
    blocks = []
    while (groups := await within(PATIENCE_S, made.groups())) is not None:
        blocks.append([[args for args, _ in group] for group in groups])
    return blocks


def calls(blocks):
    return [args for groups in blocks for group in groups for args in group]


# --- inputs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sources", "size", "is_once"),
    [
        (([1, 2, 3],), 3, False),
        ((range(5), "abc"), 3, False),
        (({1: 2}.items(), (1, 2)), 1, False),
        ((iter([1]),), None, True),
        (([1], itertools.count()), None, True),
        ((each(2),), None, True),
        ((SimpleNamespace,), None, False),
    ],
)
def test_inputs_know_size_and_reusability(sources, size, is_once):
    if sources == (SimpleNamespace,):

        class Rows:
            def __len__(self):
                raise TypeError("rows of a stream have no len()")

            def __iter__(self):
                return iter([1])

        sources = (Rows(),)
    made = Inputs(sources)
    assert (made.size, made.is_once) == (size, is_once)


@pytest.mark.parametrize(
    ("source", "message"), [(3, r"Pass range\(3\)"), (None, "a NoneType, which is not iterable")]
)
def test_non_iterable_argument_is_rejected(source, message):
    with pytest.raises(TypeError, match=message):
        Inputs(([1], source))


async def test_sized_inputs_are_read_lazily():
    made = reader(range(10**9), "abcdefg", chunksize=3)
    groups = await made.groups()
    assert [args for args, _ in next(groups)] == [(0, "a"), (1, "b"), (2, "c")]
    assert made.given == 3
    # A reader with a full array job is called again for the rest.
    assert await rest(made) == [[[(3, "d"), (4, "e"), (5, "f")], [(6, "g")]]]
    assert made.given == 7


@pytest.mark.parametrize("kind", ["generator", "async", "both", "async and list", "two async"])
async def test_rows_keep_their_order(kind):
    sources = {
        "generator": ((n for n in range(2500)), range(3000)),
        "async": (each(2500), each(2600)),
        "both": (each(2500), (n for n in range(3000))),
        "async and list": (list(range(2500)), each(3000)),
        "two async": (each(3000), (n for n in range(2500)), each(2700)),
    }[kind]
    found = calls(await rest(reader(*sources, chunksize=7)))
    assert found == [(n,) * len(sources) for n in range(2500)]


async def test_iterable_is_read_in_one_thread():
    """An iterable is read in one other thread, with the caller's context."""
    variable = contextvars.ContextVar("variable", default="nothing")
    variable.set("the caller's")
    threads = []

    def generate():
        for _ in range(3000):
            threads.append((threading.get_ident(), variable.get()))
            yield None

    assert len(calls(await rest(reader(generate())))) == 3000
    (where,) = set(threads)
    assert where[1] == "the caller's"
    assert where[0] != threading.get_ident()


# --- read-ahead -------------------------------------------------------------------------------


async def test_available_calls_are_returned_without_waiting():
    """A generator may wait for the results of the calls that it yielded before."""
    go = threading.Event()

    def generate():
        yield from range(5)
        go.wait(PATIENCE_S)
        yield 5

    made = reader(generate(), chunksize=4)
    found = []
    while len(found) < 5:
        groups = await within(PATIENCE_S, made.groups())
        found += [args for group in groups for args, _ in group]
    assert found == [(n,) for n in range(5)]
    go.set()
    assert calls(await rest(made)) == [(5,)]


@pytest.mark.parametrize("kind", ["generator", "async"])
async def test_endless_input_is_read_blockwise(kind, monkeypatch):
    monkeypatch.setattr(call_reader, "_AT_FIRST", 10)
    monkeypatch.setattr(call_reader, "_LONGEST_MOMENT_S", PATIENCE_S)
    read = []

    def count():
        for number in itertools.count():
            read.append(number)
            yield number

    async def count_async():
        for number in count():
            yield number

    made = reader(count() if kind == "generator" else count_async(), linger_s=PATIENCE_S)
    for block in range(1, 4):
        assert len(list(await within(PATIENCE_S, made.groups()))) == 10
        assert len(read) <= 10 * block + 11
    await made.close()


async def test_large_arguments_shrink_read_ahead(monkeypatch):
    monkeypatch.setattr(call_reader, "_AHEAD_BYTES", 4000)
    monkeypatch.setattr(call_reader, "_LONGEST_MOMENT_S", PATIENCE_S)
    made = reader(iter(range(10**6)), linger_s=PATIENCE_S)
    assert len(list(await made.groups())) == 1000
    made.record_bytes(1000 * 1000)
    sizes = [len(list(await within(PATIENCE_S, made.groups()))) for _ in range(3)]
    assert sizes == [4, 4, 4]
    await made.close()


async def test_exhausted_list_stops_reading_stream():
    async def stream():
        for number in range(3):
            yield number
        await asyncio.Event().wait()

    made = reader(stream(), [1, 2, 3])
    assert await within(PATIENCE_S / 5, rest(made))


# --- errors and ends --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["generator", "async", "both"])
async def test_iterable_error_is_raised_unchanged(kind):
    error = LookupError("of the iterable")

    def generate():
        yield from range(10)
        raise error

    async def generate_async():
        for number in generate():
            yield number

    sources = {
        "generator": (generate(),),
        "async": (generate_async(),),
        "both": (each(20), generate()),
    }[kind]
    with pytest.raises(LookupError) as raised:
        await rest(reader(*sources))
    assert raised.value is error


async def test_blocking_iterable_does_not_block_cancellation():
    go = threading.Event()
    has_ended = threading.Event()

    def generate():
        try:
            go.wait(PATIENCE_S)
            yield 1
        finally:
            has_ended.set()

    made = reader(generate())
    waiting = asyncio.ensure_future(made.groups())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await made.close()
    go.set()
    assert await asyncio.to_thread(has_ended.wait, PATIENCE_S)
