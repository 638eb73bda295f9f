"""``farcall[covalent]`` installed into an empty environment, and one dispatch there.

Runs on the first and the last Python that Covalent supports. Slow, because uv resolves and
installs all of Covalent's dependencies.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pythons import find

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

# Read here, because tests get another home, where uv would lack its download cache.
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("AWS_", "COVALENT_", "FARCALL_", "PYTHON"))
    and name not in ("VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
}

WORKFLOW = """\
import os
import sys
import urllib.request
from pathlib import Path

import farcall
import farcall_local
from tests.support.covalent_server import CovalentServer

with farcall_local.start() as aws, CovalentServer(Path("covalent"), aws.environment) as server:
    os.environ.update(aws.environment)
    os.environ.update(server.environment)
    import covalent as ct

    @ct.electron(executor="awsbatch")
    def add(left, right):
        print("adding")
        return left + right

    @ct.lattice
    def workflow(number):
        return add(number, 1)

    dispatch_id = ct.dispatch(workflow)(41)
    result = ct.get_result(dispatch_id, wait=True)
    node = result.get_node_result(0)
    assert ct.status.COMPLETED == result.status, f"{result} {node} {server.log}"
    assert "adding\\n" == node["stdout"]
    # Newer versions of Covalent's dependencies return an error for this page.
    with urllib.request.urlopen(f"{server.address}/{dispatch_id}") as page:
        assert 200 == page.status
    print(*sys.version_info[:2], result.result, Path(farcall.__file__).parent)
"""


def call(*command, cwd, **environment):
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**ENVIRONMENT, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == done.returncode, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def install(python, folder):
    """Create an empty environment, install the extras, and return its interpreter."""
    uv, environment = (sys.executable, "-m", "uv"), folder / "environment"
    inside = str(environment / "bin" / "python")
    call(*uv, "venv", "--python", python, str(environment), cwd=folder)
    # uv must not use a cached wheel of older sources.
    fresh = ("--refresh-package", "farcall")
    wanted = f"{ROOT}[covalent,local]"
    call(*uv, "pip", "install", *fresh, "--python", inside, wanted, cwd=folder)
    call(*uv, "pip", "check", "--python", inside, cwd=folder)
    return inside


def run_workflow(inside, folder):
    (folder / "home").mkdir()
    (folder / "workflow.py").write_text(WORKFLOW)
    variables = {"HOME": str(folder / "home"), "PYTHONPATH": str(ROOT)}  # for tests.support
    return call(inside, "-W", "ignore", "workflow.py", cwd=folder, **variables)


@pytest.mark.parametrize("version", ["3.11", "3.12"])
def test_covalent_extra_installs_working_set(version, tmp_path):
    inside = install(find(version), tmp_path)
    shown = run_workflow(inside, tmp_path)

    major, minor = version.split(".")
    packages = tmp_path / "environment" / "lib" / f"python{version}" / "site-packages"
    assert f"{major} {minor} 42 {packages / 'farcall'}\n" == shown
    assert [] == list((tmp_path / "home").rglob("*"))


@pytest.mark.parametrize("pinned", ["covalent", "fastapi"])
def test_newest_release_of_pin_fails(pinned, tmp_path):
    """If this fails, the newest release works: remove its pin from the extra `covalent`."""
    inside = install(find("3.12"), tmp_path)
    newer = (sys.executable, "-m", "uv", "pip", "install", "--python", inside, "--upgrade", pinned)
    version = f"import importlib.metadata as m; print(m.version({pinned!r}))"
    before = call(inside, "-c", version, cwd=tmp_path)
    call(*newer, cwd=tmp_path)
    if call(inside, "-c", version, cwd=tmp_path) == before:
        pytest.skip(f"the pin of {pinned} holds the newest release")
    with pytest.raises(AssertionError, match="422"):
        run_workflow(inside, tmp_path)
