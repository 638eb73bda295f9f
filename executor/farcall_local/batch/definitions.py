"""Job definitions: names, revisions and status.

Sources:
    https://docs.aws.amazon.com/batch/latest/APIReference/API_RegisterJobDefinition.html
    https://docs.aws.amazon.com/batch/latest/APIReference/API_DescribeJobDefinitions.html
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from farcall_local import names
from farcall_local.batch import containers, nodes, paging, retries, validate
from farcall_local.batch.errors import ClientError

MAX_DESCRIBED = 100

#: Members that DescribeJobDefinitions returns as registered.
_KEPT = ("type", "parameters", "timeout", "schedulingPriority", "propagateTags")


@dataclass
class Definition:
    """Revision of a job definition.

    Attributes:
        name: Name of the definition; the ARN adds the revision.
        revision: Number of the revision, from 1; each registration adds one, even with equal
            content.
        document: Registration request of the caller.
        retry: Validated retry strategy.
        properties: containerProperties, or nodeProperties if it is `multi_node`, as Batch stores
            them.
        tags: Tags of the request.
        active: Whether it is not deregistered.
    """

    name: str
    revision: int
    document: dict[str, Any]
    retry: retries.RetryStrategy
    properties: dict[str, Any]
    tags: dict[str, str]
    active: bool = True

    @property
    def arn(self) -> str:
        """ARN with the revision."""
        return names.batch_arn(f"job-definition/{self.name}:{self.revision}")

    @property
    def platforms(self) -> list[str]:
        """Platform capabilities: ``["EC2"]`` or ``["FARGATE"]``."""
        return list(self.document.get("platformCapabilities") or ["EC2"])

    @property
    def fargate(self) -> bool:
        """Whether jobs of the definition run on Fargate."""
        return self.platforms == ["FARGATE"]

    @property
    def multi_node(self) -> bool:
        """Whether jobs of the definition are multi-node parallel jobs."""
        return bool(self.document["type"] == "multinode")

    def describe(self) -> dict[str, Any]:
        """Return the revision in the format of DescribeJobDefinitions."""
        kept = {name: self.document[name] for name in _KEPT if name in self.document}
        if "retryStrategy" in self.document:
            kept["retryStrategy"] = self.retry.describe()
        kept[validate.PROPERTIES[self.document["type"]]] = self.properties
        return {
            **kept,
            "jobDefinitionName": self.name,
            "jobDefinitionArn": self.arn,
            "revision": self.revision,
            "status": "ACTIVE" if self.active else "INACTIVE",
            "platformCapabilities": self.platforms,
            "containerOrchestrationType": "ECS",
            "tags": self.tags,
        }


class Definitions:
    """Registry of all revisions of all job definitions."""

    def __init__(self) -> None:
        self._revisions: dict[str, list[Definition]] = {}

    def register(self, document: dict[str, Any], size_bytes: int) -> dict[str, Any]:
        """Handle RegisterJobDefinition."""
        if size_bytes > validate.MAX_DEFINITION_BYTES:
            raise ClientError("Job definition size must be at most 24 KiB.")
        validate.definition(document)
        if document["type"] == "multinode":
            nodes.check(document["nodeProperties"])
            properties = nodes.cleaned(document["nodeProperties"])
        else:
            properties = containers.cleaned(document["containerProperties"])
        retry = retries.parse(document.get("retryStrategy"))
        revisions = self._revisions.setdefault(document["jobDefinitionName"], [])
        definition = Definition(
            name=document["jobDefinitionName"],
            revision=len(revisions) + 1,
            document=document,
            retry=retry,
            properties=properties,
            tags=dict(document.get("tags") or {}),
        )
        revisions.append(definition)
        return {
            "jobDefinitionName": definition.name,
            "jobDefinitionArn": definition.arn,
            "revision": definition.revision,
        }

    def deregister(self, document: dict[str, Any]) -> dict[str, Any]:
        """Handle DeregisterJobDefinition; the revision can still be described as INACTIVE."""
        validate.require(document, "jobDefinition")
        definition = self.find(document["jobDefinition"])
        if definition is None:
            raise ClientError(f"Job definition {document['jobDefinition']} does not exist.")
        definition.active = False
        return {}

    def describe(self, document: dict[str, Any]) -> dict[str, Any]:
        """Handle DescribeJobDefinitions."""
        wanted = document.get("jobDefinitions")
        name, status = document.get("jobDefinitionName"), document.get("status")
        if wanted and (name or status):
            raise ClientError("jobDefinitions can't be used with other parameters.")
        if wanted and len(wanted) > MAX_DESCRIBED:
            raise ClientError(f"At most {MAX_DESCRIBED} job definitions can be described.")
        if wanted:
            definitions = [one for reference in wanted if (one := self.find(reference))]
            return {"jobDefinitions": [one.describe() for one in definitions]}
        families = [self._revisions.get(name, [])] if name else list(self._revisions.values())
        views = [one.describe() for family in families for one in reversed(family)]
        views = [view for view in views if status in (None, view["status"])]
        rows, more = paging.page(views, document, MAX_DESCRIBED)
        return {"jobDefinitions": rows, **more}

    def find(self, reference: str) -> Definition | None:
        """Return the revision for a ``name:revision`` or an ARN with a revision."""
        name, _, revision = reference.rpartition("/")[2].partition(":")
        revisions = self._revisions.get(name, [])
        if revision.isdecimal() and 1 <= int(revision) <= len(revisions):
            return revisions[int(revision) - 1]
        return None

    def active(self, reference: str) -> Definition:
        """Return the ACTIVE revision of a reference; for a bare name, the latest one.

        Raises:
            ClientError: The revision does not exist or is not ACTIVE.
        """
        name, _, revision = reference.rpartition("/")[2].partition(":")
        revisions = self._revisions.get(name, [])
        candidates = [self.find(reference)] if revision else list(reversed(revisions))
        for definition in candidates:
            if definition is not None and definition.active:
                return definition
        raise ClientError(f"Job definition {reference} does not exist or is not ACTIVE.")
