"""Job queues and compute environments: creation, changes and deletion.

All queues use the same processors of this machine, regardless of their compute environments, and
their priorities have no effect. So multi-node parallel jobs also run in environments that AWS
excludes: unmanaged environments and Spot environments.

Sources:
    https://docs.aws.amazon.com/batch/latest/APIReference/API_CreateJobQueue.html
    https://docs.aws.amazon.com/batch/latest/APIReference/API_CreateComputeEnvironment.html
    https://docs.aws.amazon.com/batch/latest/APIReference/API_ComputeResource.html
    https://docs.aws.amazon.com/batch/latest/APIReference/API_DeleteComputeEnvironment.html
    https://docs.aws.amazon.com/batch/latest/APIReference/API_DeleteJobQueue.html
    https://docs.aws.amazon.com/batch/latest/APIReference/API_UpdateComputeEnvironment.html
    https://docs.aws.amazon.com/batch/latest/APIReference/API_UpdateJobQueue.html
    https://github.com/hashicorp/terraform-provider-aws/issues/2044
        Error of DeleteComputeEnvironment if a queue still uses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from farcall_local import names
from farcall_local.batch import paging, validate
from farcall_local.batch.errors import ClientError

MAX_DESCRIBED = 100
MAX_COMPUTE_ENVIRONMENTS = 3

#: Range of the minutes for which an idle instance may be retained, in addition to 0.
SCALE_DOWN_DELAY = range(20, 10_080 + 1)

#: Interval in seconds between checks whether a deleted queue's jobs have finished.
LOOK_S = 0.05

_FARGATE = ("FARGATE", "FARGATE_SPOT")
_NEEDED = {"maxvCpus", "subnets", "type"}
_NEEDED_ON_INSTANCES = {"instanceRole", "instanceTypes"}


@dataclass
class Resource:
    """Queue or compute environment.

    Attributes:
        name: Name, unique in its kind.
        arn: ARN of the resource.
        view: Its description without tags.
        tags: Tags of the request.
    """

    name: str
    arn: str
    view: dict[str, Any]
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def enabled(self) -> bool:
        """Whether it accepts jobs."""
        return bool(self.view["state"] == "ENABLED")

    @property
    def fair_share(self) -> bool:
        """Whether jobs of the queue need a share identifier."""
        return bool(self.view.get("schedulingPolicyArn"))

    def describe(self) -> dict[str, Any]:
        """Return the resource in the format of its Describe operation."""
        return {**self.view, "tags": self.tags}


class Queues:
    """Registry of all queues and compute environments, by name and ARN."""

    def __init__(self) -> None:
        self._queues: dict[str, Resource] = {}
        self._environments: dict[str, Resource] = {}

    def create_environment(self, document: dict[str, Any]) -> dict[str, Any]:
        """Handle CreateComputeEnvironment."""
        validate.require(document, "computeEnvironmentName", "type")
        name = document["computeEnvironmentName"]
        validate.name(name, "Compute environment name")
        validate.tags(document.get("tags"))
        arn = names.batch_arn(f"compute-environment/{name}")
        if name in self._environments:
            raise ClientError(f"Object already exists: {arn}")
        _check_environment(document)
        kept = ("type", "computeResources", "serviceRole", "unmanagedvCpus")
        view = {
            **{key: document[key] for key in kept if key in document},
            "computeEnvironmentName": name,
            "computeEnvironmentArn": arn,
            "containerOrchestrationType": "ECS",
            "state": document.get("state") or "ENABLED",
            "status": "VALID",
            "statusReason": "ComputeEnvironment Healthy",
        }
        self._environments[name] = Resource(name, arn, view, dict(document.get("tags") or {}))
        return {"computeEnvironmentName": name, "computeEnvironmentArn": arn}

    def create_queue(self, document: dict[str, Any]) -> dict[str, Any]:
        """Handle CreateJobQueue."""
        validate.require(document, "jobQueueName", "computeEnvironmentOrder")
        name, order = document["jobQueueName"], document["computeEnvironmentOrder"]
        validate.name(name, "Job queue name")
        validate.tags(document.get("tags"))
        arn = names.batch_arn(f"job-queue/{name}")
        if name in self._queues:
            raise ClientError(f"Object already exists: {arn}")
        self._check_order(order)
        kept = ("priority", "schedulingPolicyArn", "jobStateTimeLimitActions")
        view = {
            **{key: document[key] for key in kept if key in document},
            "jobQueueName": name,
            "jobQueueArn": arn,
            "computeEnvironmentOrder": order,
            "state": document.get("state") or "ENABLED",
            "status": "VALID",
            "statusReason": "JobQueue Healthy",
        }
        self._queues[name] = Resource(name, arn, view, dict(document.get("tags") or {}))
        return {"jobQueueName": name, "jobQueueArn": arn}

    def _check_order(self, order: list[dict[str, Any]]) -> None:
        if len(order) > MAX_COMPUTE_ENVIRONMENTS:
            raise ClientError("A job queue can have at most 3 compute environments.")
        for item in order:
            _find(self._environments, item["computeEnvironment"], "ComputeEnvironment")

    def update_environment(self, document: dict[str, Any]) -> dict[str, Any]:
        """Handle UpdateComputeEnvironment; missing members are unchanged."""
        validate.require(document, "computeEnvironment")
        found = _find(self._environments, document["computeEnvironment"], "ComputeEnvironment")
        _check_settled(found, "update")
        _check_state(document)
        changed: dict[str, Any] = {
            key: document[key]
            for key in ("state", "serviceRole", "unmanagedvCpus", "updatePolicy")
            if key in document
        }
        if document.get("computeResources"):
            if found.view["type"] != "MANAGED":
                raise ClientError("computeResources can only be given for managed environments.")
            before = found.view.get("computeResources") or {}
            changed["computeResources"] = {**before, **document["computeResources"]}
            _check_resources(changed["computeResources"])
        found.view.update(changed)
        _settle(found)
        return {"computeEnvironmentName": found.name, "computeEnvironmentArn": found.arn}

    def delete_environment(self, document: dict[str, Any]) -> dict[str, Any]:
        """Handle DeleteComputeEnvironment; a missing environment is not an error."""
        validate.require(document, "computeEnvironment")
        found = self._environments.get(document["computeEnvironment"].rpartition("/")[2])
        if found is None:
            return {}
        _check_settled(found, "delete")
        if found.enabled:
            raise ClientError("Cannot delete, compute environment must be DISABLED first.")
        if any(
            item["computeEnvironment"] in (found.name, found.arn)
            for queue in self._queues.values()
            for item in queue.view["computeEnvironmentOrder"]
        ):
            raise ClientError("Cannot delete, found existing JobQueue relationship")
        found.view["status"] = "DELETING"
        asyncio.get_running_loop().call_soon(self._environments.pop, found.name)
        return {}

    def update_queue(self, document: dict[str, Any]) -> dict[str, Any]:
        """Handle UpdateJobQueue; missing members are unchanged."""
        validate.require(document, "jobQueue")
        found = self.queue(document["jobQueue"])
        _check_settled(found, "update")
        _check_state(document)
        if "computeEnvironmentOrder" in document:
            self._check_order(document["computeEnvironmentOrder"])
        kept = (
            "computeEnvironmentOrder",
            "jobStateTimeLimitActions",
            "priority",
            "schedulingPolicyArn",
            "state",
        )
        found.view.update({key: document[key] for key in kept if key in document})
        _settle(found)
        return {"jobQueueName": found.name, "jobQueueArn": found.arn}

    def delete_queue(
        self, document: dict[str, Any], end_jobs: Callable[[Resource], bool]
    ) -> dict[str, Any]:
        """Handle DeleteJobQueue; a missing queue is not an error.

        Args:
            document: The request.
            end_jobs: Terminates the jobs of a queue, and returns whether all have finished.
        """
        validate.require(document, "jobQueue")
        found = self._queues.get(document["jobQueue"].rpartition("/")[2])
        if found is None or found.view["status"] == "DELETING":
            return {}
        _check_settled(found, "delete")
        if found.enabled:
            raise ClientError("Cannot delete, job queue must be DISABLED first.")
        found.view["status"] = "DELETING"
        loop = asyncio.get_running_loop()

        def look() -> None:
            if end_jobs(found):
                self._queues.pop(found.name)
            else:
                loop.call_later(LOOK_S, look)

        loop.call_soon(look)
        return {}

    def describe_queues(self, document: dict[str, Any]) -> dict[str, Any]:
        """Handle DescribeJobQueues; unknown names are left out."""
        rows, more = _describe(self._queues, document.get("jobQueues"), document)
        return {"jobQueues": rows, **more}

    def describe_environments(self, document: dict[str, Any]) -> dict[str, Any]:
        """Handle DescribeComputeEnvironments; unknown names are left out."""
        rows, more = _describe(self._environments, document.get("computeEnvironments"), document)
        return {"computeEnvironments": rows, **more}

    def inventory(self) -> dict[str, list[str]]:
        """Return the names of all queues and compute environments."""
        return {
            "compute environments": list(self._environments),
            "job queues": list(self._queues),
        }

    def queue(self, reference: str) -> Resource:
        """Return the queue with a name or ARN.

        Raises:
            ClientError: The queue does not exist.
        """
        return _find(self._queues, reference, "JobQueue")

    def environment_name(self, queue: Resource) -> str:
        """Return the name of the queue's first compute environment."""
        order = sorted(queue.view["computeEnvironmentOrder"], key=lambda item: item["order"])
        return str(order[0]["computeEnvironment"]).rpartition("/")[2]


