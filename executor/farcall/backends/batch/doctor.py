"""Health checks of queue, compute environments, roles, log group and image."""

from __future__ import annotations

import asyncio
import json
import platform
import re
import shutil
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any

from farcall.aws import clients
from farcall.aws.clients import Aws
from farcall.aws.endpoints import DOMAINS
from farcall.aws.findings import finding_of
from farcall.backends.batch import fargate, placement
from farcall.backends.batch.client import Batch
from farcall.backends.batch.documents import resource_requirements
from farcall.backends.batch.preflight import (
    DEFAULT_DEFINITION,
    find_image,
    find_log_group,
    find_queue,
    find_role,
)
from farcall.config.settings import Settings
from farcall.model.clock import within
from farcall.model.errors import ServiceError, SettingsError
from farcall.model.findings import FAILED, OK, WARNING, Finding
from farcall_runtime.contract import PROTOCOL_VERSION

_ECS = "ecs-tasks.amazonaws.com"
_ASSUMES = ("sts:AssumeRole", "sts:*", "*")
_ECR = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\."
    rf"({'|'.join(map(re.escape, DOMAINS))})/"
    r"(?P<name>[^:@]+)(:(?P<tag>[^@]+))?(@(?P<digest>.+))?"
)
_DOCKER_S = 10


def checks(
    access: Aws, batch: Batch, settings: Settings, *, answers: bool
) -> dict[str, Awaitable[Iterable[Finding]]]:
    """Return all checks except `region`, by name.

    Args:
        access: The open clients.
        batch: The client of Batch.
        settings: The options.
        answers: Whether Batch responds; if not, queue and image are not checked.
    """
    checks_by_name: dict[str, Awaitable[Iterable[Finding]]] = {
        "resources": resources(settings),
        "job role": role(access, settings, "batch_job_role_name"),
        "execution role": role(access, settings, "batch_execution_role_name"),
        "log group": log_group(access, settings),
    }
    if answers:
        checks_by_name["queue"] = queue(access, batch, settings)
        checks_by_name["image"] = image(access, batch, settings)
    return checks_by_name


async def region(access: Aws) -> list[Finding]:
    """Check that Batch responds in the region."""
    reply = await clients.call(access.batch, "describe_job_queues", maxResults=1)
    url = access.batch.meta.endpoint_url
    text = f"{access.region_and_origin}, at {url}"
    if reply["ResponseMetadata"]["HTTPHeaders"].get("server") == "farcall-local":
        text += ", which is farcall's local AWS emulator"
    elif not access.has_console:
        text += ", which is not AWS itself"
    return [Finding("region", OK, text)]


async def queue(access: Aws, batch: Batch, settings: Settings) -> list[Finding]:
    """Check the queue and its compute environments."""
    described = await find_queue(batch, settings, access.region_and_origin)
    text = f"{described['jobQueueName']}, {described['state']} and {described['status']}"
    first = Finding("queue", OK, text)
    names = [each["computeEnvironment"] for each in described.get("computeEnvironmentOrder", [])]
    name = "compute environment"
    try:  # a queue has at most three, which are one page
        reply = await clients.call(
            access.batch, "describe_compute_environments", computeEnvironments=names
        )
    except ServiceError as error:
        return [first, finding_of(name, error)]
    all_of = [_environment(e, settings) for e in reply.get("computeEnvironments", [])]
    if any(finding.verdict == OK for finding in all_of):  # jobs can be placed
        all_of = [
            Finding(f.check, WARNING, f.found, f.remedy) if f.verdict == FAILED else f
            for f in all_of
        ]
    nothing = Finding(
        name,
        FAILED,
        "the queue has no compute environment",
        "add one to its computeEnvironmentOrder",
    )
    return [first, *(all_of or [nothing])]


def _environment(environment: Mapping[str, Any], settings: Settings) -> Finding:
    resources = environment.get("computeResources") or {}
    kind = resources.get("type") or environment.get("type", "")
    most = resources.get("maxvCpus", environment.get("unmanagedvCpus"))
    name = environment["computeEnvironmentName"]
    text = f"{name}, {kind}, {environment['state']} and {environment['status']}"
    text += f", up to {most} vCPUs" if most is not None else ""

    def failed(why: str, remedy: str) -> Finding:
        return Finding("compute environment", FAILED, f"{text}: {why}", remedy)

    if environment["state"] != "ENABLED":
        return failed("it accepts no jobs", f"enable {name}")
    if environment["status"] != "VALID":
        reason = environment.get("statusReason") or "Batch returns no reason"
        return failed(
            reason,
            "https://docs.aws.amazon.com/batch/latest/userguide/invalid_compute_environment.html",
        )
    if bool(resources) and kind.startswith("FARGATE") != fargate.is_requested(settings):
        wanted = "Fargate" if kind.startswith("FARGATE") else "EC2"
        return failed(
            f"it only runs jobs on {wanted}",
            f"set platformCapabilities to {[wanted.upper()]} in job_definition_extra, or "
            "queue to another queue",
        )
    if limit := placement.limit(environment, settings, settings.nodes):
        requested = f"vcpu is {settings.vcpu:g}, but it {limit}"
        return failed(requested, "raise maxvCpus, or reduce vcpu or nodes")
    return Finding("compute environment", OK, text)


