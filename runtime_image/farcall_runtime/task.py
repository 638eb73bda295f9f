"""Child process: unpickle, call, pickle.

The child does not use the network. It reads the payload from an anonymous file, and hands each
call's result over to the supervisor as soon as the call ends, so that a crash loses no earlier
result.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import gc
import itertools
import logging
import mmap
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, MutableMapping
from types import CoroutineType, FrameType
from typing import Any, BinaryIO, NamedTuple, NoReturn

from farcall_runtime import envelope, failures, nodes, pickles, processes
from farcall_runtime.channel import BrokenError, Slate, TaskEnd
from farcall_runtime.contract import (
    ENV_LOG_LEVEL,
    ENV_PROJECTS,
    ENV_STREAM_S,
    ENV_THREADS,
    JOB_ENVIRONMENT,
    LOG_LEVEL,
    STREAMS,
    THREAD_COUNTS,
    CallStatus,
)
from farcall_runtime.envelope import Buffer
from farcall_runtime.pickles import Pieces

Record = dict[str, Any]

HandOver = Callable[[Record, list[Pieces], int], None]
"""Receiver of a call's result: its record, its parts, and the number of calls left."""


class TaskTerminated(KeyboardInterrupt):
    """Raised in the function when the job is terminated, reclaimed or out of time.

    Its text names the reason and the remaining time.

    It is a `KeyboardInterrupt`, so that code which saves its state on Ctrl-C also does so here,
    and ``except Exception`` does not catch it. The function has 20 seconds from here on. If the
    time limit is the reason, the exception comes before the limit by a tenth of it (at most 30 s),
    and the function has half of that time.
    """


class Encoded(NamedTuple):
    """Return value with which farcall's own callables state how their call ended.

    Attributes:
        status: How the call ended.
        details: Added to the call's record, JSON.
        parts: The bytes; this module does not treat them as pickles.
    """

    status: CallStatus
    details: Record
    parts: list[Pieces]


_MOST_MAPPINGS = 64
"""Maximum mappings of the payload.

Each needs one of the process's few file descriptors; further references to one value get copies.
"""

_TRIES = 3
"""Attempts to call the supervisor if one of the function's signal handlers raises."""


def main(supervisor: TaskEnd, payload: BinaryIO, why: Slate) -> NoReturn:
    """Run one payload and leave the process.

    Args:
        supervisor: Provides the ranges of function and arguments in the payload, and receives each
            call's result.
        payload: Function and arguments, each as packed buffers.
        why: Contains the reason for SIGTERM, once it arrives.
    """
    global _supervisor, _why
    _supervisor, _why = supervisor, why
    nodes.set_main_address(os.environ)
    set_thread_counts(os.environ)
    log_level = os.environ.get(ENV_LOG_LEVEL, LOG_LEVEL)
    for name in (*JOB_ENVIRONMENT, ENV_STREAM_S, ENV_PROJECTS):
        os.environ.pop(name, None)  # the function must not see the outcome key
    for descriptor, name in enumerate(STREAMS, start=1):
        _open_stream(descriptor, name)
    with contextlib.suppress(ValueError, OSError):
        faulthandler.enable()  # a segfault leaves its Python stack in stderr
    take_signals()

    processes.install()
    import cloudpickle  # now, while the supervisor still fetches the payload

    set_up_logging(log_level)

    ordered = supervisor.wait()
    if ordered is None:
        os._exit(0)  # the supervisor has rejected the payload and logged the reason
    *ranges, shared_at, theirs, prefix = ordered
    if prefix:
        from farcall_runtime import activation

        activation.enter(prefix)
        import cloudpickle  # the task's own, if it has one
    memory = Memory(payload.fileno())
    function, arguments = (memory.first[at : at + length] for at, length in ranges)
    memory.record_shared((function, arguments), shared_at)
    gc.freeze()  # existing objects are no garbage, and their pages stay shared with the supervisor
    gc.enable()
    run(function, arguments, (theirs, cloudpickle.__version__), _hand_over, memory.find)
    _flush()
    # Run what the interpreter runs at exit, but do not wait for threads that the function left.
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    _flush()
    os._exit(0)


