"""The child process: unpickle, call, pickle.

The child touches no network. It reads the payload from an anonymous file, and hands what comes of
each call over to the supervisor as the call ends. So what has ended is not lost with what comes
after it.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import itertools
import mmap
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from types import CoroutineType, FrameType
from typing import Any, BinaryIO, NamedTuple, NoReturn

from farcall_runtime import envelope, failures, nodes, pickles, processes
from farcall_runtime.channel import BrokenError, Slate, TaskEnd
from farcall_runtime.contract import (
    ENV_LOG_LEVEL,
    ENV_STREAM_S,
    JOB_ENVIRONMENT,
    LOG_LEVEL,
    STREAMS,
    CallStatus,
)
from farcall_runtime.envelope import Buffer
from farcall_runtime.pickles import Pieces

Record = dict[str, Any]

HandOver = Callable[[Record, list[Pieces], int], None]
"""Takes what came of a call: its record, its parts, and how many calls are left."""


class TaskTerminated(KeyboardInterrupt):
    """Raised in the user's function when the job is terminated, reclaimed or out of time.

    Its text says which of them it is, and how long the function has.

    It is a `KeyboardInterrupt`, so that code which saves its state on Ctrl-C does so here, and
    ``except Exception`` lets it pass. From here on 20 seconds are left. Where the time limit is
    the reason, it comes a tenth of the limit before, at most 30 s, and half of that is left.
    """


class Encoded(NamedTuple):
    """What a callable of farcall's own returns to say itself how its call ended.

    Attributes:
        status: How the call ended.
        details: Goes into the call's record, JSON.
        parts: The bytes, which are no pickles to this module.
    """

    status: CallStatus
    details: Record
    parts: list[Pieces]


_MOST_MAPPINGS = 64
"""Each has a descriptor, of which a process has few; more references to one value get copies."""

_TRIES = 3
"""How often the supervisor is called where a handler of the function's own signals raises then."""


def main(supervisor: TaskEnd, payload: BinaryIO, why: Slate) -> NoReturn:
    """Run one payload and leave the process.

    Args:
        supervisor: Passes on the ranges of function and arguments in the payload, and takes what
            comes of each call.
        payload: Function and arguments, each packed buffers.
        why: Says, once SIGTERM comes, what for.
    """
    global _supervisor, _why, _own_streams
    _supervisor, _why = supervisor, why
    nodes.tell_address(os.environ)
    log_level = os.environ.get(ENV_LOG_LEVEL, LOG_LEVEL)
    for name in (*JOB_ENVIRONMENT, ENV_STREAM_S):
        os.environ.pop(name, None)  # the function has no business with the outcome key
    for descriptor, name in enumerate(STREAMS, start=1):
        _open_stream(descriptor, name)
    _own_streams = sys.stdout, sys.stderr
    with contextlib.suppress(ValueError, OSError):
        faulthandler.enable()  # a segfault leaves its Python stack in stderr
    take_signals()

    processes.install()
    import cloudpickle  # now, while the supervisor still fetches the payload

    from farcall_runtime import logs  # which takes no time: cloudpickle has imported logging

    logs.set_up(log_level)

    ordered = supervisor.wait()
    if ordered is None:
        os._exit(0)  # the supervisor found something wrong with the payload and has said so
    *ranges, shared_at, theirs, prefix = ordered
    if prefix:
        from farcall_runtime import activation

        activation.enter(prefix)
        import cloudpickle  # the task's own, where it has one
    memory = Memory(payload.fileno())
    function, arguments = (memory.first[at : at + length] for at, length in ranges)
    memory.note_shared((function, arguments), shared_at)
    gc.freeze()  # what is there by now is no garbage, and stays the supervisor's memory, too
    gc.enable()
    run(function, arguments, (theirs, cloudpickle.__version__), _hand_over, memory.find)
    _flush()
    # What the interpreter does at its end, except waiting for threads the function left.
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    _flush()
    os._exit(0)


