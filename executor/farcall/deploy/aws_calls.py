"""AWS calls that set up an account; their errors name the missing action."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

from farcall.aws import clients, error_translation
from farcall.aws.clients import Aws
from farcall.model.errors import FarcallError, ServiceError

POLICY = "`farcall policy deployer` prints the policy for deploying"

_NO_SERVICE = "The local AWS emulator has no service"

_ACTIONS = {
    "DeleteObjects": "s3:DeleteObject",
    "ListBuckets": "s3:ListAllMyBuckets",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "ListObjectVersions": "s3:ListBucketVersions",
}
"""IAM actions of operations whose names differ."""


async def call_aws(
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
    with _naming_action(service, policy):
        return await clients.call(await access.client(service), operation, **parameters)


async def pages(
    access: Aws, service: str, operation: str, **parameters: Any
) -> AsyncIterator[dict[str, Any]]:
    """Yield all pages of an operation that returns lists; see `call_aws`."""
    with _naming_action(service, POLICY):
        async for page in clients.pages(await access.client(service), operation, **parameters):
            yield page


@contextlib.contextmanager
def _naming_action(service: str, policy: str) -> Iterator[None]:
    try:
        yield
    except ServiceError as error:
        if _NO_SERVICE in str(error):
            raise FarcallError(
                f"this command needs an AWS account: the local AWS emulator has no {service}. "
                "Open a shell without the emulator's variables (AWS_ENDPOINT_URL and others)."
            ) from error
        if not error_translation.is_denied(error):
            raise
        prefix = "servicequotas" if service == "service-quotas" else service
        action = _ACTIONS.get(error.operation, f"{prefix}:{error.operation}")
        raise error_translation.with_text(error, f"{error} (action {action}); {policy}") from error
