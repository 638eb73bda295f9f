"""A task group in the container: the order of its nodes and hooks, and its failures."""

from __future__ import annotations

import base64
import contextlib
import pickle
import sys
import threading

import cloudpickle
import pytest

from farcall_runtime import archive, task
from farcall_runtime.contract import TERMINATED_TYPE, CallStatus
from farcall_runtime.electron import Code, Node, run_group

pytestmark = pytest.mark.usefixtures("module_travels")


@pytest.fixture(autouse=True)
def streams(monkeypatch):
    """Sizes of each node's output, as the supervisor would report them."""
    sizes = iter(([10, 1], [20, 2], [30, 3]))
    monkeypatch.setattr(task, "streams_so_far", lambda: next(sizes))


def encode(value):
    return base64.b64encode(cloudpickle.dumps(value))


def call(function, *args, keyword="", **kwargs):
    return "call", (encode(function), encode(args), encode(kwargs), keyword)


def code(function, before=(), after=()):
    return Code(function.__name__, encode(function), before, after)


def run(function, *args, before=(), after=(), **kwargs):
    """Run one node; return its record and its result."""
    values = dict(enumerate([*args, *kwargs.values()]))
    names = {name: len(args) + index for index, name in enumerate(kwargs)}
    node = Node(9, range(len(args)), names)
    inputs = {number: encode(value) for number, value in values.items()}
    made = run_group([code(function, before, after)], [node], inputs)
    (record,) = made.details["nodes"]
    assert made.status == record["status"]
    return record, *(read(part) for part in made.parts)


def read(part):
    return pickle.loads(archive.decode(archive.parse(b"".join(part)).data))


def fail():
    raise ValueError("no good")


# --- one node ------------------------------------------------------------------------------------


def test_node_result_is_an_archive():
    record, value = run(lambda left, *, right: left + right, 1, right=2)
    assert 3 == value
    assert (CallStatus.RETURNED, 9, [0, 0]) == (
        record["status"],
        record["node"],
        record["began"],
    )


def test_async_function_is_awaited():
    async def work(value):
        return value

    assert 1 == run(work, 1)[1]


def test_hooks_run_around_the_function(capfd):
    def work():
        print("function", flush=True)

    def say(text):
        print(text, flush=True)

    hooks = [("bash", encode([["echo shell >&1"]])), call(say, "first"), call(say, text="second")]
    assert CallStatus.RETURNED == run(work, before=hooks, after=[call(say, "after")])[0]["status"]
    out, err = capfd.readouterr()
    assert ("first\nsecond\nfunction\nafter\n", "shell\n") == (out, err)


def test_hook_results_are_injected_like_covalent():
    hooks = [
        call(lambda: 1, keyword="single"),
        call(lambda: 2, keyword="several"),
        call(lambda: "nowhere"),
        call(lambda: 3, keyword="several"),
        call(lambda: 4, keyword="files"),
        call(lambda: 5, keyword="given"),
    ]
    value = run(lambda **found: found, given=0, before=hooks)[1]
    assert {"single": 1, "several": [2, 3], "files": [4], "given": 5} == value


def test_hooks_run_before_function_is_unpickled():
    def bring():
        import types

        sys.modules["brought_along"] = types.ModuleType("brought_along")

    class Needy:
        __name__ = "needy"

        def __reduce__(self):
            return __import__, ("brought_along",)

    record, *_ = run(Needy(), before=[call(bring)])
    del sys.modules["brought_along"]
    # the function was unpickled, but a module is not callable
    assert "TypeError" == record["chain"][0]["type"]


def test_failed_shell_command_ends_hooks(capfd):
    hooks = [("bash", encode([["echo one", "exit 7", "echo three"]]))]
    (record,) = run(fail, before=hooks)
    assert CallStatus.RAISED == record["status"]
    assert "'exit 7' returned non-zero exit status 7" in record["traceback"]
    assert "one\n" == capfd.readouterr().err


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ValueError("no good")])
def test_function_error_has_its_traceback(error):
    def work():
        raise error

    (record,) = run(work)
    assert (CallStatus.RAISED, type(error).__name__) == (
        record["status"],
        record["chain"][0]["type"],
    )
    assert "in work" in record["traceback"]
    assert "farcall_runtime" not in record["traceback"]


def test_unpicklable_result_is_named():
    (record,) = run(threading.Lock)
    assert (CallStatus.UNPICKLABLE, "lock") == (record["status"], record["value_type"])
    assert "cannot pickle" in record["chain"][0]["message"]


