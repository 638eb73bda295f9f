"""Backend protocol: all that is asked of a platform that runs jobs, and the values that cross.

Whoever adds a platform writes a class that does this, and a folder for it beside
`farcall.backends.batch`. Nobody above knows which one it is: what its requests look like, how many
jobs one of them names, and what its texts mean stays below.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from farcall.aws.findings import Finding
from farcall.aws.paced_client import Meter, Ticket
from farcall.model.commands import Nodes
from farcall.model.errors import FarcallError, ServiceError
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.names import BATCH, PLATFORMS
from farcall.model.settings import Settings

STOCK_USER = "10001:10001"
"""Of a container whose image does not hold the task runner, as of farcall's own image: not root,
and no user that has to be made."""

STOCK_ENVIRONMENT = {"HOME": "/tmp", "LOGNAME": "farcall"}  # noqa: S108  # of a container
"""What farcall's own image sets."""


class Runtime(NamedTuple):
    """The archive of the task runner that a container fetches whose image does not hold it.

    Attributes:
        bucket_url: URL of the bucket.
        bucket: The bucket's name.
        region: Its region.
        key: The object's key, which ends with its SHA-256.
        architecture: Processor that it is for, as the option ``architecture`` has it.
        python: Python's minor version that it is for, such as ``3.11``.
    """

    bucket_url: str
    bucket: str
    region: str
    key: str
    architecture: str
    python: str


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job to be submitted: what its container is told, and what the options ask for.

    Attributes:
        name: Its name, up to 128 letters, digits, hyphens and underscores. No other job has it:
            whoever knows it finds the job.
        size: Number of tasks: 1 gives a plain job, more an array, up to
            `Capabilities.largest_array`.
        environment: Its own variables, which all nodes have; see `farcall_runtime.contract`.
        settings: Queue, resources, time limit, attempts, tags, priority.
        groups: What its nodes run; empty for the task runner in the image that the options name,
            on as many nodes as they say.
        definition: Definition of another job, as `JobDetail.definition`, that is used as it is;
            empty for the one that the options make.
        requests: The platform's requests, as `Backend.plan` writes them, where they were edited
            and are to be sent so; name, queue and environment are still the job's own.
        runtime: What its container fetches first; None where the image holds the task runner.
    """

    name: str
    size: int
    environment: Mapping[str, str] = field(repr=False)
    settings: Settings
    groups: tuple[Nodes, ...] = ()
    definition: str = ""
    requests: Mapping[str, Any] | None = field(default=None, repr=False)
    runtime: Runtime | None = None

    @property
    def is_command(self) -> bool:
        """Whether it runs commands, and not the task runner."""
        return bool(self.groups) or self.requests is not None

    @property
    def nodes(self) -> int:
        """Number of nodes of each of its tasks."""
        return sum(group.count for group in self.groups) if self.groups else self.settings.nodes

    @property
    def is_multi_node(self) -> bool:
        """Whether it is more than a plain container."""
        return self.nodes > 1 or len(self.groups) > 1 or bool(self.settings.instance_type)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the engine takes into account of a platform.

    Attributes:
        largest_array: Number of tasks that one job may have.
        described_together: Number of jobs that one request describes.
        longest_log_line_bytes: The platform's own log cuts a longer line.
        logs_read_together: Number of logs that one request reads.
        marks_ended_children: Whether a child of an array is ended for good only where a mark in
            the bucket tells its container so; see `farcall.engine.terminations`.
        ids_are_names: Whether a job's ID is a name that people read and type.
    """

    largest_array: int
    described_together: int
    longest_log_line_bytes: int
    logs_read_together: int
    marks_ended_children: bool = False
    ids_are_names: bool = False


class LogLine(NamedTuple):
    """A line of the platform's own log, or a piece of a very long one.

    Attributes:
        at: When it was written.
        text: The line without its end.
    """

    at: datetime
    text: str


class LogEvent(NamedTuple):
    """A line of one of several logs that are read together.

    Attributes:
        key: What no other line of these logs has: a line that is read again is known by it.
        stream: Which log it is of.
        at: When it was written, by the clock of the machine that wrote it.
        taken_at: When the platform took it, by its own.
        text: The line without its end.
    """

    key: str
    stream: str
    at: datetime
    taken_at: datetime
    text: str


