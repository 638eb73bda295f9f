"""Channel between the supervisor and the task's process; foreign data is ignored."""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import socket
import threading
from pathlib import Path

import pytest

from farcall_runtime import channel, envelope
from farcall_runtime.channel import BrokenError, Slate

RECORD = {"status": "returned"}


def plain(result):
    """Return a result with its parts as bytes."""
    return result.record, list(map(bytes, result.parts)), result.left


class Ends:
    """Both ends in one process, and the requests to the supervisor."""

    def __init__(self):
        self.supervisor, self.task = channel.pair()
        self.supervisor.go(["go"])
        assert self.task.wait() == ["go"]
        self.asked = []
        self.results = []

    def answer(self, may_go_on):
        self.asked.append(may_go_on)
        return may_go_on or [5, 7]

    def hear(self):
        """Receive all pending data; return whether the socket has ended."""
        with contextlib.suppress(EOFError):
            while self.supervisor.receive(self.take, self.answer):
                pass
            return False
        return True

    def take(self, result):
        self.results.append(plain(result))

    def write(self, data):
        """Write to the task's descriptor, as the function might."""
        os.write(self.task._socket.fileno(), data)

    def serve(self, until):
        """Receive in a separate thread until an event."""

        def run():
            while not until.is_set():
                select.select([self.supervisor], [], [], 0.05)
                self.hear()

        thread = threading.Thread(target=run)
        thread.start()
        return thread


@pytest.fixture(params=["SOCK_SEQPACKET", "SOCK_DGRAM"])
def ends(request, monkeypatch):
    monkeypatch.setattr(channel, "_KIND", getattr(socket, request.param))
    made = Ends()
    yield made
    made.supervisor.close()
    made.task.forget()
    made.task._socket.detach()  # its descriptor may belong to another file by now


@contextlib.contextmanager
def served(ends):
    """Let the supervisor receive within a block."""
    ended = threading.Event()
    thread = ends.serve(ended)
    try:
        yield
    finally:
        ended.set()
        thread.join()
        ends.hear()


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [[b""]],
        [[b"a", b"", b"bc"], [b"d"]],
        [[os.urandom(channel._MOST_BYTES * 3 + 1)], [b"x"]],
        [[os.urandom(channel._LARGE_BYTES)]],
        [[b"%d" % n for n in range(3 * channel._MOST_PIECES)]],
    ],
    ids=["none", "empty", "pieces", "large", "larger", "many"],
)
def test_results_arrive_complete_and_in_order(ends, parts):
    with served(ends):
        ends.task.hand_over(RECORD, parts, 2)
        ends.task.hand_over({"status": "raised", "text": "x" * 500_000}, [], 1)
        ends.task.hand_over(RECORD, parts, 0)

    whole = [b"".join(part) for part in parts]
    (first, second, third) = ends.results
    assert first == (RECORD, whole, 2)
    assert (second[0]["status"], len(second[0]["text"]), second[1:]) == (
        "raised",
        500_000,
        ([], 1),
    )
    assert third == (RECORD, whole, 0)
    assert not ends.supervisor.has_noise


@pytest.mark.parametrize("size", [0, 10, 1 << 20])
def test_request_is_answered_after_its_result(ends, size):
    there = []

    def answer(_may_go_on):
        there.append(len(ends.results))
        return True

    ends.answer = answer
    with served(ends):
        for number in range(1, 4):
            ends.task.hand_over(RECORD, [[bytes(size)]], 1)
            assert ends.task.request_next_call() is True
            assert there == [*range(1, number + 1)]


def test_foreign_data_is_ignored(ends):
    head = channel._HEAD.pack(bytes(16), channel._Kind.RESULT, 0, 10, 10)
    forged = [b"", b"x", bytes(100), head, head + b"[{}, [], 0]", b"[{}, [], 0, false]\n"]
    sent = iter(forged * 3)
    send = ends.task._send

    def interrupted(*args, **kwargs):
        ends.write(next(sent))
        send(*args, **kwargs)
        ends.write(next(sent))

    ends.task._send = interrupted
    with served(ends):
        ends.task.hand_over(RECORD, [[bytes(300_000)]], 1)
        assert ends.task.written() == [5, 7]

    assert ends.results == [(RECORD, [bytes(300_000)], 1)]
    assert ends.supervisor.has_noise


def test_interrupted_result_is_sent_again(ends):
    send, calls = ends.task._send, []

    def interrupted(*args, **kwargs):
        send(*args, **kwargs)
        calls.append(args)
        if len(calls) in (1, 3):
            raise TimeoutError

    ends.task._send = interrupted
    parts = [[bytes(channel._MOST_BYTES)], [b"end"]]
    with served(ends):
        for _ in range(2):
            with pytest.raises(TimeoutError):
                ends.task.hand_over(RECORD, parts, 0)
        ends.task.hand_over(RECORD, parts, 0)

    assert ends.results == [(RECORD, [bytes(channel._MOST_BYTES), b"end"], 0)]


