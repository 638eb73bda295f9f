"""Covalent's files of a task group, read without unpickling."""

import json
import os
import pickle

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farcall.covalent import assets
from farcall.covalent.assets import Electron, TaskGroup
from farcall_runtime import archive, envelope, pickles
from farcall_runtime.archive import Encoder
from farcall_runtime.electron import Node
from farcall_runtime.envelope import IntegrityError

VALUES = st.none() | st.integers() | st.text() | st.lists(st.integers())


def pack(value, name=None):
    """Return a value's archive, optionally with another name."""
    encoder = Encoder()
    pickles.dump_to(value, encoder)
    names = {"doc": "", "name": getattr(value, "__name__", "") if name is None else name}
    head = archive.head_of(names, str(value), cloudpickle.__version__)
    return b"".join([head, *encoder.close()])


def read(data):
    return pickle.loads(archive.decode(archive.parse(data).data))


class Trap:
    """Fails when it is unpickled."""

    def __reduce__(self):
        return pytest.fail, ("it was unpickled",)


@pytest.fixture(scope="module")
def ct():
    return pytest.importorskip("covalent")


@pytest.fixture(scope="module")
def built(ct):
    """Electrons of a lattice as Covalent's client builds it, by function name."""

    @ct.electron
    def mine(values, named):
        return values, named

    @ct.electron
    @ct.lattice
    def inner(value):
        return value

    @ct.lattice
    def flow(value):
        return mine([value, 2], {"a": value}), inner(value)

    flow.build_graph(1)
    graph = flow.transport_graph
    found = {}
    for number in graph._graph.nodes:
        function = graph.get_node_value(number, "function")
        if function is not None and function.get_deserialized() is not None:
            data = function.serialize()
            found[archive.parse(data).name] = data
    return found


def electron(data, node=None, hooks=None):
    before, after = assets.read_hooks(hooks or {})
    return Electron(node or Node(0, (), {}), archive.parse(data), before, after)


def group_of(node, function, hooks, inputs):
    """Return a group of one node."""
    found = {number: archive.parse(data) for number, data in inputs.items()}
    return TaskGroup([electron(function, node, hooks)], found)


# --- nodes that Covalent adds --------------------------------------------------------------------


def test_covalents_collections_are_recognized(built):
    for name in ("_auto_list_node", "_auto_dict_node"):
        assert electron(built[name]).is_collection
        assert not electron(built[name]).is_for_server


def test_covalents_sublattices_are_recognized(built):
    assert electron(built["_build_sublattice_graph"]).is_for_server
    assert not electron(built["_build_sublattice_graph"]).is_collection


@pytest.mark.parametrize("name", ["_auto_list_node", "_auto_dict_node", "_build_sublattice_graph"])
def test_user_function_is_not_recognized(name):
    def function(*args):
        return "mine"

    function.__name__ = name
    function.__qualname__ = f"Electron.{name}"
    mine = electron(pack(function))
    assert name == mine.function.name
    assert not mine.is_collection
    assert not mine.is_for_server


DEPENDENCY = {"deps": {"bash": {"attributes": {"apply_args": {"attributes": {"_object": ""}}}}}}


def test_collection_with_dependencies_is_a_job(built):
    assert not electron(built["_auto_list_node"], hooks=DEPENDENCY).is_collection


def collect(data, node, inputs):
    return group_of(node, data, {}, inputs).collect()


@given(st.lists(VALUES))
def test_list_matches_covalents_function(built, values):
    numbers = [number + 7 for number in range(len(values))]
    inputs = dict(zip(numbers, map(pack, values), strict=True))
    made = collect(built["_auto_list_node"], Node(1, numbers, {}), inputs)
    assert read(built["_auto_list_node"])(*values) == read(made)


