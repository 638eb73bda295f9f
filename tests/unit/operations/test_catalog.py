"""farcall's jobs in lists and descriptions."""

from datetime import UTC, datetime

import pytest

from farcall.model.jobs import JobDetail, JobStatus
from farcall.operations.catalog import Entry, Query

BUNDLE = "s3://bucket/farcall/v1/mary-jane-20261122-101500-0a1b2c/bundles/sample-0123456789abcdef"


def entry(status=JobStatus.RUNNING, counts=None, **environment):
    found = Entry.of(
        JobDetail(
            "6f1c",
            "sample-0123456789abcdef",
            status,
            environment={"FARCALL_BUNDLE": BUNDLE, **environment},
            status_summary=counts or {},
        )
    )
    assert found is not None
    return found


def test_entry_has_function_user_and_run():
    found = entry(FARCALL_WORKFLOW="nightly")
    assert (found.function, found.user, found.run) == (
        "sample",
        "mary-jane",
        "mary-jane-20261122-101500-0a1b2c",
    )
    assert found.workflow == ("nightly", "")


def test_run_of_electron_is_its_dispatch():
    assert entry(FARCALL_DISPATCH="d-1").run == "d-1"


@pytest.mark.parametrize("bundle", ["", "s3://bucket/somewhere/else"])
def test_foreign_job_has_no_entry(bundle):
    detail = JobDetail("6f1c", "x", JobStatus.RUNNING, environment={"FARCALL_BUNDLE": bundle})
    assert Entry.of(detail) is None


def command(run="mary-jane-20261122-101500-0a1b2c", name="hello-0123456789abcdef", **environment):
    environment["FARCALL_RUN"] = run
    detail = JobDetail("6f1c", name, JobStatus.RUNNING, environment=environment, is_command=True)
    return Entry.of(detail)


def test_command_job_entry_has_no_dispatch():
    found = command(FARCALL_WORKFLOW="nightly", FARCALL_DISPATCH="d-1", FARCALL_BUNDLE=BUNDLE)
    assert found.is_command
    assert (found.function, found.user) == ("hello", "mary-jane")
    assert (found.run, found.workflow) == ("mary-jane-20261122-101500-0a1b2c", ("nightly", ""))
    assert command(name="hello").function == "hello"
    assert not entry().is_command


@pytest.mark.parametrize(
    "run",
    [
        "",
        "mary",
        "mary-20261122-101500-XYZXYZ",
        "mary-20261122-101500-0a1b2c\n",
        "\x1b[2J-20261122-101500-0a1b2c",
        "a/b-20261122-101500-0a1b2c",
        f"{'m' * 33}-20261122-101500-0a1b2c",
    ],
)
def test_invalid_run_name_is_ignored(run):
    assert command(run) is None


@pytest.mark.parametrize(
    ("query", "fits"),
    [
        (Query(), True),
        (Query(user="mary-jane"), True),
        (Query(user="mary"), False),
        (Query(workflow="nightly"), True),
        (Query(workflow="d-1"), True),
        (Query(workflow="night"), False),
        (Query(run="d-1"), True),
        (Query(run="mary-jane-20261122-101500-0a1b2c"), True),
        (Query(run="nightly"), False),
        (Query(states=frozenset({"PENDING"})), True),
        (Query(states=frozenset({"FAILED"})), True),
        (Query(states=frozenset({"RUNNING", "SUCCEEDED"})), False),
        (Query(since=datetime(2100, 1, 1, tzinfo=UTC)), True),
    ],
)
def test_query_filters_entries(query, fits):
    found = entry(
        JobStatus.PENDING,
        {"FAILED": 1, "RUNNING": 0},
        FARCALL_WORKFLOW="nightly",
        FARCALL_DISPATCH="d-1",
    )
    assert query.fits(found) is fits
