"""Names, labels and annotations of the Kubernetes objects that farcall creates. No I/O.

Source:
    https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

MANAGED_LABEL = "app.kubernetes.io/managed-by"
RUN_LABEL = "farcall/run"
"""Label with the submitting session; one watch follows all jobs of a run."""
KIND_LABEL = "farcall/kind"
JOB_LABEL = "farcall/job"
"""Label with the job's ID, on each of its objects and pods."""
QUEUE_LABEL = "farcall/queue"
NODE_LABEL = "farcall/node"
"""Label with a pod's node index, if it is not its completion index."""

GANG_LABEL = "farcall/gang"
"""Label of the pods that have host names in the nodes' Service."""
KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"

NAME_ANNOTATION = "farcall/name"
"""The job's requested name, which may be invalid in Kubernetes."""
REASON_ANNOTATION = "farcall/reason"
"""Reason for which farcall terminated the job."""
ENDED_ANNOTATION = "farcall/ended"
"""Reasons for which single array tasks were terminated, by index, as JSON."""
DELETED_PODS_ANNOTATION = "farcall/deleted-pods"
"""The last state of failed pods that were deleted, as JSON."""
OPTIONS_ANNOTATION = "farcall/options"
"""The options for resubmitting a job, as JSON."""
DIGEST_ANNOTATION = "farcall/digest"
"""Digest of the sent document; the same name and digest mean the same job."""
TAGS_ANNOTATION = "farcall/tags"
"""The option ``tags`` as JSON, because its keys may be invalid for annotations."""

SUBMITTED_ANNOTATION = "farcall/submitted"
"""Submission time by the client's clock; Kubernetes's resolution is coarser."""

INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
"""Kubernetes's own label, and annotation, of a pod of an Indexed Job."""

FAILURES_ANNOTATION = "batch.kubernetes.io/job-index-failure-count"
IGNORED_FAILURES_ANNOTATION = "batch.kubernetes.io/job-index-ignored-failure-count"
"""Kubernetes's own annotations of a pod: failures of its index, and those that do not count."""

RETRIES_ANNOTATION = "volcano.sh/job-retry-count"
"""Volcano's annotation of a pod: number of the job's earlier attempts."""

MANAGER = "farcall"
CONTAINER = "task"

_LABEL_CHARACTERS = 63
_NAME_CHARACTERS = 52
"""Maximum characters of a name; a pod's host name, with `-<index>`, has up to 63."""

_DIGEST_DIGITS = 8
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_OTHERS = re.compile(r"[^a-z0-9]+")
_NO_LABEL = re.compile(r"[^A-Za-z0-9._-]+")


def object_name(name: str) -> str:
    """Return the Job's name for a name; equal for equal names, and unique."""
    if len(name) <= _NAME_CHARACTERS and _NAME.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_DIGITS]
    plain = _OTHERS.sub("-", name.lower()).strip("-") or "job"
    return f"{plain[: _NAME_CHARACTERS - _DIGEST_DIGITS - 1].rstrip('-')}-{digest}"


def run_label(run: str) -> str:
    """Return a run's name as a label's value."""
    return _NO_LABEL.sub("-", run)[:_LABEL_CHARACTERS].strip("-._")


def labels(name: str, run: str, queue: str, *, is_command: bool) -> dict[str, str]:
    """Return the labels of a job's objects and pods.

    Args:
        name: The job's requested name.
        run: Name of the submitting session.
        queue: The job's queue; empty if it has none.
        is_command: Whether it runs a command.
    """
    values = {
        MANAGED_LABEL: MANAGER,
        KIND_LABEL: "command" if is_command else "task",
        JOB_LABEL: object_name(name),
        RUN_LABEL: run_label(run),
        QUEUE_LABEL: run_label(queue),
    }
    return {key: value for key, value in values.items() if value}


def rank(document: Mapping[str, Any], otherwise: int) -> int:
    """Return the index of the node that an object is for."""
    label = ((document.get("metadata") or {}).get("labels") or {}).get(NODE_LABEL)
    return int(label) if isinstance(label, str) and label.isdecimal() else otherwise
