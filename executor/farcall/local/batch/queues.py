"""Job queues and compute environments: as much as a second queue needs.

Every queue feeds the same processors of this machine, whatever its compute environment says, and
its priority is kept but not used. So multi-node parallel jobs run in environments, too, in which
AWS has none: unmanaged ones, and those of Spot instances.

Sources:
    https://docs.aws.amazon.com/batch/latest/APIReference/API_CreateJobQueue.html
    https://docs.aws.amazon.com/batch/latest/APIReference/API_CreateComputeEnvironment.html
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from farcall.local import names
from farcall.local.batch import paging, validate
from farcall.local.batch.errors import ClientError

MAX_DESCRIBED = 100
MAX_COMPUTE_ENVIRONMENTS = 3


@dataclass
class Resource:
    """A queue or compute environment.

    Attributes:
        name: Unique in its kind.
        arn: Its ARN.
        view: What describing it shows besides its tags.
        tags: Changed by TagResource.
    """

    name: str
    arn: str
    view: dict[str, Any]
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def enabled(self) -> bool:
        """Whether it takes jobs."""
        return bool(self.view["state"] == "ENABLED")

    @property
    def fair_share(self) -> bool:
        """Whether jobs of the queue must name their share."""
        return bool(self.view.get("schedulingPolicyArn"))

    def describe(self) -> dict[str, Any]:
        """Return the resource as its Describe operation shows it."""
        return {**self.view, "tags": self.tags}


class Queues:
    """All queues and compute environments, each findable by name and ARN."""

    def __init__(self) -> None:
        self._queues: dict[str, Resource] = {}
        self._environments: dict[str, Resource] = {}

    def create_environment(self, document: dict[str, Any]) -> dict[str, Any]:
        """Answer CreateComputeEnvironment."""
        validate.require(document, "computeEnvironmentName", "type")
        name = document["computeEnvironmentName"]
        validate.name(name, "Compute environment name")
        validate.tags(document.get("tags"))
        arn = names.batch_arn(f"compute-environment/{name}")
        if name in self._environments:
            raise ClientError(f"Object already exists: {arn}")
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
        """Answer CreateJobQueue."""
        validate.require(document, "jobQueueName", "computeEnvironmentOrder")
        name, order = document["jobQueueName"], document["computeEnvironmentOrder"]
        validate.name(name, "Job queue name")
        validate.tags(document.get("tags"))
        arn = names.batch_arn(f"job-queue/{name}")
        if name in self._queues:
            raise ClientError(f"Object already exists: {arn}")
        if len(order) > MAX_COMPUTE_ENVIRONMENTS:
            raise ClientError("A job queue can have at most 3 compute environments.")
        for item in order:
            _find(self._environments, item["computeEnvironment"], "ComputeEnvironment")
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

    def describe_queues(self, document: dict[str, Any]) -> dict[str, Any]:
        """Answer DescribeJobQueues; unknown names are left out."""
        rows, more = _describe(self._queues, document.get("jobQueues"), document)
        return {"jobQueues": rows, **more}

    def describe_environments(self, document: dict[str, Any]) -> dict[str, Any]:
        """Answer DescribeComputeEnvironments; unknown names are left out."""
        rows, more = _describe(self._environments, document.get("computeEnvironments"), document)
        return {"computeEnvironments": rows, **more}

    def queue(self, reference: str) -> Resource:
        """Return the queue of a name or ARN.

        Raises:
            ClientError: There is none.
        """
        return _find(self._queues, reference, "JobQueue")

    def tagged(self, arn: str) -> Resource | None:
        """Return the queue or compute environment with an ARN, for the tagging calls."""
        everything = [*self._queues.values(), *self._environments.values()]
        return next((one for one in everything if one.arn == arn), None)

    def environment_name(self, queue: Resource) -> str:
        """Return the name of the queue's first compute environment."""
        order = sorted(queue.view["computeEnvironmentOrder"], key=lambda item: item["order"])
        return str(order[0]["computeEnvironment"]).rpartition("/")[2]


def _find(table: dict[str, Resource], reference: str, kind: str) -> Resource:
    found = table.get(reference.rpartition("/")[2])
    if found is None or reference not in (found.name, found.arn):
        raise ClientError(f"{kind} {reference} not found.")
    return found


def _describe(
    table: dict[str, Resource], wanted: list[str] | None, document: dict[str, Any]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    chosen = [one for one in table.values() if not wanted or {one.name, one.arn} & set(wanted)]
    found, more = paging.page(chosen, document, MAX_DESCRIBED)
    return [one.describe() for one in found], more
