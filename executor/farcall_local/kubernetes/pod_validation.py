"""Rules that the Kubernetes API server checks of pods, and of the pods that templates make.

Sources:
    https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/
    https://github.com/kubernetes/kubernetes, pkg/apis/core/validation/validation.go
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from farcall_local.kubernetes import causes, quantities
from farcall_local.kubernetes.errors import Cause
from farcall_local.kubernetes.syntax import label_name, labels, qualified, subdomain

Document = dict[str, Any]

RESTARTS = ("Always", "Never", "OnFailure")
_DNS = ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")
_PULLS = ("Always", "IfNotPresent", "Never")
_EFFECTS = ("NoExecute", "NoSchedule", "PreferNoSchedule")
_VARIABLE = re.compile(r"[ -<>-~]+")
_STANDARD = ("cpu", "memory", "ephemeral-storage")

_POD_CHANGES = (
    "pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only "
    "additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set "
    "to 1 if it was previously negative)"
)


def check(pod: Document) -> list[Cause]:
    """Return what is wrong with a Pod."""
    return spec(pod.get("spec") or {}, "spec")


def changed(pod: Document, there: Document) -> list[Cause]:
    """Return what is wrong with the changes of a Pod."""
    if _fixed(pod["spec"]) == _fixed(there["spec"]):
        return []
    return [causes.forbidden("spec", _POD_CHANGES)]


def _fixed(of: Document) -> Document:
    """Return what may not be changed."""
    left = ("activeDeadlineSeconds", "tolerations", "containers", "initContainers")
    found = {name: value for name, value in of.items() if name not in left}
    for name in ("containers", "initContainers"):
        found[name] = [{**each, "image": ""} for each in of.get(name, ())]
    return found


def spec(of: Document, path: str) -> list[Cause]:
    """Return what is wrong with the spec of a Pod.

    Args:
        of: It.
        path: Its path, such as ``spec.template.spec``.
    """
    return [
        *_volumes(of.get("volumes", []), f"{path}.volumes"),
        *_containers(of, path),
        *causes.one_of(of, path, "restartPolicy", RESTARTS),
        *causes.one_of(of, path, "dnsPolicy", _DNS),
        *causes.at_least_zero(of, path, "terminationGracePeriodSeconds"),
        *_deadline(of, path),
        *_names(of, path),
        *labels(of.get("nodeSelector", {}), f"{path}.nodeSelector"),
        *_tolerations(of.get("tolerations", []), f"{path}.tolerations"),
    ]


def _deadline(of: Document, path: str) -> list[Cause]:
    seconds = of.get("activeDeadlineSeconds")
    if seconds is None or 1 <= seconds < 2**31:
        return []
    why = "must be between 1 and 2147483647, inclusive"
    return [causes.invalid(f"{path}.activeDeadlineSeconds", seconds, why)]


def _names(of: Document, path: str) -> Iterator[Cause]:
    for name, rule in (
        ("hostname", label_name),
        ("subdomain", label_name),
        ("serviceAccountName", subdomain),
        ("priorityClassName", subdomain),
        ("nodeName", subdomain),
    ):
        if of.get(name):
            yield from rule(of[name], f"{path}.{name}")
    for at, each in enumerate(of.get("schedulingGates", ())):
        yield from qualified(each.get("name", ""), f"{path}.schedulingGates[{at}]")


def _tolerations(given: list[Document], path: str) -> Iterator[Cause]:
    for at, each in enumerate(given):
        where = f"{path}[{at}]"
        operator = each.get("operator") or "Equal"
        if operator not in ("Equal", "Exists"):
            yield causes.unsupported(f"{where}.operator", operator, ("Equal", "Exists"))
        if not each.get("key") and operator != "Exists":
            why = 'operator must be Exists when `key` is empty, which means "match all values"'
            yield causes.invalid(f"{where}.operator", operator, why)
        if operator == "Exists" and each.get("value"):
            why = "value must be empty when `operator` is 'Exists'"
            yield causes.invalid(f"{where}.operator", each, why)
        if each.get("effect"):
            yield from causes.one_of(each, where, "effect", _EFFECTS)
        if each.get("tolerationSeconds") is not None and each.get("effect") != "NoExecute":
            why = "effect must be 'NoExecute' when `tolerationSeconds` is set"
            yield causes.invalid(f"{where}.effect", each.get("effect", ""), why)


def _volumes(given: list[Document], path: str) -> Iterator[Cause]:
    seen: set[str] = set()
    for at, each in enumerate(given):
        where, name = f"{path}[{at}]", each.get("name", "")
        yield from _unique_name(name, f"{where}.name", seen)
        sources = [source for source in each if source != "name"]
        if len(sources) > 1:
            why = "may not specify more than 1 volume type"
            yield causes.forbidden(f"{where}.{sources[1]}", why)
        for source, field in _SOURCES.items():
            if source in each and not each[source].get(field):
                yield causes.required(f"{where}.{source}.{field}")


#: What a volume of a kind cannot do without.
_SOURCES = {
    "secret": "secretName",
    "configMap": "name",
    "persistentVolumeClaim": "claimName",
    "hostPath": "path",
    "nfs": "server",
}


def _unique_name(name: str, path: str, seen: set[str]) -> Iterator[Cause]:
    if not name:
        yield causes.required(path)
        return
    yield from label_name(name, path)
    if name in seen:
        yield causes.duplicate(path, name)
    seen.add(name)


def _containers(of: Document, path: str) -> Iterator[Cause]:
    volumes = {each.get("name") for each in of.get("volumes", ())}
    seen: set[str] = set()
    if not of.get("containers"):
        yield causes.required(f"{path}.containers")
    for field in ("initContainers", "containers"):
        for at, each in enumerate(of.get(field, ())):
            where = f"{path}.{field}[{at}]"
            yield from _unique_name(each.get("name", ""), f"{where}.name", seen)
            yield from _container(each, where)
            yield from _mounts(each.get("volumeMounts", []), f"{where}.volumeMounts", volumes)


def _container(container: Document, path: str) -> Iterator[Cause]:
    image = container.get("image", "")
    if not image:
        yield causes.required(f"{path}.image")
    elif image != image.strip():
        why = "must not have leading or trailing whitespace"
        yield causes.invalid(f"{path}.image", image, why)
    yield from causes.one_of(container, path, "imagePullPolicy", _PULLS)
    yield from _ports(container.get("ports", []), f"{path}.ports")
    yield from _variables(container.get("env", []), f"{path}.env")
    for at, each in enumerate(container.get("envFrom", ())):
        if not each.keys() & {"secretRef", "configMapRef"}:
            why = "must specify one of: `configMapRef` or `secretRef`"
            yield causes.invalid(f"{path}.envFrom[{at}]", "", why)
    yield from _resources(container.get("resources", {}), f"{path}.resources")


def _ports(given: list[Document], path: str) -> Iterator[Cause]:
    for at, each in enumerate(given):
        port = each.get("containerPort")
        if port is None:
            yield causes.required(f"{path}[{at}].containerPort")
        elif not 1 <= port <= 65535:
            why = "must be between 1 and 65535, inclusive"
            yield causes.invalid(f"{path}[{at}].containerPort", port, why)


def _variables(given: list[Document], path: str) -> Iterator[Cause]:
    for at, each in enumerate(given):
        where, name = f"{path}[{at}]", each.get("name", "")
        if not name:
            yield causes.required(f"{where}.name")
        elif not _VARIABLE.fullmatch(name):
            why = "a valid environment variable name must consist only of printable ASCII "
            yield causes.invalid(f"{where}.name", name, f"{why}characters other than '='")
        if each.get("value") and "valueFrom" in each:
            why = "may not be specified when `value` is not empty"
            yield causes.invalid(f"{where}.valueFrom", "", why)
        if "valueFrom" in each and len(each["valueFrom"]) != 1:
            why = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or "
            yield causes.invalid(f"{where}.valueFrom", "", f"{why}`secretKeyRef`")


def _mounts(given: list[Document], path: str, volumes: set[Any]) -> Iterator[Cause]:
    seen: set[str] = set()
    for at, each in enumerate(given):
        where, name, place = f"{path}[{at}]", each.get("name", ""), each.get("mountPath", "")
        if not name:
            yield causes.required(f"{where}.name")
        elif name not in volumes:
            yield causes.not_found(f"{where}.name", name)
        if not place:
            yield causes.required(f"{where}.mountPath")
        elif place in seen:
            yield causes.invalid(f"{where}.mountPath", place, "must be unique")
        seen.add(place)


def _resources(given: Document, path: str) -> Iterator[Cause]:
    limits, requests = given.get("limits", {}), given.get("requests", {})
    for field, amounts in (("limits", limits), ("requests", requests)):
        for name, text in amounts.items():
            yield from _amount(name, text, f"{path}.{field}[{name}]")
    for name, text in requests.items():
        if name not in limits:
            if _is_extended(name):
                why = "Limit must be set for non overcommitable resources"
                yield causes.required(f"{path}.limits", why)
            continue
        wanted, most = quantities.parse(text), quantities.parse(limits[name])
        if _is_extended(name) and wanted != most:
            why = f"must be equal to {name} limit of {limits[name]}"
            yield causes.invalid(f"{path}.requests", text, why)
        elif wanted > most:
            why = f"must be less than or equal to {name} limit of {limits[name]}"
            yield causes.invalid(f"{path}.requests", text, why)


def _amount(name: str, text: str, path: str) -> Iterator[Cause]:
    value: Decimal = quantities.parse(text)
    if value < 0:
        yield causes.invalid(path, text, "must be greater than or equal to 0")
    if _is_extended(name) and value != int(value):
        yield causes.invalid(path, text, "must be an integer")
    if "/" not in name and name not in _STANDARD and not name.startswith("hugepages-"):
        yield causes.invalid(path, name, "must be a standard resource type or fully qualified")


def _is_extended(name: str) -> bool:
    """Say whether a resource is one of which a node gives whole pieces only, such as GPUs."""
    return "/" in name and not name.startswith("kubernetes.io/")
