"""Overlay of pods: what ``pod_overlay`` adds to a template, and what it may not change. No I/O.

It may say whatever Kubernetes has a field for. What farcall needs as it is stays so: who else
changed it would have jobs that cannot be followed, or tried again, or ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from farcall.backends.kubernetes.names import CONTAINER
from farcall.backends.merging import merge
from farcall.model.errors import SettingsError
from farcall.model.settings import Settings
from farcall_runtime.contract import JOB_ENVIRONMENT, PLATFORM_ENVIRONMENT

_LABELS = ("mountPath", "devicePath", "name")
"""What tells the members of lists apart; a mount's name is its volume's."""

_PARTS = ("metadata", "spec")
_MARKS = ("labels", "annotations")
_RESERVED = ("farcall/", "batch.kubernetes.io/", "app.kubernetes.io/managed-by")
_NAMED = ("containers", "initContainers", "volumes", "imagePullSecrets")
_FIXED = {
    "restartPolicy": "farcall's jobs need it to be Never",
    "activeDeadlineSeconds": "set time_limit",
    "hostname": "a job's nodes are found by it",
    "subdomain": "a job's nodes are found by it",
}
_VARIABLES = {*JOB_ENVIRONMENT, *PLATFORM_ENVIRONMENT}


def merged(
    template: dict[str, Any], settings: Settings, *, has_command: bool = False
) -> dict[str, Any]:
    """Merge the option into a template: lists of named things by name, other lists are replaced.

    Args:
        template: The template of pods.
        settings: The options.
        has_command: Whether the container begins with what fetches the task runner.

    Raises:
        SettingsError: It is of another form, or changes what has to stay.
    """
    overlay = settings.pod_overlay
    if not overlay:
        return template
    for key in overlay:
        if key not in _PARTS:
            raise _refused(key, f"a pod's template has {' and '.join(_PARTS)}")
    _check_metadata(_table(overlay, "metadata"))
    _check_spec(_table(overlay, "spec"), has_command=has_command)
    found: dict[str, Any] = merge(template, overlay, _LABELS)
    return found


def _check_metadata(metadata: Mapping[str, Any]) -> None:
    for key in metadata:
        if key not in _MARKS:
            raise _refused(f"metadata.{key}", f"pods have {' and '.join(_MARKS)} of their job's")
        for name, value in _table(metadata, key, "metadata.").items():
            if name.startswith(_RESERVED):
                raise _refused(f"metadata.{key}[{name!r}]", "that one is farcall's, or the Job's")
            if not isinstance(value, str):
                raise _refused(f"metadata.{key}[{name!r}]", "its value has to be a text")


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
        raise _refused(f"{where}.image", "set image, or that of the command's group")
    for key in ("command", "args"):
        if has_command and key in container:
            raise _refused(f"{where}.{key}", "it fetches farcall's runtime; set image to your own")
    for variable in container.get("env") or ():
        if isinstance(variable, Mapping) and variable.get("name") in _VARIABLES:
            raise _refused(f"{where}.env[{variable['name']!r}]", "farcall tells the task by it")


def _named(spec: Mapping[str, Any], key: str) -> Iterator[Mapping[str, Any]]:
    found = spec.get(key, [])
    if not isinstance(found, list):
        raise _refused(f"spec.{key}", "a list is allowed")
    for each in found:
        if not isinstance(each, Mapping) or not isinstance(each.get("name"), str):
            raise _refused(
                f"spec.{key}",
                f"each member needs a name, by which it is merged; the task's own container is "
                f"called {CONTAINER!r}",
            )
        yield each


def _table(document: Mapping[str, Any], key: str, where: str = "") -> Mapping[str, Any]:
    found = document.get(key, {})
    if not isinstance(found, Mapping):
        raise _refused(f"{where}{key}", "a table is allowed")
    return found


def _refused(what: str, why: str) -> SettingsError:
    return SettingsError(f"pod_overlay has {what}: {why}", option="pod_overlay")
