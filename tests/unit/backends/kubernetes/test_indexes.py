"""x"""

import pytest

from farcall.backends.kubernetes.indexes import parse_indexes


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, []), ("", []), ("0", [0]), ("1,3-5", [1, 3, 4, 5]), ("0-2,9", [0, 1, 2, 9])],
)
def test_index_list_is_parsed(text, expected):
    assert sorted(parse_indexes(text)) == expected
