"""Parsers of DescribeJobs and ListJobs responses. No I/O.

`farcall.backends.batch.failure_reasons` interprets the texts in the documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from farcall.backends import bootstrap, failure_tables
from farcall.backends.batch import blocked, failure_reasons
from farcall.backends.batch.pending_reasons import STATES
from farcall.model.commands import ENV_RUN
from farcall.model.failure_reasons import FailureReason
from farcall.model.jobs import Attempt, JobDetail, JobStatus, NodeGroup
from farcall.model.names import EMULATOR_IMAGE

_UNDER_WAY = (JobStatus.STARTING, JobStatus.RUNNING)
"""Statuses with a current attempt, which Batch may list with the finished ones."""


class BatchJob(JobDetail):
    """A job, or an array task, as described by Batch."""

    @property
    def platform_reason(self) -> str:
        """Batch's reason for the end, without its uninformative part."""
        return failure_reasons.telling(self.reason)

    @property
    def remedy(self) -> str:
        """Remedy if Batch reports that it cannot place the job; otherwise empty."""
        return blocked.remedy(self.status_reason) if self.is_blocked else ""

    @property
    def likely_cause(self) -> str:
        """Likely cause of a long wait, as a sentence."""
        if self.image == EMULATOR_IMAGE:
            return "The local AWS emulator runs as many jobs at a time as fit on this machine."
        return super().likely_cause

    @property
    def is_blocked(self) -> bool:
        """Whether Batch reports that it cannot place the job at present."""
        return blocked.is_blocked(self)

    @property
    def is_explained(self) -> bool:
        """Whether the status reason was written by Batch or farcall, not by a person."""
        return failure_reasons.is_explained(self)

    def failure_reason(self) -> FailureReason:
        """Return why the job ended; see `farcall.backends.batch.failure_reasons`."""
        return failure_reasons.failure_reason(self)

    def waiting(self) -> tuple[str, str]:
        """Return the state of the job in a sentence, and a remedy."""
        return failure_tables.waiting(self, STATES)


def from_describe(job: Mapping[str, Any]) -> BatchJob:
    """Parse a member of DescribeJobs's ``jobs``, with either kind of properties.

    Source:
        https://docs.aws.amazon.com/batch/latest/APIReference/API_JobDetail.html
    """
    status, container = JobStatus(job["status"]), _first_container(job)
    properties = job.get("nodeProperties") or {}
    ranges = properties.get("nodeRangeProperties") or ()
    groups = _groups(properties)
    main_container = _first_container(ranges[0]) if ranges else container
    listed = list(map(_attempt, job.get("attempts") or ()))
    if status.is_final:
        listed = _completed(listed, job, container)
    last = listed[-1] if listed else Attempt()
    if listed and status in _UNDER_WAY and not last.is_over:
        del listed[-1]
    exit_code = container.get("exitCode")
    log = (main_container.get("logConfiguration") or {}).get("options") or {}
    array = job.get("arrayProperties") or {}
    resources = _resources(main_container)
    environment = _environment(main_container)
    return BatchJob(
        job_id=job["jobId"],
        name=job.get("jobName", ""),
        status=status,
        status_reason=job.get("statusReason") or last.status_reason,
        exit_code=last.exit_code if exit_code is None else exit_code,
        container_reason=container.get("reason") or last.container_reason,
        tried=tuple(listed),
        attempts_allowed=(job.get("retryStrategy") or {}).get("attempts") or 1,
        created_at=_moment(job.get("createdAt")),
        started_at=_moment(job.get("startedAt")),
        stopped_at=_moment(job.get("stoppedAt")),
        is_cancelled=bool(job.get("isCancelled")),
        is_terminated=bool(job.get("isTerminated")),
        log_group=log.get("awslogs-group", "/aws/batch/job"),
        log_stream=container.get("logStreamName") or last.log_stream,
        array_size=array.get("size") or 0,
        status_summary=array.get("statusSummary") or {},
        environment=environment,
        queue=_last_part(job.get("jobQueue")),
        queue_arn=job.get("jobQueue") or "",
        definition=_last_part(job.get("jobDefinition")),
        image=main_container.get("image") or "",
        command=_command(main_container),
        runtime=bootstrap.fetched(main_container.get("command") or ()),
        vcpu=float(resources.get("VCPU", 0)),
        memory_mib=int(resources.get("MEMORY", 0)),
        gpus=int(resources.get("GPU", 0)),
        time_limit_s=(job.get("timeout") or {}).get("attemptDurationSeconds"),
        groups=groups,
        instance_type=next(iter(ranges[0].get("instanceTypes") or ()), "") if ranges else "",
        address=_address(container),
        tags=job.get("tags") or {},
        is_command=ENV_RUN in environment,
    )


