"""SubmitJob: from the request, the definition and the queue to a `Submission`.

Source:
    https://docs.aws.amazon.com/batch/latest/APIReference/API_SubmitJob.html
"""

from __future__ import annotations

import uuid
from typing import Any

from farcall_local import names
from farcall_local.batch import containers, nodes, retries, validate
from farcall_local.batch.containers import Container
from farcall_local.batch.definitions import Definition, Definitions
from farcall_local.batch.errors import ClientError
from farcall_local.batch.jobs import Submission
from farcall_local.batch.queues import Queues, Resource


def build(
    document: dict[str, Any],
    size_bytes: int,
    *,
    number: int,
    definitions: Definitions,
    queues: Queues,
) -> Submission:
    """Check a SubmitJob request and merge it with its definition.

    Args:
        document: The request.
        size_bytes: Length of the request's body, of which Batch takes 30 KiB.
        number: The submission's place in the order.
        definitions: Where the definition is looked up.
        queues: Where the queue is looked up.

    Raises:
        ClientError: The request breaks a rule.
    """
    validate.submission(document, size_bytes)
    queue = queues.queue(document["jobQueue"])
    _check_queue(queue, document)
    definition = definitions.active(document["jobDefinition"])
    node_properties, ran = _containers(document, definition)
    retry = definition.retry
    if document.get("retryStrategy"):
        retry = retries.parse(document["retryStrategy"])
    timeout = document.get("timeout") or definition.document.get("timeout") or {}
    return Submission(
        job_id=str(uuid.uuid4()),
        number=number,
        name=document["jobName"],
        queue=queue,
        definition=definition,
        containers=ran,
        node_properties=node_properties,
        vcpus=sum(container.resources.vcpus for container in ran),
        parameters={
            **(definition.document.get("parameters") or {}),
            **(document.get("parameters") or {}),
        },
        retry=retry,
        timeout_s=timeout.get("attemptDurationSeconds"),
        size=(document.get("arrayProperties") or {}).get("size"),
        depends_on=document.get("dependsOn") or [],
        created_at=names.now_ms(),
        tags=dict(document.get("tags") or {}),
        extra=_extra(document, definition),
    )


def _check_queue(queue: Resource, document: dict[str, Any]) -> None:
    if not queue.enabled:
        raise ClientError(f"JobQueue {queue.name} is not in state ENABLED.")
    share = document.get("shareIdentifier")
    if queue.fair_share and not share:
        raise ClientError("shareIdentifier must be specified for a fair-share job queue.")
    if share and not queue.fair_share:
        raise ClientError("shareIdentifier is for job queues with a scheduling policy only.")


def _containers(
    document: dict[str, Any], definition: Definition
) -> tuple[dict[str, Any] | None, tuple[Container, ...]]:
    """Return the nodeProperties of a multi-node parallel job, and what is to be run."""
    if definition.multi_node:
        for name in ("containerOverrides", "arrayProperties"):
            if document.get(name):
                raise ClientError(f"{name} should not be set for multi-node parallel jobs.")
        return nodes.overridden(definition.properties, document.get("nodeOverrides") or {})
    if document.get("nodeOverrides"):
        raise ClientError("nodeOverrides should only be set for multi-node parallel jobs.")
    overrides = document.get("containerOverrides") or {}
    container = containers.overridden(definition.properties, overrides, fargate=definition.fargate)
    return None, (container,)


def _extra(document: dict[str, Any], definition: Definition) -> dict[str, Any]:
    extra = {"propagateTags": definition.document.get("propagateTags", False)}
    for name in ("shareIdentifier", "propagateTags"):
        if name in document:
            extra[name] = document[name]
    for name, where in (
        ("schedulingPriority", definition.document),
        ("schedulingPriorityOverride", document),
    ):
        if name in where:
            extra["schedulingPriority"] = where[name]
    return extra
