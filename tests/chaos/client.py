"""One client of a chaos run, a process of its own; or one that recovers what another left.

It writes down each end it is told of the moment it has it, because it may be killed at any time.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE

from farcall import (
    BatchExecutor,
    ChildKilledError,
    JobCancelledError,
    JobError,
    NothingToRetryError,
)
from tests.chaos import plan as plans
from tests.chaos import work as tasks
from tests.chaos.work import EXIT_CODE, NOBODY, bulk, note, printed, value
from tests.support.leaks import PATIENCE_S, Held

_MORE = {"memory": 2}  # of what is run again
_PAUSE_S = 0.2


class Client:
    """What a client does and notes.

    Args:
        spec: Its part of the run, see `tests.chaos.run`.
    """

    def __init__(self, spec):
        self.spec = spec
        self.plan = plans.make(spec["seed"], spec["tasks"], spec["clients"])
        self.executor = BatchExecutor(**spec["options"])
        self.task = self.executor.task(tasks.work)
        self.put = {}

    def note(self, **line):
        note(self.spec["told"], client=self.spec["client"], by=self.spec["name"], **line)

    def end(self, work, outcome, job="", nth=0):
        """Note how a task ended, given its value or error and of which retry it is; return it."""
        end, text = classify(work, outcome)
        job = job or getattr(outcome, "job_id", "")
        self.note(task=work.number, end=end, text=text, job=job, nth=nth)
        return end

    async def run(self):
        """Carry out all orders of this client."""
        async with self.executor:
            sizes = {work.shared for work, _ in self.plan.works(self.spec["client"]).values()}
            for size in sizes - {0}:
                self.put[size] = await self.executor.put(bulk(NOBODY, size))
            orders = self.plan.clients[self.spec["client"]]
            await asyncio.gather(*(self._carry_out(order) for order in orders))

    async def _carry_out(self, order):
        await asyncio.sleep(order.start_s)
        if order.way in ("await", "submit"):
            ask = self._await if order.way == "await" else self._submit
            await asyncio.gather(*(ask(work, order) for work in order.works))
            return
        ended = set()
        waiting = asyncio.ensure_future(self._map(order, ended))
        try:
            await _cancel_after(waiting, order.cancel_s)
            left = {"cancelled": "with its map"} if waiting.cancelled() else {}
        except Exception as error:
            left = {"error": repr(error)}
        for work in order.works:
            if work.number not in ended:
                end = next(iter(left), "nothing")
                self.note(task=work.number, end=end, text=left.get(end, ""), job="")

    def _arguments(self, work):
        argument = value(work.number, work.argument)["bulk"]
        # Of half of them as it is, which is the same object in the bucket.
        shared = bulk(NOBODY, work.shared) if work.number % 2 else self.put.get(work.shared, b"")
        return work.as_argument(), self.spec["ledger"], argument, shared

    async def _await(self, work, order):
        waiting = asyncio.ensure_future(self.task(*self._arguments(work)))
        cancelled = work.kind == "forever"  # the others of the order are to go on
        try:
            await _cancel_after(waiting, order.cancel_s if cancelled else None)
            self.end(work, asyncio.CancelledError() if waiting.cancelled() else waiting.result())
        except Exception as error:
            self.end(work, error)

    async def _submit(self, work, order):
        try:
            job = await self.task.submit(*self._arguments(work))
            self.note(submitted=work.number, job=job.id)
            if work.kind == "forever":
                await asyncio.sleep(order.cancel_s)
                await job.cancel("chaos")
        except Exception as error:
            self.end(work, error)
            return
        end = await self._end(work, job)
        for nth in range(1, plans.RETRIES + 1):
            if not (order.retried and work.is_to_run_again(nth - 1, end)):
                return
            tasks.mend(self.spec["ledger"], work.number)
            try:
                job = await (self._by_command(job) if work.number % 2 else job.retry(**_MORE))
            except Exception as error:
                self.end(work, error, nth=nth)
                return
            end = await self._end(work, job, nth)

    async def _end(self, work, job, nth=0):
        """Wait for a job of a single task, note how it ended, and return that."""
        try:
            outcome = await job.result()
            if work.kind == "print" and await job.stdout() != printed(work.number):
                self.note(task=work.number, end="wrong output", text="", job=job.id, nth=nth)
        except Exception as error:
            outcome = error
        return self.end(work, outcome, job.id, nth)

    async def _by_command(self, job):
        """Retry a job as from a shell, and join the new one."""
        while not (await job.status()).is_final:
            await asyncio.sleep(_PAUSE_S)
        options = [f"--option={name}={value}" for name, value in _MORE.items()]
        command = [sys.executable, "-m", "farcall", "retry", job.id, *options, "--json"]
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
        said, complaints = await process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"farcall retry ended with {process.returncode}: {complaints!r}")
        (again,) = json.loads(said)
        self.note(attached=again["job_id"])
        return self.executor.attach(again["job_id"])

    async def _map(self, order, ended):
        columns = zip(*(self._arguments(work) for work in order.works), strict=True)
        is_strict = order.way == "complete"
        sweep = self.task.map(*columns, chunksize=order.chunksize, return_exceptions=not is_strict)
        ends = {}

        def end(index, outcome, job="", nth=0):
            work = order.works[index]
            ended.add(work.number)
            ends[index] = self.end(work, outcome, job, nth)

        if is_strict:
            await self._complete(order, sweep, end)
            return
        values = await self._once(order, sweep, end)
        if order.retried:
            await self._retry(order, sweep, values, ends, end)

    async def _once(self, order, sweep, end):
        """Wait for a map, and return what it gives to be completed, where it gives a list."""
        if order.way in ("map", "chunks"):
            values = await sweep
            for index, outcome in enumerate(values):
                end(index, outcome)
            return values
        if order.way == "each":
            async for index, outcome in sweep:
                end(index, outcome)
        else:
            async for result in sweep.results():
                self._check_output(order.works[result.index], result)
                end(result.index, result.error or result.value, result.job_id)
        return []

    async def _retry(self, order, sweep, values, ends, end):
        """Have run again what failed of a map; of one where nothing has nothing is to run."""
        for nth in range(1, plans.RETRIES + 1):
            owed = [i for i, w in enumerate(order.works) if w.is_to_run_again(nth - 1, ends[i])]
            if nth > 1 and not owed:
                return
            self._mend(order)
            try:
                sweep = sweep.retry(**_MORE)
                async for index, outcome in _again(order.way, sweep, values):
                    end(index, outcome, nth=nth)
            except NothingToRetryError:
                return
            except Exception as error:
                for index in owed or [0]:
                    end(index, error, nth=nth)
                return

    def _mend(self, order):
        """Have the calls of a map that "fix" give their values from now on."""
        for work in order.works:
            tasks.mend(self.spec["ledger"], work.number)

    async def _complete(self, order, sweep, end):
        """Have a map that ended at its first error run again until each call has its value."""
        ran = {}  # by which retry each call has run last
        for nth in range(plans.RETRIES + 1):
            try:
                values = await (sweep.complete() if nth else sweep)
            except Exception as error:
                is_failure = isinstance(error, JobError) if nth else hasattr(error, "map_failure")
                if not is_failure or nth == plans.RETRIES:
                    raise
            else:
                break
            finally:
                ran |= dict.fromkeys(sweep.indices if nth else (), nth)
            self._mend(order)
            sweep = sweep.retry(**_MORE)
        for index, outcome in enumerate(values):
            end(index, outcome, nth=ran.get(index, 0))

    def _check_output(self, work, result):
        if work.kind == "print" and not result.error and result.stdout != printed(work.number):
            self.note(task=work.number, end="wrong output", text="", job=result.job_id)

    async def recover(self):
        """Bring back what this client left when it was killed."""
        async with self.executor:
            for run in await self.executor.runs():
                found = await self.executor.recover(run.name)
                unsubmitted = [*found.unsubmitted, *found.forgotten]
                self.note(run=run.name, jobs=len(found.jobs), unsubmitted=unsubmitted)
                await asyncio.gather(*(self._bring_back(job) for job in found.jobs))
                await found.discard()

    async def _bring_back(self, job):
        """Tell of a task of another process, and end what only its owner would end."""
        known = self.plan.works(self.spec["client"])
        try:
            works = [known[args[0]["number"]][0] for args, _ in await job.calls()]
        except Exception as error:
            self.note(unknown=job.id, text=repr(error))
            return
        try:
            if any(work.kind == "forever" for work in works):
                await job.cancel("chaos")
            ends = [call.error or call.value for call in await job.results()]
        except Exception as error:
            ends = [error]
        ends += ends[-1:] * (len(works) - len(ends))  # what kept these from being begun
        for work, outcome in zip(works, ends, strict=True):
            self.end(work, outcome, job.id)


async def _again(way, retried, values):
    """Yield what comes of the calls of a map that run again, by its way."""
    if way == "each":
        async for index, outcome in retried:
            yield index, outcome
    else:
        outcomes = await retried
        completed = [] if way == "results" else await retried.complete(values)
        for index, outcome in zip(retried.indices, outcomes, strict=True):
            # An exception replaces no earlier value in the completed list.
            is_from_list = completed and not isinstance(outcome, BaseException)
            yield index, completed[index] if is_from_list else outcome


async def _cancel_after(waiting, seconds):
    """Wait for something to end, and cancel it after some seconds."""
    done, _ = await asyncio.wait([waiting], timeout=seconds)
    if not done:
        waiting.cancel()
        await asyncio.wait([waiting])
    if not waiting.cancelled():
        waiting.result()


def classify(work, outcome):
    """Return the name of an end, and what else is to be known of it."""
    if isinstance(outcome, asyncio.CancelledError):
        return "cancelled", "while it was awaited"
    if isinstance(outcome, JobCancelledError):
        return "cancelled", outcome.reason
    if isinstance(outcome, ChildKilledError):
        code = {EXIT_CODE: "exit", 128 + signal.SIGSEGV: "segfault"}.get(outcome.exit_code)
        return code or "killed", str(outcome)
    if type(outcome) is ValueError and outcome.args == (f"task {work.number} raises",):
        return "raised", ""
    if isinstance(outcome, BaseException):
        return type(outcome).__name__, str(outcome)
    if outcome != value(work.number, work.size):
        return "wrong value", repr(outcome)[:200]
    return "value", ""


async def _guarded(job):
    """Run a client, and return the asyncio tasks it has left behind."""
    await job
    others = asyncio.all_tasks() - {asyncio.current_task()}
    return [repr(task) for task in others]


def main(spec):
    client = Client(spec)
    client.note(started=os.getpid())
    # A first look opens what stays for good: obstore's runtime and its threads.
    asyncio.run(_guarded(_open_and_close(client.executor)))
    before = Held.now()
    tasks = asyncio.run(_guarded(client.recover() if spec["recovers"] else client.run()))
    deadline = time.monotonic() + PATIENCE_S
    while before.new() and time.monotonic() < deadline:
        time.sleep(0.1)  # connections that S3's client lets go of in threads of its own
    client.note(over=True, leaked=[*tasks, *before.new()])


async def _open_and_close(executor):
    async with executor:
        pass


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