@given(st.dictionaries(st.text() | st.integers(), VALUES))
def test_dict_matches_covalents_function(built, values):
    inputs = {3: pack([*values]), 4: pack([*values.values()])}
    for node in (
        Node(1, [3, 4], {}),
        Node(1, [], {"keys": 3, "values": 4}),
        Node(1, [], {"values": 4, "keys": 3}),
    ):
        made = collect(built["_auto_dict_node"], node, inputs)
        expected = read(built["_auto_dict_node"])([*values], [*values.values()])
        assert [*expected.items()] == [*read(made).items()]


def test_collection_archive_is_readable_by_covalent(ct, built):
    transportable = pytest.importorskip("covalent._workflow.transportable_object")
    made = collect(built["_auto_list_node"], Node(1, [3, 4], {}), {3: pack(5), 4: pack("a")})
    archived = transportable.TransportableObject.deserialize(made)
    assert [5, "a"] == archived.get_deserialized()
    assert "[5, a]" == archived.object_string
    assert made == archived.serialize()


def test_making_collection_unpickles_nothing(built):
    made = collect(built["_auto_list_node"], Node(1, [3], {}), {3: pack(Trap())})
    with pytest.raises(pytest.fail.Exception):
        read(made)


# --- groups --------------------------------------------------------------------------------------


def write(folder, content):
    files = {}
    for (number, asset), data in content.items():
        files[number, asset] = folder / f"{number}-{asset}"
        files[number, asset].write_bytes(data)
    return files


def test_group_is_read_from_covalents_files(tmp_path):
    large = pack(os.urandom(200_000))
    files = write(
        tmp_path,
        {
            (1, "function"): pack(abs),
            (1, "hooks"): b"{}",
            (2, "function"): pack(len),
            (2, "hooks"): b"null",
            (5, "output"): large,
        },
    )
    files[2, "hooks"] = tmp_path / "missing"
    nodes = [Node(1, [5], {}), Node(2, [1], {"more": 5})]
    group = assets.read_group(nodes, files)
    assert ["abs", "len"] == [each.function.name for each in group.electrons]
    assert "len" == group.name
    assert [5] == [*group.inputs]
    assert read(large) == pickle.loads(archive.decode(group.inputs[5].data))


def test_damaged_group_is_rejected(tmp_path):
    good = {(1, "function"): pack(abs), (1, "hooks"): b"{}"}
    for asset, data in (("function", b""), ("function", b"x" * 100), ("hooks", b"{")):
        files = write(tmp_path, {**good, (1, asset): data})
        with pytest.raises(IntegrityError):
            assets.read_group([Node(1, (), {})], files)


def test_packed_group_runs_with_its_inputs(tmp_path):
    function, value = pack(abs), pack(-3)
    group = group_of(Node(4, [9], {}), function, {}, {9: value})
    code, calls = group.pack()
    run_group = pickles.load(envelope.unpack(memoryview(b"".join(code.pieces))))
    ((args, kwargs),) = pickles.load(envelope.unpack(memoryview(b"".join(calls.pieces))))
    ((nodes, inputs),) = (args,)
    assert {} == kwargs
    assert [(4, [9], {})] == [tuple(node) for node in nodes]
    assert bytes(archive.parse(value).data) == bytes(inputs[9])
    assert -3 == pickle.loads(archive.decode(inputs[9]))
    made = run_group(nodes, inputs)
    assert 3 == read(b"".join(made.parts[0]))


def test_packing_group_unpickles_nothing():
    hook = {
        "apply_fn": {"attributes": {"_object": archived(Trap())}},
        "apply_args": {"attributes": {"_object": archived(Trap())}},
        "apply_kwargs": {"attributes": {"_object": archived(Trap())}},
        "retval_keyword": "",
    }
    hooks = {"call_before": [{"attributes": hook}], "call_after": [{"attributes": hook}]}
    group_of(Node(1, [2], {}), pack(Trap()), hooks, {2: pack(Trap())}).pack()


def archived(value):
    return bytes(archive.parse(pack(value)).data).decode()


