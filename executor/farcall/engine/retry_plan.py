"""Plan of a retry: the tasks that would run, and their options."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from farcall.config.settings import Settings, options_of
from farcall.engine.failed_tasks import FailedTask, ends
from farcall.engine.retry_notes import Retry, confirmed, notes_of
from farcall.model import failure_reasons
from farcall.model.errors import (
    FarcallError,
    NothingToRetryError,
    SettingsError,
)
from farcall.model.failure_reasons import About
from farcall.model.jobs import JobDetail
from farcall.model.names import counted, named
from farcall.model.submission import Submission
from farcall.model.workflows import Workflow
from farcall.payload.pickling import Origin
from farcall.storage.bundles import Bundle
from farcall_runtime import contract, envelope

if TYPE_CHECKING:
    from farcall.engine.session import Session


CHANGEABLE = (
    *("vcpu", "memory", "num_gpus", "time_limit", "retry_attempts", "retry_on", "tags"),
    *("queue", "priority", "share_identifier", "priority_class", "max_parallel", "ttl"),
)
"""Options that a retry can change.

A submission sets them outside the job definition, on either platform.
"""


@dataclass(frozen=True)
class Plan:
    """The tasks and options of a retry.

    Attributes:
        submission: The job.
        detail: Batch's description of the job.
        workflow: The workflow that the job belongs to.
        settings: The options, including those with which the job was submitted.
        tasks: The tasks that would run again.
        total: Number of tasks of the job, or of the named array tasks.
        unfinished: Number of tasks that have not finished.
        retries: Earlier retries of the job; their tasks are not among ``tasks``.
        noted: Bundles of the retries that notes described, whether or not they have a job.
        facts: The bundle's facts about all its tasks.
        origin: Python and cloudpickle that pickled the functions.
    """

    submission: Submission
    detail: JobDetail
    workflow: Workflow
    settings: Settings
    tasks: Sequence[FailedTask]
    total: int
    unfinished: int
    retries: Sequence[Retry]
    noted: frozenset[str]
    facts: Mapping[str, Any] = field(repr=False)
    origin: Origin

    @property
    def function(self) -> str:
        """The function's name."""
        return self.submission.name.rpartition("-")[0] or self.submission.name

    @property
    def ended(self) -> int:
        """Number of tasks that would run again and did not fail, but were cancelled."""
        return sum(task.was_ended for task in self.tasks)

    def failed_alone(self) -> Plan:
        """Return the plan without the tasks that were only cancelled."""
        return replace(self, tasks=[task for task in self.tasks if not task.was_ended])

    def with_options(self, options: Mapping[str, Any]) -> Settings:
        """Return the options of the new job.

        Raises:
            SettingsError: A value is wrong, or a retry cannot change the option.
        """
        changeable = [name for name in CHANGEABLE if name in options_of(self.settings.backend)]
        for name in options:
            if name not in changeable:
                raise SettingsError(
                    f"{name} cannot be changed for a retry, which uses the job's definition: "
                    f"only {', '.join(changeable)} can be changed. Submit the calls again to "
                    f"use another {name}.",
                    option=name,
                )
        return self.settings.replace(**options)

    def summary(self, settings: Settings) -> str:
        """Describe the tasks and options of the retry in one line.

        Args:
            settings: The options of the new job, as `with_options` returns them.
        """
        text = f"{len(self.tasks)} of {counted(self.total, 'task')} of {self.function}"
        changes = [
            f"{name} {_shown(before)} -> {_shown(after)}"
            for name in CHANGEABLE
            if (before := getattr(self.settings, name)) != (after := getattr(settings, name))
        ]
        if changes:
            text += f": {', '.join(changes)}"
        else:
            text += f", with vcpu {settings.vcpu:g} and memory {settings.memory:g} as before"
        short = sum(task.lacked_memory for task in self.tasks)
        if short and settings.memory <= self.settings.memory:
            text += f"; {short} of them ran out of memory, which is not increased"
        if self.ended:
            text += f"; {self.ended} of them did not fail, but were cancelled"
        if self.unfinished:
            text += f"; {counted(self.unfinished, 'unfinished task')} will not run again"
        return text

    def refuse(self) -> None:
        """Raise an error if no task would run.

        Raises:
            NothingToRetryError: No task of the job can run again.
        """
        if self.tasks:
            return
        nothing = (
            f"no task of job {self.submission.job_id} ({self.submission.name}) can be retried"
        )
        if self.unfinished:
            raise NothingToRetryError(
                f"{nothing} yet: {counted(self.unfinished, 'unfinished task')}. Wait until the "
                "job has finished, or cancel it with `farcall cancel`."
            )
        if self.retries:
            ids = [each.job_id for each in self.retries]
            raise NothingToRetryError(
                f"{nothing}: its failed tasks were retried before, as {named(ids)}. Retry "
                f"{'that job' if len(ids) == 1 else 'those jobs'} instead."
            )
        raise NothingToRetryError(f"{nothing}: none of its tasks has failed, or all were excluded")


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


