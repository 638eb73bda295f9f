"""boto3 clients with explicit credentials, whatever this process's environment is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import boto3

REGION = "us-east-1"


def client(service: str, environment: Mapping[str, str], **options: Any) -> Any:
    """Return a client with the endpoint and keys of some environment variables."""
    return boto3.client(
        service,
        endpoint_url=environment.get("AWS_ENDPOINT_URL"),
        region_name=environment.get("AWS_REGION", REGION),
        aws_access_key_id=environment.get("AWS_ACCESS_KEY_ID"),
        aws_secret_access_key=environment.get("AWS_SECRET_ACCESS_KEY"),
        aws_session_token=environment.get("AWS_SESSION_TOKEN"),
        **options,
    )
