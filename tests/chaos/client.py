"""A client process of a chaos run, or a process that recovers the run of a killed client.

It writes each result to a file immediately, because it may be killed at any time.
"""

import asyncio
import json
import os
import signal
import sys
import time

from farcall import BatchExecutor, ChildKilledError, JobCancelledError
from tests.chaos import plan as plans
from tests.chaos import work as tasks
from tests.chaos.work import EXIT_CODE, SHARED, bulk, note, printed, value
from tests.support.leaks import PATIENCE_S, Held


class Client:
    """Carries out the orders of one client.

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

    def end(self, work, outcome, job=""):
        """Note how a task ended, given its result or error."""
        end, text = classify(work, outcome)
        job = job or getattr(outcome, "job_id", "")
        self.note(task=work.number, end=end, text=text, job=job)

    async def run(self):
        """Carry out all orders of this client."""
        async with self.executor:
            sizes = {work.shared for work, _ in self.plan.works(self.spec["client"]).values()}
            for size in sizes - {0}:
                self.put[size] = await self.executor.put(bulk(SHARED, size))
            orders = self.plan.clients[self.spec["client"]]
            await asyncio.gather(*(self._carry_out(order) for order in orders))

    async def _carry_out(self, order):
        await asyncio.sleep(order.start_s)
        if order.way in ("await", "submit"):
            call = self._await if order.way == "await" else self._submit
            await asyncio.gather(*(call(work, order) for work in order.works))
            return
        ended = set()
        waiting = asyncio.ensure_future(self._map(order, ended))
        try:
            await _cancel_after(waiting, order.cancel_s)
            end, text = ("cancelled", "with its map") if waiting.cancelled() else ("nothing", "")
        except Exception as error:
            end, text = "error", repr(error)
        for work in order.works:
            if work.number not in ended:
                self.note(task=work.number, end=end, text=text, job="")

    def _arguments(self, work):
        argument = value(work.number, work.argument)["bulk"]
        # Half of the calls get the bytes, which become the same object in the bucket.
        shared = bulk(SHARED, work.shared) if work.number % 2 else self.put.get(work.shared, b"")
        return work.as_argument(), self.spec["ledger"], argument, shared

    async def _await(self, work, order):
        waiting = asyncio.ensure_future(self.task(*self._arguments(work)))
        is_cancelled = work.kind == "forever"  # the others of the order continue
        try:
            await _cancel_after(waiting, order.cancel_s if is_cancelled else None)
            self.end(work, asyncio.CancelledError() if waiting.cancelled() else waiting.result())
        except Exception as error:
            self.end(work, error)

    async def _submit(self, work, order):
        job_id = ""
        try:
            job = await self.task.submit(*self._arguments(work))
            job_id = job.id
            self.note(submitted=work.number, job=job_id)
            if work.kind == "forever":
                await asyncio.sleep(order.cancel_s)
                await job.cancel("chaos")
            outcome = await job.result()
            if work.kind == "print" and await job.stdout() != printed(work.number):
                self.note(task=work.number, end="wrong output", text="", job=job_id)
        except Exception as error:
            outcome = error
        self.end(work, outcome, job_id)

    async def _map(self, order, ended):
        columns = zip(*(self._arguments(work) for work in order.works), strict=True)
        sweep = self.task.map(*columns, chunksize=order.chunksize, return_exceptions=True)
        if order.way != "results":
            for work, outcome in zip(order.works, await sweep, strict=True):
                ended.add(work.number)
                self.end(work, outcome)
            return
        async for result in sweep.results():
            work = order.works[result.index]
            ended.add(work.number)
            if work.kind == "print" and not result.error and result.stdout != printed(work.number):
                self.note(task=work.number, end="wrong output", text="", job=result.job_id)
            self.end(work, result.error or result.value, result.job_id)

    async def recover(self):
        """Recover the tasks that this client left when it was killed."""
        async with self.executor:
            for run in await self.executor.runs():
                found = await self.executor.recover(run.name)
                unsubmitted = [*found.unsubmitted, *found.forgotten]
                self.note(run=run.name, jobs=len(found.jobs), unsubmitted=unsubmitted)
                await asyncio.gather(*(self._collect(job) for job in found.jobs))
                await found.discard()

    async def _collect(self, job):
        """Note the ends of another process's task; cancel the calls that last forever."""
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
        ends += ends[-1:] * (len(works) - len(ends))  # the error that kept the rest from beginning
        for work, outcome in zip(works, ends, strict=True):
            self.end(work, outcome, job.id)


async def _cancel_after(waiting, seconds):
    """Wait for a task of the event loop, and cancel it after some seconds."""
    done, _ = await asyncio.wait([waiting], timeout=seconds)
    if not done:
        waiting.cancel()
        await asyncio.wait([waiting])
    if not waiting.cancelled():
        waiting.result()


def classify(work, outcome):
    """Return the name of an end, and details."""
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
    """Run a client, and return the asyncio tasks that it leaves behind."""
    await job
    others = asyncio.all_tasks() - {asyncio.current_task()}
    return [repr(task) for task in others]


def main(spec):
    client = Client(spec)
    client.note(started=os.getpid())
    # The first use starts long-lived objects: obstore's runtime and its threads.
    asyncio.run(_guarded(_open_and_close(client.executor)))
    before = Held.now()
    left = asyncio.run(_guarded(client.recover() if spec["recovers"] else client.run()))
    deadline = time.monotonic() + PATIENCE_S
    while before.new() and time.monotonic() < deadline:
        time.sleep(0.1)  # obstore closes its connections in its own threads
    client.note(over=True, leaked=[*left, *before.new()])


async def _open_and_close(executor):
    async with executor:
        pass


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
