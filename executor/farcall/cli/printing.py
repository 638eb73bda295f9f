"""Everything that is printed goes through here, so that a terminal shows it and obeys nothing."""

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


def say(text: str, *, err: bool = False, fg: str | None = None) -> None:
    """Print a text and the end of its last line, to stderr if told to, its controls shown."""
    _row.forget()
    stream = sys.stderr if err else sys.stdout
    encoding = stream.encoding or "utf-8"  # a stream of text alone has none
    plain = terminal.shown(text).encode(encoding, "backslashreplace").decode(encoding)
    click.echo(click.style(plain, fg=fg) if fg else plain, err=err)


def hand_out(text: str) -> None:
    """Write data to stdout: as it is, but to a terminal with its controls shown."""
    click.echo(terminal.shown(text) if sys.stdout.isatty() else text, nl=False)


class _Row:
    """The last row of a terminal, where it is shown what a job's progress bar shows.

    There is one of them, for what was written last. Whatever else is printed goes above it.
    """

    def __init__(self) -> None:
        self._owner: object = None
        self._stream: TextIO | None = None
        self._text = ""

    def show(self, owner: object, stream: TextIO, text: str) -> None:
        """Show a text, cut to the terminal's width, instead of what is shown.

        Args:
            owner: Whose text it is.
            stream: The terminal.
            text: The text; an empty one only takes away what its owner shows.
        """
        if text or self._owner == owner:
            self.forget()
        if text:
            width = _columns(stream) - 1
            text = text if cell_len(text) <= width else set_cell_size(text, width)
            self._owner, self._stream, self._text = owner, stream, text
            self._write(text)

    def forget(self) -> None:
        """Take away what is shown."""
        self._wipe()
        self._owner, self._stream, self._text = None, None, ""

    def print(self, owner: object, stream: TextIO, data: bytes) -> None:
        """Write lines of somebody's above what is shown, or in its place if it is the same's."""
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
    except (OSError, ValueError):  # not the operating system's
        return 80


class Printer:
    """Writes lines where their task wrote them, in UTF-8.

    To a terminal harmless ones are written, elsewhere they are as they are. What CloudWatch does
    not tell apart goes to stdout. What a progress bar shows is shown on a terminal alone, in its
    last row, until another state of it or the whole line comes.

    Args:
        layout: Makes of a line what is written for it.
        begin: What stands before it.
        only: ``"stdout"`` or ``"stderr"`` where everything goes there.
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
            BrokenPipeError: Whoever read them is gone.
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
        """Return which stream a line is of, and whether it goes on."""
        return line.stream, line.goes_on


def give_up_stdout() -> None:
    """Let nothing more be written to stdout, whose reader is gone, at this process's end either.

    Source:
        https://docs.python.org/3/library/signal.html#note-on-sigpipe
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
