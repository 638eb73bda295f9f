"""Pool of warm workers: one array job whose tasks run calls until none arrives for a while.

The client assigns calls to workers that have reported, and writes each worker's inbox, an object
in the bucket that only the pool's key can sign. `farcall_runtime.worker` is the other side. The
outcomes of the calls are those of ordinary tasks.

A worker has a nonce, which its inboxes repeat: an inbox of an earlier container in the same place,
or an old inbox, has no effect. Workers show that they are alive by storing their state.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from farcall.backends.base import Backend, JobSpec
from farcall.config.settings import Settings
from farcall.model import clock, names
from farcall.model.clock import within
from farcall.model.errors import (
    FarcallError,
    HostLostError,
    JobError,
    OutOfMemoryError,
    SettingsError,
    SubmissionError,
)
from farcall.model.failure_reasons import LOST, MEMORY, OWN_REASON, FailureReason
from farcall.model.jobs import JobDetail, JobStatus
from farcall.model.pacing import Ticket
from farcall.storage.store import Store
from farcall_runtime import contract, envelope
from farcall_runtime.contract import ExitCode, Location, WorkerPlace, workers_prefix

_log = logging.getLogger("farcall")

_LONGEST_S = 7 * 86_400
"""Time limit of a worker in seconds; each call has its own."""

_LOST_S = 90.0
"""Time in seconds after which a worker that has not stored its state is lost."""

_FRESH_S = 10.0
"""Age of the workers' states in seconds from which they are read before calls are assigned."""

_STARTING_S, _WORKING_S = (0.1, 1.0), 5.0
"""Intervals between two listings of the states: while workers start, and while calls run."""

_DESCRIBE_S = 10.0
_STOPPED_S = 35.0
"""Time in seconds after which a cancelled call counts as ended: its grace period is over."""

_AHEAD = ((0.1, 16), (0.25, 4), (1.0, 2))
"""Average durations below which a worker gets several calls at a time, and their number."""

_LARGEST_STATE_BYTES = 64 * 1024
_MOST_CANCELLED = 100
_MOST_JOBS = 20
_MOST_STARTS = 3
"""Maximum number of times that workers start without running a call."""

_NOT_RETRIED = {ExitCode.RETURNED, ExitCode.BAD_ENVIRONMENT, ExitCode.CANCELLED}

LOST_WORKER = FailureReason(HostLostError, "the worker of the call was lost", LOST)
_OUT_OF_MEMORY = FailureReason(
    OutOfMemoryError, "the worker of the call ran out of memory", MEMORY
)

_SHARED = (
    *(contract.ENV_REGION, contract.ENV_BUCKET_URL, contract.ENV_ENCRYPTION),
    *(contract.ENV_KMS_KEY, contract.ENV_LOG_LEVEL, contract.ENV_THREADS, contract.ENV_WORKFLOW),
)
"""Variables of a call's job that are also those of its workers."""


class Job(Protocol):
    """A job whose tasks are calls for warm workers."""

    id: str
    spec: JobSpec


@dataclass(eq=False)
class Call:
    """A task that a warm worker runs.

    Attributes:
        job: Its job.
        index: Its index in the job.
        status: Its status.
        attempt: Number of its attempt, from 1.
        number: Number of this attempt in the pool.
        inbox: Number of the inbox with which its worker gets it.
        reason: Why it was cancelled.
        failure: Why it has failed; None if its exit code says so.
        exit_code: Exit code of its process; None if it has none.
        is_cancelled: Whether it was cancelled.
        assigned_at: When a worker got it.
        stop_at: When it counts as ended after its cancellation.
    """

    job: Job
    index: int
    status: JobStatus = JobStatus.RUNNABLE
    attempt: int = 1
    number: int = 0
    inbox: int = 0
    reason: str = ""
    failure: FailureReason | None = None
    exit_code: int | None = None
    is_cancelled: bool = False
    assigned_at: float = 0.0
    stop_at: float | None = None


