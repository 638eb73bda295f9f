"""Network of the jobs: the given VPC and subnets, or the account's default ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from farcall.aws.clients import Aws
from farcall.deploy.aws_calls import call_aws
from farcall.model.errors import FarcallError, ServiceError
from farcall.model.names import counted


@dataclass(frozen=True)
class Network:
    """Network of the jobs.

    Attributes:
        vpc: The VPC's ID.
        subnets: IDs of the VPC's subnets.
        is_public: Whether instances get a public address.
    """

    vpc: str
    subnets: tuple[str, ...]
    is_public: bool

    def __str__(self) -> str:
        subnets = f"{counted(len(self.subnets), 'subnet')} ({', '.join(self.subnets)})"
        public = "with" if self.is_public else "without"
        return f"{self.vpc}, {subnets}, {public} public addresses"


async def choose_network(access: Aws, vpc: str, subnets: Sequence[str]) -> Network:
    """Find the network.

    Args:
        access: The open clients.
        vpc: The VPC's ID; empty for the subnets' VPC or the default one.
        subnets: The subnets' IDs; empty for the VPC's default subnet in each zone.

    Raises:
        FarcallError: There is no network, or VPC and subnets do not match; it names the options to
            set.
        ServiceError: An EC2 call failed.
    """
    chosen = await (_named(access, vpc, subnets) if subnets else _default(access, vpc))
    return Network(
        chosen[0]["VpcId"],
        tuple(sorted(each["SubnetId"] for each in chosen)),
        all(each.get("MapPublicIpOnLaunch") for each in chosen),
    )


async def _named(access: Aws, vpc: str, subnets: Sequence[str]) -> list[dict[str, Any]]:
    wanted_ids = list(dict.fromkeys(subnets))
    try:
        reply = await call_aws(access, "ec2", "describe_subnets", SubnetIds=wanted_ids)
    except ServiceError as error:
        if not error.code.startswith("InvalidSubnet"):
            raise
        raise FarcallError(
            f"--subnets: {error}. Run `aws ec2 describe-subnets --region {access.region}` to "
            "list the existing subnets."
        ) from error
    described: list[dict[str, Any]] = reply["Subnets"]
    there = {each["SubnetId"]: each["VpcId"] for each in described}
    wanted = vpc or there[subnets[0]]
    for subnet, its in there.items():
        if its != wanted:
            named = f"--vpc is {vpc}" if vpc else f"{subnets[0]} is in {wanted}"
            raise FarcallError(
                f"--subnets: {subnet} is in {its}, but {named}. Choose subnets of one VPC."
            )
    return described


async def _default(access: Aws, vpc: str) -> list[dict[str, Any]]:
    filters = [{"Name": "default-for-az", "Values": ["true"]}]
    filters += [{"Name": "vpc-id", "Values": [vpc]}] if vpc else []
    reply = await call_aws(access, "ec2", "describe_subnets", Filters=filters)
    subnets: list[dict[str, Any]] = reply["Subnets"]
    if not subnets:
        where = f"VPC {vpc} does not exist, or" if vpc else "the default VPC"
        raise FarcallError(
            f"{where} has no default subnets in {access.region_and_origin}. Use --subnets to "
            "name subnets that can reach S3, CloudWatch Logs and the image registry."
        )
    return subnets