async def plan_for(
    session: Session,
    settings: Settings,
    job_id: str,
    *others: str,
    with_electrons: bool = False,
) -> Plan:
    """Return which tasks of a job failed, and the options with which they ran.

    Args:
        session: The event loop's session.
        settings: The options; those with which the job was submitted replace them.
        job_id: A single job, an array job, or an array task.
        others: More tasks of the same array job.
        with_electrons: Whether electrons can run again, because their results are awaited.

    Raises:
        JobLostError: Batch does not know the job.
        UnknownError: farcall did not submit it.
        NothingToRetryError: The job's bundle is no longer in the bucket.
        FarcallError: The job cannot be retried: a command, an electron, one node.
        ServiceError: AWS refused a call.
    """
    if "#" in job_id:
        whole = job_id.partition("#")[0]
        raise FarcallError(
            f"{job_id} is one node of job {whole}, and a retry runs all nodes. Name {whole} "
            "instead."
        )
    parent, is_child, _ = job_id.partition(":")
    detail = await session.describe(parent)
    _refuse_kind(detail, with_electrons=with_electrons)
    submission = Submission.whole(detail)
    bundle = Bundle(
        session.stores.of(submission.where.bucket), submission.where, submission.digest
    )
    facts = await _opened(submission, bundle)
    only = None
    if is_child:
        ids = job_id, *others
        await asyncio.gather(*map(session.describe, ids))  # UnknownError for an unknown task
        only = {int(each.partition(":")[2]) for each in ids}
    failed, unfinished = await ends(session, submission, detail, only)
    notes = await notes_of(session, submission)
    retries = await confirmed(session, submission, notes)
    if only is not None:
        retries = [each for each in retries if not only.isdisjoint(each.origin)]
    retried = {number for each in retries for number in each.origin}
    own = await session.backend.options_of(parent)
    origin = Origin(str(facts.get("python", "")), str(facts.get("cloudpickle", "")))
    return Plan(
        submission,
        detail,
        Workflow(
            detail.environment.get(contract.ENV_WORKFLOW, ""),
            detail.environment.get(contract.ENV_DISPATCH, ""),
        ),
        _as_submitted(settings, submission, detail, facts, own),
        sorted(task for task in failed if task.number not in retried),
        submission.size if only is None else len(only),
        unfinished,
        retries,
        frozenset(note.where.bundle for note in notes),
        facts,
        origin,
    )


async def until_ended(session: Session, job_id: str) -> None:
    """Wait until Batch reports a job as finished, which is later than its outcome.

    Args:
        session: The event loop's session.
        job_id: A job that has finished, or is being cancelled.

    Raises:
        JobLostError: Batch does not know the job.
        ServiceError: Batch refused the call.
    """
    while True:
        if (await session.describe(job_id)).status.is_final:
            return
        await asyncio.sleep(session.timing.status_pause_s)


def _refuse_kind(detail: JobDetail, *, with_electrons: bool) -> None:
    """Raise an error for jobs that farcall cannot retry."""
    if detail.is_command:
        raise FarcallError(
            f"job {detail.job_id} ({detail.name}) runs a command and has no calls. Submit it "
            "again, for example with `farcall launch`."
        )
    dispatch = detail.environment.get(contract.ENV_DISPATCH, "")
    if dispatch and not with_electrons:
        raise FarcallError(
            f"job {detail.job_id} ({detail.name}) runs electrons of Covalent, which would not "
            f"receive later results. Use ct.redispatch({dispatch!r}, "
            "reuse_previous_results=True) to run the failed electrons again."
        )


async def _opened(submission: Submission, bundle: Bundle) -> dict[str, Any]:
    about = About(submission.job_id, submission.name)
    try:
        index = await bundle.index()
    except envelope.EnvelopeError as error:
        raise differs(error, about, submission) from error
    except FarcallError as error:
        if type(error) is not FarcallError:
            raise
        raise NothingToRetryError(
            f"no task of job {submission.job_id} ({submission.name}) can be retried: {error}"
        ) from error
    return index.meta


def differs(error: envelope.EnvelopeError, about: About, submission: Submission) -> FarcallError:
    """Return the error for a bundle that is not the submitted one."""
    why = failure_reasons.unusable(error)
    sentence = f"{submission.where.url} differs from what was submitted ({error})"
    return why.kind(about.message(sentence, why.remedy), **about.fields())


def _as_submitted(
    settings: Settings,
    submission: Submission,
    detail: JobDetail,
    facts: Mapping[str, Any],
    own: Mapping[str, Any],
) -> Settings:
    """Return the options of an existing job, except those of its definition."""
    root = submission.where.root.split("/")
    options: dict[str, Any] = {
        "s3_bucket_name": submission.where.bucket,
        "prefix": "/".join(root[:-2]),
        "nodes": submission.nodes,
        "instance_type": detail.instance_type,
        "retry_attempts": detail.attempts_allowed,
        "tags": dict(detail.tags),
        "num_gpus": detail.gpus,
        "log_level": detail.environment.get(contract.ENV_LOG_LEVEL, contract.LOG_LEVEL),
        **own,
    }
    if detail.vcpu:
        options["vcpu"] = detail.vcpu
    if detail.memory_mib:
        options["memory"] = detail.memory_mib / 1024
    if detail.time_limit_s:
        options["time_limit"] = detail.time_limit_s
    if facts.get("retry_on") in ("failure", "infrastructure"):
        options["retry_on"] = facts["retry_on"]
    return settings.replace(**options).with_ladders_of(settings)
