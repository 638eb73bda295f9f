"""What an account has: for whoever wants to see that nothing is left, and AWS's own policies."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from moto.backends import get_backend
from moto.iam.aws_managed_policies import aws_managed_policies_data
from moto.iam.models import AWSManagedPolicy

from farcall_local import names

#: What AWS puts into an account by itself has this path.
_SERVICE_LINKED = "/aws-service-role/"


def of_moto(locks: Mapping[str, AbstractContextManager[Any]]) -> dict[str, list[str]]:
    """Return the names of what moto keeps, by kind.

    Args:
        locks: Of the services; held while they are read.
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
        policies = iam.managed_policies.values()
        found["policies"] = [
            each.name for each in policies if not isinstance(each, AWSManagedPolicy)
        ]
        found["users"] = list(iam.users)
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


@functools.cache
def _documents() -> dict[str, Any]:
    """Return AWS's managed policies as moto has them."""
    found: dict[str, Any] = json.loads(aws_managed_policies_data)
    return found


def add_managed_policies(iam: Any) -> None:
    """Add AWS's managed policies to an account, which a role of a template may want.

    moto leaves them out unless told otherwise, for they are many.

    Args:
        iam: moto's IAM.
    """
    for name, data in _documents().items():
        policy = AWSManagedPolicy.from_data(name, iam.account_id, iam.region_name, data)
        iam.managed_policies.setdefault(policy.arn, policy)


def _backend(service: Any, region: str) -> Any:
    return get_backend(service)[names.ACCOUNT_ID][region]
