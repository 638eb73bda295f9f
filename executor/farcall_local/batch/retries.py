"""Retry strategies of jobs with Batch's evaluateOnExit rules.

Source:
    https://docs.aws.amazon.com/batch/latest/APIReference/API_EvaluateOnExit.html
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from farcall_local.batch.errors import ClientError

MAX_ATTEMPTS = 10
MAX_RULES = 5
MAX_PATTERN_LENGTH = 512

#: Condition of a rule, and the characters of its pattern, except one trailing asterisk.
_CONDITIONS = {
    "onStatusReason": re.compile(r"[A-Za-z0-9.:\s]*\*?"),
    "onReason": re.compile(r"[A-Za-z0-9.:\s]*\*?"),
    "onExitCode": re.compile(r"[0-9]*\*?"),
}


@dataclass(frozen=True)
class RetryStrategy:
    """Number of attempts and retry rules of a job.

    Attributes:
        attempts: Total number of attempts, 1 to 10.
        rules: The evaluateOnExit rules in order, with lower-case actions.
    """

    attempts: int = 1
    rules: tuple[dict[str, str], ...] = ()

    def wants_another(self, made: int, *, status_reason: str, reason: str, exit_code: str) -> bool:
        """Return whether a failed attempt is retried.

        The first rule whose conditions all match decides; if none matches, the job is retried. A
        missing reason or exit code counts as the empty string, which only ``*`` matches.

        Args:
            made: Number of attempts so far, including the failed one.
            status_reason: Reason for the end of the attempt.
            reason: Container reason; empty if missing.
            exit_code: Decimal exit code; empty if missing.
        """
        if made >= self.attempts:
            return False
        facts = {"onStatusReason": status_reason, "onReason": reason, "onExitCode": exit_code}
        for rule in self.rules:
            if all(_matches(rule[name], facts[name]) for name in _CONDITIONS if name in rule):
                return rule["action"] == "retry"
        return True

    def describe(self) -> dict[str, Any]:
        """Return the strategy in the format of DescribeJobs."""
        return {"attempts": self.attempts, "evaluateOnExit": [dict(rule) for rule in self.rules]}


def parse(document: dict[str, Any] | None) -> RetryStrategy:
    """Check a retryStrategy document.

    Raises:
        ClientError: There are fewer than 1 or more than 10 attempts, more than five rules, rules
            without attempts, an unknown action, or a pattern with unsupported characters.
    """
    if not document:
        return RetryStrategy()
    attempts = document.get("attempts")
    rules = document.get("evaluateOnExit") or []
    if rules and attempts is None:
        raise ClientError("RetryStrategy attempts must be specified with evaluateOnExit.")
    attempts = 1 if attempts is None else attempts
    if not 1 <= attempts <= MAX_ATTEMPTS:
        raise ClientError(f"RetryStrategy attempts must be between 1 and {MAX_ATTEMPTS}.")
    if len(rules) > MAX_RULES:
        raise ClientError(f"RetryStrategy evaluateOnExit can have at most {MAX_RULES} rules.")
    return RetryStrategy(attempts, tuple(_rule(rule) for rule in rules))


def _rule(rule: dict[str, str]) -> dict[str, str]:
    action = rule.get("action", "").lower()
    if action not in ("retry", "exit"):
        raise ClientError("Evaluate on exit action must be RETRY or EXIT.")
    conditions = {name: rule[name] for name in _CONDITIONS if name in rule}
    for name, pattern in conditions.items():
        if len(pattern) > MAX_PATTERN_LENGTH:
            raise ClientError(f"Evaluate on exit condition {name} is longer than 512 characters.")
        if not _CONDITIONS[name].fullmatch(pattern):
            raise ClientError("Evaluate on exit condition contains restricted characters.")
    return {**conditions, "action": action}


def _matches(pattern: str, value: str) -> bool:
    if pattern.endswith("*"):
        return value.startswith(pattern[:-1])
    return value == pattern
