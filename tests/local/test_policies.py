"""Evaluation of IAM policies.

Starts nothing.
"""

from __future__ import annotations

import pytest

from tests.emulators.iam.policies import Need, UnknownElementError, allows

BUCKET = "arn:aws:s3:::bucket"


def allowed(need, **statement):
    """Evaluate a statement that allows an action on everything, except where it differs."""
    full = {"Effect": "Allow", "Resource": "*", **statement}
    return allows([{"Version": "2012-10-17", "Statement": [full]}], need)


@pytest.mark.parametrize(
    ("pattern", "action", "expected"),
    [
        ("s3:GetObject", "s3:GetObject", True),
        ("S3:getobject", "s3:GetObject", True),
        ("s3:*", "s3:GetObject", True),
        ("s3:Get?bject", "s3:GetObject", True),
        ("s3:GetObject", "s3:GetObjectAcl", False),
        ("s3.GetObject", "s3:GetObject", False),
        (["s3:PutObject", "s3:GetObject"], "s3:GetObject", True),
        ([], "s3:GetObject", False),
    ],
)
def test_actions_match_without_regard_to_case(pattern, action, expected):
    assert allowed(Need(action), Action=pattern) is expected


@pytest.mark.parametrize(
    ("pattern", "resource", "expected"),
    [
        (f"{BUCKET}/v1/*/bundles/*", f"{BUCKET}/v1/a/bundles/b", True),
        (f"{BUCKET}/v1/*/bundles/*", f"{BUCKET}/v1/a/outcomes/b", False),
        (f"{BUCKET}/V1/*", f"{BUCKET}/v1/a", False),
        (f"{BUCKET}/*", BUCKET, False),
        (BUCKET, f"{BUCKET}/key", False),
        # Actions without resources need a policy for all of them.
        (f"{BUCKET}/*", "*", False),
        ("*", "*", True),
    ],
)
def test_resources_match_as_they_are_written(pattern, resource, expected):
    assert allowed(Need("s3:GetObject", resource), Action="*", Resource=pattern) is expected


LISTING = Need("s3:ListBucket", BUCKET, {"s3:prefix": "farcall/v1/run/"})
BARE = Need("s3:ListBucket", BUCKET)


@pytest.mark.parametrize(
    ("condition", "with_prefix", "without"),
    [
        ({"StringLike": {"s3:prefix": "farcall/*"}}, True, False),
        ({"StringLike": {"S3:Prefix": ["other/*", "farcall/*"]}}, True, False),
        ({"StringEquals": {"s3:prefix": "farcall/*"}}, False, False),
        ({"StringLike": {"s3:prefix": "farcall/*", "iam:PassedToService": "*"}}, False, False),
        (
            {"StringLike": {"s3:prefix": "farcall/*"}, "StringEquals": {"s3:prefix": "x"}},
            False,
            False,
        ),
    ],
)
def test_conditions(condition, with_prefix, without):
    assert allowed(LISTING, Action="s3:*", Condition=condition) is with_prefix
    assert allowed(BARE, Action="s3:*", Condition=condition) is without


@pytest.mark.parametrize(
    "statement",
    [
        {
            "Action": "*",
            "Condition": {"DateLessThan": {"aws:CurrentTime": "2030-01-01T00:00:00Z"}},
        },
        {"Action": "*", "Condition": {"ForAllValues:StringLike": {"aws:TagKeys": "*"}}},
        {"Action": "*", "Condition": {"StringNotEquals": {"aws:RequestedRegion": "us-east-1"}}},
        {"Action": "*", "Resource": "arn:aws:s3:::bucket/${aws:username}/*"},
        {"Action": "*", "Principal": "*"},
        {"Action": "*", "Effect": "Deny"},
    ],
)
def test_what_is_not_evaluated_is_an_error_and_never_passed_over(statement):
    with pytest.raises(UnknownElementError):
        allowed(LISTING, **statement)
