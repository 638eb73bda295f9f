"""Job queues and compute environments.

All queues use the same processors of this machine, regardless of their compute environments, and
their priorities have no effect. The resources of a compute environment are not checked.

Sources:
    https://docs.aws.amazon.com/batch/latest/APIReference/API_CreateJobQueue.html
    https://docs.aws.amazon.com/batch/latest/APIReference/API_CreateComputeEnvironment.html
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from farcall_local import names
from farcall_local.batch import paging, validate
from farcall_local.batch.errors import ClientError

MAX_DESCRIBED = 100
MAX_COMPUTE_ENVIRONMENTS = 3


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


class Table:
    """Registry of one kind of resource.

    Args:
        noun: Prefix of its members in requests, such as ``jobQueue``.
        path: First part of its ARNs, such as ``job-queue``.
        kept: Members of requests that descriptions contain.

    Attributes:
        by_name: The resources by name.
    """

    def __init__(self, noun: str, path: str, *kept: str) -> None:
        self.by_name: dict[str, Resource] = {}
        self._noun = noun
        self._kind = noun[0].upper() + noun[1:]
        self._path = path
        self._kept = kept

    def create(self, document: dict[str, Any]) -> dict[str, Any]:
        """Add a resource."""
        validate.require(document, f"{self._noun}Name")
        name = document[f"{self._noun}Name"]
        validate.name(name, f"{self._noun}Name")
        validate.tags(document.get("tags"))
        arn = names.batch_arn(f"{self._path}/{name}")
        if name in self.by_name:
            raise ClientError(f"Object already exists: {arn}")
        view = {
            "state": "ENABLED",
            **{key: document[key] for key in self._kept if key in document},
            f"{self._noun}Name": name,
            f"{self._noun}Arn": arn,
            "status": "VALID",
            "statusReason": f"{self._kind} Healthy",
        }
        self.by_name[name] = Resource(name, arn, view, dict(document.get("tags") or {}))
        return {f"{self._noun}Name": name, f"{self._noun}Arn": arn}

    def find(self, reference: str) -> Resource:
        """Return the resource with a name or ARN.

        Raises:
            ClientError: The resource does not exist.
        """
        resource = self.by_name.get(reference.rpartition("/")[2])
        if resource is None or reference not in (resource.name, resource.arn):
            raise ClientError(f"{self._kind} {reference} not found.")
        return resource

    def describe(self, document: dict[str, Any]) -> dict[str, Any]:
        """Describe resources; unknown names are left out."""
        wanted = set(document.get(f"{self._noun}s") or ())
        chosen = [
            {**one.view, "tags": one.tags}
            for one in self.by_name.values()
            if not wanted or {one.name, one.arn} & wanted
        ]
        rows, more = paging.page(chosen, document, MAX_DESCRIBED)
        return {f"{self._noun}s": rows, **more}


class Queues:
    """All queues and compute environments."""

    def __init__(self) -> None:
        self.environments = Table(
            "computeEnvironment",
            "compute-environment",
            *("type", "state", "computeResources", "serviceRole", "unmanagedvCpus"),
            "containerOrchestrationType",
        )
        self.queues = Table(
            "jobQueue",
            "job-queue",
            *("state", "priority", "schedulingPolicyArn", "computeEnvironmentOrder"),
            "jobStateTimeLimitActions",
        )

    def create_environment(self, document: dict[str, Any]) -> dict[str, Any]:
        """Handle CreateComputeEnvironment."""
        return self.environments.create({**document, "containerOrchestrationType": "ECS"})

    def create_queue(self, document: dict[str, Any]) -> dict[str, Any]:
        """Handle CreateJobQueue."""
        validate.require(document, "computeEnvironmentOrder")
        self._check_order(document["computeEnvironmentOrder"])
        return self.queues.create(document)

    def _check_order(self, order: list[dict[str, Any]]) -> None:
        if len(order) > MAX_COMPUTE_ENVIRONMENTS:
            raise ClientError("A job queue can have at most 3 compute environments.")
        for item in order:
            self.environments.find(item["computeEnvironment"])

    def queue(self, reference: str) -> Resource:
        """Return the queue with a name or ARN.

        Raises:
            ClientError: The queue does not exist.
        """
        return self.queues.find(reference)

    def environment_name(self, queue: Resource) -> str:
        """Return the name of the queue's first compute environment."""
        order = sorted(queue.view["computeEnvironmentOrder"], key=lambda item: item["order"])
        return str(order[0]["computeEnvironment"]).rpartition("/")[2]
