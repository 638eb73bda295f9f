"""Evaluation of IAM policies.

Starts nothing.
"""

from __future__ import annotations

import pytest

from tests.emulators.iam.policies import Need, UnknownElementError, Verdict, evaluate

BUCKET = "arn:aws:s3:::bucket"


def verdict(need, *statements):
    """Evaluate one statement or several, of which each one allows unless it says otherwise."""
    full = [{"Effect": "Allow", "Resource": "*", **statement} for statement in statements]
    return evaluate([{"Version": "2012-10-17", "Statement": full}], need)


def allows(need, **statement):
    return verdict(need, statement) is Verdict.ALLOWED


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
    assert allows(Need(action), Action=pattern) is expected


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
    assert allows(Need("s3:GetObject", resource), Action="*", Resource=pattern) is expected


def test_a_deny_wins_in_whatever_order():
    need = Need("s3:GetObject")
    allow, deny = {"Action": "*"}, {"Effect": "Deny", "Action": "s3:*"}
    assert verdict(need, allow, deny) is verdict(need, deny, allow) is Verdict.DENIED
    assert verdict(need) is Verdict.NOT_ALLOWED


LISTING = Need("s3:ListBucket", BUCKET, {"s3:prefix": "farcall/v1/run/"})
BARE = Need("s3:ListBucket", BUCKET)


@pytest.mark.parametrize(
    ("condition", "with_prefix", "without"),
    [
        ({"StringLike": {"s3:prefix": "farcall/*"}}, True, False),
        ({"StringLike": {"S3:Prefix": ["other/*", "farcall/*"]}}, True, False),
        ({"StringEquals": {"s3:prefix": "farcall/*"}}, False, False),
        ({"StringNotLike": {"s3:prefix": "farcall/*"}}, False, True),
        ({"StringNotEquals": {"s3:prefix": ["other/", "farcall/v1/run/"]}}, False, True),
        ({"StringLikeIfExists": {"s3:prefix": "other/*"}}, False, True),
        ({"StringEqualsIgnoreCase": {"s3:prefix": "FARCALL/v1/run/"}}, True, False),
        ({"Null": {"s3:prefix": "true"}}, False, True),
        ({"Null": {"s3:prefix": True}}, False, True),
        ({"StringLike": {"s3:prefix": "farcall/*", "iam:PassedToService": "*"}}, False, False),
        ({"StringLike": {"s3:prefix": "farcall/*"}, "Null": {"s3:prefix": "true"}}, False, False),
    ],
)
def test_conditions(condition, with_prefix, without):
    assert allows(LISTING, Action="s3:*", Condition=condition) is with_prefix
    assert allows(BARE, Action="s3:*", Condition=condition) is without


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
    ],
)
def test_what_is_not_evaluated_is_an_error_and_never_passed_over(statement):
    with pytest.raises(UnknownElementError):
        verdict(LISTING, statement)
