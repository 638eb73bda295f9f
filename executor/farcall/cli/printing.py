"""Output functions for all commands; they escape control characters on terminals."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterable
from typing import TextIO

import click
from rich.cells import cell_len, set_cell_size

from farcall.model import terminal
from farcall.model.output import LogLine
from farcall_runtime.contract import STDERR


def echo(text: str, *, err: bool = False, fg: str | None = None) -> None:
    """Print a text and a line end, with control characters escaped."""
    _row.forget()
    stream = sys.stderr if err else sys.stdout
    encoding = stream.encoding or "utf-8"  # a text-only stream has no encoding
    plain = terminal.encodable(terminal.shown(text), encoding)
    click.echo(click.style(plain, fg=fg) if fg else plain, err=err)


def hand_out(text: str) -> None:
    """Write data to stdout; only a terminal gets them with control characters escaped."""
    click.echo(terminal.shown(text) if sys.stdout.isatty() else text, nl=False)


class _Row:
    """Last row of a terminal, which shows a job's progress bar.

    There is one row, for the latest text. All other output is printed above it.
    """

    def __init__(self) -> None:
        self._owner: object = None
        self._stream: TextIO | None = None
        self._text = ""

    def show(self, owner: object, stream: TextIO, text: str) -> None:
        """Replace the row's text, cut to the terminal's width.

        Args:
            owner: Owner of the text.
            stream: The terminal.
            text: The text; an empty one only removes the same owner's text.
        """
        if text or self._owner == owner:
            self.forget()
        if text:
            width = _columns(stream) - 1
            text = text if cell_len(text) <= width else set_cell_size(text, width)
            self._owner, self._stream, self._text = owner, stream, text
            self._write(text)

    def forget(self) -> None:
        """Clear the row."""
        self._wipe()
        self._owner, self._stream, self._text = None, None, ""

    def print(self, owner: object, stream: TextIO, data: bytes) -> None:
        """Print an owner's lines above the row, or in place of the owner's own row."""
        if self._owner == owner:
            self.forget()
        self._wipe()
        stream.buffer.write(data)
        stream.flush()
        self._write(self._text)

    def _wipe(self) -> None:
        self._write(f"\r{' ' * cell_len(self._text)}\r" if self._text else "")

    def _write(self, text: str) -> None:
        if self._stream is not None and text:
            self._stream.buffer.write(text.encode(errors="backslashreplace"))
            self._stream.flush()


_row = _Row()


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):  # not a file of the operating system
        return 80


class Printer:
    """Writer that copies lines to the stream that the task wrote them to, in UTF-8.

    On terminals control characters are escaped; elsewhere lines are unchanged. Lines from
    CloudWatch, which merges both streams, go to stdout. Progress bars are shown only on terminals,
    in the last row, until the bar's next state or its final line arrives.

    Args:
        layout: Converts a line to the text to write.
        begin: Prefix of each line.
        only: ``"stdout"`` or ``"stderr"`` to send all lines there.
    """

    def __init__(
        self,
        layout: Callable[[LogLine], str] = lambda line: line.text,
        *,
        begin: Callable[[LogLine], str] = lambda _: "",
        only: str = "",
    ) -> None:
        self._layout = layout
        self._begin = begin
        self._only = only

    def print(self, lines: Iterable[LogLine]) -> None:
        """Write lines.

        Raises:
            BrokenPipeError: The reader has closed the pipe.
        """
        for (written, goes_on), group in itertools.groupby(lines, self._kind):
            stream = sys.stderr if (self._only or written) == STDERR else sys.stdout
            is_terminal, owner = stream.isatty(), (self, written)
            if goes_on:
                *_, state = group
                if is_terminal:
                    text = self._layout(state)
                    text = f"{self._begin(state)}{terminal.shown(text)}" if text else ""
                    _row.show(owner, stream, text)
                continue
            laid = self._on_terminal if is_terminal else self._as_it_is
            data = "".join(f"{laid(line)}\n" for line in group)
            _row.print(owner, stream, data.encode(errors="backslashreplace"))

    def _as_it_is(self, line: LogLine) -> str:
        return f"{self._begin(line)}{self._layout(line)}"

    def _on_terminal(self, line: LogLine) -> str:
        return f"{self._begin(line)}{terminal.output(self._layout(line))}"

    @staticmethod
    def _kind(line: LogLine) -> tuple[str, bool]:
        return line.stream, line.goes_on


def give_up_stdout() -> None:
    """Discard output to stdout, whose reader has left, also at process exit.

    Source:
        https://docs.python.org/3/library/signal.html#note-on-sigpipe
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
