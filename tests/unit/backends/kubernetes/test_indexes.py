from __future__ import annotations

import pytest

from farcall.backends.kubernetes import names


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, []), ("", []), ("0", [0]), ("1,3-5", [1, 3, 4, 5]), ("0-2,9", [0, 1, 2, 9])],
)
def test_index_list_is_parsed(text, expected):
    assert list(names.listed(text)) == expected
    assert names.count(text) == len(expected)
    assert [index for index in range(12) if names.holds(text, index)] == expected


def test_many_indexes_are_searched():
    text = ",".join(f"{n}-{n + 1}" for n in range(0, 9_000, 3))
    assert names.count(text) == 6_000
    assert [names.holds(text, n) for n in (8_997, 8_998, 8_999)] == [True, True, False]