async def resources(settings: Settings) -> list[Finding]:
    """Check that a task's resources are valid on the platform."""
    requested = {each["type"]: each["value"] for each in resource_requirements(settings)}
    text = f"{requested['VCPU']} vCPU and {requested['MEMORY']} MiB"
    text += f", {requested['GPU']} GPU" if "GPU" in requested else ""
    if fargate.is_requested(settings) and not settings.batch_execution_role_name:
        raise SettingsError(
            "batch_execution_role_name is empty, but jobs on Fargate require a role; set it "
            "to a role that can pull the image and write the log",
            option="batch_execution_role_name",
        )
    platform = "Fargate" if fargate.is_requested(settings) else "EC2"
    return [Finding("resources", OK, f"{text} on {platform}")]


async def role(access: Aws, settings: Settings, option: str) -> list[Finding]:
    """Check a role and its trust policy."""
    check = option.removeprefix("batch_").removesuffix("_name").replace("_", " ")
    name: str = getattr(settings, option)
    if not name:
        return [Finding(check, OK, "none: jobs have the permissions of their instance")]
    described = await find_role(access, option, name)
    arn = str(described["Arn"])
    if _trusts_ecs(described.get("AssumeRolePolicyDocument") or {}):
        return [Finding(check, OK, arn)]
    short = name.rpartition("/")[2]
    return [
        Finding(
            check,
            FAILED,
            f"{arn} does not trust {_ECS}, so no job starts",
            f"run `aws iam update-assume-role-policy --role-name {short} --policy-document "
            "file://trust.json` with the output of `farcall policy trust`",
        )
    ]


def _trusts_ecs(policy: Mapping[str, Any]) -> bool:
    for statement in _many(policy.get("Statement")):
        principal = statement.get("Principal", {})
        services = _many(principal.get("Service")) if isinstance(principal, dict) else []
        actions = _many(statement.get("Action"))
        allows = statement.get("Effect") == "Allow" and not set(_ASSUMES).isdisjoint(actions)
        if allows and _ECS in services:
            return True
    return False


def _many(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


async def log_group(access: Aws, settings: Settings) -> list[Finding]:
    """Check the log group."""
    if not settings.batch_job_log_group_name:
        return [Finding("log group", OK, "the default of AWS, /aws/batch/job")]
    group = await find_log_group(access, settings)
    days = group.get("retentionInDays")
    text = (
        f"{group['logGroupName']}, whose lines are kept "
        f"{f'for {days} days' if days else 'indefinitely'}"
    )
    return [Finding("log group", OK, text)]


async def image(access: Aws, batch: Batch, settings: Settings) -> list[Finding]:
    """Check the image, and its Python version if it is known here."""
    uri, is_stock = await find_image(batch, settings)
    place = _ECR.fullmatch(uri)
    if place and place["region"] == access.region:
        await _see_in_ecr(access, uri, place)
    here = ".".join(platform.python_version_tuple()[:2])
    config = await _in_docker(uri)
    variables = dict(each.partition("=")[::2] for each in config.get("Env") or ())
    python = variables.get("PYTHON_VERSION", "")
    protocol = (config.get("Labels") or {}).get("farcall.protocol-version", "")
    if config and not is_stock and protocol != str(PROTOCOL_VERSION):
        text = (
            f"{uri} has protocol {protocol or 'none'}, but this farcall requires "
            f"{PROTOCOL_VERSION}"
        )
        return [Finding("image", FAILED, text, "build it from this farcall's Dockerfile")]
    if python and python.rpartition(".")[0] != here:
        remedy = f"build it with BASE_IMAGE=python:{here}-slim, or run Python {python} here"
        if is_stock:
            remedy = f"set stock_image_uri to an image with Python {here}, or empty"
        return [
            Finding(
                "image", FAILED, f"{uri} has Python {python}, but this Python is {here}", remedy
            )
        ]
    python_text = f"with Python {python}" if python else f"which must contain Python {here}"
    if not is_stock:
        return [Finding("image", OK, f"{uri}, {python_text}")]
    text = f"{uri}, {python_text}; jobs download farcall's runtime from the bucket"
    name = settings.batch_job_definition_name
    if name in ("", DEFAULT_DEFINITION):
        return [Finding("image", OK, text)]
    text += f"; job definition {name!r} does not exist or has no image for them"
    remedy = "set batch_job_definition_name to an empty string, or set image"
    return [Finding("image", WARNING, text, remedy)]


async def _see_in_ecr(access: Aws, uri: str, place: re.Match[str]) -> None:
    wanted = {"imageTag": place["tag"] or "latest"}
    if place["digest"]:
        wanted = {"imageDigest": place["digest"]}
    try:
        await clients.call(
            await access.client("ecr"),
            "describe_images",
            registryId=place["account"],
            repositoryName=place["name"],
            imageIds=[wanted],
        )
    except ServiceError as error:
        if error.code not in ("ImageNotFoundException", "RepositoryNotFoundException"):
            raise
        raise SettingsError(
            f"image is {uri!r}, which does not exist; push it, or set "
            "image to one that `aws ecr describe-images` lists",
            option="image",
        ) from error


async def _in_docker(uri: str) -> dict[str, Any]:
    """Return an image's configuration in the local docker engine; empty if unknown."""
    program = shutil.which("docker")
    if program is None:
        return {}
    process = await asyncio.create_subprocess_exec(
        *(program, "image", "inspect", "--format", "{{json .Config}}", uri),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        out, _ = await within(_DOCKER_S, process.communicate())
        configuration = json.loads(out)
    except (TimeoutError, ValueError):
        return {}
    finally:
        if process.returncode is None:
            process.kill()
    return configuration if isinstance(configuration, dict) else {}
