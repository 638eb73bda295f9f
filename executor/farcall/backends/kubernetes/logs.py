"""Pod log: output of a container, as served by its node's kubelet.

Both streams are merged and cannot be separated. The node keeps the newest part as long as the pod
exists. While a log is followed, a stream receives its new lines, so that polls make no requests.

Sources:
    https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#get-read-log-of-the-specified-pod
    https://kubernetes.io/docs/concepts/cluster-administration/logging/
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from farcall.backends.base import LogEvent
from farcall.backends.kubernetes.client import Kube
from farcall.backends.kubernetes.error_translation import Call, KubeError
from farcall.backends.kubernetes.names import CONTAINER
from farcall.model.pacing import FIRST_WAIT_S, Retries

LONGEST_LINE_BYTES = 32 * 1024 * 1024
"""Maximum bytes of a line; the kubelet splits no line."""

READS_PER_S = 100.0
"""Reads per second of one client; most of them make no request."""

_PAGE = 1000
_SECOND = timedelta(seconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
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

_SILENT_S = 4 * 3600.0
_MOST_LINES = 20_000
"""Maximum lines of a stream that wait for the reader."""

_RETRY_S = 30.0


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
        since: Time of the first line; None for all.

    Attributes:
        exists: Whether the log exists; None before the first request.
    """

    def __init__(self, kube: Kube, pod: str, since: datetime | None = None) -> None:
        self._kube = kube
        self._pod = pod
        self._floor = since or _EPOCH
        self._since = since
        self._newest: list[Stamped] = []
        self._coming: asyncio.Queue[Stamped] = asyncio.Queue(_MOST_LINES)
        self._stream: asyncio.Task[None] | None = None
        self.exists: bool | None = None if pod else False

    async def read(self, *, follow: bool = False) -> AsyncGenerator[list[LogEvent], None]:
        """Yield new lines, the oldest first.

        Raises:
            ServiceError: Kubernetes refused, other than because the log does not exist.
        """
        is_over = self._stream is None or self._stream.done()
        async with contextlib.aclosing(self._pages(self._streamed())) as pages:
            async for page in pages:
                yield page
        if not is_over:
            return
        async with contextlib.aclosing(self._pages(self._lines(self._since))) as pages:
            async for page in pages:
                yield page
        self._stream = None
        if follow and self.exists:
            self._stream = asyncio.ensure_future(self._follow())

    async def last(self, number: int) -> list[LogEvent]:
        """Return up to ``number`` last lines, the oldest first; `read` continues after them.

        Raises:
            ServiceError: Kubernetes refused, other than because the log does not exist.
        """
        lines = [line async for line in self._lines(self._since, tail=max(1, number))]
        lines = [line for line in lines if line.at >= self._floor]
        if lines:
            self._floor = lines[-1].at
            self._remember(lines)
        return [LogEvent(line.at, line.text) for line in lines[max(0, len(lines) - number) :]]

    async def close(self) -> None:
        """Close the stream."""
        if self._stream is not None:
            self._stream.cancel()
            await asyncio.gather(self._stream, return_exceptions=True)

    async def _pages(
        self, lines: AsyncGenerator[Stamped, None]
    ) -> AsyncGenerator[list[LogEvent], None]:
        """Yield the new ones of some lines in pages, and remember the last ones."""
        seen = {line.key for line in self._newest}
        page: list[LogEvent] = []
        newest = list(self._newest)
        async with contextlib.aclosing(lines):
            async for line in lines:
                if line.key in seen or line.at < self._floor:
                    continue
                newest.append(line)
                page.append(LogEvent(line.at, line.text))
                if len(page) >= _PAGE:
                    self._remember(newest)
                    yield page
                    page, newest = [], list(self._newest)
        self._remember(newest)
        if page:
            yield page

    async def _lines(self, since: datetime | None, tail: int = 0) -> AsyncGenerator[Stamped, None]:
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

    async def _streamed(self) -> AsyncGenerator[Stamped, None]:
        """Yield the lines that the stream has received."""
        while not self._coming.empty():
            yield self._coming.get_nowait()

    async def _follow(self) -> None:
        """Receive the lines from now on; if the queue is full, wait for the reader."""
        with contextlib.suppress(KubeError):  # the next read makes its own request
            lines = _read(self._kube, self._pod, self._since, follow=True)
            async with contextlib.aclosing(lines):
                async for line in lines:
                    await self._coming.put(line)

    def _remember(self, lines: Sequence[Stamped]) -> None:
        """Record the lines of the last seconds; both streams may be slightly out of order."""
        if lines:
            floor = (lines[-1].at - 2 * _SECOND).replace(microsecond=0)  # as in requests
            self._newest = [line for line in lines if line.at >= floor]
            self._since = self._newest[0].at


async def _read(
    kube: Kube,
    pod: str,
    since: datetime | None,
    *,
    tail: int = 0,
    follow: bool = False,
) -> AsyncGenerator[Stamped, None]:
    """Yield the lines of a log; temporary failures before the first line are retried.

    Args:
        kube: The open client.
        pod: The pod's name.
        since: The first second.
        tail: Maximum number of lines, the last ones; 0 for all.
        follow: Whether to continue until the container ends.
    """
    params = _params(since, tail)
    path, retries = kube.path("pods", f"{pod}/log"), Retries(_RETRY_S)
    read = _Lines()
    while True:
        if follow:
            stream = kube.stream(path, {**params, "follow": "true"}, silent_s=_SILENT_S)
        else:
            stream = kube.stream(path, params)
        try:
            async with contextlib.aclosing(stream) as lines:
                async for line in lines:
                    if not read.count and line.startswith(_LOST):
                        raise _lost(kube, pod, line)
                    yield read.line(line)
        except KubeError as error:
            may_pass = error.may_pass and not read.count
            first_s = error.retry_after_s or FIRST_WAIT_S
            if not await retries.wait(error, may_pass=may_pass, first_s=first_s):
                raise
        else:
            return


def _lost(kube: Kube, pod: str, line: bytes) -> KubeError:
    call = Call("get", "pods/log", kube.namespace, pod)
    text = line.decode(errors="replace")[:_LOST_CHARACTERS]
    return KubeError(f"{call}: {text}", call=call, code=_GONE, is_lasting=True)


def _params(since: datetime | None, tail: int) -> dict[str, Any]:
    params: dict[str, Any] = {"container": CONTAINER, "timestamps": "true"}
    if since is not None:
        params["sinceTime"] = since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
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
        return datetime.fromisoformat(f"{match[1].decode()}.{fraction}{zone}").astimezone(UTC)
    except (ValueError, OverflowError):  # such as a 30th of February
        return _EPOCH
