"""Container registry of an account, ECR: its password, and its repositories.

Source:
    https://docs.aws.amazon.com/AmazonECR/latest/userguide/registry_auth.html
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from farcall.aws.clients import Aws
from farcall.deploy.asking import ask
from farcall.model.errors import FarcallError, ServiceError

POLICY = "docs/iam/pusher.json is the policy for whoever pushes images"


@dataclass(frozen=True)
class Registry:
    """What it takes to sign in.

    Attributes:
        host: Its host, with the port where there is one; names of images begin with it.
        token: ``user:password`` in base64, good for twelve hours.
    """

    host: str
    token: str = field(repr=False)


async def sign_in(access: Aws) -> Registry:
    """Ask for the registry's password.

    Raises:
        FarcallError: What came is no such thing.
        ServiceError: ECR refused.
    """
    reply = await ask(access, "ecr", "get_authorization_token", policy=POLICY)
    data = reply["authorizationData"][0]
    host, token = urlsplit(data["proxyEndpoint"]).netloc, data["authorizationToken"]
    try:
        user, mark, _ = base64.b64decode(token, validate=True).partition(b":")
    except binascii.Error:
        user, mark = b"", b""
    if not (host and user and mark):
        raise FarcallError(f"ECR in {access.region} gave no password for a registry")
    return Registry(host, token)


async def has_repository(access: Aws, name: str) -> bool:
    """Tell whether there is a repository of this name.

    Raises:
        ServiceError: ECR refused.
    """
    try:
        await ask(access, "ecr", "describe_repositories", policy=POLICY, repositoryNames=[name])
    except ServiceError as error:
        if error.code != "RepositoryNotFoundException":
            raise
        return False
    return True


async def create_repository(access: Aws, name: str) -> None:
    """Make a repository, unless somebody else just did.

    Raises:
        ServiceError: ECR refused.
    """
    try:
        await ask(access, "ecr", "create_repository", policy=POLICY, repositoryName=name)
    except ServiceError as error:
        if error.code != "RepositoryAlreadyExistsException":
            raise
