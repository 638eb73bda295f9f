"""Volcano's plugins for jobs: svc, by which pods have names, and env, by which they have numbers.

Sources:
    https://github.com/volcano-sh/volcano/blob/master/pkg/controllers/job/plugins/svc/svc.go
    https://github.com/volcano-sh/volcano/blob/master/pkg/controllers/job/plugins/env/env.go
"""

from __future__ import annotations

from typing import Any

from farcall_local.kubernetes.kinds import CONFIG_MAP, SERVICE, Kind
from farcall_local.kubernetes.store import Store

MOUNT = "/etc/volcano"
_PUBLISHED = "publish-not-ready-addresses"


def pod_name(job: dict[str, Any], task: str, number: int) -> str:
    """Return the name of a pod of a job."""
    return f"{job['metadata']['name']}-{task}-{number}"


def owner(job: dict[str, Any]) -> dict[str, Any]:
    """Return the reference to a job of what it owns."""
    return {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def make(store: Store, job: dict[str, Any]) -> dict[str, str]:
    """Make what a job's plugins have made for it.

    Args:
        store: Takes it.
        job: The job.

    Returns:
        The job's controlledResources.
    """
    plugins = job["spec"].get("plugins") or {}
    if "svc" in plugins:
        name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
        meta = {"namespace": namespace, "ownerReferences": [owner(job)]}
        _put(store, CONFIG_MAP, {"metadata": {**meta, "name": f"{name}-svc"}, "data": _hosts(job)})
        selector = {"volcano.sh/job-name": name, "volcano.sh/job-namespace": namespace}
        arguments = " ".join(plugins["svc"] or ())
        spec: dict[str, Any] = {"clusterIP": "None", "clusterIPs": ["None"], "selector": selector}
        if _PUBLISHED in arguments and f"{_PUBLISHED}=false" not in arguments:
            spec["publishNotReadyAddresses"] = True
        _put(store, SERVICE, {"metadata": {**meta, "name": name}, "spec": spec})
    return {f"plugin-{name}": name for name in plugins}


def remove(store: Store, job: dict[str, Any]) -> None:
    """Delete what `make` has made, as Volcano does when a job is stopped."""
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    for kind, each in ((CONFIG_MAP, f"{name}-svc"), (SERVICE, name)):
        there = store.get(kind, namespace, each)
        owners = there["metadata"].get("ownerReferences", ()) if there else ()
        if any(one["uid"] == job["metadata"]["uid"] for one in owners):
            store.delete(kind, namespace, each)


def _put(store: Store, kind: Kind, document: dict[str, Any]) -> None:
    meta = document["metadata"]
    if store.get(kind, meta["namespace"], meta["name"]) is None:
        store.create(kind, document)


def _hosts(job: dict[str, Any]) -> dict[str, str]:
    found = {}
    for task in job["spec"]["tasks"]:
        hosts = list(_hosts_of(job, task))
        key = task["name"].replace("-", "_")
        found[f"{key}.host"] = "\n".join(hosts)
        found[f"VC_{key.upper()}_HOSTS"] = ",".join(hosts)
        found[f"VC_{key.upper()}_NUM"] = str(task["replicas"])
    return found


def _hosts_of(job: dict[str, Any], task: dict[str, Any]) -> list[str]:
    spec = task["template"].get("spec") or {}
    subdomain = spec.get("subdomain") or job["metadata"]["name"]
    if spec.get("hostname"):
        return [f"{spec['hostname']}.{subdomain}"]
    names = [pod_name(job, task["name"], number) for number in range(task["replicas"])]
    return [f"{name}.{subdomain}" for name in names]


def changed(job: dict[str, Any], pod: dict[str, Any], number: int) -> dict[str, Any]:
    """Return a pod as the job's plugins want it.

    Args:
        job: The job.
        pod: The pod.
        number: Its number in its task.
    """
    plugins = job["spec"].get("plugins") or {}
    spec, added = dict(pod["spec"]), []
    if "svc" in plugins:
        name = f"{job['metadata']['name']}-svc"
        spec["hostname"] = spec.get("hostname") or pod["metadata"]["name"]
        spec["subdomain"] = spec.get("subdomain") or job["metadata"]["name"]
        spec["volumes"] = [*spec.get("volumes", ()), {"name": name, "configMap": {"name": name}}]
        added += [
            {"name": key, "valueFrom": {"configMapKeyRef": {"name": name, "key": key}}}
            for task in job["spec"]["tasks"]
            for key in _keys(task["name"])
        ]
    if "env" in plugins:
        added += [
            {"name": key, "value": str(number)} for key in ("VK_TASK_INDEX", "VC_TASK_INDEX")
        ]
    mounts = [{"name": f"{job['metadata']['name']}-svc", "mountPath": MOUNT}] * ("svc" in plugins)
    for kind in ("containers", "initContainers"):
        if spec.get(kind):
            spec[kind] = [_with(each, added, mounts) for each in spec[kind]]
    return {**pod, "spec": spec}


def _keys(task: str) -> tuple[str, str]:
    key = task.replace("-", "_").upper()
    return f"VC_{key}_HOSTS", f"VC_{key}_NUM"


def _with(
    container: dict[str, Any], env: list[dict[str, Any]], mounts: list[dict[str, Any]]
) -> dict[str, Any]:
    more = {"env": [*container.get("env", ()), *env]}
    if mounts:
        more["volumeMounts"] = [*container.get("volumeMounts", ()), *mounts]
    return {**container, **more}
