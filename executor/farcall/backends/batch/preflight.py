"""Preflight checks: what is missing before a job is paid for: queue, roles, log group, image."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from farcall.aws import clients, refusals
from farcall.aws.clients import Aws
from farcall.backends.batch.client import Batch
from farcall.model.errors import ServiceError, SettingsError
from farcall.model.settings import FOREIGN_IMAGES, Settings

_log = logging.getLogger("farcall")

DEFAULT_DEFINITION: str = Settings.model_fields["batch_job_definition_name"].default


class Image(NamedTuple):
    """The image of the jobs.

    Attributes:
        uri: Its URI.
        is_stock: Whether it lacks farcall's runtime.
    """

    uri: str
    is_stock: bool = False


@dataclass(frozen=True)
class Resources:
    """What the options name, found in the account.

    Attributes:
        job_role: ARN of the job role; empty for none.
        execution_role: ARN of the execution role; empty for none.
        environments: The queue's compute environments, as Batch describes them; none where that
            is not known.
    """

    job_role: str
    execution_role: str
    environments: Sequence[Mapping[str, Any]] = ()


async def check(access: Aws, batch: Batch, settings: Settings) -> Resources:
    """Look up what the options name.

    Whoever may not look (IAM, logs) is not stopped: what is missing then shows when a job starts.

    Raises:
        SettingsError: Something the options name does not exist, or cannot be used.
        ServiceError: Batch refused.
    """
    environments, _, job_role, execution_role = await asyncio.gather(
        _check_queue(batch, settings, access.region_and_origin),
        _check_log_group(access, settings),
        _find_role(access, settings, "batch_job_role_name"),
        _find_role(access, settings, "batch_execution_role_name"),
    )
    return Resources(job_role, execution_role, environments)


async def find_queue(batch: Batch, settings: Settings, region: str) -> dict[str, Any]:
    """Return the job queue, as Batch describes it.

    Raises:
        SettingsError: There is none, or it takes no jobs.
        ServiceError: Batch refused.
    """
    name = settings.queue
    queue = await batch.find_queue(name)
    if queue is None:
        raise await unknown_queue(batch, name, region)
    if queue.get("state", "ENABLED") != "ENABLED" or queue.get("status") == "INVALID":
        raise SettingsError(
            f"queue is {name!r}, which is {queue.get('state')} and "
            f"{queue.get('status')} ({queue.get('statusReason', 'no reason given')}); "
            "enable it or set queue to another",
            option="queue",
        )
    return queue


async def unknown_queue(batch: Batch, name: str, region: str) -> SettingsError:
    """Return the error of a queue that is not there; it names those that are."""
    found = "`aws batch describe-job-queues` lists what there is"
    with contextlib.suppress(ServiceError):
        names = await batch.listing.queues()
        close = difflib.get_close_matches(name, names, 1)
        if names:
            found = f"did you mean {close[0]}?" if close else f"there are {', '.join(names[:10])}"
        if len(names) > 10 and not close:
            found += f" and {len(names) - 10} more"
    return SettingsError(
        f"queue is {name!r}, which is not a queue in {region}; {found}; set "
        "queue to one of this region, or set region",
        option="queue",
    )


async def find_log_group(access: Aws, settings: Settings) -> dict[str, Any]:
    """Return the log group that ``batch_job_log_group_name`` names, as CloudWatch describes it.

    Raises:
        SettingsError: There is none.
        ServiceError: CloudWatch refused.
    """
    name = settings.batch_job_log_group_name
    token: dict[str, Any] = {}
    client = await access.client("logs")
    while True:
        reply = await clients.call(client, "describe_log_groups", logGroupNamePrefix=name, **token)
        for group in reply.get("logGroups", []):
            if group["logGroupName"] == name:
                found: dict[str, Any] = group
                return found
        if not reply.get("nextToken"):
            break
        token = {"nextToken": reply["nextToken"]}
    raise SettingsError(
        f"batch_job_log_group_name is {name!r}, which is not a log group in "
        f"{access.region_and_origin}; create it (`aws logs create-log-group --log-group-name "
        f"{name}`), or set batch_job_log_group_name, empty for /aws/batch/job",
        option="batch_job_log_group_name",
    )


async def find_role(access: Aws, option: str, name: str) -> dict[str, Any]:
    """Return a role, as IAM describes it.

    Raises:
        SettingsError: There is none.
        ServiceError: IAM refused.
    """
    try:
        client = await access.client("iam")
        reply = await clients.call(client, "get_role", RoleName=name.rpartition("/")[2])
    except ServiceError as error:
        if error.code != "NoSuchEntity":
            raise
        raise SettingsError(
            f"{option} is {name!r}, which is not a role in the account; create it with "
            f"a trust policy for ecs-tasks.amazonaws.com, or set {option} to another role's "
            "name or ARN, empty for none",
            option=option,
        ) from error
    role: dict[str, Any] = reply["Role"]
    return role


async def find_image(batch: Batch, settings: Settings) -> Image:
    """Return the image of the jobs: the option's, that of the definition it names, or the stock's.

    Raises:
        ServiceError: Batch refused.
    """
    if settings.image:
        return Image(settings.image)
    name = settings.batch_job_definition_name
    found = await batch.find_definition(name) if name else None
    image = str((found or {}).get("containerProperties", {}).get("image", ""))
    if image and not image.startswith(FOREIGN_IMAGES):  # with which Covalent's own plugin left it
        return Image(image)
    stock = stock_image(settings)
    # Covalent's own plugin registers a definition of this name, so that it need not be there.
    if name not in ("", DEFAULT_DEFINITION):
        _log.warning(
            "batch_job_definition_name is %r, and there is no such job definition with an image "
            "for farcall's jobs: they run in %s",
            *(name, stock.uri),
        )
    return stock


def unasked_image(settings: Settings) -> Image:
    """Return the image of the jobs as far as the options tell, or what stands for it.

    A definition of the default's name is taken for missing.
    """
    if settings.image:
        return Image(settings.image)
    name = settings.batch_job_definition_name
    if name not in ("", DEFAULT_DEFINITION):
        return Image(f"(image of {name})")
    return stock_image(settings)


def stock_image(settings: Settings) -> Image:
    """Return the image that holds Python alone, of the client's minor version."""
    return Image(settings.stock_image, is_stock=True)


