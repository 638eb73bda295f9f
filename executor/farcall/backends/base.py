"""Backend protocols: the operations of a platform that runs jobs, and their types.

To add a platform, write a class with the methods of `Backend` in a package next to
`farcall.backends.batch`. The layers above do not know the platform: the form of its requests, the
number of jobs per request and the meaning of its texts stay below these protocols. A caller that
needs only some of the methods takes the protocol that has them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from farcall.config.settings import Settings
from farcall.model.commands import Nodes
from farcall.model.errors import FarcallError, ServiceError
from farcall.model.findings import Finding
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.names import BATCH, PLATFORMS
from farcall.model.pacing import Meter, Ticket

STOCK_USER = "10001:10001"
"""User of containers whose image lacks the task runner, and of the farcall image.

It is not root, and has no entry in the user database.
"""

STOCK_ENVIRONMENT = {"HOME": "/tmp", "LOGNAME": "farcall"}  # noqa: S108  # of a container
"""Environment variables that farcall's own image sets."""


class Runtime(NamedTuple):
    """Archive of the task runner, which a container downloads if its image lacks it.

    Attributes:
        bucket_url: URL of the bucket.
        bucket: The bucket's name.
        region: The bucket's region.
        key: Key of the object, which ends with its SHA-256.
        architecture: Processor architecture, as in the option ``architecture``.
        python: Python minor version, such as ``3.11``.
    """

    bucket_url: str
    bucket: str
    region: str
    key: str
    architecture: str
    python: str


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job to submit: the container's environment and the requested options.

    Attributes:
        name: Unique name of up to 128 letters, digits, hyphens and underscores, with which the job
            can be found.
        size: Number of tasks: 1 for a single job, more for an array of up to
            `Capabilities.largest_array` tasks.
        environment: The job's own variables, on all nodes; see `farcall_runtime.contract`.
        settings: Queue, resources, time limit, attempts, tags, priority.
        groups: Containers of the nodes; empty for the task runner in the image that the options
            name, on the number of nodes that the options request.
        definition: Definition of another job, as in `JobDetail.definition`, that is used
            unchanged; empty for a definition from the options.
        requests: Edited requests of the platform, as `Backend.plan` returns them. Name, queue and
            environment still come from this object.
        runtime: Archive that the container downloads first; None if the image has the task runner.
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
        """Whether it runs commands instead of the task runner."""
        return bool(self.groups) or self.requests is not None

    @property
    def nodes(self) -> int:
        """Number of nodes of each task."""
        return sum(group.count for group in self.groups) if self.groups else self.settings.nodes

    @property
    def is_multi_node(self) -> bool:
        """Whether it needs a multi-node job instead of a plain container."""
        return self.nodes > 1 or len(self.groups) > 1 or bool(self.settings.instance_type)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Properties of a platform that the engine depends on.

    Attributes:
        largest_array: Maximum number of tasks of one job.
        described_together: Maximum number of jobs that one request describes.
        longest_log_line_bytes: Length at which the platform's log cuts lines, in bytes.
        log_reads_per_s: Maximum `Log.read` calls per second of one session.
        marks_ended_children: Whether terminating an array task needs a marker object in the bucket
            for its container; see `farcall.engine.terminations`.
        ids_are_names: Whether a job's ID is a name that people read and type.
    """

    largest_array: int
    described_together: int
    longest_log_line_bytes: int
    log_reads_per_s: float
    marks_ended_children: bool = False
    ids_are_names: bool = False


class LogEvent(NamedTuple):
    """A line of the platform's own log, or a piece of a very long line.

    Attributes:
        at: Time at which it was written, by the clock of the machine that wrote it.
        text: The line without its line end.
    """

    at: datetime
    text: str


class Log(Protocol):
    """The platform's own log of one attempt, with stdout and stderr merged.

    Attributes:
        exists: Whether the log exists; None until it was read.
    """

    exists: bool | None

    def read(self, *, follow: bool = False) -> AsyncGenerator[list[LogEvent], None]:
        """Yield the lines that are new since the last call, the oldest first.

        Args:
            follow: Whether more calls follow soon; then call `close` after the last one.

        Raises:
            ServiceError: The service refused, except for a missing log.
        """

    async def last(self, number: int) -> list[LogEvent]:
        """Return up to ``number`` of the last lines, the oldest first; `read` goes on after them.

        Raises:
            ServiceError: The service refused, except for a missing log.
        """

    async def close(self) -> None:
        """Release what `read` has opened."""


class Submissions(Protocol):
    """Submission of jobs: checks before a job is paid for, and the requests.

    Attributes:
        capabilities: Properties that the engine depends on.
    """

    capabilities: Capabilities

    async def check(self, settings: Settings) -> None:
        """Check that the resources that the options name exist.

        A user without the permission to check can continue; missing resources then appear when a
        job starts.

        Raises:
            SettingsError: A resource does not exist or cannot be used.
            ServiceError: The platform refused.
        """

    async def needs_runtime(self, settings: Settings, *, offline: bool = False) -> bool:
        """Return whether the tasks' image lacks farcall's runtime.

        Raises:
            ServiceError: The platform refused.
        """

    async def plan(self, job: JobSpec, *, offline: bool = False) -> dict[str, Any]:
        """Return the requests that would submit a job, in JSON types.

        Args:
            job: The job.
            offline: Whether to make no requests; placeholders then replace facts that only the
                platform knows.

        Raises:
            SettingsError: The platform does not support a job with these options.
            TaskTooLargeError: A request exceeds a limit.
            ServiceError: The platform refused.
        """

    async def requests_of(self, job_id: str) -> dict[str, Any] | None:
        """Return the requests that would submit a job like an existing one.

        Returns:
            The same form as `plan`; None if the job does not exist.

        Raises:
            ServiceError: The platform refused.
        """

    async def options_of(self, job_id: str) -> dict[str, Any]:
        """Return the platform-specific options of a farcall job.

        Fields that every `JobDetail` has, such as vCPUs and memory, are not included, except the
        queue and the image.

        Returns:
            Options by name, as `Settings` has them; empty if the job does not exist.

        Raises:
            ServiceError: The platform refused.
        """

    async def prepare(self, job: JobSpec) -> None:
        """Create the resources for jobs of this kind, and check that this job is valid.

        Raises:
            SettingsError: The platform does not support a job with these options.
            TaskTooLargeError: The request exceeds a limit.
            ServiceError: The platform refused.
        """

    async def submit(self, job: JobSpec, ticket: Ticket) -> str:
        """Submit a job exactly once, and return its ID.

        If the response is lost, only `farcall.engine.sender` knows when the request may be
        repeated.

        Args:
            job: The job, for which `prepare` was called.
            ticket: Lets the caller withdraw the request before it is sent.

        Raises:
            SettingsError: A resource that the options name does not exist.
            SubmissionError: The platform does not accept the job.
            ServiceError: The platform refused for another reason, or did not respond.
        """

    async def find(self, name: str, queue: str) -> list[str]:
        """Return the IDs of all jobs of one name in a queue, in any status.

        Lists can lag behind: a job that was just submitted appears a little later.

        Raises:
            ServiceError: The platform refused, or the queue does not exist.
        """


class Jobs(Protocol):
    """Existing jobs: their state, and their end.

    Attributes:
        name: Value of the option ``backend`` that selects the platform.
        capabilities: Properties that the engine depends on.
        meter: Counts the requests.
    """

    name: str
    capabilities: Capabilities
    meter: Meter

    async def describe(self, job_ids: Iterable[str]) -> dict[str, JobDetail]:
        """Return descriptions of jobs. Unknown jobs and some very new jobs are missing.

        Raises:
            ServiceError: The platform refused.
        """

    def list_children(self, job_id: str, status: JobStatus) -> AsyncIterator[list[JobDetail]]:
        """Yield the array tasks that have a status, in pages of one request each.

        Raises:
            ServiceError: The platform refused.
        """

    async def terminate(self, job_ids: Sequence[str], reason: str) -> dict[str, ServiceError]:
        """Terminate jobs in any status; finished jobs are not affected.

        Args:
            job_ids: Single jobs, arrays with all their tasks, or array tasks. If the capabilities
                require it, the marker objects of the array tasks are in the bucket already.
            reason: Becomes `JobDetail.status_reason`, after `OWN_REASON` of
                `farcall.model.failure_reasons`.

        Returns:
            Job ID to error, for jobs that could not be terminated.
        """

    async def cancel_waiting(self, job_ids: Sequence[str], reason: str) -> dict[str, ServiceError]:
        """Cancel tasks that have not started; started tasks continue.

        A platform that cannot do this for single tasks cancels a job if none of its tasks has
        started.

        Args:
            job_ids: Single jobs, and arrays.
            reason: See `terminate`.

        Returns:
            Job ID to error, for jobs that could not be cancelled.
        """

    async def forget(self, detail: JobDetail) -> None:
        """Delete resources of the platform that belong to one finished job only.

        Raises:
            ServiceError: The platform refused.
        """

    def unknown(self, job_id: str) -> str:
        """Return a sentence that reports that the job does not exist."""


class Listing(Protocol):
    """Lists of a platform's queues and jobs."""

    async def queues(self) -> list[str]:
        """Return the names of all queues.

        Raises:
            ServiceError: The platform refused.
        """

    async def list_named(self, name: str, queue: str) -> list[JobDetail]:
        """Return a queue's jobs of one name, in any status, the newest first.

        Listed jobs have fewer fields than described jobs; see also `find`.

        Raises:
            ServiceError: The platform refused, or the queue does not exist.
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

        Each page takes one request and contains no array tasks. Listed jobs have fewer fields than
        described jobs, for example no environment.

        Args:
            queue: Name of the queue.
            since: Only jobs submitted at that time or later.
            named: Only jobs whose names begin with this text.
            foreign: Whether to include jobs that farcall did not submit.

        Raises:
            SettingsError: The queue does not exist.
            ServiceError: The platform refused.
        """

    async def positions(self, queue: str) -> Mapping[str, int]:
        """Return the positions of a queue's first waiting jobs, from 1, if they are known."""

    def links(self, detail: JobDetail) -> dict[str, str]:
        """Return the URLs of the platform's pages that exist: ``job``, ``queue``, ``log``."""


