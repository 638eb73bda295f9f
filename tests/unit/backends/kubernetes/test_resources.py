import pytest

from farcall.backends.kubernetes import names


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2", 2),
        ("500m", 0.5),
        ("1Gi", 2**30),
        ("1.5G", 1.5e9),
        ("3e2", 300),
        ("128974848", 128974848),
        ("1x", 0),
        ("", 0),
        (None, 0),
    ],
)
def test_quantities_are_parsed(text, number):
    assert names.quantity(text) == number


def test_requested_resources_are_read():
    limits = {"cpu": "1500m", "memory": "1Gi", "nvidia.com/gpu": "2", "amd.com/gpu": 1}
    assert names.resources(limits) == (1.5, 1024, 3)
    assert names.resources({}) == (0, 0, 0)


@pytest.mark.parametrize(("label", "number"), [("3", 3), ("x", 9), (None, 9)])
def test_node_rank_comes_from_label(label, number):
    labels = {"farcall/node": label} if label else {}
    assert names.rank({"metadata": {"labels": labels}}, 9) == number


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, []), ("", []), ("0", [0]), ("1,3-5", [1, 3, 4, 5]), ("0-2,9", [0, 1, 2, 9])],
)
def test_index_list_is_parsed(text, expected):
    assert sorted(names.indexes(text)) == expected
