"""State machine of jobs, from SUBMITTED to their end.

Everything runs on one event loop, so there are no locks, and no reader sees a partial change.

Sources:
    https://docs.aws.amazon.com/batch/latest/userguide/job_states.html
    https://docs.aws.amazon.com/batch/latest/APIReference/API_CancelJob.html
    https://docs.aws.amazon.com/batch/latest/APIReference/API_TerminateJob.html
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Generic, TypeAlias, TypeVar

from farcall.model.jobs import JobStatus
from farcall_local import names
from farcall_local.batch.errors import ClientError
from farcall_local.batch.jobs import STARTED, Job, Jobs, Node, Submission
from farcall_local.runners.execution import TIMED_OUT, AttemptEnd, Execution, World

# --- One attempt of a multi-node parallel job: its nodes start together, and end with the main
# node
#
# All nodes' processors are allocated before the first node starts. Each node is an `Execution`; a
# failure of a node other than the main node does not affect the others.
#
# Sources:
#     https://docs.aws.amazon.com/batch/latest/userguide/multi-node-parallel-jobs.html
#     https://docs.aws.amazon.com/batch/latest/userguide/job-lifecycle.html


#: Reason of a stopped node; AWS's own text is not known.
MAIN_NODE_ENDED = "Main node of the multi-node parallel job exited"

#: Execution of an attempt of any job.
AnyExecution: TypeAlias = "Execution | MultiNodeExecution"


class MultiNodeExecution:
    """One attempt of a multi-node parallel job, with the interface of `Execution`.

    Args:
        job: The whole job.
        engine: Creates and knows the executions of the nodes.

    Attributes:
        attempt: The main node's attempt, which is also the whole job's.
    """

    def __init__(self, job: Job, engine: Engine) -> None:
        self._job = job
        self._engine = engine
        self._others: list[tuple[Execution, asyncio.Task[None]]] = []
        self._timer: asyncio.TimerHandle | None = None
        assert job.submission.main_node is not None  # noqa: S101 - says so to the type checker
        self._main_node, self._main = self._launch(job.submission.main_node, self._main_runs)
        self.attempt = self._main.attempt

    @property
    def succeeded(self) -> bool:
        """Whether the main node succeeded."""
        return self._main.succeeded

    @property
    def final(self) -> bool:
        """Whether a failure is not retried."""
        return self._main.final

    async def run(self) -> None:
        """Run the main node to its end, and then stop the other nodes."""
        try:
            await self._run(self._main_node, self._main)
        finally:
            if self._timer is not None:
                self._timer.cancel()
        for execution, _ in self._others:
            execution.stop(AttemptEnd(MAIN_NODE_ENDED, final=True))

    async def clear(self) -> None:
        """Wait until all nodes have exited."""
        if self._others:
            await asyncio.wait([task for _, task in self._others])

    def stop(self, ending: AttemptEnd) -> None:
        """Stop all nodes, as `Execution.stop` does."""
        self._main.stop(ending)
        for execution, _ in self._others:
            execution.stop(ending)

    def lose_host(self) -> None:
        """Remove the main node's host."""
        self._main.lose_host()

    def _launch(
        self, index: int, on_running: Callable[[], None] | None = None
    ) -> tuple[Node, Execution]:
        node = self._job.nodes.get(index)
        if node is None:
            node = self._job.nodes[index] = Node(self._job, index)
        execution = self._engine.executions[node] = self._engine.execute(node, on_running)
        node.current = execution.attempt
        node.started_at = node.stopped_at = None
        node.status_reason = node.termination_reason = None
        node.enter(JobStatus.STARTING)
        return node, execution

    async def _run(self, node: Node, execution: Execution) -> None:
        try:
            await execution.run()
        finally:
            del self._engine.executions[node]
        node.attempts += (execution.attempt,)
        node.status_reason = execution.attempt.status_reason
        node.stopped_at = execution.attempt.stopped_at
        node.enter(JobStatus.SUCCEEDED if execution.succeeded else JobStatus.FAILED)

    def _main_runs(self) -> None:
        self._job.started_at = self._main_node.started_at
        self._job.enter(JobStatus.RUNNING)
        if self._main.ending is not None:
            return  # it is already stopping
        limit = self._job.timeout_s
        if limit is not None:
            loop = asyncio.get_running_loop()
            limit *= self._engine.world.durations.timeout_scale
            self._timer = loop.call_later(limit, self.stop, AttemptEnd(TIMED_OUT, final=True))
        for index in range(len(self._job.submission.containers)):
            if index != self._main_node.index:
                node, execution = self._launch(index)
                self._others.append((execution, self._engine.spawn(self._run(node, execution))))


