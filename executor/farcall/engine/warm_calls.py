"""Jobs whose tasks warm workers run: a platform in front of the platform.

Submissions, statuses and terminations of such jobs are answered here, so that groups of tasks,
retries and results are the same as for jobs of the platform, which runs all others.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from farcall.backends.base import Backend, JobSpec
from farcall.config.settings import Settings
from farcall.engine.worker_pool import (
    LOST_WORKER,
    Call,
    WorkerPool,
    is_warm,
    options_of_workers,
    shared_of,
)
from farcall.model import errors
from farcall.model.errors import ServiceError
from farcall.model.failure_reasons import OWN_REASON, FailureReason
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.pacing import Ticket
from farcall.storage.store import Store, Stores
from farcall_runtime import envelope
from farcall_runtime.contract import (
    ENV_BUNDLE,
    ENV_OUTCOME_KEY,
    LARGEST_INBOX_BYTES,
    Location,
)

_log = logging.getLogger("farcall")

_MOST_JOBS = 1000
"""Number of finished jobs that can be described."""


@dataclass(eq=False)
class WarmJob:
    """A job whose tasks warm workers run.

    Attributes:
        id: Its ID.
        spec: The submitted job.
        pool: The workers; the description of their job if another process has started them.
        created_at: When it was submitted.
        calls: Its tasks.
    """

    id: str
    spec: JobSpec
    pool: WorkerPool | JobDetail
    created_at: datetime
    calls: list[Call]


@dataclass(frozen=True)
class WarmDetail(JobDetail):
    """A job, or an array task, that warm workers run.

    Attributes:
        waits_for: What it waits for.
        failure: Why it has failed; None if its exit code says so.
    """

    waits_for: str = ""
    failure: FailureReason | None = None

    def failure_reason(self) -> FailureReason:
        """Return why the job ended without an outcome."""
        if self.is_cancelled:
            return FailureReason(errors.JobCancelledError, "the job was cancelled", "run it again")
        return self.failure or super().failure_reason()

    def waiting(self) -> tuple[str, str]:
        """Return what the job waits for, and a remedy."""
        if self.status is JobStatus.RUNNABLE and self.waits_for:
            return self.waits_for, "wait, or raise workers"
        return super().waiting()

    @property
    def likely_cause(self) -> str:
        """Likely cause of a long wait, as a sentence."""
        return "The workers may be starting, or all of them may be busy."


class WarmBackend:
    """A platform whose calls with the option ``workers`` run on warm workers.

    Methods that are not defined here are the platform's.

    Args:
        backend: The platform.
        stores: The buckets.

    Attributes:
        on_change: Called with the IDs of jobs whose tasks have changed.
    """

    def __init__(self, backend: Backend, stores: Stores) -> None:
        self._backend = backend
        self._stores = stores
        self._pools: dict[Any, WorkerPool] = {}
        self._jobs: dict[str, WarmJob] = {}
        self.on_change: Callable[[Iterable[str]], object] = lambda _: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def _pool(self, job: JobSpec) -> WorkerPool:
        key = options_of_workers(job.settings), shared_of(job.environment)
        if key not in self._pools:
            bucket = Location.parse(job.environment[ENV_BUNDLE]).bucket
            store = self._stores.of(bucket)
            self._pools[key] = WorkerPool(self._backend, store, job, self._notify)
        return self._pools[key]

    def _notify(self, job_ids: Iterable[str]) -> None:
        self.on_change(job_ids)

    async def submit(self, job: JobSpec, ticket: Ticket) -> str:
        """Submit a job; see `Submissions.submit`."""
        if not is_warm(job):
            return await self._backend.submit(job, ticket)
        pool = self._pool(job)
        await pool.start()
        ticket.record_sent()
        warm = WarmJob(f"call-{secrets.token_hex(8)}", job, pool, datetime.now(UTC), [])
        warm.calls = [Call(warm, index) for index in range(job.size)]
        self._jobs[warm.id] = warm
        self._forget_some()
        pool.add(warm.calls)
        return warm.id

    def _forget_some(self) -> None:
        """Forget the oldest finished jobs, if there are many."""
        for job in list(self._jobs.values())[: len(self._jobs) - _MOST_JOBS]:
            if all(call.status.is_final for call in job.calls):
                del self._jobs[job.id]

    def record_outcome(self, job_id: str, index: int) -> None:
        """Record that the outcome of a task has arrived."""
        job = self._jobs.get(job_id)
        if job is None or job.calls[index].status.is_final:
            return
        if isinstance(job.pool, WorkerPool):
            job.pool.record_outcome(job.calls[index])
        else:
            job.calls[index].status = JobStatus.SUCCEEDED

    async def describe(self, job_ids: Iterable[str]) -> dict[str, JobDetail]:
        """Return descriptions of jobs; see `Jobs.describe`."""
        job_ids = list(job_ids)
        warm = {job_id: self._jobs.get(job_id.partition(":")[0]) for job_id in job_ids}
        others = [job_id for job_id in job_ids if warm[job_id] is None]
        details = await self._backend.describe(others) if others else {}
        await self._check_adopted(job for job in warm.values() if job is not None)
        for job_id, job in warm.items():
            if job is not None:
                details[job_id] = _detail(job, job_id.partition(":")[2])
        return details

    async def list_children(
        self, job_id: str, status: JobStatus
    ) -> AsyncIterator[list[JobDetail]]:
        """Yield the array tasks that have a status; see `Jobs.list_children`."""
        job = self._jobs.get(job_id)
        if job is None:
            async for page in self._backend.list_children(job_id, status):
                yield page
        else:
            yield [_detail(job, str(call.index)) for call in job.calls if call.status is status]

    async def terminate(self, job_ids: Sequence[str], reason: str) -> dict[str, ServiceError]:
        """Cancel jobs; see `Jobs.terminate`."""
        others = []
        for job_id in job_ids:
            parent, _, index = job_id.partition(":")
            job = self._jobs.get(parent)
            if job is None:
                others.append(job_id)
                continue
            calls = [job.calls[int(index)]] if index else job.calls
            if isinstance(job.pool, WorkerPool):
                job.pool.cancel(calls, f"{OWN_REASON}{reason}")
            else:  # only its client can cancel single calls
                others.append(job.pool.job_id)
        return await self._backend.terminate(others, reason) if others else {}

    async def cancel_waiting(self, job_ids: Sequence[str], reason: str) -> dict[str, ServiceError]:
        """Cancel tasks that have not started; calls of warm workers stay."""
        others = [job_id for job_id in job_ids if job_id not in self._jobs]
        return await self._backend.cancel_waiting(others, reason) if others else {}

    async def forget(self, detail: JobDetail) -> None:
        """Delete what belongs to one finished job only."""
        if detail.job_id not in self._jobs:
            await self._backend.forget(detail)

    async def options_of(self, job_id: str) -> dict[str, Any]:
        """Return the platform-specific options of a job; see `Submissions.options_of`."""
        job = self._jobs.get(job_id)
        if job is None:
            return await self._backend.options_of(job_id)
        settings = job.spec.settings
        return {"queue": settings.queue, "image": settings.image, "workers": 0}

    # --- calls of a client that has ended -----------------------------------------------------

    async def find(self, name: str, queue: str) -> list[str]:
        """Return the IDs of all jobs of one name; see `Submissions.find`."""
        adopted = [job.id for job in self._jobs.values() if job.spec.name == name]
        return adopted or await self._backend.find(name, queue)

    async def adopt(self, store: Store, root: str, settings: Settings) -> None:
        """Take over the calls of a run that are in the inboxes of its workers.

        The key that verifies the inboxes comes from the platform's job.

        Raises:
            ServiceError: S3 or the platform refused.
        """
        pools: dict[str, list[str]] = {}
        for key, _ in await store.list_keys(f"{root}/workers/"):
            pool, _, rest = key.removeprefix(f"{root}/workers/").partition("/")
            if rest.startswith("inbox/"):
                pools.setdefault(pool, []).append(key)
        for pool, keys in pools.items():
            ids = await self._backend.find(pool, settings.queue)
            details = await self._backend.describe(ids)
            for detail in details.values():
                where = Location.parse(detail.environment.get(ENV_BUNDLE, ""))
                if where == Location(store.bucket, root, pool):
                    inboxes = await asyncio.gather(*(_inbox(store, key, detail) for key in keys))
                    self._adopt(detail, settings, [each for each in inboxes if each])

    def _adopt(
        self, detail: JobDetail, settings: Settings, inboxes: Sequence[dict[str, Any]]
    ) -> None:
        """Register the jobs in inboxes; calls that no worker has got do not run."""
        key = bytes.fromhex(detail.environment[ENV_OUTCOME_KEY])
        for inbox in inboxes:
            for job_id, variables in inbox["jobs"].items():
                job = self._jobs.get(job_id)
                if job is None:
                    job = self._jobs[job_id] = _job_of(detail, settings, job_id, variables, key)
                if isinstance(job.pool, JobDetail):
                    for _, owner, index, attempt in inbox["calls"]:
                        if owner == job_id:
                            call = job.calls[index]
                            call.status, call.attempt = JobStatus.RUNNING, attempt

    async def _check_adopted(self, jobs: Iterable[WarmJob]) -> None:
        """Record calls that have been lost with the workers of a client that has ended."""
        adopted = [job for job in jobs if isinstance(job.pool, JobDetail)]
        ids = {job.pool.job_id for job in adopted if isinstance(job.pool, JobDetail)}
        details = await self._backend.describe(ids) if ids else {}
        for job in adopted:
            assert isinstance(job.pool, JobDetail)  # noqa: S101 - for the type checker
            detail = details.get(job.pool.job_id)
            if detail is None or detail.status.is_final:
                for call in job.calls:
                    if not call.status.is_final:
                        call.status, call.failure = JobStatus.FAILED, LOST_WORKER

    async def close_workers(self) -> None:
        """Let the workers end after their calls."""
        for pool in self._pools.values():
            await pool.close()


async def _inbox(store: Store, key: str, detail: JobDetail) -> dict[str, Any] | None:
    """Return the content of an inbox; None if the pool's client has not written it."""
    try:
        dated = await store.get_dated(key, most=LARGEST_INBOX_BYTES)
        if dated is None:
            return None
        pool_key = bytes.fromhex(detail.environment[ENV_OUTCOME_KEY])
        return envelope.open_worker(pool_key, key, dated[0])
    except (envelope.EnvelopeError, KeyError, ValueError) as error:
        _log.warning("s3://%s/%s was ignored: %s", store.bucket, key, error)
        return None


