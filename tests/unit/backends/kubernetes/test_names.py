import re

import pytest

from farcall.backends.kubernetes import names
from farcall.backends.kubernetes.names import object_name, run_label

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@pytest.mark.parametrize("name", ["a", "simulate-20261123-1", "a" * 52])
def test_legal_name_is_kept(name):
    assert object_name(name) == name


@pytest.mark.parametrize(
    "name", ["Simulate", "a_b", "a" * 53, "x" * 128, "-a", "a-", "_", "é", "a--" * 30, ""]
)
def test_illegal_name_becomes_unique_legal_name(name):
    found = object_name(name)
    assert LABEL.fullmatch(found)
    assert len(found) <= 52
    assert object_name(name) == found
    assert object_name(f"{name}x") != found


def test_different_illegal_names_stay_different():
    assert len({object_name(name) for name in ("a_b", "a-B", "A_b", "a.b")}) == 4


@pytest.mark.parametrize(
    ("run", "label"),
    [
        ("me-20261123-101500-0a1b2c", "me-20261123-101500-0a1b2c"),
        ("a/b", "a-b"),
        ("x" * 62 + "-yz", "x" * 62),
    ],
)
def test_run_name_becomes_label(run, label):
    assert run_label(run) == label


@pytest.mark.parametrize(("label", "number"), [("3", 3), ("x", 9), (None, 9)])
def test_node_rank_comes_from_label(label, number):
    labels = {"farcall/node": label} if label else {}
    assert names.rank({"metadata": {"labels": labels}}, 9) == number
