"""Batch operations that only CloudFormation needs: changes and deletions, and an inventory.

Sources:
    https://docs.aws.amazon.com/batch/latest/APIReference/API_DeleteComputeEnvironment.html
    https://docs.aws.amazon.com/batch/latest/APIReference/API_DeleteJobQueue.html
    https://github.com/hashicorp/terraform-provider-aws/issues/2044
        Error of DeleteComputeEnvironment if a queue still uses it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from farcall_local.batch import validate
from farcall_local.batch.api import BatchApi
from farcall_local.batch.errors import ClientError
from farcall_local.batch.queues import Resource, Table

#: Interval in seconds between checks whether a deleted queue's jobs have finished.
POLL_S = 0.05


class Changes:
    """Changes and deletions of queues and compute environments; used on Batch's event loop."""

    def __init__(self, api: BatchApi) -> None:
        self._definitions = api._definitions
        self._engine = api._engine
        self._queues = api._queues
        for name, operation in {
            "DeleteComputeEnvironment": self._delete_environment,
            "DeleteJobQueue": self._delete_queue,
            "UpdateComputeEnvironment": self._update_environment,
            "UpdateJobQueue": self._update_queue,
        }.items():
            api._operations[name] = operation
            api._by_path[f"/v1/{name.lower()}"] = name

    def inventory(self) -> dict[str, list[str]]:
        """Return the names of all resources."""
        revisions = (one for family in self._definitions._revisions.values() for one in family)
        return {
            "compute environments": list(self._queues.environments.by_name),
            "job queues": list(self._queues.queues.by_name),
            "job definitions": [f"{one.name}:{one.revision}" for one in revisions if one.active],
        }

    def _update_environment(self, document: dict[str, Any]) -> dict[str, Any]:
        return _update(self._queues.environments, document)

    def _update_queue(self, document: dict[str, Any]) -> dict[str, Any]:
        self._queues._check_order(document.get("computeEnvironmentOrder") or [])
        return _update(self._queues.queues, document)

    def _delete_environment(self, document: dict[str, Any]) -> dict[str, Any]:
        found = _deleted(self._queues.environments, document)
        if found is None:
            return {}
        if any(
            item["computeEnvironment"] in (found.name, found.arn)
            for queue in self._queues.queues.by_name.values()
            for item in queue.view["computeEnvironmentOrder"]
        ):
            raise ClientError("Cannot delete, found existing JobQueue relationship")
        del self._queues.environments.by_name[found.name]
        return {}

    def _delete_queue(self, document: dict[str, Any]) -> dict[str, Any]:
        """Delete a queue: it is DELETING until its jobs have finished."""
        found = _deleted(self._queues.queues, document)
        if found is None or found.view["status"] == "DELETING":
            return {}
        found.view["status"] = "DELETING"

        def poll() -> None:
            if self._end_jobs(found):
                self._queues.queues.by_name.pop(found.name)
            else:
                asyncio.get_running_loop().call_later(POLL_S, poll)

        poll()
        return {}

    def _end_jobs(self, queue: Resource) -> bool:
        """Terminate the jobs of a queue; return whether all have finished."""
        under_way = [
            job
            for job in self._engine.jobs.submitted
            if job.submission.queue is queue and not job.status.is_final
        ]
        for job in under_way:
            if job.termination_reason is None:
                self._engine.terminate(job, f"Job queue {queue.name} was deleted")
        return not under_way


def _update(table: Table, document: dict[str, Any]) -> dict[str, Any]:
    """Change a resource; missing members, also of computeResources, are unchanged."""
    validate.require(document, table._noun)
    found = table.find(document[table._noun])
    for key in table._kept:
        if key in document:
            before, new = found.view.get(key), document[key]
            found.view[key] = {**before, **new} if isinstance(before, dict) else new
    return {f"{table._noun}Name": found.name, f"{table._noun}Arn": found.arn}


def _deleted(table: Table, document: dict[str, Any]) -> Resource | None:
    """Return the resource that a request deletes; a missing one is not an error."""
    validate.require(document, table._noun)
    found = table.by_name.get(document[table._noun].rpartition("/")[2])
    if found is not None and found.enabled:
        raise ClientError(f"Cannot delete, {table._kind} must be DISABLED first.")
    return found
