"""Evaluation of IAM policies, without I/O and without moto.

moto's own evaluation ignores most conditions and denies a request that does not meet the
condition of an Allow statement, so policies are evaluated here. An unknown element raises an error
instead of being ignored.

Sources:
    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html
    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_condition_operators.html
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

_ELEMENTS = {"Sid", "Effect", "Action", "Resource", "Condition"}
#: Condition keys that requests have, in lower case. Any other key is an error.
CONDITION_KEYS = {"iam:awsservicename", "iam:passedtoservice", "s3:prefix"}


class UnknownElementError(Exception):
    """A policy has an element that is not supported here."""


@dataclass(frozen=True)
class Need:
    """A permission that a request requires.

    Attributes:
        action: IAM action, such as ``s3:GetObject``.
        resource: ARN of the resource; ``*`` if the action has no resource types.
        context: Condition keys of the request to their values, such as ``s3:prefix``.
    """

    action: str
    resource: str = "*"
    context: Mapping[str, str] = field(default_factory=dict)


def allows(documents: Iterable[Mapping[str, Any]], need: Need) -> bool:
    """Return whether the identity-based policies of a principal allow a need.

    Raises:
        UnknownElementError: A statement for this action has an element, an effect, a condition
            key or an operator that is not supported here.
    """
    return any(
        _applies(statement, need)
        for document in documents
        for statement in many(document["Statement"])
    )


def _applies(statement: Mapping[str, Any], need: Need) -> bool:
    unknown = set(statement) - _ELEMENTS
    if unknown:
        raise UnknownElementError(f"the element {', '.join(sorted(unknown))}")
    if statement["Effect"] != "Allow":
        raise UnknownElementError(f"the effect {statement['Effect']}")
    patterns = [pattern.lower() for pattern in many(statement["Action"])]
    return (
        _is_like_any(patterns, need.action.lower())
        and _is_like_any(many(statement["Resource"]), need.resource)
        and _meets(statement.get("Condition", {}), need.context)
    )


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
    """Return whether one key meets one operator, with any of several values."""
    if operator not in ("StringEquals", "StringLike"):
        raise UnknownElementError(f"the condition operator {operator}")
    if value is None:
        return False
    return value in wanted if operator == "StringEquals" else _is_like_any(wanted, value)


def _is_like_any(patterns: Iterable[str], value: str) -> bool:
    return any(_regex(pattern).fullmatch(value) for pattern in patterns)


@functools.lru_cache(maxsize=512)
def _regex(pattern: str) -> re.Pattern[str]:
    if "${" in pattern:
        raise UnknownElementError(f"the policy variable in {pattern}")
    escaped = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.compile(escaped, re.DOTALL)


def many(value: Any) -> list[Any]:
    """Return a list of values, which a policy may contain as a single value."""
    return value if isinstance(value, list) else [value]
