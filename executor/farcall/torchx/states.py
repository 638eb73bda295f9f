"""App states: a platform's job and node states as TorchX values. No I/O.

The variables of every container name the role of each node. The former scheduler of TorchX set
them as well, so that its apps can be read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from torchx.schedulers.api import DescribeAppResponse
from torchx.specs import MISSING, NONE, AppState, ReplicaStatus, Resource, Role, RoleStatus

from farcall.model.commands import ENV_RUN
from farcall.model.errors import JobCancelledError, SettingsError
from farcall.model.jobs import JobDetail, JobStatus, NodeGroup
from farcall.model.names import counted
from farcall.model.terminal import in_a_line
from farcall.torchx.roles import ENV_ROLE_INDEX, ENV_ROLE_NAME, TAG_APP, TAG_USER, TAG_VERSION

_STATES = {
    JobStatus.SUBMITTED: AppState.PENDING,
    JobStatus.PENDING: AppState.PENDING,
    JobStatus.RUNNABLE: AppState.PENDING,
    JobStatus.STARTING: AppState.PENDING,
    JobStatus.RUNNING: AppState.RUNNING,
    JobStatus.SUCCEEDED: AppState.SUCCEEDED,
    JobStatus.FAILED: AppState.FAILED,
}
"""The states of TorchX's former scheduler, except for cancelled apps."""

_DEFAULT_ROLE = "default"
_STOPPED_CODES = (None, 137, 143)


class RoleNodes(NamedTuple):
    """Nodes of a role.

    Attributes:
        name: The role's name.
        nodes: The nodes' command.
    """

    name: str
    nodes: NodeGroup

    @property
    def replicas(self) -> range:
        """The nodes' indexes in the job."""
        return range(self.nodes.first, self.nodes.last + 1)


def is_app(detail: JobDetail) -> bool:
    """Return whether TorchX submitted a job."""
    return TAG_VERSION in detail.tags or ENV_ROLE_NAME in detail.environment


def user_of(detail: JobDetail) -> str:
    """Return the user who submitted an app, from its tag."""
    return detail.tags.get(TAG_USER, "")


def name_of(detail: JobDetail) -> str:
    """Return the app's name, which is the prefix of its job's name."""
    return detail.tags.get(TAG_APP, "")


def roles_of(detail: JobDetail) -> list[RoleNodes]:
    """Return the roles of an app in order."""
    groups = detail.groups or (
        NodeGroup(
            first=0,
            last=0,
            image=detail.image,
            command=detail.command,
            environment=detail.environment,
            vcpu=detail.vcpu,
            memory_mib=detail.memory_mib,
            gpus=detail.gpus,
        ),
    )
    roles: list[RoleNodes] = []
    for each in groups:
        role = RoleNodes(each.environment.get(ENV_ROLE_NAME, _DEFAULT_ROLE), each)
        if roles and _is_same(roles[-1], role):  # each node has its own document
            role = RoleNodes(role.name, replace(roles.pop().nodes, last=each.last))
        roles.append(role)
    return roles


def _is_same(one: RoleNodes, other: RoleNodes) -> bool:
    index = one.nodes.environment.get(ENV_ROLE_INDEX)
    is_named = index is not None and index == other.nodes.environment.get(ENV_ROLE_INDEX)
    return is_named and one.name == other.name and other.nodes.first == one.nodes.last + 1


def node_of(detail: JobDetail, role_name: str, replica: int) -> int:
    """Return the node index of a role's replica.

    Raises:
        SettingsError: The role or replica does not exist; the error names the existing ones.
    """
    roles = roles_of(detail)
    for role in roles:
        if role.name != role_name:
            continue
        if 0 <= replica < len(role.replicas):
            return role.replicas[replica]
        there = "only replica 0"
        if len(role.replicas) > 1:
            there = f"replicas 0 to {len(role.replicas) - 1}"
        raise SettingsError(
            f"role {role_name} of {detail.name} has no replica {replica}: it has {there}",
            option="k",
        )
    names = ", ".join(role.name for role in roles)
    raise SettingsError(
        f"app {detail.name} has no role {role_name!r}: its roles are {names}", option="role_name"
    )


def state_of(detail: JobDetail) -> AppState:
    """Return the state of an app, or of a replica."""
    if detail.status is JobStatus.FAILED and _failure_kind(detail) is JobCancelledError:
        return AppState.CANCELLED
    return _STATES[detail.status]


