"""What a workflow is called, and which of Covalent's nodes the tasks of a job are."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farcall.model.settings import Settings
from farcall.model.workflows import NodeOf, Workflow, list_nodes, node_at

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


TELL = (
    "from farcall.model.settings import Settings; from farcall.model.workflows import Workflow; "
    "print(Workflow.of(Settings()).name)"
)


def run(*arguments, **options):
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True, **options
    )
    return done.stdout.strip()


def test_a_workflow_is_called_as_the_option_says():
    assert Workflow.of(Settings(workflow="nightly")) == ("nightly", "")


def test_a_workflow_is_called_like_its_script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(TELL)
    assert run(str(path)) == "train.py"


def test_a_name_that_aws_would_refuse_is_told_without_what_it_refuses():
    said = Workflow("train\n\udcff\x1b[2J.py").environment()
    assert said == {"FARCALL_WORKFLOW": "train <U+DCFF>^[[2J.py"}


def test_a_workflow_is_called_like_its_module(tmp_path):
    package = tmp_path / "project"
    package.mkdir()
    (package / "__main__.py").write_text(TELL)
    (package / "sweep.py").write_text(TELL)
    assert run("-m", "project", cwd=tmp_path) == "project"
    assert run("-m", "project.sweep", cwd=tmp_path) == "project.sweep"


def test_what_has_no_file_is_interactive():
    assert run("-c", TELL) == "interactive"


def test_a_long_name_is_cut_for_the_job():
    said = Workflow("x" * 300, "d-1").environment()
    assert said == {"FARCALL_WORKFLOW": "x" * 128, "FARCALL_DISPATCH": "d-1"}
