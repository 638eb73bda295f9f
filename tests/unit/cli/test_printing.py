"""What is printed is shown, whatever it is printed to."""

from __future__ import annotations

import io
import sys

from farcall.cli import printing
from farcall.engine.logs.transcript import Line
from tests.support import hostile


def test_what_is_said_into_a_stream_of_text_alone_needs_no_encoding(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    printing.say(f"é {hostile.TEXT}")
    assert hostile.MARK in out.getvalue()
    assert hostile.obeyed(out.getvalue()) == set()


class _Terminal(io.TextIOWrapper):
    def isatty(self):
        return True


def test_a_line_that_rewrites_itself_cannot_rewrite_what_stands_before_it(monkeypatch):
    shown = _Terminal(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", shown)
    line = Line("10%\r20%\x1b[2J", "stdout", 1, None)
    printing.Printer(begin=lambda _: "TIME ").print([line])
    assert shown.buffer.getvalue() == b"TIME 10%\rTIME 20%^[[2J\n"


def test_what_the_terminals_encoding_lacks_is_shown(monkeypatch):
    out = _Terminal(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", out)
    printing.say("é\u4e2d\ud800")
    assert out.buffer.getvalue() == b"\xe9\\u4e2d<U+D800>\n"
