"""Warnings of `farcall deploy` about service quotas."""

from farcall import FarcallError
from farcall.deploy import quotas
from farcall.deploy.parameters import merged, requested

VCPUS = {"L-1216C47A": 5.0, "L-34B43A08": 512.0}


async def call_aws(access, service, operation, *, ServiceCode, QuotaCode):  # noqa: N803
    """Answer GetServiceQuota; the account may not read other quotas."""
    if QuotaCode not in VCPUS:
        raise FarcallError("AccessDenied")
    return {"Quota": {"Value": VCPUS[QuotaCode]}}


async def test_quota_below_maximum_is_reported(monkeypatch):
    monkeypatch.setattr(quotas, "call_aws", call_aws)
    wanted = requested(compute=("ec2", "spot", "fargate"), max_vcpus=16)
    [warning] = await quotas.warnings(None, merged(wanted, {}, "farcall"))
    assert warning.startswith("the account's quota is 5 vCPUs of EC2 on demand at a time")
    assert "--quota-code L-1216C47A --desired-value 16" in warning
