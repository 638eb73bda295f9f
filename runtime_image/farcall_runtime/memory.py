"""Memory statistics of the container from the kernel (control groups v2 and v1)."""

from __future__ import annotations

_ROOT = "/sys/fs/cgroup"
_LIMITS = (f"{_ROOT}/memory.max", f"{_ROOT}/memory/memory.limit_in_bytes")
_EVENTS = (f"{_ROOT}/memory.events", f"{_ROOT}/memory/memory.oom_control")
_PEAKS = (f"{_ROOT}/memory.peak", f"{_ROOT}/memory/memory.max_usage_in_bytes")
_UNLIMITED = 1 << 60  # version 1 reports a huge number if there is no limit


def limit_bytes() -> int | None:
    """Return the container's memory limit in bytes, or None if there is none."""
    for path in _LIMITS:
        text = _read(path)
        if text.isdigit() and int(text) < _UNLIMITED:
            return int(text)
    return None


def peak_bytes() -> int | None:
    """Return the container's peak memory in bytes, or None if unknown.

    It includes all processes, memory files and shared memory, unlike a process's own number.
    Version 2 reports it since Linux 5.19.

    Source:
        https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files
    """
    for path in _PEAKS:
        text = _read(path)
        if text.isdigit():
            return int(text)
    return None


def oom_kills() -> int:
    """Return how many of the container's processes the kernel killed for memory."""
    return next(filter(None, (_count(path, "oom_kill") for path in _EVENTS)), 0)


def _count(path: str, name: str) -> int:
    """Return a name's number in a file of names and numbers; 0 if it is missing."""
    for line in _read(path).splitlines():
        key, _, number = line.partition(" ")
        if key == name and number.isdigit():
            return int(number)
    return 0


def _read(path: str) -> str:
    try:
        with open(path) as file:  # noqa: PTH123  # pathlib takes longer to import than all else here
            return file.read().strip()
    except OSError:
        return ""
