"""The last lines of a task, read from the end."""

from __future__ import annotations

from datetime import timedelta

import pytest

from farcall.backends.batch.backend import BatchBackend
from farcall.engine.logs.nodes import NodeAttempt
from farcall.engine.logs.sources import PacedLogs, Part, TaskOutput, TaskSource
from tests.unit.fakes import TIMING, store_in_memory
from tests.unit.transcripts import NOW, SUBMISSION, access, ended, page, put, texts


@pytest.fixture
def store():
    return store_in_memory()


class Task(TaskOutput):
    """A task with a scripted outcome; it records the requested chunks."""

    def __init__(self, store, outcome=None):
        super().__init__(store, SUBMISSION, 0)
        self.read = []
        self._outcome = outcome
        get = self.chunks.get

        async def counted(*place):
            self.read.append(place)
            return await get(*place)

        self.chunks.get = counted

    async def written(self, _attempt):
        return self._outcome


async def last(task, number, *, is_over=True, replies=(), follow=False):
    """Return the source of the task's only attempt, and its last lines."""
    opened, _ = access(list(replies))
    logs = PacedLogs(BatchBackend(opened), TIMING)

    async def refresh():
        pass

    attempt = NodeAttempt(0, 1, "g", "s", is_over, stopped_at=NOW)
    source = TaskSource(logs, task, attempt, Part(follow=follow), refresh)
    return source, await source.last(number)


async def test_tail_reads_only_last_chunks(store):
    for number in range(50):
        await put(store, "stdout", number, b"%d a\n%d b\n%d " % (number, number, number))
    task = Task(store, ended((50, 0, b"the end\n")))
    _, lines = await last(task, 4)
    assert texts(lines) == ["48 b", "48 49 a", "49 b", "49 the end"]
    assert {sequence for *_, sequence in task.read} == {49, 48, 47}


async def test_omitted_lines_stay_omitted_in_cloudwatch(store):
    for number in range(3):
        await put(store, "stdout", number, b"%d\n" % number)
    task = Task(store)
    source, lines = await last(task, 1, is_over=False, follow=True)
    assert texts(lines) == ["2"]

    stored = {place.sequence: place.at for place in await task.chunks.places(1)}
    before = page("0", "1", token="1", at=stored[1] - timedelta(seconds=1))
    after = page("2", "3", token="2", at=stored[2] + timedelta(seconds=1))
    opened, _ = access([before, after, page(token="2")])
    source._logs = PacedLogs(BatchBackend(opened), TIMING)
    source.update(source.attempt._replace(is_over=True))
    assert texts([line async for found in source.read() for line in found]) == ["3"]


async def test_missing_output_comes_from_cloudwatch(store):
    await put(store, "stdout", 0, b"a\n")
    replies = [{**page("a", "b", token="1"), "nextBackwardToken": "1"}]
    _, lines = await last(Task(store), 1, replies=replies)
    assert [line[:2] for line in lines] == [("b", "log")]


async def test_progress_bar_reads_only_last_state(store):
    for number in range(50):
        await put(store, "stderr", number, b"\r%d of 50" % number)
    await put(store, "stderr", 50, b", done\n")
    task = Task(store)
    _, lines = await last(task, 1, is_over=False)
    assert {sequence for *_, sequence in task.read} == {50, 49}
    assert texts(lines) == ["49 of 50, done"]
