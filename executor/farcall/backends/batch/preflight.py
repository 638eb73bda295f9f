"""Preflight checks before submission: queue, roles, log group and image."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from farcall.aws import clients, error_translation
from farcall.aws.clients import Aws
from farcall.backends.batch.client import Batch
from farcall.config.settings import FOREIGN_IMAGES, Settings
from farcall.model.errors import ServiceError, SettingsError

_log = logging.getLogger("farcall")

DEFAULT_DEFINITION: str = Settings.model_fields["batch_job_definition_name"].default


class Image(NamedTuple):
    """The image of the jobs.

    Attributes:
        uri: URI of the image.
        is_stock: Whether it lacks farcall's runtime.
    """

    uri: str
    is_stock: bool = False


@dataclass(frozen=True)
class Resources:
    """The resources that the options name.

    Attributes:
        job_role: ARN of the job role; empty for none.
        execution_role: ARN of the execution role; empty for none.
        environments: Batch's descriptions of the queue's compute environments; empty if unknown.
    """

    job_role: str
    execution_role: str
    environments: Sequence[Mapping[str, Any]] = ()


async def check(access: Aws, batch: Batch, settings: Settings) -> Resources:
    """Look up the resources that the options name.

    Missing permissions for IAM and logs are ignored: missing resources are then reported when a
    job starts.

    Raises:
        SettingsError: A resource that the options name does not exist, or cannot be used.
        ServiceError: Batch refused.
    """
    # First: in the wrong region, nothing exists, and the error names the region's queues.
    environments = await _check_queue(batch, settings, access.region_and_origin)
    _, job_role, execution_role = await asyncio.gather(
        _check_log_group(access, settings),
        _find_role(access, settings, "batch_job_role_name"),
        _find_role(access, settings, "batch_execution_role_name"),
    )
    return Resources(job_role, execution_role, environments)


async def find_queue(batch: Batch, settings: Settings, region: str) -> dict[str, Any]:
    """Return Batch's description of the job queue.

    Raises:
        SettingsError: The queue does not exist, or accepts no jobs.
        ServiceError: Batch refused.
    """
    name = settings.queue
    queue = await batch.find_queue(name)
    if queue is None:
        raise await unknown_queue(batch, name, region)
    if queue.get("state", "ENABLED") != "ENABLED" or queue.get("status") == "INVALID":
        raise SettingsError(
            f"queue is {name!r}, which is {queue.get('state')} and {queue.get('status')} "
            f"({queue.get('statusReason', 'no reason available')}); enable it, or set queue to "
            "another queue",
            option="queue",
        )
    return queue


async def unknown_queue(batch: Batch, name: str, region: str) -> SettingsError:
    """Return the error for a missing queue; it names the existing queues."""
    existing = "run `aws batch describe-job-queues` to list the queues"
    with contextlib.suppress(ServiceError):
        names = await batch.queues()
        close = difflib.get_close_matches(name, names, 1)
        if names:
            existing = (
                f"did you mean {close[0]}?" if close else f"its queues are {', '.join(names[:10])}"
            )
        if len(names) > 10 and not close:
            existing += f" and {len(names) - 10} more"
    return SettingsError(
        f"queue is {name!r}, which does not exist in {region}; {existing}; set queue to a queue "
        "in this region, or set region",
        option="queue",
    )


async def find_log_group(access: Aws, settings: Settings) -> dict[str, Any]:
    """Return CloudWatch's description of the group ``batch_job_log_group_name``.

    Raises:
        SettingsError: The group does not exist.
        ServiceError: CloudWatch refused.
    """
    name = settings.batch_job_log_group_name
    client = await access.client("logs")
    async for page in clients.pages(client, "describe_log_groups", logGroupNamePrefix=name):
        for group in page.get("logGroups", []):
            if group["logGroupName"] == name:
                described: dict[str, Any] = group
                return described
    raise SettingsError(
        f"batch_job_log_group_name is {name!r}, which does not exist in "
        f"{access.region_and_origin}; set region to the group's region, or create the group "
        f"(`aws logs create-log-group --log-group-name {name}`), or set batch_job_log_group_name "
        "to another group, or to an empty string for /aws/batch/job",
        option="batch_job_log_group_name",
    )


async def find_role(access: Aws, option: str, name: str) -> dict[str, Any]:
    """Return IAM's description of a role.

    Raises:
        SettingsError: The role does not exist.
        ServiceError: IAM refused.
    """
    try:
        client = await access.client("iam")
        reply = await clients.call(client, "get_role", RoleName=name.rpartition("/")[2])
    except ServiceError as error:
        if error.code != "NoSuchEntity":
            raise
        raise SettingsError(
            f"{option} is {name!r}, which does not exist in the account; create the role with "
            f"a trust policy for ecs-tasks.amazonaws.com, or set {option} to another role's "
            "name or ARN, or to an empty string for none",
            option=option,
        ) from error
    role: dict[str, Any] = reply["Role"]
    return role


async def find_image(batch: Batch, settings: Settings) -> Image:
    """Return the jobs' image: the option's, the definition's, or the stock image.

    Raises:
        ServiceError: Batch refused.
    """
    if settings.image:
        return Image(settings.image)
    name = settings.batch_job_definition_name
    definition = await batch.find_definition(name) if name else None
    image = str((definition or {}).get("containerProperties", {}).get("image", ""))
    if image and not image.startswith(FOREIGN_IMAGES):  # set by Covalent's own plugin
        return Image(image)
    stock = stock_image(settings)
    # The default name may be missing: Covalent's own plugin registers a definition of that name.
    if name not in ("", DEFAULT_DEFINITION):
        _log.warning(
            "batch_job_definition_name is %r, but this job definition does not exist or has "
            "no image for farcall's jobs, so they run in %s",
            *(name, stock.uri),
        )
    return stock


def offline_image(settings: Settings) -> Image:
    """Return the jobs' image, or a placeholder, without requests.

    A definition with the default name is assumed to be missing.
    """
    if settings.image:
        return Image(settings.image)
    name = settings.batch_job_definition_name
    if name not in ("", DEFAULT_DEFINITION):
        return Image(f"(image of {name})")
    return stock_image(settings)


def stock_image(settings: Settings) -> Image:
    """Return the image that contains only Python, of the client's minor version."""
    return Image(settings.stock_image, is_stock=True)


async def _check_queue(batch: Batch, settings: Settings, region: str) -> list[dict[str, Any]]:
    """Check that the queue exists; return its compute environments, if known."""
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
    except ServiceError as error:  # optional
        _log.debug("compute environments were not checked: %s", error)
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
            answers = failure.status and failure.code != error_translation.NOT_AWS
            if not (answers or access.has_console):  # only AWS's STS may be unreachable
                raise
            text = f"{failure}; set {option} to the role's ARN to avoid the lookup"
            raise error_translation.with_text(failure, text) from error
        return role_arn(access.region, account, name)


def role_arn(region: str, account: str, name: str) -> str:
    """Return the ARN of a role without a path."""
    return f"arn:{_partition(region)}:iam::{account}:role/{name}"


def _partition(region: str) -> str:
    """Return a region's partition in ARNs."""
    if region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"
