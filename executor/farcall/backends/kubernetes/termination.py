"""Termination of Kubernetes jobs; their records remain, with the reason.

A Job has no status for it. Its deadline is set to now, which ends it in any state, and an
annotation contains the reason. To end one task of an array, a marker object is first stored in the
bucket, which makes the task's container exit for good; then its pod is deleted, so that the
next one finds the marker.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from farcall.backends.kubernetes import names, nodes, volcano
from farcall.backends.kubernetes.client import MERGE_PATCH, Kube, path_of
from farcall.backends.kubernetes.describe import MAIN_ENDED
from farcall.backends.kubernetes.error_translation import Call, KubeError
from farcall.backends.kubernetes.lookup import Found, Lookup
from farcall.backends.kubernetes.names import ENDED_ANNOTATION, REASON_ANNOTATION
from farcall.model.errors import ServiceError
from farcall.model.failure_reasons import OWN_REASON

_log = logging.getLogger("farcall")

_REASON_CHARACTERS = 1024
_NOTED_BYTES = 192 * 1024
"""Maximum size of the annotation with tasks' reasons, of 256 KiB per object."""

_SHORT_CHARACTERS = 60
_CONFLICTS = 20


class Terminator:
    """Terminates jobs of one namespace."""

    def __init__(self, kube: Kube, lookup: Lookup) -> None:
        self._kube = kube
        self._lookup = lookup
        self._left: set[str] = set()

    async def end(
        self, job_ids: Sequence[str], reason: str, *, if_unchanged: bool = False
    ) -> dict[str, ServiceError]:
        """Terminate jobs, arrays or array tasks; return the errors of those that remain.

        Args:
            job_ids: IDs of the jobs.
            reason: Stored in an annotation.
            if_unchanged: Whether to leave a job that has changed since it was described.
        """
        text = f"{OWN_REASON}{reason}"[:_REASON_CHARACTERS]
        names: dict[str, list[str]] = {}
        for job_id in dict.fromkeys(job_ids):
            names.setdefault(job_id.partition(":")[0].partition("#")[0], []).append(job_id)
        if not names:
            return {}
        try:
            jobs = await self._lookup.jobs(names)
        except ServiceError as error:
            return dict.fromkeys(job_ids, error)
        refused: dict[str, ServiceError] = {}
        ends = [
            self._end(jobs.get(name), name, ids, text, if_unchanged=if_unchanged)
            for name, ids in names.items()
        ]
        for each in await asyncio.gather(*ends):
            refused |= each
        return refused

    async def _end(
        self,
        job: Found | None,
        name: str,
        ids: Sequence[str],
        reason: str,
        *,
        if_unchanged: bool,
    ) -> dict[str, ServiceError]:
        if job is None:
            call = Call("patch", "jobs.batch", self._kube.namespace, name)
            text = f"{call}: the job does not exist in namespace {self._kube.namespace}"
            return dict.fromkeys(ids, KubeError(text, call=call, code="NotFound", sent=False))
        if job.is_final:
            return {}
        try:
            if any(":" not in job_id for job_id in ids) or not job.is_array:
                # The main node's Job first, because its end and reason are those of the combined
                # job.
                objects = sorted(job.objects, key=_rank)
                await self._end_object(objects[0], reason, if_unchanged=if_unchanged)
                await asyncio.gather(*(self._end_object(each, reason) for each in objects[1:]))
            else:
                await self._end_children(job, {int(i.partition(":")[2]) for i in ids}, reason)
        except ServiceError as error:
            has_changed = if_unchanged and error.code == "Conflict"
            return {} if has_changed else dict.fromkeys(ids, error)
        return {}

    async def end_left(self, job: Found) -> None:
        """End the nodes of later groups that still run although the job has ended.

        The cluster does not end them, so the next client that polls the job does. Refusals are
        logged, because the job's status does not depend on them.
        """
        left = nodes.MultiNodeJob(job.objects).left
        if job.is_deleted:  # including the main node's Job
            left = [each for each in job.objects if _rank(each)]
        left = [each for each in left if _uid(each) not in self._left]
        self._left.update(map(_uid, left))
        ends = (self._end_object(each, MAIN_ENDED) for each in left)
        for each in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(each, ServiceError) and each.code != "NotFound":
                _log.warning("nodes of %s continue until their time limit: %s", job.name, each)

    async def _end_object(
        self, document: Mapping[str, Any], reason: str, *, if_unchanged: bool = False
    ) -> None:
        if document.get("kind") != "Job":
            return
        metadata: dict[str, Any] = {"annotations": {REASON_ANNOTATION: reason}}
        if if_unchanged:
            metadata["resourceVersion"] = document["metadata"]["resourceVersion"]
        body: dict[str, Any] = {"metadata": metadata}
        is_volcano = volcano.is_one(document)
        if not is_volcano:
            # If the Job has not started, this resumes it, and it exceeds its deadline at once.
            body["spec"] = {"activeDeadlineSeconds": 0, "suspend": False}
        path = f"{path_of(self._kube, document)}/{document['metadata']['name']}"
        await self._kube.request("PATCH", path, body=body, content_type=MERGE_PATCH)
        if is_volcano:
            command = volcano.command(document)
            await self._kube.request("POST", path_of(self._kube, command), body=command)

    # --- array tasks --------------------------------------------------------------------------

    async def _end_children(self, job: Found, indexes: set[int], reason: str) -> None:
        over = job.indexes("completedIndexes") | job.indexes("failedIndexes")
        wanted = sorted(index for index in indexes - over if index < job.size)
        if not wanted:
            return
        await self._note(job, wanted, reason)
        pods = await self._lookup.children(job, wanted)
        names = [pod.name for each in pods.values() for pod in each if not pod.is_over]
        await asyncio.gather(*map(self._delete_pod, names))

    async def _note(self, job: Found, indexes: Iterable[int], reason: str) -> None:
        """Add the reason for tasks to an annotation, which others may change concurrently."""
        document = job.job
        path = f"{path_of(self._kube, document)}/{job.name}"
        for count in range(_CONFLICTS):
            metadata = document["metadata"]
            before = (metadata.get("annotations") or {}).get(ENDED_ANNOTATION)
            body = {
                "metadata": {
                    "resourceVersion": metadata["resourceVersion"],
                    "annotations": {ENDED_ANNOTATION: _with_noted(before, indexes, reason)},
                }
            }
            try:
                await self._kube.request("PATCH", path, body=body, content_type=MERGE_PATCH)
            except KubeError as error:
                if error.code != "Conflict" or count == _CONFLICTS - 1:
                    raise
                document = await self._kube.request("GET", path)
            else:
                return

    async def _delete_pod(self, name: str) -> None:
        try:
            await self._kube.request("DELETE", self._kube.path("pods", name))
        except KubeError as error:
            if not error.is_missing:
                raise


def _rank(document: Mapping[str, Any]) -> int:
    """Return the index of a later group's node; 0 for the main node's Job."""
    return names.rank(document, 0)


def _uid(document: Mapping[str, Any]) -> str:
    return str(document["metadata"].get("uid"))


def _with_noted(before: object, indexes: Iterable[int], reason: str) -> str:
    """Return the annotation with further tasks; shorten reasons if it is too long."""
    reasons: dict[str, str] = {}
    with contextlib.suppress(ValueError, AttributeError):  # another writer's value
        reasons = {str(key): str(value) for key, value in json.loads(str(before or "{}")).items()}
    reasons |= dict.fromkeys(map(str, indexes), reason)
    text = json.dumps(reasons)
    if len(text) > _NOTED_BYTES:
        text = json.dumps({key: value[:_SHORT_CHARACTERS] for key, value in reasons.items()})
    if len(text) > _NOTED_BYTES:
        text = json.dumps(dict.fromkeys(reasons, OWN_REASON.strip()), separators=(",", ":"))
    return text
