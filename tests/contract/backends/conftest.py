"""A platform, and a session on it."""

import pytest

from farcall import Settings
from farcall.engine.session import open_session
from tests.contract.backends.platforms import PLATFORMS, Jobs


@pytest.fixture(
    params=[
        pytest.param(name, marks=() if name == "fake" else pytest.mark.system)
        for name in PLATFORMS
    ]
)
def platform(request):
    with PLATFORMS[request.param](request) as opened:
        yield opened


@pytest.fixture
async def jobs(platform):
    session = await open_session(Settings())
    yield Jobs(session)
    await session.close()


@pytest.fixture
def go(tmp_path):
    """The file that `wait_for` waits for; it is always created in the teardown."""
    path = tmp_path / "go"
    yield path
    path.touch()
