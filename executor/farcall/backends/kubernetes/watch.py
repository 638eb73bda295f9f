"""Watch of a run's jobs, and of its failed pods, in a cluster.

Two connections follow all jobs of a run, however many tasks it has, so that no other requests for
their status are needed. For pods, the watch carries only failed ones: each change of a pod is
kilobytes of JSON, and 10,000 pods change 50,000 times, which takes seconds to read; the job's
status contains everything else about its tasks.

After each interruption, a watch continues from the last version that it received. If the server no
longer knows that version (410), everything is listed again.

Source:
    https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from farcall.backends.kubernetes.client import LAPSE_S, Kube
from farcall.backends.kubernetes.deleted_pods import DeletedPods
from farcall.backends.kubernetes.error_translation import KubeError
from farcall.backends.kubernetes.names import JOB_LABEL, RUN_LABEL
from farcall.backends.kubernetes.pods import Pod, read_pod
from farcall.model import clock
from farcall.model.errors import FarcallError

_log = logging.getLogger("farcall")

PAGE = 500
_LASTS_S = (240.0, 300.0)
"""Minimum and maximum duration of a watch in seconds.

It is random, so that clients do not reconnect together.
"""

_STALE_S = 3.0
"""Time in seconds for which an interrupted watch still counts as current."""

_DENIED_S = 60.0
_FIRST_WAIT_S = 0.1
_AT_ONCE_S = 1.0
_MOST_DELETED = 1000
_REFUSED = (401, 403, 404)


@dataclass(slots=True)
class Seen:
    """Known state of a job.

    Attributes:
        objects: Its documents, by name; for a deleted one its last state.
        is_deleted: Whether the job was deleted.
        failed: Its failed pods by UID, including deleted ones.
    """

    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    is_deleted: bool = False
    failed: dict[str, Pod] = field(default_factory=dict)


class ClusterWatch:
    """Watch of the runs in one namespace."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._runs: dict[str, _Run] = {}
        self._run_of: dict[str, str] = {}
        self._deleted: dict[str, None] = {}
        self._deleted_pods = DeletedPods(kube)

    def note(self, run: str, job: dict[str, Any]) -> None:
        """Record an object of a new job, and watch its run from now on.

        A pod that is deleted before its run is watched would leave no trace.
        """
        name = name_of(job)
        self._run_of[name] = run
        if run not in self._runs:
            self._runs[run] = _Run(self._kube, run, self._record_deleted, self._deleted_pods)
        self._runs[run].of(name).objects.setdefault(_own_name(job), _slim(job))

    def get(self, name: str) -> Seen | None:
        """Return a job's current state; None if it must be requested."""
        run = self._run_of.get(name)
        if run is None:
            return None
        following = self._runs[run]
        seen = following.seen.get(name)
        return seen if following.jobs.is_current and seen and seen.objects else None

    def knows_failed(self, name: str) -> bool:
        """Return whether all failed pods of a job are known."""
        following = self._runs.get(self._run_of.get(name, ""))
        return following is not None and following.pods.is_current

    async def close(self) -> None:
        """Stop all watches."""
        tasks = [feed.task for run in self._runs.values() for feed in (run.jobs, run.pods)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._deleted_pods.close()

    def _record_deleted(self, name: str) -> None:
        """Retain the state of the most recently deleted jobs."""
        self._deleted[name] = None
        while len(self._deleted) > _MOST_DELETED:
            oldest = next(iter(self._deleted))
            del self._deleted[oldest]
            if oldest not in self._run_of:
                continue
            self._runs[self._run_of.pop(oldest)].seen.pop(oldest, None)


class _Run:
    """A watched run, and the known state of its jobs."""

    def __init__(
        self,
        kube: Kube,
        run: str,
        on_deleted: Callable[[str], object],
        deleted_pods: DeletedPods,
    ) -> None:
        label = {"labelSelector": f"{RUN_LABEL}={run}"}
        failed = {**label, "fieldSelector": "status.phase=Failed"}
        self.seen: dict[str, Seen] = {}
        self.jobs = _Feed(
            kube, kube.path("jobs", group="batch"), label, self._take_job, self._drop_job
        )
        self.pods = _Feed(kube, kube.path("pods"), failed, self._take_pod, self._drop_pod)
        self._on_deleted = on_deleted
        self._deleted_pods = deleted_pods
        self._jobs_by_uid: dict[str, tuple[str, str]] = {}
        self._job_of: dict[str, str] = {}

    def of(self, name: str) -> Seen:
        """Return the known state of a job."""
        return self.seen.setdefault(name, Seen())

    def _take_job(self, job: dict[str, Any]) -> None:
        name, own_name = name_of(job), _own_name(job)
        self._jobs_by_uid[_uid(job)] = name, own_name
        seen = self.of(name)
        seen.objects[own_name] = job
        seen.is_deleted = False

    def _drop_job(self, uid: str) -> None:
        name, own_name = self._jobs_by_uid.pop(uid)
        seen = self.of(name)
        if own_name == name:  # other objects belong to it, and are deleted with it
            seen.is_deleted = True
            self._on_deleted(name)

    def _take_pod(self, document: dict[str, Any]) -> None:
        pod = read_pod(document)
        self._job_of[pod.uid] = pod.job
        seen = self.of(pod.job)
        seen.failed[pod.uid] = pod

    def _drop_pod(self, uid: str) -> None:
        name = self._job_of.pop(uid)
        seen = self.of(name)
        seen.failed[uid] = seen.failed[uid].deleted()
        if not seen.is_deleted and name in seen.objects:
            gone = (pod for pod in seen.failed.values() if pod.gone)
            self._deleted_pods.record(seen.objects[name], gone)


class _Feed:
    """Watch of one list.

    Args:
        kube: The API server.
        path: The list.
        params: Its query.
        take: Called with each new or changed object.
        drop: Called with the UID of each deleted object.

    Attributes:
        task: The asyncio task of the watch.
    """

    def __init__(
        self,
        kube: Kube,
        path: str,
        params: Mapping[str, str],
        take: Callable[[dict[str, Any]], None],
        drop: Callable[[str], None],
    ) -> None:
        self._kube = kube
        self._path = path
        self._params = dict(params)
        self._take = take
        self._drop = drop
        self._there: set[str] = set()
        self._version = ""
        self._is_open = False
        self._was_open = False
        self._is_denied = False
        self._cut_at = 0.0
        self._failures = 0
        self.task = asyncio.ensure_future(self._run())

    @property
    def is_current(self) -> bool:
        """Whether the received state is current."""
        if not self._version:
            return False
        return self._is_open or clock.now() - self._cut_at < _STALE_S

    async def _run(self) -> None:
        while True:
            began = clock.now()
            wait_s = 0.0
            try:
                await self._follow()
                self._cut()
                if clock.now() - began < _AT_ONCE_S:  # the server ends each watch at once
                    wait_s = _AT_ONCE_S
            except KubeError as error:
                wait_s = self._record_failed(error)
            except FarcallError as error:
                _log.warning("%s", error)
                wait_s = _DENIED_S
            except Exception:  # callers send requests instead
                _log.exception("the watch of %s failed", self._path)
                self._version = ""
                wait_s = _DENIED_S
            finally:
                self._cut()
            await asyncio.sleep(wait_s * random.uniform(0.5, 1))  # noqa: S311  # no secret

    async def _follow(self) -> None:
        if not self._version:
            await self._list()
        self._cut()
        params = {
            **self._params,
            "resourceVersion": self._version,
            "timeoutSeconds": int(random.uniform(*_LASTS_S)),  # noqa: S311  # no secret
        }
        events = self._kube.watch(self._path, params, self._record_open)
        async with contextlib.aclosing(events):
            async for event in events:
                document = event.get("object") or {}
                self._note(str(event.get("type")), _slim(document))
                self._version = version_of(document) or self._version

    async def _list(self) -> None:
        documents: list[dict[str, Any]] = []
        version = ""
        async for page in pages(self._kube, self._path, self._params):
            version = version_of(page)
            documents += items_of(page)
        there = {_uid(document) for document in documents}
        for document in documents:
            self._note("ADDED", document)
        for uid in self._there - there:
            self._there.discard(uid)
            self._drop(uid)
        self._version = version

    def _note(self, kind: str, document: dict[str, Any]) -> None:
        if kind == "BOOKMARK":
            return
        uid = _uid(document)
        self._there.add(uid)
        self._take(document)
        if kind == "DELETED":
            self._there.discard(uid)
            self._drop(uid)

    def _record_open(self) -> None:
        self._is_open = self._was_open = True
        self._is_denied = False
        self._failures = 0

    def _cut(self) -> None:
        if self._is_open or not self._cut_at:
            self._cut_at = clock.now()
        self._is_open = False

    def _record_failed(self, error: KubeError) -> float:
        """Return the delay before the next attempt in seconds."""
        self._failures += 1
        if error.is_outdated:
            self._version = ""
            _log.debug("%s; listing again", error)
            return 0.0 if self._failures == 1 else _AT_ONCE_S
        if error.is_denial and self._was_open and clock.now() - self._cut_at < LAPSE_S:
            _log.debug("%s; it was allowed before, so farcall retries", error)
            return _AT_ONCE_S
        if error.status in _REFUSED:
            self._version = ""
            if not self._is_denied:
                self._is_denied = True
                text = "%s; until it succeeds, the status of each job is requested separately"
                _log.warning(text, error)
            return _DENIED_S
        _log.debug("%s; watching again", error)
        return float(min(5.0, _FIRST_WAIT_S * 2 ** min(self._failures, 10)))


async def pages(
    kube: Kube, path: str, params: Mapping[str, Any], limit: int = PAGE
) -> AsyncIterator[dict[str, Any]]:
    """Yield the pages of a list, with one request each.

    Raises:
        KubeError: The server refused.
    """
    wanted = {**params, "limit": limit}
    while True:
        page = await kube.request("GET", path, params=wanted)
        yield page
        more = (page.get("metadata") or {}).get("continue")
        if not more:
            return
        wanted["continue"] = more


def items_of(page: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the objects of a page, with the page's API version and kind."""
    kind = str(page.get("kind") or "").removesuffix("List")
    for item in page.get("items") or ():
        yield {"apiVersion": page.get("apiVersion"), "kind": kind, **_slim(item)}


def name_of(document: Mapping[str, Any]) -> str:
    """Return the ID of the job that an object belongs to."""
    metadata = document.get("metadata") or {}
    return str((metadata.get("labels") or {}).get(JOB_LABEL) or metadata.get("name") or "")


def version_of(document: Mapping[str, Any]) -> str:
    """Return an object's resource version."""
    return str((document.get("metadata") or {}).get("resourceVersion") or "")


def _own_name(document: Mapping[str, Any]) -> str:
    return str((document.get("metadata") or {}).get("name") or "")


def _uid(document: Mapping[str, Any]) -> str:
    return str((document.get("metadata") or {}).get("uid") or "")


def _slim(document: dict[str, Any]) -> dict[str, Any]:
    """Return an object without unused fields, which are half of its size."""
    metadata = document.get("metadata")
    if isinstance(metadata, dict):
        metadata.pop("managedFields", None)
    return document
