"""Results of a task with several calls, some of which may not have finished."""

import signal

import pytest

from farcall.backends.batch.failure_reasons import failure_reason
from farcall.model import errors
from farcall.model.failure_reasons import About
from farcall.model.jobs import JobDetail, JobStatus
from farcall.payload import results
from farcall_runtime import task
from farcall_runtime.contract import ExitCode, OutcomeStatus

OUTPUT = b"first\nsecond\nthird\n"
ERRORS = b"1\n2\n3\n"
JOB = About("job-1", "simulate", attempts=2, stdout=OUTPUT, stderr=ERRORS)
ENDS = [[6, 2], [13, 4]]
CANCELLED = failure_reason(
    JobDetail("job-1", "simulate", status=JobStatus.FAILED, is_terminated=True)
)


@pytest.fixture
def ran(container):
    """Return a function that runs calls and returns the outcome for a given end."""

    def run(function, *arguments, status=OutcomeStatus.DONE, begun=None, child_status=0):
        records, value = container.run(function, [((each,), {}) for each in arguments])
        for record, ended in zip(records, ENDS, strict=False):
            record["ended"] = ended
        if status is OutcomeStatus.DONE:
            records[-1].pop("ended", None)
        meta = {
            "status": status,
            "child_status": child_status,
            "usage": {},
            "results": records,
            "begun": len(records) + 1 if begun is None else begun,
            "stdout": {},
            "stderr": {},
        }
        return meta, value

    return run


def all_of(meta, value, calls, why=None):
    found = results.read(meta, value, JOB, why)
    return results.complete(found, meta, JOB, calls, why)


def test_each_call_has_output_and_times(ran):
    found = all_of(*ran(lambda x: 2 * x, 1, 2, 3), 3)

    assert [result.unwrap() for result in found] == [2, 4, 6]
    assert [result.stdout for result in found] == [b"first\n", b"second\n", b"third\n"]
    assert [result.stderr for result in found] == [b"1\n", b"2\n", b"3\n"]
    assert all(result.wall_s >= 0 and result.cpu_s >= 0 for result in found)


def test_error_has_output_of_its_call(ran):
    def work(x):
        if x == 2:
            raise SystemExit(x)
        return (each for each in ())

    first, second, third = (result.error for result in all_of(*ran(work, 1, 2, 3), 3))

    assert type(first) is type(third) is errors.ResultNotPicklableError
    assert type(second) is errors.TaskError
    assert [e.stdout for e in (first, second, third)] == ["first\n", "second\n", "third\n"]
    assert "End of stderr:\n  3" in str(third)


def test_gap_is_split_between_calls(ran):
    meta, value = ran(lambda x: x, 1, 2, 3)
    meta["stdout"]["gaps"] = [(3, 5)]  # the end of the first line, and the start of the second
    note = b"\n[farcall: 5 bytes could not be stored]\n"
    job = JOB.of(OUTPUT[:3] + note + OUTPUT[8:], ERRORS)

    found = results.read(meta, value, job)
    assert [result.stdout for result in found] == [b"fir" + note, b"cond\n", b"third\n"]


def test_calls_before_crash_have_results(ran):
    def work(x):
        if x == 2:
            raise ValueError(x)
        return x

    meta, value = ran(work, 1, 2, status=OutcomeStatus.KILLED, child_status=-signal.SIGSEGV)
    found = all_of(meta, value, 5)

    assert found[0].unwrap() == 1
    assert repr(found[1].error) == "ValueError(2)"
    assert [type(result.error) for result in found[2:]] == [errors.ChildKilledError] * 3
    assert str(found[2].error).startswith("the task's process was killed by SIGSEGV: job job-1")
    assert (found[2].stdout, found[2].error.stderr) == (b"third\n", "3\n")
    for number, result in enumerate(found[3:], start=4):
        assert str(result.error).startswith(
            f"call {number} of 5 in the task did not start: the task's process was killed by "
            "SIGSEGV in call 3: job job-1"
        )
        assert (result.stdout, result.stderr, result.error.stdout) == (b"", b"", "")
        assert (result.wall_s, result.cpu_s) == (None, None)
        assert result.error.exit_code == 139


def test_first_call_may_end_process(ran):
    meta, _ = ran(lambda x: x, 1, status=OutcomeStatus.EXITED, child_status=3)
    meta["results"], meta["begun"] = [], 1

    first, second = (result.error for result in all_of(meta, b"", 2))
    assert first.stdout == OUTPUT.decode()
    assert "exited with code 3" in str(first)
    assert "call 2 of 2 in the task did not start: " in str(second)


@pytest.mark.parametrize("caught", [False, True])
def test_interrupted_call_is_out_of_time(ran, caught):
    def work(x):
        if x == 2 and not caught:
            raise task.TaskTerminated("time is up")
        return x

    meta, value = ran(work, 1, 2, status=OutcomeStatus.TIMED_OUT, begun=2)
    found = all_of(meta, value, 3)

    assert found[0].unwrap() == 1
    if caught:
        assert found[1].unwrap() == 2
    else:
        assert type(found[1].error) is errors.JobTimeoutError
        assert found[1].error.stdout == "second\n"
    assert type(found[2].error) is errors.JobTimeoutError
    text = "call 3 of 3 in the task did not start: the task was interrupted"
    assert str(found[2].error).startswith(text)
    assert ("time_limit in call 2: job" in str(found[2].error)) is not caught


def test_stopped_attempt_ends_remaining_calls(ran):
    def work(x):
        if x == 1:
            raise ValueError(x)
        return x

    meta, value = ran(work, 0, 1, status=OutcomeStatus.TERMINATED)
    found = all_of(meta, value, 4, CANCELLED)

    assert found[0].unwrap() == 0
    assert repr(found[1].error) == "ValueError(1)"
    assert [type(result.error) for result in found[2:]] == [errors.JobCancelledError] * 2
    assert "did not start" in str(found[3].error)


def test_unreadable_function_fails_all_calls(ran):
    def refuse():
        raise ImportError("not here")

    class Unreadable:
        def __reduce__(self):
            return refuse, ()

    meta, value = ran(lambda x: x, Unreadable(), 2)
    (record,) = meta["results"]
    assert record["status"] == "unreadable"
    found = [result.error for result in all_of(meta, value, 3)]
    assert [type(error) for error in found] == [errors.TaskError] * 3
    assert all("cannot read the function or its arguments" in str(error) for error in found)


def test_refusal_fails_all_calls():
    meta = {"status": OutcomeStatus.REFUSED, "code": ExitCode.INTEGRITY, "detail": "why"}
    found = all_of(meta, b"", 3)
    assert [type(result.error) for result in found] == [errors.IntegrityError] * 3
