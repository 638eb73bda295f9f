"""Volumes of a pod: as folders of this machine, and as docker's mounts.

A process sees the folder itself, where a variable names the mount's path
(`farcall_local.runners.process`). A claim of a persistent volume is a folder that lasts as long as
the local Kubernetes emulator does.

Sources:
    https://kubernetes.io/docs/concepts/storage/volumes/
    https://docs.docker.com/reference/api/engine/version/v1.41/#tag/Container/operation/ContainerCreate
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from farcall_local.kubernetes import nodes
from farcall_local.kubernetes.kinds import CONFIG_MAP, SECRET
from farcall_local.kubernetes.pod_environment import contents
from farcall_local.kubernetes.store import Store
from farcall_local.runners import host_config

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a path in the container
#: Docker's default for /dev/shm, which containerd has, too.
_SHARED_BYTES = 64 * 1024 * 1024
_PERIOD_NS = 1_000_000


class MountError(Exception):
    """A volume cannot be had: FailedMount."""


class Volumes:
    """A pod's volumes.

    Attributes:
        mounts: Paths of this machine by those in the container, without what is in memory.

    Raises:
        MountError: A Secret or ConfigMap is not there.
    """

    def __init__(self, store: Store, pod: dict[str, Any], claims: Path) -> None:
        self._store = store
        self._pod = pod
        self._claims = claims
        self._folder: str | None = None
        self._container = pod["spec"]["containers"][0]
        self._points = self._container.get("volumeMounts") or ()
        volumes = {each["name"]: each for each in pod["spec"].get("volumes") or ()}
        self._volumes = {point["name"]: volumes[point["name"]] for point in self._points}
        self.mounts: dict[str, str] = {}
        try:
            sources = {name: self._source(each) for name, each in self._volumes.items()}
        except BaseException:
            self.remove()
            raise
        for point in self._points:
            source = sources[point["name"]]
            if source is not None:
                path = Path(source, point.get("subPath", ""))
                if point.get("subPath"):
                    _make(path, point["name"])
                self.mounts[point["mountPath"]] = str(path)

    def remove(self) -> None:
        """Remove what was made for the pod."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def host(self, cpus: int) -> dict[str, Any]:
        """Write docker's HostConfig for the container.

        Args:
            cpus: Processors of the machine, the most docker takes as a limit.
        """
        limits = nodes.amounts((self._container.get("resources") or {}).get("limits"))
        security = self._container.get("securityContext") or {}
        config: dict[str, Any] = {
            "NetworkMode": "host",
            "LogConfig": {"Type": "none", "Config": {}},
            "Mounts": [
                host_config.bind(
                    self.mounts[point["mountPath"]],
                    point["mountPath"],
                    read_only=bool(point.get("readOnly")),
                )
                for point in self._points
                if point["mountPath"] in self.mounts
            ],
            "Tmpfs": {},
            "Privileged": bool(security.get("privileged")),
            "ReadonlyRootfs": bool(security.get("readOnlyRootFilesystem")),
        }
        if "cpu" in limits:
            config["NanoCpus"] = min(limits["cpu"] * _PERIOD_NS, cpus * 1000 * _PERIOD_NS)
        if "memory" in limits:
            config["Memory"] = config["MemorySwap"] = limits["memory"]
        gpus = limits.get("nvidia.com/gpu", 0)
        if gpus:
            config["DeviceRequests"] = [{"Count": gpus, "Capabilities": [["gpu"]]}]
        for point in self._points:
            self._put_memory(config, point)
        return config

    def _put_memory(self, config: dict[str, Any], point: dict[str, Any]) -> None:
        volume = self._volumes[point["name"]]
        if not _in_memory(volume):
            return
        limit = volume["emptyDir"].get("sizeLimit")
        size = nodes.amount("memory", limit) if limit else None
        if point["mountPath"] == SHARED_MEMORY:
            config["ShmSize"] = size or _SHARED_BYTES
        else:
            config["Tmpfs"][point["mountPath"]] = f"size={size}" if size else ""

    def _source(self, volume: dict[str, Any]) -> str | None:
        """Return where a volume is on this machine; None for memory."""
        name = volume["name"]
        if _in_memory(volume):
            return None
        if "hostPath" in volume:
            return _host_path(name, **volume["hostPath"])
        if "persistentVolumeClaim" in volume:
            claim = volume["persistentVolumeClaim"]["claimName"]
            folder = self._claims / self._pod["metadata"]["namespace"] / claim
            folder.mkdir(parents=True, exist_ok=True)
            return str(folder)
        folder = self._made(name)
        for key, kind in (("secret", SECRET), ("configMap", CONFIG_MAP)):
            if key in volume:
                self._write(folder, volume[key], kind)
        return str(folder)

    def _made(self, name: str) -> Path:
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="farcall-volumes-")
        folder = Path(self._folder, name)
        folder.mkdir()
        folder.chmod(0o777)  # whoever the container's user is
        return folder

    def _write(self, folder: Path, source: dict[str, Any], kind: Any) -> None:
        name = source.get("secretName") or source.get("name", "")
        found = self._store.get(kind, self._pod["metadata"]["namespace"], name)
        if found is None:
            if source.get("optional"):
                return
            raise _unmountable(folder.name, f'{kind.singular} "{name}" not found')
        data = contents(found)
        items = source.get("items") or [{"key": key, "path": key} for key in data]
        for item in items:
            target = folder / item["path"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data.get(item["key"], b""))


def _host_path(volume: str, path: str, type: str = "") -> str:  # noqa: A002 - the field's name
    if type == "DirectoryOrCreate":
        _make(Path(path), volume)
    elif type == "Directory" and not Path(path).is_dir():
        raise _unmountable(volume, f"hostPath type check failed: {path} is not a directory")
    return path


def _make(folder: Path, volume: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unmountable(volume, f"{folder}: {error.strerror}") from error


def _unmountable(volume: str, why: str) -> MountError:
    return MountError(f'MountVolume.SetUp failed for volume "{volume}" : {why}')


def _in_memory(volume: dict[str, Any]) -> bool:
    return (volume.get("emptyDir") or {}).get("medium") == "Memory"
