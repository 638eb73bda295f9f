"""What the supervisor and the task's process say to each other, which share one machine."""

from __future__ import annotations

import mmap
import struct

_SLATE_BYTES = 4096
_LENGTH = struct.Struct("=H")


class Slate:
    """A text in memory that a process shares with those it forks; what is written last counts.

    It needs no descriptor, and who reads it does not wait.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _SLATE_BYTES)

    def write(self, text: str) -> None:
        """Write a text, of which as much is kept as there is room for."""
        data = text.encode(errors="replace")[: _SLATE_BYTES - _LENGTH.size]
        self._memory[_LENGTH.size : _LENGTH.size + len(data)] = data
        self._memory[: _LENGTH.size] = _LENGTH.pack(len(data))

    def read(self) -> str:
        """Return the text; the empty one where nothing was written."""
        (length,) = _LENGTH.unpack(self._memory[: _LENGTH.size])
        return self._memory[_LENGTH.size : _LENGTH.size + length].decode(errors="replace")
