"""Names, labels and annotations of what farcall makes in Kubernetes. No I/O.

Source:
    https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
"""

from __future__ import annotations

import hashlib
import re

MANAGED_LABEL = "app.kubernetes.io/managed-by"
RUN_LABEL = "farcall/run"
"""The session that submitted a job: one watch follows all of a run."""
KIND_LABEL = "farcall/kind"
JOB_LABEL = "farcall/job"
"""The job's ID, on each of its objects and pods."""
QUEUE_LABEL = "farcall/queue"
NODE_LABEL = "farcall/node"
"""A pod's number in its job, where it is not its completion index."""

NAME_ANNOTATION = "farcall/name"
"""The job's name as it was wanted, which may be no name of Kubernetes's."""
REASON_ANNOTATION = "farcall/reason"
"""Why it was ended by farcall."""
ENDED_ANNOTATION = "farcall/ended"
"""By index, why children were ended one by one, as JSON."""
OPTIONS_ANNOTATION = "farcall/options"
"""The options that a job is submitted anew with, as JSON."""
DIGEST_ANNOTATION = "farcall/digest"
"""Of the document that was sent: what has the same name and digest is the same job."""
TAGS_ANNOTATION = "farcall/tags"
"""The option ``tags``, as JSON: their keys may be none of an annotation."""

SUBMITTED_ANNOTATION = "farcall/submitted"
"""When it was submitted, by the clock of whoever did, more finely than Kubernetes says."""

INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
"""Kubernetes's own, of a pod of an Indexed Job; also an annotation."""

MANAGER = "farcall"
CONTAINER = "task"

_LABEL_CHARACTERS = 63
_NAME_CHARACTERS = 52
"""With `-<index>` it is a pod's host name, of 63 characters at most."""

_DIGEST_DIGITS = 8
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_OTHERS = re.compile(r"[^a-z0-9]+")
_NO_LABEL = re.compile(r"[^A-Za-z0-9._-]+")


def object_name(name: str) -> str:
    """Return the name that the Job of a name has: the same for the same, and for no other."""
    if len(name) <= _NAME_CHARACTERS and _NAME.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_DIGITS]
    plain = _OTHERS.sub("-", name.lower()).strip("-") or "job"
    return f"{plain[: _NAME_CHARACTERS - _DIGEST_DIGITS - 1].rstrip('-')}-{digest}"


def run_label(run: str) -> str:
    """Return a run's name as a label's value."""
    return _NO_LABEL.sub("-", run)[:_LABEL_CHARACTERS].strip("-._")
