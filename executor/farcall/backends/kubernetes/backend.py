"""Kubernetes backend: `farcall.backends.base.Backend` for one namespace."""

from __future__ import annotations

import asyncio
import copy
import functools
import hashlib
import json
import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from datetime import UTC, datetime
from typing import Any, NamedTuple

from farcall.backends.base import Capabilities, JobSpec, Log
from farcall.backends.kubernetes import describe, documents, kubeconfig, logs, nodes
from farcall.backends.kubernetes.client import Kube, path_of
from farcall.backends.kubernetes.describe import Pod
from farcall.backends.kubernetes.error_translation import KubeError
from farcall.backends.kubernetes.lookup import Found, Lookup
from farcall.backends.kubernetes.names import (
    DIGEST_ANNOTATION,
    ENDED_ANNOTATION,
    MANAGED_LABEL,
    MANAGER,
    REASON_ANNOTATION,
    RUN_LABEL,
    SUBMITTED_ANNOTATION,
    run_label,
)
from farcall.backends.kubernetes.termination import Terminator
from farcall.config.settings import Settings
from farcall.model import clock
from farcall.model.commands import ENV_RUN
from farcall.model.errors import (
    FarcallError,
    JobStuckError,
    ServiceError,
    SettingsError,
    SubmissionError,
)
from farcall.model.findings import OK, Finding
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.names import KUBERNETES
from farcall.model.pacing import FIRST_WAIT_S, Meter, Ticket
from farcall.model.timing import Timing

# --- Creation of Kubernetes objects, exactly once ----------------------------------------------
#
# A create request whose response was lost is repeated, and then refused, because the name exists.
# The existing object has the digest of the sent document, which an object of another client lacks.


_log = logging.getLogger("farcall")

_WRONG = ("BadRequest", "Invalid")
_ALREADY_EXISTS = "AlreadyExists"
_STRICT = {"fieldValidation": "Strict"}
"""Query that makes the server reject unknown fields; otherwise it would drop them."""


