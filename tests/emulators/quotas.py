"""Service Quotas of the local AWS emulator: the vCPUs that a new account may have at a time.

moto knows the quotas of networks alone. Batch here keeps to none of them.

Sources:
    https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html
    https://docs.aws.amazon.com/AmazonECS/latest/developerguide/service-quotas.html
    https://docs.aws.amazon.com/servicequotas/2019-06-24/apireference/API_GetServiceQuota.html
"""

from __future__ import annotations

from typing import Any

from moto.servicequotas import models

from farcall_local import names

#: By service and code: what it counts, and AWS's default.
_VCPUS = {
    ("ec2", "L-1216C47A"): ("Running On-Demand Standard instances", 5.0),
    ("ec2", "L-34B43A08"): ("All Standard Spot Instance Requests", 5.0),
    ("ec2", "L-DB2E81BA"): ("Running On-Demand G and VT instances", 0.0),
    ("ec2", "L-3819A6DF"): ("All G and VT Spot Instance Requests", 0.0),
    ("fargate", "L-3032A538"): ("Fargate On-Demand vCPU resource count", 6.0),
    ("fargate", "L-36FBB829"): ("Fargate Spot vCPU resource count", 6.0),
}

_others = models.ServiceQuotasBackend.get_service_quota


def get_service_quota(backend: Any, service_code: str, quota_code: str) -> dict[str, Any]:
    """Answer GetServiceQuota, instead of the method of moto's backend."""
    if (service_code, quota_code) not in _VCPUS:
        found: dict[str, Any] = _others(backend, service_code, quota_code)
        return found
    name, value = _VCPUS[service_code, quota_code]
    account = f"{names.REGION}:{names.ACCOUNT_ID}"
    return {
        "ServiceCode": service_code,
        "QuotaCode": quota_code,
        "QuotaArn": f"arn:aws:servicequotas:{account}:{service_code}/{quota_code}",
        "QuotaName": name,
        "Value": value,
        "Unit": "None",
        "Adjustable": True,
        "GlobalQuota": False,
    }


def install() -> None:
    """Have moto answer so."""
    backend: Any = models.ServiceQuotasBackend
    backend.get_service_quota = get_service_quota