def set_thread_counts(environment: MutableMapping[str, str]) -> None:
    """Give numerical libraries as many threads as the job has vCPUs, unless they are set.

    They read the variables when they are imported. All except numba also read OMP_NUM_THREADS,
    so if that is set, it applies to them.
    """
    threads = environment.get(ENV_THREADS)
    if threads is None:
        return
    names = ("NUMBA_NUM_THREADS",) if "OMP_NUM_THREADS" in environment else THREAD_COUNTS
    for name in names:
        environment.setdefault(name, threads)


class Memory:
    """Payload, mapped copy-on-write.

    A shared value is stored once, and each reference to it gets a separate mapping, so that a
    change to one argument does not change another. Unmodified pages share the same memory.

    Attributes:
        first: A mapping of the whole payload.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._places: dict[envelope.Reference, int] = {}
        self._uses: dict[envelope.Reference, int] = {}
        self._mappings: list[memoryview] = []  # never freed: freeing one closes a descriptor
        self.first = self._mapping(0)

    def record_shared(self, frames: Iterable[Buffer], shared_at: int) -> None:
        """Record the positions of the shared values that frames refer to."""
        wanted = itertools.chain.from_iterable(map(envelope.references, frames))
        self._places = envelope.places_of(wanted, shared_at)

    def find(self, wanted: envelope.Reference) -> Buffer:
        """Return a reference's bytes, in memory that no other reference shares."""
        number = self._uses.get(wanted, 0)
        self._uses[wanted] = number + 1
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
    """Hand a call's result over to the supervisor; if another call follows, wait."""
    global _stopping
    end_copy(None)  # created by the code that pickles the result
    continues = bool(left) and not _stopping
    if not continues:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the work is done
    _insist(lambda: _supervisor.hand_over(record, parts, left))
    if continues:
        _flush()  # now, because the function's replacement streams may hang or raise
        # The supervisor records the output so far. It knows of a SIGTERM that the function caught.
        _stopping = not _insist(_supervisor.request_next_call) or _stopping


def _insist(call: Callable[[], Any]) -> Any:
    """Call the supervisor; retry if a signal handler of the function raises."""
    tries = 0
    while True:
        tries += 1
        try:
            return call()
        except BaseException as error:
            if isinstance(error, BrokenError) or tries == _TRIES:
                raise