class Memory:
    """The payload, mapped so that whoever writes to it has the pages that he writes to.

    A shared value lies there once, and each reference to it has a mapping that it shares with no
    other of the same value: what is changed in one argument is not changed in another. As long as
    nobody writes, all are the same memory.

    Attributes:
        first: A mapping of all of it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._places: dict[envelope.Reference, int] = {}
        self._found: dict[envelope.Reference, int] = {}
        self._mappings: list[memoryview] = []  # for good: freeing one closes a descriptor
        self.first = self._mapping(0)

    def note_shared(self, frames: Iterable[Buffer], shared_at: int) -> None:
        """Note where the shared values lie that some frames refer to, in their order."""
        wanted = itertools.chain.from_iterable(map(envelope.references, frames))
        self._places = envelope.places_of(wanted, shared_at)

    def find(self, wanted: envelope.Reference) -> Buffer:
        """Return what a reference stands for: bytes that no other reference is to see changed."""
        number = self._found.get(wanted, 0)
        self._found[wanted] = number + 1
        at = self._places[wanted]
        if number < _MOST_MAPPINGS:
            return self._mapping(number)[at : at + wanted.size]
        return bytearray(self._mapping(number % _MOST_MAPPINGS)[at : at + wanted.size])

    def _mapping(self, number: int) -> memoryview:
        while len(self._mappings) <= number:
            mapped = mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_COPY)
            self._mappings.append(memoryview(mapped))
        return self._mappings[number]


def _hand_over(record: Record, parts: list[Pieces], left: int) -> None:
    """Hand over to the supervisor what came of a call, and wait where another is to follow."""
    global _stopping
    end_copy(None)  # made by the code that pickles the value
    goes_on = bool(left) and not _stopping
    if not goes_on:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the work is done
        _insist(lambda: _supervisor.hand_over(record, parts, left))
        return
    # What the function has put in their place may hang or raise; so its value goes first.
    usual = (sys.stdout, sys.stderr) == _own_streams
    if usual:
        _flush()
    _insist(lambda: _supervisor.hand_over(record, parts, left, asks=usual))
    if not usual:
        _flush()
    # It notes how much was written up to here, and knows of a SIGTERM that the function took.
    _stopping = not _insist(_supervisor.goes_on) or _stopping


def _insist(call: Callable[[], Any]) -> Any:
    """Call the supervisor, again where a handler of the function's signals raises meanwhile."""
    tries = 0
    while True:
        tries += 1
        try:
            return call()
        except BaseException as error:
            if isinstance(error, BrokenError) or tries == _TRIES:
                raise


def _flush() -> None:
    """Have Python's own buffers of stdout and stderr written."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):  # whatever the function has put there
            stream.flush()


def _open_stream(descriptor: int, name: str) -> None:
    """Open stdout or stderr again: the interpreter opened another file under this number, or none.

    ``TextIOWrapper.reconfigure`` fails where that one was seekable and this one is not.
    """
    former = getattr(sys, name)
    encoding = former.encoding if former is not None else "utf-8"
    stream = open(  # noqa: SIM115  # lives with the process
        descriptor, "w", 1, encoding=encoding, errors="backslashreplace", closefd=False
    )
    for each in (name, f"__{name}__"):
        setattr(sys, each, stream)


def _find_nothing(_wanted: envelope.Reference) -> Buffer:
    raise envelope.IntegrityError("the payload refers to a shared value, and comes without any")


def run(
    function: Buffer,
    arguments: Buffer,
    versions: tuple[str, str],
    hand_over: HandOver,
    find: Callable[[envelope.Reference], Buffer] = _find_nothing,
) -> None:
    """Run a payload's calls one after the other; once the task is told to stop, no other begins.

    Args:
        function: The function, packed.
        arguments: Those of all calls, packed.
        versions: Those of cloudpickle, the client's and this side's.
        hand_over: Gets what came of each call as it ends.
        find: Returns the shared value that a reference in the payload stands for.
    """
    global _interruptible
    try:
        _interruptible = True
        check_cloudpickle(*versions)
        # Both before any unpickling, which runs code that may do anything to a descriptor.
        frames = [envelope.unpack_shared(frame, find) for frame in (function, arguments)]
        call = pickles.load_pieces(frames[0])
        processes.remember(call)
        calls = pickles.load_pieces(frames[1])
        del frames
        _interruptible = False
    except BaseException as error:  # unpickling runs the user's code
        _interruptible = False
        record, parts = failures.capture(error, error.__traceback__)
        record.update(status=CallStatus.UNREADABLE, first=0, count=len(parts))
        hand_over(record, parts, 0)
        return
    calls.reverse()
    first = 0
    while calls and not _stopping:
        record, parts = _call(call, *calls.pop())  # what is done needs its arguments no more
        record.update(first=first, count=len(parts))
        first += len(parts)
        hand_over(record, parts, len(calls))
        del record, parts  # nor its value


def check_cloudpickle(theirs: str, ours: str) -> None:
    """Refuse another major version; smaller steps read each other's pickles."""
    if theirs.partition(".")[0] != ours.partition(".")[0]:
        raise envelope.VersionMismatchError(
            f"the function was pickled by cloudpickle {theirs} and this image has {ours}; install "
            "the same version on both sides"
        )


