"""Contract between client and runtime: keys, environment, exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import farcall_runtime
from farcall_runtime import contract
from farcall_runtime.bundle import Assignment, RefusedError
from farcall_runtime.contract import ExitCode, Location

WHERE = Location("bucket", "prefix/v1/run", "bundle")


def test_runtime_prints_the_contract(tmp_path):
    """The runtime imports nothing from its working directory."""
    for module in ("contextlib", "json", "runpy", "signal"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit(3)")
    done = subprocess.run(
        [sys.executable, *contract.module_arguments("farcall_runtime"), "--contract"],
        capture_output=True,
        check=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(farcall_runtime.__file__).parents[1])},
    )
    assert json.loads(done.stdout) == json.loads(json.dumps(contract.describe()))
    assert done.stderr == b""


def test_contract_is_version_1():
    assert contract.describe() == {
        "protocol_version": 1,
        "environment": [
            "FARCALL_BUNDLE",
            "FARCALL_DIGEST",
            "FARCALL_OUTCOME_KEY",
            "FARCALL_BUCKET_URL",
            "FARCALL_REGION",
            "FARCALL_S3_ENCRYPTION",
            "FARCALL_S3_KMS_KEY_ID",
            "FARCALL_WORKFLOW",
            "FARCALL_DISPATCH",
            "FARCALL_LOG_LEVEL",
            "FARCALL_THREADS",
            "FARCALL_RETRY_OF",
            "FARCALL_RUNGS",
            "FARCALL_WORKER_IDLE_S",
        ],
        "platform_environment": [
            "FARCALL_INDEX",
            "FARCALL_ATTEMPT",
            "FARCALL_FAILED_ATTEMPTS",
            "FARCALL_IGNORED_ATTEMPTS",
            "FARCALL_JOB_ID",
            "FARCALL_NODE_INDEX",
            "FARCALL_NODE_COUNT",
            "FARCALL_MAIN_ADDRESS",
            "FARCALL_CANCELLABLE",
        ],
        "exit_codes": {
            "RETURNED": 0,
            "RAISED": 1,
            "CANCELLED": 59,
            "OUT_OF_MEMORY": 60,
            "SHARED_MISSING": 61,
            "STORE_UNFIT": 62,
            "OUTCOME_OCCUPIED": 63,
            "BAD_ENVIRONMENT": 64,
            "BUNDLE_MISSING": 65,
            "INTEGRITY": 66,
            "VERSION_MISMATCH": 67,
            "TIMED_OUT": 68,
            "UNREADABLE": 69,
            "OUTCOME_NOT_STORED": 70,
            "CHILD_KILLED": 71,
            "PACKAGES_MISSING": 72,
            "STORAGE_UNREACHABLE": 73,
            "SUPERVISOR_FAILED": 74,
            "DISK_FULL": 75,
            "TERMINATED": 143,
        },
        "keys": {
            "bundle": "PREFIX/v1/RUN/bundles/BUNDLE",
            "receipt": "PREFIX/v1/RUN/bundles/BUNDLE.delivered/0",
            "retry": "PREFIX/v1/RUN/bundles/BUNDLE.retried/BUNDLE",
            "cancelled": "PREFIX/v1/RUN/bundles/BUNDLE.cancelled/7",
            "outcome": "PREFIX/v1/RUN/outcomes/BUNDLE/7",
            "node": "PREFIX/v1/RUN/outcomes/BUNDLE/nodes/1/7",
            "value": "PREFIX/v1/RUN/values/BUNDLE/7/1/00000000",
            "attempt": "PREFIX/v1/RUN/attempts/BUNDLE/7/1",
            "chunk": "PREFIX/v1/RUN/streams/BUNDLE/7/1/stdout/00000000",
            "followed": "PREFIX/v1/RUN/streams/BUNDLE/7/followed",
            "shared": "PREFIX/v1/shared/SHA256/data/GENERATION",
            "package": "PREFIX/v1/packages/SHA256",
            "runtime": "PREFIX/v1/runtime/SHA256",
            "inbox": "PREFIX/v1/RUN/workers/POOL/inbox/7",
            "state": "PREFIX/v1/RUN/workers/POOL/state/7",
        },
    }


# --- keys -------------------------------------------------------------------------------------


def test_only_outcomes_have_outcomes_prefix():
    inbox = contract.outcomes_prefix("prefix/v1/run")
    others = [WHERE.bundle_key, WHERE.value_key(0, 1, 0), WHERE.attempt_key(0, 1)]
    others.append(WHERE.chunk_key(0, 1, "stdout", 0))
    assert WHERE.outcome_key(0).startswith(inbox)
    assert [key for key in others if key.startswith(inbox)] == []


@pytest.mark.parametrize("prefix", ["", "a", "/a/b/"])
def test_values_are_shared_within_prefix(prefix):
    one, other = (Location("bucket", contract.run_root(prefix, run), "b") for run in ("r", "s"))
    assert one.shared_key("ab", "1") == other.shared_key("ab", "1")
    assert one.shared_key("ab", "1") == contract.run_root(prefix, "shared") + "/ab/data/1"


def test_chunk_keys_sort_as_text():
    keys = [WHERE.chunk_key(0, 1, "stdout", n) for n in (0, 9, 10, 99, 100, 10_000)]
    assert sorted(keys) == keys


@pytest.mark.parametrize(
    ("expected", "prefix"),
    [("v1/run", ""), ("v1/run", "/"), ("a/v1/run", "a"), ("a/b/v1/run", "/a/b/")],
)
def test_outer_slashes_of_prefix_are_ignored(expected, prefix):
    assert contract.run_root(prefix, "run") == expected


_NAMES = st.text("abc-_.0123456789", min_size=1).filter(contract.is_key)
_ACCESS_POINT = "arn:aws:s3:eu-west-1:123456789012:accesspoint:mine"


@given(
    _NAMES | st.just(_ACCESS_POINT),
    st.lists(_NAMES | st.just("bundles"), max_size=4),
    _NAMES,
    _NAMES,
)
def test_location_url_round_trips(bucket, prefix, run, bundle):
    where = Location(bucket, contract.run_root("/".join(prefix), run), bundle)
    assert Location.parse(where.url) == where


@pytest.mark.parametrize(
    "url",
    [
        "",
        "bucket/v1/run/bundles/x",
        "http://bucket/v1/run/bundles/x",
        "s3:///v1/run/bundles/x",
        "s3://bucket/v1/run/bundles/",
        "s3://bucket/v1/run/outcomes/x",
        "s3://bucket/v1/bundles/x",
        "s3://bucket/v2/run/bundles/x",
        "s3://bucket/v1//bundles/x",
        "s3://bucket/v1/run/bundles/x/y",
        "s3://bucket//v1/run/bundles/x",
        "s3://bucket/a//b/v1/run/bundles/x",
        "s3://bucket/./v1/run/bundles/x",
        "s3://bucket/v1/../bundles/x",
        "s3://bucket/v1/run/bundles/..",
        "s3://bucket/v1/run\x1b[2J/bundles/x",
        "s3://bucket/v1/run/bundles/\ud800",
    ],
)
def test_invalid_url_is_rejected(url):
    with pytest.raises(ValueError, match="s3://BUCKET/PREFIX/v1/RUN/bundles/BUNDLE"):
        Location.parse(url)


@given(st.text("s3:/bundlesv1 \0\u00fc", max_size=40))
def test_arbitrary_text_raises_only_value_error(text):
    try:
        Location.parse(text)
    except ValueError:
        return


# --- the environment --------------------------------------------------------------------------

GOOD = {
    "FARCALL_BUNDLE": WHERE.url,
    "FARCALL_DIGEST": "ab" * 32,
    "FARCALL_OUTCOME_KEY": "cd" * 32,
}


def test_environment_is_read():
    found = Assignment.read({**GOOD, "AWS_BATCH_JOB_ATTEMPT": "2", "AWS_BATCH_JOB_ID": "j"})
    assert found == Assignment(WHERE, "ab" * 32, b"\xcd" * 32, None, 2, "j")
    assert found.number == 0
    assert Assignment.read({**GOOD, "AWS_BATCH_JOB_ARRAY_INDEX": "7"}).number == 7


@pytest.mark.parametrize("missing", GOOD)
def test_missing_variable_is_named(missing):
    with pytest.raises(RefusedError, match=missing) as caught:
        Assignment.read({name: text for name, text in GOOD.items() if name != missing})
    assert caught.value.code is ExitCode.BAD_ENVIRONMENT


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("FARCALL_BUNDLE", "s3://bucket/v2/run/bundles/x"),
        ("FARCALL_DIGEST", ""),
        ("FARCALL_DIGEST", "\u00fc" * 64),
        ("FARCALL_OUTCOME_KEY", ""),
        ("FARCALL_OUTCOME_KEY", "ab"),
        ("FARCALL_OUTCOME_KEY", "no hexadecimal digits"),
        *(("AWS_BATCH_JOB_ARRAY_INDEX", text) for text in ("", "x", "-1", " 1", "1.0", "\u0661")),
        *(("AWS_BATCH_JOB_ATTEMPT", text) for text in ("", "x", "0", "-1")),
        *(("FARCALL_INDEX", text) for text in ("", "x", "-1")),
        *(("FARCALL_ATTEMPT", text) for text in ("", "0")),
        *(("FARCALL_FAILED_ATTEMPTS", text) for text in ("x", "-1")),
    ],
)
def test_invalid_variable_is_rejected(name, text):
    """With an empty key, any party could sign outcomes."""
    with pytest.raises(RefusedError, match=name) as caught:
        Assignment.read({**GOOD, name: text})
    assert caught.value.code is ExitCode.BAD_ENVIRONMENT


OWN = {
    "FARCALL_INDEX": "7",
    "FARCALL_FAILED_ATTEMPTS": "",
    "FARCALL_IGNORED_ATTEMPTS": "",
    "FARCALL_JOB_ID": "fit",
}


def test_platform_variables_are_read():
    found = Assignment.read({**GOOD, **OWN})
    assert (found.number, found.attempt, found.job_id) == (7, 1, "fit:7")
    assert not found.may_be_cancelled
    plain = Assignment.read({**GOOD, "FARCALL_JOB_ID": "fit"})
    assert (plain.array_index, plain.job_id) == (None, "fit")


@pytest.mark.parametrize(
    ("told", "attempt"),
    [
        ({"FARCALL_FAILED_ATTEMPTS": "0", "FARCALL_IGNORED_ATTEMPTS": ""}, 1),
        ({"FARCALL_FAILED_ATTEMPTS": "2"}, 3),
        ({"FARCALL_FAILED_ATTEMPTS": "1", "FARCALL_IGNORED_ATTEMPTS": "3"}, 5),
        ({"FARCALL_ATTEMPT": "2", "FARCALL_FAILED_ATTEMPTS": "7"}, 2),
        ({"AWS_BATCH_JOB_ATTEMPT": "4"}, 4),
    ],
)
def test_attempt_is_derived_from_counts(told, attempt):
    found = Assignment.read({**GOOD, "FARCALL_INDEX": "0", **told})
    assert found.attempt == attempt
    assert found.may_be_cancelled == (attempt > 1)


def test_cancellable_variable_enables_cancellation():
    assert Assignment.read({**GOOD, **OWN, "FARCALL_CANCELLABLE": "1"}).may_be_cancelled
    assert not Assignment.read({**GOOD, "AWS_BATCH_JOB_ATTEMPT": "2"}).may_be_cancelled


def test_own_node_variables_take_precedence():
    told = {
        "FARCALL_NODE_INDEX": "1",
        "FARCALL_NODE_COUNT": "2",
        "AWS_BATCH_JOB_NODE_INDEX": "5",
        "AWS_BATCH_JOB_NUM_NODES": "9",
    }
    found = Assignment.read({**GOOD, **told})
    assert (found.node, found.nodes) == (1, 2)
    with pytest.raises(RefusedError, match="FARCALL_NODE_INDEX is 2, but the job has 2 nodes"):
        Assignment.read({**GOOD, **told, "FARCALL_NODE_INDEX": "2"})


# --- exit codes -------------------------------------------------------------------------------

OURS = [
    code
    for code in ExitCode
    if code not in (ExitCode.RETURNED, ExitCode.RAISED, ExitCode.TERMINATED)
]


def test_exit_codes_have_one_meaning_each():
    values = [member.value for member in ExitCode.__members__.values()]
    assert len(set(values)) == len(ExitCode.__members__)
    assert (ExitCode.RETURNED, ExitCode.RAISED, ExitCode.TERMINATED) == (0, 1, 143)


def test_own_exit_codes_are_unambiguous():
    """Functions exit with 1, shells with 126 to 128, and signals with more than 128."""
    assert {code for code in OURS if not 59 <= code <= 79} == set()


def test_codes_matching_pattern_are_final():
    assert contract.FINAL_EXIT_CODES == "6*"
    by_pattern = {code for code in ExitCode if str(code.value).startswith("6")}
    assert by_pattern == {code for code in ExitCode if 60 <= code <= 69}
    assert by_pattern | {ExitCode.CANCELLED} == {c for c in ExitCode if c in contract.FINAL_CODES}
    assert by_pattern == {
        ExitCode.OUT_OF_MEMORY,
        ExitCode.SHARED_MISSING,
        ExitCode.STORE_UNFIT,
        ExitCode.OUTCOME_OCCUPIED,
        ExitCode.BAD_ENVIRONMENT,
        ExitCode.BUNDLE_MISSING,
        ExitCode.INTEGRITY,
        ExitCode.VERSION_MISMATCH,
        ExitCode.TIMED_OUT,
        ExitCode.UNREADABLE,
    }


def test_terminated_type_is_exception_name():
    from farcall_runtime import failures, task

    assert contract.TERMINATED_TYPE == failures.type_name(task.TaskTerminated())
