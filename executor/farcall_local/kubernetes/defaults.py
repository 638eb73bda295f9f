"""Defaults that the Kubernetes API server writes into what documents leave out.

Source: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/ and what
``kubectl get -o yaml`` shows of a document that says the least.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from farcall_local.kubernetes.kinds import (
    JOB,
    NAMESPACE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    PRIORITY_CLASS,
    SECRET,
    SERVICE,
    Kind,
)

Document = dict[str, Any]

#: What backoffLimit is where each index has its own.
NO_LIMIT = 2**31 - 1

_CONTAINERS = ("containers", "initContainers")
_MODE = 0o644
_VOLUMES: dict[str, Document] = {
    "secret": {"defaultMode": _MODE},
    "configMap": {"defaultMode": _MODE},
    "projected": {"defaultMode": _MODE},
    "downwardAPI": {"defaultMode": _MODE},
    "hostPath": {"type": ""},
}
_NODE_TROUBLE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def fill(kind: Kind, document: Document) -> Document:
    """Return an object with its defaults.

    Args:
        kind: Its kind.
        document: The object with its metadata's name and uid.
    """
    default = _DEFAULTS.get(kind)
    return default(document) if default else document


def pod(document: Document) -> Document:
    """Return a Pod with its defaults."""
    spec = pod_spec(document.get("spec") or {})
    spec = {"restartPolicy": "Always", "enableServiceLinks": True, **spec}
    spec["containers"] = [_with_requests(each) for each in spec.get("containers", ())]
    account = spec.get("serviceAccountName") or "default"
    spec.update(serviceAccountName=account, serviceAccount=account)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    spec["tolerations"] = _tolerations(spec.get("tolerations", []))
    status = document.get("status") or {"phase": "Pending"}
    return {**document, "spec": spec, "status": {"qosClass": _quality(spec), **status}}


def pod_spec(spec: Document) -> Document:
    """Return the spec of a Pod or of its template, with the defaults that both have."""
    made = {
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        **spec,
    }
    for name in _CONTAINERS:
        if name in made:
            made[name] = [_container(each) for each in made[name]]
    if "volumes" in made:
        made["volumes"] = [_volume(each) for each in made["volumes"]]
    if made.get("serviceAccountName"):
        made["serviceAccount"] = made["serviceAccountName"]
    return made


def _container(container: Document) -> Document:
    made = {
        "resources": {},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": _pull_policy(container.get("image", "")),
        **container,
    }
    if "env" in made:
        made["env"] = [_variable(each) for each in made["env"]]
    if "ports" in made:
        made["ports"] = [{"protocol": "TCP", **each} for each in made["ports"]]
    return made


def _pull_policy(image: str) -> str:
    if "@" in image:
        return "IfNotPresent"
    tag = image.rpartition("/")[2].partition(":")[2]
    return "Always" if tag in ("", "latest") else "IfNotPresent"


def _variable(variable: Document) -> Document:
    source = variable.get("valueFrom") or {}
    if "fieldRef" not in source:
        return variable
    reference = {"apiVersion": "v1", **source["fieldRef"]}
    return {**variable, "valueFrom": {**source, "fieldRef": reference}}


def _volume(volume: Document) -> Document:
    if volume.keys() <= {"name"}:
        return {**volume, "emptyDir": {}}
    return {
        name: {**_VOLUMES[name], **value} if name in _VOLUMES else value
        for name, value in volume.items()
    }


def _with_requests(container: Document) -> Document:
    """Return a container that requests as much as its limits, where it says nothing else."""
    resources = container["resources"]
    if not resources.get("limits"):
        return container
    requests = {**resources["limits"], **resources.get("requests", {})}
    return {**container, "resources": {**resources, "requests": requests}}


def _tolerations(given: list[Document]) -> list[Document]:
    """Add what every Pod bears for five minutes: a node that is not ready or not reachable."""
    keys = {each.get("key") for each in given}
    added = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for key in _NODE_TROUBLE
        if key not in keys
    ]
    return [*given, *added]


def _quality(spec: Document) -> str:
    resources = [each["resources"] for each in spec.get("containers", ())]
    if not any(each.get("requests") or each.get("limits") for each in resources):
        return "BestEffort"
    guaranteed = all(
        each.get("requests", {}).get(name) == each.get("limits", {}).get(name) is not None
        for each in resources
        for name in ("cpu", "memory")
    )
    return "Guaranteed" if guaranteed else "Burstable"


def _job(document: Document) -> Document:
    spec = dict(document.get("spec") or {})
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    policy = spec.get("podFailurePolicy")
    spec = {
        "parallelism": 1,
        "backoffLimit": NO_LIMIT if "backoffLimitPerIndex" in spec else 6,
        "completionMode": "NonIndexed",
        "suspend": False,
        "podReplacementPolicy": "Failed" if policy else "TerminatingOrFailed",
        **spec,
    }
    if policy:
        rules = [_rule(each) for each in policy.get("rules", ())]
        spec["podFailurePolicy"] = {**policy, "rules": rules}
    template = dict(spec.get("template") or {})
    template["spec"] = pod_spec(template.get("spec") or {})
    metadata = dict(document["metadata"])
    labels = template.get("metadata", {}).get("labels")
    if labels and not metadata.get("labels"):
        metadata["labels"] = labels
    if not spec.get("manualSelector"):
        _generate_selector(metadata, spec, template)
    spec["template"] = template
    return {**document, "metadata": metadata, "spec": spec, "status": document.get("status", {})}


def _generate_selector(metadata: Document, spec: Document, template: Document) -> None:
    """Mark a Job's template and have its selector find that mark."""
    name, uid = metadata["name"], metadata["uid"]
    within = template.get("metadata", {})
    labels = {
        **within.get("labels", {}),
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": name,
        "controller-uid": uid,
        "job-name": name,
    }
    template["metadata"] = {**within, "labels": labels}
    spec.setdefault("selector", {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}})


