import json

import pytest

from farcall.backends.merging import merge

LABELS = ("name", "type")


def test_merging_does_not_modify_inputs():
    base, extra = {"a": {"b": 1}, "l": [{"name": "x", "v": 1}]}, {"a": {"c": 2}, "n": 0}
    before = json.dumps([base, extra])
    assert merge(base, extra, LABELS) == {
        "a": {"b": 1, "c": 2},
        "l": [{"name": "x", "v": 1}],
        "n": 0,
    }
    assert json.dumps([base, extra]) == before


@pytest.mark.parametrize(
    ("expected", "base", "extra"),
    [
        (
            [{"name": "a", "value": "2"}],
            [{"name": "a", "value": "1"}],
            [{"name": "a", "value": "2"}],
        ),
        ([{"name": "a"}, {"name": "b"}], [{"name": "a"}], [{"name": "b"}]),
        (
            [{"type": "VCPU", "value": "1"}, {"type": "GPU", "value": "1"}],
            [{"type": "VCPU", "value": "1"}],
            [{"type": "GPU", "value": "1"}],
        ),
        (["new"], ["old"], ["new"]),
        (False, True, False),
        ("", "text", ""),
    ],
)
def test_named_lists_merge_others_are_replaced(expected, base, extra):
    assert merge(base, extra, LABELS) == expected
