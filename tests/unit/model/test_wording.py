"""Numbers and names in sentences."""

import pytest

from farcall.model.names import counted, named


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 dispatches"), (1, "1 dispatch"), (12, "12 dispatches")]
)
def test_noun_is_plural_except_for_one(number, text):
    assert counted(number, "dispatch", "es") == text


def test_first_names_are_listed():
    assert named(["a"]) == "1 job (a)"
    assert named(list("abcde"), "task") == "5 tasks (a, b, c, d, e)"
    assert named(list("abcdefg"), "task") == "7 tasks (a, b, c, d, e and 2 more)"
