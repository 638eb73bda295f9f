"""Exactly-once launch of command jobs: one job of a name runs, whatever becomes of SubmitJob.

A command job has no payload that could be taken from it, so a request that was not answered is
followed by a longer wait than a function's; see `farcall.engine.sender` for those:

1. The job is looked for by its name, for as long as lists may lag behind. It is adopted where it
   is found.
2. Where it is not, the request is sent again, for a job of the same name.
3. The name is looked for now and then. Of several jobs all but one are ended; where the last
   request was given up or cancelled, all of them.

So a command runs twice only where Batch lists its first job later than that.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from farcall.aws.paced_client import Ticket, Tries
from farcall.backends.base import Backend, JobSpec, platform_of
from farcall.engine.in_flight import InFlight, unanswered
from farcall.model.commands import ENV_RUN, Nodes
from farcall.model.endings import WITHDRAWN
from farcall.model.errors import ServiceError
from farcall.model.settings import Settings
from farcall.model.timing import Timing
from farcall.model.workflows import Workflow

if TYPE_CHECKING:
    from farcall.engine.session import Session

_log = logging.getLogger("farcall")


async def launch(
    session: Session, settings: Settings, groups: Sequence[Nodes], *, name: str
) -> str:
    """Submit a command job, and return its ID. No bucket is needed.

    Cancelling the wait takes the request back; a job that is accepted all the same is terminated.

    Args:
        session: The running event loop's session.
        settings: The options.
        groups: What its nodes run.
        name: Its name, which no other job may have; see `farcall.model.job_names`.

    Raises:
        SettingsError: Something the options name does not exist, or they and the groups do not
            make a job that the platform takes.
        TaskTooLargeError: Commands and variables exceed a limit of Batch.
        SubmissionError: Batch refused the job.
        ServiceError: AWS refused a call, or cannot be reached.
    """
    with session.at_work():
        await session.check(settings)
        return await session.launcher.launch(command_of(settings, groups, name, session.run))


def command_of(settings: Settings, groups: Sequence[Nodes], name: str, run: str) -> JobSpec:
    """Describe a command job.

    Args:
        settings: The options.
        groups: What its nodes run.
        name: Its name, which no other job may have.
        run: The client process that submits it, as `Session.run`.
    """
    environment = {ENV_RUN: run, **Workflow.of(settings).environment()}
    return JobSpec(name, 1, environment, settings, tuple(groups))


class Launcher:
    """Submits the command jobs of one session.

    Args:
        backend: Where the jobs run.
        timing: How long is submitted, and looked for what was.
    """

    def __init__(self, backend: Backend, timing: Timing) -> None:
        self._backend = backend
        self._timing = timing
        self._in_flight = InFlight(backend, timing)

    async def launch(self, job: JobSpec) -> str:
        """Have a job submitted once, and return its ID; see `launch`."""
        await self._backend.prepare(job)
        ticket = Ticket()
        return await self._in_flight.finish(self._launch(job, ticket), ticket, lambda: job.name)

    async def close(self) -> None:
        """Look no more for jobs that may turn up, and say of which."""
        for name in await self._in_flight.close():
            _log.warning(
                "the request to submit job %s was not answered; should %s list one that nobody "
                "waits for, farcall cancel JOB ends it",
                name,
                platform_of(self._backend),
            )

    async def _launch(self, job: JobSpec, ticket: Ticket) -> str:
        tries = Tries(self._timing.submit_retry_s)
        lost = 0  # requests that may have been carried out, and whose jobs nobody has found
        kept = ""
        try:
            while not kept:
                try:
                    kept = await self._backend.submit(job, ticket)
                except ServiceError as error:
                    kept = await self._look(job, error, ticket) if error.sent else ""
                    if not kept:
                        lost += error.sent
                        ticket.note_refused()
                        await tries.wait_after(error)
        finally:
            if lost:
                self._follow(job, lost, kept)
        return kept

    async def _look(self, job: JobSpec, error: ServiceError, ticket: Ticket) -> str:
        """Return the job of a request that was not answered; empty where there seems to be none.

        Whoever cancelled waits for a shorter look: what turns up later is ended.
        """
        name, queue = job.name, job.settings.job_queue
        found = await self._in_flight.look(name, queue, error)
        if not found:
            try:
                found = await self._in_flight.await_listed(
                    name, queue, lambda: ticket.is_withdrawn
                )
            except ServiceError as failure:
                raise unanswered(name, error, failure) from failure
        return found[0] if found else ""

    def _follow(self, job: JobSpec, lost: int, kept: str) -> None:
        goes_on = f"it was submitted again, as job {kept}" if kept else "it was given up"
        self._in_flight.follow(
            job.name,
            job.settings.job_queue,
            f"{WITHDRAWN}; {goes_on}",
            most=lost,
            kept=kept,
            waits_s=(0.0, *self._timing.withdrawn_looks_s),
        )
