"""Network of the jobs: the VPC and subnets that are named, or the account's default ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from farcall.aws.clients import Aws
from farcall.deploy.asking import ask
from farcall.model.errors import FarcallError, ServiceError


@dataclass(frozen=True)
class Network:
    """Where jobs are.

    Attributes:
        vpc: The VPC's ID.
        subnets: IDs of subnets of it.
        is_public: Whether what starts there has a public address.
    """

    vpc: str
    subnets: tuple[str, ...]
    is_public: bool


async def choose(access: Aws, vpc: str, subnets: Sequence[str]) -> Network:
    """Find the network.

    Args:
        access: The open clients.
        vpc: The VPC's ID; empty for that of the subnets, or the default one.
        subnets: Their IDs; none for those that the default VPC has in each zone.

    Raises:
        FarcallError: There is none, or they do not belong together; says which options to give.
        ServiceError: EC2 refused.
    """
    if subnets:
        found = await _named(access, vpc, subnets)
    else:
        found = await _default(access, vpc or await _default_vpc(access))
    return Network(
        found[0]["VpcId"],
        tuple(sorted(each["SubnetId"] for each in found)),
        all(each.get("MapPublicIpOnLaunch") for each in found),
    )


async def _named(access: Aws, vpc: str, subnets: Sequence[str]) -> list[dict[str, Any]]:
    try:
        reply = await ask(
            access, "ec2", "describe_subnets", SubnetIds=list(dict.fromkeys(subnets))
        )
    except ServiceError as error:
        if not error.code.startswith("InvalidSubnet"):
            raise
        raise FarcallError(
            f"--subnets: {error}; `aws ec2 describe-subnets --region {access.region}` lists those "
            "that there are"
        ) from error
    found: list[dict[str, Any]] = reply["Subnets"]
    there = {each["SubnetId"]: each["VpcId"] for each in found}
    wanted = vpc or there[subnets[0]]
    for subnet, its in there.items():
        if its != wanted:
            named = f"--vpc is {vpc}" if vpc else f"{subnets[0]} is of {wanted}"
            raise FarcallError(
                f"--subnets: {subnet} is of {its}, and {named}; all have to be of one VPC"
            )
    return found


async def _default_vpc(access: Aws) -> str:
    filters = [{"Name": "is-default", "Values": ["true"]}]
    reply = await ask(access, "ec2", "describe_vpcs", Filters=filters)
    if not reply["Vpcs"]:
        raise FarcallError(
            f"{access.region_and_origin} has no default VPC; name subnets with --subnets, from "
            "which S3, CloudWatch Logs and the images' registry can be reached, or let `aws ec2 "
            f"create-default-vpc --region {access.region}` make a VPC, which costs nothing"
        )
    return str(reply["Vpcs"][0]["VpcId"])


async def _default(access: Aws, vpc: str) -> list[dict[str, Any]]:
    filters = [{"Name": "vpc-id", "Values": [vpc]}]
    reply = await ask(access, "ec2", "describe_subnets", Filters=filters)
    found: list[dict[str, Any]] = reply["Subnets"]
    default = [each for each in found if each.get("DefaultForAz")]
    if default:
        return default
    if not found:
        raise FarcallError(
            f"VPC {vpc} has no subnet in {access.region_and_origin}, or does not exist; name "
            "another with --vpc, or subnets with --subnets"
        )
    listed = ", ".join(f"{each['SubnetId']} ({each['AvailabilityZone']})" for each in found)
    raise FarcallError(
        f"VPC {vpc} has no default subnets; name those by --subnets from which S3, CloudWatch "
        f"Logs and the images' registry can be reached. It has {listed}"
    )
