"""``python -m farcall_runtime.replay FOLDER``: re-runs a call for debugging.

The folder contains an `Order` in `ORDER`, and a folder that replaces the bucket, with the parts of
the bundle that the task needs, its shared values, and the manifest of its packages. They are
verified as in a container. Nothing is stored.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import CoroutineType, TracebackType
from typing import Any, BinaryIO, NamedTuple

from farcall_runtime import (
    bundle,
    envelope,
    environment,
    failures,
    pickles,
    processes,
    sources,
    task,
)
from farcall_runtime.bundle import Assignment, Fetched, RefusedError
from farcall_runtime.contract import ENV_BUCKET_URL, Location
from farcall_runtime.storage import Storage, StorageError

ORDER = "order.json"
_MOST_DIFFERENCES = 20


class Order(NamedTuple):
    """Call to run, with its environment.

    Attributes:
        bundle: URL of the bundle, as in a container.
        digest: SHA-256 of the root of its index, hexadecimal.
        number: Index of the task; None if the bundle has only one.
        environment: The job's variables on Batch.
        call: Index of the call in the task, from 0.
        debug: Whether the debugger stops where the function fails.
    """

    bundle: str
    digest: str
    number: int | None
    environment: dict[str, str]
    call: int
    debug: bool


def main(folder: Path) -> int:
    """Run a call; print its result and return 0, or return 1 if it failed."""
    order = Order(**json.loads((folder / ORDER).read_text()))
    os.environ.update(order.environment)
    processes.install()
    sources.folder = sources.new_folder(os.environ)
    atexit.register(sources.remove, sources.folder)
    try:
        function, calls = _read(order, folder)
    except (RefusedError, StorageError, envelope.EnvelopeError) as error:
        return _fail(str(error))
    except BaseException as error:  # unpickling runs the user's code
        text = _traceback(error, error.__traceback__)
        return _fail(f"the function and its arguments cannot be unpickled here:\n{text}")
    if order.call >= len(calls):
        return _fail(f"--call is {order.call}; use a call from 0 to {len(calls) - 1}")
    processes.remember(function)
    return _call(function, *calls[order.call], debug=order.debug)


def _read(order: Order, folder: Path) -> tuple[Any, Sequence[Any]]:
    where = Location.parse(order.bundle)
    job = Assignment(where, order.digest, b"", order.number, attempt=1, job_id="")
    storage = Storage(where.bucket, {ENV_BUCKET_URL: f"{folder.as_uri()}/{where.bucket}"})
    with tempfile.TemporaryFile() as payload:
        fetched = bundle.fetch(job, storage, payload)
        if fetched.packages is not None:
            _compare(environment.fetch_manifest(where, storage, fetched.packages))
        import cloudpickle  # the task's own, if it has one

        theirs = str(fetched.meta.get("cloudpickle", ""))
        task.check_cloudpickle(theirs, cloudpickle.__version__)
        return _unpickled(fetched, payload)


def _compare(packages: environment.Manifest) -> None:
    """Report differences between the task's packages and the local ones."""
    differences = packages.differences()
    if differences:
        more = len(differences) - _MOST_DIFFERENCES
        listed = ", ".join(differences[:_MOST_DIFFERENCES])
        _print(
            f"packages of the job that this Python lacks: {listed}"
            + (f", and {more} more" if more > 0 else "")
        )


def _unpickled(fetched: Fetched, payload: BinaryIO) -> tuple[Any, Sequence[Any]]:
    memory = task.Memory(payload.fileno())
    frames = [
        memory.first[at : at + length] for at, length in (fetched.function, fetched.arguments)
    ]
    memory.record_shared(frames, fetched.shared_at)
    function, calls = (
        pickles.load_pieces(envelope.unpack_shared(frame, memory.find)) for frame in frames
    )
    return function, calls


def _call(function: Any, args: Any, kwargs: Any, *, debug: bool) -> int:
    began = time.perf_counter()
    try:
        value = function(*args, **kwargs)
        if isinstance(value, CoroutineType):
            value = task.run_coroutine(value)
    except BaseException as error:  # sys.exit is the function's failure, too
        stack = error.__traceback__.tb_next if error.__traceback__ else None
        text = _traceback(error, stack)
        code = _fail(f"the call failed after {time.perf_counter() - began:.1f} s:\n{text}")
        if debug and stack is not None:
            _debug(stack)
        return code
    _print(f"the call returned after {time.perf_counter() - began:.1f} s")
    print(repr(value))  # noqa: T201
    return 0


def _traceback(error: BaseException, stack: TracebackType | None) -> str:
    """Return an error's traceback, with the paths that the debugger shows, too."""
    return sources.text_here(failures.with_traceback(error, stack)).rstrip()


def _debug(stack: TracebackType) -> None:
    """Start the debugger in the innermost frame of the user's own code."""
    import pdb

    debugger = pdb.Pdb()
    up = levels_up(stack)
    if up:
        debugger.cmdqueue.append(f"up {up}")
    debugger.reset()
    debugger.interaction(None, stack)  # as pdb.post_mortem does


def levels_up(stack: TracebackType) -> int:
    """Return the number of innermost frames that are in installed packages."""
    frames = []
    each: TracebackType | None = stack
    while each is not None:
        frames.append(each.tb_frame.f_code.co_filename)
        each = each.tb_next
    homes = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
    for level, file in enumerate(reversed(frames)):
        if not file.startswith((*homes, "<frozen")):
            return level
    return 0


def _fail(text: str) -> int:
    _print(text)
    return 1


def _print(text: str) -> None:
    sys.stdout.flush()
    print(f"farcall: {text}", file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
