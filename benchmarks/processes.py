"""What Linux says of processes: memory in bytes, and whose children they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_FIELDS = {"rss": "VmRSS", "peak": "VmHWM", "anonymous": "RssAnon"}


def memory_bytes(pid: int | str = "self") -> dict[str, int]:
    """Return a process's resident size, the largest of it so far, and its anonymous part."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    told = dict(line.split(":", 1) for line in lines)
    return {name: int(told[field].split()[0]) * 1024 for name, field in _FIELDS.items()}


def restart_peak(pid: int | str = "self") -> None:
    """Have a process's largest resident size begin again (proc(5), ``clear_refs``)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")


def descendants(pid: int) -> Iterator[int]:
    """Yield a process's children, and theirs; those that are ending may be missing."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text(encoding="ascii").split()
        except OSError:
            continue
        for child in map(int, children):
            yield child
            yield from descendants(child)
