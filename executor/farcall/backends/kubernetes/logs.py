"""Pod logs: output of one or more containers, as served by their nodes' kubelets.

Both streams are merged and cannot be separated. The node keeps the newest part as long as the pod
exists.

Followers poll repeatedly. A second request for a log within a minute opens a stream, which
receives new lines by itself: from then on a poll makes no request. See `PodLogs`.

Sources:
    https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#get-read-log-of-the-specified-pod
    https://kubernetes.io/docs/concepts/cluster-administration/logging/
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from farcall.backends.base import LogEvent, LogMissingError
from farcall.backends.kubernetes.client import Kube
from farcall.backends.kubernetes.error_translation import Call, KubeError
from farcall.backends.kubernetes.names import CONTAINER
from farcall.model import clock

LONGEST_LINE_BYTES = 32 * 1024 * 1024
"""Maximum bytes of a line; the kubelet splits no line."""

READ_TOGETHER = 50
"""Maximum number of logs that are merged; each one needs its own connection."""

_PAGE = 1000
_SECOND = timedelta(seconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_TIME = re.compile(
    rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ?", re.ASCII
)

_WAITS, _GONE = "BadRequest", "NotFound"
"""Reasons of a refusal: the container has not started, or the pod does not exist."""

_LOST = b"unable to retrieve container logs for "
"""The kubelet's response, with status 200, for a container whose log is deleted.

https://github.com/kubernetes/kubernetes/blob/v1.36.0/pkg/kubelet/kuberuntime/kuberuntime_container.go
"""

_LOST_CHARACTERS = 200

_AGAIN_S = 60.0
"""Time in seconds within which a second request for a log opens a stream."""

_UNUSED_S = 60.0
_SILENT_S = 4 * 3600.0
_MOST_STREAMS = 200
_MOST_LINES = 20_000
_AFTER_END_S = 10.0
_RETRY_S, _FIRST_WAIT_S = 30.0, 0.2


class Stamped(NamedTuple):
    """A line of a pod's log.

    Attributes:
        at: Time at which it was written.
        key: A text that is unique in the log.
        text: The line without its end.
    """

    at: datetime
    key: str
    text: str


class PodLog:
    """The log of one pod. Each line is read once.

    Args:
        kube: The open client.
        pod: The pod's name; empty for none.

    Attributes:
        exists: Whether the log exists; None before the first request.
    """

    def __init__(self, kube: Kube, pod: str) -> None:
        self._kube = kube
        self._pod = pod
        self._since: datetime | None = None
        self._seen: set[str] = set()
        self.exists: bool | None = None if pod else False

    async def read(self) -> AsyncIterator[list[LogEvent]]:
        """Yield new lines, the oldest first.

        Raises:
            ServiceError: Kubernetes refused, other than because the log does not exist.
        """
        page: list[LogEvent] = []
        last: list[Stamped] = []
        async for line in self._lines(self._since):
            if line.key in self._seen:
                last.append(line)
                continue
            last.append(line)
            page.append(LogEvent(line.at, line.text))
            if len(page) >= _PAGE:
                yield page
                page = []
                last = _newest(last)
        self._remember(last)
        if page:
            yield page

    async def last(self, number: int) -> list[LogEvent]:
        """Return up to ``number`` last lines, the oldest first.

        Raises:
            ServiceError: Kubernetes refused, other than because the log does not exist.
        """
        if not number:
            return []
        found = [line async for line in self._lines(None, tail=number)]
        return [LogEvent(line.at, line.text) for line in found][-number:]

    async def _lines(self, since: datetime | None, tail: int = 0) -> AsyncIterator[Stamped]:
        if not self._pod:
            return
        try:
            async for line in _read(self._kube, self._pod, since, tail=tail):
                self.exists = True
                yield line
            self.exists = True
        except KubeError as error:
            if error.code not in (_WAITS, _GONE):
                raise
            self.exists = self.exists if error.code == _WAITS else False

    def _remember(self, lines: Sequence[Stamped]) -> None:
        """Record the start of the next read, and which of its lines were returned."""
        newest = _newest(lines)
        if newest:
            self._since = newest[0].at
            self._seen = {line.key for line in newest}


def _newest(lines: Sequence[Stamped]) -> list[Stamped]:
    """Return the lines of the last seconds; both streams may be slightly out of order."""
    if not lines:
        return []
    floor = lines[-1].at - 2 * _SECOND
    return [line for line in lines if line.at >= floor]


async def _read(
    kube: Kube,
    pod: str,
    since: datetime | None,
    *,
    tail: int = 0,
    opened: Callable[[], object] | None = None,
) -> AsyncGenerator[Stamped, None]:
    """Yield the lines of a log; temporary failures before the first line are retried.

    Args:
        kube: The open client.
        pod: The pod's name.
        since: The first second.
        tail: Maximum number of lines, the last ones; 0 for all.
        opened: If given, the log is followed until the container ends; called when the stream
            opens.
    """
    params = _params(since, tail)
    path, tries, began = kube.path("pods", f"{pod}/log"), 0, clock.now()
    read = _Lines()
    while True:
        if opened is None:
            stream = kube.stream(path, params)
        else:
            asked = {**params, "follow": "true"}
            stream = kube.stream(path, asked, silent_s=_SILENT_S, opened=opened)
        try:
            async with contextlib.aclosing(stream) as lines:
                async for line in lines:
                    if not read.count and line.startswith(_LOST):
                        raise _lost(kube, pod, line)
                    yield read.line(line)
        except KubeError as error:
            tries += 1
            if read.count or not error.may_pass or clock.now() - began > _RETRY_S:
                raise
            await clock.back_off(tries, error.retry_after_s or _FIRST_WAIT_S)
        else:
            return


def _lost(kube: Kube, pod: str, line: bytes) -> KubeError:
    call = Call("get", "pods/log", kube.namespace, pod)
    text = line.decode(errors="replace")[:_LOST_CHARACTERS]
    return KubeError(f"{call}: {text}", call=call, code=_GONE)


def _params(since: datetime | None, tail: int) -> dict[str, Any]:
    params: dict[str, Any] = {"container": CONTAINER, "timestamps": "true"}
    if since is not None:
        params["sinceTime"] = since.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    if tail:
        params["tailLines"] = tail
    return params


class _Lines:
    """Parser of the kubelet's lines: time, space and text."""

    def __init__(self) -> None:
        self.count = 0
        self._at = _EPOCH
        self._stamp = b""
        self._alike = 0

    def line(self, line: bytes) -> Stamped:
        """Parse a line; a line without a time gets the previous line's time."""
        self.count += 1
        match = _TIME.match(line)
        stamp = match[0].strip() if match else self._stamp
        if match is not None:
            self._at = _moment(match)
        self._alike = self._alike + 1 if stamp == self._stamp else 0
        self._stamp = stamp
        text = line[match.end() :] if match else line
        key = f"{stamp.decode()}/{self._alike}"
        return Stamped(self._at, key, text.decode(errors="replace"))


