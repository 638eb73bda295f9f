"""Functions of small projects behave in a job as they do here.

Starts the local AWS emulator, and two processes for each project.
"""

from __future__ import annotations

import pytest

from tests.same.programs import NAMES, Runner, compare


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
    return Runner(tmp_path_factory.mktemp("same"), variables).run_all(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_job_behaves_as_a_local_call(outcomes, name):
    compare(*outcomes[name], name)
