"""Findings of failed health checks."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable

from farcall.aws import error_translation
from farcall.config.help import origin
from farcall.model.clock import within
from farcall.model.errors import FarcallError, ServiceError, SettingsError
from farcall.model.findings import FAILED, NOT_CHECKED, Finding, parted

_ACTIONS = {
    "DeleteObject": "s3:DeleteObject",
    "DescribeImages": "ecr:DescribeImages",
    "DescribeStacks": "cloudformation:DescribeStacks",
    "DescribeLogGroups": "logs:DescribeLogGroups",
    "GetBucketAcl": "s3:GetBucketAcl",
    "GetBucketLifecycleConfiguration": "s3:GetLifecycleConfiguration",
    "GetBucketPolicyStatus": "s3:GetBucketPolicyStatus",
    "GetBucketVersioning": "s3:GetBucketVersioning",
    "GetObject": "s3:GetObject",
    "GetPublicAccessBlock": "s3:GetBucketPublicAccessBlock",
    "GetRole": "iam:GetRole",
    "HeadBucket": "s3:ListBucket",
    "PutObject": "s3:PutObject",
}
"""Permissions of operations whose permission is not ``batch:`` and their name."""


_NEEDED = ("DeleteObject", "GetObject", "ListObjectsV2", "PutObject")
"""Operations that every job needs."""


def finding_of(check: str, error: Exception) -> Finding:
    """Return the finding for a check that raised an error."""
    text, remedy = parted(str(error))
    if isinstance(error, SettingsError):
        if error.option:
            remedy += f" ({error.option} comes from {origin(error.option)})"
        return Finding(check, FAILED, text, remedy)
    if isinstance(error, ServiceError) and error_translation.is_denied(error):
        action = _ACTIONS.get(error.operation, error.permission)
        remedy = f"grant {action} to the credentials in use, so that this can be checked"
        return Finding(check, NOT_CHECKED, f"{action} is denied", remedy)
    if isinstance(error, ServiceError) and _is_unknown(error):
        observation = (
            f"the service does not support {error.operation} ({error.code or error.status})"
        )
        return Finding(check, NOT_CHECKED, observation)
    if isinstance(error, FarcallError):
        return Finding(check, FAILED, text, remedy)
    return Finding(check, FAILED, f"{type(error).__name__}: {error}", "report this bug in farcall")


def _is_unknown(error: ServiceError) -> bool:
    """Return whether a service other than AWS's lacks a read-only operation."""
    return error_translation.is_unknown_call(error) and error.operation not in _NEEDED


async def guarded(
    check: str, findings: Awaitable[Iterable[Finding]], time_limit_s: float
) -> list[Finding]:
    """Return the findings of a check; its errors are findings, too.

    Args:
        check: Its name, for errors.
        findings: The check.
        time_limit_s: Maximum duration in seconds.
    """
    heard = [""]
    try:
        with error_translation.listening(heard.append):
            return list(await within(time_limit_s, findings))
    except TimeoutError:
        if heard[-1]:
            text = f"no success within {time_limit_s:g} s; the last response: {heard[-1]}"
            return [Finding(check, FAILED, text, "fix its cause, or try again later")]
        remedy = "check the network, and the options region and endpoint_url"
        return [Finding(check, FAILED, f"no response within {time_limit_s:g} s", remedy)]
    except Exception as error:  # the other checks must run anyway
        return [finding_of(check, error)]
