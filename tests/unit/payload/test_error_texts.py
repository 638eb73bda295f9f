"""Errors in one line, and grouped."""

import pytest

from farcall.model import errors
from farcall.model.failure_reasons import About, FailureReason
from farcall.payload.error_texts import LONGEST, Groups, Reason
from farcall_runtime import failures


def raised(call):
    """Return the record that the container makes of an error."""
    try:
        call()
    except Exception as error:
        return failures.capture(error, error.__traceback__.tb_next)[0]
    raise AssertionError


def solve():
    raise ValueError("\n singular \x1b[2Jmatrix\nsecond line")


def test_reason_has_class_and_first_line():
    reason = Reason.of_record(raised(solve))
    assert reason == (
        "ValueError",
        "ValueError: singular ^[[2Jmatrix",
        "test_error_texts.py:solve",
    )
    assert Reason.of("KeyError", "") == ("KeyError", "KeyError", "")


def test_place_is_users_innermost_function():
    def within():
        return [int(text) for text in ("x",)]

    def in_the_library():
        import json

        json.loads("{")

    assert raised(within)["place"].startswith("test_error_texts.py:")
    assert raised(in_the_library)["place"] == "test_error_texts.py:in_the_library"


def test_reason_length_is_limited():
    reason = Reason.of("K" * 1000, "m" * 100_000, "p" * 1000)
    assert [len(text) for text in reason] == [LONGEST] * 3
    assert all(text.isprintable() for text in Reason.of("a\x00b", "\u202e\x85x", "\x1b"))


def test_job_error_omits_the_job():
    why = FailureReason(errors.OutOfMemoryError, "the task ran out of memory", "raise memory")
    error = why.error(About("6f1c:7", "fit"))
    expected = "OutOfMemoryError: the task ran out of memory"
    assert Reason.of_error(error).text == Reason.of_failure_reason(why).text == expected


def test_foreign_error_code_is_not_run():
    class Hostile(Exception):  # noqa: N818
        def __str__(self):
            raise AssertionError

    assert Reason.of_error(Hostile()).text == "Hostile"


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ("index 3 of axis 0 of 2", "index 17 of axis 1 of 2", "index ... of axis ... of 2"),
        ("<object at 0x7f3a>", "<object at 0x10>", "<object at ...>"),
        (
            "no 6f1c2d3e-0000-4000-8000-000000000000",
            "no 00000000-0000-4000-8000-0123456789ab",
            "no ...",
        ),
        ("loss 1.5e-07", "loss 2", "loss ..."),
        ("loss 2", "loss 2", "loss 2"),
    ],
)
def test_differing_numbers_and_names_are_omitted(one, other, common):
    groups = Groups()
    groups.add(5, Reason.of("ValueError", one))
    groups.add(9, Reason.of("ValueError", other))
    (group,) = groups.record()
    assert group == {"text": f"ValueError: {common}", "count": 2, "example": 5, "call": None}


@pytest.mark.parametrize(
    "other",
    [
        Reason.of("KeyError", "x1", "fit.py:solve"),
        Reason.of("ValueError", "x2", "fit.py:solve"),
        Reason.of("ValueError", "x1", "fit.py:other"),
    ],
)
def test_class_place_and_words_distinguish_groups(other):
    groups = Groups()
    groups.add(0, Reason.of("ValueError", "x1", "fit.py:solve"))
    groups.add(1, other)
    assert len(groups.record()) == 2


def test_groups_are_summarized_by_class():
    groups = Groups()
    assert not groups
    assert groups.summary() == ""
    groups.add(3, Reason.of("ValueError", "singular matrix")).call = "fit(lr=0.1, depth=3)"
    assert groups.summary() == "ValueError: singular matrix"
    assert groups.lines() == ["ValueError: singular matrix (call 3: fit(lr=0.1, depth=3))"]
    groups.add(4, Reason.of("ValueError", "singular matrix"), 12)
    assert groups.summary() == "13 x ValueError: singular matrix"
    groups.add(7, Reason.of("MemoryError", ""))
    groups.add(8, Reason.of("ValueError", "too few"))
    assert groups.summary() == str(groups) == "ValueError x14, MemoryError x1"
    first, *_ = groups.lines()
    assert first == ("13 x ValueError: singular matrix (such as call 3: fit(lr=0.1, depth=3))")


def test_number_of_groups_is_limited():
    groups = Groups()
    for number in range(5000):
        groups.add(number, Reason.of(f"Error{'abc'[number % 3]}{number}", "x"))
    assert len(groups.record()) == 101
    assert sum(group["count"] for group in groups.record()) == 5000
    assert len(groups.lines()) == 6
    assert str(groups).count(" x") == 6
