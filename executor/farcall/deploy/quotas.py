"""Service quotas: where an account may have fewer vCPUs at a time than its queues may start."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from farcall.aws.clients import Aws
from farcall.deploy import parameters as wanted
from farcall.deploy.asking import ask
from farcall.model.errors import FarcallError

_STANDARD = {
    wanted.EC2: ("ec2", "L-1216C47A"),
    wanted.SPOT: ("ec2", "L-34B43A08"),
    wanted.FARGATE: ("fargate", "L-3032A538"),
    wanted.FARGATE_SPOT: ("fargate", "L-36FBB829"),
}
_OF_GPUS = {wanted.EC2: ("ec2", "L-DB2E81BA"), wanted.SPOT: ("ec2", "L-3819A6DF")}
"""By kind of compute: the service and the code of the quota, which counts vCPUs. Of the families
that Batch chooses; of GPUs, of G and VT.

https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html
https://docs.aws.amazon.com/AmazonECS/latest/developerguide/service-quotas.html
"""


async def warnings(access: Aws, parameters: Mapping[str, str]) -> list[str]:
    """Say which quotas are less than what the queues may start.

    Nothing is said of one that cannot be asked for, nor where instance types are named.
    """
    kinds = wanted.compute(parameters)
    quotas = _STANDARD | (_OF_GPUS if parameters["Gpu"] == "true" else {})
    if parameters["InstanceTypes"]:
        kinds = [kind for kind in kinds if kind not in wanted.INSTANCES]
    found = await asyncio.gather(*(_quota(access, *quotas[kind]) for kind in kinds))
    most = int(parameters["MaxVcpus"])
    return [
        f"the account may have {vcpus:g} vCPUs of {wanted.KINDS[kind].text} at a time, and the "
        f"queue may start {most}: a job that asks for more than {vcpus:g} waits for ever; `aws "
        f"service-quotas request-service-quota-increase --service-code {quotas[kind][0]} "
        f"--quota-code {quotas[kind][1]} --desired-value {most}` asks for more"
        for kind, vcpus in zip(kinds, found, strict=True)
        if vcpus is not None and vcpus < most
    ]


async def _quota(access: Aws, service: str, code: str) -> float | None:
    try:
        reply = await ask(
            access, "service-quotas", "get_service_quota", ServiceCode=service, QuotaCode=code
        )
    except FarcallError:  # a warning is not worth an error
        return None
    return float(reply["Quota"]["Value"])
