"""AWS calls that set up an account; their errors name the missing action."""

from __future__ import annotations

from typing import Any

from farcall.aws import clients, error_translation
from farcall.aws.clients import Aws
from farcall.model.errors import ServiceError

POLICY = "docs/iam/deployer.json is the policy for deploying"

_ACTIONS = {
    "DeleteObjects": "s3:DeleteObject",
    "ListBuckets": "s3:ListAllMyBuckets",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "ListObjectVersions": "s3:ListBucketVersions",
}
"""The action of an operation, where it is not called like it."""


async def ask(
    access: Aws, service: str, operation: str, *, policy: str = POLICY, **parameters: Any
) -> dict[str, Any]:
    """Call an operation of a service.

    Args:
        access: The open clients.
        service: botocore's name of it, such as ``"cloudformation"``.
        operation: The method's name, such as ``"describe_stacks"``.
        policy: Says which policy has the action, where it is missing.
        **parameters: The request.

    Raises:
        ServiceError: The service refused, or could not be reached.
    """
    try:
        return await clients.call(await access.client(service), operation, **parameters)
    except ServiceError as error:
        if not error_translation.is_denied(error):
            raise
        action = _ACTIONS.get(error.operation, _action(service, error.operation))
        raise error_translation.like(error, f"{error} (action {action}); {policy}") from error


def _action(service: str, operation: str) -> str:
    prefix = "servicequotas" if service == "service-quotas" else service
    return f"{prefix}:{operation}"
