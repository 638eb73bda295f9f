"""Resources of the account, so that tests can assert that none is left."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from moto.backends import get_backend

from farcall_local import names

#: Path of the roles that AWS creates by itself.
_SERVICE_LINKED = "/aws-service-role/"


def of_moto(locks: Mapping[str, AbstractContextManager[Any]]) -> dict[str, list[str]]:
    """Return the names of moto's resources, by kind.

    Args:
        locks: Locks of the services, which are held while they are read.
    """
    found: dict[str, list[str]] = {}
    with locks["s3"]:
        found["buckets"] = list(_backend("s3", "aws").buckets)
    with locks["logs"]:
        found["log groups"] = list(_backend("logs", names.REGION).groups)
    with locks["iam"]:
        iam = _backend("iam", "aws")
        roles = iam.roles.values()
        found["roles"] = [each.name for each in roles if not each.path.startswith(_SERVICE_LINKED)]
        found["instance profiles"] = [each.name for each in iam.instance_profiles.values()]
    if "moto.ec2.models" in sys.modules:
        with locks[""]:
            found.update(_of_ec2(_backend("ec2", names.REGION)))
    if "moto.ecr.models" in sys.modules:
        with locks[""]:
            found["repositories"] = list(_backend("ecr", names.REGION).repositories)
    return found


def _of_ec2(ec2: Any) -> dict[str, list[str]]:
    groups = [group for of_vpc in ec2.groups.values() for group in of_vpc.values()]
    return {
        "security groups": [each.name for each in groups if each.name != "default"],
        "launch templates": [each.name for each in ec2.launch_templates.values()],
    }


def _backend(service: Any, region: str) -> Any:
    return get_backend(service)[names.ACCOUNT_ID][region]
