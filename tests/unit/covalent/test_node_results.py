"""Results of a task group's nodes for Covalent, from the group's outcome."""

import inspect

import pytest

from farcall.covalent import node_results
from farcall.model import errors
from farcall.model.failure_reasons import About
from farcall.payload.results import Result
from farcall_runtime import envelope
from farcall_runtime.contract import TERMINATED_TYPE, CallStatus, OutcomeStatus

OUTPUT = b"first\nsecond\nthird\n"
ERRORS = b"1\n2\n3\n"
JOB = About("job-1", "make", attempts=1, stdout=OUTPUT, stderr=ERRORS)
BEGAN = [[0, 0], [6, 2], [13, 4]]

RETURNED = {"status": CallStatus.RETURNED}
TOLD_TO_STOP = {"type": TERMINATED_TYPE, "message": "AWS Batch is stopping this job"}


def failed(kind, message="no good", *behind, status=CallStatus.RAISED, **more):
    chain = [{"type": kind, "message": message}, *behind]
    return {"status": status, "chain": chain, "traceback": f"{kind}: {message}\n", **more}


STOPPED = failed(TERMINATED_TYPE)
NOT_RUN = failed(
    "farcall_runtime.electron.NotRunError",
    "last was not run: the job was being stopped",
    TOLD_TO_STOP,
)


def read(*records, status=OutcomeStatus.DONE, job=JOB, **meta):
    """Return the ends of the nodes of a group with these records."""
    archives = [[b"value"] for record in records if record["status"] == CallStatus.RETURNED]
    group = [
        {"node": number, "began": began, **record}
        for number, (record, began) in enumerate(zip(records, BEGAN, strict=False))
    ]
    meta = {
        "status": status,
        "child_status": 0,
        "usage": {},
        "stdout": {},
        "stderr": {},
        "results": [{"status": records[-1]["status"], "nodes": group}],
        **meta,
    }
    (result,) = node_results.read(meta, b"".join(envelope.pack(archives)), job)
    return node_results.ends(result, range(len(records)), job.stdout, job.stderr)


def test_each_node_has_result_and_output():
    made, raised, returned = read(RETURNED, failed("ValueError"), RETURNED)
    assert [b"value", None, b"value"] == [
        each.value and bytes(each.value) for each in (made, raised, returned)
    ]
    assert ["", ""] == [made.error, returned.error]
    assert raised.error.startswith("ValueError: no good\n")
    assert [b"first\n", b"second\n", b"third\n"] == [
        each.stdout for each in (made, raised, returned)
    ]
    assert [b"1\n", b"2\n", b"3\n"] == [each.stderr for each in (made, raised, returned)]


def test_gap_is_split_between_nodes():
    note = b"\n[farcall: 5 bytes could not be stored]\n"
    job = JOB.of(OUTPUT[:3] + note + OUTPUT[8:], ERRORS)
    gap = {"gaps": [(3, 5)]}  # the end of the first line, and the start of the second
    found = read(RETURNED, RETURNED, RETURNED, job=job, stdout=gap)
    assert [b"fir" + note, b"cond\n", b"third\n"] == [each.stdout for each in found]


@pytest.mark.parametrize(
    "stopped",
    [
        STOPPED,
        failed("RuntimeError", "half done", TOLD_TO_STOP),
        failed("OSError", "half", TOLD_TO_STOP, status=CallStatus.UNPICKLABLE, value_type="X"),
    ],
)
def test_interrupted_node_is_out_of_time(stopped):
    raised, cut_off, last = read(
        failed("ValueError"), stopped, NOT_RUN, status=OutcomeStatus.TIMED_OUT
    )
    assert raised.error.startswith("ValueError: no good\n")
    sentence = "the task was interrupted so that it could clean up before time_limit"
    start = f"JobTimeoutError: {sentence}: job job-1 (make). To do: raise"
    assert cut_off.error.startswith(start)
    assert "End of stderr:\n  2" in cut_off.error
    assert last.error.startswith(
        f"JobTimeoutError: last was not run: the job was being stopped ({sentence}): "
        "job job-1 (make). To do: raise time_limit, or"
    )


def test_self_stopped_function_keeps_own_error():
    stopped, last = read(STOPPED, NOT_RUN)
    assert "TaskTerminated: no good" in stopped.error
    assert "last was not run: the job was being stopped" == last.error


VERDICTS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.FarcallError) and not kind.__name__.startswith("_")
]


@pytest.mark.parametrize("kind", VERDICTS)
def test_every_error_reaches_each_node(kind):
    text = JOB.message("this is what happened", "do that")
    for end in node_results.ends(Result(error=kind(text)), [3, 5], OUTPUT, ERRORS):
        assert f"{kind.__name__}: {text}" == end.error
        assert (kind is errors.JobCancelledError) is end.cancelled
        assert (None, OUTPUT, ERRORS) == (end.value, end.stdout, end.stderr)


@pytest.mark.parametrize(
    ("status", "meta", "expected"),
    [
        ("timed_out", {}, "JobTimeoutError: the task was interrupted"),
        ("killed", {"child_status": -11}, "ChildKilledError: the task's process was killed by S"),
    ],
)
def test_process_failure_reaches_each_node(status, meta, expected):
    meta = {"child_status": -9, "usage": {}, "results": [], "begun": 1, "status": status, **meta}
    (result,) = node_results.read(meta, b"", JOB)
    for end in node_results.ends(result, [3, 5], OUTPUT, ERRORS):
        assert end.error.startswith(expected), end.error
        assert ". To do: " in end.error
