"""Sweeps on a scripted session: order of results, and cancellation of the other jobs."""

import asyncio
import contextlib
import itertools
import threading
from itertools import islice
from types import SimpleNamespace

import pytest

from farcall import BatchExecutor
from farcall.client import call_reader
from farcall.client import sweep as module
from farcall.client.progress import Counts
from farcall.engine.delivered import Delivered
from farcall.engine.group import Services, TaskGroup
from farcall.engine.second_chances import SecondChances
from farcall.engine.tracked_job import Ended, Trouble, UnseenError
from farcall.model.errors import (
    FarcallError,
    ServiceError,
    SubmissionError,
    TaskNotPicklableError,
)
from farcall.model.submission import Submission
from farcall.model.timing import Timing
from farcall.payload.results import Result
from farcall.storage.store import Arrived
from farcall_runtime.contract import Location
from tests.support.notes import notes
from tests.support.patience import PATIENCE_S
from tests.unit.fakes import unpickled


class Opened:
    """Session whose jobs run in this process when they are awaited, or when `end` is called.

    Attributes:
        most: Maximum tasks in one array job.
        holding: Whether tasks wait for `end`.
        may_go: Event that lets uploads continue.
        failures: Error raised by SubmitJob, by submission number.
        undelivered: Errors raised by fetching, in order.
        watched: Callback of each watched job.
        facts: Facts of each bundle.
        discarded: Task indexes whose objects were discarded.
        ended: Recorded cancellations.
    """

    run = "mary-1"

    def __init__(self):
        self.most, self.holding = 10_000, False
        self.failures, self.undelivered = {}, []
        self.may_go = asyncio.Event()
        self.may_go.set()
        self.watched, self.discarded, self.ended, self.facts = {}, [], [], []
        self._tasks = {}
        self.timing = Timing(fetch_again_s=0.01)
        self.tracker = SimpleNamespace(
            watch=self._watch, unwatch=self._unwatch, latest=lambda _: None, trouble=Trouble()
        )
        self.terminations = SimpleNamespace(leave=self._leave, end=self._end)
        self.threads = SimpleNamespace(run=self._in_thread)
        self.chances = SecondChances(self)
        store = SimpleNamespace(
            delete_delivered=self._discard,
            delete_at_close=lambda _: None,
            end_bundle=lambda *_, **__: None,
        )
        self.services = Services(
            SimpleNamespace(of=lambda _: store),
            self.tracker,
            self,
            SimpleNamespace(finish=self._finish, leave=lambda *_: None),
            self.terminations,
            lambda: None,
        )

    async def submitter(self, settings):
        return self

    async def _in_thread(self, function, *args):
        return function(*args)

    def at_work(self):
        return contextlib.nullcontext()

    async def submit_together(self, settings, name, tasks, *, planned, facts, on_sent):
        await asyncio.sleep(0)
        if facts is not None:
            self.facts.append(facts)
        number = len(self._tasks)
        if number in self.failures:
            raise self.failures[number]
        taken = [(unpickled(f), unpickled(a)) for f, a in islice(tasks, self.most)]
        if on_sent is not None:
            on_sent(1000)
        await self.may_go.wait()
        job_id = f"job-{number}"
        self._tasks[job_id] = taken
        where = Location("bucket", "farcall/v1/run", job_id)
        await planned(where)
        submission = Submission(job_id, name, where, b"key", len(taken))
        return TaskGroup(self.services, submission, settings, is_own=True)

    def _watch(self, submission, indexes, settings, tell, is_full):
        self.watched[submission.job_id] = tell
        if not self.holding:
            for index in indexes:
                self.end(submission.job_id, index)

    def end(self, job_id, index, arrival=None):
        tell = self.watched[job_id]
        asyncio.get_running_loop().call_soon(tell, index, arrival or Arrived(job_id, index, 10))

    def _unwatch(self, job_id, tell):
        if job_id in self.watched:  # a finished job is not watched any more
            assert self.watched.pop(job_id) == tell

    async def deliver(self, submission, index, arrival, wanted, room):
        await asyncio.sleep(0)
        if self.undelivered:
            raise self.undelivered.pop(0)
        if isinstance(arrival, Ended):
            return Delivered([Result(error=arrival.error)] * wanted.calls)
        function, arguments = self._tasks[submission.job_id][index]
        results = [self._call(function, *each) for each in arguments]
        assert len(results) == wanted.calls
        return Delivered(results, deletable=[f"{submission.job_id}:{index}"])

    def _call(self, function, args, kwargs):
        try:
            return Result(function(*args, **kwargs))
        except ValueError as error:
            return Result(error=error)

    async def _finish(self, submission, index, delivered): ...

    def _discard(self, submission, index, deletable):
        self.discarded += deletable

    async def _leave(self, job_ids, tasks, reason):
        self.ended.append((job_ids, tasks, reason))

    async def _end(self, job_ids, reason):
        self.ended.append((job_ids, reason))
        return {}


