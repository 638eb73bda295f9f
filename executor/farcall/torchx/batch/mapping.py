"""App mapping: converts a TorchX app into node groups, settings and tags. No I/O.

Each role becomes a group, each replica a node. An app with one role and one replica becomes a
plain job, which needs neither EC2 nor a queue for multi-node jobs, unless its resource names an
instance type.

==================================  ==========================================================
TorchX                              Batch
==================================  ==========================================================
``type=bind,src=/a,dst=/b``         folder of the instance
``type=volume,src=fs-1,dst=/b``     EFS file system; ``src=fs-1:/folder`` for a folder in it,
                                    ``src=fs-1::fsap-2`` for an access point
``type=device,src=/dev/a``          device of the instance
resource.devices                    ``vpc.amazonaws.com/efa`` and ``aws.amazon.com/neurondevice``
capability                          ``node.kubernetes.io/instance-type``, the same for all nodes
max_retries                         maximum of the roles' values plus one attempts of the job
``${app_id}``                       job name, without the queue
``${replica_id}``                   ``0`` if a role has one replica; otherwise shell code that
                                    computes the replica's number in its role
``${rank0_env}``                    variable with the main node's address, which is not set on the
                                    main node: ``${${rank0_env}:=localhost}`` in a shell
metadata["aws_batch"]               merged into the containerProperties of the role's nodes
==================================  ==========================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import accumulate

from torchx.schedulers.devices import DEVICES
from torchx.specs import AppDef, Role, VolumeMount, macros
from torchx.specs.named_resources_aws import K8S_ITYPE

from farcall.model import names
from farcall.model.commands import Device, EfsMount, Nodes
from farcall.model.errors import SettingsError
from farcall.torchx import roles
from farcall.torchx.batch.options import BatchOptions
from farcall.torchx.options import wrong_option
from farcall.torchx.roles import Planned, Warnings, wrong

SCHEDULER = "aws_batch"
OVERLAY = "ContainerProperties"
"""Overlay kind for `torchx.specs.overlays.set_overlay`."""

_MOST_ROLES = 5
_NODE_INDEX = "AWS_BATCH_JOB_NODE_INDEX"
_MAIN_ADDRESS = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"

_OF_ROLE = ("command", "environment", "image", "resourceRequirements")
"""Container fields that a role sets itself."""

_WHOLE = "Batch only retries whole jobs"


def name_of(app: AppDef, options: BatchOptions) -> str:
    """Return a unique name for an app's job."""
    plain = f"{app.name}-{options.share_id}" if options.share_id else app.name
    return names.unique(plain, "app")


def queue_name(queue: str) -> str:
    """Return a queue's name, given its name or ARN."""
    return queue.rpartition("job-queue/")[2]


def job_of(app: AppDef, options: BatchOptions, *, name: str) -> Planned[BatchOptions]:
    """Map an app to a job without changing the app.

    The job's details are the roles' overlays for their containers.

    Raises:
        SettingsError: An option is wrong, or Batch would reject the job; it names role and field.
    """
    _check_size(app.roles)
    warnings = Warnings()
    settings = options.settings(
        attempts=roles.attempts(app.roles, warnings, _WHOLE),
        instance_type=_instance_type(app.roles),
        name=app.name,
    )
    settings = settings.replace(tags=roles.tags(app, options.user, settings.tags))
    is_fargate = "FARGATE" in settings.job_definition_extra.get("platformCapabilities", ())
    if is_fargate and not settings.batch_execution_role_name:
        raise wrong_option(
            "execution_role_arn",
            None,
            "Fargate requires the role that pulls the image and writes the log, for example "
            "ecsTaskExecutionRole",
        )
    _warn_of_minimum(app.roles, warnings)
    write = _Groups(options, name, warnings, is_fargate=is_fargate)
    firsts = [0, *accumulate(role.num_replicas for role in app.roles)]
    resolved = [
        write.resolved(role, first) for role, first in zip(app.roles, firsts, strict=False)
    ]
    return Planned(
        name,
        tuple(write.group(role, index) for index, role in enumerate(resolved)),
        settings,
        options,
        tuple(roles.overlay(role, SCHEDULER, OVERLAY, _OF_ROLE) for role in resolved),
        tuple(warnings.texts),
    )


