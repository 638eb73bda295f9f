"""Volumes of a pod, as folders of this machine.

A process sees the folder itself, where a variable names the mount's path
(`farcall_local.runners.process`); a container has it mounted. The folder of a persistent volume
claim lasts as long as the local Kubernetes emulator does.

Source:
    https://kubernetes.io/docs/concepts/storage/volumes/
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from farcall_local.runners import host_config


class MountError(Exception):
    """A volume cannot be mounted: FailedMount."""


class Volumes:
    """A pod's volumes.

    Attributes:
        mounts: Paths of this machine by their paths in the container.

    Raises:
        MountError: The emulator does not support a volume.
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
                source = self._made(volume["name"])
            else:
                raise MountError(
                    f'MountVolume.SetUp failed for volume "{volume["name"]}" : farcall\'s local '
                    "Kubernetes emulator has hostPath, emptyDir and persistentVolumeClaim only"
                )
            self.mounts[point["mountPath"]] = str(source)

    def remove(self) -> None:
        """Delete the pod's own folders."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def host(self, _cpus: int) -> dict[str, Any]:
        """Return docker's HostConfig for the container, which has no limits."""
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

    def _made(self, name: str) -> Path:
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="farcall-volumes-")
        folder = Path(self._folder, name)
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)  # writable for any user of a container
        return folder
