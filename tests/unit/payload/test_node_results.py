"""Results of a call on several nodes."""

import pytest

from farcall.model import errors
from farcall.payload import results
from farcall.payload.results import NodeEnd, Result, join_nodes
from farcall_runtime.contract import CallStatus, OutcomeStatus
from tests.support.notes import notes

USAGE = {"wall_s": 1.0, "cpu_s": 0.5, "peak_memory_bytes": 1, "memory_limit_bytes": None}


def meta(node, ended_at=1.0, status=OutcomeStatus.DONE, **more):
    return {"status": status, "node": node, "ended_at": ended_at, "results": [], **more}


def returned(node, *values):
    return NodeEnd(node, [Result(value, stdout=b"out %d" % node) for value in values], meta(node))


def raised(node, error, ended_at=1.0):
    chain = [{"type": type(error).__name__, "message": str(error)}]
    records = [{"status": CallStatus.RAISED, "chain": chain}]
    return NodeEnd(node, [Result(error=error)], meta(node, ended_at, results=records))


def stopped(node, error, ended_at=9.0, **more):
    return NodeEnd(node, [Result(error=error)], meta(node, ended_at, **more))


def together(main, *others, nodes=None, incomplete=None, main_decides=False):
    number = nodes or 1 + len(others)
    return join_nodes(main, others, number, incomplete, main_decides=main_decides)


def test_result_lists_results_of_nodes():
    (found,) = together(returned(0, "a"), returned(1, "b"), returned(2, "c"))
    assert found.unwrap() == ["a", "b", "c"]
    assert found.stdout == b"out 0"


def test_each_call_of_chunk_lists_nodes():
    found = together(returned(0, 1, 2), returned(1, 3, 4))
    assert [each.value for each in found] == [[1, 3], [2, 4]]


def test_first_failure_is_raised_with_notes():
    first, second, third = ValueError("first"), KeyError("second"), OSError("third")
    (found,) = together(raised(0, second, 2.0), raised(1, third, 3.0), raised(2, first, 1.0))
    assert found.error is first
    assert notes(first) == [
        "node 0 failed: the function raised KeyError: 'second'",
        "node 1 failed: the function raised OSError: third",
    ]


def test_stopped_node_is_not_the_cause():
    cause = ValueError("cause")
    peer_error = errors.TaskError("node 1 failed: ...")
    status = OutcomeStatus.PEER_FAILED
    (found,) = together(stopped(0, peer_error, status=status, peer={}), raised(1, cause, 20.0))
    assert found.error is cause
    assert notes(cause) == []


def test_unreadable_failure_uses_main_node_report():
    peer_error = errors.TaskError("node 1 failed: ...")
    status = OutcomeStatus.PEER_FAILED
    (found,) = together(stopped(0, peer_error, status=status, peer={}), nodes=3)
    assert found.error is peer_error


def test_forged_result_is_raised():
    forged = errors.IntegrityError("not what the job wrote")
    (found,) = together(raised(0, ValueError("x")), NodeEnd(1, [Result(error=forged)]))
    assert found.error is forged
    assert notes(forged) == ["node 0 failed: the function raised ValueError: x"]


def test_job_end_takes_precedence():
    cancelled = errors.JobCancelledError("the job was cancelled")
    failed = raised(1, ValueError("before that"))
    (found,) = together(NodeEnd(0, [Result(error=cancelled)]), failed, main_decides=True)
    assert found.error is cancelled
    assert notes(cancelled) == ["node 1 failed: the function raised ValueError: before that"]


def test_lost_node_leaves_no_result():
    late = errors.JobTimeoutError("until time_limit ...")
    (found,) = together(returned(0, 1), returned(1, 2), nodes=3, incomplete=late)
    assert found.error is late
    assert found.value is None


def test_terminated_node_leaves_no_result():
    lost = errors.HostLostError("node 1 failed: the container was stopped")
    ended = stopped(1, errors.HostLostError("x"), status=OutcomeStatus.TERMINATED)
    (found,) = together(returned(0, 1), ended, incomplete=lost)
    assert found.error is lost


def test_calls_complete_on_all_nodes_succeed():
    fault = ValueError("in the second call")
    failed = NodeEnd(1, [Result(3), Result(error=fault)], meta(1))
    found = together(returned(0, 1, 2), failed)
    assert [found[0].value, found[1].error] == [[1, 3], fault]


def test_number_of_notes_is_limited():
    first = ValueError("first")
    more = [raised(n, ValueError(str(n)), 2.0) for n in range(1, 31)]
    together(raised(0, first), *more)
    assert len(notes(first)) == 21
    assert notes(first)[-1] == "10 more nodes failed"


class SealedError(ValueError):
    """Rejects attributes, and therefore notes."""

    def __getattribute__(self, name):
        raise RuntimeError(name)


def test_error_without_notes_is_raised():
    error = SealedError("x")
    with pytest.raises(RuntimeError):
        error.__notes__  # noqa: B018
    (found,) = together(raised(0, error), raised(1, ValueError("y"), 2.0))
    assert found.error is error


@pytest.mark.parametrize(
    ("description", "kind", "sentence"),
    [
        (meta(2, status="refused", code=63, detail="forged"), errors.IntegrityError, "forged"),
        (
            meta(2, status="terminated", child_status=None, usage=USAGE),
            errors.HostLostError,
            "was stopped",
        ),
        (
            meta(2, status="out_of_memory", child_status=-9, usage=USAGE),
            errors.OutOfMemoryError,
            "ran out of memory",
        ),
        (
            meta(2, results=[{"status": "raised", "chain": [{"type": "E", "message": "m"}]}]),
            errors.TaskError,
            "the function raised E: m",
        ),
    ],
)
def test_failed_node_is_named(description, kind, sentence):
    why = results.of_process({"status": "peer_failed", "peer": description, "node": 0})
    assert why.kind is kind
    assert why.sentence.startswith("node 2 failed: ")
    assert sentence in why.sentence


def test_missing_nodes_are_named():
    description = meta(
        0, status=OutcomeStatus.TIMED_OUT, missing=[1, 3], child_status=0, usage=USAGE
    )
    why = results.of_process(description)
    assert why.kind is errors.JobTimeoutError
    assert (
        why.sentence == "the main node waited until time_limit for nodes without a result (1, 3)"
    )
