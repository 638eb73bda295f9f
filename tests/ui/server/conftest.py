"""Fixtures for the web UI's API, with a proxy between the web UI and the local AWS emulator."""

import uuid

import aiohttp
import pytest

from tests.support.proxy import Proxy
from tests.ui import serving, shells
from tests.ui.server.screen import get


@pytest.fixture(scope="module")
def proxy(embedded):
    """A proxy between the web UI and the local AWS emulator."""
    with Proxy(embedded.endpoint_url) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def served(embedded, proxy, tmp_path_factory):
    environment = {**embedded.environment, "AWS_ENDPOINT_URL": proxy.url}
    home = {"HOME": str(tmp_path_factory.mktemp("home"))}
    with serving.page({**environment, **home}) as served:
        yield served


@pytest.fixture
async def page(served):
    """An HTTP client with the token."""
    async with aiohttp.ClientSession(served.url, headers=served.headers) as session:
        yield session


@pytest.fixture
async def client(page):
    """Run name of a client process that belongs to the web UI's user."""
    about = await get(page, "/api/about")
    return f"{about['user']}-20260101-000000-{uuid.uuid4().hex[:6]}"


@pytest.fixture
def submit(aws, client):
    """Return a function that submits a shell script like a farcall job; it returns the ID."""
    with shells.submitting(aws, client) as submit:
        yield submit