# --- Which waiting job gets processors next -----------------------------------------------------


T = TypeVar("T")


class Processors(Generic[T]):
    """Allocation of processors over all queues, first come, first served.

    Only the job at the head may start. It starts as soon as the processors that it needs are free,
    and no job overtakes it. So no job starves: while a job is at the head, processors are returned
    and none are allocated, so it starts at the latest when every job that runs at that moment has
    finished; and each job has a finite number of jobs ahead of it, to which only retries are
    added, at most nine for each job that was ahead. The price is that a wide job at the head
    leaves processors idle while it waits.

    A need above the number of processors counts as all processors, so no other job runs then.

    Args:
        count: Number of processors.
        waits: Returns whether an item still needs processors; a cancelled item is dropped when it
            reaches the head.
    """

    def __init__(self, count: int, waits: Callable[[T], bool]) -> None:
        self._count = float(count)
        self._free = float(count)
        self._waits = waits
        self._queue: deque[tuple[float, T]] = deque()

    def __iter__(self) -> Iterator[T]:
        """Iterate over the waiting items, head first."""
        return (item for _, item in self._queue if self._waits(item))

    def add(self, item: T, need: float, *, front: bool = False) -> None:
        """Queue an item, at the front if it is a retry."""
        entry = (min(need, self._count), item)
        if front:
            self._queue.appendleft(entry)
        else:
            self._queue.append(entry)

    def take(self) -> T | None:
        """Allocate the head's processors and return it, or None if it must wait."""
        while self._queue:
            need, item = self._queue[0]
            if not self._waits(item):
                self._queue.popleft()
                continue
            if need > self._free:
                return None
            self._queue.popleft()
            self._free -= need
            return item
        return None

    def give_back(self, need: float) -> None:
        """Free the processors of a finished item."""
        self._free += min(need, self._count)


CHILD_FAILED = "Array Child Job failed"