async def _check_queue(batch: Batch, settings: Settings, region: str) -> list[dict[str, Any]]:
    """See that the queue is there; return its compute environments, as far as they are known."""
    try:
        queue = await find_queue(batch, settings, region)
    except ServiceError as error:
        if "AccessDenied" not in error.code:
            raise
        _log.debug("queue was not checked: %s", error)
        return []
    names = [each["computeEnvironment"] for each in queue.get("computeEnvironmentOrder", [])]
    try:
        return await batch.find_environments(names)
    except ServiceError as error:  # no job needs it
        _log.debug("compute environments were not looked at: %s", error)
        return []


async def _check_log_group(access: Aws, settings: Settings) -> None:
    if not settings.batch_job_log_group_name:
        return
    try:
        await find_log_group(access, settings)
    except ServiceError as error:
        _log.debug("batch_job_log_group_name was not checked: %s", error)


async def _find_role(access: Aws, settings: Settings, option: str) -> str:
    name: str = getattr(settings, option)
    if not name or name.startswith("arn:"):
        return name
    try:
        return str((await find_role(access, option, name))["Arn"])
    except ServiceError as error:
        _log.debug("%s was not checked: %s", option, error)
        try:
            account = await access.account()
        except ServiceError as failure:
            answers = failure.status and failure.code != refusals.NOT_AWS
            if not (answers or access.has_console):  # AWS's own may be out of reach alone
                raise
            text = f"{failure}; {option} can be set to the role's ARN, then nobody is asked for it"
            raise refusals.like(failure, text) from error
        return role_arn(access.region, account, name)


def role_arn(region: str, account: str, name: str) -> str:
    """Return the ARN that a role without a path has."""
    return f"arn:{_partition(region)}:iam::{account}:role/{name}"


def _partition(region: str) -> str:
    """Return the partition in ARNs of a region."""
    if region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"
