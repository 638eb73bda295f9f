"""Signed AWS requests that no client supports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.support.clients import REGION, client


def signed(
    service: str,
    method: str,
    url: str,
    keys: Mapping[str, str],
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return a request's headers including its signature.

    Args:
        service: Service in the signature, such as ``batch``.
        method: HTTP method.
        keys: Credentials, by environment variable.
        headers: Headers to sign; a given digest of the body is kept.
    """
    request = AWSRequest(method, url, headers=dict(headers or {}), data=body)
    own = Credentials(
        keys["AWS_ACCESS_KEY_ID"], keys["AWS_SECRET_ACCESS_KEY"], keys.get("AWS_SESSION_TOKEN")
    )
    auth = (S3SigV4Auth if service == "s3" else SigV4Auth)(own, service, REGION)
    if "X-Amz-Content-Sha256" in request.headers:
        said = request.headers["X-Amz-Content-Sha256"]
        auth.payload = lambda _: said
    auth.add_auth(request)
    return dict(request.headers)


def session(environment: Mapping[str, str], role: str) -> dict[str, Any]:
    """Assume a role of the local AWS emulator; return its keys as ECS returns them."""
    sts = client("sts", environment)
    arn = f"arn:aws:iam::123456789012:role/{role}"
    keys = sts.assume_role(RoleArn=arn, RoleSessionName="tests")["Credentials"]
    sts.close()
    return {
        "AccessKeyId": keys["AccessKeyId"],
        "SecretAccessKey": keys["SecretAccessKey"],
        "Token": keys["SessionToken"],
    }
