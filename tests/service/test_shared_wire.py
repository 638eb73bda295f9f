"""Shared values in the container.

Starts the runtime as a process, because it fetches, verifies and maps the values.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from farcall_runtime.contract import SHARED_LEAST_BYTES, ExitCode
from tests.service.attempt import value_of

LARGE = os.urandom(SHARED_LEAST_BYTES + 1000)
LARGER = os.urandom(9 * 1024 * 1024)  # is fetched in two requests
ALIKE = os.urandom(len(LARGE))


class Bomb:
    """Unpickling it creates a file."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.write_text, (Path(self.marker), "the attacker's code ran")


class Array:
    """Has a buffer of its own, as an array has, which it may write to."""

    def __init__(self, data):
        self.data = memoryview(data)

    def __reduce_ex__(self, protocol):
        return Array, (pickle.PickleBuffer(self.data),)


HELD = Array(bytearray(LARGE))


def write(one, same, other):
    """Write to one of several equal arguments, and tell what all of them begin with then."""
    one.data[0] = (LARGE[0] + 1) % 256
    firsts = [each.data[0] for each in (one, same, HELD)]
    return firsts, bytes(same.data) == LARGE == bytes(HELD.data), bytes(other) == LARGER


def test_values_arrive_and_who_writes_to_one_changes_no_other(attempt, proxy):
    one, same = Array(bytearray(LARGE)), Array(bytearray(LARGE))
    made = attempt(write, one, same, LARGER)
    assert len(made.shared) == 2

    assert made.start().end() == (0, "")
    first = (LARGE[0] + 1) % 256
    assert value_of(made.outcome()) == ([first, LARGE[0], LARGE[0]], True, True)
    asked = [each.path for each in proxy.seen if "/shared/" in each.path]
    assert len(asked) == 3, asked  # each once, of which one in two parts


def forged(made, marker):
    """What a stranger may put instead of the first value."""
    one, other = sorted(made.shared, key=lambda key: made.shared[key] != LARGE)
    bomb = pickle.dumps(Bomb(str(marker)))
    data = made.shared[one]
    return {
        "forged": (one, bomb + data[len(bomb) :]),
        "shortened": (one, data[:-1]),
        "emptied": (one, b""),
        "another value": (one, made.shared[other]),
        "all but the last byte": (one, data[:-1] + bytes([data[-1] ^ 1])),
    }


@pytest.mark.parametrize(
    "how", ["forged", "shortened", "emptied", "another value", "all but the last byte"]
)
def test_a_value_that_is_not_what_its_name_says_is_not_read(attempt, tmp_path, how):
    marker = tmp_path / "ran"
    made = attempt(lambda *args: Path(marker).write_text("called"), LARGE, ALIKE)
    made.put(*forged(made, marker)[how])

    code, _ = made.start().end()
    assert ExitCode.INTEGRITY == code
    assert (made.outcome().meta["status"], marker.exists()) == ("refused", False)


def test_two_values_that_have_changed_places_are_found_out(attempt, tmp_path):
    made = attempt(lambda *args: (tmp_path / "ran").touch(), LARGE, ALIKE)
    (one, data), (other, others) = made.shared.items()
    made.put(one, others)
    made.put(other, data)

    assert made.start().end()[0] == ExitCode.INTEGRITY
    assert not (tmp_path / "ran").exists()


def test_a_value_that_is_gone_is_told_by_an_exit_code_of_its_own(attempt):
    made = attempt(len, LARGE)
    ((key, _),) = made.shared.items()
    made.delete(key)

    assert made.start().end()[0] == ExitCode.SHARED_MISSING
    detail = made.outcome().meta["detail"]
    assert key in detail
    assert "shares with others" in detail
