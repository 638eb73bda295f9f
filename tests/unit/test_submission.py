from __future__ import annotations

import hashlib
import platform

import cloudpickle
import pytest

from farcall import Settings
from farcall.errors import FarcallError
from farcall.payload import pack_calls, pack_function
from farcall.states import JobDetail, JobStatus
from farcall.submission import Submission, make_bundle
from farcall_runtime import contract, envelope
from farcall_runtime.bundle import Assignment
from farcall_runtime.contract import Location
from unit.fakes import joined

ROOT = "farcall/v1/run-1"


def double(x):
    return 2 * x


def triple(x):
    return 3 * x


def tasks(*functions):
    arguments = pack_calls([[((number,), {})] for number in range(len(functions))])
    return [(pack_function(f), a) for f, a in zip(functions, arguments, strict=True)]


def bundle(*functions, endpoint="", **options):
    return make_bundle(
        Settings(**options), ROOT, tasks(*functions), endpoint=endpoint, region="eu-west-1"
    )


def index_of(made):
    data = b"".join(made.pieces)
    size = envelope.index_size(data[: envelope.INDEX_HEAD_BYTES])
    return envelope.Index(data[:size], made.environment[contract.ENV_DIGEST]), data


def part(data, where):
    found = data[where.offset : where.offset + where.length]
    where.check(found)
    return found


def test_the_runtime_finds_each_task_s_function_and_arguments():
    index, data = index_of(bundle(double, triple, double))
    assert (index.functions, index.entries) == (2, 3)
    for number, (function, arguments) in enumerate(tasks(double, triple, double)):
        entry = index.entry(number)
        assert part(data, entry) == joined(arguments)
        assert part(data, index.function(entry.function)) == joined(function)
    last = index.entry(2)
    assert last.offset + last.length == len(data)


def test_equal_functions_are_stored_once():
    one, many = (len(b"".join(bundle(*[double] * n).pieces)) for n in (1, 100))
    function, arguments = tasks(double)[0]
    row = 52
    assert many - one == 99 * (row + arguments.size)
    assert function.size > row


def test_the_bundle_says_what_the_container_must_know():
    index, _ = index_of(bundle(double, retry_attempts=4, retry_on="infrastructure", time_limit=99))
    assert index.meta == {
        "python": platform.python_version(),
        "cloudpickle": cloudpickle.__version__,
        "attempts": 4,
        "retry_on": "infrastructure",
        "time_limit_s": 99,
    }


def test_the_job_s_environment_is_read_by_the_runtime():
    made = bundle(double, prefix="ignored")
    found = Assignment.read({**made.environment, "AWS_BATCH_JOB_ARRAY_INDEX": "7"})
    assert (found.where, found.key, found.array_index, found.attempt) == (
        made.where,
        made.key,
        7,
        1,
    )
    assert found.digest == hashlib.sha256(made.pieces[0]).hexdigest()
    assert set(made.environment) == {
        "FARCALL_BUNDLE",
        "FARCALL_DIGEST",
        "FARCALL_OUTCOME_KEY",
        "FARCALL_REGION",
    }


def test_an_endpoint_is_told_only_where_it_is_not_aws_s_own():
    made = bundle(double, endpoint="http://localhost:5000")
    assert made.environment["FARCALL_ENDPOINT"] == "http://localhost:5000"


def test_the_environment_stays_small():
    made = bundle(double, s3_bucket_name="b" * 63)
    assert sum(len(k) + len(v) for k, v in made.environment.items()) < 2048


def test_no_two_bundles_share_a_name_or_a_key():
    made = [bundle(double) for _ in range(3)]
    assert len({item.where.bundle for item in made}) == 3
    assert len({item.key for item in made}) == 3
    assert {len(item.key) for item in made} == {32}


def test_secrets_are_in_no_repr():
    made = bundle(double)
    submission = Submission("j", "n", made.where, made.key, 1)
    for text in (repr(made), repr(submission)):
        assert made.key.hex() not in text
        assert repr(made.key) not in text


def test_the_id_of_a_child_has_its_number():
    where = Location("b", ROOT, "x")
    assert Submission("j", "n", where, b"", 1).id_of(0) == "j"
    assert Submission("j", "n", where, b"", 5).id_of(3) == "j:3"


# --- attaching --------------------------------------------------------------------------------


def detail(job_id="8f1", **changes):
    environment = {"FARCALL_BUNDLE": f"s3://b/{ROOT}/bundles/x", "FARCALL_OUTCOME_KEY": "ab" * 32}
    fields = {"environment": environment, "status": JobStatus.RUNNING, **changes}
    return JobDetail(job_id, "n", **fields)


def test_a_job_of_ours_is_recognised_by_its_environment():
    submission, index = Submission.of(detail())
    assert (submission.where, submission.key) == (Location("b", ROOT, "x"), b"\xab" * 32)
    assert (submission.id_of(index), index) == ("8f1", 0)


def test_a_child_of_an_array_is_recognised():
    submission, index = Submission.of(detail("8f1:12"))
    assert (submission.job_id, index, submission.id_of(index)) == ("8f1", 12, "8f1:12")


def test_an_array_as_a_whole_has_no_result():
    with pytest.raises(FarcallError, match="8f1:0 to 8f1:9"):
        Submission.of(detail(array_size=10))


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"FARCALL_BUNDLE": f"s3://b/{ROOT}/bundles/x"},
        {"FARCALL_BUNDLE": "s3://b/v9/r/bundles/x", "FARCALL_OUTCOME_KEY": "ab"},
        {"FARCALL_BUNDLE": f"s3://b/{ROOT}/bundles/x", "FARCALL_OUTCOME_KEY": "no hex"},
    ],
)
def test_a_job_of_others_is_refused(environment):
    with pytest.raises(FarcallError, match=r"8f1 \(n\) was not submitted by farcall"):
        Submission.of(detail(environment=environment))