@pytest.mark.parametrize("data", [b"", b"not base64!", base64.b64encode(b"no pickle")])
def test_unreadable_function_is_reported(data):
    made = run_group([Code("work", data, (), ())], [Node(0, (), {})], {})
    assert CallStatus.UNREADABLE == made.status
    assert made.details["chain"]


@pytest.mark.parametrize("name", ["covalent", "covalent._workflow.electron"])
def test_missing_covalent_names_build_argument(name):
    def work():
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    (record,) = run(work)
    assert record["chain"][0]["type"].endswith("CovalentMissingError")
    assert "PIP_PACKAGES" in record["chain"][0]["message"]
    assert name in record["traceback"]


# --- several nodes ----------------------------------------------------------------------------


def test_nodes_pass_results_on():
    nodes = [Node(3, [0], {}), Node(1, [3, 0], {}), Node(2, [1], {"more": 3})]
    codes = [
        code(lambda value: value + 1),
        code(lambda *values: [*values]),
        code(lambda values, *, more: (values, more)),
    ]
    made = run_group(codes, nodes, {0: encode(1)})
    assert CallStatus.RETURNED == made.status
    assert [2, [2, 1], ([2, 1], 2)] == [read(part) for part in made.parts]
    assert [(3, [0, 0]), (1, [10, 1]), (2, [20, 2])] == [
        (record["node"], record["began"]) for record in made.details["nodes"]
    ]


def test_nodes_do_not_share_mutable_arguments():
    def spoil(values):
        values.append("spoiled")
        return values

    nodes = [Node(1, [0], {}), Node(2, [0], {}), Node(3, [1], {}), Node(4, [1], {})]
    codes = [code(spoil)] * 4
    made = run_group(codes, nodes, {0: encode([])})
    assert [1, 1, 2, 2] == [len(read(part)) for part in made.parts]


def test_only_dependents_of_failure_are_skipped():
    nodes = [Node(1, [], {}), Node(2, [1], {}), Node(3, [], {}), Node(4, [], {"value": 2})]
    codes = [code(fail), code(abs), code(dict), code(abs)]
    made = run_group(codes, nodes, {})
    assert CallStatus.RAISED == made.status
    failed, left_out, done, after = made.details["nodes"]
    assert made.details["chain"] == failed["chain"]
    assert CallStatus.RETURNED == done["status"]
    assert [{}] == [read(part) for part in made.parts]
    for record, number in (left_out, 1), (after, 2):
        assert CallStatus.RAISED == record["status"]
        assert record["chain"][0]["type"].endswith("NotRunError")
        message = f"abs was not run: node {number}, whose result it uses, failed"
        assert message == record["chain"][0]["message"]


def raise_terminated():
    raise task.TaskTerminated("AWS Batch is stopping this job")


def raise_something_else():
    try:
        raise_terminated()
    except task.TaskTerminated as error:
        raise RuntimeError("half done") from error


def clean_up():
    with contextlib.suppress(task.TaskTerminated):
        raise_terminated()


@pytest.mark.parametrize("stop", [raise_terminated, raise_something_else, clean_up])
def test_no_node_starts_after_stop(monkeypatch, stop):
    monkeypatch.setattr(task, "_stopping", False)

    def work():
        task._stopping = True  # the SIGTERM handler does this
        return stop()

    nodes = [Node(1, (), {}), Node(2, (), {})]
    made = run_group([code(work), code(dict)], nodes, {})
    assert CallStatus.RAISED == made.status
    assert (1 if stop is clean_up else 0) == len(made.parts)
    not_run = made.details["nodes"][1]["chain"]
    assert "dict was not run: the job was being stopped" == not_run[0]["message"]
    assert TERMINATED_TYPE == not_run[1]["type"]
    assert TERMINATED_TYPE in [link["type"] for link in made.details["chain"]]


def test_unreadable_node_decides_group_status():
    codes = [code(fail), Code("work", b"", (), ()), code(dict)]
    made = run_group(codes, [Node(n, (), {}) for n in range(3)], {})
    assert CallStatus.UNREADABLE == made.status
    assert made.details["chain"] == made.details["nodes"][1]["chain"]


def test_covalent_is_not_imported():
    import subprocess

    program = """if True:
        import base64, sys
        import cloudpickle
        its_own = set(sys.modules)
        from farcall_runtime.electron import Code, Node, run_group
        function = base64.b64encode(cloudpickle.dumps(len))
        made = run_group([Code("len", function, (), ())], [Node(0, [1], {})],
                         {1: base64.b64encode(cloudpickle.dumps("abc"))})
        found = {name.partition(".")[0] for name in set(sys.modules) - its_own}
        print(sorted(found & {"covalent", "farcall", "pydantic", "asyncio", "subprocess"}))
    """
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "[]\n" == done.stdout