class LogMissingError(FarcallError):
    """One of several logs is not there, or not yet; the platform does not say which."""


class Log(Protocol):
    """The platform's own log of one attempt: both streams in one, told apart by nothing.

    Attributes:
        exists: Whether there is such a log; None as long as nobody looked.
    """

    exists: bool | None

    def read(self) -> AsyncIterator[list[LogLine]]:
        """Yield what is new since the last time, the oldest first.

        Raises:
            ServiceError: The service refused, other than because there is no such log.
        """

    async def last(self, number: int) -> list[LogLine]:
        """Return the last lines, up to so many, the oldest first.

        Raises:
            ServiceError: The service refused, other than because there is no such log.
        """


class Backend(Protocol):
    """Where jobs run: one for each session. Many calls may be under way at once.

    Requests are paced, cut in pages, put together and made again in here. What a job's texts mean
    its `JobDetail` says, whose class is the backend's own.

    Attributes:
        name: The value of the option ``backend`` that chooses it.
        capabilities: What the engine takes into account.
        meter: Counts its requests.
    """

    name: str
    capabilities: Capabilities
    meter: Meter

    # --- before a job is paid for -------------------------------------------------------------

    async def check(self, settings: Settings) -> None:
        """See that what the options name is there.

        Whoever may not look is not stopped: what is missing then shows when a job starts.

        Raises:
            SettingsError: Something the options name does not exist, or cannot be used.
            ServiceError: The platform refused.
        """

    async def reach(self) -> list[Finding]:
        """Find out for ``farcall doctor`` whether the platform answers, and where.

        Raises:
            FarcallError: It does not.
        """

    def examine(
        self, settings: Settings, *, answers: bool
    ) -> Mapping[str, Awaitable[Iterable[Finding]]]:
        """Return the checks of ``farcall doctor``, by name; each may raise a `FarcallError`.

        Args:
            settings: The options.
            answers: Whether the platform does; if not, nothing is asked of it.
        """

    async def needs_runtime(self, settings: Settings, *, offline: bool = False) -> bool:
        """Return whether the tasks' image lacks farcall's runtime.

        Raises:
            ServiceError: The platform refused.
        """

    async def plan(self, job: JobSpec, *, offline: bool = False) -> dict[str, Any]:
        """Return the requests that would submit a job, as JSON has words for them.

        Args:
            job: The job.
            offline: Whether nobody is asked: what only the platform knows is then named.

        Raises:
            SettingsError: The options do not make a job that the platform takes.
            TaskTooLargeError: A request exceeds a limit.
            ServiceError: The platform refused.
        """

    # --- jobs ---------------------------------------------------------------------------------

    async def prepare(self, job: JobSpec) -> None:
        """Do once what all such jobs need, and see that this one would be taken.

        Raises:
            SettingsError: The options do not make a job that the platform takes.
            TaskTooLargeError: The request exceeds a limit.
            ServiceError: The platform refused.
        """

    async def submit(self, job: JobSpec, ticket: Ticket) -> str:
        """Have a job submitted once, and return its ID.

        Where the answer is missing only `farcall.engine.sender` knows when it may be sent again.

        Args:
            job: The job, for which `prepare` was called.
            ticket: With which the caller may take it back.

        Raises:
            SettingsError: Something the options name does not exist.
            SubmissionError: The platform takes no such job.
            ServiceError: The platform refused otherwise, or did not answer.
        """

    async def find(self, name: str, queue: str) -> list[str]:
        """Return the IDs of a queue's jobs of one name, in any status.

        Lists may lag behind: a job just submitted is found a little later.

        Raises:
            ServiceError: The platform refused, or there is no such queue.
        """

    async def describe(self, job_ids: Iterable[str]) -> dict[str, JobDetail]:
        """Return what is known of jobs; unknown ones, and some just submitted, are missing.

        Raises:
            ServiceError: The platform refused.
        """

    async def requests_of(self, job_id: str) -> dict[str, Any] | None:
        """Return the requests that would submit a job like one that there is.

        Returns:
            As `plan` does; None if there is no such job.

        Raises:
            ServiceError: The platform refused.
        """

    async def options_of(self, job_id: str) -> dict[str, Any]:
        """Return the options of this platform alone that one of farcall's jobs was submitted with.

        What every platform's `JobDetail` tells, such as vCPUs and memory, is not among them, but
        its queue and its image are.

        Returns:
            Options by name, as `Settings` has them; empty if there is no such job.

        Raises:
            ServiceError: The platform refused.
        """

    async def terminate(self, job_ids: Sequence[str], reason: str) -> dict[str, ServiceError]:
        """End jobs, whatever their status; for those that have ended already it does nothing.

        Args:
            job_ids: Jobs, arrays with all their children, or single children. Where the
                capabilities say so, marks of the latter are in the bucket already.
            reason: What `JobDetail.status_reason` says afterwards, behind `OWN_REASON` of
                `farcall.model.endings`.

        Returns:
            Those that could not be ended, with why.
        """

    async def forget(self, detail: JobDetail) -> None:
        """Do away with what the platform keeps for one job alone, which nobody asks for again.

        Raises:
            ServiceError: The platform refused.
        """

    def note_ended(self, job_ids: Iterable[str], reason: str) -> None:
        """Note that jobs were ended by an earlier process that went on here, and why."""

    def unknown(self, job_id: str) -> str:
        """Say that there is no such job, in a sentence."""

    # --- lists --------------------------------------------------------------------------------

    async def queues(self) -> list[str]:
        """Return the names of all queues.

        Raises:
            ServiceError: The platform refused.
        """

    async def list_named(self, name: str, queue: str) -> list[JobDetail]:
        """Return a queue's jobs of one name, in any status, the newest first.

        What a list tells is less than a description; see `find`, too.

        Raises:
            ServiceError: The platform refused, or there is no such queue.
        """

    def list_jobs(
        self,
        queue: str,
        since: datetime | None = None,
        *,
        named: str = "",
        foreign: bool = False,
    ) -> AsyncGenerator[list[JobDetail], None]:
        """Yield the jobs of a queue, in any status, the newest first.

        They come in pages, a request each; children of arrays are not among them. What a list
        tells is less than a description: no environment, for one.

        Args:
            queue: Its name.
            since: Only what was submitted at that moment or later.
            named: Only those whose names begin so.
            foreign: Whether those that farcall did not submit are among them.

        Raises:
            SettingsError: There is no such queue.
            ServiceError: The platform refused.
        """

    def list_children(self, job_id: str, status: JobStatus) -> AsyncIterator[list[JobDetail]]:
        """Yield the children of an array that have a status, in pages, a request each.

        Raises:
            ServiceError: The platform refused.
        """

    async def position(self, detail: JobDetail) -> int | None:
        """Return a waiting job's place in its queue, from 1; None where that is not known."""

    # --- beside -------------------------------------------------------------------------------

    def links(self, detail: JobDetail) -> dict[str, str]:
        """Return URLs of pages of the platform: ``job``, ``queue``, ``log``; those there are."""

    def log(self, detail: JobDetail, stream: str) -> Log:
        """Return the platform's own log of one attempt.

        Args:
            detail: The job.
            stream: The attempt's `Attempt.log_stream`, or the job's own; empty for none.
        """

    def log_events(
        self,
        group: str,
        streams: Sequence[str],
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> AsyncGenerator[list[LogEvent], None]:
        """Yield the lines of several logs in one, by time, in pages, a request each.

        A page may be empty. What was written within some seconds before may come later, between
        lines that were read before: whoever goes on from where he was reads some of it again.

        Args:
            group: The jobs' `JobDetail.log_group`.
            streams: Names of logs, up to `Capabilities.logs_read_together`.
            since: Only what was written in this millisecond or later.
            until: Only what was written in this millisecond or before.

        Raises:
            LogMissingError: One of them is not there; it is raised before the first page.
            ServiceError: The platform refused otherwise.
        """

    async def close(self) -> None:
        """Let go of what is under way. Jobs go on."""


def platform_of(backend: Backend) -> str:
    """Return what texts call the platform of a backend; tests' own stands in for Batch."""
    return next((PLATFORMS[name] for name in PLATFORMS if name == backend.name), PLATFORMS[BATCH])


def raise_first(refused: Mapping[str, ServiceError]) -> None:
    """Raise the first of what `Backend.terminate` returns, if there is any."""
    for error in refused.values():
        raise error
