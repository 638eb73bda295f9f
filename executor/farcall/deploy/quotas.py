"""Service quotas: accounts whose vCPU quota is lower than their queues' maximum."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from farcall.aws.clients import Aws
from farcall.deploy import parameters
from farcall.deploy.aws_calls import call_aws
from farcall.deploy.parameters import EC2, FARGATE, FARGATE_SPOT, INSTANCES, KINDS, SPOT
from farcall.model.errors import FarcallError

_STANDARD = {
    EC2: ("ec2", "L-1216C47A"),
    SPOT: ("ec2", "L-34B43A08"),
    FARGATE: ("fargate", "L-3032A538"),
    FARGATE_SPOT: ("fargate", "L-36FBB829"),
}

_OF_GPUS = {EC2: ("ec2", "L-DB2E81BA"), SPOT: ("ec2", "L-3819A6DF")}
"""By kind of compute: service and code of the vCPU quota.

The quotas cover the instance families that Batch chooses; for GPUs, G and VT.

https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html
https://docs.aws.amazon.com/AmazonECS/latest/developerguide/service-quotas.html
"""


async def warnings(access: Aws, after: Mapping[str, str]) -> list[str]:
    """Return warnings for quotas that are lower than the queues' maximum.

    Quotas that cannot be read cause no warning, nor do stacks with named instance types.
    """
    kinds = parameters.compute(after)
    quotas = _STANDARD | (_OF_GPUS if after["Gpu"] == "true" else {})
    if after["InstanceTypes"]:
        kinds = [kind for kind in kinds if kind not in INSTANCES]
    limits = await asyncio.gather(*(_quota(access, *quotas[kind]) for kind in kinds))
    most = int(after["MaxVcpus"])
    return [
        (
            f"the account's quota is {vcpus:g} vCPUs of {KINDS[kind].text} at a time, but "
            f"the queue may start {most}: a job that requests more than {vcpus:g} waits "
            "indefinitely. Run `aws service-quotas request-service-quota-increase --service-code "
            f"{quotas[kind][0]} --quota-code {quotas[kind][1]} --desired-value {most}` to request "
            "more."
        )
        for kind, vcpus in zip(kinds, limits, strict=True)
        if vcpus is not None and vcpus < most
    ]


async def _quota(access: Aws, service: str, code: str) -> float | None:
    try:
        reply = await call_aws(
            access, "service-quotas", "get_service_quota", ServiceCode=service, QuotaCode=code
        )
    except FarcallError:  # a missing warning must not fail the command
        return None
    return float(reply["Quota"]["Value"])
