"""One event loop thread that all users share."""

import asyncio
import contextvars
import os
import signal
import subprocess
import sys
import threading
from contextlib import closing, suppress

import pytest

from farcall import FarcallError
from farcall.client.loop_thread import LoopThread
from tests.support.patience import PATIENCE_S


async def here():
    return asyncio.get_running_loop(), threading.current_thread()


async def count(number):
    for each in range(0, number, 2):
        yield [each, each + 1]
        yield []


async def hold(began):
    began.set()
    await asyncio.Event().wait()


@pytest.fixture
def loop():
    with closing(LoopThread()) as opened:
        yield opened


def test_loop_works_after_ctrl_c(loop, monkeypatch):
    inner, _ = loop.run(here())

    def interrupt(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(inner, "call_soon_threadsafe", interrupt)
        with pytest.raises(KeyboardInterrupt):
            loop.call_soon(int)
    heard = threading.Event()
    loop.call_soon(heard.set)
    assert heard.wait(PATIENCE_S)


def test_all_users_share_one_daemon_thread(loop):
    with closing(LoopThread()) as other:
        found = [loop.run(here()), other.run(here())]
        thread = threading.Thread(target=lambda: found.append(loop.run(here())))
        thread.start()
        thread.join()
    assert len(set(found)) == 1
    assert found[0][1].daemon
    assert found[0][1] is not threading.current_thread()


def test_closing_loop_is_not_reused():
    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(200):
            with closing(LoopThread()) as last, closing(LoopThread()) as other:
                last.run(here())
                last.call_soon(last.close)  # on the loop thread itself
                other.run(here())
    finally:
        sys.setswitchinterval(switching)


def test_coroutine_sees_context_of_caller(loop):
    greeting = contextvars.ContextVar("greeting", default="nothing")
    greeting.set("hello")

    async def read():
        return greeting.get()

    assert loop.run(read()) == "hello"


def test_call_on_loop_thread_is_rejected(loop):
    async def call():
        loop.run(here())

    with pytest.raises(RuntimeError, match="own event loop"):
        loop.run(call())


def test_loop_ends_with_its_last_user(loop):
    other = LoopThread()
    first, thread = loop.run(here())
    assert other.run(here())[0] is first
    loop.close()
    assert other.run(here())[0] is first
    other.close()
    assert first.is_closed()
    assert not thread.is_alive()
    assert loop.run(here())[0] is not first


def test_waiting_call_raises_when_loop_closes(loop):
    began, errors = threading.Event(), []

    def wait():
        try:
            loop.run(hold(began))
        except FarcallError as error:
            errors.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    assert began.wait(PATIENCE_S)
    loop.close()
    thread.join(PATIENCE_S)
    assert errors == ["the event loop was closed while this call waited"]


def test_closing_runs_cleanup_of_tasks(loop):
    began, cleaned = threading.Event(), []

    async def work():
        try:
            await hold(began)
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    threading.Thread(target=_quietly, args=(loop.run, work()), daemon=True).start()
    assert began.wait(PATIENCE_S)
    loop.close()
    assert cleaned == [True]


def _quietly(function, *args):
    with suppress(FarcallError):
        function(*args)


def test_stream_yields_all_items(loop):
    assert list(loop.stream(count(5000))) == list(range(5000))


def test_stream_yields_available_items_at_once(loop):
    async def one_and_no_more():
        yield ["first"]
        await asyncio.Event().wait()

    stream = loop.stream(one_and_no_more())
    assert next(stream) == "first"
    stream.close()


def test_closed_stream_closes_its_iterator(loop):
    closed = threading.Event()

    async def make():
        try:
            yield [1]
            await asyncio.Event().wait()
        finally:
            closed.set()

    stream = loop.stream(make())
    assert next(stream) == 1
    stream.close()
    assert closed.wait(PATIENCE_S)


def test_stream_ends_when_loop_closes(loop):
    async def make():
        yield [1]
        await asyncio.Event().wait()

    stream, found, began = loop.stream(make()), [], threading.Event()

    def read():
        for each in stream:
            found.append(each)
            began.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert began.wait(PATIENCE_S)
    loop.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert found == [1]


# --- processes --------------------------------------------------------------------------------

_BEGIN = """
import asyncio, os, signal, sys, threading
from farcall.client.loop_thread import LoopThread
signal.signal(signal.SIGINT, signal.default_int_handler)
loop = LoopThread()
async def hold():
    print("waits", flush=True)
    await asyncio.Event().wait()
async def answer():
    return 42
"""


def script(text):
    return subprocess.Popen(
        [sys.executable, "-c", _BEGIN + text],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_ctrl_c_ends_waiting_process():
    with script("loop.run(hold())") as process:
        assert process.stdout.readline() == "waits\n"
        process.send_signal(signal.SIGINT)
        _, output = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -signal.SIGINT
    assert output.rstrip().endswith("KeyboardInterrupt")


def test_process_exits_despite_uncancellable_task():
    stubborn = """
async def stay():
    print("waits", flush=True)
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
threading.Thread(target=loop.run, args=(stay(),), daemon=True).start()
loop.run(answer())
"""
    with script(stubborn) as process:
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no forks")
def test_forked_child_gets_its_own_loop():
    forks = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of forks in threaded processes
print(loop.run(answer()), flush=True)
child = os.fork()
if not child:
    print(loop.run(answer()), flush=True)
    loop.close()
    os._exit(0)
os.waitpid(child, 0)
print(loop.run(answer()), flush=True)
"""
    with script(forks) as process:
        output, errors = process.communicate(timeout=PATIENCE_S)
    assert (output, errors) == ("42\n42\n42\n", "")