def _job_of(
    detail: JobDetail,
    settings: Settings,
    job_id: str,
    variables: Mapping[str, str],
    pool_key: bytes,
) -> WarmJob:
    """Return a job that another process has submitted, none of whose calls has a worker."""
    bundle = variables[ENV_BUNDLE]
    environment = {
        **{name: text for name, text in variables.items() if name not in ("id", "size")},
        ENV_OUTCOME_KEY: envelope.encrypted(pool_key, bundle, variables[ENV_OUTCOME_KEY]),
    }
    size = int(variables["size"])
    spec = JobSpec(Location.parse(bundle).bundle, size, environment, settings)
    job = WarmJob(job_id, spec, detail, detail.created_at or datetime.now(UTC), [])
    reason = f"{OWN_REASON}its client ended before a worker was free"
    for index in range(size):
        job.calls.append(Call(job, index, JobStatus.FAILED, reason=reason, is_cancelled=True))
    return job


def _detail(job: WarmJob, index: str) -> WarmDetail:
    """Describe a job, or an array task."""
    settings = job.spec.settings
    pool = job.pool.detail if isinstance(job.pool, WorkerPool) else job.pool
    whole = WarmDetail(
        job.id,
        job.spec.name,
        JobStatus.RUNNABLE,
        attempts_allowed=settings.attempts,
        created_at=job.created_at,
        environment=dict(job.spec.environment),
        queue=settings.queue if pool is None else pool.queue,
        queue_arn="" if pool is None else pool.queue_arn,
        definition="" if pool is None else pool.definition,
        image=settings.image if pool is None else pool.image,
        vcpu=settings.vcpu,
        memory_mib=int(settings.memory * 1024),
        gpus=settings.num_gpus,
        time_limit_s=settings.time_limit,
        tags=settings.tags,
        waits_for=job.pool.state_text if isinstance(job.pool, WorkerPool) else "",
    )
    if index or len(job.calls) == 1:
        call = job.calls[int(index or 0)]
        return replace(
            whole,
            job_id=f"{job.id}:{index}" if index else job.id,
            status=call.status,
            status_reason=call.reason,
            failure=call.failure,
            exit_code=call.exit_code,
            is_cancelled=call.is_cancelled,
            is_terminated=call.is_cancelled,
        )
    counts = Counter(call.status.value for call in job.calls)
    return replace(
        whole, status=_of_array(counts), array_size=len(job.calls), status_summary=counts
    )


def _of_array(counts: Counter[str]) -> JobStatus:
    ended = counts[JobStatus.SUCCEEDED.value] + counts[JobStatus.FAILED.value]
    if ended < counts.total():
        return JobStatus.PENDING
    return JobStatus.FAILED if counts[JobStatus.FAILED.value] else JobStatus.SUCCEEDED
