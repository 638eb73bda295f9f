"""Untrusted text, escaped for terminals."""

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
def test_no_escape_sequence_survives(text):
    shown = terminal.shown(text)
    assert hostile.obeyed(shown) == set()
    assert "\x1b" not in shown
    assert terminal.shown(shown) == shown
    assert "\n" not in terminal.in_a_line(text)
    assert hostile.obeyed(terminal.in_a_line(text)) == set()
    assert hostile.obeyed(terminal.output(text)) == set()


@pytest.mark.parametrize("name", hostile.SEQUENCES)
def test_each_sequence_is_made_visible(name):
    text = f"a{hostile.SEQUENCES[name]}b"
    for show in (terminal.shown, terminal.in_a_line, terminal.output):
        assert hostile.obeyed(show(text)) == set()
        assert show(text) != "ab"
        assert show(text)[:1] + show(text).rstrip("\x1b[0m")[-1:] == "ab"


def test_plain_text_and_lines_are_unchanged():
    text = "Grüße, \U0001f600 שלום\n\tindented  \n"
    assert terminal.shown(text) == text
    assert terminal.shown("a\r\nb") == "a\nb"
    assert terminal.in_a_line("a\tb\r\nc") == "a b c"


def test_colors_survive_only_in_output():
    """They are reset at the end of the line."""
    text = "\x1b[1;31mred\x1b[2J"
    assert terminal.output(text) == "\x1b[1;31mred^[[2J\x1b[0m"
    assert terminal.shown(text) == "red^[[2J"


def test_log_lines_escape_quoted_text():
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


def test_all_modules_use_the_escaping_logger():
    sources = Path(farcall.__file__).parent.rglob("*.py")
    assert [each for each in sources if "getLogger(__name__)" in each.read_text()] == []


def test_wrong_format_is_left_to_handlers():
    record = logging.LogRecord("farcall", logging.INFO, "a.py", 1, "%d jobs", ("many",), None)
    assert logging.getLogger("farcall").filter(record)


def test_harmless_log_records_are_unchanged():
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
