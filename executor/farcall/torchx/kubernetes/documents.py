"""Additions to an app's documents: what node groups have no fields for. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from farcall.model.errors import SettingsError
from farcall.torchx import roles
from farcall.torchx.kubernetes.mapping import (
    CONTAINER,
    FIELD,
    LABEL_PREFIX,
    NAMESPACE,
    RANK0,
    REPLICA,
    Pods,
)
from farcall.torchx.kubernetes.options import KubernetesOptions
from farcall.torchx.roles import ENV_ROLE_INDEX, Planned
from farcall_runtime.contract import ENV_OWN_MAIN_ADDRESS, ENV_OWN_NODE_INDEX

_MARKED = re.compile(rf"\$\$|\$\({ENV_OWN_NODE_INDEX}\)")


def amend(documents: Sequence[dict[str, Any]], planned: Planned[KubernetesOptions]) -> None:
    """Add the fields that node groups do not have to an app's documents.

    Raises:
        SettingsError: An overlay cannot be merged.
    """
    for document in documents:
        for template, task in _templates(document):
            of_role = _environment(container_of(template)).get(ENV_ROLE_INDEX, {})
            pods = planned.details[int(of_role.get("value", 0))]
            _amend(template, pods, has_limit=planned.options.timeout_s is not None)
            if task is not None:
                _need(document, task, template, pods)


def _templates(
    document: Mapping[str, Any],
) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Yield a document's pod templates, with the task if it is a Volcano job."""
    spec = document.get("spec", {})
    if "template" in spec:
        yield spec["template"], None
    for task in spec.get("tasks", ()):
        yield task["template"], task


def containers(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a document's containers that run roles."""
    for template, _ in _templates(document):
        yield container_of(template)


def container_of(template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the container of a template that runs a role.

    Raises:
        SettingsError: An overlay has removed the container.
    """
    for each in template["spec"].get("containers", ()):
        if each.get("name") == CONTAINER:
            container: dict[str, Any] = each
            return container
    raise SettingsError(
        f'metadata["{NAMESPACE}"] leaves no container {CONTAINER!r}, which runs the role. Add '
        "to containers instead of replacing them.",
        option="metadata",
    )


def _environment(container: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in container.get("env", ())}


def _amend(template: dict[str, Any], pods: Pods, *, has_limit: bool) -> None:
    container, spec = container_of(template), template["spec"]
    replica = _replica(container, pods)
    _amend_container(container, pods, replica)
    metadata = template.setdefault("metadata", {})
    number = {} if replica.startswith("$") else {f"{LABEL_PREFIX}/replica-id": replica}
    metadata["labels"] = {**metadata.get("labels", {}), **pods.labels, **number}
    # An Istio sidecar would keep the pod running after the role has finished.
    inject = {"sidecar.istio.io/inject": "false"}
    metadata["annotations"] = {**metadata.get("annotations", {}), **inject}
    if pods.node_selector:
        spec["nodeSelector"] = {**spec.get("nodeSelector", {}), **pods.node_selector}
    if not has_limit:
        spec.pop("activeDeadlineSeconds", None)
    roles.merge(template, pods.overlay, NAMESPACE, "pod")
    container_of(template)


def _replica(container: Mapping[str, Any], pods: Pods) -> str:
    """Return a template's replica number, or the expression that Kubernetes expands."""
    index = _environment(container).get(ENV_OWN_NODE_INDEX)
    if index is None:
        return "0"
    if "value" in index:
        return str(int(index["value"]) - pods.first)
    return f"$({ENV_OWN_NODE_INDEX})"  # only for the first role, whose node indexes begin at 0


def _amend_container(container: dict[str, Any], pods: Pods, replica: str) -> None:
    # TorchX's own scheduler replaces the image's entrypoint, too.
    container["command"] = [*container.get("command", ()), *container.pop("args", ())]
    if not container["command"]:
        del container["command"]
    given = _environment(container)
    main = given.get(ENV_OWN_MAIN_ADDRESS, {"value": "localhost"})
    variables = {RANK0: {**main, "name": RANK0}, **given}
    # Kubernetes expands a variable from the variables before it.
    order = sorted(variables.values(), key=lambda each: each["name"] != ENV_OWN_NODE_INDEX)
    container["env"] = [_field(each, replica) for each in order]
    if "command" in container:
        container["command"] = [part.replace(REPLICA, replica) for part in container["command"]]
    limits = container["resources"]["limits"] | {k: str(v) for k, v in pods.devices.items()}
    container["resources"] = {"limits": limits, "requests": {**limits, **pods.requests}}
    if pods.ports:
        container["ports"] = [{"name": n, "containerPort": p} for n, p in pods.ports.items()]


def _field(variable: dict[str, Any], replica: str) -> dict[str, Any]:
    """Insert the replica's number, or convert a variable to a pod field reference."""
    value = variable.get("value")
    if not isinstance(value, str):
        return variable
    if value.startswith(FIELD):
        path = value.removeprefix(FIELD)
        return {"name": variable["name"], "valueFrom": {"fieldRef": {"fieldPath": path}}}
    return {**variable, "value": value.replace(REPLICA, replica)}


def _need(
    document: dict[str, Any], task: dict[str, Any], template: Mapping[str, Any], pods: Pods
) -> None:
    """Make a Volcano task optional if its role does not require the replica."""
    if int(_replica(container_of(template), pods)) >= pods.minimum:
        task["minAvailable"] = 0
        document["spec"]["minAvailable"] -= 1


def plain(text: str) -> str:
    """Restore a text from a document: dollar signs and the replica's placeholder."""
    return _MARKED.sub(lambda match: REPLICA if match[0] != "$$" else "$", text)


def marked(text: str) -> str:
    """Escape dollar signs and the placeholder for a document; the inverse of `plain`."""
    return text.replace("$", "$$").replace(REPLICA, f"$({ENV_OWN_NODE_INDEX})")