def _command(container: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a container's command; empty if it downloads the task runner."""
    command = tuple(container.get("command") or ())
    return () if bootstrap.fetched(command) else command


def _groups(properties: Mapping[str, Any]) -> tuple[NodeGroup, ...]:
    """Parse nodeProperties; nested ranges, which farcall does not use, in their order.

    Source:
        https://docs.aws.amazon.com/batch/latest/APIReference/API_NodeRangeProperty.html
    """
    groups = []
    for each in properties.get("nodeRangeProperties") or ():
        first, _, last = each["targetNodes"].partition(":")
        container = _first_container(each)
        resources = _resources(container)
        groups.append(
            NodeGroup(
                first=int(first or 0),
                last=int(
                    last or (properties["numNodes"] - 1 if ":" in each["targetNodes"] else first)
                ),
                image=container.get("image") or "",
                command=_command(container),
                environment=_environment(container),
                vcpu=float(resources.get("VCPU", 0)),
                memory_mib=int(resources.get("MEMORY", 0)),
                gpus=int(resources.get("GPU", 0)),
            )
        )
    return tuple(groups)


def _environment(container: Mapping[str, Any]) -> dict[str, str]:
    return {pair["name"]: pair.get("value", "") for pair in container.get("environment") or ()}


def _address(container: Mapping[str, Any]) -> str:
    interfaces: list[dict[str, str]] = container.get("networkInterfaces") or []
    return next(iter(interfaces), {}).get("privateIpv4Address") or ""


def _resources(container: Mapping[str, Any]) -> dict[str, str]:
    return {each["type"]: each["value"] for each in container.get("resourceRequirements") or ()}


def from_summary(job: Mapping[str, Any]) -> BatchJob:
    """Parse a member of ListJobs's ``jobSummaryList``, which contains fewer facts.

    Source:
        https://docs.aws.amazon.com/batch/latest/APIReference/API_JobSummary.html
    """
    container = job.get("container") or {}
    array = job.get("arrayProperties") or {}
    nodes = (job.get("nodeProperties") or {}).get("numNodes") or 0
    return BatchJob(
        job_id=job["jobId"],
        name=job.get("jobName", ""),
        status=JobStatus(job["status"]),
        status_reason=job.get("statusReason") or "",
        exit_code=container.get("exitCode"),
        container_reason=container.get("reason") or "",
        created_at=_moment(job.get("createdAt")),
        started_at=_moment(job.get("startedAt")),
        stopped_at=_moment(job.get("stoppedAt")),
        is_cancelled=bool(job.get("isCancelled")),
        is_terminated=bool(job.get("isTerminated")),
        array_size=array.get("size") or 0,
        status_summary=array.get("statusSummary") or {},
        definition=_last_part(job.get("jobDefinition")),
        groups=(NodeGroup(0, nodes - 1),) if nodes else (),
    )


def _attempt(attempt: Mapping[str, Any]) -> Attempt:
    container = _first_container(attempt)
    return Attempt(
        attempt.get("statusReason") or "",
        container.get("reason") or "",
        container.get("exitCode"),
        container.get("logStreamName") or "",
        _moment(attempt.get("startedAt")),
        _moment(attempt.get("stoppedAt")),
    )


def _completed(
    listed: list[Attempt], job: Mapping[str, Any], container: Mapping[str, Any]
) -> list[Attempt]:
    """Add the facts about a finished job's last attempt that only the job contains.

    The list may be empty although a container ran, and its last member may lack the log.
    """
    log_stream = container.get("logStreamName") or ""
    if listed:
        last = listed[-1]
        return [*listed[:-1], last._replace(log_stream=last.log_stream or log_stream)]
    if not log_stream and container.get("exitCode") is None:
        return []  # no attempt ever ran
    times = {name: job.get(name) for name in ("startedAt", "stoppedAt")}
    reason = job.get("statusReason")
    return [_attempt({"container": container, "statusReason": reason, **times})]


def _first_container(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the container of a job or attempt, in either kind of definition."""
    tasks = job.get("taskProperties") or (job.get("ecsProperties") or {}).get("taskProperties")
    containers = tasks[0].get("containers") if tasks else None
    container = containers[0] if containers else job.get("container")
    return container or {}


def _last_part(arn: str | None) -> str:
    """Return the name at the end of an ARN, or the name itself."""
    return (arn or "").rpartition("/")[2]


def _moment(milliseconds: float | None) -> datetime | None:
    if milliseconds is None:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, tz=UTC)
