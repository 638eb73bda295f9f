"""Record of deleted pods: how a Job's failed pods ended, in an annotation of the Job.

The cluster retains nothing of a deleted pod. The client that watches the run stores its state, so
that ``farcall describe`` in another process can report why the task failed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from farcall.backends.kubernetes.client import MERGE_PATCH, Kube, path_of
from farcall.backends.kubernetes.detail import annotations_of, json_annotation
from farcall.backends.kubernetes.error_translation import KubeError
from farcall.backends.kubernetes.names import (
    DELETED_PODS_ANNOTATION,
    ENDED_ANNOTATION,
    REASON_ANNOTATION,
)
from farcall.backends.kubernetes.pods import Pod

_log = logging.getLogger("farcall")

_PODS: TypeAdapter[list[Pod]] = TypeAdapter(list[Pod])

_MOST = 50
"""Maximum number of pods in the annotation; all annotations of an object take up to 256 KiB."""

_REASON_CHARACTERS = 500
_DELAY_S = 0.2
"""Delay in seconds after which the pods that were deleted meanwhile are recorded together."""

_CLOSE_S = 2.0


def recorded(job: Mapping[str, Any]) -> list[Pod]:
    """Return the recorded pods of a Job; none if the annotation is invalid."""
    text = annotations_of(job).get(DELETED_PODS_ANNOTATION)
    try:
        return _PODS.validate_json(text) if isinstance(text, str) else []
    except ValidationError:  # another client has written it
        return []


class DeletedPods:
    """Records the deleted pods of one namespace's Jobs."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._waiting: dict[str, tuple[Mapping[str, Any], list[Pod]]] = {}
        self._sending: set[asyncio.Task[None]] = set()

    def record(self, job: Mapping[str, Any], pods: Iterable[Pod]) -> None:
        """Record pods of a Job, unless they were deleted because farcall has terminated it."""
        if "deletionTimestamp" in job["metadata"] or REASON_ANNOTATION in annotations_of(job):
            return
        terminated = json_annotation(job, ENDED_ANNOTATION)
        pods = [pod for pod in pods if str(pod.index or 0) not in terminated]
        if not pods:
            return
        name = str(job["metadata"]["name"])
        is_scheduled = name in self._waiting
        self._waiting[name] = (job, pods)
        if not is_scheduled:
            sending = asyncio.ensure_future(self._send_later(name))
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)

    async def close(self) -> None:
        """Record what is left."""
        for sending in self._sending:
            sending.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        left = [self._send(name) for name in list(self._waiting)]
        try:
            async with asyncio.timeout(_CLOSE_S):
                await asyncio.gather(*left)
        except TimeoutError:
            _log.debug("%d jobs without a record of their deleted pods", len(left))

    async def _send_later(self, name: str) -> None:
        await asyncio.sleep(_DELAY_S)
        await self._send(name)

    async def _send(self, name: str) -> None:
        job, pods = self._waiting[name]
        path = f"{path_of(self._kube, job)}/{name}"
        metadata = {"annotations": {DELETED_PODS_ANNOTATION: _text(job, pods)}}
        try:
            await self._kube.request(
                "PATCH", path, body={"metadata": metadata}, content_type=MERGE_PATCH
            )
        except KubeError as error:  # the record is for other processes only
            _log.debug("%s; its deleted pods are not recorded", error)
        finally:
            self._waiting.pop(name, None)


def _text(job: Mapping[str, Any], pods: Iterable[Pod]) -> str:
    """Return the annotation with further pods, the most recent ones."""
    by_uid = {pod.uid: pod for pod in (*recorded(job), *pods)}
    kept = [
        replace(
            pod,
            reason=pod.reason[:_REASON_CHARACTERS],
            container_reason=pod.container_reason[:_REASON_CHARACTERS],
        )
        for pod in list(by_uid.values())[-_MOST:]
    ]
    return _PODS.dump_json(kept, exclude_defaults=True).decode()
