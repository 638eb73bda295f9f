"""Retries of single tasks that start together: one job for the tasks of an array job."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from farcall.config.settings import Settings
from farcall.engine import retry
from farcall.engine.group import Place
from farcall.engine.retry import Retried
from farcall.engine.retry_notes import ClaimedError
from farcall.engine.retry_plan import plan_for, until_ended
from farcall.model.errors import FarcallError

if TYPE_CHECKING:
    from farcall.engine.session import Session

_CANCELLED = "cancelled while it was submitted"


@dataclass(eq=False)
class _Group:
    """Tasks of one job that run again with the same options.

    Attributes:
        settings: The options of the executor.
        options: Options to change.
        wait_s: Time in seconds to wait for further tasks.
        is_chance: Whether it is a second chance; see `Retries.run`.
        requests: The results by task ID.
        has_ended: IDs of tasks that have finished, although the platform may not report it yet.
        running: The submission.
    """

    settings: Settings
    options: Mapping[str, Any]
    wait_s: float
    is_chance: bool
    requests: dict[str, asyncio.Future[Place]] = field(default_factory=dict)
    has_ended: set[str] = field(default_factory=set)
    running: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> list[str]:
        """IDs of the tasks whose callers wait."""
        return [job_id for job_id, request in self.requests.items() if not request.done()]

    def fail(self, job_ids: Sequence[str], error: BaseException) -> None:
        for job_id in job_ids:
            if not self.requests[job_id].done():
                self.requests[job_id].set_exception(error)


class Retries:
    """Retries of one session's tasks.

    Args:
        session: The session.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._groups: dict[tuple[str, int, str], _Group] = {}

    async def run(
        self,
        settings: Settings,
        job_id: str,
        options: Mapping[str, Any],
        *,
        has_ended: bool,
        wait_s: float | None = None,
        is_chance: bool = False,
    ) -> Place:
        """Run a task again, in one job with others of its array job that are retried now.

        Cancelling the wait withdraws the request; a job that is accepted anyway is terminated.

        Args:
            settings: The options of the executor.
            job_id: A single job, or an array task.
            options: Options to change.
            has_ended: Whether the task has finished, although the platform may not report it yet.
            wait_s: Time in seconds to wait for further tasks; by default ``linger_s``.
            is_chance: Whether it is a second chance: the options' lists continue to apply, and
                electrons can run again, because their results are awaited.

        Returns:
            The task in its new job.

        Raises:
            NothingToRetryError: The task cannot run again.
            SettingsError: A value is wrong, or a retry cannot change the option.
            SubmissionError: Batch did not accept the job.
            ServiceError: AWS refused a call.
        """
        key = job_id.partition(":")[0], id(settings), repr(sorted(options.items()))
        group = self._groups.get(key)
        if group is None:
            pause_s = settings.linger_s if wait_s is None else wait_s
            group = _Group(settings, options, pause_s, is_chance)
            self._groups[key] = group
            group.running = asyncio.ensure_future(self._run(key, group))
        elif job_id in group.requests:
            raise ClaimedError(
                f"job {job_id} is being retried already. Wait for the result of that retry"
            )
        request: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        group.requests[job_id] = request
        if has_ended:
            group.has_ended.add(job_id)
        try:
            return await request
        except asyncio.CancelledError:
            if group.running is not None and not group.waiting:
                group.running.cancel()
                await asyncio.gather(group.running, return_exceptions=True)
            raise

    async def _run(self, key: tuple[str, int, str], group: _Group) -> None:
        try:
            try:
                await asyncio.sleep(group.wait_s)
            finally:
                del self._groups[key]
            await asyncio.gather(*(self._wait(group, job_id) for job_id in group.waiting))
            await self._submit(group, group.waiting)
        except Exception as error:  # the callers receive it
            group.fail(group.waiting, error)
        finally:
            for request in group.requests.values():
                request.cancel()

    async def _wait(self, group: _Group, job_id: str) -> None:
        """Wait until the platform, too, reports the end of a task that has finished."""
        try:
            detail = await self._session.describe(job_id)
            if job_id in group.has_ended or detail.is_terminated or detail.is_cancelled:
                await until_ended(self._session, job_id)
        except FarcallError as error:
            group.fail([job_id], error)

    async def _submit(self, group: _Group, job_ids: Sequence[str]) -> None:
        """Submit tasks in one job; those that cannot run again get their own error."""
        if not job_ids:
            return
        plan = await plan_for(
            self._session, group.settings, *job_ids, with_electrons=group.is_chance
        )
        settings = plan.with_options(group.options)
        if group.is_chance:
            settings = settings.with_ladders_of(group.settings)
        if len(job_ids) == 1:
            plan.refuse()
        numbers = {task.number for task in plan.tasks}
        ids = {_index_of(job_id): job_id for job_id in job_ids}
        for retried in await retry.submit(self._session, plan, settings) if numbers else ():
            await self._deliver(group, ids, retried)
        for index in ids.keys() - numbers:
            try:
                await self._submit(group, [ids[index]])
            except FarcallError as error:
                group.fail([ids[index]], error)

    async def _deliver(self, group: _Group, ids: Mapping[int, str], retried: Retried) -> None:
        """Hand over the tasks of a new job; terminate those whose callers have left."""
        retried.group.track()
        late: list[int] = []
        for index, number in enumerate(retried.origin):
            request = group.requests[ids[number]]
            if request.done():
                late.append(index)
            else:
                request.set_result((retried.group, index))
        if late:
            with contextlib.suppress(FarcallError):
                await retried.group.cancel(_CANCELLED, late)


def _index_of(job_id: str) -> int:
    """Return a task's index in its job; 0 for a single job."""
    return int(job_id.partition(":")[2] or 0)
