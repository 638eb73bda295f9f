"""Patches of the Kubernetes API."""

from __future__ import annotations

import pytest

from farcall.local.kubernetes import patches
from farcall.local.kubernetes.errors import BadRequestError

POD = "core.v1.PodSpec"


@pytest.mark.parametrize(
    ("document", "patch", "expected"),
    [  # of RFC 7386, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge(document, patch, expected):
    assert patches.merge(document, patch) == expected


@pytest.mark.parametrize(
    ("document", "operations", "expected"),
    [
        ({"a": [1, 3]}, [{"op": "add", "path": "/a/1", "value": 2}], {"a": [1, 2, 3]}),
        ({"a": [1]}, [{"op": "add", "path": "/a/-", "value": 2}], {"a": [1, 2]}),
        ({"a": 1}, [{"op": "remove", "path": "/a"}], {}),
        ({"a/b": 1}, [{"op": "replace", "path": "/a~1b", "value": 2}], {"a/b": 2}),
        ({"a": 1}, [{"op": "move", "from": "/a", "path": "/b"}], {"b": 1}),
        ({"a": [1]}, [{"op": "copy", "from": "/a", "path": "/b"}], {"a": [1], "b": [1]}),
        ({"a": 1}, [{"op": "test", "path": "/a", "value": 1}], {"a": 1}),
    ],
)
def test_json_patch(document, operations, expected):
    before = repr(document)
    assert patches.json_patch(document, operations) == expected
    assert repr(document) == before


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/none"},
        {"op": "replace", "path": "/none", "value": 1},
        {"op": "add", "path": "/none/deeper", "value": 1},
        {"op": "test", "path": "/a", "value": 2},
        {"op": "remove", "path": "a"},
    ],
)
def test_a_json_patch_that_does_not_apply(operation):
    with pytest.raises(patches.PatchError):
        patches.json_patch({"a": 1}, [operation])


@pytest.mark.parametrize("operations", [{}, [1], [{"op": "grow", "path": "/a"}]])
def test_what_is_no_json_patch(operations):
    with pytest.raises(BadRequestError):
        patches.json_patch({}, operations)


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        ([{"name": "a", "image": "2"}], [{"name": "a", "image": "2"}, {"name": "b"}]),
        ([{"name": "c"}], [{"name": "a", "image": "1"}, {"name": "b"}, {"name": "c"}]),
        ([{"name": "a", "$patch": "delete"}], [{"name": "b"}]),
        ([{"$patch": "replace"}, {"name": "c"}], [{"name": "c"}]),
    ],
)
def test_strategic_merges_lists_by_their_key(patch, expected):
    document = {"containers": [{"name": "a", "image": "1"}, {"name": "b"}]}
    assert patches.strategic(document, {"containers": patch}, POD)["containers"] == expected


def test_strategic_replaces_other_lists_and_adds_to_sets():
    container = {"containers": [{"name": "a", "command": ["x"]}]}
    patch = {"containers": [{"name": "a", "command": ["y"]}]}
    assert patches.strategic(container, patch, POD)["containers"][0]["command"] == ["y"]
    metadata = {"finalizers": ["a", "b"]}
    assert patches.strategic(metadata, {"finalizers": ["c"]}, "meta.v1.ObjectMeta") == {
        "finalizers": ["a", "b", "c"]
    }
    taken = patches.strategic(
        metadata, {"$deleteFromPrimitiveList/finalizers": ["a"]}, "meta.v1.ObjectMeta"
    )
    assert taken == {"finalizers": ["b"]}