def marked(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with its digest and its time of creation."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    metadata = document["metadata"]
    annotations = {
        **(metadata.get("annotations") or {}),
        DIGEST_ANNOTATION: hashlib.sha256(text.encode()).hexdigest(),
        # Kubernetes's own timestamps have a resolution of a second, too coarse to sort lists.
        SUBMITTED_ANNOTATION: datetime.now(UTC).isoformat(),
    }
    return {**document, "metadata": {**metadata, "annotations": annotations}}


async def check_submission(kube: Kube, documents: Sequence[Mapping[str, Any]]) -> None:
    """Validate documents on the server without creating them.

    Raises:
        SubmissionError: The server would reject a document.
        KubeError: The server refused for another reason, or did not respond.
    """
    for document in documents:
        try:
            params = {**_STRICT, "dryRun": "All"}
            await kube.request("POST", path_of(kube, document), params=params, body=document)
        except KubeError as error:
            if error.code != _ALREADY_EXISTS:
                raise _explained(document, error) from error


async def create(
    kube: Kube,
    documents: Sequence[Mapping[str, Any]],
    ticket: Ticket,
    stuck_timeout_s: float | None = None,
) -> list[dict[str, Any]]:
    """Create a job's objects exactly once, in sequence; return the server's objects.

    Args:
        kube: The server.
        documents: The objects; the last one is the job.
        ticket: The caller's handle to withdraw the submission.
        stuck_timeout_s: Time in seconds to wait for a quota; None for no limit.

    Raises:
        SubmissionError: The server rejects the job, or another client uses its name.
        SettingsError: The namespace does not exist, or is being deleted.
        JobStuckError: A quota was exceeded for ``stuck_timeout_s``.
        KubeError: The server refused for another reason, or did not respond.
    """
    began, tries = clock.now(), 0
    while True:
        try:
            return await _create_all(kube, documents, ticket)
        except KubeError as error:
            if not error.is_over_quota:
                raise
            name = documents[-1]["metadata"]["name"]
            if stuck_timeout_s is not None and clock.now() - began >= stuck_timeout_s:
                text = f"job {name} was not created within stuck_timeout_s: {error}"
                raise JobStuckError(text, reason=str(error)) from error
            if not tries:
                _log.warning("job %s is waiting: %s", name, error)
        tries += 1
        await clock.back_off(tries, FIRST_WAIT_S)


async def _create_all(
    kube: Kube, documents: Sequence[Mapping[str, Any]], ticket: Ticket
) -> list[dict[str, Any]]:
    """Create all objects, or none if the server rejects one."""
    made: list[dict[str, Any]] = []
    try:
        for document in documents:
            each = await _create(kube, document, ticket)
            made.append(each)
    except (SubmissionError, SettingsError):
        await _undo(kube, made)
        raise
    except KubeError as error:
        if error.is_over_quota:
            await _undo(kube, made)
        raise
    return made


async def _create(kube: Kube, document: Mapping[str, Any], ticket: Ticket) -> dict[str, Any]:
    wanted = marked(document)
    path = path_of(kube, document)
    try:
        return await kube.request("POST", path, params=_STRICT, body=wanted, ticket=ticket)
    except KubeError as error:
        if error.code != _ALREADY_EXISTS:
            raise _explained(document, error) from error
    name = document["metadata"]["name"]
    there = await kube.request("GET", f"{path}/{name}")
    if _is_same(there, wanted):
        _log.debug("%s %s already exists, and is the same object", document["kind"], name)
        return there
    raise SubmissionError(
        f"namespace {kube.namespace} of {kube.place} already has a {document['kind']} named "
        f"{name}, which was not created by this submission. Delete it (`kubectl delete "
        f"{path.rpartition('/')[2]} {name} -n {kube.namespace}`), or submit under another name."
    )


def _is_same(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether an object was created from a document, or is the shared Service."""
    found, own = there.get("metadata") or {}, wanted["metadata"]
    if wanted["kind"] == "Service":
        return bool((found.get("labels") or {}).get(MANAGED_LABEL) == MANAGER)
    digest = (found.get("annotations") or {}).get(DIGEST_ANNOTATION)
    return bool(digest == own["annotations"][DIGEST_ANNOTATION])


async def _undo(kube: Kube, made: Sequence[Mapping[str, Any]]) -> None:
    """Delete the objects of a job whose other objects were refused."""
    jobs = [each for each in made if each["kind"] == "Job"]
    for refused in await asyncio.gather(*(delete(kube, j) for j in jobs), return_exceptions=True):
        if isinstance(refused, FarcallError):
            _log.warning("an object of a rejected job remains in the cluster: %s", refused)


async def delete(kube: Kube, document: Mapping[str, Any]) -> None:
    """Delete an object with its pods; a missing object is no error.

    Raises:
        KubeError: The server refused.
    """
    path = f"{path_of(kube, document)}/{document['metadata']['name']}"
    try:
        # By default, deleting a Job leaves its pods running.
        await kube.request("DELETE", path, params={"propagationPolicy": "Background"})
    except KubeError as error:
        if not error.is_missing:
            raise


def _explained(document: Mapping[str, Any], error: KubeError) -> FarcallError:
    kind, name = document["kind"], document["metadata"]["name"]
    is_missing = error.is_missing and error.details.get("kind") == "namespaces"
    if is_missing or error.is_terminating:
        return SettingsError(str(error), option="namespace")
    if error.is_missing:  # the path itself is missing, as on a cluster without Volcano
        api = document["apiVersion"]
        return SettingsError(
            f"the cluster does not support {kind} of {api}: {error}. Install the component "
            "that provides it, or set scheduler to 'default'.",
            option="scheduler",
        )
    if error.code in _WRONG or (error.is_rejection and not error.is_over_quota):
        return SubmissionError(f"Kubernetes rejected {kind} {name}: {error}")
    return error


# --- Kubernetes documents from users, and documents of existing jobs for resubmission
#
# Sources:
#     https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/job-v1/


OBJECTS = "objects"
"""Key of a plan's documents, in the order of their creation."""

_SERVERS_METADATA = (
    *("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink"),
    *("deletionTimestamp", "deletionGracePeriodSeconds", "finalizers", "ownerReferences"),
)
_OWN_ANNOTATIONS = (DIGEST_ANNOTATION, SUBMITTED_ANNOTATION, REASON_ANNOTATION, ENDED_ANNOTATION)
_CONTROLLERS_LABELS = (
    *("controller-uid", "job-name"),
    *("batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"),
)
_GIVEN_KINDS = {("batch/v1", "Job"), ("v1", "Service"), ("batch.volcano.sh/v1alpha1", "Job")}


def objects(job: JobSpec) -> list[dict[str, Any]]:
    """Return the documents of user-provided requests, with this process's run.

    Raises:
        SettingsError: They are not documents of jobs.
    """
    given = (job.requests or {}).get(OBJECTS)
    if not isinstance(given, list) or not given:
        raise SettingsError(
            f"the requests have no list {OBJECTS!r}, which a plan for Kubernetes contains"
        )
    found = [_checked(document) for document in given]
    run = job.environment.get(ENV_RUN, "")
    for document in found:
        if document["kind"] == "Job" and run:
            _set_run(document, run)
    return found


def _checked(document: Any) -> dict[str, Any]:
    try:
        kind = document["apiVersion"], document["kind"]
        name = document["metadata"]["name"]
    except (TypeError, KeyError) as error:
        text = "an object of the requests lacks apiVersion, kind or metadata.name"
        raise SettingsError(text) from error
    if kind not in _GIVEN_KINDS or not isinstance(name, str):
        allowed = ", ".join(f"{k} of {api}" for api, k in sorted(_GIVEN_KINDS))
        raise SettingsError(
            f"an object of the requests is {kind[1]!r} of {kind[0]!r}. Use {allowed}."
        )
    found: dict[str, Any] = copy.deepcopy(document)
    return found


def _set_run(document: dict[str, Any], run: str) -> None:
    spec = document.get("spec") or {}
    templates = [spec.get("template"), *(task.get("template") for task in spec.get("tasks") or ())]
    for each in (document, *(template for template in templates if template)):
        each.setdefault("metadata", {}).setdefault("labels", {})[RUN_LABEL] = run_label(run)
    for template in templates:
        for container in ((template or {}).get("spec") or {}).get("containers") or ():
            others = [v for v in container.get("env") or () if v.get("name") != ENV_RUN]
            container["env"] = [*others, {"name": ENV_RUN, "value": run}]


def requests(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return documents as they were sent, without the server's additions.

    Args:
        documents: The server's documents, the job's main one last.
    """
    return {OBJECTS: [_plain(document) for document in documents]}


def _plain(document: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: copy.deepcopy(value) for key, value in document.items() if key != "status"}
    metadata = found["metadata"]
    for name in _SERVERS_METADATA:
        metadata.pop(name, None)
    for name in _OWN_ANNOTATIONS:
        (metadata.get("annotations") or {}).pop(name, None)
    spec = found.get("spec") or {}
    if found.get("apiVersion") == "batch/v1":
        spec.pop("selector", None)
        for each in (metadata, (spec.get("template") or {}).get("metadata") or {}):
            for name in _CONTROLLERS_LABELS:
                (each.get("labels") or {}).pop(name, None)
    return found


_NAMESPACE = "default"
_MOST_FAILED = 50
"""Maximum number of failed pods that are inspected to describe an array."""


class KubernetesBackend:
    """Jobs of one namespace; see `farcall.backends.base.Backend` for the methods.

    Args:
        timing: Time limits and retries of requests.
        settings: The options that select the cluster.
    """

    name: str = KUBERNETES
    capabilities = Capabilities(
        largest_array=documents.LARGEST_ARRAY,
        described_together=100,
        longest_log_line_bytes=logs.LONGEST_LINE_BYTES,
        log_reads_per_s=logs.READS_PER_S,
        marks_ended_children=True,
        ids_are_names=True,
    )

    def __init__(self, timing: Timing, settings: Settings) -> None:
        self._settings = settings
        self.meter = Meter()
        self._kube: Kube | None = None
        self._without: SettingsError | None = None
        try:
            connection = kubeconfig.read(settings.kubeconfig, settings.context)
        except SettingsError as error:  # a plan needs no cluster
            self._without = error
            return
        self._kube = Kube(connection, settings.namespace, timing, self.meter)

    @property
    def kube(self) -> Kube:
        """The API server.

        Raises:
            SettingsError: No server is configured.
        """
        if self._kube is None:
            assert self._without is not None  # noqa: S101  # for the type checker
            raise self._without
        return self._kube

    @property
    def namespace(self) -> str:
        """The namespace of the jobs, even without a cluster."""
        found = self._kube.namespace if self._kube is not None else self._settings.namespace
        return found or _NAMESPACE

    @functools.cached_property
    def _lookup(self) -> Lookup:
        return Lookup(self.kube, has_volcano=self._settings.scheduler == "volcano")

    @functools.cached_property
    def _ending(self) -> Terminator:
        return Terminator(self.kube, self._lookup)

    # --- before submission ---------------------------------------------------------------------

    async def check(self, settings: Settings) -> None:
        """Check that the namespace exists, and the objects in it that the options name."""
        await check(self.kube, settings)

    async def reach(self) -> list[Finding]:
        """Check that the API server responds."""
        version = await self.kube.request("GET", "/version")
        found = f"Kubernetes {version.get('gitVersion', '(unknown version)')} at {self.kube.place}"
        return [Finding("cluster", OK, f"{found}, namespace {self.kube.namespace}")]

    def examine(
        self, settings: Settings, *, answers: bool
    ) -> Mapping[str, Awaitable[Iterable[Finding]]]:
        """Return the checks of rights, namespace, quota, queue and image."""
        from farcall.backends.kubernetes import doctor  # only needed by `farcall doctor`

        return doctor.checks(self.kube, settings, answers=answers)

    async def needs_runtime(self, settings: Settings, *, offline: bool = False) -> bool:
        """Return whether tasks run in the stock image."""
        return not settings.image

    async def plan(self, job: JobSpec, *, offline: bool = False) -> dict[str, Any]:
        """Return the objects of a submission, validated by the server."""
        wanted = self._documents(job)
        if not offline:
            await check_submission(self.kube, wanted)
        return {OBJECTS: wanted}

    def _documents(self, job: JobSpec) -> list[dict[str, Any]]:
        image = job.settings.image or job.settings.stock_image
        if job.requests is not None:
            found = objects(job)
        elif nodes.is_several(job):
            found = nodes.objects(job, image)
        else:
            found = [documents.job(job, image)]
        return [
            {**each, "metadata": {**each["metadata"], "namespace": self.namespace}}
            for each in found
        ]

    # --- jobs ---------------------------------------------------------------------------------

    async def prepare(self, job: JobSpec) -> None:
        """Check that the options result in a valid Kubernetes job."""
        self._documents(job)

    async def submit(self, job: JobSpec, ticket: Ticket) -> str:
        """Create a job's objects; return its ID."""
        limit_s = job.settings.stuck_timeout_s
        made = await create(self.kube, self._documents(job), ticket, limit_s)
        for each in made:
            run = (each["metadata"].get("labels") or {}).get(RUN_LABEL)
            if run and each.get("apiVersion") == "batch/v1":
                self._lookup.watch.note(run, each)
        return str(made[-1]["metadata"]["name"])

    async def find(self, name: str, queue: str) -> list[str]:
        """Return the ID of the job with a name."""
        return [job.name for job in await self._lookup.list_named(name, queue)]

    async def describe(self, job_ids: Iterable[str]) -> dict[str, JobDetail]:
        """Return the details of jobs, array tasks and nodes."""
        ids = list(dict.fromkeys(job_ids))
        jobs = await self._lookup.jobs(map(_whole_of, ids))
        known = {job_id: jobs[name] for job_id in ids if (name := _whole_of(job_id)) in jobs}
        arrays = {job_id: job for job_id, job in known.items() if job.is_array}
        others = {job_id: job for job_id, job in known.items() if not job.is_array}
        pods = await self._lookup.pods({job.name: job for job in others.values()}.values())
        found: dict[str, JobDetail | None] = {}
        gangs = {job.name: job for job in others.values() if len(job.objects) > 1}
        await asyncio.gather(*map(self._ending.end_left, gangs.values()))
        for job_id, job in others.items():
            found[job_id] = await self._plain(job, job_id, pods[job.name])
        for job_id, job in arrays.items():
            if job_id == job.name:
                found[job_id] = await self._array(job)
        found |= await self._children(arrays)
        return {job_id: each for job_id in ids if (each := found.get(job_id)) is not None}

    async def _array(self, job: Found) -> JobDetail:
        waiting = await self._lookup.waiting(job)
        failed = [pod for pods in (self._lookup.failed(job) or {}).values() for pod in pods]
        pods = [*failed[:_MOST_FAILED], *waiting]
        return job.description(await self._lookup.events(job, pods)).whole(pods)

    async def _plain(self, job: Found, job_id: str, pods: Sequence[Pod]) -> JobDetail | None:
        described = job.description(await self._lookup.events(job, pods))
        if job_id == job.name:
            return described.whole(pods)
        rank = _number(job_id, "#")
        return described.node(rank, pods) if rank is not None else None

    async def _children(self, jobs: Mapping[str, Found]) -> dict[str, JobDetail | None]:
        """Describe the array tasks among the given jobs."""
        wanted: dict[str, list[int]] = {}
        for job_id, job in jobs.items():
            index = _number(job_id, ":")
            if index is not None and index < job.size:
                wanted.setdefault(job.name, []).append(index)
        found: dict[str, JobDetail | None] = {}
        for name, indexes in wanted.items():
            job = jobs[f"{name}:{indexes[0]}"]
            pods = await self._lookup.children(job, indexes)
            described = job.description()
            for index in indexes:
                found[f"{name}:{index}"] = described.task(index, pods.get(index, ()))
        return found

    async def requests_of(self, job_id: str) -> dict[str, Any] | None:
        """Return an existing job's documents, without the server's additions."""
        job = (await self._lookup.jobs([job_id])).get(job_id)
        if job is None:
            return None
        last = sorted(job.objects, key=lambda each: each["metadata"]["name"] == job.name)
        return requests(last)

    async def options_of(self, job_id: str) -> dict[str, Any]:
        """Return the options for resubmitting a job."""
        job = (await self._lookup.jobs([job_id])).get(job_id)
        return describe.options(job.job) if job is not None else {}

    async def terminate(self, job_ids: Sequence[str], reason: str) -> dict[str, ServiceError]:
        """Terminate jobs; return the errors of those that could not be terminated."""
        return await self._ending.end(job_ids, reason)

    async def forget(self, detail: JobDetail) -> None:
        """Delete a job's objects, with their pods."""
        name = _whole_of(detail.job_id)
        job = (await self._lookup.jobs([name])).get(name)
        for each in job.objects if job is not None else ():
            await delete(self.kube, each)

    def unknown(self, job_id: str) -> str:
        """Return the error text for a job that does not exist."""
        return (
            f"job {job_id} does not exist in namespace {self.namespace} of {self.kube.place}. "
            "Run `farcall list` to list the existing jobs: jobs are deleted some time after "
            "their end (ttl), and jobs elsewhere require the options namespace and context."
        )

    # --- lists --------------------------------------------------------------------------------

    async def queues(self) -> list[str]:
        """Return the names of the scheduler's queues; an empty name if it has none."""
        return await self._lookup.queues(self._settings.scheduler)

    async def list_named(self, name: str, queue: str) -> list[JobDetail]:
        """Return the job with a name."""
        found = await self._lookup.list_named(name, queue)
        return list((await self.describe(job.name for job in found)).values())

    def list_jobs(
        self,
        queue: str,
        since: datetime | None = None,
        *,
        named: str = "",
        foreign: bool = False,
    ) -> AsyncGenerator[list[JobDetail], None]:
        """Yield the jobs of the namespace, in pages of up to 100."""
        return self._lookup.list_jobs(queue, since, named=named, foreign=foreign)

    def list_children(self, job_id: str, status: JobStatus) -> AsyncIterator[list[JobDetail]]:
        """Yield the tasks of an array that have a status, in pages of up to 100."""
        return self._lookup.list_children(job_id, status)

    async def position(self, detail: JobDetail) -> int | None:
        """Return None: the cluster's scheduler does not report an order."""
        return None

    # --- links and logs ------------------------------------------------------------------------

    def links(self, detail: JobDetail) -> dict[str, str]:
        """Return no links: clusters have no common web console."""
        return {}

    def log(self, group: str, stream: str, since: datetime | None = None) -> Log:
        """Return the log of a pod."""
        return logs.PodLog(self.kube, stream, since)

    async def close(self) -> None:
        """Stop all watches and close the connections."""
        if self._kube is not None:
            await self._lookup.close()
            await self._kube.close()


def _whole_of(job_id: str) -> str:
    """Return the ID of the job that contains an array task or a node."""
    return job_id.partition(":")[0].partition("#")[0]


def _number(job_id: str, mark: str) -> int | None:
    text = job_id.partition(mark)[2]
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


# --- Preflight checks of a cluster: it responds, and the objects that the options name exist ----
#
# Missing permissions are ignored: missing objects are then reported when a job starts.


FORBIDDEN = 403


async def check(kube: Kube, settings: Settings) -> None:
    """Check that the namespace exists, and the objects in it that the options name.

    Raises:
        SettingsError: An object does not exist.
        KubeError: Jobs cannot be listed, or the server does not respond.
    """
    # The permission to list jobs is always needed, so a refusal is reported unchanged.
    path = kube.path("jobs", group="batch")
    await kube.request("GET", path, params={"limit": 1})
    path = f"/api/v1/namespaces/{kube.namespace}"
    namespace = NamedObject("namespace", kube.namespace, path, "namespaces")
    wanted = [namespace, *named_objects(kube, settings)]
    await asyncio.gather(*(get_object(kube, each) for each in wanted))


class NamedObject(NamedTuple):
    """An object of the cluster that an option names.

    Attributes:
        option: The option.
        name: Its name.
        path: Its path in the API; empty for Kueue's, whose version depends on the cluster.
        kind: Its resource name in kubectl.
    """

    option: str
    name: str
    path: str
    kind: str


def named_objects(kube: Kube, settings: Settings) -> Iterator[NamedObject]:
    """Yield the objects in the namespace that the options name."""
    if name := settings.service_account:
        path = kube.path("serviceaccounts", name)
        yield NamedObject("service_account", name, path, "serviceaccounts")
    if name := settings.priority_class:
        path = f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}"
        yield NamedObject("priority_class", name, path, "priorityclasses")
    if (name := settings.queue) and settings.scheduler == "kueue":
        yield NamedObject("queue", name, "", "localqueues")
    if settings.scheduler == "volcano":
        name = settings.queue or "default"
        path = f"/apis/scheduling.volcano.sh/v1beta1/queues/{name}"
        yield NamedObject("queue", name, path, "queues.scheduling.volcano.sh")


async def get_object(kube: Kube, wanted: NamedObject) -> dict[str, Any] | None:
    """Return an object; None without the permission to get it.

    Raises:
        SettingsError: It does not exist.
        KubeError: The server refused for another reason.
    """
    option, name, path, kind = wanted
    path = path or await kube.kueue_path(kind, name)
    try:
        return await kube.request("GET", path)
    except KubeError as error:
        if error.status == FORBIDDEN:
            return None
        if not error.is_missing:
            raise
        where = f" -n {kube.namespace}" if f"/{kube.namespace}/" in path else ""
        raise SettingsError(
            f"{option} is {name!r}, which does not exist in {kube.place}; set {option} to one "
            f"that `kubectl get {kind}{where}` lists",
            option=option,
        ) from error