def _moment(match: re.Match[bytes]) -> datetime:
    """Return a time, to the microsecond."""
    fraction = (match[2] or b"").ljust(6, b"0")[:6].decode()
    zone = match[3].decode().replace("Z", "+00:00")
    try:
        return datetime.fromisoformat(f"{match[1].decode()}.{fraction}{zone}").astimezone(
            timezone.utc
        )
    except (ValueError, OverflowError):  # such as a 30th of February
        return _EPOCH


class PodLogs:
    """The logs of many pods, for followers."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._asked: dict[str, float] = {}
        self._followed: dict[str, Followed] = {}

    async def events(
        self,
        pods: Sequence[str],
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> AsyncGenerator[list[LogEvent], None]:
        """Yield the lines of several logs in the order of time.

        Args:
            pods: Names of up to `READ_TOGETHER` pods.
            since: Only lines written at this time or later.
            until: Only lines written at this time or before.

        Raises:
            LogMissingError: A log does not exist; raised before the first page.
            ServiceError: Kubernetes refused for another reason.
        """
        floor = since or _EPOCH
        sources = [self._source(pod, floor) for pod in pods]
        async with contextlib.AsyncExitStack() as opened:
            for source in sources:
                await opened.enter_async_context(contextlib.aclosing(source))
            merged = _merged(pods, sources)
            async with contextlib.aclosing(merged):
                page: list[LogEvent] = []
                async for event in merged:
                    if event.at < floor or (until is not None and event.at > until):
                        continue
                    page.append(event)
                    if len(page) >= _PAGE:
                        yield page
                        page = []
                yield page

    def _source(self, pod: str, since: datetime) -> AsyncGenerator[Stamped, None]:
        """Return a log's lines from a time on: from its stream, or from a request."""
        followed = self._followed.get(pod)
        if followed is not None and not followed.is_over and followed.covers(since):
            return followed.lines(since)
        self._follow_if_asked_again(pod, since)
        return _read(self._kube, pod, None if since <= _EPOCH else since)

    def _follow_if_asked_again(self, pod: str, since: datetime) -> None:
        now, before = clock.now(), self._asked.get(pod)
        self._asked[pod] = now
        for old, each in list(self._followed.items()):
            if each.is_over and now - each.ended_at > _AFTER_END_S:
                del self._followed[old]
        is_again = before is not None and now - before <= _AGAIN_S
        if is_again and pod not in self._followed and len(self._followed) < _MOST_STREAMS:
            self._followed[pod] = Followed(self._kube, pod, since)
        if len(self._asked) > 2 * _MOST_LINES:
            self._asked = {name: at for name, at in self._asked.items() if now - at <= _AGAIN_S}

    async def close(self) -> None:
        """Close the streams."""
        followed, self._followed = self._followed, {}
        for each in followed.values():
            each.close()
        await asyncio.gather(*(each.ended() for each in followed.values()))