class Engine:
    """Job runner on a fixed number of processors.

    Attributes:
        jobs: All jobs.
        processors: The items that wait for processors.
        world: Environment of all attempts.
        executions: Running executions of jobs and nodes.
    """

    def __init__(self, world: World, cpus: int) -> None:
        self.jobs = Jobs()
        self.processors: Processors[Job] = Processors(
            cpus, lambda job: job.status is JobStatus.RUNNABLE
        )
        self.world = world
        self.executions: dict[Job, AnyExecution] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._closed = False

    def submit(self, submission: Submission) -> Job:
        """Accept a job; it leaves SUBMITTED in the next loop iteration."""
        job = Job(submission)
        self.jobs.add(job)
        self._after(JobStatus.SUBMITTED, lambda: self._accept(job))
        return job

    def terminate(self, job: Job, reason: str) -> None:
        """Stop a job that has a container; fail a job that has none.

        For a multi-node parallel job, all nodes are stopped. For a node, only the node is stopped;
        the job fails if it is the main node.
        """
        if job.status.is_final:
            return
        if job.termination_reason is None:
            job.termination_reason = reason
        if job.status not in STARTED and not job.children:
            self._finish(job, JobStatus.FAILED, job.termination_reason)
        if job in self.executions:
            self.executions[job].stop(AttemptEnd(job.termination_reason, final=True))
        for child in (*job.children, *job.nodes.values()):
            self.terminate(child, reason)

    def cancel(self, job: Job, reason: str) -> None:
        """Fail a job that has no container yet; a started job continues."""
        for child in job.children:
            self.cancel(child, reason)
        if not job.children and not job.status.is_final and job.status not in STARTED:
            self._finish(job, JobStatus.FAILED, reason)

    def reclaim(self, job: Job) -> None:
        """Remove a running job's host, as a spot reclaim does.

        For a multi-node parallel job, this is the main node's host.
        """
        if job not in self.executions:
            raise ClientError(f"Job {job.id} is not under way.")
        self.executions[job].lose_host()

    async def finish(self) -> None:
        """Wait until no attempt is running."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.sleep(0)  # the parents of array tasks finish one iteration later

    async def close(self) -> None:
        """Kill all attempts, and start no more."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _after(self, status: JobStatus, step: Callable[[], None]) -> None:
        delay = self.world.durations.delays.get(status.value, 0)
        if delay:
            self._loop.call_later(delay, step)
        else:
            self._loop.call_soon(step)

    def _accept(self, job: Job) -> None:
        if job.status is not JobStatus.SUBMITTED:
            return
        if job.children:
            job.enter(JobStatus.PENDING)
        else:
            self._make_runnable(job)
        for child in job.children:
            self._accept(child)

    def _make_runnable(self, job: Job, *, again: bool = False) -> None:
        job.current = job.started_at = None
        job.enter(JobStatus.RUNNABLE)
        self._after(JobStatus.RUNNABLE, lambda: self.enqueue(job, again=again))

    def enqueue(self, job: Job, *, again: bool) -> None:
        """Queue a RUNNABLE job for processors, in front of all others if it is a retry."""
        if job.status is JobStatus.RUNNABLE:
            self.processors.add(job, job.submission.vcpus, front=again)
            self._dispatch()

    def _dispatch(self) -> None:
        while not self._closed and (job := self.processors.take()) is not None:
            # Set before the next loop iteration, so that a cancel finds the execution to stop.
            execution = self.executions[job] = self._execution(job)
            job.current = execution.attempt
            job.enter(JobStatus.STARTING)
            self.spawn(self._execute(job, execution))

    def _execution(self, job: Job) -> AnyExecution:
        if job.is_multi_node:
            return MultiNodeExecution(job, self)
        return self.execute(job)

    def execute(self, job: Job, on_running: Callable[[], None] | None = None) -> Execution:
        """Create the execution for one attempt of a job with a container, or of a node."""
        return Execution(job, self.world, on_running)

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Create a task that is cancelled when the engine closes."""
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
            del self.executions[job]
            self.processors.give_back(job.submission.vcpus)
        if again:
            self._release(job, again=True)
        self._dispatch()

    def _conclude(self, job: Job, execution: AnyExecution) -> bool:
        """Record a finished attempt, and the job's end unless it is retried.

        Returns:
            Whether the job is retried.
        """
        attempt = execution.attempt
        job.attempts += (attempt,)
        status_reason = attempt.status_reason or ""
        if execution.succeeded:
            self._finish(job, JobStatus.SUCCEEDED, status_reason, attempt.stopped_at)
            return False
        again = not execution.final and job.submission.retry.wants_another(
            len(job.attempts),
            status_reason=status_reason,
            reason=attempt.reason or "",
            exit_code="" if attempt.exit_code is None else str(attempt.exit_code),
        )
        if not again:
            self._finish(job, JobStatus.FAILED, status_reason, attempt.stopped_at)
        return again

    def _finish(
        self, job: Job, status: JobStatus, reason: str | None, stopped_at: int | None = None
    ) -> None:
        job.status_reason = reason
        job.stopped_at = stopped_at or names.now_ms()
        job.enter(status)
        # The parent of an array task finishes one iteration later.
        self._loop.call_soon(self._finish_parent, job)

    def _finish_parent(self, job: Job) -> None:
        parent = job.parent
        if parent is None or parent.status.is_final:
            return
        failed = parent.counts[JobStatus.FAILED]
        if failed + parent.counts[JobStatus.SUCCEEDED] < len(parent.children):
            return
        if failed:
            reason = parent.termination_reason or parent.status_reason or CHILD_FAILED
            self._finish(parent, JobStatus.FAILED, reason)
        else:
            self._finish(parent, JobStatus.SUCCEEDED, None)

    def _release(self, job: Job, *, again: bool = False) -> None:
        if job.termination_reason is not None:
            self._finish(job, JobStatus.FAILED, job.termination_reason)
        else:
            self._make_runnable(job, again=again)