def _find(table: dict[str, Resource], reference: str, kind: str) -> Resource:
    found = table.get(reference.rpartition("/")[2])
    if found is None or reference not in (found.name, found.arn):
        raise ClientError(f"{kind} {reference} not found.")
    return found


def _check_environment(document: dict[str, Any]) -> None:
    _check_state(document)
    if document["type"] not in ("MANAGED", "UNMANAGED"):
        raise ClientError("type must be MANAGED or UNMANAGED.")
    given = document.get("computeResources")
    if document["type"] == "UNMANAGED":
        if given:
            raise ClientError("computeResources can only be given for managed environments.")
        return
    validate.require(document, "computeResources")
    _check_resources(document["computeResources"])


def _check_resources(given: dict[str, Any]) -> None:
    """Check computeResources for its type's required and unsupported members."""
    needed = set(_NEEDED)
    if given.get("type") in _FARGATE:
        needed.add("securityGroupIds")
        misplaced = sorted({*_NEEDED_ON_INSTANCES, "minvCpus"} & set(given))
        if misplaced:
            raise ClientError(f"{', '.join(misplaced)} must not be specified for Fargate.")
    else:
        needed |= _NEEDED_ON_INSTANCES
    missing = sorted(needed - set(given))
    if missing:
        raise ClientError(f"computeResources: {', '.join(missing)} must be specified.")
    delay = (given.get("scalingPolicy") or {}).get("minScaleDownDelayMinutes", 0)
    if delay and delay not in SCALE_DOWN_DELAY:
        raise ClientError(
            "minScaleDownDelayMinutes must be 0, or between "
            f"{SCALE_DOWN_DELAY[0]} and {SCALE_DOWN_DELAY[-1]}."
        )


def _check_state(document: dict[str, Any]) -> None:
    if document.get("state", "ENABLED") not in ("ENABLED", "DISABLED"):
        raise ClientError("state must be ENABLED or DISABLED.")


def _check_settled(found: Resource, verb: str) -> None:
    if found.view["status"] != "VALID":
        raise ClientError(f"Cannot {verb}, resource is being modified.")


def _settle(found: Resource) -> None:
    """Keep a change in progress until the next event loop iteration."""
    found.view["status"] = "UPDATING"
    asyncio.get_running_loop().call_soon(found.view.update, {"status": "VALID"})


def _describe(
    table: dict[str, Resource], wanted: list[str] | None, document: dict[str, Any]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    chosen = [one for one in table.values() if not wanted or {one.name, one.arn} & set(wanted)]
    found, more = paging.page(chosen, document, MAX_DESCRIBED)
    return [one.describe() for one in found], more
