"""Documents that a user edited, and documents of existing jobs. No I/O.

Sources:
    https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/job-v1/
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from farcall.backends.base import JobSpec
from farcall.backends.kubernetes.names import (
    DIGEST_ANNOTATION,
    ENDED_ANNOTATION,
    REASON_ANNOTATION,
    RUN_LABEL,
    SUBMITTED_ANNOTATION,
    run_label,
)
from farcall.model.commands import ENV_RUN
from farcall.model.errors import SettingsError

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
    documents = [_checked(document) for document in given]
    run = job.environment.get(ENV_RUN, "")
    for document in documents:
        if document["kind"] == "Job" and run:
            _set_run(document, run)
    return documents


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
    copied: dict[str, Any] = copy.deepcopy(document)
    return copied


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
    plain = {key: copy.deepcopy(value) for key, value in document.items() if key != "status"}
    metadata = plain["metadata"]
    for name in _SERVERS_METADATA:
        metadata.pop(name, None)
    for name in _OWN_ANNOTATIONS:
        (metadata.get("annotations") or {}).pop(name, None)
    spec = plain.get("spec") or {}
    if plain.get("apiVersion") == "batch/v1":
        spec.pop("selector", None)
        for each in (metadata, (spec.get("template") or {}).get("metadata") or {}):
            for name in _CONTROLLERS_LABELS:
                (each.get("labels") or {}).pop(name, None)
    return plain
