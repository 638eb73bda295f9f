"""Container registry of an account, ECR."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from farcall.aws.clients import Aws
from farcall.cli import stacks
from farcall.config.settings import Settings
from farcall.deploy.aws_calls import call_aws
from farcall.model.errors import ServiceError

POLICY = "`farcall policy pusher` prints the policy for pushing images"


async def has_repository(access: Aws, name: str) -> bool:
    """Return whether a repository exists.

    Raises:
        ServiceError: An ECR call failed.
    """
    try:
        await call_aws(
            access, "ecr", "describe_repositories", policy=POLICY, repositoryNames=[name]
        )
    except ServiceError as error:
        if error.code != "RepositoryNotFoundException":
            raise
        return False
    return True


@dataclass(frozen=True)
class Destination:
    """Destination of an image, with the registry's login data.

    Attributes:
        host: The registry's host, with a port if needed; image names begin with it.
        token: ``user:password`` in base64, valid for 12 hours.
        region: The registry's region.
        account: The account's ID, 12 digits.
        has_repository: Whether the repository exists.

    Source:
        https://docs.aws.amazon.com/AmazonECR/latest/userguide/registry_auth.html
    """

    host: str
    token: str = field(repr=False)
    region: str
    account: str
    has_repository: bool


async def destination(settings: Settings, repository: str) -> Destination:
    """Log in to the registry, and look up a repository.

    Raises:
        ServiceError: An ECR call failed.
    """
    async with stacks.opened(settings) as access:
        reply = await call_aws(access, "ecr", "get_authorization_token", policy=POLICY)
        data = reply["authorizationData"][0]
        return Destination(
            urlsplit(data["proxyEndpoint"]).netloc,
            data["authorizationToken"],
            access.region,
            await access.account(),
            await has_repository(access, repository),
        )


async def create(settings: Settings, repository: str) -> None:
    """Create a repository.

    Raises:
        ServiceError: An ECR call failed.
    """
    async with stacks.opened(settings) as access:
        await call_aws(
            access, "ecr", "create_repository", policy=POLICY, repositoryName=repository
        )
