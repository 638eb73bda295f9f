"""Electrons that need packages, in an image that has neither Covalent nor the packages.

Starts the shared Covalent server for a local wheel, and a second one with an own package index,
because the index is read from the server's environment. Hooks are in
tests/unit/runtime/test_electron.py. Slow, because a Covalent server takes seconds to start.
"""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import subprocess
from pathlib import Path

import covalent as ct
import pytest

from tests.support.covalent_server import CovalentServer
from tests.support.wheels import Index, make_wheel

ENTRY_POINTS = "[console_scripts]\ntravelled-tool = travelled:main\n"
TRAVELLED = {"travelled.py": "VERSION = '1.0'\ndef main():\n    print('ran', VERSION)\n"}


def only(function):
    """Return a lattice of one electron."""

    @ct.lattice
    def flow(*args):
        return function(*args)

    return flow


# --- stock image ---------------------------------------------------------------------------------


def test_electron_runs_in_stock_image(run, node, batch, tmp_path):
    """The definition's name is from Covalent's documentation; the definition does not exist."""
    wheel = make_wheel(tmp_path, "stockly")
    executor = batch(
        container_image_uri="", batch_job_definition_name="covalent-batch-qa-job-definition"
    )

    @ct.electron(executor=executor, deps_pip=ct.DepsPip([str(wheel)]))
    def work(x):
        import stockly

        print("in the stock image")
        lacking = [importlib.util.find_spec(name) is None for name in ("covalent", "pydantic")]
        return x + 1, stockly.VERSION, lacking

    @ct.electron(executor=executor)
    def fail():
        raise LookupError("on purpose")

    done = node(run(only(work), 1), 0)
    assert (2, "1.0", [True, True]) == done.output, done.error
    assert "in the stock image\n" == done.stdout
    failed = node(run(only(fail)), 0)
    assert "FAILED" == failed.status
    assert "LookupError: on purpose" in failed.error


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    with contextlib.closing(Index(tmp_path_factory.mktemp("index") / "index")) as running:
        running.add("needed", "1.0")
        running.add("needed", "2.0")
        running.add("travelled", requires=["needed"], entry_points=ENTRY_POINTS, files=TRAVELLED)
        running.add("farcall-windows-only", tag="py3-none-win_amd64")
        yield running


@pytest.fixture(scope="module")
def configured(embedded, index, tmp_path_factory):
    """A server with the index and with packages in its configuration; jobs lack the index."""
    home = tmp_path_factory.mktemp("configured")
    cache = {"XDG_CACHE_HOME": str(home / "cache")}
    server = CovalentServer(
        home / "server", {**embedded.environment, **index.environment, **cache}
    )
    conf = Path(server.environment["COVALENT_CONFIG_DIR"], "covalent.conf")
    conf.parent.mkdir(parents=True)
    conf.write_text('[executors.awsbatch]\npackages = ["needed<2"]\ncontainer_image_uri = ""\n')
    with server:
        yield server


@pytest.fixture
def stock(batch):
    """Return a function that creates executors for the stock image with common packages."""
    return lambda **more: batch(**{"container_image_uri": "", "packages": ["needed<2"], **more})


def where(*names):
    """Return each module's version, and whether the module was synced."""
    found = [importlib.import_module(name) for name in names]
    return [(one.VERSION, "farcall-environment-" in one.__file__) for one in found]


def test_electron_packages_are_resolved_once(dispatch, wait, node, stock, configured, index):
    """No container calls an index, and the options' packages keep their versions."""

    @ct.electron(executor=stock(), deps_pip=ct.DepsPip(["travelled>=1", "needed"]))
    def work():
        subprocess.run(["travelled-tool"], check=True)
        return where("travelled", "needed")

    @ct.lattice
    def flow():
        return [work(), work()]

    first = wait(dispatch(flow, server=configured), server=configured)
    asked = list(index.asked)
    second = wait(dispatch(flow, server=configured), server=configured)

    results = first, second
    done = [node(result, number) for result in results for number in (0, 1)]
    expected = [[("1.0", True), ("1.0", True)]] * 4
    assert expected == [each.output for each in done], done[0].error
    assert ["ran 1.0\n"] * 4 == [each.stdout for each in done]
    assert asked == index.asked
    assert asked.count("/travelled/") == 2, asked  # once to resolve and once to download it