def _rule(rule: Document) -> Document:
    if "onPodConditions" not in rule:
        return rule
    conditions = [{"status": "True", **each} for each in rule["onPodConditions"]]
    return {**rule, "onPodConditions": conditions}


def _secret(document: Document) -> Document:
    made = {"type": "Opaque", **document}
    texts = made.pop("stringData", {})
    encoded = {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}
    if data := {**made.get("data", {}), **encoded}:
        made["data"] = data
    return made


def _service(document: Document) -> Document:
    spec = {
        "type": "ClusterIP",
        "sessionAffinity": "None",
        "internalTrafficPolicy": "Cluster",
        "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack",
        **(document.get("spec") or {}),
    }
    # Nothing listens there: pods of this cluster find one another without it.
    spec.setdefault("clusterIP", "10.96.0.100")
    spec.setdefault("clusterIPs", [spec["clusterIP"]])
    if "ports" in spec:
        spec["ports"] = [
            {"protocol": "TCP", "targetPort": each.get("port"), **each} for each in spec["ports"]
        ]
    return {**document, "spec": spec, "status": {"loadBalancer": {}}}


def _namespace(document: Document) -> Document:
    metadata = dict(document["metadata"])
    labels = {**metadata.get("labels", {}), "kubernetes.io/metadata.name": metadata["name"]}
    metadata["labels"] = labels
    return {
        **document,
        "metadata": metadata,
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"},
    }


def _priority_class(document: Document) -> Document:
    return {"preemptionPolicy": "PreemptLowerPriority", "value": 0, **document}


def _claim(document: Document) -> Document:
    spec = {"volumeMode": "Filesystem", **(document.get("spec") or {})}
    return {**document, "spec": spec, "status": {"phase": "Pending"}}


_DEFAULTS: dict[Kind, Callable[[Document], Document]] = {
    JOB: _job,
    NAMESPACE: _namespace,
    PERSISTENT_VOLUME_CLAIM: _claim,
    POD: pod,
    PRIORITY_CLASS: _priority_class,
    SECRET: _secret,
    SERVICE: _service,
}
