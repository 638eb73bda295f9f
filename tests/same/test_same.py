"""Functions of small projects behave the same in a job, as electrons, and locally.

Starts the local AWS emulator, a Covalent server, and two processes for each project.
"""

from pathlib import Path

import pytest

from tests.same.programs import NAMES, PROGRAMS, Runner, compare, compare_electrons
from tests.support.covalent_server import CovalentServer

FIRST = sorted(PROGRAMS)[::12]
"""Programs that ``make test`` runs."""

QUICK = sorted(PROGRAMS)[::3]
"""Programs that ``.ci/run`` runs; all of them take two minutes."""


def _marks(name):
    quick = () if name in QUICK else (pytest.mark.slow,)
    return (*quick, *((pytest.mark.core,) if name in FIRST else ()))


@pytest.fixture(
    scope="module",
    params=["embedded", pytest.param("embedded_kubernetes", marks=pytest.mark.slow)],
)
def outcomes(request, tmp_path_factory):
    """The outcomes of each program's calls, local and in jobs."""
    cloud = request.getfixturevalue(request.param)
    variables = dict(cloud.environment)
    if request.param == "embedded_kubernetes":
        variables["FARCALL_BACKEND"] = "kubernetes"
    names = _names(request, test_job_behaves_like_local_call)
    return Runner(tmp_path_factory.mktemp("same"), variables).run_all(names)


@pytest.fixture(scope="module")
def electrons(request, embedded, tmp_path_factory):
    """The outcomes of each program's calls, local and as electrons."""
    pytest.importorskip("covalent_ui")
    names = _names(request, test_electron_behaves_like_local_call)
    folder = tmp_path_factory.mktemp("electrons")
    with CovalentServer(folder / "server", embedded.environment) as server:
        variables = {**embedded.environment, **server.environment}
        runner = Runner(tmp_path_factory.mktemp("same"), variables)
        return runner.run_all(names, "electron")


def _names(request, test):
    return dict.fromkeys(
        item.callspec.params["name"]
        for item in request.session.items
        if item.path == Path(__file__) and item.function.__name__ == test.__name__
    )


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=_marks(name)) for name in NAMES],
)
def test_job_behaves_like_local_call(outcomes, name):
    compare(*outcomes[name], name)


ELECTRONS = [name for name in NAMES if name not in {"methods_and_callables"}]
"""Covalent needs a function's name, which an object with ``__call__`` lacks."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=(pytest.mark.path,) if name in FIRST else ()) for name in ELECTRONS],
)
def test_electron_behaves_like_local_call(electrons, name):
    compare_electrons(*electrons[name])