@pytest.mark.parametrize("size", [10, 3 * channel._MOST_BYTES, channel._LARGE_BYTES])
def test_small_socket_buffer_uses_small_messages(ends, size):
    ends.task._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 0)  # the minimum
    value = os.urandom(size)
    with served(ends):
        for left in (1, 0):
            ends.task.hand_over(RECORD, [[value]], left)
    assert ends.results == [(RECORD, [value], 1), (RECORD, [value], 0)]


def test_lost_answer_is_requested_again(ends, monkeypatch):
    monkeypatch.setattr(channel, "_PATIENCE_S", 0.02)
    ends.task.settle()
    send = ends.supervisor._send
    lost = []

    def lose(kind, number, what):
        if lost:
            send(kind, number, what)
        lost.append(what)

    ends.supervisor._send = lose
    with served(ends):
        assert ends.task.request_next_call() is True
    assert ends.asked == [True]


# The other threads of the test process do not matter to a child that only sends and exits.
@pytest.mark.filterwarnings("ignore:.*is multi-threaded, use of fork:DeprecationWarning")
def test_forked_copy_sends_nothing(ends):
    number = os.fork()
    if number == 0:
        try:
            ends.task.forget()
            ends.task._sent_results = -1  # whatever it would send
            ends.task.hand_over(RECORD, [], 0)
        finally:
            os._exit(0)
    os.waitpid(number, 0)
    assert not ends.hear()
    assert (ends.results, ends.supervisor.abandoned_result()) == ([], None)


def close(ends):
    os.close(ends.task._socket.fileno())


def replace(ends):
    with Path(os.devnull).open() as other:
        os.dup2(other.fileno(), ends.task._socket.fileno())


def shut_down(ends):
    ends.task._socket.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("lose", [close, replace, shut_down])
def test_unsendable_result_is_left_behind(ends, lose):
    with served(ends):
        ends.task.hand_over(RECORD, [[b"first"]], 2)
    lose(ends)
    large = bytes(channel._REFUGE_BYTES)
    with pytest.raises(BrokenError, match=r"descriptor \d+, .* was closed, replaced or corrupted"):
        ends.task.hand_over(RECORD, [[large]], 1)
    assert ends.supervisor.abandoned_result() is None

    ends.task.hand_over(RECORD, [[b"second"], [b""]], 1)

    for request in (ends.task.request_next_call, ends.task.written):
        with pytest.raises(BrokenError, match="closed, replaced or corrupted"):
            request()
    found = ends.supervisor.abandoned_result()
    assert (found.record, list(map(bytes, found.parts)), found.left) == (
        RECORD,
        [b"second", b""],
        1,
    )
    ends.hear()
    assert len(ends.results) == 1


def test_result_left_behind_is_the_last(ends):
    """The task waits for no answer, and does not read the socket that replaced it."""
    number = ends.task._socket.fileno()
    mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with mine, other:
        mine.send(b"the function's own")
        os.dup2(other.fileno(), number)

        ends.task.hand_over(RECORD, [[b"value"]], 1)

        with pytest.raises(BrokenError, match="it is a different file now"):
            ends.task.request_next_call()
        assert ends.supervisor.abandoned_result().record == RECORD
        os.set_blocking(number, False)
        assert os.read(number, 100) == b"the function's own"
        os.close(number)


def test_no_call_starts_after_lost_result(ends, monkeypatch):
    """Output written until then does not belong to the previous call, either."""

    def refuse(*_args, **_kwargs):
        raise MemoryError("no room")

    ends.task.settle()
    large = [[bytes(2 * channel._LARGE_BYTES)]]
    with served(ends):
        ends.task.hand_over(RECORD, [[b"first"]], 2)
        assert ends.task.request_next_call() is True
        with monkeypatch.context() as patch:
            patch.setattr(mmap, "mmap", refuse)
            ends.task.hand_over(RECORD, large, 1)
            assert ends.task.request_next_call() is False
    assert ends.asked == [True]
    assert ends.results == [(RECORD, [b"first"], 2)]
    assert ends.supervisor.trouble == "MemoryError: no room"

    with served(ends):  # a handler has raised, and the result is sent again
        ends.task._sent_results -= 1
        ends.task.hand_over(RECORD, large, 1)
        assert ends.task.request_next_call() is True
    assert ends.supervisor.trouble == ""


def test_invalid_result_is_reported(ends):
    for text in (
        b"[]",
        b"{",
        b"[1, 2, 3]",
        b"\xff",
        b'["", [], 0]',
        b"[{}, [], {}]",
        b"[{}, [1], 0]",
    ):
        ends.task._send(channel._Kind.RESULT, 0, (len(text), 0), [text[:1]])
        ends.task._send(channel._Kind.DATA, 0, pieces=[text[1:]])
        ends.supervisor.trouble = ""
        assert not ends.hear()
        assert ends.supervisor.trouble
    assert ends.results == []


def test_slate_truncates_long_text():
    slate = Slate()
    assert slate.read() == ""
    slate.write("first and long")
    slate.write("zweitens \udcff \N{SNOWMAN}")
    assert slate.read() == "zweitens ? \N{SNOWMAN}"
    slate.write("x" * 10_000)
    assert set(slate.read()) == {"x"}
    assert envelope.size([slate.read().encode()]) > 4000
