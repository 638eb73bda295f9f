"""The event that caused the failure of a stack."""

from datetime import UTC, datetime, timedelta

from farcall.deploy.stack import Event, cause

_STACK = "AWS::CloudFormation::Stack"
_START = datetime(2026, 11, 1, tzinfo=UTC)


def happened(*events):
    """Return events, one per second, from `(resource, status, reason)`."""
    return [
        Event(
            str(number),
            resource,
            _STACK if resource == "farcall" else "AWS::Batch::JobQueue",
            status,
            reason,
            _START + timedelta(seconds=number),
        )
        for number, (resource, status, reason) in enumerate(events)
    ]


def test_first_own_failure_is_the_cause():
    events = happened(
        ("farcall", "CREATE_IN_PROGRESS", "User Initiated"),
        ("Ec2Queue", "CREATE_FAILED", "Resource creation cancelled"),
        ("SpotQueue", "CREATE_FAILED", "JobQueue name exists"),
        ("Bucket", "CREATE_FAILED", "also"),
        ("farcall", "ROLLBACK_IN_PROGRESS", "The following resource(s) failed to create"),
    )
    assert cause(events) == events[2]


def test_earlier_failure_is_not_the_cause():
    events = happened(
        ("farcall", "CREATE_IN_PROGRESS", "User Initiated"),
        ("Ec2Queue", "CREATE_FAILED", "former"),
        ("farcall", "DELETE_IN_PROGRESS", "User Initiated"),
        ("SpotQueue", "DELETE_FAILED", "this"),
    )
    assert cause(events).reason == "this"


def test_stack_itself_may_be_the_cause():
    events = happened(("farcall", "CREATE_FAILED", "Template error"))
    assert cause(events) == events[0]
    assert cause(happened(("farcall", "CREATE_COMPLETE", ""))) is None
    assert cause([]) is None
