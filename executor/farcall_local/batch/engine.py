"""The states of jobs: what moves a job from SUBMITTED to its end.

Everything here runs on one event loop, so nothing is locked and no reader sees half a step.

Sources:
    https://docs.aws.amazon.com/batch/latest/userguide/job_states.html
    https://docs.aws.amazon.com/batch/latest/APIReference/API_CancelJob.html
    https://docs.aws.amazon.com/batch/latest/APIReference/API_TerminateJob.html
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from farcall_local import names
from farcall_local.batch.dependencies import Dependencies
from farcall_local.batch.errors import ClientError
from farcall_local.batch.jobs import Job, Jobs, Status, Submission
from farcall_local.runners.execution import Ending, Execution, World
from farcall_local.runners.gang import AnyExecution, Gang
from farcall_local.runners.processors import Processors

CHILD_FAILED = "Array Child Job failed"
DEPENDENCY_FAILED = "Dependent Job failed"


class Engine:
    """Runs jobs on so many processors.

    Attributes:
        jobs: All jobs.
        processors: What waits for processors.
    """

    def __init__(self, world: World, cpus: int) -> None:
        self.jobs = Jobs()
        self.processors: Processors[Job] = Processors(
            cpus, lambda job: job.status is Status.RUNNABLE
        )
        self._world = world
        self._dependencies = Dependencies(self.jobs)
        self._executions: dict[Job, AnyExecution] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._closed = False

    def submit(self, submission: Submission) -> Job:
        """Take a job; it leaves SUBMITTED when the loop next turns, after the reply is made.

        Raises:
            ClientError: It depends on a job it cannot depend on.
        """
        job = Job(submission)
        news = self._dependencies.connect(job)
        self.jobs.add(job)
        self._after(Status.SUBMITTED, lambda: self._accept(job))
        for waiter, succeeded in news:
            self._loop.call_soon(self._resolve, waiter, succeeded)
        return job

    def cancel(self, job: Job, reason: str) -> None:
        """Cancel a job that has no container yet; do nothing, silently, to any other.

        A PENDING job fails only after its dependencies have ended. Of an array's parent all
        children are cancelled.
        """
        if job.status.final or job.status.started:
            return
        self._withdraw(job, "isCancelled", reason)
        for child in job.children:
            self.cancel(child, reason)

    def terminate(self, job: Job, reason: str) -> None:
        """Stop a job that has a container; cancel one that has none.

        Of a multi-node parallel job all nodes are stopped. A node is stopped alone; the job fails
        if it is the main node.
        """
        if job.status.final:
            return
        self._withdraw(job, "isTerminated", reason)
        if job in self._executions:
            self._executions[job].stop(Ending(job.withdrawn_reason or reason, final=True))
        for child in (*job.children, *job.nodes.values()):
            self.terminate(child, reason)

    def reclaim(self, job: Job) -> None:
        """Take away the host of a job under way, as a spot reclaim does.

        Of a multi-node parallel job it is the main node's.
        """
        if job not in self._executions:
            raise ClientError(f"Job {job.id} is not under way.")
        self._executions[job].lose_host()

    async def close(self) -> None:
        """Kill what runs, and start nothing any more."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _after(self, status: Status, step: Callable[[], None]) -> None:
        delay = self._world.durations.delays.get(status.value, 0)
        if delay:
            self._loop.call_later(delay, step)
        else:
            self._loop.call_soon(step)

    def _accept(self, job: Job) -> None:
        if job.status is not Status.SUBMITTED:
            return
        if job.waiting_for or job.children:
            job.enter(Status.PENDING)
        else:
            self._make_runnable(job)
        for child in job.children:
            self._accept(child)

    def _make_runnable(self, job: Job, *, again: bool = False) -> None:
        job.current = job.started_at = None
        job.enter(Status.RUNNABLE)
        self._after(Status.RUNNABLE, lambda: self._queue(job, again=again))

    def _queue(self, job: Job, *, again: bool) -> None:
        if job.status is Status.RUNNABLE:
            self.processors.add(job, job.submission.vcpus, front=again)
            self._dispatch()

    def _dispatch(self) -> None:
        while not self._closed and (job := self.processors.take()) is not None:
            # Before the loop turns: whoever ends the job by then is to find what there is to stop.
            execution = self._executions[job] = self._execution(job)
            job.current = execution.attempt
            job.enter(Status.STARTING)
            self._spawn(self._execute(job, execution))

    def _execution(self, job: Job) -> AnyExecution:
        if job.is_multi_node:
            return Gang(job, self._world, self._executions, self._spawn)
        return Execution(job, self._world)

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Make a task that is cancelled at the end."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _execute(self, job: Job, execution: AnyExecution) -> None:
        again = False
        try:
            await execution.run()
            again = self._conclude(job, execution)
            await execution.clear()
        finally:
            del self._executions[job]
            self.processors.give_back(job.submission.vcpus)
        if again:
            self._release(job, again=True)
        self._dispatch()

    def _conclude(self, job: Job, execution: AnyExecution) -> bool:
        """Note an attempt that has ended, and the job's end unless it is tried again.

        Returns:
            Whether it is tried again.
        """
        attempt = execution.attempt
        job.attempts += (attempt,)
        status_reason = attempt.status_reason or ""
        if execution.succeeded:
            self._finish(job, Status.SUCCEEDED, status_reason, attempt.stopped_at)
            return False
        again = not execution.final and job.submission.retry.wants_another(
            len(job.attempts),
            status_reason=status_reason,
            reason=attempt.reason or "",
            exit_code="" if attempt.exit_code is None else str(attempt.exit_code),
        )
        if not again:
            self._finish(job, Status.FAILED, status_reason, attempt.stopped_at)
        return again

    def _finish(
        self, job: Job, status: Status, reason: str | None, stopped_at: int | None = None
    ) -> None:
        job.status_reason = reason
        job.stopped_at = stopped_at or names.now_ms()
        job.enter(status)
        # Told later, because a chain of 10,000 failing dependencies is deeper than the stack.
        self._loop.call_soon(self._tell, job)

    def _tell(self, job: Job) -> None:
        for waiter, succeeded in self._dependencies.ended(job):
            self._resolve(waiter, succeeded)
        parent = job.parent
        if parent is None or parent.status.final:
            return
        failed = parent.counts[Status.FAILED]
        if failed + parent.counts[Status.SUCCEEDED] < len(parent.children):
            return
        if failed:
            reason = parent.withdrawn_reason or parent.status_reason or CHILD_FAILED
            self._finish(parent, Status.FAILED, reason)
        else:
            self._finish(parent, Status.SUCCEEDED, None)

    def _resolve(self, job: Job, succeeded: bool) -> None:
        """Note that one of the jobs a job waits for has ended."""
        if job.status.final:
            return
        if not succeeded and not job.children:
            self._finish(job, Status.FAILED, job.withdrawn_reason or DEPENDENCY_FAILED)
            return
        if not succeeded:
            job.status_reason = DEPENDENCY_FAILED
        job.waiting_for -= 1
        if job.children and (job.waiting_for == 0 or not succeeded):
            for child in job.children:
                self._resolve(child, succeeded)
        elif job.waiting_for == 0 and job.status is Status.PENDING:
            self._release(job)

    def _release(self, job: Job, *, again: bool = False) -> None:
        if job.withdrawn:
            self._finish(job, Status.FAILED, job.withdrawn_reason)
        else:
            self._make_runnable(job, again=again)

    def _withdraw(self, job: Job, flag: str, reason: str) -> None:
        """Accept the wish that a job should not run, and fulfil it where nothing holds it."""
        if job.withdrawn is None:
            job.withdrawn, job.withdrawn_reason = flag, reason
        held = job.status is Status.PENDING or job.status.started
        if not held and not job.children:
            self._finish(job, Status.FAILED, job.withdrawn_reason)
