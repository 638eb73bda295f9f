"""Values of command jobs: nodes, mounts, devices and limits. No I/O.

A command job is an image and a command, on one or more nodes: no function, no payload, no outcome.
The backends check the limits of their platform.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

ENV_RUN = "FARCALL_RUN"
"""Variable with the run that submitted a command job; it marks command jobs.

The job does not read it, and `farcall_runtime` may be missing there.
"""


@dataclass(frozen=True)
class BindMount:
    """Folder of the instance that is mounted in the container. Not on Fargate.

    Attributes:
        source: Path on the instance.
        path: Path in the container.
        read_only: Whether the container may not write to it.
    """

    source: str
    path: str
    read_only: bool = False


@dataclass(frozen=True)
class EfsMount:
    """EFS file system that is mounted in the container, with encryption in transit.

    Attributes:
        file_system: ID of the file system, ``fs-...``.
        path: Path in the container.
        read_only: Whether the container may not write to it.
        root: Folder of the file system to mount; excludes an access point, which has its own root.
        access_point: ID of an access point, ``fsap-...``, which authorizes with the job role.

    Source:
        https://docs.aws.amazon.com/batch/latest/APIReference/API_EFSVolumeConfiguration.html
    """

    file_system: str
    path: str
    read_only: bool = False
    root: str = "/"
    access_point: str = ""


@dataclass(frozen=True)
class ClaimMount:
    """Kubernetes persistent volume that is mounted in the container. Not on Batch.

    Attributes:
        claim: Name of the PersistentVolumeClaim, in the job's namespace.
        path: Path in the container.
        read_only: Whether the container may not write to it.

    Source:
        https://kubernetes.io/docs/concepts/storage/persistent-volumes/
    """

    claim: str
    path: str
    read_only: bool = False


Mount: TypeAlias = "BindMount | EfsMount | ClaimMount"


@dataclass(frozen=True)
class Device:
    """Device of the instance that is available in the container. Not on Fargate.

    Attributes:
        source: Path on the instance.
        path: Path in the container; empty for the same path.
        permissions: Some of the letters ``rwm``: read, write, mknod.
    """

    source: str
    path: str = ""
    permissions: str = "rwm"


@dataclass(frozen=True)
class Ulimit:
    """Resource limit of the container's processes.

    Attributes:
        name: Name of the limit, such as ``"nofile"``.
        soft: The limit.
        hard: Maximum to which a process may raise the limit.
    """

    name: str
    soft: int
    hard: int


@dataclass(frozen=True)
class Nodes:
    """Group of equal nodes; the first node of the first group is the main node.

    Attributes:
        count: Number of nodes.
        image: Image of the containers; it does not need farcall.
        command: Command and arguments; empty for the image's own.
        env: Environment variables.
        vcpu: vCPUs per node; None for the executor's option.
        memory: Memory per node in GiB; None for the executor's option.
        num_gpus: GPUs per node; None for the executor's option.
        mounts: Folders and file systems.
        devices: Devices.
        shm_size: Size of ``/dev/shm`` in GiB; None for Docker's 64 MiB. Not on Fargate.
        ulimits: Resource limits of the processes.
        secrets: Variable name to ARN of a Secrets Manager secret or an SSM parameter.
        privileged: Whether containers have root rights on the instance. Not on Fargate.
        user: User, or user:group, in the container; empty for the image's.
        name: Name of the group in messages; empty for its position in the list.
    """

    count: int
    image: str
    command: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold secrets
    vcpu: float | None = None
    memory: float | None = None
    num_gpus: int | None = None
    mounts: Sequence[Mount] = ()
    devices: Sequence[Device] = ()
    shm_size: float | None = None
    ulimits: Sequence[Ulimit] = ()
    secrets: Mapping[str, str] = field(default_factory=dict)
    privileged: bool = False
    user: str = ""
    name: str = ""
