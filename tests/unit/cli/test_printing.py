"""Output is escaped for its destination."""

import io
import re
import sys

from farcall.cli import printing
from farcall.model.output import LogLine
from tests.support import hostile


def test_text_stream_needs_no_encoding(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    printing.echo(f"é {hostile.TEXT}")
    assert hostile.MARK in out.getvalue()
    assert hostile.obeyed(out.getvalue()) == set()


class _Terminal(io.TextIOWrapper):
    def isatty(self):
        return True


def terminal(monkeypatch):
    """Replace both streams with one terminal; return a function that returns its rows."""
    opened = _Terminal(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", opened)
    monkeypatch.setattr(sys, "stderr", opened)

    def rows():
        found, row = [], ""
        for piece in re.findall("[\r\n]|[^\r\n]+", opened.buffer.getvalue().decode()):
            if piece == "\n":
                found.append(row.rstrip())
                row = ""
            elif piece != "\r":
                row = piece + row[len(piece) :]
        return [*found, row.rstrip()]

    return rows


def state(text, stream="stderr"):
    return LogLine(text, stream, 1, None, goes_on=True)


def line(text, stream="stdout"):
    return LogLine(text, stream, 1, None)


def test_bar_stays_in_last_row(monkeypatch):
    shown = terminal(monkeypatch)
    printer = printing.Printer(begin=lambda _: "fit | ")
    printer.print([state("10% #"), state("20% ##\x1b[2J")])
    assert shown() == ["fit | 20% ##^[[2J"]
    printer.print([line("epoch 1"), line("epoch 2"), state("30%")])
    assert shown() == ["fit | epoch 1", "fit | epoch 2", "fit | 30%"]
    printer.print([line("done", "stderr")])
    assert shown()[2:] == ["fit | done", ""]
    printer.print([state("again")])
    printing.echo("farcall: lost")
    assert shown()[3:] == ["farcall: lost", ""]
    printer.print([state("again"), state("")])
    assert shown()[4:] == [""]


def test_bar_is_cut_to_terminal_width(monkeypatch):
    shown = terminal(monkeypatch)
    printing.Printer().print([state("\u4e2d" * 100)])
    assert shown() == ["\u4e2d" * 39]


def test_bar_states_are_omitted_outside_terminals(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", out)
    printing.Printer().print([state("10%", "stdout"), line("100%"), state("1%", "stdout")])
    assert out.buffer.getvalue() == b"100%\n"


def test_unencodable_characters_are_escaped(monkeypatch):
    out = _Terminal(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", out)
    printing.echo("é\u4e2d\ud800")
    assert out.buffer.getvalue() == b"\xe9\\u4e2d<U+D800>\n"
