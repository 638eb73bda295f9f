"""Electrons get the project of the client's script, which the server does not have.

A script in its own folder, without AWS credentials, dispatches to the shared Covalent server.
Another process, which has no project, dispatches the workflow again.
"""

import json
import os
import re
import sys
import threading

import covalent as ct
import pytest

from farcall import TaskNotPicklableError
from farcall_runtime.archive import HEADER
from tests.support.program import stdout_of

FILES = {
    "shapes.py": """
        import json
        from pathlib import Path

        FACTOR = json.loads((Path(__file__).parent / "factor.json").read_text())
        SEEN = []

        class Box:
            def __init__(self, size):
                self.size = size

        def scaled(size):
            return size * FACTOR
    """,
    "factor.json": "10",
    "main.py": """
        import json
        import sys

        import covalent as ct

        import shapes
        from shapes import Box, scaled

        STATE = {}

        def prepare():
            STATE["ready"] = True
            shapes.SEEN.append("prepared")

        @ct.electron(executor="awsbatch", call_before=[ct.DepsCall(prepare)])
        def hooked():
            return STATE, shapes.SEEN

        @ct.electron(executor="awsbatch")
        def make(size):
            return {"box": Box(size), "size": later(size)}

        @ct.electron(executor="awsbatch")
        def size_of(box):
            return isinstance(box, Box), scaled(box.size)

        @ct.electron
        def of_lattice(box):
            return size_of(box)

        @ct.electron
        @ct.lattice(executor="awsbatch")
        def inner(box, number):
            return [size_of(box), of_lattice(Box(number))]

        @ct.lattice
        def flow(number):
            made = make(number)
            return {
                "box": made["box"],
                "sizes": [size_of(made["box"]), size_of(Box(number)), made["size"]],
                "inner": [inner(Box(number), number), inner(made["box"], number)],
                "hooked": hooked(),
            }

        def later(size):
            return scaled(size) + 1

        if __name__ == "__main__":
            dispatch_id = ct.dispatch(flow)(2)
            result = ct.get_result(dispatch_id, wait=True)
            value = result.result or {}
            is_own = type(value.pop("box", None)) is Box
            print(json.dumps([dispatch_id, str(result.status), is_own, value, result.error]))
    """,
}

AGAIN = """
import json, sys
import covalent as ct
result = ct.get_result(ct.redispatch(sys.argv[1])(3), wait=True)
node = result.get_node_result(int(sys.argv[2]))
assert node["output"], (result.error, node["error"])
print(json.dumps([str(result.status), node["output"].get_deserialized()]))
"""


def output_of(command, folder, environment):
    output = stdout_of(sys.executable, *command, cwd=folder, env=environment)
    return json.loads(output.splitlines()[-1])


@pytest.fixture(scope="module")
def environment(server):
    variables = {n: v for n, v in os.environ.items() if not n.startswith(("AWS_", "COVALENT_"))}
    return {**variables, **server.environment}


@pytest.fixture(scope="module")
def dispatched(environment, tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    for name, text in FILES.items():
        (folder / name).write_text("\n".join(line[8:] for line in text.split("\n")) or text)
    (folder / "factor.json").write_text("10")
    return output_of(["main.py"], folder, environment)


@pytest.mark.path
def test_electrons_get_project_of_script(dispatched):
    _, status, is_own, value, error = dispatched
    assert ("COMPLETED", True) == (status, is_own), error
    assert [[True, 20], [True, 20], 21] == value["sizes"]
    assert [{"ready": True}, ["prepared"]] == value["hooked"]


def test_electrons_of_sublattice_get_project(dispatched):
    assert [[[True, 20], [True, 20]]] * 2 == dispatched[3]["inner"]


def test_process_without_project_dispatches_again(dispatched, environment, tmp_path):
    name = "size_of"
    nodes = ct.get_result(dispatched[0]).lattice.transport_graph._graph.nodes
    number = next(key for key, node in nodes.items() if node["name"] == name)
    found = output_of(["-c", AGAIN, dispatched[0], str(number)], tmp_path, environment)
    assert ["COMPLETED", [True, 30]] == found


def built(flow, *args):
    flow.build_graph(*args)
    return {node["name"]: node for node in flow.transport_graph._graph.nodes.values()}


def test_electrons_of_other_executors_stay_unchanged():
    @ct.electron(executor="local")
    def double(value):
        return 2 * value

    @ct.lattice(executor="local", workflow_executor="local")
    def flow(value):
        return double(value)

    before = flow.workflow_function
    nodes = built(flow, 3)
    assert flow.workflow_function is before
    assert {"local"} == {nodes[n]["metadata"]["executor"] for n in nodes if "parameter" not in n}
    assert not [name for name, node in nodes.items() if HEADER in node["function"].header]


def test_unpicklable_argument_is_named(batch):
    @ct.electron(executor=batch())
    def held(options):
        return options

    @ct.lattice
    def flow():
        return held({"lock": threading.Lock()})

    what = re.escape("argument of the electron held['lock'] (lock) cannot be pickled")
    with (
        pytest.warns(UserWarning, match="manipulating an object"),  # by Covalent, for any error
        pytest.raises(TaskNotPicklableError, match=f"^{what}.*create it inside the function"),
    ):
        flow.build_graph()


def test_project_is_stored_once_per_dispatch(batch, tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    (project / "table.bin").write_bytes(os.urandom(20_000))
    on_batch = batch(sources=[str(project)])

    @ct.electron(executor=on_batch)
    def double(value):
        return 2 * value

    @ct.lattice
    def flow(count):
        return [double(number) for number in range(count)]

    flow.build_graph(100)
    nodes = flow.transport_graph._graph.nodes.values()
    sizes = [len(node["function"].serialize()) for node in nodes if node["name"] == "double"]
    (archive,) = flow.workflow_function.header[HEADER]["projects"].values()
    assert 100 == len(sizes)
    assert max(sizes) < 20_000 < len(archive)


def test_lattice_executor_of_other_dispatch_is_not_kept():
    @ct.electron
    def double(value):
        return 2 * value

    def flow(value):
        return double(value)

    names = []
    for executor in ("awsbatch", "local"):
        nodes = built(ct.lattice(flow, executor=executor), 3)
        names.append(nodes["double"]["metadata"]["executor"])
    assert ["awsbatch", "local"] == names
