"""Defaults of the Kubernetes API server, limited to fields that clients read.

Source: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/
"""

from __future__ import annotations

import base64
from typing import Any

from farcall_local.kubernetes.kinds import JOB, NAMESPACE, POD, SECRET, Kind

Document = dict[str, Any]

#: backoffLimit of a Job in which each index has its own limit.
NO_LIMIT = 2**31 - 1


def fill(kind: Kind, document: Document) -> Document:
    """Return an object with its defaults.

    Args:
        kind: Its kind.
        document: The object; its metadata has name and uid.
    """
    if kind is JOB:
        return _job(document)
    if kind is SECRET:
        return _secret(document)
    if kind is POD:
        return {"status": {"phase": "Pending"}, **document}
    if kind is NAMESPACE:
        return {"status": {"phase": "Active"}, **document}
    return document


def _job(document: Document) -> Document:
    given = document.get("spec") or {}
    spec = {
        "parallelism": 1,
        "backoffLimit": NO_LIMIT if "backoffLimitPerIndex" in given else 6,
        "completionMode": "NonIndexed",
        "suspend": False,
        "podReplacementPolicy": "Failed",
        **given,
    }
    if spec["completionMode"] == "NonIndexed":  # the emulator has no work queues
        spec.setdefault("completions", spec["parallelism"])
    name, uid = document["metadata"]["name"], document["metadata"]["uid"]
    template = dict(spec.get("template") or {})
    metadata = template.get("metadata") or {}
    labels = {
        **metadata.get("labels", {}),
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": name,
        "controller-uid": uid,
        "job-name": name,
    }
    spec["template"] = {"spec": {}, **template, "metadata": {**metadata, "labels": labels}}
    spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    return {**document, "spec": spec, "status": document.get("status", {})}


def _secret(document: Document) -> Document:
    made = {"type": "Opaque", **document}
    texts = made.pop("stringData", {})
    encoded = {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}
    if data := {**made.get("data", {}), **encoded}:
        made["data"] = data
    return made
