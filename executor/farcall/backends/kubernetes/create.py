"""Creation and deletion of Kubernetes objects, exactly once.

A create request whose response was lost is repeated, and then refused, because the name exists.
The existing object has the digest of the sent document, which an object of another client lacks.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from farcall.backends.kubernetes.client import Kube, path_of
from farcall.backends.kubernetes.error_translation import KubeError
from farcall.backends.kubernetes.names import (
    DIGEST_ANNOTATION,
    MANAGED_LABEL,
    MANAGER,
    SUBMITTED_ANNOTATION,
)
from farcall.model import clock
from farcall.model.errors import FarcallError, JobStuckError, SettingsError, SubmissionError
from farcall.model.pacing import FIRST_WAIT_S, Ticket

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
    metadata, own = there.get("metadata") or {}, wanted["metadata"]
    if wanted["kind"] == "Service":
        return bool((metadata.get("labels") or {}).get(MANAGED_LABEL) == MANAGER)
    digest = (metadata.get("annotations") or {}).get(DIGEST_ANNOTATION)
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