def test_group_names_its_pickling_versions():
    header = {"py_version": "3.9.18", "cloudpickle_version": "2.2", "attrs": {"name": "work"}}
    encoded = json.dumps(header).encode()
    at = 16 + len(encoded)
    data = at.to_bytes(8, "big") * 2 + encoded + b"gAROLg=="
    code, calls = group_of(Node(1, (), {}), data, {}, {}).pack()
    for packed in (code, calls):
        assert ("3.9.18", "2.2", (3, 9)) == (*packed.origin, packed.origin.minor)


@pytest.mark.parametrize("version", ["", "three", "3", None, "3.x.1"])
def test_group_without_versions_is_rejected(version):
    header = {"py_version": version, "cloudpickle_version": "3", "attrs": {"name": "work"}}
    encoded = json.dumps(header).encode()
    data = (16 + len(encoded)).to_bytes(8, "big") * 2 + encoded + b"gAROLg=="
    with pytest.raises(IntegrityError, match="Python"):
        group_of(Node(1, (), {}), data, {}, {}).pack()


@pytest.mark.parametrize(
    "hooks",
    [
        {"deps": {"bash": {}}},
        {"deps": {"pip": {"attributes": {}}}},
        {"deps": ["bash"]},
        {"call_before": [{}]},
        {"call_before": [3]},
        {"call_after": [{"attributes": {"apply_fn": {}}}]},
        {"call_after": 3},
    ],
)
def test_unknown_dependency_format_is_rejected(hooks):
    with pytest.raises(IntegrityError, match=r"Covalent 0\.240"):
        group_of(Node(1, (), {}), pack(abs), hooks, {}).pack()


@pytest.mark.parametrize(
    ("packages", "content", "wanted"),
    [
        (["numpy", "scipy[all]>=1; python_version > '3'"], "", 2),
        ([], "# mine\n\nnumpy==2.1  # why\nscipy\n", 2),
        (["absent"], "numpy\n", 1),  # the file comes first, like in the job
        (["./folder"], "", 0),
        (["numpy", "a @ https://example.com/a-1-py3-none-any.whl"], "", 0),
        (["--pre", "numpy"], "", 0),
        ([], "-r other.txt\nnumpy\n", 0),
        ([], "numpy==2.1 \\\n  --hash=sha256:00\n", 0),
    ],
)
def test_requirements_of_pip_are_read(ct, tmp_path, packages, content, wanted):
    path = tmp_path / "requirements.txt"
    path.write_text(content)
    pip = ct.DepsPip(packages, reqs_path=str(path) if content else "")
    call = ct.DepsCall(abs, [-1]).to_dict()
    hooks = {"deps": {"pip": pip.to_dict()}, "call_before": [call]}
    group = group_of(Node(1, (), {}), pack(abs), hooks, {})

    assert len(group.requirements) == wanted
    assert ["call"] == [kind for kind, _ in group.without_pip().electrons[0].before]


def test_malicious_package_list_is_not_run():
    trap = {"attributes": {"_object": bytes(archive.parse(pack(Trap())).data).decode()}}
    hooks = {"deps": {"pip": {"attributes": {"apply_args": trap}}}}
    assert [] == group_of(Node(1, (), {}), pack(abs), hooks, {}).requirements


def test_both_hook_formats_are_equivalent(ct):
    bash, pip = ct.DepsBash(["true"]), ct.DepsPip(["numpy"])
    first = ct.DepsCall(abs, [-1], retval_keyword="found")
    after = ct.DepsCall(print, kwargs={"end": ""})
    stored = {
        "deps": {"bash": bash.to_dict(), "pip": pip.to_dict()},
        "call_before": [first.to_dict()],
        "call_after": [after.to_dict()],
    }
    applied = [
        [
            assets.hook_of(*(part.get_serialized() for part in each.apply()[:3]), each.apply()[3])
            for each in hooks
        ]
        for hooks in ((bash, pip, first), (after,))
    ]
    before, behind = assets.read_hooks(stored)
    assert [before, behind] == applied
    assert ["bash", "pip", "call"] == [kind for kind, _ in before]
    assert ["call"] == [kind for kind, _ in behind]
