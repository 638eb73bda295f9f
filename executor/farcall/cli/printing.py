"""Everything that is printed goes through here, so that a terminal shows it and obeys nothing."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

import click

from farcall.model import terminal
from farcall_runtime.contract import STDERR


class Written(Protocol):
    """A line that a job wrote. Where it has a ``stream``, that says to which one."""

    @property
    def text(self) -> str:
        """The line without its end."""


L = TypeVar("L", bound=Written)


def say(text: str, *, err: bool = False, fg: str | None = None) -> None:
    """Print a text and the end of its last line, to stderr if told to, its controls shown."""
    stream = sys.stderr if err else sys.stdout
    encoding = stream.encoding or "utf-8"  # a stream of text alone has none
    plain = terminal.shown(text).encode(encoding, "backslashreplace").decode(encoding)
    click.echo(click.style(plain, fg=fg) if fg else plain, err=err)


def hand_out(text: str) -> None:
    """Write data to stdout: as it is, but to a terminal with its controls shown."""
    click.echo(terminal.shown(text) if sys.stdout.isatty() else text, nl=False)


class Printer(Generic[L]):
    """Writes lines where their task wrote them, in UTF-8.

    To a terminal harmless ones are written, elsewhere they are as they are. What CloudWatch does
    not tell apart goes to stdout.

    Args:
        layout: Makes of a line what is written for it.
        begin: What stands before it, and on a terminal again where it rewrites itself.
        only: ``"stdout"`` or ``"stderr"`` where everything goes there.
    """

    def __init__(
        self,
        layout: Callable[[L], str] = lambda line: line.text,
        *,
        begin: Callable[[L], str] = lambda _: "",
        only: str = "",
    ) -> None:
        self._layout = layout
        self._begin = begin
        self._only = only

    def print(self, lines: Iterable[L]) -> None:
        """Write lines.

        Raises:
            BrokenPipeError: Whoever read them is gone.
        """
        for to_stderr, group in itertools.groupby(lines, self._goes_to_stderr):
            stream = sys.stderr if to_stderr else sys.stdout
            laid = self._on_terminal if stream.isatty() else self._as_it_is
            data = "".join(f"{laid(line)}\n" for line in group)
            stream.buffer.write(data.encode(errors="backslashreplace"))
            stream.flush()

    def _as_it_is(self, line: L) -> str:
        return f"{self._begin(line)}{self._layout(line)}"

    def _on_terminal(self, line: L) -> str:
        begin = self._begin(line)
        return begin + terminal.output(self._layout(line)).replace("\r", f"\r{begin}")

    def _goes_to_stderr(self, line: L) -> bool:
        return (self._only or getattr(line, "stream", "")) == STDERR


def give_up_stdout() -> None:
    """Let nothing more be written to stdout, whose reader is gone, at this process's end either.

    Source:
        https://docs.python.org/3/library/signal.html#note-on-sigpipe
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
