"""Names of workflows, and the Covalent nodes of a job's tasks."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farcall.config.settings import Settings
from farcall.model.workflows import NodeOf, Workflow, list_nodes, node_at

NODES = st.lists(st.builds(NodeOf, st.sampled_from("ab"), st.integers(0, 9)), max_size=30)


@given(NODES)
def test_node_of_each_task_is_found(nodes):
    listed = json.loads(json.dumps(list_nodes(nodes)))
    assert [node_at(listed, index) for index in range(len(nodes))] == nodes
    assert node_at(listed, len(nodes)) is None


def test_regular_node_list_is_short():
    nodes = [NodeOf("a" * 36, 2 * number) for number in range(10_000)]
    assert list_nodes(nodes) == [["a" * 36, [[0, 2, 10_000]]]]


def test_irregular_node_list_is_omitted():
    nodes = [NodeOf("a", number * number) for number in range(10_000)]
    assert list_nodes(nodes) == []


@pytest.mark.parametrize(
    "listed", [None, 1, [], [1], [["a"]], [["a", [[1]]]], [["a", [["b", 1]]]]]
)
def test_invalid_node_list_is_ignored(listed):
    assert node_at(listed, 0) is None


PRINT_NAME = "import farcall; print(farcall.Settings().workflow_name)"


def run(*arguments, **options):
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True, **options
    )
    return done.stdout.strip()


def test_workflow_option_sets_name():
    assert Settings(workflow="nightly").workflow_name == "nightly"


def test_script_name_is_the_default(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(PRINT_NAME)
    assert run(str(path)) == "train.py"


def test_illegal_characters_are_escaped():
    variables = Workflow("train\n\udcff\x1b[2J.py").environment()
    assert variables == {"FARCALL_WORKFLOW": "train <U+DCFF>^[[2J.py"}


def test_module_name_is_used(tmp_path):
    package = tmp_path / "project"
    package.mkdir()
    (package / "__main__.py").write_text(PRINT_NAME)
    (package / "sweep.py").write_text(PRINT_NAME)
    assert run("-m", "project", cwd=tmp_path) == "project"
    assert run("-m", "project.sweep", cwd=tmp_path) == "project.sweep"


def test_command_without_file_is_interactive():
    assert run("-c", PRINT_NAME) == "interactive"


def test_long_name_is_truncated():
    variables = Workflow("x" * 300, "d-1").environment()
    assert variables == {"FARCALL_WORKFLOW": "x" * 128, "FARCALL_DISPATCH": "d-1"}
