"""Why a stack failed: the event that caused it, and none that followed from it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from farcall.deploy.stack import Event, cause

_STACK = "AWS::CloudFormation::Stack"
_START = datetime(2026, 11, 1, tzinfo=timezone.utc)


def happened(*told):
    """Return events, one a second, of ``(resource, status, reason)``."""
    return [
        Event(
            str(number),
            resource,
            _STACK if resource == "farcall" else "AWS::Batch::JobQueue",
            status,
            reason,
            _START + timedelta(seconds=number),
        )
        for number, (resource, status, reason) in enumerate(told)
    ]


def test_the_first_that_failed_by_itself_is_the_cause():
    events = happened(
        ("farcall", "CREATE_IN_PROGRESS", "User Initiated"),
        ("Ec2Queue", "CREATE_FAILED", "Resource creation cancelled"),
        ("SpotQueue", "CREATE_FAILED", "JobQueue name exists"),
        ("Bucket", "CREATE_FAILED", "also"),
        ("farcall", "ROLLBACK_IN_PROGRESS", "The following resource(s) failed to create"),
    )
    assert cause(events) == events[2]


def test_a_former_failure_is_not_the_cause_of_this_one():
    events = happened(
        ("farcall", "CREATE_IN_PROGRESS", "User Initiated"),
        ("Ec2Queue", "CREATE_FAILED", "former"),
        ("farcall", "DELETE_IN_PROGRESS", "User Initiated"),
        ("SpotQueue", "DELETE_FAILED", "this"),
    )
    assert cause(events).reason == "this"


def test_the_stack_itself_may_be_all_that_failed():
    events = happened(("farcall", "CREATE_FAILED", "Template error"))
    assert cause(events) == events[0]
    assert cause(happened(("farcall", "CREATE_COMPLETE", ""))) is None
    assert cause([]) is None
