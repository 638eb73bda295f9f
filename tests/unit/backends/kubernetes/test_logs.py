"""Pod logs: lines with times, each once, and the number of requests."""

import asyncio
from datetime import UTC, datetime

import pytest
from aiohttp import web

from farcall.backends.kubernetes.error_translation import KubeError
from farcall.backends.kubernetes.logs import PodLog
from tests.unit.backends.kubernetes.api_server import refuse

WAITS = 'container "task" in pod "a" is waiting to start: ContainerCreating'


def at(second, fraction=0):
    return datetime(2026, 11, 23, 21, 0, second, fraction, tzinfo=UTC)


def stamp(second, fraction="000000000"):
    return f"2026-11-23T21:00:{second:02d}.{fraction}Z"


class Kubelet:
    """Serves pod logs like a kubelet.

    Attributes:
        logs: Lines of each pod: seconds, a fraction, and the text.
        over: Pods whose container has ended.
        asked: Pod and query of each request.
    """

    def __init__(self, server):
        self.logs = {}
        self.over = set()
        self.asked = []
        self._news = asyncio.Condition()
        self._server = server
        server.answers.append(self._answer)

    async def write(self, pod, *lines):
        self.logs.setdefault(pod, []).extend(lines)
        async with self._news:
            self._news.notify_all()

    async def end(self, pod):
        self.over.add(pod)
        await self.write(pod)

    async def _answer(self, request):
        pod, query = request.path.split("/")[-2], dict(request.query)
        self.asked.append((pod, query))
        assert query["container"] == "task"
        if pod not in self.logs:
            return await refuse(404, "NotFound", f'pods "{pod}" not found')(request)
        if self.logs[pod] is None:
            return await refuse(400, "BadRequest", WAITS)(request)
        response = web.StreamResponse()
        await response.prepare(request)
        given = 0
        while True:
            lines = [line for line in self.logs[pod] if _is_since(line, query.get("sinceTime"))]
            if "tailLines" in query:
                lines = lines[-int(query["tailLines"]) :]
            for second, fraction, text in lines[given:]:
                await response.write(f"{stamp(second, fraction)} {text}\n".encode())
            given = len(lines)
            if query.get("follow") != "true" or pod in self.over:
                return response
            async with self._news:
                await self._news.wait()


def _is_since(line, since):
    return since is None or stamp(line[0], "")[:19] >= since[:19]


def line(second, text, fraction="000000000"):
    return second, fraction, text


@pytest.fixture
async def kubelet(server):
    return Kubelet(server)


async def read(log):
    return [(each.at, each.text) async for page in log.read() for each in page]


# --- one pod ----------------------------------------------------------------------------------


async def test_lines_have_times_and_come_once(kubelet, kube):
    await kubelet.write("a", line(1, "one", "123456789"), line(1, "two", "2"), line(2, ""))
    log = PodLog(kube, "a")
    assert log.exists is None
    assert await read(log) == [(at(1, 123456), "one"), (at(1, 200000), "two"), (at(2), "")]
    assert log.exists is True
    assert await read(log) == []
    # One line is a little late, and two are identical.
    await kubelet.write("a", line(1, "late", "3"), line(2, "x", "5"), line(2, "x", "5"))
    assert await read(log) == [(at(1, 300000), "late"), *2 * [(at(2, 500000), "x")]]
    assert kubelet.asked[-1][1]["sinceTime"] == "2026-11-23T21:00:01Z"


async def test_last_lines_use_tail_lines(kubelet, kube):
    await kubelet.write("a", *(line(n, f"line {n}") for n in range(20)))
    assert [each.text for each in await PodLog(kube, "a").last(2)] == ["line 18", "line 19"]
    assert kubelet.asked[-1][1]["tailLines"] == "2"
    assert len(kubelet.asked) == 1


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (b"2026-11-23T21:00:01Z whole second", "whole second"),
        (b"2026-11-23T22:00:01.0+01:00 elsewhere", "elsewhere"),
        (b"2026-11-23T21:00:01.000000000Z \xff\x1b[2J", "\ufffd\x1b[2J"),
        (b"2026-11-23T21:00:01.000000000Z", ""),
    ],
)
async def test_any_zone_and_bytes_are_read(server, kube, written, text):
    async def answer(_):
        return web.Response(body=written + b"\n")

    server.answers.append(answer)
    assert await read(PodLog(kube, "a")) == [(at(1), text)]


