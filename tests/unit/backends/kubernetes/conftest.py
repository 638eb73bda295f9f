"""Fixtures: a scripted API server and its client."""

from __future__ import annotations

import pytest

from farcall.backends.kubernetes.client import Kube
from farcall.testing import Timing
from tests.unit.backends.kubernetes.api_server import ApiServer, kubeconfig


@pytest.fixture
async def server():
    opened = await ApiServer().start()
    yield opened
    await opened.stop()


@pytest.fixture
async def kube(server, tmp_path):
    path = kubeconfig(tmp_path / "config", server.url)
    opened = await Kube.open(path=str(path), timing=Timing.fast())
    yield opened
    await opened.close()
