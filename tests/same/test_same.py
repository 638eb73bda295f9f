"""Functions of small projects behave the same in a job and locally.

Starts the local AWS emulator, and two processes for each project.
"""

from pathlib import Path

import pytest

from tests.same.programs import NAMES, PROGRAMS, Runner, compare

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
    asked = [item.callspec.params["name"] for item in request.session.items if _is_here(item)]
    return Runner(tmp_path_factory.mktemp("same"), variables).run_all(dict.fromkeys(asked))


def _is_here(item):
    return item.path == Path(__file__)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=_marks(name)) for name in NAMES],
)
def test_job_behaves_like_local_call(outcomes, name):
    compare(*outcomes[name], name)