@dataclass(eq=False)
class _Worker:
    """A worker of a pool.

    Attributes:
        place: Its objects.
        nonce: Nonce of its container; empty before it has reported.
        tag: Token of its state, which changes when it is stored.
        seen_at: When the state was last seen to have changed.
        calls: The calls in its inbox, by number.
        jobs: The newest jobs of its calls, whose results may not be collected yet.
        cancelled: Numbers of cancelled calls.
        number: Number of its newest inbox.
        ended_at: When its last outcome arrived.
        is_changed: Whether its inbox must be written.
        is_gone: Whether it has ended.
    """

    place: WorkerPlace
    nonce: str = ""
    tag: str = ""
    seen_at: float = 0.0
    calls: dict[int, Call] = field(default_factory=dict)
    jobs: deque[Job] = field(default_factory=lambda: deque(maxlen=_MOST_JOBS))
    cancelled: deque[int] = field(default_factory=lambda: deque(maxlen=_MOST_CANCELLED))
    number: int = 0
    ended_at: float = 0.0
    is_changed: bool = False
    is_gone: bool = False


class WorkerPool:
    """Warm workers for calls with equal options, in one bucket and run.

    Args:
        backend: Platform that runs the workers.
        store: The bucket.
        example: A job whose calls the workers run; its options are those of the workers.
        on_change: Called with IDs of jobs whose tasks have changed.

    Attributes:
        detail: Description of the array job of the workers; None before it is known.
    """

    def __init__(
        self,
        backend: Backend,
        store: Store,
        example: JobSpec,
        on_change: Callable[[Iterable[str]], object],
    ) -> None:
        self._backend = backend
        self._store = store
        self._example = example
        self._on_change = on_change
        self._where = Location.parse(example.environment[contract.ENV_BUNDLE])
        self._count = example.settings.workers
        self.detail: JobDetail | None = None
        self._job_id = ""
        self._pool = ""
        self._key = b""
        self._workers: list[_Worker] = []
        self._waiting: deque[Call] = deque()
        self._numbers = 0
        self._durations: deque[float] = deque(maxlen=50)
        self._listed_at = self._described_at = float("-inf")
        self._changed_at = clock.now()
        self._starts = 0  # since the last call has ended
        self._starting = asyncio.Lock()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False

    def spec(self) -> JobSpec:
        """Return the array job of new workers."""
        self._pool, self._key = names.unique("workers"), secrets.token_bytes(32)
        example = self._example.environment
        settings = self._example.settings
        options = settings.with_options(time_limit=_LONGEST_S)
        return JobSpec(
            self._pool,
            self._count,
            {
                **{name: example[name] for name in _SHARED if name in example},
                contract.ENV_BUNDLE: self._where._replace(bundle=self._pool).url,
                contract.ENV_DIGEST: "0" * 64,
                contract.ENV_OUTCOME_KEY: self._key.hex(),
                contract.ENV_WORKER_IDLE_S: f"{settings.workers_idle:g}",
            },
            options,
            runtime=self._example.runtime,
        )

    @property
    def state_text(self) -> str:
        """What a waiting call waits for."""
        if any(worker.nonce and not worker.is_gone for worker in self._workers):
            return "it waits for a free worker"
        return "it waits for a worker to start"

    async def start(self) -> None:
        """Submit the workers, unless there are some.

        Raises:
            SettingsError: The platform does not support a job with these options.
            SubmissionError: The platform does not accept the job.
            ServiceError: The platform refused for another reason.
        """
        async with self._starting:
            if self._is_there:
                return
            spec = self.spec()
            await self._backend.prepare(spec)
            self._job_id = await self._backend.submit(spec, Ticket())
            self._starts += 1
            self.detail = None
            places = [WorkerPlace(self._where.root, self._pool, n) for n in range(self._count)]
            self._workers = [_Worker(place, seen_at=clock.now()) for place in places]
            self._listed_at = self._described_at = float("-inf")
            self._changed_at = clock.now()

    @property
    def _is_there(self) -> bool:
        return any(not worker.is_gone for worker in self._workers)

    def add(self, calls: Iterable[Call]) -> None:
        """Assign calls to workers, when they are free."""
        self._waiting.extend(calls)
        self._changed_at = clock.now()
        self._wake_up()

    def record_outcome(self, call: Call) -> None:
        """Record that the outcome of a call has arrived."""
        holder = self._holder(call)
        if holder is not None:
            now = clock.now()
            self._durations.append(now - max(call.assigned_at, holder.ended_at))
            holder.ended_at = now
            del holder.calls[call.number]
        self._starts = 0
        call.status = JobStatus.SUCCEEDED
        self._wake_up()

    def cancel(self, calls: Iterable[Call], reason: str) -> None:
        """Cancel unfinished calls; their workers continue."""
        for call in calls:
            if call.status.is_final or call.is_cancelled:
                continue
            call.is_cancelled, call.reason = True, reason
            holder = self._holder(call)
            if holder is None:
                call.status = JobStatus.FAILED
            else:
                holder.cancelled.append(call.number)
                holder.is_changed = True
                call.stop_at = clock.now() + _STOPPED_S
        self._waiting = deque(call for call in self._waiting if not call.is_cancelled)
        self._wake_up()

    async def close(self) -> None:
        """Let the workers end after their calls, and hand all waiting calls over first."""
        self._is_closing = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        ready = [each for each in self._workers if each.nonce and not each.is_gone]
        if self._waiting and not ready:
            _log.warning(
                "%s not run: no worker has started", names.counted(len(self._waiting), "call")
            )
        while self._waiting and ready:
            self._give(min(ready, key=lambda each: len(each.calls)), self._waiting.popleft())
        left = [each for each in self._workers if not each.is_gone]
        with contextlib.suppress(FarcallError):  # otherwise the workers end when they are idle
            await asyncio.gather(*(self._write(each) for each in left))
            if any(not each.nonce for each in left):
                await self._backend.cancel_waiting([self._job_id], f"{OWN_REASON}no call is left")

    # --- assignment ---------------------------------------------------------------------------

    def _wake_up(self) -> None:
        self._wake.set()
        if (self._task is None or self._task.done()) and not self._is_closing:
            self._task = asyncio.ensure_future(self._run())

    @property
    def _is_busy(self) -> bool:
        return bool(self._waiting) or any(each.calls or each.is_changed for each in self._workers)

    async def _run(self) -> None:
        """Assign calls and watch the workers, while there are calls."""
        while self._is_busy:
            self._wake.clear()
            try:
                await self._step()
            except FarcallError as error:  # the next step tries again
                _log.warning("the workers of %s cannot be reached: %s", self._pool, error)
                await asyncio.sleep(_WORKING_S)
            except Exception:
                _log.exception("assigning calls to workers failed")
                await asyncio.sleep(_WORKING_S)
            with contextlib.suppress(TimeoutError):
                await within(self._pause_s(), self._wake.wait())

    async def _step(self) -> None:
        now = clock.now()
        if now - self._listed_at >= self._list_every_s():
            await self._read_states()
        if now - self._described_at >= _DESCRIBE_S:
            await self._describe()
        self._check_ends()
        if self._waiting and not self._is_there:
            await self._start_again()
        self._assign()
        await self._write_inboxes()

    async def _start_again(self) -> None:
        """Start new workers for the waiting calls, unless that does not help."""
        text = f"its workers ended {self._starts} times before they had run a call"
        if self._starts < _MOST_STARTS:
            try:
                await self.start()
            except (SettingsError, SubmissionError) as error:
                text = f"its workers cannot be started: {error}"
            else:
                return
        self._fail_waiting(FailureReason(JobError, text, "see the log of the job named workers"))

    def _fail_waiting(self, failure: FailureReason) -> None:
        for call in self._waiting:
            call.status, call.failure = JobStatus.FAILED, failure
        changed = {call.job.id for call in self._waiting}
        self._waiting.clear()
        self._on_change(changed)

    def _list_every_s(self) -> float:
        if all(each.nonce or each.is_gone for each in self._workers):
            return _WORKING_S if any(each.calls for each in self._workers) else _FRESH_S
        least, most = _STARTING_S
        return min(most, max(least, 0.1 * (clock.now() - self._changed_at)))

    def _pause_s(self) -> float:
        return max(0.01, self._listed_at + self._list_every_s() - clock.now())

    def _assign(self) -> None:
        durations = self._durations
        average_s = sum(durations) / len(durations) if durations else float("inf")
        most = next((number for limit_s, number in _AHEAD if average_s < limit_s), 1)
        ready = [each for each in self._workers if each.nonce and not each.is_gone]
        for count in range(most):
            for each in ready:
                if self._waiting and len(each.calls) == count:
                    self._give(each, self._waiting.popleft())

    def _give(self, each: _Worker, call: Call) -> None:
        self._numbers += 1
        call.number, call.assigned_at = self._numbers, clock.now()
        call.inbox = each.number + 1
        call.status = JobStatus.RUNNING
        each.calls[call.number] = call
        if call.job not in each.jobs:
            each.jobs.append(call.job)
        each.is_changed = True

    def _holder(self, call: Call) -> _Worker | None:
        return next((each for each in self._workers if each.calls.get(call.number) is call), None)

    async def _write_inboxes(self) -> None:
        changed = [each for each in self._workers if each.is_changed and each.nonce]
        await asyncio.gather(*(self._write(each) for each in changed if not each.is_gone))

    async def _write(self, each: _Worker) -> None:
        each.is_changed = False
        each.number += 1
        content = {
            "nonce": each.nonce,
            "number": each.number,
            "jobs": {job.id: self._variables(job) for job in each.jobs},
            "calls": [
                [n, call.job.id, call.index, call.attempt] for n, call in each.calls.items()
            ],
            "cancelled": list(each.cancelled),
            "stop": self._is_closing,
        }
        key = each.place.inbox_key
        try:
            await self._store.put(key, envelope.seal_worker(self._key, key, content), quick=True)
        except BaseException:
            each.is_changed = True
            raise

    def _variables(self, job: Job) -> dict[str, str]:
        """Return the variables of a job, with its key encrypted."""
        environment = dict(job.spec.environment)
        bundle = environment[contract.ENV_BUNDLE]
        key = environment[contract.ENV_OUTCOME_KEY]
        environment[contract.ENV_OUTCOME_KEY] = envelope.encrypted(self._key, bundle, key)
        return {**environment, "id": job.id, "size": str(job.spec.size)}

    # --- states -------------------------------------------------------------------------------

    async def _read_states(self) -> None:
        """Read the states that were stored since the last time."""
        now = clock.now()
        prefix = f"{workers_prefix(self._where.root, self._pool)}state/"
        listed = await self._store.list_stored(prefix)
        self._listed_at = now
        for each in self._workers:
            stored = listed.get(str(each.place.number))
            tag = "" if stored is None else f"{stored.at} {stored.size}"
            if tag and tag != each.tag:
                await self._read_state(each, tag)
            elif each.nonce and now - each.seen_at > _LOST_S:
                self._lose(each)

    async def _read_state(self, each: _Worker, tag: str) -> None:
        key = each.place.state_key
        try:
            dated = await self._store.get_dated(key, most=_LARGEST_STATE_BYTES)
            state = None if dated is None else envelope.open_worker(self._key, key, dated[0])
        except envelope.EnvelopeError as error:
            _log.warning("s3://%s/%s was ignored: %s", self._store.bucket, key, error)
            return
        if state is None:
            return
        each.tag, each.seen_at = tag, clock.now()
        if state["nonce"] != each.nonce:
            self._lose(each)
            each.nonce, each.number, each.is_gone = str(state["nonce"]), 0, False
            each.cancelled.clear()
        for number, code in state["ended"].items():
            if int(number) in each.calls:
                self._end(each, each.calls[int(number)], int(code))
        if not state["alive"]:
            self._lose(each, read=int(state["number"]))

    def _lose(
        self, each: _Worker, cause: JobDetail | None = None, read: float = float("inf")
    ) -> None:
        """Run the calls of a worker that has ended elsewhere.

        Args:
            each: The worker.
            cause: Description of its failed task, if known.
            read: Number of the last inbox that it has read, if known.
        """
        calls = list(each.calls.values())
        each.calls.clear()
        each.is_gone, each.is_changed = True, False
        begun = [call for call in calls[:1] if call.inbox <= read]
        for call in reversed(calls[len(begun) :]):
            call.status = JobStatus.RUNNABLE
            self._waiting.appendleft(call)
        for call in begun:
            # Without the platform's reason, the container may have been killed for another one.
            kind = cause.failure_reason().kind if cause and cause.container_reason else None
            if kind is OutOfMemoryError and not call.is_cancelled:
                call.status, call.failure = JobStatus.FAILED, _OUT_OF_MEMORY
                self._on_change([call.job.id])
            else:
                self._run_again(call, LOST_WORKER)

    def _end(self, each: _Worker, call: Call, code: int) -> None:
        """Record that the process of a call has ended."""
        del each.calls[call.number]
        self._starts = 0
        if code == ExitCode.TERMINATED:  # its worker must end, unless the call was cancelled
            self._run_again(call, LOST_WORKER)
            return
        settings = call.job.spec.settings
        may_pass = settings.retry_on == "failure" and code not in _NOT_RETRIED
        if may_pass and not 60 <= code < 70 and call.attempt < settings.attempts:
            self._run_again(call, None)
            return
        call.exit_code, call.status = code, JobStatus.FAILED
        self._on_change([call.job.id])

    def _run_again(self, call: Call, failure: FailureReason | None) -> None:
        """Run a call on another worker, or record its failure if it has no attempt left."""
        if call.is_cancelled or call.attempt >= call.job.spec.settings.attempts:
            call.status, call.failure = JobStatus.FAILED, failure
            self._on_change([call.job.id])
            return
        call.attempt += 1
        call.status = JobStatus.RUNNABLE
        self._waiting.appendleft(call)

    def _check_ends(self) -> None:
        """End cancelled calls whose workers do not report their end."""
        now = clock.now()
        for each in self._workers:
            for call in list(each.calls.values()):
                if call.stop_at is not None and now > call.stop_at:
                    del each.calls[call.number]
                    call.status = JobStatus.FAILED
                    self._on_change([call.job.id])

    async def _describe(self) -> None:
        """Find the workers that have ended without a last state."""
        self._described_at = clock.now()
        if not self._job_id:
            return
        detail = (await self._backend.describe([self._job_id])).get(self._job_id)
        if detail is None:
            return
        self.detail = detail
        if detail.status.is_final:
            await self._fail_all(detail)
            return
        if not detail.status_summary.get(JobStatus.FAILED.value):
            return
        await self._lose_failed()

    async def _lose_failed(self) -> None:
        """Record the workers of an array whose tasks have failed."""
        failed = []
        async for page in self._backend.list_children(self._job_id, JobStatus.FAILED):
            failed += [child.index for child in page]
        gone = [n for n in failed if not self._workers[n].is_gone]
        ids = {n: f"{self._job_id}:{n}" for n in gone if self._workers[n].calls}
        details = await self._backend.describe(ids.values()) if ids else {}
        for number in gone:
            self._lose(self._workers[number], details.get(ids.get(number, "")))

    async def _fail_all(self, detail: JobDetail) -> None:
        """Record the end of all workers; if none has started, calls fail for the same reason."""
        has_started = any(each.nonce for each in self._workers)
        if self._count > 1:
            await self._lose_failed()
        for each in self._workers:
            if not each.is_gone:
                self._lose(each, detail if self._count == 1 else None)
        if not has_started and detail.status is JobStatus.FAILED:
            self._fail_waiting(detail.failure_reason())


def options_of_workers(settings: Settings) -> str:
    """Return a text that is equal for settings whose calls can share workers."""
    own = {"time_limit": 300, "linger_s": 0.1, "output": False, "cache": False}
    return settings.with_options(**own).fingerprint


def is_warm(spec: JobSpec) -> bool:
    """Return whether warm workers run a job's tasks."""
    is_again = contract.ENV_RETRY_OF in spec.environment or bool(spec.definition)
    return bool(spec.settings.workers) and not (spec.is_command or spec.is_multi_node or is_again)


def shared_of(environment: Mapping[str, str]) -> tuple[Any, ...]:
    """Return the variables of a job that must be equal for the calls of one pool."""
    bundle = Location.parse(environment[contract.ENV_BUNDLE])
    return (bundle.bucket, bundle.root, *(environment.get(name, "") for name in _SHARED))
