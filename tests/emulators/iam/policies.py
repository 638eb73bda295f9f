"""What IAM policies say of a request. No I/O and nothing of moto.

moto's own evaluation leaves out most of the conditions and denies what an Allow's condition does
not meet, so policies are evaluated here. An element that is not known here stops the evaluation
with an error instead of being passed over.

Sources:
    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html
    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_condition_operators.html
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

_ELEMENTS = {
    "Sid",
    "Effect",
    "Action",
    "NotAction",
    "Resource",
    "NotResource",
    "Condition",
}
#: What requests are known to have, or not to have, in lower case. A key that AWS would have and
#: nobody fills in here must not look absent, which some operators take for a yes.
CONDITION_KEYS = {
    "aws:sourcearn",
    "iam:awsservicename",
    "iam:passedtoservice",
    "iam:policyarn",
    "s3:prefix",
}


class UnknownElementError(Exception):
    """A policy has something that is not evaluated here."""


@dataclass(frozen=True)
class Need:
    """One permission a request needs.

    Attributes:
        action: Such as ``s3:GetObject``.
        resource: Its ARN; ``*`` where the action knows no resources.
        context: Values of the condition keys the request has, such as ``s3:prefix``.
    """

    action: str
    resource: str = "*"
    context: Mapping[str, str] = field(default_factory=dict)


class Verdict(Enum):
    """What policies say of a need."""

    ALLOWED = "allowed"
    NOT_ALLOWED = "not allowed"
    DENIED = "denied"


def evaluate(documents: Iterable[Mapping[str, Any]], need: Need) -> Verdict:
    """Evaluate the identity-based policies of one principal together.

    Args:
        documents: The policies.
        need: What is asked for.

    Raises:
        UnknownElementError: A statement for this action has an element, a condition key or an
            operator that is not evaluated here.
    """
    verdict = Verdict.NOT_ALLOWED
    for document in documents:
        for statement in many(document["Statement"]):
            if not _applies(statement, need):
                continue
            if statement["Effect"] == "Deny":
                return Verdict.DENIED
            verdict = Verdict.ALLOWED
    return verdict


def _applies(statement: Mapping[str, Any], need: Need) -> bool:
    unknown = set(statement) - _ELEMENTS
    if unknown:
        raise UnknownElementError(f"the element {', '.join(sorted(unknown))}")
    return (
        _covers(statement, "Action", need.action.lower(), str.lower)
        and _covers(statement, "Resource", need.resource, str)
        and _meets(statement.get("Condition", {}), need.context)
    )


def _covers(
    statement: Mapping[str, Any], element: str, value: str, fold: Callable[[str], str]
) -> bool:
    if element in statement:
        return any(_like(fold(pattern), value) for pattern in many(statement[element]))
    patterns = many(statement[f"Not{element}"])
    return not any(_like(fold(pattern), value) for pattern in patterns)


def _meets(conditions: Mapping[str, Mapping[str, Any]], context: Mapping[str, str]) -> bool:
    tests = [(op, key, wanted) for op, test in conditions.items() for key, wanted in test.items()]
    for _, key, _ in tests:
        if key.lower() not in CONDITION_KEYS:
            raise UnknownElementError(f"the condition key {key}")
    values = {key.lower(): value for key, value in context.items()}
    return all(
        _holds(operator, values.get(key.lower()), [str(value) for value in many(wanted)])
        for operator, key, wanted in tests
    )


def _holds(operator: str, value: str | None, wanted: list[str]) -> bool:
    """Return whether one key meets one operator, any of several values being enough."""
    if operator == "Null":
        return str(value is None).lower() in map(str.lower, wanted)
    name = operator.removesuffix("IfExists")
    if name not in _OPERATORS:
        raise UnknownElementError(f"the condition operator {operator}")
    matches, negated = _OPERATORS[name]
    if value is None:
        return negated or name != operator
    return any(matches(pattern, value) for pattern in wanted) != negated


def _like(pattern: str, value: str) -> bool:
    return _regex(pattern).fullmatch(value) is not None


@functools.lru_cache(maxsize=512)
def _regex(pattern: str) -> re.Pattern[str]:
    if "${" in pattern:
        raise UnknownElementError(f"the policy variable in {pattern}")
    escaped = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.compile(escaped, re.DOTALL)


def _same(pattern: str, value: str) -> bool:
    return pattern == value


def _same_folded(pattern: str, value: str) -> bool:
    return pattern.lower() == value.lower()


#: How a value is compared, and whether the comparison is negated.
_OPERATORS: dict[str, tuple[Callable[[str, str], bool], bool]] = {
    "StringEquals": (_same, False),
    "StringNotEquals": (_same, True),
    "StringEqualsIgnoreCase": (_same_folded, False),
    "StringLike": (_like, False),
    "StringNotLike": (_like, True),
    "ArnEquals": (_like, False),
    "ArnLike": (_like, False),
    "ArnNotLike": (_like, True),
    "Bool": (_same_folded, False),
}


def many(value: Any) -> list[Any]:
    """Return a list of what may stand in a policy alone or as a list."""
    return value if isinstance(value, list) else [value]
