"""Fixtures: a scripted API server and its client."""

import pytest

from tests.unit.backends.kubernetes.api_server import ApiServer, kubeconfig, opened


@pytest.fixture
async def server():
    opened = await ApiServer().start()
    yield opened
    await opened.stop()


@pytest.fixture
async def kube(server, tmp_path):
    path = kubeconfig(tmp_path / "config", server.url)
    client = opened(path)
    yield client
    await client.close()


@pytest.fixture
async def open_as(server, tmp_path):
    """Function that opens a client with the credentials of a user."""
    clients = []

    def open_client(user=None, url=server.url, **cluster):
        clients.append(opened(kubeconfig(tmp_path / "config", url, user, **cluster)))
        return clients[-1]

    yield open_client
    for each in clients:
        await each.close()