class _Groups:
    """Builder of each role's node group."""

    def __init__(
        self, options: BatchOptions, name: str, warnings: Warnings, *, is_fargate: bool
    ) -> None:
        self._options = options
        self._name = name
        self._warn = warnings
        self._is_fargate = is_fargate
        self._ulimits = options.limits()

    def resolved(self, role: Role, first: int) -> Role:
        """Return a role with its macros replaced."""
        replica = "0"
        if role.num_replicas > 1:
            replica = f"$(({_NODE_INDEX}-{first}))" if first else f"${_NODE_INDEX}"
            self._check_replica_id(role)
        values = macros.Values(
            img_root="", app_id=self._name, replica_id=replica, rank0_env=_MAIN_ADDRESS
        )
        return values.apply(role)

    @staticmethod
    def _check_replica_id(role: Role) -> None:
        for variable, value in role.env.items():
            if isinstance(value, str) and macros.replica_id in value:
                raise wrong(
                    role,
                    f"env[{variable!r}]",
                    value,
                    f"{macros.replica_id} differs on each of {role.num_replicas} nodes, but a "
                    "variable has the same value on all nodes. Let the command read "
                    f"${_NODE_INDEX}",
                )

    def group(self, role: Role, index: int) -> Nodes:
        """Build a role's node group.

        Args:
            role: The role, with its macros replaced.
            index: The role's position in the app.
        """
        mounts, devices = roles.mounts(role, partial(_volume, role))
        shm_size = self._options.shm_size
        return roles.nodes(
            role,
            index,
            shm_size or 0 if self._is_fargate else shm_size,
            mounts=mounts,
            devices=[*self._devices(role), *devices],
            ulimits=self._ulimits,
            secrets=self._options.secrets or {},
            privileged=self._options.privileged,
        )

    def _devices(self, role: Role) -> Iterable[Device]:
        for name, number in role.resource.devices.items():
            mounts = DEVICES.get(name)
            if mounts is None:
                known = " and ".join(sorted(DEVICES))
                self._warn(role, f"resource.devices has {name!r}, but only {known} are supported")
                continue
            yield from map(roles.device, mounts(number))


def _check_size(of: Sequence[Role]) -> None:
    if len(of) > _MOST_ROLES:
        names = ", ".join(role.name for role in of)
        raise SettingsError(
            f"the app has {len(of)} roles ({names}), but Batch supports at most {_MOST_ROLES}. "
            "Merge roles that run the same command, or submit several apps.",
            option="roles",
        )
    roles.check_replicas(of, "Batch")


def _warn_of_minimum(of: Sequence[Role], warnings: Warnings) -> None:
    for role in of:
        if role.min_replicas is not None and role.min_replicas < role.num_replicas:
            warnings(
                role,
                f"min_replicas is {role.min_replicas}, but Batch starts either all "
                f"{role.num_replicas} nodes or none",
            )


def _instance_type(of: Sequence[Role]) -> str:
    """Return the instance type of all nodes; empty for any."""
    types_by_role = roles.instance_types(of)
    types = set(types_by_role.values())
    if len(types) > 1:
        each = ", ".join(f"role {name}: {type_}" for name, type_ in types_by_role.items())
        raise SettingsError(
            f"resource.capabilities[{K8S_ITYPE!r}] differs ({each}), but Batch runs all nodes "
            "of a job on one instance type. Use the same instance type in each role.",
            option="resource",
        )
    return types.pop() if types else ""


def _volume(role: Role, mount: VolumeMount) -> EfsMount:
    """Parse a volume as Kubernetes' EFS driver does: system, folder, access point."""
    parts = mount.src.split(":")
    if len(parts) > 3:
        allowed = "use fs-..., fs-...:/folder or fs-...::fsap-..."
        raise wrong(role, "mounts", mount.src, allowed)
    system, folder, point = (*parts, "", "")[:3]
    return EfsMount(
        system, mount.dst_path, mount.read_only, root=folder or "/", access_point=point
    )
