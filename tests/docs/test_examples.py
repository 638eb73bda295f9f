"""The examples run unchanged on the local AWS emulator and print the expected output."""

import json
import re
from pathlib import Path

import pytest

from tests.docs.pages import run_installed
from tests.support.covalent_server import CovalentServer

EXAMPLES = Path(__file__).parents[2] / "examples"

PRINTED = {
    "sweep.py": r"(seed \d+: 3\.1\d\d\n){4}pi is about 3\.1\d, from 40 calls\n",
    "shared_data.py": r"8 jobs have read the same 6\.4 MB\n",
    "failures.py": (
        r"flaky ended well in attempt 2\n2\.0\nValueError\('-1 has no root'\)\n"
        r"job [0-9a-f-]{36}:2 died with exit code 7\n"
    ),
    "pandas_groups.py": r" shop +days +mean\nnorth +100 148\.5\nsouth +200 150\.0\n",
    "gpu.py": r"(GPU 0: .*\n)+|no GPU: .*\n",
    "command.py": r"it printed: one\nit printed: two\nits exit code: 0\n",
    "pool.py": (
        r"((7: 16|27: 111|97: 118) steps, job [0-9a-f-]{36}(:\d)?\n){3}"
        r"the longest way from below 1000 has 178 steps\n"
    ),
    "joblib_search.py": r"best: {.*}, right in 9\d% of the cases\n",
    "covalent_sublattice.py": r"(.*\n)*\[0, 1, 4, 9, 16\]\n(.*\n)*",
}
"""Regular expression for the complete stdout of each script."""

FAST = {"pool.py", "sweep.py"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in PRINTED],
)
def test_script_prints_expected_output(name, aws, tmp_path):
    environment = {}
    if name.startswith("covalent"):
        pytest.importorskip("covalent", reason="pip install 'farcall[covalent]'")
        # The script starts a server, which needs its own files and port.
        environment = CovalentServer(tmp_path / "covalent").environment
    done = run_installed("python", EXAMPLES / name, **environment)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(PRINTED[name], done.stdout), done.stdout + done.stderr


@pytest.mark.slow
def test_notebook_runs_completely(aws, tmp_path):
    executed = tmp_path / "executed.ipynb"
    done = run_installed("jupyter-execute", f"--output={executed}", EXAMPLES / "notebook.ipynb")
    assert done.returncode == 0, done.stderr
    cells = json.loads(executed.read_text())["cells"]
    shown = [
        "".join(output["data"]["text/plain"])
        for cell in cells
        for output in cell.get("outputs", ())
        if output["output_type"] == "execute_result"
    ]
    assert shown == ["59049", "[0, 1, 1024, 59049, 1048576]", "(256, 'simulating 2\\n')"]


def test_notebook_is_stored_without_outputs():
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text())["cells"]
    assert [cell["outputs"] for cell in cells if cell.get("outputs")] == []


def test_every_example_is_tested_and_listed():
    there = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
    listed = re.findall(r"^\| \[(.+)\]\(\1\) \|", (EXAMPLES / "README.md").read_text(), re.M)
    assert there == {*PRINTED, "notebook.ipynb"}
    assert sorted(listed) == sorted(there)


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_script_names_its_command(name):
    lines = (EXAMPLES / name).read_text().splitlines()
    assert f"    farcall local -- python examples/{name}" in lines
