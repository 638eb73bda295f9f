"""Details of a cluster's job, and the constant facts in its documents. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from farcall.backends import bootstrap
from farcall.backends.failure_tables import waiting
from farcall.backends.kubernetes import (
    blocked,
    failure_reasons,
    names,
    pending_reasons,
    quantities,
)
from farcall.backends.kubernetes.blocked import Heals
from farcall.backends.kubernetes.names import (
    CONTAINER,
    KIND_LABEL,
    NAME_ANNOTATION,
    QUEUE_LABEL,
    TAGS_ANNOTATION,
)
from farcall.backends.kubernetes.pod_template import unescaped
from farcall.backends.kubernetes.pods import moment
from farcall.model.failure_reasons import Dwell, FailureReason
from farcall.model.jobs import JobDetail, JobStatus, NodeGroup
from farcall.model.timing import Timing
from farcall_runtime.contract import ENV_OWN_NODES

_INSTANCE_TYPE = "node.kubernetes.io/instance-type"


class KubernetesDetail(JobDetail):
    """A job, or an array task, as described by its cluster."""

    platform: ClassVar[str] = "Kubernetes"

    @property
    def platform_reason(self) -> str:
        """The informative part of the cluster's reasons for the end."""
        is_hollow = failure_reasons.is_hollow(self.status_reason)
        return self.container_reason if is_hollow else self.reason

    @property
    def places(self) -> Mapping[str, str]:
        """Its namespace, and the pod of its last attempt that has started."""
        texts = {"Namespace": self.log_group, "Pod": self.log_stream}
        return {name: text for name, text in texts.items() if text}

    @property
    def remedy(self) -> str:
        """Remedy if the cluster reports that it cannot start the job; otherwise empty."""
        row = blocked.row_of(self) if self.is_blocked else None
        return failure_reasons.explained(row.failure_reason, self).remedy if row else ""

    @property
    def is_blocked(self) -> bool:
        """Whether the cluster reports that it cannot start the job at present."""
        is_waiting = not self.status.is_final and self.status is not JobStatus.RUNNING
        return is_waiting and not self.is_terminated and blocked.row_of(self) is not None

    @property
    def likely_cause(self) -> str:
        """Likely cause of a long wait, as a sentence."""
        if self.status_reason:
            why, remedy = self.waiting()
            return f"{why[:1].upper()}{why[1:]}. To do: {remedy}."
        if self.furthest in (JobStatus.SUBMITTED, JobStatus.PENDING):
            return (
                "No controller has created its pods: check kube-controller-manager and the "
                "events of the Job (kubectl describe job)."
            )
        return "The cluster may have no free capacity, or a node may be starting."

    @property
    def is_explained(self) -> bool:
        """Whether the cluster or farcall wrote the status reason; users cannot write one."""
        return True

    @property
    def has_lost_attempts(self) -> bool:
        """Whether it has failed and its pods, which describe its attempts, were deleted."""
        return self.status is JobStatus.FAILED and not self.tried and not self.array_size

    def dwell(self, timing: Timing) -> Dwell:
        """Return the grace periods before a blocked job is reported and terminated."""
        row = blocked.row_of(self)
        if row is None or row.heals is Heals.OFTEN:
            return Dwell(timing.blocked_report_s, None)
        if row.heals is Heals.SOMETIMES:
            return Dwell(timing.blocked_report_s, timing.pull_dwell_s)
        return Dwell(0.0, timing.start_dwell_s)

    def failure_reason(self) -> FailureReason:
        """Return why the job ended; see `farcall.backends.kubernetes.failure_reasons`."""
        return failure_reasons.failure_reason(self)

    def waiting(self) -> tuple[str, str]:
        """Return the state of the job in a sentence, and a remedy."""
        if not self.is_terminated and (lost := failure_reasons.lost_node(self)):
            return lost
        is_held = not self.is_terminated and not self.is_blocked
        held = pending_reasons.held(self) if is_held else None
        return held or waiting(self, pending_reasons.STATES)


