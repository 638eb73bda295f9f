"""Logs of pods in API responses: complete, the end, since a time, or followed.

Source: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from tests.emulators.kubernetes.errors import BadRequestError

_NS = 1_000_000_000


async def send_log(
    log: PodLog | None, request: web.BaseRequest, pod: Mapping[str, Any]
) -> web.StreamResponse:
    """Respond with a pod's log, which is None if its container has not started.

    Raises:
        BadRequestError: The container has not started, or has another name.
    """
    query = request.query
    container = _container(pod, query.get("container", ""))
    if log is None:
        raise _waiting(pod, container)
    since, tail = _since(query), _count(query, "tailLines")
    known = len(log.lines)
    fresh = [line for line in log.lines if line[0] >= since]
    if tail is not None:
        fresh = fresh[max(0, len(fresh) - tail) :]
    text = _stamped if _flag(query, "timestamps") else _plain
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    while True:
        if fresh:
            await response.write(b"".join(map(text, fresh)))
        if not _flag(query, "follow") or (log.closed and known == len(log.lines)):
            break
        await log.changed(known)
        fresh, known = log.lines[known:], len(log.lines)
    await response.write_eof()
    return response


def _plain(line: tuple[int, bytes]) -> bytes:
    return line[1] + b"\n"


def _stamped(line: tuple[int, bytes]) -> bytes:
    seconds, rest = divmod(line[0], _NS)
    moment = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{moment}.{rest:09d}Z ".encode() + _plain(line)


def _container(pod: Mapping[str, Any], wanted: str) -> str:
    name = str(pod["spec"]["containers"][0]["name"])
    if wanted not in ("", name):
        raise BadRequestError(f"container {wanted} is not valid for pod {pod['metadata']['name']}")
    return name


def _waiting(pod: Mapping[str, Any], container: str) -> BadRequestError:
    statuses: list[Any] = (pod.get("status") or {}).get("containerStatuses") or [{}]
    reason = statuses[0].get("state", {}).get("waiting", {}).get("reason", "ContainerCreating")
    if reason == "ImagePullBackOff":
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
    """Return the earliest time of lines, in nanoseconds since 1970."""
    if text := query.get("sinceTime"):
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise BadRequestError(f'sinceTime: Invalid value: "{text}": it is no time') from None
        return int(moment.timestamp() * _NS)
    seconds = _count(query, "sinceSeconds")
    return 0 if seconds is None else time.time_ns() - seconds * _NS


class PodLog:
    """Output of a pod's container.

    Attributes:
        lines: Nanoseconds since 1970 and text of each line, without its end.
        closed: Whether the container has exited.
    """

    def __init__(self) -> None:
        self.lines: list[tuple[int, bytes]] = []
        self.closed = False
        self._rest = b""
        self._news = asyncio.Event()

    def write(self, data: bytes) -> None:
        """Add the complete lines, and keep the last one until it is complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if lines:
            now = time.time_ns()
            # A container runtime reads line by line, so their times differ by microseconds.
            self.lines += [(now + 1000 * number, line) for number, line in enumerate(lines)]
            self._notify()

    def close(self) -> None:
        """Add a last line without an end."""
        if self._rest:
            self.write(b"\n")
        self.closed = True
        self._notify()

    async def changed(self, known: int) -> None:
        """Wait until there are more than ``known`` lines, or the container has exited."""
        while not self.closed and len(self.lines) <= known:
            await self._news.wait()

    def _notify(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