@pytest.fixture
def opened(monkeypatch):
    made = Opened()

    async def find(settings):
        return made

    monkeypatch.setattr(module, "session_for", find)
    return made


def double(x):
    if x < 0:
        raise ValueError(f"{x} is negative")
    return 2 * x


@pytest.fixture
def task():
    return BatchExecutor().task(double)


async def holding(sweep, jobs):
    """Start to wait for a sweep, and return when a number of jobs is watched."""
    waiting = asyncio.ensure_future(sweep)
    while len(sweep.job_ids) < jobs:
        await asyncio.sleep(0)
    return waiting


# --- results ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("most", "chunksize"), [(10_000, 1), (3, 1), (10_000, 4), (2, 3), (1, 7)])
async def test_results_keep_argument_order(opened, task, most, chunksize):
    opened.most = most
    sweep = task.map(range(7), chunksize=chunksize)
    assert len(sweep) == 7
    assert await sweep == [0, 2, 4, 6, 8, 10, 12]
    tasks = -(-7 // chunksize)
    assert sweep.job_ids == [f"job-{number}" for number in range(-(-tasks // most))]
    assert len(opened.discarded) == tasks
    assert opened.ended == []


async def test_empty_map_opens_no_session(task, monkeypatch):
    monkeypatch.setattr(module, "session_for", None)
    assert await task.map([]) == []
    assert [each async for each in task.map([]).results()] == []


async def test_loop_discards_previous_result(opened, task):
    """A result is deleted when the loop requests the next one."""
    gone = []
    async for index, value in task.map(range(3)):
        assert value == 2 * index
        gone.append(len(opened.discarded))
    assert gone == [0, 1, 2]
    assert len(opened.discarded) == 3


async def test_return_exceptions_yields_errors(opened, task):
    values = await task.map([1, -1, 2], return_exceptions=True)
    assert [str(value) for value in values] == ["2", "-1 is negative", "4"]
    assert opened.ended == []


async def test_results_have_index_job_and_error(opened, task):
    found = [each async for each in task.map([1, -1], chunksize=2).results()]
    assert [(each.index, each.job_id, each.value, str(each.error)) for each in found] == [
        (0, "job-0", 2, "None"),
        (1, "job-0", None, "-1 is negative"),
    ]


async def test_concurrent_await_is_rejected(opened, task):
    """A finished sweep may be awaited again."""
    opened.holding = True
    sweep = task.map([1])
    waiting = await holding(sweep, 1)
    with pytest.raises(FarcallError, match="is already being awaited. Call map again"):
        await sweep
    opened.end("job-0", 0)
    assert await waiting == [2]
    opened.holding = False
    assert await sweep == [2]
    assert sweep.job_ids == ["job-1"]


# --- calls of any iterable --------------------------------------------------------------------


async def numbers(count):
    for number in range(count):
        await asyncio.sleep(0)
        yield number


def add(x, y=0, *, more=0):
    return x + y + more


@pytest.mark.parametrize("chunksize", [1, 3])
@pytest.mark.parametrize("kind", ["generator", "async", "starmap", "starmap async"])
async def test_unsized_iterables_yield_all_results(opened, kind, chunksize):
    opened.most = 400
    task = BatchExecutor(linger_s=0).task(add)
    sweep = {
        "generator": lambda: task.map((n for n in range(2500)), range(2500), chunksize=chunksize),
        "async": lambda: task.map(numbers(2500), range(2500), chunksize=chunksize),
        "starmap": lambda: task.starmap(((n, n) for n in range(2500)), chunksize=chunksize),
        "starmap async": lambda: task.starmap(
            ((n, n) async for n in numbers(2500)), chunksize=chunksize
        ),
    }[kind]()
    with pytest.raises(TypeError, match=r"no len\(\): at least one of its iterables"):
        len(sweep)
    assert await sweep == [2 * n for n in range(2500)]
    assert opened.ended == []


async def test_endless_map_is_submitted_in_step(opened, monkeypatch):
    """Submission pauses while too many results are not collected."""
    monkeypatch.setattr(module, "_MOST_UNCOLLECTED", 50)
    monkeypatch.setattr(call_reader, "_AT_FIRST", 10)
    monkeypatch.setattr(call_reader, "_MOST_AHEAD", 10)
    read = []

    def count():
        for number in itertools.count():
            read.append(number)
            yield number

    taken = 0
    async with contextlib.aclosing(aiter(BatchExecutor().task(double).map(count()))) as pairs:
        async for index, value in pairs:
            assert value == 2 * index
            taken += 1
            # Uncollected results, one array job, the next one, and the calls read ahead.
            assert len(read) <= taken + 50 + 3 * 10
            if taken == 300:
                break
    assert len(opened.watched) <= len(opened._tasks)


async def test_upload_progress_is_counted(opened, task):
    opened.most = 3
    opened.may_go.clear()
    sweep = task.map(range(5), chunksize=1, progress=True)
    waiting = asyncio.ensure_future(sweep)
    while sweep._state is None or not sweep._state.sent_bytes:
        await asyncio.sleep(0)
    counted = sweep._state.count(lambda _: None)
    assert counted == Counts(total=5, packed=3, sent_bytes=1000)
    opened.may_go.set()
    await waiting
    assert sweep._state.count(lambda _: None) == Counts(done=5, total=5, sent_bytes=2000)


async def test_fixed_keywords_are_sent_with_function(opened):
    fixed = {"y": 10, "more": 5}
    sweep = BatchExecutor().task(add).map([1, 2], **fixed)
    assert await sweep == [16, 17]
    (taken,) = opened._tasks.values()
    assert [arguments for _, arguments in taken] == [[((1,), {})], [((2,), {})]]
    assert opened.facts == [{"fixed": ["y", "more"]}]


@pytest.mark.parametrize("kind", ["generator", "async"])
async def test_iterable_error_cancels_jobs(opened, kind):
    opened.holding = True
    error, go = LookupError("of the iterable"), threading.Event()

    def generate():
        yield 1
        go.wait(PATIENCE_S)
        raise error

    async def generate_async():
        yield 1
        while not go.is_set():
            await asyncio.sleep(0)
        raise error

    source = generate() if kind == "generator" else generate_async()
    waiting = await holding(BatchExecutor(linger_s=0).task(double).map(source), 1)
    go.set()
    with pytest.raises(LookupError) as raised:
        await waiting
    assert raised.value is error
    assert opened.ended == [(["job-0"], 1, "interrupted by LookupError")]


async def test_iterator_is_read_once(opened, task):
    sweep = task.map(iter([1, 2]))
    assert await sweep == [2, 4]
    with pytest.raises(FarcallError, match="came from an iterator, which can be read only once"):
        await sweep


# --- other jobs -------------------------------------------------------------------------------


async def test_first_error_cancels_unfinished_calls(opened, task):
    opened.holding = True
    waiting = await holding(task.map([1, -1, 2]), 1)
    opened.end("job-0", 1)
    with pytest.raises(ValueError, match="-1 is negative"):
        await waiting
    summary = "1 of 3 raised ValueError; 2 were cancelled because of it"
    assert opened.ended == [(["job-0"], 2, f"map failed: {summary}")]
    assert opened.watched == {}
    assert opened.discarded == []


async def failure_of(waiting):
    with pytest.raises(ValueError, match="is negative") as raised:
        await waiting
    return raised.value, raised.value.map_failure


async def test_map_that_cannot_start_is_stopped(opened, task):
    refused = FarcallError("the image cannot read the function")
    opened.holding = True
    waiting = await holding(task.map(range(100), return_exceptions=True), 1)
    opened.deliver = unreadable(refused)
    for index in range(5):
        opened.end("job-0", index)
    with pytest.raises(FarcallError, match="cannot read") as caught:
        await waiting
    assert caught.value.map_failure.cancelled == 95
    assert [["job-0"]] == [job_ids for job_ids, *_ in opened.ended]


def unreadable(error):
    async def deliver(submission, index, arrival, wanted, room):
        return Delivered([Result(error=error, has_begun=False)] * wanted.calls)

    return deliver


async def test_error_reports_progress_and_recovery(opened, task):
    opened.holding = True
    waiting = await holding(task.map([1, -1, 2, -3]), 1)
    for index in (0, 1):
        opened.end("job-0", index)
    error, failure = await failure_of(waiting)
    assert (failure.total, failure.failed, failure.cancelled, failure.kept) == (4, 1, 2, 1)
    assert (failure.errors, failure.job_ids) == ((("ValueError", 1),), ("job-0",))
    assert (failure.run, failure.unsubmitted) == ("mary-1", 0)
    assert failure.message in str(notes(error))
    assert "await executor.recover('mary-1')" in str(notes(error))
    assert opened.discarded == []


async def test_yielded_results_are_not_kept(opened, task):
    opened.holding = True
    sweep, found = task.map([1, -1, 2]), []

    async def loop():
        async for pair in sweep:
            found.append(pair)
            opened.end("job-0", 1)

    waiting = asyncio.ensure_future(loop())
    while not sweep.job_ids:
        await asyncio.sleep(0)
    opened.end("job-0", 0)
    _, failure = await failure_of(waiting)
    assert found == [(0, 2)]
    assert (failure.failed, failure.cancelled, failure.kept) == (1, 1, 0)


async def test_cancelled_wait_cancels_jobs(opened, task):
    opened.holding, opened.most = True, 2
    waiting = await holding(task.map(range(3)), 2)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert opened.ended == [(["job-0", "job-1"], 3, "interrupted by Ctrl-C or a cancellation")]


async def test_left_loop_cancels_jobs_keeps_result(opened, task):
    """The result that the loop was at is not deleted."""
    opened.holding = True
    sweep = task.map(range(3))
    async with contextlib.aclosing(aiter(sweep)) as pairs:
        first = asyncio.ensure_future(anext(pairs))
        while not sweep.job_ids:
            await asyncio.sleep(0)
        opened.end("job-0", 2)
        assert await first == (2, 4)
    assert opened.ended == [(["job-0"], "no caller waits for it anymore")]
    assert opened.discarded == []


async def test_unseen_jobs_continue(opened, task, caplog):
    opened.holding = True
    waiting = await holding(task.map(range(2)), 1)
    opened.end("job-0", 1, Ended(None, UnseenError("it goes on")))
    with pytest.raises(UnseenError):
        await waiting
    assert opened.ended == []
    assert "will continue; collect results with attach, or all with recover('mary-1" in caplog.text


@pytest.mark.parametrize("job", [0, 1])
async def test_rejected_array_cancels_earlier_jobs(opened, task, job):
    opened.holding, opened.most = True, 2
    opened.failures[job] = SubmissionError("No such queue.")
    with pytest.raises(SubmissionError):
        await task.map(range(4))
    assert opened.ended == [(["job-0"], 2, "interrupted by SubmissionError")][:job]


async def test_unpicklable_argument_raises_callers_error(opened, task):
    def generate():
        yield 1

    with pytest.raises(TaskNotPicklableError):
        await task.map([generate()])
    assert opened.ended == []


# --- fetch errors -----------------------------------------------------------------------------


async def test_transient_fetch_error_is_retried(opened, task):
    opened.undelivered = [ServiceError("Slow down", code="SlowDown", status=503)] * 2
    assert await task.map([1, 2]) == [2, 4]


async def test_permanent_fetch_error_fails_only_call(opened, task):
    opened.undelivered = [ServiceError("No such key", code="InvalidArgument", status=400)]
    values = await task.map([1, 2], return_exceptions=True)
    assert [str(value) for value in values] == ["No such key", "4"]


async def test_access_error_fails_whole_map(opened, task):
    opened.undelivered = [ServiceError("No", code="AccessDenied", status=403)] * 16
    with pytest.raises(ServiceError, match="No"):
        await task.map(range(20), return_exceptions=True)
