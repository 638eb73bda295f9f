"""Tables of objects as ``kubectl get`` prints them: columns and cells by kind.

A real API server makes the table too, and kubectl lays it out: whoever asks with
``Accept: application/json;as=Table;v=v1;g=meta.k8s.io`` gets one in the place of objects.

Sources:
    https://kubernetes.io/docs/reference/using-api/api-concepts/#receiving-resources-as-tables
    https://github.com/kubernetes/kubernetes, pkg/printers/internalversion (names and order)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from typing import Any, NamedTuple

from farcall_local.kubernetes import kinds
from farcall_local.kubernetes.kinds import Kind

Document = Mapping[str, Any]

_NONE = "<none>"
_UNKNOWN = "<unknown>"

#: Conditions of a Job that say more than that it runs, the strongest first.
_JOB_STATES = ("Complete", "Failed", "", "Suspended", "FailureTarget", "SuccessCriteriaMet")


class _Layout(NamedTuple):
    """How objects of a kind are shown.

    Attributes:
        columns: Headings; those in brackets are for ``-o wide`` alone.
        cells: What stands in them.
    """

    columns: tuple[str, ...]
    cells: Callable[[Document, datetime], list[Any]]


def table(
    kind: Kind,
    documents: Iterable[Document],
    *,
    version: str,
    objects: str = "Metadata",
    now: datetime | None = None,
) -> dict[str, Any]:
    """Return objects as a Table.

    Args:
        kind: What they are.
        documents: The objects.
        version: Resource version of the list.
        objects: What each row has of its object: ``None``, ``Metadata`` or ``Object``.
        now: For ages; None for the present.
    """
    layout = _LAYOUTS.get(kind, _PLAIN)
    now = now or datetime.now(timezone.utc)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": version},
        "columnDefinitions": [_definition(column) for column in layout.columns],
        "rows": [
            {"cells": layout.cells(document, now), **_object(kind, document, objects)}
            for document in documents
        ],
    }


def _definition(column: str) -> dict[str, Any]:
    name = column.strip("[]")
    return {
        "name": name,
        "type": "string",
        "format": "name" if name == "Name" else "",
        "description": name,
        "priority": int(name != column),
    }


def _object(kind: Kind, document: Document, objects: str) -> dict[str, Any]:
    """Return what a row has of its object."""
    if objects == "None":
        return {}
    if objects == "Object":
        return {"object": {"kind": kind.kind, "apiVersion": kind.api_version, **document}}
    metadata = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    return {"object": {**metadata, "metadata": document["metadata"]}}


# --- what cells say -----------------------------------------------------------------------------


def _name(document: Document) -> str:
    return str(document["metadata"]["name"])


def _age(document: Document, now: datetime) -> str:
    return _since(document["metadata"].get("creationTimestamp"), now)


def _since(stamp: str | None, now: datetime) -> str:
    """Return how long ago a moment was."""
    return _UNKNOWN if not stamp else duration((now - _moment(stamp)).total_seconds())


def _moment(stamp: str) -> datetime:
    # Python 3.10 knows no Z.
    return datetime.fromisoformat(stamp.replace("Z", "+00:00"))


def duration(seconds: float) -> str:
    """Return a span of time as kubectl writes it: ``90s``, ``5m3s``, ``3h``, ``2d4h``, ``1y30d``.

    Args:
        seconds: Its length; less than none by up to a second is 0, for clocks differ.
    """
    if seconds < 0:
        return "0s" if seconds > -2 else "<invalid>"
    for limit, unit, letter, smaller, letter_below, whole_from in _SPANS:
        if seconds < limit:
            return _span(int(seconds), unit, letter, smaller, letter_below, whole_from)
    return f"{int(seconds) // _YEAR_S}y"


_MINUTE_S, _HOUR_S, _DAY_S, _YEAR_S = 60, 3600, 86_400, 365 * 86_400

#: Below so many seconds: unit and its letter, the unit below, and from where on that is left out.
_SPANS = (
    (2 * _MINUTE_S, 1, "s", 0, "", 0),
    (3 * _HOUR_S, _MINUTE_S, "m", 1, "s", 10 * _MINUTE_S),
    (2 * _DAY_S, _HOUR_S, "h", _MINUTE_S, "m", 8 * _HOUR_S),
    (2 * _YEAR_S, _DAY_S, "d", _HOUR_S, "h", 8 * _DAY_S),
    (8 * _YEAR_S, _YEAR_S, "y", _DAY_S, "d", 8 * _YEAR_S),
)


def _span(
    seconds: int, unit: int, letter: str, smaller: int, letter_below: str, whole_from: int
) -> str:
    whole, rest = divmod(seconds, unit)
    below = rest // smaller if smaller and seconds < whole_from else 0
    return f"{whole}{letter}" + (f"{below}{letter_below}" if below else "")


def _holds(document: Document, condition: str) -> bool:
    return any(
        found["type"] == condition and found["status"] == "True"
        for found in document.get("status", {}).get("conditions", ())
    )


# --- Jobs and pods ------------------------------------------------------------------------------


def _job(job: Document, now: datetime) -> list[Any]:
    spec = job["spec"]
    containers = spec["template"]["spec"]["containers"]
    return [
        _name(job),
        _job_state(job),
        _completions(job),
        _job_duration(job.get("status", {}), now),
        _age(job, now),
        ",".join(container["name"] for container in containers),
        ",".join(container.get("image", "") for container in containers),
        _selector(spec.get("selector", {}).get("matchLabels", {})),
    ]


def _job_state(job: Document) -> str:
    for state in _JOB_STATES:
        if not state and job["metadata"].get("deletionTimestamp"):
            return "Terminating"
        if state and _holds(job, state):
            return state
    return "Running"


def _completions(job: Document) -> str:
    succeeded, spec = job.get("status", {}).get("succeeded", 0), job["spec"]
    if spec.get("completions") is not None:
        return f"{succeeded}/{spec['completions']}"
    parallelism = spec.get("parallelism", 1)
    return f"{succeeded}/1 of {parallelism}" if parallelism > 1 else f"{succeeded}/1"


def _job_duration(status: Document, now: datetime) -> str:
    if not status.get("startTime"):
        return ""
    end = _moment(status["completionTime"]) if status.get("completionTime") else now
    return duration((end - _moment(status["startTime"])).total_seconds())


def _selector(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or _NONE


def _pod(pod: Document, now: datetime) -> list[Any]:
    status = pod.get("status", {})
    containers = status.get("containerStatuses", ())
    ready = sum(bool(container.get("ready")) for container in containers)
    return [
        _name(pod),
        f"{ready}/{len(pod['spec']['containers'])}",
        _pod_state(pod),
        str(sum(container.get("restartCount", 0) for container in containers)),
        _age(pod, now),
        status.get("podIP") or _NONE,
        pod["spec"].get("nodeName") or _NONE,
        status.get("nominatedNodeName") or _NONE,
        _NONE,
    ]


def _pod_state(pod: Document) -> str:
    status = pod.get("status", {})
    phase = status.get("phase", _UNKNOWN)
    if pod["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            return "Unknown"
        if phase not in ("Succeeded", "Failed"):
            return "Terminating"
    return _reason_of_containers(pod) or status.get("reason") or _gated(status) or phase


def _reason_of_containers(pod: Document) -> str:
    """Return why the first container that has a reason does not run."""
    for container in pod.get("status", {}).get("containerStatuses", ()):
        state = container.get("state", {})
        found = state.get("waiting") or state.get("terminated") or {}
        if found.get("reason"):
            return str(found["reason"])
        if found.get("signal"):
            return f"Signal:{found['signal']}"
        if "exitCode" in found:
            return f"ExitCode:{found['exitCode']}"
    return ""


def _gated(status: Document) -> str:
    for condition in status.get("conditions", ()):
        if (condition["type"], condition.get("reason")) == ("PodScheduled", "SchedulingGated"):
            return "SchedulingGated"
    return ""


# --- what lies beside them ----------------------------------------------------------------------


def _event(event: Document, now: datetime) -> list[Any]:
    about, source = event.get("involvedObject", {}), event.get("source", {})
    last = event.get("lastTimestamp") or event.get("eventTime")
    first = event.get("firstTimestamp") or event.get("eventTime")
    component = source.get("component") or event.get("reportingComponent", "")
    return [
        _since(last, now),
        event.get("type", ""),
        event.get("reason", ""),
        f"{about.get('kind', '').lower()}/{about.get('name', '')}",
        about.get("fieldPath", ""),
        ", ".join(filter(None, (component, source.get("host")))),
        event.get("message", "").strip(),
        _since(first, now),
        str(event.get("count", 1)),
        _name(event),
    ]


def _node(node: Document, now: datetime) -> list[Any]:
    status = node.get("status", {})
    info = status.get("nodeInfo", {})
    addresses = {one["type"]: one["address"] for one in status.get("addresses", ())}
    state = "Ready" if _holds(node, "Ready") else "NotReady"
    held = ",SchedulingDisabled" if node.get("spec", {}).get("unschedulable") else ""
    return [
        _name(node),
        state + held,
        _NONE,
        _age(node, now),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP", _NONE),
        addresses.get("ExternalIP", _NONE),
        info.get("osImage", _UNKNOWN),
        info.get("kernelVersion", _UNKNOWN),
        info.get("containerRuntimeVersion", _UNKNOWN),
    ]


def _service(service: Document, now: datetime) -> list[Any]:
    spec = service["spec"]
    ports = (f"{port['port']}/{port.get('protocol', 'TCP')}" for port in spec.get("ports", ()))
    return [
        _name(service),
        spec.get("type", "ClusterIP"),
        spec.get("clusterIP") or _NONE,
        _NONE,
        ",".join(ports) or _NONE,
        _age(service, now),
        _selector(spec.get("selector", {})),
    ]


def _secret(secret: Document, now: datetime) -> list[Any]:
    number = str(len(secret.get("data") or {}))
    return [_name(secret), secret.get("type", "Opaque"), number, _age(secret, now)]


def _config_map(found: Document, now: datetime) -> list[Any]:
    number = len(found.get("data") or {}) + len(found.get("binaryData") or {})
    return [_name(found), str(number), _age(found, now)]


def _service_account(account: Document, now: datetime) -> list[Any]:
    return [_name(account), str(len(account.get("secrets") or ())), _age(account, now)]


def _namespace(namespace: Document, now: datetime) -> list[Any]:
    phase = namespace.get("status", {}).get("phase", "Active")
    return [_name(namespace), phase, _age(namespace, now)]


def _quota(quota: Document, now: datetime) -> list[Any]:
    hard = quota.get("status", {}).get("hard", quota.get("spec", {}).get("hard", {}))
    used = quota.get("status", {}).get("used", {})
    shown: dict[bool, list[str]] = {False: [], True: []}
    for resource, limit in sorted(hard.items()):
        text = f"{resource}: {used.get(resource, '0')}/{limit}"
        shown[resource.startswith("limits.")].append(text)
    return [_name(quota), ", ".join(shown[False]), ", ".join(shown[True]), _age(quota, now)]


def _priority_class(found: Document, now: datetime) -> list[Any]:
    return [
        _name(found),
        str(found.get("value", 0)),
        str(bool(found.get("globalDefault"))).lower(),
        _age(found, now),
        found.get("preemptionPolicy", "PreemptLowerPriority"),
    ]


def _lease(lease: Document, now: datetime) -> list[Any]:
    return [_name(lease), lease.get("spec", {}).get("holderIdentity", ""), _age(lease, now)]


def _role(role: Document, now: datetime) -> list[Any]:
    return [_name(role), role["metadata"].get("creationTimestamp", "")]


def _role_binding(binding: Document, now: datetime) -> list[Any]:
    ref = binding.get("roleRef", {})
    return [_name(binding), f"{ref.get('kind', '')}/{ref.get('name', '')}", _age(binding, now)]


def _vcjob(job: Document, now: datetime) -> list[Any]:
    status = job.get("status", {})
    return [
        _name(job),
        status.get("state", {}).get("phase", ""),
        str(job.get("spec", {}).get("minAvailable", "")),
        str(status.get("running", "")),
        _age(job, now),
        job.get("spec", {}).get("queue", ""),
    ]


def _pod_group(group: Document, now: datetime) -> list[Any]:
    status = group.get("status", {})
    return [
        _name(group),
        status.get("phase", ""),
        str(group.get("spec", {}).get("minMember", "")),
        str(status.get("running", "")),
        _age(group, now),
        group.get("spec", {}).get("queue", ""),
    ]


def _plain(document: Document, now: datetime) -> list[Any]:
    return [_name(document), _age(document, now)]


_PLAIN = _Layout(("Name", "Age"), _plain)

_LAYOUTS = {
    kinds.JOB: _Layout(
        (
            *("Name", "Status", "Completions", "Duration", "Age"),
            *("[Containers]", "[Images]", "[Selector]"),
        ),
        _job,
    ),
    kinds.POD: _Layout(
        (
            *("Name", "Ready", "Status", "Restarts", "Age"),
            *("[IP]", "[Node]", "[Nominated Node]", "[Readiness Gates]"),
        ),
        _pod,
    ),
    kinds.EVENT: _Layout(
        (
            *("Last Seen", "Type", "Reason", "Object", "[Subobject]", "[Source]"),
            *("Message", "[First Seen]", "[Count]", "[Name]"),
        ),
        _event,
    ),
    kinds.NODE: _Layout(
        (
            *("Name", "Status", "Roles", "Age", "Version", "[Internal-IP]", "[External-IP]"),
            *("[OS-Image]", "[Kernel-Version]", "[Container-Runtime]"),
        ),
        _node,
    ),
    kinds.SERVICE: _Layout(
        ("Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age", "[Selector]"), _service
    ),
    kinds.SECRET: _Layout(("Name", "Type", "Data", "Age"), _secret),
    kinds.CONFIG_MAP: _Layout(("Name", "Data", "Age"), _config_map),
    kinds.SERVICE_ACCOUNT: _Layout(("Name", "Secrets", "Age"), _service_account),
    kinds.NAMESPACE: _Layout(("Name", "Status", "Age"), _namespace),
    kinds.RESOURCE_QUOTA: _Layout(("Name", "Request", "Limit", "Age"), _quota),
    kinds.PRIORITY_CLASS: _Layout(
        ("Name", "Value", "Global-Default", "Age", "PreemptionPolicy"), _priority_class
    ),
    kinds.LEASE: _Layout(("Name", "Holder", "Age"), _lease),
    kinds.ROLE: _Layout(("Name", "Created At"), _role),
    kinds.ROLE_BINDING: _Layout(("Name", "Role", "Age"), _role_binding),
    kinds.VOLCANO_JOB: _Layout(
        ("Name", "Status", "minAvailable", "Runnings", "Age", "[Queue]"), _vcjob
    ),
    kinds.POD_GROUP: _Layout(
        ("Name", "Status", "minMember", "Runnings", "Age", "[Queue]"), _pod_group
    ),
}
