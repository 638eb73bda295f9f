"""What all tests share: an environment without the developer's AWS, and an embedded one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--aws", action="store_true", help="check a real AWS account's Batch too")


@pytest.fixture(autouse=True)
def _clean_environment(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Let no test find the developer's credentials, options or files, but where asked to."""
    if pytestconfig.getoption("--aws"):
        return
    for name in os.environ:
        if name.startswith(("AWS_", "FARCALL_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
