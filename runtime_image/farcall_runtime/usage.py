"""Memory and processor time that a task uses while it runs, stored for whoever looks.

To know whether somebody does, the container has to look for the mark in the bucket: not within a
task's first seconds, and then less often the longer it runs. As long as there is a mark it stores
one small object again and again.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from farcall_runtime import envelope, memory
from farcall_runtime.contract import ENV_STREAM_S, Location
from farcall_runtime.followed import Mark
from farcall_runtime.storage import DeniedError, Storage, UnfitError

_MOST_PROCESSES = 1000
_QUICK_S = 0.5

# Fields of /proc/<pid>/stat behind the name, and of statm.
# https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
_USER, _OWN_CHILDREN = 11, 15
_RESIDENT = 1


class Pace(NamedTuple):
    """How often the mark is looked for, and how often use is stored.

    Attributes:
        first_s: After how many seconds the mark is looked for first.
        share: Later looks are so much of the time apart for which the task has run,
        least_s: but at least so many seconds,
        most_s: and at most so many.
        store_s: Seconds between two times that use is stored while somebody looks.
    """

    first_s: float = 20.0
    share: float = 0.1
    least_s: float = 10.0
    most_s: float = 60.0
    store_s: float = 5.0

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Pace:
        """Return that of a container; the embedded AWS may ask for a quick one."""
        return cls(*[_QUICK_S] * 5) if environment.get(ENV_STREAM_S) else cls()

    def pause_s(self, ran_s: float) -> float:
        """Return how long to wait before the next look, after how long the task has run."""
        return min(self.most_s, max(self.least_s, self.share * ran_s))


class UsageReport:
    """What one attempt uses, stored while somebody looks.

    Args:
        where: The task's place in the bucket.
        index: The array child's number.
        attempt: The attempt's number, from 1.
        key: The bundle's outcome key; the object is signed with it.
        mark: The mark of whoever looks.
        pid: The task's own process.
        started: When the container was started, `time.monotonic`.
        pace: How often.

    Attributes:
        is_stored: Whether there may be such an object.
    """

    def __init__(
        self,
        where: Location,
        index: int,
        attempt: int,
        key: bytes,
        mark: Mark,
        pid: int,
        started: float,
        pace: Pace = Pace(),  # noqa: B008  # nobody can change it
    ) -> None:
        self.is_stored = False
        self._name = where.usage_key(index)
        self._attempt, self._key, self._mark, self._pid = attempt, key, mark, pid
        self._started, self._pace = started, pace
        self._due_at = started + pace.first_s
        self._peak = 0

    def look(self, storage: Storage) -> None:
        """Store what is used by now, if that is due and somebody looks."""
        now = time.monotonic()
        if now < self._due_at:
            return
        if not self._mark.is_followed(storage):
            self._due_at = now + self._pace.pause_s(now - self._started)
            return
        self._due_at = now + self._pace.store_s
        measured = self.measure()
        if not measured:
            return
        said = {"attempt": self._attempt, **measured}
        self.is_stored = True  # even a request without an answer may have done it
        try:
            storage.put_once(self._name, envelope.seal_usage(self._key, self._name, said))
        except (DeniedError, UnfitError):
            self._due_at = math.inf
        except Exception:  # whatever it is, the task goes on, and the next one may get through
            return

    def measure(self) -> dict[str, Any]:
        """Return what the task uses by now; nothing where the kernel does not tell.

        Of a container its own control group tells how much memory it has in use, which is what
        counts against its limit. Elsewhere that is of the whole machine, so that what the task's
        processes have resident is added up.
        """
        found = list(filter(None, map(_read, descendants(os.getpid()))))
        if not found:
            return {}
        now = memory.in_use_bytes() if _is_container() else None
        if now is None:
            now = sum(each.resident for each in found)
        self._peak = max(self._peak, now, _peak_of(self._pid))
        return {
            "memory_bytes": now,
            "peak_memory_bytes": self._peak,
            "memory_limit_bytes": memory.limit_bytes(),
            "cpu_s": sum(each.cpu_s for each in found),
        }


class _Process(NamedTuple):
    resident: int
    cpu_s: float


def descendants(pid: int) -> list[int]:
    """Return the processes that a process and its children have started, and that still run."""
    found: list[int] = []
    left = [pid]
    while left and len(found) < _MOST_PROCESSES:
        children = _children(left.pop())
        found += children
        left += children
    return found


def _children(pid: int) -> list[int]:
    children: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  # see memory.py
            with open(f"/proc/{pid}/task/{thread}/children") as file:  # noqa: PTH123
                children += map(int, file.read().split())
    except OSError:  # it has ended, or this is no Linux
        pass
    return children


def _read(pid: int) -> _Process | None:
    try:
        with open(f"/proc/{pid}/statm") as file:  # noqa: PTH123
            resident = int(file.read().split()[_RESIDENT]) * os.sysconf("SC_PAGE_SIZE")
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            said = file.read().rpartition(")")[2].split()[_USER:_OWN_CHILDREN]
    except (OSError, ValueError, IndexError):
        return None
    return _Process(resident, sum(map(int, said)) / os.sysconf("SC_CLK_TCK"))


def _peak_of(pid: int) -> int:
    """Return the most memory that a process has had resident, as its end will tell."""
    try:
        with open(f"/proc/{pid}/status") as file:  # noqa: PTH123
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return 0


def _is_container() -> bool:
    """Tell whether this process is what its container was started for, perhaps below an init."""
    return 1 in (os.getpid(), os.getppid())