class Logs(Protocol):
    """The platform's own logs.

    Attributes:
        capabilities: Properties that the engine depends on.
    """

    capabilities: Capabilities

    def log(self, group: str, stream: str, since: datetime | None = None) -> Log:
        """Return the platform's own log of one attempt.

        Args:
            group: `JobDetail.log_group` of the job.
            stream: The attempt's `Attempt.log_stream`, or the job's own; empty for none.
            since: Only lines written at this time or later.
        """


class Doctor(Protocol):
    """Checks of ``farcall doctor``."""

    async def reach(self) -> list[Finding]:
        """Check whether the platform responds, for ``farcall doctor``; name its address.

        Raises:
            FarcallError: The platform does not respond.
        """

    def examine(
        self, settings: Settings, *, answers: bool
    ) -> Mapping[str, Awaitable[Iterable[Finding]]]:
        """Return ``farcall doctor``'s checks by name; each may raise a `FarcallError`.

        Args:
            settings: The options.
            answers: Whether the platform responds; if not, no request is made.
        """


class Backend(Submissions, Jobs, Listing, Logs, Doctor, Protocol):
    """A platform that runs jobs; one object per session, with many concurrent calls.

    A backend paces, splits, batches and retries requests. Its own subclass of `JobDetail` knows
    the meaning of a job's texts.
    """

    async def close(self) -> None:
        """Abort requests in progress. Jobs continue."""


def platform_of(backend: Jobs) -> str:
    """Return a backend's platform name for messages; Batch for backends of tests."""
    return next((PLATFORMS[name] for name in PLATFORMS if name == backend.name), PLATFORMS[BATCH])


def raise_first(refused: Mapping[str, FarcallError]) -> None:
    """Raise the first error that `Backend.terminate` returned, if any."""
    for error in refused.values():
        raise error
