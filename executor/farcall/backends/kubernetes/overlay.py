"""Overlay of pods: additions of ``pod_overlay``, and its limits. No I/O.

It may contain any field of Kubernetes, except fields that farcall needs unchanged: otherwise
jobs could not be tracked, retried or terminated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from farcall.backends.kubernetes.names import CONTAINER
from farcall.backends.merging import merge
from farcall.config.settings import Settings
from farcall.model.errors import SettingsError
from farcall_runtime.contract import JOB_ENVIRONMENT, PLATFORM_ENVIRONMENT

_LABELS = ("mountPath", "devicePath", "name")
"""Fields that identify members of lists; a mount's name is its volume's."""

_PARTS = ("metadata", "spec")
_MARKS = ("labels", "annotations")
_RESERVED = ("farcall/", "batch.kubernetes.io/", "app.kubernetes.io/managed-by")
_NAMED = ("containers", "initContainers", "volumes", "imagePullSecrets")
_FIXED = {
    "restartPolicy": "farcall's jobs require Never",
    "activeDeadlineSeconds": "set time_limit",
    "hostname": "it identifies a job's nodes",
    "subdomain": "it identifies a job's nodes",
}
_VARIABLES = {*JOB_ENVIRONMENT, *PLATFORM_ENVIRONMENT}


def overlaid(
    template: dict[str, Any], settings: Settings, *, has_command: bool = False
) -> dict[str, Any]:
    """Merge ``pod_overlay`` into a template.

    Lists of named objects are merged by name; other lists are replaced.

    Args:
        template: The pod template.
        settings: The options.
        has_command: Whether the container's command downloads the task runner.

    Raises:
        SettingsError: The overlay is invalid, or changes a fixed field.
    """
    overlay = settings.pod_overlay
    if not overlay:
        return template
    for key in overlay:
        if key not in _PARTS:
            raise _refused(key, f"a pod template supports {' and '.join(_PARTS)}")
    _check_metadata(_table(overlay, "metadata"))
    _check_spec(_table(overlay, "spec"), has_command=has_command)
    merged: dict[str, Any] = merge(template, overlay, _LABELS)
    return merged


def _check_metadata(metadata: Mapping[str, Any]) -> None:
    for key in metadata:
        if key not in _MARKS:
            raise _refused(
                f"metadata.{key}", f"a job can only set {' and '.join(_MARKS)} of its pods"
            )
        for name, value in _table(metadata, key, "metadata.").items():
            if name.startswith(_RESERVED):
                raise _refused(
                    f"metadata.{key}[{name!r}]", "it is reserved for farcall or the Job"
                )
            if not isinstance(value, str):
                raise _refused(f"metadata.{key}[{name!r}]", "use a string")


def _check_spec(spec: Mapping[str, Any], *, has_command: bool) -> None:
    for key, why in _FIXED.items():
        if key in spec:
            raise _refused(f"spec.{key}", why)
    if spec.get("schedulerName") == "volcano":
        raise _refused("spec.schedulerName", "set scheduler")
    for key in _NAMED:
        for each in _named(spec, key):
            if key == "containers" and each["name"] == CONTAINER:
                _check_container(each, has_command=has_command)


def _check_container(container: Mapping[str, Any], *, has_command: bool) -> None:
    where = f"spec.containers[{CONTAINER!r}]"
    if "image" in container:
        raise _refused(
            f"{where}.image", "set the option image, or the image of the command's group"
        )
    for key in ("command", "args"):
        if has_command and key in container:
            raise _refused(
                f"{where}.{key}", "it downloads farcall's runtime; set image to your own image"
            )
    for variable in container.get("env") or ():
        if isinstance(variable, Mapping) and variable.get("name") in _VARIABLES:
            raise _refused(
                f"{where}.env[{variable['name']!r}]", "farcall uses it to identify the task"
            )


def _named(spec: Mapping[str, Any], key: str) -> Iterator[Mapping[str, Any]]:
    entries = spec.get(key, [])
    if not isinstance(entries, list):
        raise _refused(f"spec.{key}", "use a list")
    for each in entries:
        if not isinstance(each, Mapping) or not isinstance(each.get("name"), str):
            raise _refused(
                f"spec.{key}",
                "each member needs a name, which determines how it is merged. The task's own "
                f"container is named {CONTAINER!r}.",
            )
        yield each


def _table(document: Mapping[str, Any], key: str, where: str = "") -> Mapping[str, Any]:
    table = document.get(key, {})
    if not isinstance(table, Mapping):
        raise _refused(f"{where}{key}", "use a table")
    return table


def _refused(what: str, why: str) -> SettingsError:
    return SettingsError(f"pod_overlay has {what}: {why}", option="pod_overlay")
