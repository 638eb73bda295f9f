"""Creation of Kubernetes objects, exactly once: a name that is taken by the very same is ours.

A create whose answer was lost is made again, and then refused, for the name is taken. What is
there bears the digest of the document that was sent, so it is told from what somebody else made.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from farcall.aws.paced_client import Ticket
from farcall.backends.kubernetes.client import Kube
from farcall.backends.kubernetes.names import (
    DIGEST_ANNOTATION,
    MANAGED_LABEL,
    MANAGER,
    SUBMITTED_ANNOTATION,
)
from farcall.backends.kubernetes.refusals import KubeError
from farcall.model.errors import FarcallError, SettingsError, SubmissionError

_log = logging.getLogger("farcall")

_KINDS = {"Job": "jobs", "Service": "services"}
_STRICT = {"fieldValidation": "Strict"}
"""A cluster that does not know a field is to say so: without it the job would be another one."""

_WRONG = ("BadRequest", "Invalid")
_TAKEN = "AlreadyExists"


def path_of(kube: Kube, document: Mapping[str, Any]) -> str:
    """Return the path of the list that an object belongs to."""
    group, _, version = str(document["apiVersion"]).rpartition("/")
    kind = str(document["kind"])
    return kube.path(_KINDS.get(kind, f"{kind.lower()}s"), group=group, version=version)


def marked(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with its digest, and the moment of its making."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    metadata = document["metadata"]
    annotations = {
        **(metadata.get("annotations") or {}),
        DIGEST_ANNOTATION: hashlib.sha256(text.encode()).hexdigest(),
        # Kubernetes's own moment is a second long, and lists are to be the newest first.
        SUBMITTED_ANNOTATION: datetime.now(timezone.utc).isoformat(),
    }
    return {**document, "metadata": {**metadata, "annotations": annotations}}


async def check(kube: Kube, documents: Sequence[Mapping[str, Any]]) -> None:
    """Have the server look at documents, and make nothing.

    Raises:
        SubmissionError: It would refuse one.
        KubeError: It refused otherwise, or did not answer.
    """
    for document in documents:
        try:
            params = {**_STRICT, "dryRun": "All"}
            await kube.request("POST", path_of(kube, document), params=params, body=document)
        except KubeError as error:
            if error.code != _TAKEN:
                raise _explained(document, error) from error


async def create(
    kube: Kube, documents: Sequence[Mapping[str, Any]], ticket: Ticket
) -> list[dict[str, Any]]:
    """Make the objects of a job once, one after the other; return them as they are there.

    Args:
        kube: The server.
        documents: What is to be made; the last one is the job.
        ticket: With which the caller may take it back.

    Raises:
        SubmissionError: The server takes no such job, or the name is somebody else's.
        SettingsError: There is no such namespace.
        KubeError: It refused otherwise, or did not answer.
    """
    made: list[dict[str, Any]] = []
    try:
        for document in documents:
            each = await _create(kube, document, ticket)
            made.append(each)
    except (SubmissionError, SettingsError):
        await _undo(kube, made)
        raise
    return made


async def _create(kube: Kube, document: Mapping[str, Any], ticket: Ticket) -> dict[str, Any]:
    wanted = marked(document)
    path = path_of(kube, document)
    try:
        return await kube.request("POST", path, params=_STRICT, body=wanted, ticket=ticket)
    except KubeError as error:
        if error.code != _TAKEN:
            raise _explained(document, error) from error
    name = document["metadata"]["name"]
    there = await kube.request("GET", f"{path}/{name}")
    if _is_same(there, wanted):
        _log.debug("%s %s is there already, and is this one", document["kind"], name)
        return there
    raise SubmissionError(
        f"in namespace {kube.namespace} of {kube.place} there is another {document['kind']} "
        f"called {name}, which was not made by this submission; delete it "
        f"(`kubectl delete {path.rpartition('/')[2]} {name} -n {kube.namespace}`), or submit "
        "under another name"
    )


def _is_same(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Tell whether what has a name was made of a document; a Service is all jobs'."""
    found, own = there.get("metadata") or {}, wanted["metadata"]
    if wanted["kind"] == "Service":
        return bool((found.get("labels") or {}).get(MANAGED_LABEL) == MANAGER)
    digest = (found.get("annotations") or {}).get(DIGEST_ANNOTATION)
    return bool(digest == own["annotations"][DIGEST_ANNOTATION])


async def _undo(kube: Kube, made: Sequence[Mapping[str, Any]]) -> None:
    """Delete what was made for a job of which the rest was refused."""
    jobs = [each for each in made if each["kind"] == "Job"]
    for refused in await asyncio.gather(*(delete(kube, j) for j in jobs), return_exceptions=True):
        if isinstance(refused, FarcallError):
            _log.warning("what was made of a refused job stays: %s", refused)


async def delete(kube: Kube, document: Mapping[str, Any]) -> None:
    """Delete an object with its pods; what is gone already is no error.

    Raises:
        KubeError: The server refused.
    """
    path = f"{path_of(kube, document)}/{document['metadata']['name']}"
    try:
        # The default for Jobs leaves their pods running.
        await kube.request("DELETE", path, params={"propagationPolicy": "Background"})
    except KubeError as error:
        if not error.is_missing:
            raise


def _explained(document: Mapping[str, Any], error: KubeError) -> FarcallError:
    kind, name = document["kind"], document["metadata"]["name"]
    if error.is_missing and error.details.get("kind") == "namespaces":
        return SettingsError(str(error), option="namespace")
    if error.is_missing:  # the very path: a cluster without Volcano
        api = document["apiVersion"]
        return SettingsError(
            f"the cluster knows no {kind} of {api}: {error}; install what serves it, or set "
            "scheduler to 'default'",
            option="scheduler",
        )
    if error.code in _WRONG:
        return SubmissionError(f"{kind} {name} was not accepted: {error}")
    return error