def _flush() -> None:
    """Flush Python's buffers of stdout and stderr."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):  # the function may have replaced the streams
            stream.flush()


def _open_stream(descriptor: int, name: str) -> None:
    """Reopen stdout or stderr, whose descriptor had another file at startup.

    ``TextIOWrapper.reconfigure`` fails if the former file was seekable and this one is not.
    """
    former = getattr(sys, name)
    encoding = former.encoding if former is not None else "utf-8"
    stream = open(  # noqa: SIM115  # lives with the process
        descriptor, "w", 1, encoding=encoding, errors="backslashreplace", closefd=False
    )
    for each in (name, f"__{name}__"):
        setattr(sys, each, stream)


def _find_nothing(_wanted: envelope.Reference) -> Buffer:
    raise envelope.IntegrityError("the input data refers to a shared value, but contains none")


def run(
    function: Buffer,
    arguments: Buffer,
    versions: tuple[str, str],
    hand_over: HandOver,
    find: Callable[[envelope.Reference], Buffer] = _find_nothing,
) -> None:
    """Run a payload's calls in sequence until the task must stop.

    Args:
        function: The packed function.
        arguments: The packed arguments of all calls.
        versions: cloudpickle's version on the client and here.
        hand_over: Receives each call's result as the call ends.
        find: Returns the shared value for a reference in the payload.
    """
    global _interruptible
    try:
        _interruptible = True
        check_cloudpickle(*versions)
        # Both before any unpickling, because the user's code may do anything to a descriptor.
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
        record, parts = _call(call, *calls.pop())  # frees the arguments after the call
        record.update(first=first, count=len(parts))
        first += len(parts)
        hand_over(record, parts, len(calls))
        del record, parts  # and frees the result


def check_cloudpickle(theirs: str, ours: str) -> None:
    """Reject another major version; minor versions read each other's pickles."""
    if theirs.partition(".")[0] != ours.partition(".")[0]:
        raise envelope.VersionMismatchError(
            f"the function was pickled by cloudpickle {theirs}, but this image has {ours}; "
            "install the same version on both sides"
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
        if _stopping:  # SIGTERM came between the caller's check and here
            _raise_terminated()
        value = function(*args, **kwargs)
        if isinstance(value, CoroutineType):
            value = run_coroutine(value)
        _interruptible = False
    except BaseException as error:  # sys.exit and Ctrl-C are the function's failures too
        _interruptible = False
        end_copy(error)
        stack = error.__traceback__
        details, parts = failures.capture(error, stack.tb_next if stack else None)
        status = CallStatus.RAISED
    end_copy(None)
    # Before pickling, which does not count as the function's time.
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
"""The `TaskEnd` of the task's own process."""


def streams_so_far() -> list[int]:
    """Return the number of bytes that this task has written to stdout and to stderr."""
    _flush()
    written: list[int] = _supervisor.written()
    return written


_is_copy = False
"""Whether the function forked this process."""


def take_signals() -> None:
    """Make SIGTERM stop the function, and end the processes that it forks."""
    signal.signal(signal.SIGTERM, _terminate)
    os.register_at_fork(
        before=_hold_termination, after_in_parent=_release_termination, after_in_child=_become_copy
    )


_held = threading.local()


def _hold_termination() -> None:
    """Block SIGTERM during a fork.

    ``Pool`` may end a process right after starting it. Until the new process has its own handler,
    `_terminate` would swallow the signal, and the pool would wait for the process forever.
    """
    _held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def _release_termination() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _held.mask)


def _become_copy() -> None:
    """Reset signal handling in a forked process.

    Only the original process handles the job's end. ``Process.terminate`` and ``Pool`` end such
    processes with SIGTERM.
    """
    global _is_copy
    _is_copy = True
    if _supervisor is not None:
        _supervisor.forget()
    if signal.getsignal(signal.SIGTERM) is _terminate:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _release_termination()


def end_copy(error: BaseException | None) -> None:
    """Exit a forked process that leaves the function.

    Only the original process hands results over.

    Args:
        error: The exception that left the function; None if it returned.
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
    """Run the coroutine of an ``async def`` function and return its result."""
    import asyncio

    return asyncio.run(coroutine)


_stopping = False
"""Whether SIGTERM has arrived."""


def is_stopping() -> bool:
    """Return whether the task must stop, even if the function caught the exception."""
    return _stopping


_interruptible = False
"""Whether the user's code is running, which an exception must interrupt."""


_why: Slate | None = None
"""Text in which the supervisor writes why the task must stop."""


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    global _stopping
    _stopping = True
    if _interruptible:  # otherwise a finished call is being handed over
        _raise_terminated()


def _raise_terminated() -> NoReturn:
    reason = _why.read() if _why is not None else ""
    raise TaskTerminated(reason or "received SIGTERM, but not from farcall")


# --- Default logging -----------------------------------------------------------------------------


OFF = "OFF"
"""Value instead of a level that keeps Python's default logging."""

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def set_up_logging(level: str) -> None:
    """Write this process's log records to stderr.

    Args:
        level: Name of the minimum level, or `OFF`; invalid names mean `OFF`.
    """
    number = logging.getLevelName(level)
    if not isinstance(number, int) or logging.lastResort is None:
        return
    logging.root.setLevel(number)
    logging.lastResort.setLevel(logging.NOTSET)
    logging.lastResort.setFormatter(logging.Formatter(_FORMAT))
    configure = logging.basicConfig

    @functools.wraps(configure)
    def basic_config(**options: Any) -> None:
        # ``logging.info(...)`` and similar functions call it without options; the user did not.
        configure(**(options or {"format": _FORMAT}))

    logging.basicConfig = basic_config