async def test_waiting_container_may_get_log(kubelet, kube):
    """A deleted pod never gets one."""
    kubelet.logs["waits"] = None
    waits, gone, none = PodLog(kube, "waits"), PodLog(kube, "gone"), PodLog(kube, "")
    assert [await read(log) for log in (waits, gone, none)] == [[], [], []]
    assert (waits.exists, gone.exists, none.exists) == (None, False, False)
    assert len(kubelet.asked) == 2
    kubelet.logs["waits"] = [line(1, "it runs")]
    assert await read(waits) == [(at(1), "it runs")]


async def test_deleted_log_message_is_not_output(server, kube):
    """A deleted log never comes back, so the request is not repeated."""

    async def answer(_):
        return web.Response(body=b"unable to retrieve container logs for containerd://0a1b")

    server.answers.append(answer)
    log = PodLog(kube, "a")
    assert await read(log) == []
    assert log.exists is False
    assert len(server.requests) == 1


async def test_refusal_raises_and_outage_is_retried(server, kube):
    async def answer(_):
        return web.Response(body=b"2026-11-23T21:00:01Z a\n")

    server.answers += [refuse(503, "ServiceUnavailable"), answer]
    assert await read(PodLog(kube, "a")) == [(at(1), "a")]
    server.answers[:] = [refuse(403, "Forbidden", "you may not")]
    with pytest.raises(KubeError, match="you may not"):
        await read(PodLog(kube, "a"))


# --- followed logs ----------------------------------------------------------------------------


@pytest.fixture
async def followed(kubelet, kube):
    await kubelet.write("a", line(1, "first"))
    log = PodLog(kube, "a")
    yield log
    await log.close()


async def until_read(log, *texts):
    """Poll a log until it has yielded exactly these lines."""
    found = []
    while len(found) < len(texts):
        found += [each.text async for page in log.read(follow=True) for each in page]
        await asyncio.sleep(0.01)
    assert found == list(texts)


async def test_followed_log_needs_two_requests(kubelet, followed):
    await until_read(followed, "first")
    for second in range(2, 30):
        await kubelet.write("a", line(second, f"line {second}"))
    await until_read(followed, *(f"line {second}" for second in range(2, 30)))
    assert [query.get("follow") for _, query in kubelet.asked] == [None, "true"]


async def test_finished_log_is_read_to_end(kubelet, followed):
    await until_read(followed, "first")
    await kubelet.write("a", line(2, "last"))
    await kubelet.end("a")
    await until_read(followed, "last")
    kubelet.logs.pop("a")
    while followed.exists:
        assert [page async for page in followed.read(follow=True)] == []
        await asyncio.sleep(0.01)


async def test_following_continues_after_last_lines(kubelet, kube, followed):
    await kubelet.write("a", line(1, "second", "5"), line(1, "third", "6"))
    assert [each.text for each in await followed.last(1)] == ["third"]
    await kubelet.write("a", line(1, "fourth", "7"))
    await until_read(followed, "fourth")
    nothing = PodLog(kube, "a")
    assert await nothing.last(0) == []
    assert await read(nothing) == []


async def test_reader_that_stops_loses_nothing(kubelet, kube):
    await kubelet.write("a", *(line(n // 100, f"{n}", f"{n % 100:02}") for n in range(2500)))
    log = PodLog(kube, "a")
    pages = log.read()
    found = [each.text for each in await anext(pages)]
    await pages.aclose()
    found += [text for _, text in await read(log)]
    assert found == [str(n) for n in range(2500)]


async def test_earlier_lines_are_left_out(kubelet, kube):
    await kubelet.write("a", line(1, "a", "1"), line(1, "b", "5"), line(2, "c"))
    log = PodLog(kube, "a", at(1, 500000))
    assert [text for _, text in await read(log)] == ["b", "c"]
    assert [each.text for each in await PodLog(kube, "a", at(2)).last(3)] == ["c"]


async def test_close_ends_the_stream(kubelet, followed):
    await until_read(followed, "first")
    await followed.close()
    await followed.close()
    names = {task.get_coro().__qualname__ for task in asyncio.all_tasks()}
    assert not any("PodLog" in name for name in names)
