"""What a docker engine tells of each container, and the CPU its control group counts."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

_STEP_S = 0.001
_PATIENCE_S = 60.0
#: Control groups of version 1 and of version 2, the latter by docker itself or by systemd.
_USAGE = (
    "cpuacct/docker/{}/cpuacct.usage",
    "docker/{}/cpu.stat",
    "system.slice/docker-{}.scope/cpu.stat",
)


@dataclass
class Life:
    """A container.

    Attributes:
        created: Seconds since 1970, by the engine.
        started: When the engine saw that its program runs.
        ended: When it ended.
        cpu_s: Seconds of all that ran in its control group, docker's own beginnings in there
            included, up to the last millisecond or so; 0 where the group is not to be seen.
    """

    created: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    cpu_s: float = 0.0
    _reader: threading.Thread | None = field(default=None, repr=False)


class Watch:
    """Watches the containers with a label, one after the other; a context manager."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._lives: dict[str, Life] = {}
        self._ended: queue.Queue[Life] = queue.Queue()

    def __enter__(self) -> Self:
        command = f"docker events --since {time.time():.3f} --filter type=container".split()
        command += ["--format", "{{json .}}", "--filter", f"label={self._label}"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()

    def next(self) -> Life:
        """Wait for the end of the next container that ends, and tell of it."""
        return self._ended.get(timeout=_PATIENCE_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event: dict[str, Any] = json.loads(line)
            name, moment = event["Actor"]["ID"], event["timeNano"] / 1e9
            life = self._lives.setdefault(name, Life())
            if event["Action"] == "create":
                life.created = moment
            elif event["Action"] == "start":
                life.started = moment
                life._reader = threading.Thread(target=_count, args=(name, life), daemon=True)
                life._reader.start()
            elif event["Action"] == "die":
                life.ended = moment
                if life._reader is not None:
                    life._reader.join()
                self._ended.put(life)


def _count(name: str, life: Life) -> None:
    """Read a group's CPU until there is none: the engine removes it with the last process."""
    paths = [Path("/sys/fs/cgroup", path.format(name)) for path in _USAGE]
    path = next(filter(Path.exists, paths), None)
    while path is not None:
        try:
            words = path.read_text(encoding="ascii").split()
        except OSError:
            return
        # Version 1 has nanoseconds alone, version 2 microseconds after the word usage_usec.
        life.cpu_s = int(words[-1]) / 1e9 if len(words) == 1 else int(words[1]) / 1e6
        time.sleep(_STEP_S)
