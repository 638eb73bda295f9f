"""One attempt of a multi-node parallel job: its nodes start together, and end with the main node.

They have the processors of all of them before the first is started. Each is an `Execution` of its
own; another node that fails changes nothing for the rest.

Sources:
    https://docs.aws.amazon.com/batch/latest/userguide/multi-node-parallel-jobs.html
    https://docs.aws.amazon.com/batch/latest/userguide/job-lifecycle.html
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeAlias

from farcall_local.batch.jobs import Job, Node, Status
from farcall_local.runners.execution import TIMED_OUT, Ending, Execution, World

#: Why a node was stopped; AWS's words are not known.
MAIN_NODE_ENDED = "Main node of the multi-node parallel job exited"

#: What runs an attempt of any job.
AnyExecution: TypeAlias = "Execution | Gang"


class Gang:
    """Runs one attempt of a multi-node parallel job; used as `Execution` is.

    Args:
        job: The whole job.
        world: What the attempt meets.
        executions: What is under way. Each node is added, and removed when it has ended.
        spawn: Makes a task that is cancelled when the server closes.

    Attributes:
        attempt: The main node's, which is the whole job's as well.
    """

    def __init__(
        self,
        job: Job,
        world: World,
        executions: dict[Job, AnyExecution],
        spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
    ) -> None:
        self._job = job
        self._world = world
        self._executions = executions
        self._spawn = spawn
        self._others: list[tuple[Execution, asyncio.Task[None]]] = []
        self._timer: asyncio.TimerHandle | None = None
        assert job.submission.main_node is not None  # noqa: S101 - says so to the type checker
        self._main_node, self._main = self._launch(job.submission.main_node, self._main_runs)
        self.attempt = self._main.attempt

    @property
    def succeeded(self) -> bool:
        """Whether the main node ended well."""
        return self._main.succeeded

    @property
    def final(self) -> bool:
        """Whether a failure is not to be retried."""
        return self._main.final

    async def run(self) -> None:
        """Run the main node to its end, and tell the others to stop then."""
        try:
            await self._run(self._main_node, self._main)
        finally:
            if self._timer is not None:
                self._timer.cancel()
        for execution, _ in self._others:
            execution.stop(Ending(MAIN_NODE_ENDED, final=True))

    async def clear(self) -> None:
        """Wait until no node is left."""
        if self._others:
            await asyncio.wait([task for _, task in self._others])

    def stop(self, ending: Ending) -> None:
        """Stop all nodes, as `Execution.stop` does."""
        self._main.stop(ending)
        for execution, _ in self._others:
            execution.stop(ending)

    def lose_host(self) -> None:
        """Take the main node's host away."""
        self._main.lose_host()

    def _launch(
        self, index: int, on_running: Callable[[], None] | None = None
    ) -> tuple[Node, Execution]:
        node = self._job.nodes.get(index)
        if node is None:
            node = self._job.nodes[index] = Node(self._job, index)
        execution = self._executions[node] = Execution(node, self._world, on_running)
        node.current = execution.attempt
        node.started_at = node.stopped_at = None
        node.status_reason = node.withdrawn = node.withdrawn_reason = None
        node.enter(Status.STARTING)
        return node, execution

    async def _run(self, node: Node, execution: Execution) -> None:
        try:
            await execution.run()
        finally:
            del self._executions[node]
        node.attempts += (execution.attempt,)
        node.status_reason = execution.attempt.status_reason
        node.stopped_at = execution.attempt.stopped_at
        node.enter(Status.SUCCEEDED if execution.succeeded else Status.FAILED)

    def _main_runs(self) -> None:
        self._job.started_at = self._main_node.started_at
        self._job.enter(Status.RUNNING)
        if self._main.ending is not None:
            return  # it is to stop already
        limit = self._job.timeout_s
        if limit is not None:
            loop = asyncio.get_running_loop()
            limit *= self._world.durations.timeout_scale
            self._timer = loop.call_later(limit, self.stop, Ending(TIMED_OUT, final=True))
        for index in range(len(self._job.submission.containers)):
            if index != self._main_node.index:
                node, execution = self._launch(index)
                self._others.append((execution, self._spawn(self._run(node, execution))))
