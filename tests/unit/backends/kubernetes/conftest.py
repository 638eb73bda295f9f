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