def constant_facts(job: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> KubernetesDetail:
    """Return the facts in a Job's document that do not change."""
    metadata, spec = job.get("metadata") or {}, job.get("spec") or {}
    labels, marks = metadata.get("labels") or {}, annotations_of(job)
    template = (spec.get("template") or {}).get("spec") or {}
    container = _container(template)
    resources = _resources(container)
    environment = _environment(container)
    tags = json_annotation(job, TAGS_ANNOTATION)
    command = _command(container)
    limit = spec.get("backoffLimitPerIndex", spec.get("backoffLimit"))
    name = str(metadata.get("name") or "")
    return KubernetesDetail(
        job_id=name,
        name=str(marks.get(NAME_ANNOTATION) or name),
        status=JobStatus.SUBMITTED,
        attempts_allowed=1 + (limit if isinstance(limit, int) and limit < 1000 else 0),
        created_at=moment(metadata.get("creationTimestamp")),
        log_group=str(metadata.get("namespace") or ""),
        environment=environment,
        queue=str(labels.get(QUEUE_LABEL) or ""),
        image=str(container.get("image") or ""),
        command=() if bootstrap.fetched(command) else command,
        runtime=bootstrap.fetched(command),
        vcpu=resources[0],
        memory_mib=resources[1],
        gpus=resources[2],
        time_limit_s=template.get("activeDeadlineSeconds"),
        groups=_groups(parts or [job]),
        instance_type=(template.get("nodeSelector") or {}).get(_INSTANCE_TYPE, ""),
        tags={str(key): str(value) for key, value in tags.items()},
        is_command=labels.get(KIND_LABEL) == "command",
    )


def _groups(objects: Iterable[Mapping[str, Any]]) -> tuple[NodeGroup, ...]:
    """Return the node groups of a multi-node job; equal nodes form one group."""
    templates = [each for one in objects for each in _templates(one)]
    placed = sorted(templates, key=lambda each: each[0])
    if not any(ENV_OWN_NODES in _environment(_container(pod)) for _, _, pod in placed):
        return ()
    groups: list[NodeGroup] = []
    for first, count, template in placed:
        container = _container(template)
        vcpu, memory, gpus = _resources(container)
        group = NodeGroup(
            first=first,
            last=first + count - 1,
            image=str(container.get("image") or ""),
            command=_command(container),
            environment=_environment(container),
            vcpu=vcpu,
            memory_mib=memory,
            gpus=gpus,
        )
        before = groups[-1] if groups else None
        if before is not None and _is_same(before, group):
            groups[-1] = replace(before, last=group.last)
        else:
            groups.append(group)
    return tuple(groups)


def _is_same(one: NodeGroup, other: NodeGroup) -> bool:
    """Return whether two node groups are equal except for their indexes."""
    alike = replace(other, first=one.first, last=one.last, environment=one.environment)
    ranks = failure_reasons.NODE_VARIABLES
    environments = [
        {key: value for key, value in each.environment.items() if key not in ranks}
        for each in (one, other)
    ]
    return one == alike and environments[0] == environments[1]


def _templates(document: Mapping[str, Any]) -> list[tuple[int, int, Mapping[str, Any]]]:
    """Return first index, number and pod spec of each kind of node in an object."""
    spec = document.get("spec") or {}
    if "tasks" in spec:  # Volcano's
        return [
            (
                names.rank(each.get("template") or {}, place),
                each.get("replicas") or 1,
                (each.get("template") or {}).get("spec") or {},
            )
            for place, each in enumerate(spec["tasks"])
        ]
    template = spec.get("template") or {}
    first = names.rank(document, 0)
    return [(first, spec.get("completions") or 1, template.get("spec") or {})]


def _container(template: Mapping[str, Any]) -> Mapping[str, Any]:
    containers = template.get("containers") or ()
    own = next((each for each in containers if each.get("name") == CONTAINER), None)
    return own if own is not None else next(iter(containers), {})


def _command(container: Mapping[str, Any]) -> tuple[str, ...]:
    given = [*(container.get("command") or ()), *(container.get("args") or ())]
    return tuple(unescaped(part) for part in given)


def _environment(container: Mapping[str, Any]) -> dict[str, str]:
    variables = (each for each in container.get("env") or () if "value" in each)
    return {each["name"]: unescaped(each["value"] or "") for each in variables}


def _resources(container: Mapping[str, Any]) -> tuple[float, int, int]:
    limits = (container.get("resources") or {}).get("limits") or {}
    return quantities.resources(limits)


def annotations_of(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the annotations of an object."""
    return (job.get("metadata") or {}).get("annotations") or {}


def json_annotation(job: Mapping[str, Any], annotation: str) -> dict[str, Any]:
    """Parse a JSON annotation; empty if invalid, because other clients can write it."""
    text = annotations_of(job).get(annotation)
    try:
        parsed = json.loads(text) if isinstance(text, str) else {}
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
