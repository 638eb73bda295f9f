"""What can be known to be missing before a job is paid for: queue, bucket, roles, log group."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from farcall import aws, failures
from farcall.aws import Aws
from farcall.batch import Batch
from farcall.errors import ServiceError, SettingsError
from farcall.settings import Settings
from farcall.store import Store

_log = logging.getLogger("farcall")


@dataclass(frozen=True)
class Resources:
    """What the options name, found in the account.

    Attributes:
        job_role: ARN of the job role; empty for none.
        execution_role: ARN of the execution role; empty for none.
    """

    job_role: str
    execution_role: str


async def check(
    access: Aws, batch: Batch, settings: Settings, store: Store, root: str
) -> Resources:
    """Look up what the options name.

    Whoever may not look (IAM, logs) is not stopped: what is missing then shows when a job starts.

    Args:
        access: The open clients.
        batch: Batch.
        settings: The options.
        store: The bucket's store.
        root: Key prefix of the run.

    Raises:
        SettingsError: Something the options name does not exist, or cannot be used.
        ServiceError: S3 or Batch refused.
    """
    _, _, _, job_role, execution_role = await asyncio.gather(
        store.check(root),
        _check_queue(batch, settings, access.region),
        _check_log_group(access, settings),
        _find_role(access, settings, "batch_job_role_name"),
        _find_role(access, settings, "batch_execution_role_name"),
    )
    return Resources(job_role, execution_role)


async def _check_queue(batch: Batch, settings: Settings, region: str) -> None:
    name = settings.batch_queue
    try:
        queue = await batch.find_queue(name)
    except ServiceError as error:
        if "AccessDenied" not in error.code:
            raise
        _log.debug("batch_queue was not checked: %s", error)
        return
    if queue is None:
        raise SettingsError(
            f"batch_queue is {name!r}, and there is no such queue in {region}; set "
            "batch_queue to one that `aws batch describe-job-queues` lists, or set region",
            option="batch_queue",
        )
    if queue.get("state", "ENABLED") != "ENABLED" or queue.get("status") == "INVALID":
        raise SettingsError(
            f"batch_queue is {name!r}, which is {queue.get('state')} and "
            f"{queue.get('status')} ({queue.get('statusReason', 'no reason given')}); "
            "enable it or set batch_queue to another",
            option="batch_queue",
        )


async def _check_log_group(access: Aws, settings: Settings) -> None:
    name = settings.batch_job_log_group_name
    if not name:
        return
    try:
        async with access.client("logs") as client:
            reply = await aws.call(client, "describe_log_groups", logGroupNamePrefix=name)
    except ServiceError as error:
        _log.debug("batch_job_log_group_name was not checked: %s", error)
        return
    if not any(group["logGroupName"] == name for group in reply.get("logGroups", [])):
        raise SettingsError(
            f"batch_job_log_group_name is {name!r}, and there is no such log group in "
            f"{access.region}; create it (`aws logs create-log-group --log-group-name {name}`), "
            "or set batch_job_log_group_name, empty for /aws/batch/job",
            option="batch_job_log_group_name",
        )


async def _find_role(access: Aws, settings: Settings, option: str) -> str:
    name: str = getattr(settings, option)
    if not name or name.startswith("arn:"):
        return name
    try:
        async with access.client("iam") as client:
            reply = await aws.call(client, "get_role", RoleName=name)
    except ServiceError as error:
        if error.code == "NoSuchEntity":
            raise SettingsError(
                f"{option} is {name!r}, and there is no such role in the account; create it with "
                f"a trust policy for ecs-tasks.amazonaws.com, or set {option} to another role's "
                "name or ARN, empty for none",
                option=option,
            ) from error
        _log.debug("%s was not checked: %s", option, error)
        try:
            account = await access.account()
        except ServiceError as failure:
            text = f"{failure}; {option} can be set to the role's ARN, then nobody is asked for it"
            raise failures.like(failure, text) from error
        return f"arn:{_partition(access.region)}:iam::{account}:role/{name}"
    return str(reply["Role"]["Arn"])


def _partition(region: str) -> str:
    """Return the partition in ARNs of a region."""
    if region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"
