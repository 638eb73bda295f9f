import contextlib

import pytest

from tests.support.wheels import Index


@pytest.fixture
def index(tmp_path, monkeypatch):
    with contextlib.closing(Index(tmp_path / "index")) as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running
