"""Which of Covalent's nodes the tasks of a job are, as a bundle says it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farcall.model.workflows import NodeOf, list_nodes, node_at

NODES = st.lists(st.builds(NodeOf, st.sampled_from("ab"), st.integers(0, 9)), max_size=30)


@given(NODES)
def test_each_task_is_found_again(nodes):
    listed = json.loads(json.dumps(list_nodes(nodes)))
    assert [node_at(listed, index) for index in range(len(nodes))] == nodes
    assert node_at(listed, len(nodes)) is None


def test_the_nodes_of_a_sweep_take_few_words():
    nodes = [NodeOf("a" * 36, 2 * number) for number in range(10_000)]
    assert list_nodes(nodes) == [["a" * 36, [[0, 2, 10_000]]]]


def test_what_would_take_many_words_is_left_out():
    nodes = [NodeOf("a", number * number) for number in range(10_000)]
    assert list_nodes(nodes) == []


@pytest.mark.parametrize(
    "listed", [None, 1, [], [1], [["a"]], [["a", [[1]]]], [["a", [["b", 1]]]]]
)
def test_what_does_not_say_it_says_nothing(listed):
    assert node_at(listed, 0) is None
