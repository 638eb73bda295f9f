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
"""IAM actions of operations whose names differ."""


async def ask(
    access: Aws, service: str, operation: str, *, policy: str = POLICY, **parameters: Any
) -> dict[str, Any]:
    """Call an operation of a service.

    Args:
        access: The open clients.
        service: botocore's service name, such as ``"cloudformation"``.
        operation: Name of the client's method, such as ``"describe_stacks"``.
        policy: Text that names the policy with the action, for the error if it is missing.
        **parameters: Request parameters.

    Raises:
        ServiceError: The service rejected the request or could not be reached.
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