class Followed:
    """A log that a stream follows, with its last lines.

    Attributes:
        is_over: Whether the stream has ended.
        ended_at: Time at which it ended, by this process's clock.
    """

    def __init__(self, kube: Kube, pod: str, since: datetime) -> None:
        self.is_over = False
        self.ended_at = 0.0
        self._floor = since
        self._lines: deque[Stamped] = deque()
        self._is_open = False
        self._used_at = clock.now()
        self._timer = asyncio.get_running_loop().call_later(_UNUSED_S, self._end_if_unused)
        self._task = asyncio.ensure_future(self._run(kube, pod))

    def covers(self, since: datetime) -> bool:
        """Return whether all lines from a time on are stored."""
        return self._is_open and since >= self._floor

    async def lines(self, since: datetime) -> AsyncGenerator[Stamped, None]:
        """Yield the stored lines from a time on."""
        self._used_at = clock.now()
        for line in [line for line in self._lines if line.at >= since]:
            yield line

    def close(self) -> None:
        """Close the stream."""
        self._task.cancel()

    async def ended(self) -> None:
        """Wait until the stream has ended."""
        await asyncio.wait([self._task])

    async def _run(self, kube: Kube, pod: str) -> None:
        since = None if self._floor <= _EPOCH else self._floor
        try:
            async with contextlib.aclosing(_read(kube, pod, since, opened=self._open)) as lines:
                async for line in lines:
                    self._take(line)
        except KubeError:
            pass  # the next caller makes its own request, and gets the error
        finally:
            self.is_over, self.ended_at = True, clock.now()
            self._timer.cancel()

    def _open(self) -> None:
        # Existing lines arrive at once; a follower that polls before that polls again.
        self._is_open = True

    def _take(self, line: Stamped) -> None:
        self._lines.append(line)
        while len(self._lines) > _MOST_LINES:
            self._floor = max(self._floor, self._lines.popleft().at + timedelta(microseconds=1))

    def _end_if_unused(self) -> None:
        left_s = self._used_at + _UNUSED_S - clock.now()
        if left_s > 0:
            self._timer = asyncio.get_running_loop().call_later(left_s, self._end_if_unused)
        else:
            self._task.cancel()


async def _merged(
    pods: Sequence[str], sources: Sequence[AsyncIterator[Stamped]]
) -> AsyncGenerator[LogEvent, None]:
    """Yield the lines of several logs in the order of time.

    Raises:
        LogMissingError: A log does not exist, or not yet.
    """
    firsts = await asyncio.gather(*map(_next, sources), return_exceptions=True)
    missing = [each for each in firsts if _is_missing(each)]
    for each in [*(one for one in firsts if not _is_missing(one)), *missing]:
        if isinstance(each, KubeError) and _is_missing(each):
            raise LogMissingError(f"{each}: one of {len(pods)} logs") from each
        if isinstance(each, BaseException):
            raise each
    heads = list(_heads(firsts))
    heapq.heapify(heads)
    while heads:
        at, number, line = heads[0]
        yield LogEvent(at, line.text, f"{pods[number]}/{line.key}", pods[number], at)
        following = await _next(sources[number])
        if following is None:
            heapq.heappop(heads)
        else:
            # A line that is slightly out of order keeps its position.
            heapq.heapreplace(heads, (max(at, following.at), number, following))


def _heads(firsts: Sequence[Any]) -> Iterator[tuple[datetime, int, Stamped]]:
    for number, first in enumerate(firsts):
        if first is not None:
            yield first.at, number, first


def _is_missing(found: object) -> bool:
    return isinstance(found, KubeError) and found.code in (_WAITS, _GONE)


async def _next(source: AsyncIterator[Stamped]) -> Stamped | None:
    return await anext(source, None)
