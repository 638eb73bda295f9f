"""Assignment of output to calls, with gaps for lost output."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farcall.model import output


def note(length):
    return f"\n[farcall: {length} bytes could not be stored]\n".encode()


def test_gap_is_noted_in_place():
    assert output.join(b"abcdef", [(2, 10), (5, 7)]) == b"ab" + note(10) + b"cde" + note(7) + b"f"
    assert output.join(b"abcdef", ()) == b"abcdef"
    assert output.join(b"", [(0, 3)]) == note(3)


def test_places_around_gap_are_mapped():
    gaps = [(4, 8)]  # bytes 4 to 11 of "0123456789abcdef"
    joined = output.join(b"0123cdef", gaps)
    assert [joined[: output.place(n, gaps)] for n in (0, 4)] == [b"", b"0123"]
    assert [joined[output.place(n, gaps) :] for n in (5, 11, 12)] == [b"cdef"] * 3
    assert joined[output.place(14, gaps) :] == b"ef"


@given(
    calls=st.lists(st.binary(max_size=20), min_size=1, max_size=6),
    lost=st.sets(st.integers(0, 119)),
)
def test_each_call_keeps_its_remaining_bytes(calls, lost):
    whole = b"".join(calls)
    lost = sorted(n for n in lost if n < len(whole))
    kept = bytes(byte for n, byte in enumerate(whole) if n not in lost)
    gaps = []  # as the container counts them: bytes kept before each gap, and its length
    for number, n in enumerate(lost):
        if number and lost[number - 1] == n - 1:
            gaps[-1] = (gaps[-1][0], gaps[-1][1] + 1)
        else:
            gaps.append((n - number, 1))

    joined = output.join(kept, gaps)
    begin = end = 0
    places = [0]
    for call in calls:
        end += len(call)
        places.append(output.place(end, gaps))
        share = joined[places[-2] : places[-1]]
        for _, length in gaps:
            share = share.replace(note(length), b"")
        assert share == bytes(whole[n] for n in range(begin, end) if n not in lost)
        begin = end
    assert places == sorted(places)
    assert joined[places[-1] :] == b""


# --- lines --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("plain", "plain"),
        ("", ""),
        ("windows\r", "windows"),
        ("10%\r20%", "20%"),
        ("10%\r20%\r", "20%"),
        ("\r 0%\r 100%", " 100%"),  # tqdm starts like this
        ("100%\r    \r", ""),  # tqdm erases its bar like this
        ("100%\r    \rdone", "done"),
        ("\r", ""),
    ],
)
def test_last_state_of_line_counts(line, shown):
    assert output.last_state(line) == shown
    lines = output.Lines()
    assert lines.add("stdout", f"{line}\n".encode()) == [shown]


@given(st.text(st.sampled_from("ab \r\n\u00fc")), st.sets(st.integers(0, 60)))
def test_chunk_boundaries_do_not_change_lines(text, cuts):
    data = text.encode()
    begins = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    lines, found = output.Lines(), []
    for begin, end in itertools.pairwise(begins):
        found += lines.add("stdout", data[begin:end])
    found += lines.end("stdout")

    *whole, rest = (_last(line) for line in text.split("\n"))
    assert found == [*whole, *([rest] if rest else [])]
    assert lines.seen("stdout") == len(data)


def _last(line):
    """Return the last state, computed from the whole line."""
    state = ([""] + [part for part in re.split("\r", line) if part])[-1]
    return "" if "\r" in line and not state.strip() else state


def test_endless_bar_is_bounded():
    lines = output.Lines()
    assert lines.state("stderr") is None
    for number in range(1000):
        assert lines.add("stderr", b"\r%4d of 1000" % number + b"\rx" * 50) == []
        assert lines.add("stderr", b"\r%4d of 1000" % number) == []
        assert lines.state("stderr") == f"{number:4} of 1000"
    assert len(lines._begun["stderr"]) < 20
    assert lines.add("stderr", b"\r    \r") == []
    assert lines.state("stderr") == ""
    assert lines.end("stderr") == []


def test_unfinished_plain_line_has_no_state():
    lines = output.Lines()
    lines.add("stdout", b"Loading ...")
    assert lines.state("stdout") is None
