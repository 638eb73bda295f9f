"""Run a program's calls, locally or as one job, and write the result of each call.

Each program's script ends with a call of `run`. This module is copied to a folder named
site-packages, so that it does not belong to the program's project.
"""

import asyncio
import functools
import json
import linecache
import os
import re
import sys
import traceback
from pathlib import Path

_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_LIBRARIES = {
    "numpy",
    "pandas",
    "sklearn",
    "builtins",
    "datetime",
    "re",
    "pathlib",
    "decimal",
    "functools",
    "types",
}


def run(calls, check=None):
    """Run the calls, each with a function and arguments, and write a line for each."""
    with Path(os.environ["SAME_OUT"]).open("w") as file:
        for get in _PLACES[os.environ["SAME_WHERE"]](calls):
            file.write(json.dumps(_outcome(get, check)) + "\n")
    sys.stdout.flush()


def _local(calls):
    for function, *args in calls:
        yield lambda function=function, args=args: _call(function, args)


def _call(function, args):
    value = function(*args)
    return asyncio.run(value) if asyncio.iscoroutine(value) else value


def _remote(calls):
    from farcall import BatchPoolExecutor

    with BatchPoolExecutor(vcpu=1, memory=1, retry_attempts=1) as pool:
        yield from [_submit(pool, function, args) for function, *args in calls]


def _spawn(calls):
    import concurrent.futures
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        yield from [_submit(pool, _call, (function, args)) for function, *args in calls]


def _loky(calls):
    from joblib.externals import loky

    pool = loky.get_reusable_executor(1)
    yield from [_submit(pool, _call, (function, args)) for function, *args in calls]
    pool.shutdown()


def _electrons(calls):
    """Run all calls as electrons of one dispatch, some of which may fail."""
    import covalent as ct

    numbers = []

    def flow():
        for function, *args in calls:
            numbers.append(ct.electron(function, executor="awsbatch")(*args).node_id)

    flow.__module__ = "__main__"
    dispatch_id = ct.dispatch(ct.lattice(flow))()
    result = ct.get_result(dispatch_id, wait=True)
    for number in numbers:
        yield functools.partial(_value_of, result, number)


def _value_of(result, number):
    node = result.get_node_result(number)
    if str(node["status"]) != "COMPLETED":
        raise ElectronError(node["error"])
    return node["output"].get_deserialized()


class ElectronError(Exception):
    """Error of an electron, which Covalent keeps as a text."""


_PLACES = {
    "here": _local,
    "job": _remote,
    "electron": _electrons,
    "spawn": _spawn,
    "loky": _loky,
}


def _submit(pool, function, args):
    try:
        return pool.submit(function, *args).result
    except BaseException as error:
        refused = error

        def fail():
            raise refused

        return fail


def _outcome(get, check):
    try:
        value = get()
    except BaseException as error:
        return _failure(error, check)
    told = {"repr": _text(value), "shape": _shape(value)}
    return {**told, "check": _tried(lambda: _text(check(value)))} if check else told


def _failure(error, check):
    told = {
        "error": _name(type(error)),
        "bases": [_name(kind) for kind in type(error).__mro__],
        "is_copy": any(map(_is_copy, type(error).__mro__)),
        "text": _tried(lambda: _ADDRESS.sub("0x", str(error))),
        "args": _text(error.args),
        "traceback": _tried(
            lambda: "".join(traceback.format_exception(type(error), error, error.__traceback__))
        ),
    }
    stack = error.__traceback__
    while stack is not None:
        file, line = stack.tb_frame.f_code.co_filename, stack.tb_lineno
        if file.startswith(os.environ["SAME_ROOT"]):
            told["place"] = [f'{file}", line {line}', linecache.getline(file, line).strip()]
        stack = stack.tb_next
    return {**told, "check": _tried(lambda: _text(check(error)))} if check else told


def _tried(call):
    try:
        return call()
    except BaseException as error:
        return f"<{type(error).__name__}: {error}>"


def _text(value):
    return _tried(lambda: _ADDRESS.sub("0x", repr(value))[:1500])


def _name(kind):
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_copy(kind):
    """Return whether this process has a different class with the same name."""
    found = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        if part == "<locals>":
            return False
        found = getattr(found, part, None)
    return isinstance(found, type) and found is not kind


def _shape(value, depth=0):
    """Return the classes of a value and of the values in it."""
    kind = type(value)
    told = _name(kind) + ("!copy" if _is_copy(kind) else "")
    if isinstance(value, type):
        told += "=" + _name(value) + ("!copy" if _is_copy(value) else "")
    if isinstance(value, dict):
        inside = [*value, *value.values()]
    elif isinstance(value, (list, tuple)):
        inside = value
    elif isinstance(value, (set, frozenset)):
        inside = sorted(value, key=_text)
    elif (
        isinstance(value, type)
        or callable(value)
        or kind.__module__.partition(".")[0] in _LIBRARIES
    ):
        inside = []
    else:
        inside = [each for _, each in sorted(getattr(value, "__dict__", {}).items())]
    deeper = [_shape(each, depth + 1) for each in [*inside][:20]] if depth <= 3 else []
    return told + (f"[{', '.join(deeper)}]" if deeper else "")
