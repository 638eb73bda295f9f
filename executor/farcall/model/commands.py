"""Command values: what each node of a command job runs, and with what. No I/O.

A command job is an image and a command, on one or more nodes: no function, no payload, no outcome.
The backends define what a platform allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

ENV_RUN = "FARCALL_RUN"
"""Variable with the client process that submitted a command job; jobs that have it are command
jobs.

The job does not read it, and `farcall_runtime` may be missing there.
"""


@dataclass(frozen=True)
class BindMount:
    """A folder of the instance, in the container. Not on Fargate.

    Attributes:
        source: Its path on the instance.
        path: Its path in the container.
        read_only: Whether the container may not write to it.
    """

    source: str
    path: str
    read_only: bool = False


@dataclass(frozen=True)
class EfsMount:
    """An EFS file system in the container, with encryption in transit.

    Attributes:
        file_system: Its ID, ``fs-...``.
        path: Its path in the container.
        read_only: Whether the container may not write to it.
        root: Its mounted folder; not together with an access point, which has its own.
        access_point: ID of an access point, ``fsap-...``; the job role is then authorized.

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
    """A persistent volume of Kubernetes, in the container. Not on Batch.

    Attributes:
        claim: Name of its PersistentVolumeClaim, in the job's namespace.
        path: Its path in the container.
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
    """A device of the instance, in the container. Not on Fargate.

    Attributes:
        source: Its path on the instance.
        path: Its path in the container; empty for the same.
        permissions: Letters of ``rwm``: read, write, make special files.
    """

    source: str
    path: str = ""
    permissions: str = "rwm"


@dataclass(frozen=True)
class Ulimit:
    """A limit of the container's processes.

    Attributes:
        name: Such as ``"nofile"``.
        soft: The limit.
        hard: Up to which a process may raise it.
    """

    name: str
    soft: int
    hard: int


@dataclass(frozen=True)
class Nodes:
    """A group of equal nodes; the first node of the first group is the main node.

    Attributes:
        count: How many.
        image: Image of their containers; nothing of farcall's has to be in it.
        command: What they run; empty for the image's own.
        env: Their environment variables.
        vcpu: vCPUs of each; None for the executor's option.
        memory: Memory of each in GiB; None for the executor's option.
        num_gpus: GPUs of each; None for the executor's option.
        mounts: Folders and file systems.
        devices: Devices.
        shm_size: Size of ``/dev/shm`` in GiB; None for docker's 64 MiB. Not on Fargate.
        ulimits: Limits of their processes.
        secrets: By variable, ARN of a secret of Secrets Manager or a parameter of SSM.
        privileged: Whether containers have the instance's root. Not on Fargate.
        user: User, or user:group, in the container; empty for the image's.
        name: What messages call the group; empty for its place in the list.
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