def _call(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Record, list[Pieces]]:
    global _interruptible
    wall, cpu = time.perf_counter(), time.process_time()
    status = CallStatus.RETURNED
    details: Record = {}
    parts: list[Pieces] = []
    try:
        _interruptible = True
        if _stopping:  # SIGTERM came after the caller's look, and before this may be interrupted
            _raise_terminated()
        value = function(*args, **kwargs)
        if isinstance(value, CoroutineType):
            value = run_coroutine(value)
        _interruptible = False
    except BaseException as error:  # sys.exit and Ctrl-C are the function's too
        _interruptible = False
        end_copy(error)
        stack = error.__traceback__
        details, parts = failures.capture(error, stack.tb_next if stack else None)
        status = CallStatus.RAISED
    end_copy(None)
    # Before the pickling, which is not the function's time.
    took = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
    if status == CallStatus.RETURNED and isinstance(value, Encoded):
        return {**took, "status": value.status, **value.details}, value.parts
    if status == CallStatus.RETURNED:
        try:
            _interruptible = True
            parts = pickles.dump(value)
            _interruptible = False
        except BaseException as error:  # pickling runs the user's code
            _interruptible = False
            details, parts = failures.capture(error, error.__traceback__)
            details["value_type"] = type(value).__name__
            status = CallStatus.UNPICKLABLE
    return {"status": status, **took, **details}, parts


_supervisor: Any = None
"""The `TaskEnd`, which there is in the task's own process."""


def streams_so_far() -> list[int]:
    """Return how many bytes this task has written to stdout and to stderr up to now."""
    _flush()
    written: list[int] = _supervisor.written()
    return written


_own_streams: tuple[Any, Any] | None = None
"""stdout and stderr as they were opened for the function."""

_is_copy = False
"""Whether this process is one that the function forked."""


def take_signals() -> None:
    """Have SIGTERM stop the function, and end the processes that it forks."""
    signal.signal(signal.SIGTERM, _terminate)
    os.register_at_fork(
        before=_hold_termination, after_in_parent=_release_termination, after_in_child=_become_copy
    )


_held = threading.local()


def _hold_termination() -> None:
    """Block SIGTERM while a process is forked.

    ``Pool`` ends a process right after it was made. Until that has a handler of its own,
    `_terminate` would swallow the signal, and the pool would wait for the process forever.
    """
    _held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def _release_termination() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _held.mask)


def _become_copy() -> None:
    """In a process that the function forks: the job's end is the original's business.

    ``Process.terminate`` and ``Pool`` end such processes by SIGTERM.
    """
    global _is_copy
    _is_copy = True
    if _supervisor is not None:
        _supervisor.forget()
    if signal.getsignal(signal.SIGTERM) is _terminate:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _release_termination()


def end_copy(error: BaseException | None) -> None:
    """End a forked process that left the function too; only the original hands results over.

    Args:
        error: What it left the function with; None if it returned.
    """
    if not _is_copy:
        return
    code = 0
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        code = error.code or 0
    elif error is not None:
        code = 1
        with contextlib.suppress(Exception):
            traceback.print_exception(type(error), error, error.__traceback__)
    _flush()
    os._exit(code & 0xFF)


def run_coroutine(coroutine: Any) -> Any:
    """Run what an ``async def`` function returned to its end."""
    import asyncio

    return asyncio.run(coroutine)


_stopping = False
"""Whether the task was told to stop."""


def is_stopping() -> bool:
    """Return whether the task was told to stop, whatever its function made of that."""
    return _stopping


_interruptible = False
"""Whether the user's code is running, which is to learn of it by an exception."""


_why: Slate | None = None
"""Where the supervisor says why the task must stop."""


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    global _stopping
    _stopping = True
    if _interruptible:  # else what has ended is being handed over
        _raise_terminated()


def _raise_terminated() -> NoReturn:
    said = _why.read() if _why is not None else ""
    raise TaskTerminated(said or "SIGTERM came, and not from farcall")