def describe(
    app_id: str, detail: JobDetail, nodes: Mapping[int, JobDetail], ui_url: str | None, also: str
) -> DescribeAppResponse:
    """Build TorchX's description of an app.

    Args:
        app_id: The app's ID in TorchX.
        detail: The app's job.
        nodes: Known nodes by index. Other nodes get the job's state.
        ui_url: URL of the app in the platform's console.
        also: Text to append to the message.
    """
    roles = roles_of(detail)
    attempts = detail.attempts - 1 if detail.status.is_final else detail.attempts
    told = "; ".join(text for text in (_message(detail), also) if text)
    return DescribeAppResponse(
        app_id=app_id,
        state=state_of(detail),
        num_restarts=max(0, attempts),
        msg=told,
        structured_error_msg=_structured(detail),
        ui_url=ui_url,
        metadata=dict(detail.tags),
        roles_statuses=[_role_status(role, detail, nodes) for role in roles],
        roles=[_role(role, detail) for role in roles],
    )


def _role(role: RoleNodes, detail: JobDetail) -> Role:
    nodes = role.nodes
    command: Sequence[str] = nodes.command
    return Role(
        name=role.name,
        image=nodes.image,
        entrypoint=command[0] if command else MISSING,
        args=list(command[1:]),
        env={key: value for key, value in nodes.environment.items() if key != ENV_RUN},
        num_replicas=len(role.replicas),
        max_retries=detail.attempts_allowed - 1,
        resource=Resource(
            # TorchX's type has no fractions of a CPU, but some platforms do.
            cpu=int(nodes.vcpu) if nodes.vcpu == int(nodes.vcpu) else nodes.vcpu,  # type: ignore[arg-type]
            gpu=nodes.gpus,
            memMB=nodes.memory_mib,
        ),
    )


def _role_status(role: RoleNodes, detail: JobDetail, nodes: Mapping[int, JobDetail]) -> RoleStatus:
    statuses = []
    for replica, index in enumerate(role.replicas):
        node = nodes.get(index)
        statuses.append(
            ReplicaStatus(
                id=replica,
                state=state_of(detail) if node is None else _replica_state(node, detail),
                role=role.name,
                hostname=node.address if node is not None else "",
                structured_error_msg=_structured(detail if node is None else node),
            )
        )
    return RoleStatus(role.name, statuses)


def _replica_state(node: JobDetail, job: JobDetail) -> AppState:
    """Return a node's state; nodes do not record that a cancel stopped them."""
    state = state_of(node)
    was_stopped = state is AppState.FAILED and node.exit_code in _STOPPED_CODES
    if was_stopped and state_of(job) is AppState.CANCELLED:
        return AppState.CANCELLED
    return state


def _message(detail: JobDetail) -> str:
    """Return the reason for an app's state; empty if it succeeded."""
    if detail.status is JobStatus.SUCCEEDED:
        return ""
    if not detail.status.is_final:
        sentence, remedy = detail.waiting()
        return in_a_line(f"{sentence}. To do: {remedy}" if detail.is_blocked else sentence)
    why = _as_command(detail).failure_reason()
    said = (
        f", {detail.platform} reports {detail.platform_reason!r}" if detail.platform_reason else ""
    )
    retried = f", after {counted(detail.attempts, 'attempt')}" if detail.attempts > 1 else ""
    return in_a_line(f"{why.sentence}{said}{retried}. To do: {why.remedy}")


def _structured(detail: JobDetail) -> str:
    """Return a failure reason in the format of TorchX's error files."""
    if detail.status is not JobStatus.FAILED:
        return NONE
    why = _as_command(detail).failure_reason()
    said = f" ({detail.platform_reason})" if detail.platform_reason else ""
    found: dict[str, str | int] = {"message": in_a_line(f"{why.sentence}{said}")}
    if detail.exit_code is not None:
        found["errorCode"] = detail.exit_code
    if detail.stopped_at is not None:
        found["timestamp"] = int(detail.stopped_at.timestamp())
    return json.dumps(found)


def _failure_kind(detail: JobDetail) -> type[Exception]:
    return _as_command(detail).failure_reason().kind


def _as_command(detail: JobDetail) -> JobDetail:
    """Return a job as a command job, also if TorchX's former scheduler submitted it."""
    return detail if detail.is_command else replace(detail, is_command=True)
