"""Logs of pods, as the API answers them: all, the end, from a time on, or followed.

Source: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, NamedTuple

from aiohttp import web

from farcall_local.kubernetes.errors import BadRequestError

_NS = 1_000_000_000


class _Asked(NamedTuple):
    follow: bool
    timestamps: bool
    since_ns: int
    tail: int | None


async def send_log(
    logs: PodLogs, request: web.BaseRequest, pod: Mapping[str, Any]
) -> web.StreamResponse:
    """Answer a request for a Pod's log.

    Raises:
        BadRequestError: There is none: its container has not started, or there is no such one.
    """
    query = request.query
    container = _container(pod, query.get("container", ""))
    asked = _Asked(
        follow=_flag(query, "follow"),
        timestamps=_flag(query, "timestamps"),
        since_ns=_since(query),
        tail=_count(query, "tailLines"),
    )
    log = logs.of(pod["metadata"]["uid"])
    if log is None:
        raise _waiting(pod, container)
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    await _write(response, log, asked)
    await response.write_eof()
    return response


async def _write(response: web.StreamResponse, log: PodLog, asked: _Asked) -> None:
    fresh = [line for line in log.lines if line[0] >= asked.since_ns]
    if asked.tail is not None:
        fresh = fresh[max(0, len(fresh) - asked.tail) :]
    known = _total(log)
    while True:
        if text := b"".join(_text(line, asked) for line in fresh):
            await response.write(text)
        if not asked.follow or (log.closed and known == _total(log)):
            return
        await log.changed(known)
        fresh = list(log.lines)[max(0, known - log.dropped) :]
        known = _total(log)


def _total(log: PodLog) -> int:
    return log.dropped + len(log.lines)


def _text(line: tuple[int, bytes], asked: _Asked) -> bytes:
    if not asked.timestamps:
        return line[1] + b"\n"
    seconds, rest = divmod(line[0], _NS)
    moment = datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{moment}.{rest:09d}Z ".encode() + line[1] + b"\n"


def _container(pod: Mapping[str, Any], wanted: str) -> str:
    name = str(pod["spec"]["containers"][0]["name"])
    if wanted not in ("", name):
        raise BadRequestError(f"container {wanted} is not valid for pod {pod['metadata']['name']}")
    return name


def _waiting(pod: Mapping[str, Any], container: str) -> BadRequestError:
    statuses: list[Any] = (pod.get("status") or {}).get("containerStatuses") or [{}]
    reason = statuses[0].get("state", {}).get("waiting", {}).get("reason", "ContainerCreating")
    if reason in ("ErrImagePull", "ImagePullBackOff"):
        reason = "trying and failing to pull image"
    return BadRequestError(
        f'container "{container}" in pod "{pod["metadata"]["name"]}" is waiting to start: {reason}'
    )


def _flag(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "").lower() in ("true", "1")


def _count(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    if not text.isdigit():
        raise BadRequestError(
            f'{name}: Invalid value: "{text}": must be greater than or equal to 0'
        )
    return int(text)


def _since(query: Mapping[str, str]) -> int:
    """Return the time from which on lines are wanted, in nanoseconds since 1970."""
    if text := query.get("sinceTime"):
        try:
            moment = datetime.fromisoformat(_readable(text))
        except ValueError:
            raise BadRequestError(f'sinceTime: Invalid value: "{text}": it is no time') from None
        return int(moment.timestamp() * _NS)
    seconds = _count(query, "sinceSeconds")
    if seconds is None:
        return 0
    return int((datetime.now(timezone.utc).timestamp() - seconds) * _NS)


def _readable(text: str) -> str:
    """Return a time as Python 3.10 reads it: with six digits behind the second at most."""
    text = text.upper().replace("Z", "+00:00")
    head, dot, rest = text.partition(".")
    if not dot:
        return text
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    return f"{head}.{digits[:6]:0<6}{rest[len(digits) :]}"


MAX_BYTES = 10 * 1024 * 1024


class PodLog:
    """What a pod's container has written.

    Attributes:
        dropped: Lines that were too many, and are not in `lines` any more.
        lines: The others: nanoseconds since 1970, and the text without its end.
        closed: Whether no more come.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self.lines: deque[tuple[int, bytes]] = deque()
        self.closed = False
        self._size = 0
        self._rest = b""
        self._news = asyncio.Event()

    def write(self, data: bytes) -> None:
        """Take the lines that are finished, and keep the last one until it is."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._add(lines)

    def close(self) -> None:
        """Take a last line that has no end; no more come."""
        if self._rest:
            self._add([self._rest])
        self._rest = b""
        self.closed = True
        self._tell()

    async def changed(self, known: int) -> None:
        """Wait until more lines have come than so many, or no more do."""
        while not self.closed and self.dropped + len(self.lines) <= known:
            await self._news.wait()

    def _add(self, lines: list[bytes]) -> None:
        if not lines:
            return
        now = time.time_ns()
        for line in lines:
            self.lines.append((now, line))
            self._size += len(line) + 1
        while self._size > MAX_BYTES and len(self.lines) > 1:
            _, line = self.lines.popleft()
            self._size -= len(line) + 1
            self.dropped += 1
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class PodLogs:
    """The logs of all pods, by their UID."""

    def __init__(self) -> None:
        self._logs: dict[str, PodLog] = {}

    def open(self, uid: str) -> PodLog:
        """Begin a pod's log."""
        log = self._logs[uid] = PodLog()
        return log

    def of(self, uid: str) -> PodLog | None:
        """Return a pod's log; None where its container has not started."""
        return self._logs.get(uid)

    def forget(self, uid: str) -> None:
        """Drop the log of a pod that is gone."""
        log = self._logs.pop(uid, None)
        if log is not None and not log.closed:
            log.close()
