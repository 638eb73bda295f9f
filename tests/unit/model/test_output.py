"""Which part of a task's output is whose, with gaps where some of it is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from farcall.model import output


def note(length):
    return f"\n[farcall: {length} bytes could not be stored]\n".encode()


def test_a_gap_is_noted_where_it_is():
    assert output.join(b"abcdef", [(2, 10), (5, 7)]) == b"ab" + note(10) + b"cde" + note(7) + b"f"
    assert output.join(b"abcdef", ()) == b"abcdef"
    assert output.join(b"", [(0, 3)]) == note(3)


def test_a_place_before_behind_and_within_a_gap():
    gaps = [(4, 8)]  # the bytes 4 to 11 of "0123456789abcdef"
    joined = output.join(b"0123cdef", gaps)
    assert [joined[: output.place(n, gaps)] for n in (0, 4)] == [b"", b"0123"]
    assert [joined[output.place(n, gaps) :] for n in (5, 11, 12)] == [b"cdef"] * 3
    assert joined[output.place(14, gaps) :] == b"ef"


@given(
    calls=st.lists(st.binary(max_size=20), min_size=1, max_size=6),
    lost=st.sets(st.integers(0, 119)),
)
def test_each_call_has_what_is_left_of_its_own_bytes(calls, lost):
    whole = b"".join(calls)
    lost = sorted(n for n in lost if n < len(whole))
    kept = bytes(byte for n, byte in enumerate(whole) if n not in lost)
    gaps = []  # as the container counts them: bytes kept before each, and its length
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
