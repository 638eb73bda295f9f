"""Exactly-once launch of command jobs, even if SubmitJob's response is lost.

A command job has no payload that could be withdrawn. So a request without a response is followed
by a longer wait than a function's; see `farcall.engine.sender` for functions:

1. The job is searched for by its name, for as long as lists may lag behind. If it is found, it
   is adopted.
2. Otherwise the request is sent again, for a job of the same name.
3. The name is searched for from time to time. If there are several jobs, all except one are
   terminated; if the last request was given up or cancelled, all of them.

So a command runs twice only if Batch lists its first job later than that.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from farcall.aws.paced_client import Tries
from farcall.backends.base import Backend, JobSpec, platform_of
from farcall.config.settings import Settings
from farcall.engine.in_flight import InFlight, unanswered
from farcall.model.commands import ENV_RUN, Nodes
from farcall.model.errors import ServiceError
from farcall.model.failure_reasons import WITHDRAWN
from farcall.model.pacing import Ticket
from farcall.model.timing import Timing
from farcall.model.workflows import Workflow

if TYPE_CHECKING:
    from farcall.engine.session import Session

_log = logging.getLogger("farcall")


async def launch(
    session: Session, settings: Settings, groups: Sequence[Nodes], *, name: str
) -> str:
    """Submit a command job, and return its ID. No bucket is needed.

    Cancelling the wait withdraws the request; a job that is accepted anyway is terminated.

    Args:
        session: The running event loop's session.
        settings: Options of the job.
        groups: Groups of nodes.
        name: Unique name of the job; see `farcall.model.names`.

    Raises:
        SettingsError: A resource that the options name does not exist, or the platform does not
            accept the combination of options and groups.
        TaskTooLargeError: Commands and variables exceed a limit of Batch.
        SubmissionError: Batch refused the job.
        ServiceError: AWS refused a call or cannot be reached.
    """
    with session.at_work():
        await session.check(settings)
        return await session.launcher.launch(command_of(settings, groups, name, session.run))


def command_of(settings: Settings, groups: Sequence[Nodes], name: str, run: str) -> JobSpec:
    """Build the specification of a command job.

    Args:
        settings: Options of the job.
        groups: Groups of nodes.
        name: Unique name of the job; see `farcall.model.names`.
        run: Name of the client's run, as `Session.run`.
    """
    environment = {ENV_RUN: run, **Workflow(settings.workflow_name).environment()}
    settings = settings.with_environment()
    merged = tuple(_with_variables(group, settings) for group in groups)
    settings = settings.with_options(environment={}, secrets={})
    return JobSpec(name, 1, environment, settings, merged)


def _with_variables(group: Nodes, settings: Settings) -> Nodes:
    """Return a group with the options' variables that it does not set itself."""
    own = {*group.env, *group.secrets}
    env = {name: value for name, value in settings.variables.items() if name not in own}
    secrets = {name: place for name, place in settings.secrets.items() if name not in own}
    return replace(group, env={**env, **group.env}, secrets={**secrets, **group.secrets})


class Launcher:
    """Submits the command jobs of one session.

    Args:
        backend: Platform that runs the jobs.
        timing: Limits of submissions and searches.
    """

    def __init__(self, backend: Backend, timing: Timing) -> None:
        self._backend = backend
        self._timing = timing
        self._in_flight = InFlight(backend, timing)

    async def launch(self, job: JobSpec) -> str:
        """Submit a job once, and return its ID; see `launch`."""
        await self._backend.prepare(job)
        ticket = Ticket()
        return await self._in_flight.finish(self._launch(job, ticket), ticket, lambda: job.name)

    async def close(self) -> None:
        """Stop the searches for jobs that may appear, and log their names."""
        for name in await self._in_flight.close():
            _log.warning(
                "the request to submit job %s was not answered. If %s lists it later, no "
                "process waits for it: use farcall cancel JOB to cancel it.",
                name,
                platform_of(self._backend),
            )

    async def _launch(self, job: JobSpec, ticket: Ticket) -> str:
        tries = Tries(self._timing.submit_retry_s)
        lost = 0  # requests that may have been executed, whose jobs were not found
        kept = ""
        try:
            while not kept:
                try:
                    kept = await self._backend.submit(job, ticket)
                except ServiceError as error:
                    kept = await self._find_job(job, error, ticket) if error.sent else ""
                    if not kept:
                        lost += error.sent
                        ticket.record_refused()
                        await tries.wait_after(error)
        finally:
            if lost:
                self._follow(job, lost, kept)
        return kept

    async def _find_job(self, job: JobSpec, error: ServiceError, ticket: Ticket) -> str:
        """Return the job of a request without a response; empty if it seems to have none.

        If the caller has cancelled, the search is shorter: a job that appears later is terminated.
        """
        name, queue = job.name, job.settings.queue
        job_ids = await self._in_flight.find_jobs(name, queue, error)
        if not job_ids:
            try:
                job_ids = await self._in_flight.await_listed(
                    name, queue, lambda: ticket.is_withdrawn
                )
            except ServiceError as failure:
                raise unanswered(name, error, failure) from failure
        return job_ids[0] if job_ids else ""

    def _follow(self, job: JobSpec, lost: int, kept: str) -> None:
        goes_on = (
            f"it was submitted again, as job {kept}" if kept else "it was not submitted again"
        )
        self._in_flight.follow(
            job.name,
            job.settings.queue,
            f"{WITHDRAWN}; {goes_on}",
            most=lost,
            kept=kept,
            waits_s=(0.0, *self._timing.withdrawn_polls_s),
        )
