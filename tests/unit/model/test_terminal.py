"""Text of others as a terminal is given it."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import farcall
from farcall.model import terminal
from tests.support import hostile

_ANY = st.text(
    st.characters(exclude_categories=()) | st.sampled_from("\x1b\r\n\t[];m0 \x9b\u202e")
)


@given(_ANY)
def test_whatever_it_is_nothing_of_it_is_obeyed(text):
    shown = terminal.shown(text)
    assert hostile.obeyed(shown) == set()
    assert "\x1b" not in shown
    assert terminal.shown(shown) == shown
    assert "\n" not in terminal.in_a_line(text)
    assert hostile.obeyed(terminal.in_a_line(text)) == set()
    assert hostile.obeyed(terminal.output(text)) == set()


@pytest.mark.parametrize("name", hostile.SEQUENCES)
def test_each_sequence_is_shown(name):
    text = f"a{hostile.SEQUENCES[name]}b"
    for show in (terminal.shown, terminal.in_a_line, terminal.output):
        assert hostile.obeyed(show(text)) == set()
        assert show(text) != "ab"
        assert show(text)[:1] + show(text).rstrip("\x1b[0m")[-1:] == "ab"


def test_text_and_lines_stay_as_they_are():
    text = "Grüße, \U0001f600 שלום\n\tindented  \n"
    assert terminal.shown(text) == text
    assert terminal.shown("a\r\nb") == "a\nb"
    assert terminal.in_a_line("a\tb\r\nc") == "a b c"


def test_colours_are_for_output_alone_and_end_with_its_line():
    text = "\x1b[1;31mred\x1b[2J"
    assert terminal.output(text) == "\x1b[1;31mred^[[2J\x1b[0m"
    assert terminal.shown(text) == "red^[[2J"


def test_a_line_in_a_log_shows_what_it_quotes():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    log = logging.getLogger("farcall")
    log.addHandler(handler)
    try:
        log.warning("key %s of %d: %s", hostile.TEXT, 7, ValueError(hostile.TEXT))
        try:
            raise ValueError(hostile.TEXT)
        except ValueError:
            log.exception("it broke")
    finally:
        log.removeHandler(handler)
    assert hostile.obeyed(stream.getvalue()) == set()
    assert stream.getvalue().count(hostile.MARK) == 3
    assert " of 7: " in stream.getvalue()


def test_all_of_farcall_writes_to_the_logger_whose_lines_are_shown():
    sources = Path(farcall.__file__).parent.rglob("*.py")
    assert [each for each in sources if "getLogger(__name__)" in each.read_text()] == []


def test_a_line_of_a_wrong_format_is_told_of_by_its_handlers_alone():
    record = logging.LogRecord("farcall", logging.INFO, "a.py", 1, "%d jobs", ("many",), None)
    assert logging.getLogger("farcall").filter(record)


def test_lines_of_farcall_in_a_log_are_left_alone_where_nothing_is_to_be_hidden():
    kept = []

    class Keep(logging.Handler):
        def emit(self, record):
            kept.append(record)

    log = logging.getLogger("farcall")
    log.addHandler(Keep())
    try:
        log.warning("job %s ended", "abc")
    finally:
        log.removeHandler(log.handlers[-1])
    assert (kept[0].msg, kept[0].args) == ("job %s ended", ("abc",))
