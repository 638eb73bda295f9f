"""App states: a platform's job and node states as TorchX values. No I/O.

The variables of every container name the role of each node. The former scheduler of TorchX set
them as well, so that its apps can be read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torchx.schedulers.api import DescribeAppResponse
from torchx.specs import MISSING, NONE, AppState, ReplicaStatus, Resource, Role, RoleStatus

from farcall.model.commands import ENV_RUN
from farcall.model.errors import JobCancelledError, SettingsError
from farcall.model.jobs import JobDetail, JobStatus, NodeGroup
from farcall.model.names import counted
from farcall.model.terminal import in_a_line
from farcall.torchx.roles import ENV_ROLE_INDEX, ENV_ROLE_NAME, TAG_APP, TAG_USER, TAG_VERSION

if TYPE_CHECKING:
    from farcall.torchx.apps import App

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


def is_app(detail: JobDetail) -> bool:
    """Return whether TorchX submitted a job."""
    return TAG_VERSION in detail.tags or ENV_ROLE_NAME in detail.environment


def user_of(detail: JobDetail) -> str:
    """Return the user who submitted an app, from its tag."""
    return detail.tags.get(TAG_USER, "")


def name_of(detail: JobDetail) -> str:
    """Return the app's name, which is the prefix of its job's name."""
    return detail.tags.get(TAG_APP, "")


def _roles_of(detail: JobDetail) -> list[NodeGroup]:
    """Return the nodes of each role in order."""
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
    roles: list[NodeGroup] = []
    for each in groups:
        if roles and _is_same(roles[-1], each):  # each node has its own document
            roles[-1] = replace(roles[-1], last=each.last)
        else:
            roles.append(each)
    return roles


def _name(role: NodeGroup) -> str:
    return role.environment.get(ENV_ROLE_NAME, _DEFAULT_ROLE)


def _is_same(one: NodeGroup, other: NodeGroup) -> bool:
    index = one.environment.get(ENV_ROLE_INDEX)
    is_named = index is not None and index == other.environment.get(ENV_ROLE_INDEX)
    return is_named and _name(one) == _name(other) and other.first == one.last + 1


def node_of(detail: JobDetail, role_name: str, replica: int) -> int:
    """Return the node index of a role's replica.

    Raises:
        SettingsError: The role or replica does not exist; the error names the existing ones.
    """
    roles = _roles_of(detail)
    for role in roles:
        if _name(role) != role_name:
            continue
        most = role.last - role.first
        if 0 <= replica <= most:
            return role.first + replica
        there = f"replicas 0 to {most}" if most else "only replica 0"
        raise SettingsError(
            f"role {role_name} of {detail.name} has no replica {replica}: it has {there}",
            option="k",
        )
    names = ", ".join(map(_name, roles))
    raise SettingsError(
        f"app {detail.name} has no role {role_name!r}: its roles are {names}", option="role_name"
    )


def state_of(detail: JobDetail) -> AppState:
    """Return the state of an app, or of a replica."""
    if detail.status is JobStatus.FAILED and _failure_kind(detail) is JobCancelledError:
        return AppState.CANCELLED
    return _STATES[detail.status]


def describe(app_id: str, app: App) -> DescribeAppResponse:
    """Build TorchX's description of an app."""
    detail = app.detail
    roles = _roles_of(detail)
    attempts = detail.attempts - 1 if detail.status.is_final else detail.attempts
    also = f"this is the latest of {app.namesakes + 1} jobs with this name"
    messages = [text for text in (_message(detail), also if app.namesakes else "") if text]
    return DescribeAppResponse(
        app_id=app_id,
        state=state_of(detail),
        num_restarts=max(0, attempts),
        msg="; ".join(messages),
        structured_error_msg=_structured(detail),
        ui_url=app.session.backend.links(detail).get("job"),
        metadata=dict(detail.tags),
        roles_statuses=[_role_status(role, detail, app.nodes) for role in roles],
        roles=[_role(role, detail) for role in roles],
    )


def _role(nodes: NodeGroup, detail: JobDetail) -> Role:
    command: Sequence[str] = nodes.command
    return Role(
        name=_name(nodes),
        image=nodes.image,
        entrypoint=command[0] if command else MISSING,
        args=list(command[1:]),
        env={key: value for key, value in nodes.environment.items() if key != ENV_RUN},
        num_replicas=nodes.last - nodes.first + 1,
        max_retries=detail.attempts_allowed - 1,
        resource=Resource(
            # TorchX's type has no fractions of a CPU, but some platforms do.
            cpu=int(nodes.vcpu) if nodes.vcpu == int(nodes.vcpu) else nodes.vcpu,  # type: ignore[arg-type]
            gpu=nodes.gpus,
            memMB=nodes.memory_mib,
        ),
    )


def _role_status(role: NodeGroup, detail: JobDetail, nodes: Mapping[int, JobDetail]) -> RoleStatus:
    statuses = []
    for replica, index in enumerate(range(role.first, role.last + 1)):
        node = nodes.get(index)
        statuses.append(
            ReplicaStatus(
                id=replica,
                state=state_of(detail) if node is None else _replica_state(node, detail),
                role=_name(role),
                hostname=node.address if node is not None else "",
                structured_error_msg=_structured(detail if node is None else node),
            )
        )
    return RoleStatus(_name(role), statuses)


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
    phrase = (
        f", {detail.platform} reports {detail.platform_reason!r}" if detail.platform_reason else ""
    )
    retried = f", after {counted(detail.attempts, 'attempt')}" if detail.attempts > 1 else ""
    return in_a_line(f"{why.sentence}{phrase}{retried}. To do: {why.remedy}")


def _structured(detail: JobDetail) -> str:
    """Return a failure reason in the format of TorchX's error files."""
    if detail.status is not JobStatus.FAILED:
        return NONE
    why = _as_command(detail).failure_reason()
    phrase = f" ({detail.platform_reason})" if detail.platform_reason else ""
    document: dict[str, str | int] = {"message": in_a_line(f"{why.sentence}{phrase}")}
    if detail.exit_code is not None:
        document["errorCode"] = detail.exit_code
    if detail.stopped_at is not None:
        document["timestamp"] = int(detail.stopped_at.timestamp())
    return json.dumps(document)


def _failure_kind(detail: JobDetail) -> type[Exception]:
    return _as_command(detail).failure_reason().kind


def _as_command(detail: JobDetail) -> JobDetail:
    """Return a job as a command job, also if TorchX's former scheduler submitted it."""
    return detail if detail.is_command else replace(detail, is_command=True)
