"""Functions of small projects behave the same in a container and locally.

Starts the local AWS emulator with containers, whose file system does not contain the projects.
"""

import re

import pytest

from tests.same.programs import NAMES, PROGRAMS, Runner, compare

_NOT_IN_THE_IMAGE = re.compile(r"\b(import|from) (numpy|sklearn|pydantic|joblib|msgspec|pandas)")

_PLAIN = [
    name
    for name in NAMES
    if not any(map(_NOT_IN_THE_IMAGE.search, PROGRAMS[name.partition("-")[0]][1].values()))
]


@pytest.fixture(scope="module")
def outcomes(embedded, image, tmp_path_factory):
    variables = {**embedded.environment, "FARCALL_IMAGE": image}
    return Runner(tmp_path_factory.mktemp("same"), variables).run_all(_PLAIN)


@pytest.mark.parametrize("name", _PLAIN)
def test_container_behaves_like_local_call(outcomes, name):
    compare(*outcomes[name], name)
