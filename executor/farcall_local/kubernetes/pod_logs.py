"""Logs of pods: lines with the time at which they came, gone with the pod.

Standard output and standard error are one stream. What is kept of a pod is its newest 10 MiB, as
a kubelet serves the newest file alone.

Source:
    https://kubernetes.io/docs/concepts/cluster-administration/logging/#log-rotation
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

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
