"""Environment, arguments and volumes of a pod's container, as on a kubelet.

A volume is a folder of this machine. A container has it mounted; a process uses the folder itself,
in place of the mount's path in its variables (`farcall_local.runners.process`). Host names from a
headless Service are replaced with this machine's address, because the emulator has no DNS, and all
pods share this machine's network.

Sources:
    https://kubernetes.io/docs/tasks/inject-data-application/
    https://kubernetes.io/docs/concepts/storage/volumes/
    https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#environment-variables
    https://github.com/kubernetes/kubernetes/blob/v1.36.2/third_party/forked/golang/expansion/expand.go
"""

from __future__ import annotations

import base64
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from farcall_local import names
from farcall_local.runners import host_config
from tests.emulators.kubernetes.kinds import SECRET
from tests.emulators.kubernetes.store import Store

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\)|)")
_OF_MAP = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


class CannotStartError(Exception):
    """A container cannot start.

    Attributes:
        reason: Reason of the container's waiting state.
        event: Reason of the event.
    """

    def __init__(self, reason: str, message: str, event: str = "Failed") -> None:
        super().__init__(message)
        self.reason = reason
        self.event = event


def _misconfigured(message: str) -> CannotStartError:
    return CannotStartError("CreateContainerConfigError", message)


class Container:
    """Pod's container with its final environment and command.

    Attributes:
        environment: Environment variables.
        entrypoint: Replaces the image's entry point; empty for the image's own.
        command: Arguments.

    Raises:
        CannotStartError: A Secret, or a key of one, does not exist.
    """

    def __init__(self, store: Store, pod: dict[str, Any]) -> None:
        document = pod["spec"]["containers"][0]
        self._store = store
        self._pod = pod
        named = _names(pod)
        variables = self._variables(document)
        self.entrypoint, self.command = (
            tuple(named(expanded(word, variables)) for word in document.get(key) or ())
            for key in ("command", "args")
        )
        self.environment = {name: named(value) for name, value in variables.items()}

    def _variables(self, container: dict[str, Any]) -> dict[str, str]:
        meta = self._pod["metadata"]
        found = {"HOSTNAME": self._pod["spec"].get("hostname") or meta["name"]}
        for source in container.get("envFrom") or ():
            if "secretRef" not in source:
                raise _unsupported(source)
            found.update(self._secret(source["secretRef"]))
        for variable in container.get("env") or ():
            if "valueFrom" in variable:
                value = self._value(variable["valueFrom"])
            else:
                # Only earlier variables are expanded, as in the kubelet.
                value = expanded(variable.get("value", ""), found)
            found[variable["name"]] = value
        return found

    def _value(self, source: dict[str, Any]) -> str:
        if "fieldRef" in source:
            return self._field(source["fieldRef"]["fieldPath"])
        if "secretKeyRef" not in source:
            raise _unsupported(source)
        ref = source["secretKeyRef"]
        values = self._secret(ref)
        if ref["key"] not in values:
            where = f"{self._pod['metadata']['namespace']}/{ref['name']}"
            raise _misconfigured(f"couldn't find key {ref['key']} in Secret {where}")
        return values[ref["key"]]

    def _secret(self, ref: dict[str, Any]) -> dict[str, str]:
        found = self._store.get(SECRET, self._pod["metadata"]["namespace"], ref["name"])
        if found is None:
            raise _misconfigured(f'secret "{ref["name"]}" not found')
        data = found.get("data") or {}
        return {
            name: base64.b64decode(value).decode(errors="replace") for name, value in data.items()
        }

    def _field(self, path: str) -> str:
        meta, spec = self._pod["metadata"], self._pod["spec"]
        match = _OF_MAP.fullmatch(path)
        if match:
            return str((meta.get(match[1]) or {}).get(match[2], ""))
        fields = {
            "metadata.name": meta["name"],
            "metadata.namespace": meta["namespace"],
            "metadata.uid": meta["uid"],
            "spec.nodeName": spec.get("nodeName", ""),
            **dict.fromkeys(("status.hostIP", "status.podIP"), names.NODE_ADDRESS),
        }
        if path not in fields:
            raise _misconfigured(f"unsupported fieldPath: {path}")
        return str(fields[path])


def _unsupported(source: dict[str, Any]) -> CannotStartError:
    return _misconfigured(
        f"farcall's local Kubernetes emulator does not support variables from {', '.join(source)}"
    )


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Replace each ``$(NAME)`` with the variable's value, and ``$$`` with ``$``."""

    def replaced(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        name = match[1]
        return match[0] if name is None else variables.get(name, match[0])

    return _REFERENCE.sub(replaced, text)


def _names(pod: dict[str, Any]) -> Callable[[str], str]:
    """Return a function that replaces a group's host names with the local address."""
    subdomain = pod["spec"].get("subdomain")
    if not subdomain:
        return lambda text: text
    namespace = re.escape(pod["metadata"]["namespace"])
    rest = rf"(?:\.{namespace}(?:\.svc(?:\.cluster\.local)?)?)?"
    pattern = re.compile(rf"(?<![\w.-])[a-z0-9-]+\.{re.escape(subdomain)}{rest}(?![\w-]|\.\w)")
    return lambda text: pattern.sub(names.NODE_ADDRESS, text)


class Volumes:
    """Volumes of a pod.

    Attributes:
        mounts: Paths of this machine by their paths in the container.

    Raises:
        CannotStartError: The emulator does not support a volume.
    """

    def __init__(self, pod: dict[str, Any], claims: Path) -> None:
        self._folder: str | None = None
        self._points = pod["spec"]["containers"][0].get("volumeMounts") or ()
        volumes = {each["name"]: each for each in pod["spec"].get("volumes") or ()}
        self.mounts: dict[str, str] = {}
        for point in self._points:
            volume = volumes[point["name"]]
            if "hostPath" in volume:
                source = Path(volume["hostPath"]["path"])
            elif "persistentVolumeClaim" in volume:
                claim = volume["persistentVolumeClaim"]["claimName"]
                source = claims / pod["metadata"]["namespace"] / claim
                source.mkdir(parents=True, exist_ok=True)
            elif "emptyDir" in volume:
                source = self._make_folder(volume["name"])
            else:
                raise CannotStartError(
                    "ContainerCreating",
                    f'MountVolume.SetUp failed for volume "{volume["name"]}" : farcall\'s local '
                    "Kubernetes emulator has hostPath, emptyDir and persistentVolumeClaim only",
                    "FailedMount",
                )
            self.mounts[point["mountPath"]] = str(source)

    def remove(self) -> None:
        """Delete the pod's own folders."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def host(self, _cpus: int) -> dict[str, Any]:
        """Return Docker's HostConfig for the container, without limits."""
        return {
            "NetworkMode": "host",
            "LogConfig": {"Type": "none", "Config": {}},
            "Mounts": [
                host_config.bind(
                    self.mounts[point["mountPath"]],
                    point["mountPath"],
                    read_only=bool(point.get("readOnly")),
                )
                for point in self._points
            ],
        }

    def _make_folder(self, name: str) -> Path:
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="farcall-volumes-")
        folder = Path(self._folder, name)
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)  # writable for any user of a container
        return folder
